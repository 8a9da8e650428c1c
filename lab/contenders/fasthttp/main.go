// The rival fasthttp, as its documentation shows it: RequestCtx handlers, the router that its
// README names, middleware as functions around handlers, and encoding/json.
package main

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/fasthttp/router"
	"github.com/valyala/fasthttp"
)

func main() {
	settings := ReadSettings()
	server := &fasthttp.Server{
		Handler: routes(),
		Logger:  log.New(io.Discard, "", 0),
		// The default is 4 MiB; the uploads are larger.
		MaxRequestBodySize: 16 << 20,
	}
	failed := make(chan error, 2)
	listener, err := net.Listen("tcp", settings.Address)
	if err != nil {
		log.Fatal(err)
	}
	go func() { failed <- server.Serve(listener) }()
	if settings.TLS != nil {
		secure, err := tls.Listen("tcp", settings.TLSAddress, settings.TLS)
		if err != nil {
			log.Fatal(err)
		}
		go func() { failed <- server.Serve(secure) }()
	}

	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	select {
	case err := <-failed:
		log.Fatal(err)
	case <-ended:
	}
	if err := server.Shutdown(); err != nil {
		log.Print(err)
	}
}

func routes() fasthttp.RequestHandler {
	routes := router.New()
	routes.GET("/", func(context *fasthttp.RequestCtx) {
		context.SetBodyString("Hello, World!")
	})
	routes.GET("/hello", func(context *fasthttp.RequestCtx) {
		context.SetBodyString("Hello, World")
	})
	routes.GET("/json", func(context *fasthttp.RequestCtx) {
		writeJSON(context, fasthttp.StatusOK, Message{Message: "Hello, World!"})
	})
	routes.GET("/api/v1/health", func(context *fasthttp.RequestCtx) {
		writeJSON(context, fasthttp.StatusOK, Health{Status: "ok"})
	})
	routes.GET("/example", func(context *fasthttp.RequestCtx) {
		writeJSON(context, fasthttp.StatusOK, NewExample())
	})
	routes.GET("/large", func(context *fasthttp.RequestCtx) {
		writeJSON(context, fasthttp.StatusOK, NewLarge())
	})
	routes.POST("/json-sort", sortNumbers)
	routes.POST("/json-complex", readExample)
	routes.POST("/projects/{projectID}/events", hooks(record))
	routes.POST("/upload", upload)
	routes.GET("/sleep/{milliseconds}", sleep)
	routes.GET("/spawn/{n}", spawn)
	routes.GET("/relay/{text}", relay)
	addLargeApplication(routes)
	return routes.Handler
}

func addLargeApplication(routes *router.Router) {
	for _, version := range versions {
		for _, resource := range resources {
			for _, method := range methods {
				text := fmt.Sprintf("%s %s %s", method, version, resource)
				path := fmt.Sprintf("/%s/%s", version, resource)
				routes.Handle(method, path, func(context *fasthttp.RequestCtx) {
					context.SetBodyString(text)
				})
				routes.Handle(method, path+"/{id}", func(context *fasthttp.RequestCtx) {
					context.SetBodyString(text + " " + pathValue(context, "id"))
				})
			}
		}
	}
}

func pathValue(context *fasthttp.RequestCtx, name string) string {
	value, _ := context.UserValue(name).(string)
	return value
}

func writeJSON(context *fasthttp.RequestCtx, status int, value any) {
	context.SetStatusCode(status)
	context.SetContentType("application/json")
	if err := json.NewEncoder(context).Encode(value); err != nil {
		context.Error(err.Error(), fasthttp.StatusInternalServerError)
	}
}

func sortNumbers(context *fasthttp.RequestCtx) {
	var numbers []int64
	if err := json.Unmarshal(context.PostBody(), &numbers); err != nil {
		context.Error(err.Error(), fasthttp.StatusBadRequest)
		return
	}
	slices.Sort(numbers)
	writeJSON(context, fasthttp.StatusOK, numbers)
}

func readExample(context *fasthttp.RequestCtx) {
	var example Example
	if err := json.Unmarshal(context.PostBody(), &example); err != nil {
		context.Error(err.Error(), fasthttp.StatusBadRequest)
		return
	}
	context.SetBodyString(example.A)
}

func upload(context *fasthttp.RequestCtx) {
	body := context.PostBody()
	checksum := sha256.Sum256(body)
	uploaded := Uploaded{Bytes: int64(len(body)), SHA256: hex.EncodeToString(checksum[:])}
	writeJSON(context, fasthttp.StatusOK, uploaded)
}

func sleep(context *fasthttp.RequestCtx) {
	milliseconds, isValid := ParseSleep(pathValue(context, "milliseconds"))
	if !isValid {
		context.Error("from 0 to 1000 milliseconds", fasthttp.StatusBadRequest)
		return
	}
	time.Sleep(time.Duration(milliseconds) * time.Millisecond)
	context.SetBodyString(strconv.Itoa(milliseconds))
}

func spawn(context *fasthttp.RequestCtx) {
	next, isValid := Spawned(pathValue(context, "n"))
	if !isValid {
		context.Error("it is not a number of 32 bits", fasthttp.StatusBadRequest)
		return
	}
	context.SetBodyString(next)
}

func relay(context *fasthttp.RequestCtx) {
	back, err := pool.Relay(pathValue(context, "text"))
	if err != nil {
		context.Error("the other server does not answer", fasthttp.StatusBadGateway)
		return
	}
	context.SetBodyString(back)
}

type stateKey struct{}

func hooks(next fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(context *fasthttp.RequestCtx) {
		state := &HookState{After: "done"}
		context.SetUserValue(stateKey{}, state)
		next(context)
		context.Response.Header.Set("X-Benchmark-After", state.After)
	}
}

func record(context *fasthttp.RequestCtx) {
	state, _ := context.UserValue(stateKey{}).(*HookState)
	if state == nil || state.After != "done" {
		context.Error("the before-hook did not run", fasthttp.StatusInternalServerError)
		return
	}
	requestID := string(context.Request.Header.Peek("X-Request-ID"))
	if requestID == "" {
		context.Error("the header X-Request-ID is missing", fasthttp.StatusBadRequest)
		return
	}
	var event Event
	if err := json.Unmarshal(context.PostBody(), &event); err != nil {
		context.Error(err.Error(), fasthttp.StatusBadRequest)
		return
	}
	if !event.IsComplete() {
		context.Error("name and quantity are required", fasthttp.StatusUnprocessableEntity)
		return
	}
	projectID, tenant := pathValue(context, "projectID"), string(context.QueryArgs().Peek("tenant"))
	recorded := NewRecorded(projectID, tenant, requestID, &event)
	writeJSON(context, fasthttp.StatusCreated, recorded)
}
