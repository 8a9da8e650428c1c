//! The rival hyper, as a user writes it by hand: one current-thread runtime per core, each with
//! its own listener (SO_REUSEPORT), routes matched on the path.

mod model;
mod settings;

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::rt::{Read, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use model::{Event, HookState, Message, Recorded};
use settings::Settings;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BODY_BYTES_MAX: usize = 2 << 20;

fn main() {
    let settings = Arc::new(Settings::from_environment());
    let workers: Vec<_> = (0..settings.workers)
        .map(|_| {
            let settings = settings.clone();
            thread::spawn(move || work(&settings))
        })
        .collect();
    for worker in workers {
        worker.join().expect("a worker does not end").expect("the ports are free");
    }
}

fn work(settings: &Settings) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        if let Some(tls) = &settings.tls {
            let listener = listen(tls.port)?;
            let acceptor = TlsAcceptor::from(tls.config.clone());
            tokio::task::spawn_local(accept_tls(listener, acceptor));
        }
        let listener = listen(settings.port)?;
        loop {
            if let Some(stream) = accept(&listener).await {
                tokio::task::spawn_local(serve(stream));
            }
        }
    })
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    socket.listen(4096)?;
    TcpListener::from_std(socket.into())
}

async fn accept(listener: &TcpListener) -> Option<TcpStream> {
    let (stream, _) = listener.accept().await.ok()?;
    stream.set_nodelay(true).ok()?;
    Some(stream)
}

async fn accept_tls(listener: TcpListener, acceptor: TlsAcceptor) {
    loop {
        let Some(stream) = accept(&listener).await else { continue };
        let acceptor = acceptor.clone();
        tokio::task::spawn_local(async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                serve(stream).await;
            }
        });
    }
}

async fn serve<S>(stream: S)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    TokioIo<S>: Read + Write,
{
    // A peer that goes away is not this program's error.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .pipeline_flush(true)
        .serve_connection(TokioIo::new(stream), service_fn(answer))
        .await;
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path();
    let response = match *request.method() {
        Method::GET if path == "/json" => {
            json(StatusCode::OK, &Message { message: "Hello, World!" })
        }
        Method::GET if path == "/" => text(StatusCode::OK, "Hello, World!"),
        Method::POST if project_id(path).is_some() => with_hooks(request).await,
        _ => text(StatusCode::NOT_FOUND, "not found"),
    };
    Ok(response)
}

fn project_id(path: &str) -> Option<&str> {
    let id = path.strip_prefix("/projects/")?.strip_suffix("/events")?;
    (!id.is_empty() && !id.contains('/')).then_some(id)
}

async fn with_hooks(mut request: Request<Incoming>) -> Response<Full<Bytes>> {
    request.extensions_mut().insert(HookState { after: "done" });
    let mut response = record(request).await;
    response.headers_mut().insert("x-benchmark-after", HeaderValue::from_static("done"));
    response
}

async fn record(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    if parts.extensions.get::<HookState>().is_none_or(|state| state.after != "done") {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "the before-hook did not run");
    }
    let Some(project_id) =
        project_id(parts.uri.path()).and_then(|id| percent_decode_str(id).decode_utf8().ok())
    else {
        return text(StatusCode::BAD_REQUEST, "the project is not UTF-8");
    };
    let query = parts.uri.query().unwrap_or_default();
    let Some((_, tenant)) =
        form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "tenant")
    else {
        return text(StatusCode::BAD_REQUEST, "the query lacks a tenant");
    };
    let Some(request_id) = parts.headers.get("x-request-id").and_then(|value| value.to_str().ok())
    else {
        return text(StatusCode::BAD_REQUEST, "the header X-Request-ID is missing");
    };
    let Ok(body) = Limited::new(body, BODY_BYTES_MAX).collect().await else {
        return text(StatusCode::BAD_REQUEST, "the body is cut short or too long");
    };
    let Ok(event) = serde_json::from_slice::<Event>(&body.to_bytes()) else {
        return text(StatusCode::BAD_REQUEST, "the body is not an event");
    };
    if !event.is_complete() {
        return text(StatusCode::UNPROCESSABLE_ENTITY, "name and quantity are required");
    }
    let recorded =
        Recorded::new(project_id.into_owned(), tenant.into_owned(), request_id.to_owned(), event);
    json(StatusCode::CREATED, &recorded)
}

fn json<T: serde::Serialize>(status: StatusCode, value: &T) -> Response<Full<Bytes>> {
    let body = serde_json::to_vec(value).expect("plain structures serialise");
    reply(status, "application/json", Bytes::from(body))
}

fn text(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    reply(status, "text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()))
}

fn reply(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
