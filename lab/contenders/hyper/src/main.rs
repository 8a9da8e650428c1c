//! The rival hyper, as a user writes it by hand: one current-thread runtime per core, each with
//! its own listener (SO_REUSEPORT), and a match on the method and the path as the router.

mod model;
mod relay;
mod server;
mod settings;

use std::borrow::Cow;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;

use model::{
    Event, Example, Health, HookState, Large, Message, RESOURCES, Recorded, SLEEP_MS_MAX, Upload,
    VERSIONS, collection_text, item_text, numbered_lines,
};
use relay::Pool;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BODY_BYTES_MAX: usize = 2 << 20;

type Reply = Response<Full<Bytes>>;

fn main() {
    server::run(settings::Settings::from_environment());
}

async fn answer(request: Request<Incoming>) -> Result<Reply, Infallible> {
    let (parts, body) = request.into_parts();
    let mut path = parts.uri.path().split('/').skip(1);
    let segments = (path.next(), path.next(), path.next(), path.next());
    let reply = match (&parts.method, segments) {
        (&Method::GET, (Some(""), None, ..)) => text("Hello, World!"),
        (&Method::GET, (Some("hello"), None, ..)) => text("Hello, World"),
        (&Method::GET, (Some("json"), None, ..)) => json(&Message { message: "Hello, World!" }),
        (&Method::GET, (Some("api"), Some("v1"), Some("health"), None)) => {
            json(&Health { status: "ok" })
        }
        (&Method::GET, (Some("example"), None, ..)) => json(&Example::new()),
        (&Method::POST, (Some("json-sort"), None, ..)) => sort(body).await,
        (&Method::POST, (Some("json-complex"), None, ..)) => complex(body).await,
        (&Method::POST, (Some("projects"), Some(id), Some("events"), None)) if !id.is_empty() => {
            with_hooks(parts, body).await
        }
        (&Method::POST, (Some("upload"), None, ..)) => upload(body).await,
        (&Method::GET, (Some("large"), None, ..)) => json(Large::shared()),
        (&Method::GET, (Some("sleep"), Some(ms), None, _)) => sleep(ms).await,
        (&Method::GET, (Some("spawn"), Some(n), None, _)) => spawn(n).await,
        (&Method::GET, (Some("relay"), Some(text), None, _)) => relay(text).await,
        (&Method::GET, (Some("download"), None, ..)) => {
            reply("application/octet-stream", DOWNLOAD.clone())
        }
        (&Method::POST, (Some("echo"), None, ..)) => echo(body).await,
        (
            method @ (&Method::GET | &Method::POST | &Method::PUT | &Method::DELETE),
            (Some(version), Some(resource), id, None),
        ) if VERSIONS.contains(&version) && RESOURCES.contains(&resource) => {
            large_application(method, version, resource, id)
        }
        _ => failure(StatusCode::NOT_FOUND, "not found"),
    };
    Ok(reply)
}

/// The routes of the large application, told apart by the match above.
fn large_application(method: &Method, version: &str, resource: &str, id: Option<&str>) -> Reply {
    let method = method.as_str();
    match id {
        None => text(collection_text(method, version, resource)),
        Some("") => failure(StatusCode::NOT_FOUND, "not found"),
        Some(id) => match decoded(id) {
            Some(id) => text(item_text(method, version, resource, &id)),
            None => failure(StatusCode::BAD_REQUEST, "the id is not UTF-8"),
        },
    }
}

fn decoded(segment: &str) -> Option<Cow<'_, str>> {
    percent_decode_str(segment).decode_utf8().ok()
}

async fn sort(body: Incoming) -> Reply {
    match read_json::<Vec<i64>>(body).await {
        Ok(mut numbers) => {
            numbers.sort_unstable();
            json(&numbers)
        }
        Err(reply) => reply,
    }
}

async fn complex(body: Incoming) -> Reply {
    match read_json::<Example>(body).await {
        Ok(example) => text(example.a),
        Err(reply) => reply,
    }
}

async fn upload(mut body: Incoming) -> Reply {
    let mut upload = Upload::default();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return failure(StatusCode::BAD_REQUEST, "the body is cut short");
        };
        if let Some(piece) = frame.data_ref() {
            upload.receive(piece);
        }
    }
    json(&upload.finish())
}

async fn sleep(ms: &str) -> Reply {
    match ms.parse::<u64>() {
        Ok(ms) if ms <= SLEEP_MS_MAX => {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            text(ms.to_string())
        }
        _ => failure(StatusCode::BAD_REQUEST, "the time is not a number from 0 to 1000"),
    }
}

async fn spawn(n: &str) -> Reply {
    let Ok(n) = n.parse::<u32>() else {
        return failure(StatusCode::BAD_REQUEST, "it is not a number of 32 bits");
    };
    match tokio::spawn(async move { u64::from(n) + 1 }).await {
        Ok(next) => text(next.to_string()),
        Err(_) => failure(StatusCode::INTERNAL_SERVER_ERROR, "the task did not end"),
    }
}

thread_local! {
    /// Each worker has its own runtime, and so its own connections.
    static POOL: Rc<Pool> = Rc::new(Pool::from_environment());
}

async fn relay(segment: &str) -> Reply {
    let Some(wanted) = decoded(segment) else {
        return failure(StatusCode::BAD_REQUEST, "the text is not UTF-8");
    };
    let pool = POOL.with(Rc::clone);
    match pool.relay(&wanted).await {
        Ok(back) => text(back),
        Err(_) => failure(StatusCode::BAD_GATEWAY, "the other server does not answer"),
    }
}

static DOWNLOAD: LazyLock<Bytes> = LazyLock::new(|| numbered_lines().into());

async fn echo(body: Incoming) -> Reply {
    match Limited::new(body, BODY_BYTES_MAX).collect().await {
        Ok(body) => text(body.to_bytes()),
        Err(_) => failure(StatusCode::BAD_REQUEST, "the body is cut short or too long"),
    }
}

async fn with_hooks(mut parts: Parts, body: Incoming) -> Reply {
    parts.extensions.insert(HookState { after: "done" });
    let mut reply = record(parts, body).await;
    reply.headers_mut().insert("x-benchmark-after", HeaderValue::from_static("done"));
    reply
}

async fn record(parts: Parts, body: Incoming) -> Reply {
    if parts.extensions.get::<HookState>().is_none_or(|state| state.after != "done") {
        return failure(StatusCode::INTERNAL_SERVER_ERROR, "the before-hook did not run");
    }
    // The body comes first: a connection whose request was not read to its end is closed.
    let event = match read_json::<Event>(body).await {
        Ok(event) => event,
        Err(reply) => return reply,
    };
    let Some(project_id) = parts.uri.path().split('/').nth(2).and_then(decoded) else {
        return failure(StatusCode::BAD_REQUEST, "the project is not UTF-8");
    };
    let query = parts.uri.query().unwrap_or_default();
    let Some((_, tenant)) =
        form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "tenant")
    else {
        return failure(StatusCode::BAD_REQUEST, "the query lacks a tenant");
    };
    let Some(request_id) = parts.headers.get("x-request-id").and_then(|value| value.to_str().ok())
    else {
        return failure(StatusCode::BAD_REQUEST, "the header X-Request-ID is missing");
    };
    if !event.is_complete() {
        return failure(StatusCode::UNPROCESSABLE_ENTITY, "name and quantity are required");
    }
    let recorded =
        Recorded::new(project_id.into_owned(), tenant.into_owned(), request_id.to_owned(), event);
    let mut reply = json(&recorded);
    *reply.status_mut() = StatusCode::CREATED;
    reply
}

async fn read_json<T: DeserializeOwned>(body: Incoming) -> Result<T, Reply> {
    let Ok(body) = Limited::new(body, BODY_BYTES_MAX).collect().await else {
        return Err(failure(StatusCode::BAD_REQUEST, "the body is cut short or too long"));
    };
    serde_json::from_slice(&body.to_bytes())
        .map_err(|_| failure(StatusCode::BAD_REQUEST, "the body is not the document asked for"))
}

fn json<T: serde::Serialize>(value: &T) -> Reply {
    let body = serde_json::to_vec(value).expect("plain structures serialise");
    reply("application/json", Bytes::from(body))
}

fn text(text: impl Into<Bytes>) -> Reply {
    reply("text/plain; charset=utf-8", text.into())
}

fn failure(status: StatusCode, reason: &'static str) -> Reply {
    let mut reply = text(reason);
    *reply.status_mut() = status;
    reply
}

fn reply(kind: &'static str, body: Bytes) -> Reply {
    let mut response = Response::new(Full::new(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
