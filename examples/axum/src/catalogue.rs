//! All applications by name, for the program and for tests that run all of them.

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
use peregrine::tower::{SharedService, TowerHandler};
use std::net::SocketAddr;

/// An application of this package.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// The name on the command line.
    pub name: &'static str,
    /// A short description of what it demonstrates.
    pub shows: &'static str,
    /// The service to run.
    pub program: Program,
}

/// The service or services of an example.
#[derive(Clone, Copy, Debug)]
pub enum Program {
    /// A router.
    Plain(fn() -> Router),
    /// A router that reads its clients' addresses.
    ByPeer(fn() -> IntoMakeServiceWithConnectInfo<Router, SocketAddr>),
    /// A router and its companion, which listens at the address passed to the function.
    Pair(fn(SocketAddr) -> (Router, Router)),
    /// A router behind TLS, and one without TLS, whose function takes the port of the first.
    Secure(fn() -> Router, fn(u16) -> Router),
    /// A router on a Unix domain socket.
    #[cfg(unix)]
    Unix(fn() -> TowerHandler<SharedService<Router>>),
}

/// All examples.
pub const EXAMPLES: &[Example] = &[
    plain("hello-world", "one route", hello_world::app),
    plain("todos", "JSON, queries, and a time limit with an error response", todos::app),
    plain(
        "key-value-store",
        "load shedding, limits, compression, and routes that require a token",
        key_value_store::app,
    ),
    Example {
        name: "websockets",
        shows: "a WebSocket, split over two tasks, that knows its client's address",
        program: Program::ByPeer(websockets::app),
    },
    plain("chat", "a broadcast channel between WebSockets", chat::app),
    plain("sse", "events at an interval, and keep-alive comments", sse::app),
    plain("static-file-server", "files from a folder, in five ways", static_file_server::app),
    plain("multipart-form", "a form with files, counted as they arrive", multipart_form::app),
    plain("stream-to-file", "bodies written to disk as they arrive", stream_to_file::app),
    plain("graceful-shutdown", "slow requests finish before the server", graceful_shutdown::app),
    Example {
        name: "tls",
        shows: "TLS, and a redirect from HTTP to HTTPS",
        program: Program::Secure(tls::app, tls::redirect_app),
    },
    Example {
        name: "testing",
        shows: "tests without a server",
        program: Program::ByPeer(|| testing::app().into_make_service_with_connect_info()),
    },
    plain("tracing-aka-logging", "spans and events for requests", tracing_aka_logging::app),
    plain("error-handling", "one error type for all handlers", error_handling::app),
    plain(
        "customize-path-rejection",
        "an extractor with its own rejections",
        customize_path_rejection::app,
    ),
    plain("handle-head-request", "HEAD requests in the handler for GET", handle_head_request::app),
    plain("form", "an HTML form", form::app),
    plain("global-404", "one response for all unknown paths", global_404::app),
    plain(
        "print-request-response",
        "a middleware that buffers whole bodies",
        print_request_response::app,
    ),
    Example {
        name: "reverse-proxy",
        shows: "an HTTP client in a handler, streaming in both directions",
        program: Program::Pair(|behind| {
            (reverse_proxy::app_before(behind), reverse_proxy::upstream())
        }),
    },
    plain("request-id", "an id for each request", request_id::app),
    Example {
        name: "cors",
        shows: "an API that one other origin may call",
        program: Program::Pair(|_| (cors::page(), cors::app())),
    },
    plain(
        "dependency-injection",
        "state as a trait object and as a type parameter",
        dependency_injection::app,
    ),
    Example {
        name: "metrics",
        shows: "request counts by route, served on a second address",
        program: Program::Pair(|_| metrics::apps()),
    },
    #[cfg(unix)]
    Example {
        name: "unix-domain-socket",
        shows: "a server on a Unix domain socket",
        program: Program::Unix(crate::unix_domain_socket::app_with_peers),
    },
    plain("sessions", "cookies, and an extractor for the logged-in user", sessions::app),
    plain("content-type", "JSON or form bodies, and a version in the path", content_type::app),
    plain("compression", "compressed request and response bodies", compression::app),
];

const fn plain(name: &'static str, shows: &'static str, app: fn() -> Router) -> Example {
    Example { name, shows, program: Program::Plain(app) }
}

/// The example with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Example> {
    EXAMPLES.iter().find(|example| example.name == name)
}
