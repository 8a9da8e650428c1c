//! Peregrine with one battery, which `BATTERY` names, or none: each as the guide shows it.

mod model;

use std::num::NonZeroUsize;
use std::time::Duration;

use peregrine::auth::{Authenticate, BearerToken, SecretHash};
use peregrine::cache::Etag;
use peregrine::compression::{Compression, CompressionLevel, ContentCoding};
use peregrine::files::Files;
use peregrine::access_log::AccessLogOptions;
use peregrine::multipart::Multipart;
use peregrine::prelude::*;
use peregrine::rate_limit::RateLimit;
use peregrine::session::core::SessionStore;
use peregrine::session::core::session::{Id, Record};
use peregrine::session::{Session, SessionManager};
use peregrine::validate::Valid;
use peregrine::web::cookies::{Cookie, CookieKeys, SameSite, SignedCookies};
use time::OffsetDateTime;
use tower_sessions_memory_store::MemoryStore;

use model::{Items, Message, ORIGIN, Person, SECRET, TOKEN, Upload, Uploaded, text};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The server's own limit of 2 MiB is for documents.
const FORM_BYTES_MAX: u64 = 24 << 20;

fn main() -> peregrine::Result<()> {
    let battery = text("BATTERY").unwrap_or_default();
    let port = text("PORT").unwrap_or_else(|| "8080".to_owned());
    let mut server = Server::bind(format!("127.0.0.1:{port}"));
    if let Some(workers) = text("WORKERS").and_then(|count| count.parse::<NonZeroUsize>().ok()) {
        server = server.workers(workers);
    }
    match &*battery {
        "access-log" => server = server.access_log(AccessLogOptions::file("/dev/null")),
        // Each request has a span where somebody takes spans.
        "trace" => tracing_subscriber::fmt().with_writer(std::io::sink).init(),
        _ => {}
    }
    let folder = model::folder();
    let path = folder.path().to_owned();
    let (limit, store) = (RateLimit::per_second(1_000_000), store());
    server.serve(move || {
        let app = with_battery(&battery, App::new(), &limit, &store);
        routes(&battery, app).subtree("/files", Files::dir(&path))
    })
}

/// What stands around the routes.
fn with_battery(battery: &str, app: App, limit: &RateLimit, store: &MemoryStore) -> App {
    match battery {
        "request-id" => app.wrap(RequestId::new()),
        "cors" => app.wrap(Cors::new().allow_origin(ORIGIN).allow_methods([Method::GET])),
        "security-headers" => app.wrap(SecurityHeaders::new()),
        "session" => app.wrap(SessionManager::new(store.clone())),
        "session-cookie" => {
            let long = Duration::from_secs(3_000 * 24 * 60 * 60);
            let sessions = SessionManager::cookie_store(CookieKeys::new(&SECRET)).idle_timeout(long).absolute_timeout(long);
            app.wrap(sessions.cookie_name("kept"))
        }
        "bearer" => {
            let secret = SecretHash::new(TOKEN);
            let known = async move |BearerToken(token)| secret.verify(&token).then_some(7_u32);
            app.wrap(Authenticate::bearer(known))
        }
        "rate-limit" => app.wrap(limit.clone()),
        "timeout" => app.wrap(Timeout::new(Duration::from_secs(10))),
        "catch-panic" => app.wrap(CatchPanic::new()),
        "gzip" => app.wrap(Compression::new().codings([ContentCoding::Gzip]).level(CompressionLevel::Fastest)),
        "etag" => app.wrap(Etag::new()),
        "body-limit" => app.wrap(BodyLimit::new(64 << 10)),
        _ => app,
    }
}

fn routes(battery: &str, app: App) -> App {
    let app = match battery {
        "signed-cookie" => app.state(CookieKeys::new(&SECRET)).get("/json", with_cookie),
        "session" | "session-cookie" => app.get("/json", with_session),
        _ => app.get("/json", json),
    };
    let app = match battery {
        "validate" => app.post("/people", judged),
        _ => app.post("/people", unjudged),
    };
    app.get("/items", items)
        .post("/form", counted.body_limit(FORM_BYTES_MAX))
        .post("/form/hashed", hashed.body_limit(FORM_BYTES_MAX))
}

async fn json() -> Json<Message> {
    Json(Message::hello())
}

async fn with_cookie(cookies: SignedCookies) -> Result<(SignedCookies, Json<Message>), StatusCode> {
    if cookies.value("shade").is_none_or(|shade| shade != "dark") {
        return Err(StatusCode::FORBIDDEN);
    }
    let cookie =
        Cookie::build(("shade", "dark")).path("/").http_only(true).same_site(SameSite::Lax);
    Ok((cookies.add(cookie), Json(Message::hello())))
}

async fn with_session(session: Session) -> Result<Json<Message>, StatusCode> {
    match session.get::<u32>("user") {
        Some(7) => Ok(Json(Message::hello())),
        _ => {
            session.insert("user", 7).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
            Err(StatusCode::FORBIDDEN)
        }
    }
}

async fn items() -> Json<&'static Items> {
    Json(Items::shared())
}

async fn judged(Valid(Json(person)): Valid<Json<Person>>) -> Json<Message> {
    drop(person);
    Json(Message::hello())
}

async fn unjudged(Json(person): Json<Person>) -> Json<Message> {
    drop(person);
    Json(Message::hello())
}

async fn counted(form: Multipart) -> Result<Json<Uploaded>, Problem> {
    received(form, Upload::counted()).await
}

async fn hashed(form: Multipart) -> Result<Json<Uploaded>, Problem> {
    received(form, Upload::hashed()).await
}

async fn received(mut form: Multipart, mut upload: Upload) -> Result<Json<Uploaded>, Problem> {
    while let Some(mut field) = form.next_field().await? {
        if field.name() != "file" {
            continue;
        }
        while let Some(piece) = field.chunk().await? {
            upload.receive(&piece);
        }
    }
    Ok(Json(upload.finish()))
}

/// A store with the session that the lab's requests name.
fn store() -> MemoryStore {
    let store = MemoryStore::default();
    let data = [("user".to_owned(), 7.into())].into();
    let expiry_date = OffsetDateTime::from_unix_timestamp(4_000_000_000).expect("a time");
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime without timers");
    let record = Record { id: Id(7), data, expiry_date };
    runtime.block_on(store.save(&record)).expect("memory can be written");
    store
}
