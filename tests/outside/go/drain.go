package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// How long a client waits for a response.
const patience = 20 * time.Second

// The connection of a client that is as simple as possible: it never checks whether the server has
// closed before it sends, and it never retries.
type link struct {
	net.Conn
	reader *bufio.Reader
}

func connect(address string) (*link, error) {
	connection, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return nil, err
	}
	return &link{connection, bufio.NewReader(connection)}, nil
}

// One request. The first result tells whether the server ends the connection.
func (l *link) ask(fields string) (bool, error) {
	fail(l.SetDeadline(time.Now().Add(patience)))
	if _, err := fmt.Fprintf(l, "GET /hello HTTP/1.1\r\nHost: localhost\r\n%s\r\n", fields); err != nil {
		return false, err
	}
	response, err := http.ReadResponse(l.reader, nil)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != "hello" {
		return false, fmt.Errorf("the body is %q: %w", body, err)
	}
	return response.Close, nil
}

// Sends requests for as long as connections can be made.
type client struct {
	address string
	// Whether each request uses a new connection.
	fresh  bool
	random *rand.Rand
	tally  *Tally
}

func (c *client) run(ordered *atomic.Bool) {
	kind := "busy"
	if c.fresh {
		kind = "fresh"
	}
	for {
		l, err := connect(c.address)
		if err != nil {
			// Nothing was sent. Before the shutdown order, that is a failure as well.
			if !ordered.Load() || !errors.Is(err, syscall.ECONNREFUSED) {
				c.tally.Add(kind + ", no connection: " + reason(err))
			}
			return
		}
		for count := 0; ; count++ {
			fields := ""
			if c.fresh {
				fields = "Connection: close\r\n"
			}
			isLast, err := l.ask(fields)
			if err != nil {
				what := fmt.Sprintf("%s, request %s: %s", kind, ordinal(count), reason(err))
				c.tally.Add(what)
			} else {
				c.tally.Add("")
			}
			// Up to 4 ms, often nothing.
			if pause := c.random.Intn(8) - 3; pause > 0 {
				time.Sleep(time.Duration(pause) * time.Millisecond)
			}
			if isLast || err != nil {
				break
			}
		}
		l.Close()
	}
}

func ordinal(count int) string {
	if count == 0 {
		return "first of its connection"
	}
	return "later"
}

var port = regexp.MustCompile(`http://(127\.0\.0\.1:\d+)`)

// Whether the server reports readiness, and its response.
func readiness(address string) string {
	response, err := http.Get("http://" + address + "/ready")
	if err != nil {
		return "no response"
	}
	response.Body.Close()
	return strconv.Itoa(response.StatusCode)
}

// Rounds in which a server with clients is shut down.
func drain(arguments []string) {
	flags := flag.NewFlagSet("drain", flag.ExitOnError)
	server := flags.String("server", "", "path of the server program")
	folder := flags.String("folder", "", "folder for the server's certificate")
	rounds := flags.Int("rounds", 100, "number of rounds")
	clients := flags.Int("clients", 32, "number of clients of each kind")
	lameDuck := flags.Int("lame-duck", 0, "milliseconds")
	fail(flags.Parse(arguments))
	tally := newTally()
	for round := 0; round < *rounds; round++ {
		command := exec.Command(*server, *folder, strconv.Itoa(*lameDuck))
		stderr, err := command.StderrPipe()
		fail(err)
		fail(command.Start())
		lines := bufio.NewReader(stderr)
		first, err := lines.ReadString('\n')
		fail(err)
		found := port.FindStringSubmatch(first)
		if found == nil {
			fail(fmt.Errorf("the server printed %q", first))
		}
		var ordered atomic.Bool
		var all sync.WaitGroup
		for number := 0; number < 2**clients; number++ {
			c := client{
				address: found[1], fresh: number%2 == 1, tally: tally,
				random: rand.New(rand.NewSource(int64(round*1000 + number))),
			}
			all.Add(1)
			go func() {
				defer all.Done()
				c.run(&ordered)
			}()
		}
		time.Sleep(time.Duration(50+rand.Intn(50)) * time.Millisecond)
		ordered.Store(true)
		fail(command.Process.Signal(syscall.SIGTERM))
		if *lameDuck > 0 {
			time.Sleep(time.Duration(*lameDuck/2) * time.Millisecond)
			if said := readiness(found[1]); said != "503" {
				tally.Add("readiness in the lame-duck time: " + said)
			}
		}
		rest, _ := io.ReadAll(lines)
		if err := command.Wait(); err != nil {
			tally.Add(fmt.Sprintf("the server: %v, %s", err, strings.TrimSpace(string(rest))))
		}
		all.Wait()
	}
	tally.Remark("rounds", *rounds)
	fmt.Println(tally)
	os.Exit(0)
}
