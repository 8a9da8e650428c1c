package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// An upload of `size` bytes to `path` that must get `status`.
type attempt struct {
	path   string
	size   int
	status int
}

func attempts() []attempt {
	var all []attempt
	for _, size := range []int{20_000, 100_000, 1_000_000, 6_000_000} {
		for _, status := range []int{200, 404, 413, 415} {
			all = append(all, attempt{"/early/" + strconv.Itoa(status), size, status})
		}
	}
	return append(all, attempt{"/read", 6_000_000, 413})
}

type options struct {
	base    string
	tries   int
	clients int
	client  *http.Client
}

func parse(name string, arguments []string) options {
	var o options
	flags := flag.NewFlagSet(name, flag.ExitOnError)
	flags.StringVar(&o.base, "base", "", "URL of the server")
	flags.IntVar(&o.tries, "tries", 1000, "number of tries")
	flags.IntVar(&o.clients, "clients", 8, "number of concurrent clients")
	unix := flags.String("unix", "", "Unix socket to connect to instead")
	authority := flags.String("authority", "", "certificate to trust")
	fail(flags.Parse(arguments))
	transport := &http.Transport{MaxIdleConnsPerHost: o.clients, DisableCompression: true}
	if *unix != "" {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", *unix)
		}
	}
	if *authority != "" {
		pem, err := os.ReadFile(*authority)
		fail(err)
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	o.client = &http.Client{Transport: transport, Timeout: time.Minute}
	return o
}

var address = regexp.MustCompile(`(\d+\.\d+\.\d+\.\d+|@)?(:\d+)?(->)?(\d+\.\d+\.\d+\.\d+|@|/\S*)(:\d+)?: `)

// Why a try failed, without addresses, so that equal reasons are counted together.
func reason(err error) string {
	text := err.Error()
	if at := strings.Index(text, "\": "); at >= 0 {
		text = text[at+3:]
	}
	return address.ReplaceAllString(text, "")
}

// Sends, and reads the response to its end. Returns why the try failed, or an empty string.
func (o *options) send(request *http.Request, status int) string {
	response, err := o.client.Do(request)
	if err != nil {
		return reason(err)
	}
	defer response.Body.Close()
	if _, err := io.ReadAll(response.Body); err != nil {
		return "body: " + reason(err)
	}
	if response.StatusCode != status {
		return fmt.Sprintf("%d instead of %d", response.StatusCode, status)
	}
	return ""
}

// Calls `each` with 0, 1, .. `tries`-1, from as many goroutines as there are clients.
func (o *options) all(each func(try int)) {
	var next atomic.Int64
	var clients sync.WaitGroup
	for n := 0; n < o.clients; n++ {
		clients.Add(1)
		go func() {
			defer clients.Done()
			for try := next.Add(1) - 1; try < int64(o.tries); try = next.Add(1) - 1 {
				each(int(try))
			}
		}()
	}
	clients.Wait()
}

// Bodies that the server does not read to their end, sent by one pooled client.
func uploads(arguments []string) {
	o := parse("uploads", arguments)
	tally, all, body := newTally(), attempts(), make([]byte, 6_000_000)
	o.all(func(try int) {
		a := all[try%len(all)]
		request, err := http.NewRequest("POST", o.base+a.path, bytes.NewReader(body[:a.size]))
		fail(err)
		// Every other round asks for the connection to be closed.
		request.Close = try/len(all)%2 == 1
		began := time.Now()
		lost := o.send(request, a.status)
		if took := time.Since(began); took > 5*time.Second {
			tally.Remark("slower than 5 s", 1)
		}
		if lost != "" {
			lost = fmt.Sprintf("%s (%s, %d kB)", lost, a.path, a.size/1000)
		}
		tally.Add(lost)
	})
	fmt.Println(tally)
}

// Small requests of the pooled client that also sends such uploads. Every other one has a method
// that the client must not retry.
func innocent(arguments []string) {
	o := parse("innocent", arguments)
	tally, all, body := newTally(), attempts(), make([]byte, 6_000_000)
	var again atomic.Int64
	o.all(func(try int) {
		a := all[try%len(all)]
		upload, err := http.NewRequest("POST", o.base+a.path, bytes.NewReader(body[:a.size]))
		fail(err)
		if lost := o.send(upload, a.status); lost != "" {
			tally.Remark("upload: "+lost, 1)
		}
		request, err := http.NewRequest("GET", o.base+"/hello", nil)
		if try%2 == 1 {
			request, err = http.NewRequest("POST", o.base+"/read", io.MultiReader(strings.NewReader("hello")))
		}
		fail(err)
		connections := 0
		trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connections++ }}
		request = request.WithContext(httptrace.WithClientTrace(request.Context(), trace))
		tally.Add(o.send(request, 200))
		if connections > 1 {
			again.Add(1)
		}
	})
	if count := int(again.Load()); count > 0 {
		tally.Remark("sent again by the client itself", count)
	}
	fmt.Println(tally)
}
