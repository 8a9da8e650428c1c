package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
)

// Message is the reply of /json.
type Message struct {
	Message string `json:"message"`
}

// Health is the reply of /api/v1/health.
type Health struct {
	Status string `json:"status"`
}

// Event is the body of the events route.
type Event struct {
	Name     string            `json:"name"`
	Quantity uint64            `json:"quantity"`
	Tags     []string          `json:"tags"`
	Metadata map[string]string `json:"metadata"`
}

// IsComplete tells whether the event has a name and a quantity.
func (event *Event) IsComplete() bool {
	return event.Name != "" && event.Quantity > 0
}

// Recorded is the reply of the events route.
type Recorded struct {
	ProjectID string `json:"projectID"`
	Tenant    string `json:"tenant"`
	RequestID string `json:"requestID"`
	Name      string `json:"name"`
	Quantity  uint64 `json:"quantity"`
	Checksum  string `json:"checksum"`
}

// NewRecorded answers an event, with its checksum.
func NewRecorded(projectID, tenant, requestID string, event *Event) Recorded {
	text := fmt.Sprintf("%s|%s|%s|%s|%d", projectID, tenant, requestID, event.Name, event.Quantity)
	checksum := sha256.Sum256([]byte(text))
	return Recorded{
		ProjectID: projectID,
		Tenant:    tenant,
		RequestID: requestID,
		Name:      event.Name,
		Quantity:  event.Quantity,
		Checksum:  hex.EncodeToString(checksum[:]),
	}
}

// HookState is what the before-hook leaves for the handler.
type HookState struct {
	After string
}

// Uploaded is the reply of /upload.
type Uploaded struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Example is the document of /example and /json-complex.
type Example struct {
	A string            `json:"a"`
	B uint32            `json:"b"`
	C uint64            `json:"c"`
	D float32           `json:"d"`
	E float64           `json:"e"`
	F []uint64          `json:"f"`
	G []float64         `json:"g"`
	H []string          `json:"h"`
	J map[string]uint64 `json:"j"`
}

// NewExample builds the example document.
func NewExample() Example {
	const length = 16
	example := Example{
		A: "a string of some length",
		B: 4294967295,
		C: 9007199254740991,
		D: 2.5,
		E: 1234.0625,
		F: make([]uint64, 0, length),
		G: make([]float64, 0, length),
		H: make([]string, 0, length),
		J: make(map[string]uint64, length),
	}
	for index := range length {
		example.F = append(example.F, uint64(index)*1000)
		example.G = append(example.G, float64(index)+0.25)
		example.H = append(example.H, "item "+strconv.Itoa(index))
		example.J[fmt.Sprintf("key%02d", index)] = uint64(index)
	}
	return example
}

// Item is one entry of the large document.
type Item struct {
	ID         int      `json:"id"`
	Name       string   `json:"name"`
	PriceCents int      `json:"price_cents"`
	Tags       []string `json:"tags"`
	InStock    bool     `json:"in_stock"`
}

// Large is the reply of /large.
type Large struct {
	Count int    `json:"count"`
	Items []Item `json:"items"`
}

// The items of the large document are made once; they are serialised for each reply.
var largeItems = makeLargeItems()

func makeLargeItems() []Item {
	const count = 1000
	items := make([]Item, 0, count)
	for index := range count {
		items = append(items, Item{
			ID:         index,
			Name:       "item " + strconv.Itoa(index),
			PriceCents: index * 37 % 10000,
			Tags:       []string{"alpha", "beta", "gamma"},
			InStock:    index%3 != 0,
		})
	}
	return items
}

// NewLarge is the large document.
func NewLarge() Large {
	return Large{Count: len(largeItems), Items: largeItems}
}

// The parts of which the 400 routes of a large application are made.
var (
	versions  = []string{"v1", "v2", "v3", "v4", "v5"}
	resources = []string{
		"users", "orders", "products", "invoices", "payments",
		"carts", "reviews", "shipments", "tickets", "events",
	}
	methods = []string{"GET", "POST", "PUT", "DELETE"}
)

// ParseSleep reads how many milliseconds to sleep, from 0 to 1000.
func ParseSleep(text string) (int, bool) {
	milliseconds, err := strconv.Atoi(text)
	return milliseconds, err == nil && milliseconds >= 0 && milliseconds <= 1000
}
