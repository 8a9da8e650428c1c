//! The rival warp, as its documentation shows it: a tree of filters, hooks by `wrap_fn`, and
//! `warp::serve` on tokio's multi-thread runtime, which stops gracefully at SIGTERM.

mod model;
mod settings;

use std::net::Ipv4Addr;
use std::time::Duration;

use bytes::Buf;
use futures_util::{Stream, TryStreamExt};
use tokio::signal::unix::{SignalKind, signal};
use warp::filters::BoxedFilter;
use warp::http::{Method, StatusCode};
use warp::reply::{self, Reply, Response};
use warp::{Filter, Rejection};

use model::{
    Event, EventQuery, Example, Health, HookState, LARGE, Message, RESOURCES, Recorded,
    SLEEP_MS_MAX, Upload, VERSIONS,
};
use settings::Settings;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let settings = Settings::from_environment();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(settings.workers)
        .enable_all()
        .build()
        .expect("threads can be started")
        .block_on(serve(settings));
}

async fn serve(settings: Settings) {
    let mut terminate = signal(SignalKind::terminate()).expect("signals can be received");
    warp::serve(routes())
        .bind((Ipv4Addr::LOCALHOST, settings.port))
        .await
        .graceful(async move {
            terminate.recv().await;
        })
        .run()
        .await;
}

fn routes() -> impl Filter<Extract = (impl Reply,), Error = Rejection> + Clone {
    let hello = warp::path::end().and(warp::get()).map(|| "Hello, World!");
    let short = warp::path!("hello").and(warp::get()).map(|| "Hello, World");
    let json = warp::path!("json")
        .and(warp::get())
        .map(|| reply::json(&Message { message: "Hello, World!" }));
    let health = warp::path!("api" / "v1" / "health")
        .and(warp::get())
        .map(|| reply::json(&Health { status: "ok" }));
    let example = warp::path!("example").and(warp::get()).map(|| reply::json(&Example::new()));
    let json_sort = warp::path!("json-sort").and(warp::post()).and(warp::body::json()).map(
        |mut numbers: Vec<i64>| {
            numbers.sort_unstable();
            reply::json(&numbers)
        },
    );
    let json_complex = warp::path!("json-complex")
        .and(warp::post())
        .and(warp::body::json())
        .map(|example: Example| example.a);
    let events = warp::path!("projects" / String / "events")
        .and(warp::post())
        .and(warp::query::<EventQuery>())
        .and(warp::header::<String>("x-request-id"))
        .and(warp::body::json::<Event>())
        .with(warp::wrap_fn(hooks));
    let upload = warp::path!("upload").and(warp::post()).and(warp::body::stream()).then(upload);
    let large = warp::path!("large").and(warp::get()).map(|| reply::json(&*LARGE));
    let sleep = warp::path!("sleep" / u64).and(warp::get()).then(sleep);
    hello
        .or(short)
        .or(json)
        .or(health)
        .or(example)
        .or(json_sort)
        .or(json_complex)
        .or(events)
        .or(upload)
        .or(large)
        .or(sleep)
        .or(all_of(VERSIONS.map(|version| {
            let resources = all_of(RESOURCES.map(|resource| resource_routes(version, resource)));
            warp::path(version).and(resources).boxed()
        })))
}

/// warp has no table of routes: filters are tried in turn, so that its users nest them by segment.
fn resource_routes(version: &'static str, resource: &'static str) -> BoxedFilter<(String,)> {
    let methods = [Method::GET, Method::POST, Method::PUT, Method::DELETE];
    let collections = methods.clone().map(|name| {
        let method = method_filter(&name);
        warp::path::end().and(method).map(move || format!("{name} {version} {resource}")).boxed()
    });
    let items = methods.map(|name| {
        let method = method_filter(&name);
        warp::path!(String)
            .and(method)
            .map(move |id| format!("{name} {version} {resource} {id}"))
            .boxed()
    });
    warp::path(resource).and(all_of(collections).or(all_of(items)).unify()).boxed()
}

fn method_filter(method: &Method) -> BoxedFilter<()> {
    match *method {
        Method::GET => warp::get().boxed(),
        Method::POST => warp::post().boxed(),
        Method::PUT => warp::put().boxed(),
        _ => warp::delete().boxed(),
    }
}

fn all_of<const COUNT: usize>(filters: [BoxedFilter<(String,)>; COUNT]) -> BoxedFilter<(String,)> {
    filters
        .into_iter()
        .reduce(|all, filter| all.or(filter).unify().boxed())
        .expect("every list of routes has one")
}

/// Leaves state before the handler and sets the field after it.
fn hooks<F>(filter: F) -> impl Filter<Extract = (impl Reply,), Error = Rejection> + Clone
where
    F: Filter<Extract = (String, EventQuery, String, Event), Error = Rejection> + Clone,
    F: Send + Sync + 'static,
{
    warp::any()
        .map(|| HookState { after: "done" })
        .and(filter)
        .map(record)
        .map(|reply| reply::with_header(reply, "x-benchmark-after", "done"))
}

fn record(
    state: HookState,
    project_id: String,
    query: EventQuery,
    request_id: String,
    event: Event,
) -> Response {
    if state.after != "done" {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    if !event.is_complete() {
        let text = "name and quantity are required";
        return reply::with_status(text, StatusCode::UNPROCESSABLE_ENTITY).into_response();
    }
    let recorded = Recorded::new(project_id, query.tenant, request_id, event);
    reply::with_status(reply::json(&recorded), StatusCode::CREATED).into_response()
}

async fn upload(body: impl Stream<Item = Result<impl Buf, warp::Error>>) -> Response {
    let mut body = std::pin::pin!(body);
    let mut upload = Upload::default();
    loop {
        match body.try_next().await {
            Ok(Some(mut buffer)) => {
                while buffer.has_remaining() {
                    let piece = buffer.chunk();
                    if !upload.add(piece) {
                        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
                    }
                    buffer.advance(piece.len());
                }
            }
            Ok(None) => return reply::json(&upload.finish()).into_response(),
            Err(_) => return StatusCode::BAD_REQUEST.into_response(),
        }
    }
}

async fn sleep(ms: u64) -> Response {
    if ms > SLEEP_MS_MAX {
        return StatusCode::BAD_REQUEST.into_response();
    }
    tokio::time::sleep(Duration::from_millis(ms)).await;
    ms.to_string().into_response()
}
