// Go's net/http against the server, and clients that observe a drain. Each command prints one line:
// the number of tries, how many of them failed, and why.
package main

import (
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
)

// Tally counts tries, and the reasons for which some failed.
type Tally struct {
	mutex   sync.Mutex
	tries   int
	lost    int
	reasons map[string]int
	remarks map[string]int
}

func newTally() *Tally {
	return &Tally{reasons: map[string]int{}, remarks: map[string]int{}}
}

// Add counts a try. An empty reason means success.
func (t *Tally) Add(reason string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.tries++
	if reason != "" {
		t.lost++
		t.reasons[reason]++
	}
}

// Remark counts a noteworthy event that is not a failure.
func (t *Tally) Remark(what string, count int) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.remarks[what] += count
}

func (t *Tally) String() string {
	var parts []string
	for _, counts := range []map[string]int{t.reasons, t.remarks} {
		var some []string
		for what, count := range counts {
			some = append(some, fmt.Sprintf("%d x %s", count, what))
		}
		sort.Strings(some)
		parts = append(parts, some...)
	}
	return strings.TrimSpace(fmt.Sprintf("%d %d %s", t.tries, t.lost, strings.Join(parts, "; ")))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	if len(os.Args) > 1 {
		switch command, arguments := os.Args[1], os.Args[2:]; command {
		case "uploads":
			uploads(arguments)
			return
		case "innocent":
			innocent(arguments)
			return
		case "drain":
			drain(arguments)
			return
		}
	}
	fmt.Fprintln(os.Stderr, "outside uploads | innocent | drain")
	os.Exit(2)
}
