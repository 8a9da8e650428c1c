// The rival Gin, as its documentation shows it: release mode, an engine with Recovery and without
// the logger, bindings, and an http.Server around it for a graceful shutdown.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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

	"github.com/gin-gonic/gin"
)

// How long requests that are under way at the end may take.
const patience = 10 * time.Second

func main() {
	settings := ReadSettings()
	gin.SetMode(gin.ReleaseMode)
	handler := routes()
	failed := make(chan error, 2)

	plain := newServer(settings.Address, handler)
	servers := []*http.Server{plain}
	go func() { failed <- plain.ListenAndServe() }()
	if settings.TLS != nil {
		secure := newServer(settings.TLSAddress, handler)
		secure.TLSConfig = settings.TLS
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
	return &http.Server{
		Addr:      address,
		Handler:   handler,
		ErrorLog:  log.New(io.Discard, "", 0),
		Protocols: &protocols,
	}
}

func routes() http.Handler {
	router := gin.New()
	router.Use(gin.Recovery())
	router.GET("/", func(context *gin.Context) {
		context.String(http.StatusOK, "Hello, World!")
	})
	router.GET("/hello", func(context *gin.Context) {
		context.String(http.StatusOK, "Hello, World")
	})
	router.GET("/json", func(context *gin.Context) {
		context.JSON(http.StatusOK, Message{Message: "Hello, World!"})
	})
	router.GET("/api/v1/health", func(context *gin.Context) {
		context.JSON(http.StatusOK, Health{Status: "ok"})
	})
	router.GET("/example", func(context *gin.Context) {
		context.JSON(http.StatusOK, NewExample())
	})
	router.GET("/large", func(context *gin.Context) {
		context.JSON(http.StatusOK, NewLarge())
	})
	router.POST("/json-sort", sortNumbers)
	router.POST("/json-complex", readExample)
	router.POST("/projects/:projectID/events", hooks, record)
	router.POST("/upload", upload)
	router.GET("/sleep/:milliseconds", sleep)
	router.GET("/spawn/:n", spawn)
	router.GET("/relay/:text", relay)
	addLargeApplication(router)
	return router
}

func addLargeApplication(router *gin.Engine) {
	for _, version := range versions {
		for _, resource := range resources {
			for _, method := range methods {
				text := fmt.Sprintf("%s %s %s", method, version, resource)
				path := fmt.Sprintf("/%s/%s", version, resource)
				router.Handle(method, path, func(context *gin.Context) {
					context.String(http.StatusOK, text)
				})
				router.Handle(method, path+"/:id", func(context *gin.Context) {
					context.String(http.StatusOK, "%s %s", text, context.Param("id"))
				})
			}
		}
	}
}

func sortNumbers(context *gin.Context) {
	var numbers []int64
	if err := context.ShouldBindJSON(&numbers); err != nil {
		context.String(http.StatusBadRequest, "%s", err)
		return
	}
	slices.Sort(numbers)
	context.JSON(http.StatusOK, numbers)
}

func readExample(context *gin.Context) {
	var example Example
	if err := context.ShouldBindJSON(&example); err != nil {
		context.String(http.StatusBadRequest, "%s", err)
		return
	}
	context.String(http.StatusOK, "%s", example.A)
}

func upload(context *gin.Context) {
	const limit = 16 << 20
	hash := sha256.New()
	body := http.MaxBytesReader(context.Writer, context.Request.Body, limit)
	length, err := io.Copy(hash, body)
	if err != nil {
		status := http.StatusBadRequest
		if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
			status = http.StatusRequestEntityTooLarge
		}
		context.String(status, "%s", err)
		return
	}
	checksum := hex.EncodeToString(hash.Sum(nil))
	context.JSON(http.StatusOK, Uploaded{Bytes: length, SHA256: checksum})
}

func sleep(context *gin.Context) {
	milliseconds, isValid := ParseSleep(context.Param("milliseconds"))
	if !isValid {
		context.String(http.StatusBadRequest, "from 0 to 1000 milliseconds")
		return
	}
	time.Sleep(time.Duration(milliseconds) * time.Millisecond)
	context.String(http.StatusOK, strconv.Itoa(milliseconds))
}

func spawn(context *gin.Context) {
	next, isValid := Spawned(context.Param("n"))
	if !isValid {
		context.String(http.StatusBadRequest, "it is not a number of 32 bits")
		return
	}
	context.String(http.StatusOK, "%s", next)
}

func relay(context *gin.Context) {
	back, err := pool.Relay(context.Param("text"))
	if err != nil {
		context.String(http.StatusBadGateway, "the other server does not answer")
		return
	}
	context.String(http.StatusOK, "%s", back)
}

const stateKey = "hook-state"

func hooks(context *gin.Context) {
	state := &HookState{After: "done"}
	context.Set(stateKey, state)
	context.Writer = &afterWriter{context.Writer, state}
	context.Next()
}

// The head is sent with a response's first byte, so the after-hook runs when its status is set.
type afterWriter struct {
	gin.ResponseWriter
	state *HookState
}

func (writer *afterWriter) WriteHeader(status int) {
	writer.Header().Set("X-Benchmark-After", writer.state.After)
	writer.ResponseWriter.WriteHeader(status)
}

func record(context *gin.Context) {
	state, isSet := context.Get(stateKey)
	if !isSet || state.(*HookState).After != "done" {
		context.String(http.StatusInternalServerError, "the before-hook did not run")
		return
	}
	requestID := context.GetHeader("X-Request-ID")
	if requestID == "" {
		context.String(http.StatusBadRequest, "the header X-Request-ID is missing")
		return
	}
	var event Event
	if err := context.ShouldBindJSON(&event); err != nil {
		context.String(http.StatusBadRequest, "%s", err)
		return
	}
	if !event.IsComplete() {
		context.String(http.StatusUnprocessableEntity, "name and quantity are required")
		return
	}
	projectID, tenant := context.Param("projectID"), context.Query("tenant")
	context.JSON(http.StatusCreated, NewRecorded(projectID, tenant, requestID, &event))
}
