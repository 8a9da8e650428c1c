// The rival Fiber, as its documentation shows it: Bind and Locals, middleware around Next, the
// default JSON encoder, no logger, and Shutdown with a time limit.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/gofiber/fiber/v3"
)

// How long requests that are under way at the end may take.
const patience = 10 * time.Second

func main() {
	settings := ReadSettings()
	failed := make(chan error, 2)

	plain := newApp()
	apps := []*fiber.App{plain}
	go func() {
		failed <- plain.Listen(settings.Address, fiber.ListenConfig{DisableStartupMessage: true})
	}()
	// An app serves one listener.
	if settings.TLS != nil {
		secure := newApp()
		apps = append(apps, secure)
		go func() {
			failed <- secure.Listen(settings.TLSAddress, fiber.ListenConfig{
				DisableStartupMessage: true,
				TLSConfig:             settings.TLS,
			})
		}()
	}

	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	select {
	case err := <-failed:
		log.Fatal(err)
	case <-ended:
	}
	for _, app := range apps {
		if err := app.ShutdownWithTimeout(patience); err != nil {
			log.Print(err)
		}
	}
}

func newApp() *fiber.App {
	app := fiber.New(fiber.Config{
		// The default is 4 MiB; the uploads are larger.
		BodyLimit: 16 << 20,
	})
	app.Get("/", func(context fiber.Ctx) error {
		return context.SendString("Hello, World!")
	})
	app.Get("/hello", func(context fiber.Ctx) error {
		return context.SendString("Hello, World")
	})
	app.Get("/json", func(context fiber.Ctx) error {
		return context.JSON(Message{Message: "Hello, World!"})
	})
	app.Get("/api/v1/health", func(context fiber.Ctx) error {
		return context.JSON(Health{Status: "ok"})
	})
	app.Get("/example", func(context fiber.Ctx) error {
		return context.JSON(NewExample())
	})
	app.Get("/large", func(context fiber.Ctx) error {
		return context.JSON(NewLarge())
	})
	app.Post("/json-sort", sortNumbers)
	app.Post("/json-complex", readExample)
	app.Post("/projects/:projectID/events", hooks, record)
	app.Post("/upload", upload)
	app.Get("/sleep/:milliseconds", sleep)
	app.Get("/spawn/:n", spawn)
	app.Get("/relay/:text", relay)
	addLargeApplication(app)
	return app
}

func addLargeApplication(app *fiber.App) {
	for _, version := range versions {
		for _, resource := range resources {
			for _, method := range methods {
				text := fmt.Sprintf("%s %s %s", method, version, resource)
				path := fmt.Sprintf("/%s/%s", version, resource)
				app.Add([]string{method}, path, func(context fiber.Ctx) error {
					return context.SendString(text)
				})
				app.Add([]string{method}, path+"/:id", func(context fiber.Ctx) error {
					return context.SendString(text + " " + context.Params("id"))
				})
			}
		}
	}
}

// An error that a handler returns, such as that of Bind, is answered by Fiber's error handler.
func sortNumbers(context fiber.Ctx) error {
	var numbers []int64
	if err := context.Bind().JSON(&numbers); err != nil {
		return fiber.NewError(fiber.StatusBadRequest, err.Error())
	}
	slices.Sort(numbers)
	return context.JSON(numbers)
}

func readExample(context fiber.Ctx) error {
	var example Example
	if err := context.Bind().JSON(&example); err != nil {
		return fiber.NewError(fiber.StatusBadRequest, err.Error())
	}
	return context.SendString(example.A)
}

func upload(context fiber.Ctx) error {
	// The body as it came: Body would undo a content coding.
	body := context.BodyRaw()
	checksum := sha256.Sum256(body)
	return context.JSON(Uploaded{Bytes: int64(len(body)), SHA256: hex.EncodeToString(checksum[:])})
}

func sleep(context fiber.Ctx) error {
	milliseconds, isValid := ParseSleep(context.Params("milliseconds"))
	if !isValid {
		return fiber.NewError(fiber.StatusBadRequest, "from 0 to 1000 milliseconds")
	}
	time.Sleep(time.Duration(milliseconds) * time.Millisecond)
	return context.SendString(strconv.Itoa(milliseconds))
}

func spawn(context fiber.Ctx) error {
	next, isValid := Spawned(context.Params("n"))
	if !isValid {
		return fiber.NewError(fiber.StatusBadRequest, "it is not a number of 32 bits")
	}
	return context.SendString(next)
}

func relay(context fiber.Ctx) error {
	back, err := pool.Relay(context.Params("text"))
	if err != nil {
		return fiber.NewError(fiber.StatusBadGateway, "the other server does not answer")
	}
	return context.SendString(back)
}

type stateKey struct{}

func hooks(context fiber.Ctx) error {
	fiber.Locals(context, stateKey{}, &HookState{After: "done"})
	if err := context.Next(); err != nil {
		return err
	}
	context.Set("X-Benchmark-After", fiber.Locals[*HookState](context, stateKey{}).After)
	return nil
}

// Strings that a Fiber context gives are valid until the handler returns. The reply is encoded
// before that, so none is copied.
func record(context fiber.Ctx) error {
	state := fiber.Locals[*HookState](context, stateKey{})
	if state == nil || state.After != "done" {
		return fiber.NewError(fiber.StatusInternalServerError, "the before-hook did not run")
	}
	requestID := context.Get("X-Request-ID")
	if requestID == "" {
		return fiber.NewError(fiber.StatusBadRequest, "the header X-Request-ID is missing")
	}
	var event Event
	if err := context.Bind().JSON(&event); err != nil {
		return fiber.NewError(fiber.StatusBadRequest, err.Error())
	}
	if !event.IsComplete() {
		return fiber.NewError(fiber.StatusUnprocessableEntity, "name and quantity are required")
	}
	recorded := NewRecorded(context.Params("projectID"), context.Query("tenant"), requestID, &event)
	return context.Status(fiber.StatusCreated).JSON(recorded)
}
