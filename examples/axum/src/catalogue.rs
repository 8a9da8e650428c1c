//! Every application by name, for the program and for tests that want all of them.

use crate::{
    chat, compression, content_type, cors, customize_path_rejection, dependency_injection,
    error_handling, form, global_404, graceful_shutdown, handle_head_request, hello_world,
    key_value_store, metrics, multipart_form, print_request_response, request_id, reverse_proxy,
    sessions, sse, static_file_server, stream_to_file, testing, tls, todos, tracing_aka_logging,
    websockets,
};
use axum::Router;
use axum::extract::connect_info::IntoMakeServiceWithConnectInfo;
#[cfg(unix)]
use peregrine::tower::{Direct, Tower};
use std::net::SocketAddr;

/// An application of this package.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// What the program calls it.
    pub name: &'static str,
    /// What it shows, in a few words.
    pub shows: &'static str,
    /// What is to be served.
    pub program: Program,
}

/// What is to be served for an example.
#[derive(Clone, Copy, Debug)]
pub enum Program {
    /// A router.
    Plain(fn() -> Router),
    /// A router that is told its peers' addresses.
    ByPeer(fn() -> IntoMakeServiceWithConnectInfo<Router, SocketAddr>),
    /// A router, and its companion, which listens at the address that the function is given.
    Pair(fn(SocketAddr) -> (Router, Router)),
    /// A router behind TLS, and one without, which is told the port of the first.
    Secure(fn() -> Router, fn(u16) -> Router),
    /// A router on a Unix domain socket.
    #[cfg(unix)]
    Unix(fn() -> Tower<Direct<Router>>),
}

/// All of them.
pub const EXAMPLES: &[Example] = &[
    plain("hello-world", "one route", hello_world::app),
    plain("todos", "JSON, queries, and a time limit whose error is answered", todos::app),
    plain(
        "key-value-store",
        "overload, limits, compression, and routes that ask for a token",
        key_value_store::app,
    ),
    Example {
        name: "websockets",
        shows: "a WebSocket, split over two tasks, that knows its peer's address",
        program: Program::ByPeer(websockets::app),
    },
    plain("chat", "a broadcast channel between WebSockets", chat::app),
    plain("sse", "events from an interval, and signs of life", sse::app),
    plain("static-file-server", "files from a folder, in five ways", static_file_server::app),
    plain("multipart-form", "a form with files, counted as they arrive", multipart_form::app),
    plain("stream-to-file", "bodies written to disk as they arrive", stream_to_file::app),
    plain("graceful-shutdown", "slow requests end before the server", graceful_shutdown::app),
    Example {
        name: "tls",
        shows: "TLS, and plain requests that are sent there",
        program: Program::Secure(tls::app, tls::redirect_app),
    },
    Example {
        name: "testing",
        shows: "tests without a server",
        program: Program::ByPeer(|| testing::app().into_make_service_with_connect_info()),
    },
    plain("tracing-aka-logging", "spans and events of requests", tracing_aka_logging::app),
    plain("error-handling", "errors of handlers as one type", error_handling::app),
    plain(
        "customize-path-rejection",
        "an extractor with rejections of its own",
        customize_path_rejection::app,
    ),
    plain("handle-head-request", "HEAD in the handler of GET", handle_head_request::app),
    plain("form", "a form on a page", form::app),
    plain("global-404", "one answer for what is not there", global_404::app),
    plain(
        "print-request-response",
        "a middleware that holds whole bodies",
        print_request_response::app,
    ),
    Example {
        name: "reverse-proxy",
        shows: "a client of another server inside a handler, streaming both ways",
        program: Program::Pair(|behind| {
            (reverse_proxy::app_before(behind), reverse_proxy::upstream())
        }),
    },
    plain("request-id", "a number for each request", request_id::app),
    Example {
        name: "cors",
        shows: "an interface that one other origin may use",
        program: Program::Pair(|_| (cors::page(), cors::app())),
    },
    plain(
        "dependency-injection",
        "state as a trait object and as a type parameter",
        dependency_injection::app,
    ),
    Example {
        name: "metrics",
        shows: "counts by route, told by a second server",
        program: Program::Pair(|_| metrics::apps()),
    },
    #[cfg(unix)]
    Example {
        name: "unix-domain-socket",
        shows: "a socket in the file system",
        program: Program::Unix(crate::unix_domain_socket::app_with_peers),
    },
    plain("sessions", "cookies, and an extractor of who is logged in", sessions::app),
    plain("content-type", "JSON or a form, and a version in the path", content_type::app),
    plain("compression", "bodies compressed both ways", compression::app),
];

const fn plain(name: &'static str, shows: &'static str, app: fn() -> Router) -> Example {
    Example { name, shows, program: Program::Plain(app) }
}

/// The example of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Example> {
    EXAMPLES.iter().find(|example| example.name == name)
}
