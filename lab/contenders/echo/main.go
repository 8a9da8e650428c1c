// The rival Echo, as its documentation shows it: Recover and no logger, binding, the response's
// Before hook, and StartConfig with a context for a graceful shutdown.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"
)

func main() {
	settings := ReadSettings()
	handler := routes()
	ended, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	starts := []echo.StartConfig{{Address: settings.Address}}
	if settings.TLS != nil {
		starts = append(starts, echo.StartConfig{Address: settings.TLSAddress, TLSConfig: settings.TLS})
	}
	var running sync.WaitGroup
	for _, start := range starts {
		start.HideBanner = true
		start.HidePort = true
		running.Go(func() {
			if err := start.Start(ended, handler); err != nil {
				log.Fatal(err)
			}
		})
	}
	running.Wait()
}

func routes() *echo.Echo {
	router := echo.New()
	router.Logger = slog.New(slog.DiscardHandler)
	router.Use(middleware.Recover())
	router.GET("/", func(context *echo.Context) error {
		return context.String(http.StatusOK, "Hello, World!")
	})
	router.GET("/hello", func(context *echo.Context) error {
		return context.String(http.StatusOK, "Hello, World")
	})
	router.GET("/json", func(context *echo.Context) error {
		return context.JSON(http.StatusOK, Message{Message: "Hello, World!"})
	})
	router.GET("/api/v1/health", func(context *echo.Context) error {
		return context.JSON(http.StatusOK, Health{Status: "ok"})
	})
	router.GET("/example", func(context *echo.Context) error {
		return context.JSON(http.StatusOK, NewExample())
	})
	router.GET("/large", func(context *echo.Context) error {
		return context.JSON(http.StatusOK, NewLarge())
	})
	router.POST("/json-sort", sortNumbers)
	router.POST("/json-complex", readExample)
	router.POST("/projects/:projectID/events", record, hooks)
	router.POST("/upload", upload)
	router.GET("/sleep/:milliseconds", sleep)
	router.GET("/spawn/:n", spawn)
	router.GET("/relay/:text", relay)
	addLargeApplication(router)
	return router
}

func addLargeApplication(router *echo.Echo) {
	for _, version := range versions {
		for _, resource := range resources {
			for _, method := range methods {
				text := fmt.Sprintf("%s %s %s", method, version, resource)
				path := fmt.Sprintf("/%s/%s", version, resource)
				router.Add(method, path, func(context *echo.Context) error {
					return context.String(http.StatusOK, text)
				})
				router.Add(method, path+"/:id", func(context *echo.Context) error {
					return context.String(http.StatusOK, text+" "+context.Param("id"))
				})
			}
		}
	}
}

// An error that a handler returns, such as that of Bind, is answered by Echo's error handler.
func sortNumbers(context *echo.Context) error {
	var numbers []int64
	if err := context.Bind(&numbers); err != nil {
		return err
	}
	slices.Sort(numbers)
	return context.JSON(http.StatusOK, numbers)
}

func readExample(context *echo.Context) error {
	var example Example
	if err := context.Bind(&example); err != nil {
		return err
	}
	return context.String(http.StatusOK, example.A)
}

func upload(context *echo.Context) error {
	const limit = 16 << 20
	hash := sha256.New()
	body := http.MaxBytesReader(context.Response(), context.Request().Body, limit)
	length, err := io.Copy(hash, body)
	if err != nil {
		if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
			return echo.ErrStatusRequestEntityTooLarge
		}
		return echo.NewHTTPError(http.StatusBadRequest, err.Error())
	}
	checksum := hex.EncodeToString(hash.Sum(nil))
	return context.JSON(http.StatusOK, Uploaded{Bytes: length, SHA256: checksum})
}

func sleep(context *echo.Context) error {
	milliseconds, isValid := ParseSleep(context.Param("milliseconds"))
	if !isValid {
		return echo.NewHTTPError(http.StatusBadRequest, "from 0 to 1000 milliseconds")
	}
	time.Sleep(time.Duration(milliseconds) * time.Millisecond)
	return context.String(http.StatusOK, strconv.Itoa(milliseconds))
}

func spawn(context *echo.Context) error {
	next, isValid := Spawned(context.Param("n"))
	if !isValid {
		return echo.NewHTTPError(http.StatusBadRequest, "it is not a number of 32 bits")
	}
	return context.String(http.StatusOK, next)
}

func relay(context *echo.Context) error {
	back, err := pool.Relay(context.Param("text"))
	if err != nil {
		return echo.NewHTTPError(http.StatusBadGateway, "the other server does not answer")
	}
	return context.String(http.StatusOK, back)
}

const stateKey = "hook-state"

func hooks(next echo.HandlerFunc) echo.HandlerFunc {
	return func(context *echo.Context) error {
		state := &HookState{After: "done"}
		context.Set(stateKey, state)
		response, err := echo.UnwrapResponse(context.Response())
		if err != nil {
			return err
		}
		// The head is sent with the first byte, so a field can be added no later than just before.
		response.Before(func() {
			response.Header().Set("X-Benchmark-After", state.After)
		})
		return next(context)
	}
}

func record(context *echo.Context) error {
	state, err := echo.ContextGet[*HookState](context, stateKey)
	if err != nil || state.After != "done" {
		return echo.NewHTTPError(http.StatusInternalServerError, "the before-hook did not run")
	}
	requestID := context.Request().Header.Get("X-Request-ID")
	if requestID == "" {
		return echo.NewHTTPError(http.StatusBadRequest, "the header X-Request-ID is missing")
	}
	var event Event
	if err := context.Bind(&event); err != nil {
		return err
	}
	if !event.IsComplete() {
		return echo.NewHTTPError(http.StatusUnprocessableEntity, "name and quantity are required")
	}
	projectID, tenant := context.Param("projectID"), context.QueryParam("tenant")
	return context.JSON(http.StatusCreated, NewRecorded(projectID, tenant, requestID, &event))
}
