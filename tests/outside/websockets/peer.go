// Go's github.com/coder/websocket against the server: `peer BASE [AUTHORITY]`. Prints the number of
// steps, how many of them failed, and which.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/coder/websocket"
)

var (
	steps  int
	faults []string
	client *http.Client
	base   = strings.Replace(os.Args[1], "http", "ws", 1)
)

func check(isRight bool, format string, arguments ...any) {
	steps++
	if !isRight {
		faults = append(faults, fmt.Sprintf(format, arguments...))
	}
}

func open(ctx context.Context, path string, mode websocket.CompressionMode) *websocket.Conn {
	socket, _, err := websocket.Dial(ctx, base+path, &websocket.DialOptions{
		HTTPClient: client, CompressionMode: mode, CompressionThreshold: 1,
	})
	if err != nil {
		check(false, "open: %v", err)
		return nil
	}
	socket.SetReadLimit(-1)
	return socket
}

func messages(ctx context.Context, mode websocket.CompressionMode) {
	socket := open(ctx, "/ws", mode)
	if socket == nil {
		return
	}
	defer socket.CloseNow()
	for _, size := range []int{0, 1, 125, 126, 127, 2_000, 65_535, 65_536, 300_000, 1_000_000} {
		content := make([]byte, size)
		rand.Read(content)
		for kind, message := range map[websocket.MessageType][]byte{
			websocket.MessageBinary: content,
			websocket.MessageText:   bytes.Repeat([]byte("é"), size/2),
		} {
			err := socket.Write(ctx, kind, message)
			got, answer, other := socket.Read(ctx)
			check(err == nil && other == nil && got == kind && bytes.Equal(answer, message),
				"%v of %d, mode %d: %v %v", kind, size, mode, err, other)
		}
		// One frame per call.
		writer, err := socket.Writer(ctx, websocket.MessageBinary)
		if err == nil {
			writer.Write(content[:size/2])
			writer.Write(content[size/2:])
			err = writer.Close()
		}
		_, answer, other := socket.Read(ctx)
		check(err == nil && other == nil && bytes.Equal(answer, content), "fragments of %d", size)
	}
	reading := socket.CloseRead(ctx)
	check(socket.Ping(reading) == nil, "ping")
	check(socket.Close(3000, "done") == nil, "our 3000")
}

func closes(ctx context.Context) {
	for _, code := range []websocket.StatusCode{1000, 1001, 3000, 4999} {
		socket := open(ctx, fmt.Sprintf("/ws/closes/%d", code), websocket.CompressionDisabled)
		if socket == nil {
			return
		}
		_, _, err := socket.Read(ctx)
		check(websocket.CloseStatus(err) == code, "the server's %d: %v", code, err)
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	transport := &http.Transport{}
	if len(os.Args) > 2 {
		authority, err := os.ReadFile(os.Args[2])
		if err != nil {
			panic(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(authority)
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	client = &http.Client{Transport: transport}
	for _, mode := range []websocket.CompressionMode{
		websocket.CompressionDisabled, websocket.CompressionNoContextTakeover, websocket.CompressionContextTakeover,
	} {
		messages(ctx, mode)
	}
	closes(ctx)
	fmt.Println(strings.TrimSpace(fmt.Sprintf("%d %d %s", steps, len(faults), strings.Join(faults, "; "))))
}
