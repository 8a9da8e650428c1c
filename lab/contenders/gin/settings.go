package main

import (
	"crypto/tls"
	"log"
	"net"
	"os"
)

// Settings are what the lab tells a contender by environment variables. The number of workers is
// not among them: the recipe hands it to the Go runtime as GOMAXPROCS.
type Settings struct {
	// Address is where plain HTTP is served.
	Address string
	// TLSAddress is where HTTPS is served.
	TLSAddress string
	// TLS is nil if no certificate was given.
	TLS *tls.Config
}

// ReadSettings reads the environment, and ends the program if the certificate cannot be used.
func ReadSettings() Settings {
	settings := Settings{
		Address:    loopback("PORT", "8080"),
		TLSAddress: loopback("TLS_PORT", "8443"),
	}
	certificate, key := os.Getenv("TLS_CERT"), os.Getenv("TLS_KEY")
	if certificate == "" || key == "" {
		return settings
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		log.Fatal(err)
	}
	settings.TLS = &tls.Config{
		Certificates: []tls.Certificate{pair},
		MinVersion:   tls.VersionTLS13,
		NextProtos:   []string{"http/1.1"},
	}
	return settings
}

func loopback(name, otherwise string) string {
	port := os.Getenv(name)
	if port == "" {
		port = otherwise
	}
	return net.JoinHostPort("127.0.0.1", port)
}
