//! Third-party clients against the server, on both kernel drivers.
//!
//! A client that must be installed is ignored unless requested with `-- --ignored`, and then fails
//! if it is missing.
#![cfg(unix)]

use peregrine::{DriverChoice, Error, Limits, RunningServer, Server};
use peregrine_tests::server::app::{Shared, pattern};
use peregrine_tests::server::secure::{VERSIONS, certificate_pem, client_config, server_tls};
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Command;

/// A server with both ports; `None` if the kernel refuses the driver.
fn server(choice: DriverChoice) -> Option<RunningServer> {
    let server = Server::bind("127.0.0.1:0").listen_tls("127.0.0.1:0", server_tls()).driver(choice);
    let server = server.workers(NonZeroUsize::MIN).limits(Limits::default()).quiet();
    match server.start(Shared::default().app()) {
        Err(error @ Error::Driver { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        running => Some(running.expect("the server starts")),
    }
}

/// Runs a program to its end, and returns its output.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

fn port(running: &RunningServer, is_tls: bool) -> u16 {
    let address = if is_tls { running.https_address() } else { running.http_address() };
    address.expect("the server speaks both").port()
}

fn curl_is_served(choice: DriverChoice) {
    let Some(running) = server(choice) else { return };
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let authority = folder.path().join("authority.pem");
    fs::write(&authority, certificate_pem()).expect("the folder can be written to");
    let upload = folder.path().join("upload");
    fs::write(&upload, pattern(1_500_000)).expect("the folder can be written to");
    let base = format!("http://127.0.0.1:{}", port(&running, false));
    let curl = |arguments: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--max-time", "60", "--noproxy", "*"]);
        command.args(arguments);
        command
    };
    let hello = format!("{base}/hello");
    assert_eq!(output(&mut curl(&[&hello])), "hello");
    assert_eq!(output(&mut curl(&["--http1.0", &hello])), "hello");
    // Two URLs share a connection, and curl reports how many it made.
    let made = ["--write-out", " %{num_connects};"];
    let both = output(&mut curl(&[&made[..], &[&hello, &hello]].concat()));
    assert_eq!(both, "hello 1;hello 0;");
    let head = output(&mut curl(&["--head", &hello]));
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("content-length: 5\r\n"),
        "{head}"
    );
    assert_eq!(output(&mut curl(&[&format!("{base}/stream/3")])), "piece 0\npiece 1\npiece 2\n");

    // More than a megabyte, with `Expect: 100-continue`, with a length and in chunks.
    let data = format!("@{}", upload.display());
    let count = format!("{base}/count");
    assert_eq!(output(&mut curl(&["--data-binary", &data, &count])), "1500000");
    let chunked = ["--header", "Transfer-Encoding: chunked", "--data-binary", &data, &count];
    assert_eq!(output(&mut curl(&chunked)), "1500000");

    let resolve = format!("localhost:{}:127.0.0.1", port(&running, true));
    let secure = format!("https://localhost:{}/tls", port(&running, true));
    let authority = authority.to_str().expect("the path is text");
    let text = output(&mut curl(&["--cacert", authority, "--resolve", &resolve, &secure]));
    assert_eq!(text, "TLSv1.3 false");
    let stopped = running.graceful_shutdown().expect("the worker shuts down cleanly");
    assert_eq!(stopped.force_closed, []);
}

fn reqwest_is_served(choice: DriverChoice) {
    let Some(running) = server(choice) else { return };
    let config = client_config(VERSIONS[0]);
    let client = reqwest::Client::builder()
        .use_preconfigured_tls((*config).clone())
        // Each request uses its own connection, so that sessions must be resumed.
        .pool_max_idle_per_host(0)
        .no_proxy()
        .build()
        .expect("the configuration is valid");
    let runtime = ::tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be made").block_on(async {
        let base = format!("http://127.0.0.1:{}", port(&running, false));
        let get = async |url: String| {
            let response = client.get(url).send().await.expect("the server responds");
            response.text().await.expect("the body is complete")
        };
        assert_eq!(get(format!("{base}/hello")).await, "hello");
        assert_eq!(get(format!("{base}/stream/2")).await, "piece 0\npiece 1\n");
        let body = pattern(300_000);
        let echo = client.post(format!("{base}/echo")).body(body.clone()).send().await;
        let echo = echo.expect("the server responds").bytes().await.expect("the body is complete");
        assert!(echo == body);
        let secure = format!("https://localhost:{}/tls", port(&running, true));
        assert_eq!(get(secure.clone()).await, "TLSv1.3 false");
        assert_eq!(get(secure).await, "TLSv1.3 true", "the session is resumed");
    });
    drop(client);
    running.graceful_shutdown().expect("the worker shuts down cleanly");
}

/// An HTTP/2-only client: with prior knowledge, or with TLS by ALPN.
fn http2_client(knows_before: bool) -> reqwest::Client {
    let mut config = (*client_config(VERSIONS[0])).clone();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let builder = reqwest::Client::builder().use_preconfigured_tls(config).no_proxy();
    let builder = if knows_before { builder.http2_prior_knowledge() } else { builder };
    builder.build().expect("the configuration is valid")
}

fn reqwest_is_served_over_http2(choice: DriverChoice) {
    let Some(running) = server(choice) else { return };
    let runtime = ::tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be made");
    for is_tls in [false, true] {
        let client = http2_client(!is_tls);
        let scheme = if is_tls { "https://localhost" } else { "http://127.0.0.1" };
        let base = format!("{scheme}:{}", port(&running, is_tls));
        let ask = async |number: usize| {
            let body = pattern(number * 3_000);
            let answer = client.post(format!("{base}/echo")).body(body.clone()).send().await;
            let answer = answer.expect("the server responds");
            assert_eq!(answer.version(), reqwest::Version::HTTP_2);
            assert!(answer.bytes().await.expect("the body is complete") == body);
            let streamed = client.get(format!("{base}/stream/2")).send().await;
            let streamed = streamed.expect("the server responds");
            assert_eq!(streamed.text().await.expect("the body is complete"), "piece 0\npiece 1\n");
        };
        runtime.block_on(async {
            // The first request makes the connection, which the others share.
            ask(1).await;
            futures_util::future::join_all((0..100).map(ask)).await;
        });
    }
    running.graceful_shutdown().expect("the worker shuts down cleanly");
}

/// A program that uses Go's `net/http`.
const GO: &str = r#"package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

func check(what string, is bool) {
	if !is {
		panic(what)
	}
}

func text(response *http.Response, err error) string {
	if err != nil {
		panic(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		panic(err)
	}
	return string(body)
}

func main() {
	base, secure := os.Args[1], os.Args[2]
	authority, _ := os.ReadFile(os.Args[3])
	roots := x509.NewCertPool()
	check("the certificate", roots.AppendCertsFromPEM(authority))
	transport := &http.Transport{
		ExpectContinueTimeout: 30 * time.Second,
		TLSClientConfig:       &tls.Config{RootCAs: roots, ServerName: "localhost"},
	}
	client := &http.Client{Transport: transport, Timeout: 60 * time.Second}
	for round := 0; round < 20; round++ {
		check("hello", text(client.Get(base+"/hello")) == "hello")
	}
	check("a stream", text(client.Get(base+"/stream/3")) == "piece 0\npiece 1\npiece 2\n")
	large := strings.Repeat("0123456789", 30000)
	check("a length", text(client.Post(base+"/echo", "text/plain", strings.NewReader(large))) == large)
	unknown := io.MultiReader(strings.NewReader(large), bytes.NewReader(nil))
	check("chunks", text(client.Post(base+"/echo", "text/plain", unknown)) == large)
	request, _ := http.NewRequest("POST", base+"/echo", strings.NewReader(large))
	request.Header.Set("Expect", "100-continue")
	check("100", text(client.Do(request)) == large)
	request, _ = http.NewRequest("POST", base+"/trailers", io.MultiReader(strings.NewReader("hello")))
	request.Trailer = http.Header{"X-Checksum": {"17"}}
	check("trailers", text(client.Do(request)) == "5 17")
	response, err := client.Post(base+"/echo-limited", "text/plain", strings.NewReader(large))
	check("413", err == nil && response.StatusCode == 413)
	response.Body.Close()
	check("tls", text(client.Get(secure+"/tls")) == "TLSv1.3 false")
	fmt.Println("all is well")
}
"#;

fn go_is_served(choice: DriverChoice) {
    let Some(running) = server(choice) else { return };
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let authority = folder.path().join("authority.pem");
    for (path, text) in [
        (authority.clone(), certificate_pem()),
        (folder.path().join("go.mod"), "module client\n\ngo 1.21\n"),
        (folder.path().join("main.go"), GO),
    ] {
        fs::write(path, text).expect("the folder can be written to");
    }
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
    let mut command = Command::new("go");
    command.args(["run", "."]).current_dir(folder.path());
    command.envs([("GOFLAGS", "-mod=mod"), ("GOPROXY", "off"), ("GOTOOLCHAIN", "local")]);
    command.env("GOCACHE", cache.join("cache")).env("GOPATH", cache.join("path"));
    command.arg(format!("http://127.0.0.1:{}", port(&running, false)));
    command.arg(format!("https://127.0.0.1:{}", port(&running, true)));
    command.arg(&authority);
    assert_eq!(output(&mut command), "all is well\n");
    running.graceful_shutdown().expect("the worker shuts down cleanly");
}

/// Raises the descriptor limit as far as allowed. Returns how many connections it permits.
fn connections_possible() -> u64 {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    // The rest is for everything else in this process.
    getrlimit(Resource::Nofile).current.map_or(5_000, |most| most.saturating_sub(500)).min(5_000)
}

fn h2load_is_served_on_thousands_of_connections(choice: DriverChoice) {
    let connections = connections_possible();
    if connections < 5_000 {
        eprintln!("only {connections} connections instead of 5,000: the descriptor limit is lower");
    }
    let Some(running) = server(choice) else { return };
    let mut command = Command::new("h2load");
    command.args(["--h1", "--clients", &connections.to_string()]);
    command.args(["--requests", &(4 * connections).to_string()]);
    command.arg(format!("http://127.0.0.1:{}/hello", port(&running, false)));
    let report = output(&mut command);
    let total = 4 * connections;
    let expected = format!("{total} done, {total} succeeded, 0 failed, 0 errored, 0 timeout");
    assert!(report.contains(&expected), "{report}");
    let stopped = running.graceful_shutdown().expect("the worker shuts down cleanly");
    assert_eq!((stopped.requests(), stopped.connections()), (total, connections));
}

macro_rules! clients {
    ($($driver:ident $choice:expr;)*) => {
        $(
            mod $driver {
                use super::DriverChoice;

                #[test]
                #[ignore = "needs curl"]
                fn curl_is_served() {
                    super::curl_is_served($choice);
                }

                #[test]
                fn reqwest_is_served() {
                    super::reqwest_is_served($choice);
                }

                #[test]
                fn reqwest_is_served_over_http2() {
                    super::reqwest_is_served_over_http2($choice);
                }

                #[test]
                #[ignore = "needs Go"]
                fn go_is_served() {
                    super::go_is_served($choice);
                }

                #[test]
                #[ignore = "needs h2load"]
                fn h2load_is_served_on_thousands_of_connections() {
                    super::h2load_is_served_on_thousands_of_connections($choice);
                }
            }
        )*
    };
}

clients! {
    tokio DriverChoice::Tokio;
    uring DriverChoice::Uring;
}
