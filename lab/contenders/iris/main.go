// The rival Iris, as its documentation shows it: the recover middleware and no logger, ReadJSON,
// typed path parameters, the response recorder for what is added after a handler, and the
// application's Shutdown with a notifier of its own.
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

	"github.com/kataras/iris/v12"
	"github.com/kataras/iris/v12/middleware/recover"
)

// How long requests that are under way at the end may take.
const patience = 10 * time.Second

func main() {
	settings := ReadSettings()
	app := iris.New()
	app.Logger().SetLevel("disable")
	app.Configure(iris.WithoutStartupLog, iris.WithoutInterruptHandler, iris.WithOptimizations)
	addRoutes(app)
	if err := app.Build(); err != nil {
		log.Fatal(err)
	}
	failed := make(chan error, 2)

	plain := app.NewHost(newServer(settings.Address))
	go func() { failed <- plain.ListenAndServe() }()
	if settings.TLS != nil {
		server := newServer(settings.TLSAddress)
		server.TLSConfig = settings.TLS
		secure := app.NewHost(server)
		// Iris would redirect from port 80 too.
		secure.NoRedirect()
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
	if err := app.Shutdown(limit); err != nil {
		log.Print(err)
	}
}

func newServer(address string) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Server{
		Addr:      address,
		ErrorLog:  log.New(io.Discard, "", 0),
		Protocols: &protocols,
	}
}

func addRoutes(app *iris.Application) {
	app.UseRouter(recover.New())
	app.Get("/", func(context iris.Context) {
		context.Text("Hello, World!")
	})
	app.Get("/hello", func(context iris.Context) {
		context.Text("Hello, World")
	})
	app.Get("/json", func(context iris.Context) {
		context.JSON(Message{Message: "Hello, World!"})
	})
	app.Get("/api/v1/health", func(context iris.Context) {
		context.JSON(Health{Status: "ok"})
	})
	app.Get("/example", func(context iris.Context) {
		context.JSON(NewExample())
	})
	app.Get("/large", func(context iris.Context) {
		context.JSON(NewLarge())
	})
	app.Post("/json-sort", sortNumbers)
	app.Post("/json-complex", readExample)
	app.Post("/projects/{projectID}/events", hooks, record)
	app.Post("/upload", upload)
	app.Get("/sleep/{milliseconds:int min(0) max(1000)}", sleep)
	app.Get("/spawn/{n}", spawn)
	app.Get("/relay/{text}", relay)
	addLargeApplication(app)
}

func addLargeApplication(app *iris.Application) {
	for _, version := range versions {
		for _, resource := range resources {
			for _, method := range methods {
				text := fmt.Sprintf("%s %s %s", method, version, resource)
				path := fmt.Sprintf("/%s/%s", version, resource)
				app.Handle(method, path, func(context iris.Context) {
					context.Text("%s", text)
				})
				app.Handle(method, path+"/{id}", func(context iris.Context) {
					context.Text("%s %s", text, context.Params().Get("id"))
				})
			}
		}
	}
}

func sortNumbers(context iris.Context) {
	var numbers []int64
	if err := context.ReadJSON(&numbers); err != nil {
		context.StopWithError(iris.StatusBadRequest, err)
		return
	}
	slices.Sort(numbers)
	context.JSON(numbers)
}

func readExample(context iris.Context) {
	var example Example
	if err := context.ReadJSON(&example); err != nil {
		context.StopWithError(iris.StatusBadRequest, err)
		return
	}
	context.Text("%s", example.A)
}

func upload(context iris.Context) {
	const limit = 16 << 20
	context.SetMaxRequestBodySize(limit)
	hash := sha256.New()
	length, err := io.Copy(hash, context.Request().Body)
	if err != nil {
		status := iris.StatusBadRequest
		if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
			status = iris.StatusRequestEntityTooLarge
		}
		context.StopWithError(status, err)
		return
	}
	checksum := hex.EncodeToString(hash.Sum(nil))
	context.JSON(Uploaded{Bytes: length, SHA256: checksum})
}

func sleep(context iris.Context) {
	milliseconds := context.Params().GetIntDefault("milliseconds", 0)
	time.Sleep(time.Duration(milliseconds) * time.Millisecond)
	context.Text("%s", strconv.Itoa(milliseconds))
}

func spawn(context iris.Context) {
	next, isValid := Spawned(context.Params().Get("n"))
	if !isValid {
		context.StopWithText(iris.StatusBadRequest, "it is not a number of 32 bits")
		return
	}
	context.Text("%s", next)
}

func relay(context iris.Context) {
	back, err := pool.Relay(context.Params().Get("text"))
	if err != nil {
		context.StopWithText(iris.StatusBadGateway, "the other server does not answer")
		return
	}
	context.Text("%s", back)
}

const stateKey = "hook-state"

func hooks(context iris.Context) {
	state := &HookState{After: "done"}
	context.Values().Set(stateKey, state)
	// The recorder holds the reply back until all handlers have run, so a field can be added.
	context.Record()
	context.Next()
	context.Header("X-Benchmark-After", state.After)
}

func record(context iris.Context) {
	state, _ := context.Values().Get(stateKey).(*HookState)
	if state == nil || state.After != "done" {
		context.StopWithText(iris.StatusInternalServerError, "the before-hook did not run")
		return
	}
	requestID := context.GetHeader("X-Request-ID")
	if requestID == "" {
		context.StopWithText(iris.StatusBadRequest, "the header X-Request-ID is missing")
		return
	}
	var event Event
	if err := context.ReadJSON(&event); err != nil {
		context.StopWithError(iris.StatusBadRequest, err)
		return
	}
	if !event.IsComplete() {
		context.StopWithText(iris.StatusUnprocessableEntity, "name and quantity are required")
		return
	}
	projectID, tenant := context.Params().Get("projectID"), context.URLParam("tenant")
	context.StatusCode(iris.StatusCreated)
	context.JSON(NewRecorded(projectID, tenant, requestID, &event))
}
