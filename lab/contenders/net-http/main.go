// The rival net/http: the standard library, with the patterns that its ServeMux knows since
// Go 1.22, middleware as functions around handlers, and encoding/json. WebSockets, which the library
// has not, are those of github.com/coder/websocket.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/coder/websocket"
)

// How long requests that are under way at the end may take.
const patience = 10 * time.Second

func main() {
	settings := ReadSettings()
	handler := routes()
	failed := make(chan error, 2)

	plain := newServer(settings.Address, handler)
	servers := []*http.Server{plain}
	go func() { failed <- plain.ListenAndServe() }()
	if settings.TLS != nil {
		secure := newServer(settings.TLSAddress, handler)
		secure.TLSConfig = settings.TLS
		secure.TLSConfig.NextProtos = []string{"h2", "http/1.1"}
		servers = append(servers, secure)
		go func() { failed <- secure.ListenAndServeTLS("", "") }()
	}

	ended, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	select {
	case err := <-failed:
		log.Fatal(err)
	case <-ended.Done():
	}
	limit, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, server := range servers {
		if err := server.Shutdown(limit); err != nil {
			log.Print(err)
		}
	}
}

func newServer(address string, handler http.Handler) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Addr:      address,
		Handler:   handler,
		ErrorLog:  log.New(io.Discard, "", 0),
		Protocols: &protocols,
	}
}

func routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(writer http.ResponseWriter, _ *http.Request) {
		writeText(writer, "Hello, World!")
	})
	mux.HandleFunc("GET /hello", func(writer http.ResponseWriter, _ *http.Request) {
		writeText(writer, "Hello, World")
	})
	mux.HandleFunc("GET /json", func(writer http.ResponseWriter, _ *http.Request) {
		writeJSON(writer, http.StatusOK, Message{Message: "Hello, World!"})
	})
	mux.HandleFunc("GET /api/v1/health", func(writer http.ResponseWriter, _ *http.Request) {
		writeJSON(writer, http.StatusOK, Health{Status: "ok"})
	})
	mux.HandleFunc("GET /example", func(writer http.ResponseWriter, _ *http.Request) {
		writeJSON(writer, http.StatusOK, NewExample())
	})
	mux.HandleFunc("GET /large", func(writer http.ResponseWriter, _ *http.Request) {
		writeJSON(writer, http.StatusOK, NewLarge())
	})
	mux.HandleFunc("POST /json-sort", sortNumbers)
	mux.HandleFunc("POST /json-complex", readExample)
	mux.Handle("POST /projects/{projectID}/events", hooks(http.HandlerFunc(record)))
	mux.HandleFunc("POST /upload", upload)
	mux.HandleFunc("GET /sleep/{milliseconds}", sleep)
	mux.HandleFunc("GET /spawn/{n}", spawn)
	mux.HandleFunc("GET /relay/{text}", relay)
	mux.HandleFunc("GET /download", download)
	mux.HandleFunc("POST /echo", echo)
	mux.HandleFunc("GET /ws", echoMessages)
	addLargeApplication(mux)
	return mux
}

func addLargeApplication(mux *http.ServeMux) {
	for _, version := range versions {
		for _, resource := range resources {
			for _, method := range methods {
				text := fmt.Sprintf("%s %s %s", method, version, resource)
				path := fmt.Sprintf("%s /%s/%s", method, version, resource)
				mux.HandleFunc(path, func(writer http.ResponseWriter, _ *http.Request) {
					writeText(writer, text)
				})
				mux.HandleFunc(path+"/{id}", func(writer http.ResponseWriter, request *http.Request) {
					writeText(writer, text+" "+request.PathValue("id"))
				})
			}
		}
	}
}

func writeText(writer http.ResponseWriter, text string) {
	writer.Header().Set("Content-Type", "text/plain; charset=utf-8")
	// A peer that goes away is not this program's error.
	_, _ = io.WriteString(writer, text)
}

func writeJSON(writer http.ResponseWriter, status int, value any) {
	writer.Header().Set("Content-Type", "application/json")
	writer.WriteHeader(status)
	_ = json.NewEncoder(writer).Encode(value)
}

func sortNumbers(writer http.ResponseWriter, request *http.Request) {
	var numbers []int64
	if err := json.NewDecoder(request.Body).Decode(&numbers); err != nil {
		http.Error(writer, err.Error(), http.StatusBadRequest)
		return
	}
	slices.Sort(numbers)
	writeJSON(writer, http.StatusOK, numbers)
}

func readExample(writer http.ResponseWriter, request *http.Request) {
	var example Example
	if err := json.NewDecoder(request.Body).Decode(&example); err != nil {
		http.Error(writer, err.Error(), http.StatusBadRequest)
		return
	}
	writeText(writer, example.A)
}

func upload(writer http.ResponseWriter, request *http.Request) {
	const limit = 16 << 20
	hash := sha256.New()
	length, err := io.Copy(hash, http.MaxBytesReader(writer, request.Body, limit))
	if err != nil {
		status := http.StatusBadRequest
		if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
			status = http.StatusRequestEntityTooLarge
		}
		http.Error(writer, err.Error(), status)
		return
	}
	checksum := hex.EncodeToString(hash.Sum(nil))
	writeJSON(writer, http.StatusOK, Uploaded{Bytes: length, SHA256: checksum})
}

func sleep(writer http.ResponseWriter, request *http.Request) {
	milliseconds, isValid := ParseSleep(request.PathValue("milliseconds"))
	if !isValid {
		http.Error(writer, "from 0 to 1000 milliseconds", http.StatusBadRequest)
		return
	}
	time.Sleep(time.Duration(milliseconds) * time.Millisecond)
	writeText(writer, strconv.Itoa(milliseconds))
}

func spawn(writer http.ResponseWriter, request *http.Request) {
	next, isValid := Spawned(request.PathValue("n"))
	if !isValid {
		http.Error(writer, "it is not a number of 32 bits", http.StatusBadRequest)
		return
	}
	writeText(writer, next)
}

func relay(writer http.ResponseWriter, request *http.Request) {
	back, err := pool.Relay(request.PathValue("text"))
	if err != nil {
		http.Error(writer, "the other server does not answer", http.StatusBadGateway)
		return
	}
	writeText(writer, back)
}

// The reply of /download: 1,000,000 bytes, which are lines with their numbers. They are made once.
var numberedLines = func() []byte {
	var lines []byte
	for number := range 100_000 {
		lines = fmt.Appendf(lines, "%09d\n", number)
	}
	return lines
}()

func download(writer http.ResponseWriter, _ *http.Request) {
	writer.Header().Set("Content-Type", "application/octet-stream")
	writer.Header().Set("Content-Length", strconv.Itoa(len(numberedLines)))
	_, _ = writer.Write(numberedLines)
}

func echo(writer http.ResponseWriter, request *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(writer, request.Body, 2<<20))
	if err != nil {
		http.Error(writer, err.Error(), http.StatusBadRequest)
		return
	}
	writeText(writer, string(text))
}

func echoMessages(writer http.ResponseWriter, request *http.Request) {
	connection, err := websocket.Accept(writer, request, nil)
	if err != nil {
		return
	}
	defer connection.CloseNow()
	for {
		kind, message, err := connection.Read(request.Context())
		if err != nil || connection.Write(request.Context(), kind, message) != nil {
			return
		}
	}
}

type stateKey struct{}

func hooks(next http.Handler) http.Handler {
	return http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		state := &HookState{After: "done"}
		before := context.WithValue(request.Context(), stateKey{}, state)
		next.ServeHTTP(&afterWriter{writer, state}, request.WithContext(before))
	})
}

// The head is sent with a response's first byte, so the after-hook runs when its status is set.
type afterWriter struct {
	http.ResponseWriter
	state *HookState
}

func (writer *afterWriter) WriteHeader(status int) {
	writer.Header().Set("X-Benchmark-After", writer.state.After)
	writer.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController find the writer underneath.
func (writer *afterWriter) Unwrap() http.ResponseWriter {
	return writer.ResponseWriter
}

func record(writer http.ResponseWriter, request *http.Request) {
	state, _ := request.Context().Value(stateKey{}).(*HookState)
	if state == nil || state.After != "done" {
		http.Error(writer, "the before-hook did not run", http.StatusInternalServerError)
		return
	}
	requestID := request.Header.Get("X-Request-ID")
	if requestID == "" {
		http.Error(writer, "the header X-Request-ID is missing", http.StatusBadRequest)
		return
	}
	var event Event
	if err := json.NewDecoder(request.Body).Decode(&event); err != nil {
		http.Error(writer, err.Error(), http.StatusBadRequest)
		return
	}
	if !event.IsComplete() {
		http.Error(writer, "name and quantity are required", http.StatusUnprocessableEntity)
		return
	}
	query := request.URL.Query()
	recorded := NewRecorded(request.PathValue("projectID"), query.Get("tenant"), requestID, &event)
	writeJSON(writer, http.StatusCreated, recorded)
}
