//! axum with one battery, which `BATTERY` names, or none: each as its documentation shows it.

mod model;

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Multipart, Request};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use axum::{Json, Router};
use axum_extra::TypedHeader;
use axum_extra::extract::cookie::{Cookie, Key, SameSite, SignedCookieJar};
use axum_extra::headers::Authorization;
use axum_extra::headers::authorization::Bearer;
use garde::Validate;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_http::CompressionLevel;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::cors::CorsLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use tower_http::services::ServeDir;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::{DefaultMakeSpan, DefaultOnResponse, TraceLayer};
use tower_sessions::session::{Id, Record};
use tower_sessions::{MemoryStore, Session, SessionManagerLayer, SessionStore};
use tracing::Level;

use model::{Items, Message, ORIGIN, Person, SECRET, TOKEN, Upload, Uploaded, text};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// axum's own limit of 2 MB is for documents.
const FORM_BYTES_MAX: usize = 24 << 20;

/// What [`model::ORIGIN`]'s browser is told beside the content, as Peregrine's battery has it.
const SECURITY: [(&str, &str); 6] = [
    ("content-security-policy", "base-uri 'self'; object-src 'none'; frame-ancestors 'none'"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "strict-origin-when-cross-origin"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
];

fn main() {
    let workers = text("WORKERS").and_then(|count| count.parse().ok()).unwrap_or(1);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .expect("threads can be started")
        .block_on(serve());
}

async fn serve() {
    let battery = text("BATTERY").unwrap_or_default();
    let port = text("PORT").and_then(|port| port.parse().ok()).unwrap_or(8080);
    let folder = model::folder();
    let app = routes(&battery).nest_service("/files", ServeDir::new(folder.path()));
    let app = with_battery(&battery, app).await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .expect("the port is free")
        .tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
    // The addresses of clients are what the rate limit counts by.
    let served = match &*battery {
        "rate-limit" => {
            let app = app.into_make_service_with_connect_info::<SocketAddr>();
            axum::serve(listener, app).with_graceful_shutdown(terminated()).await
        }
        _ => axum::serve(listener, app).with_graceful_shutdown(terminated()).await,
    };
    served.expect("serving ends without an error");
}

/// What stands around the routes.
async fn with_battery(battery: &str, app: Router) -> Router {
    let id = HeaderName::from_static("x-request-id");
    match battery {
        // The one that is added last is the outermost.
        "request-id" => app
            .layer(PropagateRequestIdLayer::new(id.clone()))
            .layer(SetRequestIdLayer::new(id, MakeRequestUuid)),
        "cors" => {
            let origin = HeaderValue::from_static(ORIGIN);
            app.layer(CorsLayer::new().allow_origin(origin).allow_methods([Method::GET]))
        }
        "security-headers" => SECURITY.into_iter().fold(app, |app, (name, value)| {
            let (name, value) = (HeaderName::from_static(name), HeaderValue::from_static(value));
            app.layer(SetResponseHeaderLayer::if_not_present(name, value))
        }),
        "session" => {
            let layer = SessionManagerLayer::new(store().await);
            app.layer(layer.with_name("session").with_secure(false))
        }
        "bearer" => app.layer(from_fn(known)),
        "rate-limit" => {
            let limit = GovernorConfigBuilder::default()
                .per_nanosecond(1_000)
                .burst_size(1_000_000)
                .use_headers()
                .finish()
                .expect("a rate and a burst that are not zero");
            app.layer(GovernorLayer::new(limit))
        }
        "timeout" => {
            let limit = Duration::from_secs(10);
            app.layer(TimeoutLayer::with_status_code(StatusCode::SERVICE_UNAVAILABLE, limit))
        }
        "catch-panic" => app.layer(CatchPanicLayer::new()),
        "gzip" => app.layer(CompressionLayer::new().quality(CompressionLevel::Fastest)),
        "body-limit" => {
            app.layer(DefaultBodyLimit::disable()).layer(RequestBodyLimitLayer::new(64 << 10))
        }
        "access-log" => {
            let file = File::create("/dev/null").expect("the file that keeps nothing is there");
            tracing_subscriber::fmt().with_writer(Mutex::new(file)).init();
            let layer = TraceLayer::new_for_http()
                .make_span_with(DefaultMakeSpan::new().level(Level::INFO))
                .on_response(DefaultOnResponse::new().level(Level::INFO));
            app.layer(layer)
        }
        "trace" => {
            tracing_subscriber::fmt().with_writer(std::io::sink).init();
            let spans = DefaultMakeSpan::new().level(Level::INFO);
            app.layer(TraceLayer::new_for_http().make_span_with(spans))
        }
        _ => app,
    }
}

fn routes(battery: &str) -> Router {
    let app = match battery {
        "signed-cookie" => {
            let keys = Key::from(&SECRET);
            Router::new().route("/json", get(with_cookie)).with_state(keys)
        }
        "session" => Router::new().route("/json", get(with_session)),
        _ => Router::new().route("/json", get(json)),
    };
    let app = match battery {
        "validate" => app.route("/people", post(judged)),
        _ => app.route("/people", post(unjudged)),
    };
    let forms = Router::new()
        .route("/form", post(counted))
        .route("/form/hashed", post(hashed))
        .layer(DefaultBodyLimit::max(FORM_BYTES_MAX));
    app.route("/items", get(items)).merge(forms)
}

/// Whose token it is, where handlers find it.
#[derive(Clone)]
struct User(#[expect(dead_code, reason = "no handler asks here")] u32);

async fn known(
    TypedHeader(Authorization(token)): TypedHeader<Authorization<Bearer>>,
    mut request: Request,
    next: Next,
) -> Response {
    if token.token() != TOKEN {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    request.extensions_mut().insert(User(7));
    next.run(request).await
}

async fn json() -> Json<Message> {
    Json(Message::hello())
}

async fn with_cookie(jar: SignedCookieJar) -> Result<(SignedCookieJar, Json<Message>), StatusCode> {
    if jar.get("theme").is_none_or(|theme| theme.value() != "dark") {
        return Err(StatusCode::FORBIDDEN);
    }
    let cookie =
        Cookie::build(("theme", "dark")).path("/").http_only(true).same_site(SameSite::Lax);
    Ok((jar.add(cookie), Json(Message::hello())))
}

async fn with_session(session: Session) -> Result<Json<Message>, StatusCode> {
    match session.get::<u32>("user").await {
        Ok(Some(7)) => Ok(Json(Message::hello())),
        _ => Err(StatusCode::FORBIDDEN),
    }
}

async fn items() -> Json<&'static Items> {
    Json(Items::shared())
}

async fn judged(Json(person): Json<Person>) -> Result<Json<Message>, (StatusCode, String)> {
    person.validate().map_err(|report| (StatusCode::UNPROCESSABLE_ENTITY, report.to_string()))?;
    Ok(Json(Message::hello()))
}

async fn unjudged(Json(person): Json<Person>) -> Json<Message> {
    drop(person);
    Json(Message::hello())
}

async fn counted(form: Multipart) -> Result<Json<Uploaded>, Response> {
    received(form, Upload::counted()).await
}

async fn hashed(form: Multipart) -> Result<Json<Uploaded>, Response> {
    received(form, Upload::hashed()).await
}

async fn received(mut form: Multipart, mut upload: Upload) -> Result<Json<Uploaded>, Response> {
    while let Some(mut field) = form.next_field().await.map_err(IntoResponse::into_response)? {
        if field.name() != Some("file") {
            continue;
        }
        while let Some(piece) = field.chunk().await.map_err(IntoResponse::into_response)? {
            upload.receive(&piece);
        }
    }
    Ok(Json(upload.finish()))
}

/// A store with the session that the lab's requests name.
async fn store() -> MemoryStore {
    let store = MemoryStore::default();
    let data = [("user".to_owned(), 7.into())].into();
    let expiry_date = time::OffsetDateTime::from_unix_timestamp(4_000_000_000).expect("a time");
    let saved = store.save(&Record { id: Id(7), data, expiry_date }).await;
    saved.expect("memory can be written");
    store
}

/// Completes at SIGTERM.
async fn terminated() {
    signal(SignalKind::terminate()).expect("signals can be received").recv().await;
}
