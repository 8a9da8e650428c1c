//! One handler per route, in the order of the table of routes, and the hooks of the events route.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use poem::error::BadRequest;
use poem::http::{HeaderMap, HeaderValue, StatusCode};
use poem::web::{Data, Json, Path, Query};
use poem::{Body, Endpoint, Error, IntoResponse, Request, Response, Result, handler};

use crate::model::{
    Event, EventQuery, Example, Health, HookState, LARGE, Large, Message, Recorded, SLEEP_MS_MAX,
    Upload, Uploaded,
};

#[handler]
pub fn root() -> &'static str {
    "Hello, World!"
}

#[handler]
pub fn hello() -> &'static str {
    "Hello, World"
}

#[handler]
pub fn json() -> Json<Message> {
    Json(Message { message: "Hello, World!" })
}

#[handler]
pub fn health() -> Json<Health> {
    Json(Health { status: "ok" })
}

#[handler]
pub fn example() -> Json<Example> {
    Json(Example::new())
}

#[handler]
pub fn json_sort(Json(mut numbers): Json<Vec<i64>>) -> Json<Vec<i64>> {
    numbers.sort_unstable();
    Json(numbers)
}

#[handler]
pub fn json_complex(Json(document): Json<Example>) -> String {
    document.a
}

/// Leaves state before the handler and sets the field after it.
pub async fn hooks<E: Endpoint>(next: Arc<E>, mut request: Request) -> Result<Response> {
    request.set_data(HookState { after: "done" });
    let mut response = next.get_response(request).await;
    response.headers_mut().insert("x-benchmark-after", HeaderValue::from_static("done"));
    Ok(response)
}

#[handler]
pub fn record(
    Path(project_id): Path<String>,
    Query(query): Query<EventQuery>,
    Data(state): Data<&HookState>,
    headers: &HeaderMap,
    Json(event): Json<Event>,
) -> Result<impl IntoResponse> {
    if state.after != "done" {
        return Err(Error::from_status(StatusCode::INTERNAL_SERVER_ERROR));
    }
    let Some(request_id) = headers.get("x-request-id").and_then(|value| value.to_str().ok()) else {
        let text = "the header X-Request-ID is missing";
        return Err(Error::from_string(text, StatusCode::BAD_REQUEST));
    };
    if !event.is_complete() {
        let text = "name and quantity are required";
        return Err(Error::from_string(text, StatusCode::UNPROCESSABLE_ENTITY));
    }
    let recorded = Recorded::new(project_id, query.tenant, request_id.to_owned(), event);
    Ok(Json(recorded).with_status(StatusCode::CREATED))
}

#[handler]
pub async fn upload(body: Body) -> Result<Json<Uploaded>> {
    let mut pieces = body.into_bytes_stream();
    let mut received = Upload::default();
    while let Some(piece) = pieces.try_next().await.map_err(BadRequest)? {
        if !received.add(&piece) {
            return Err(Error::from_status(StatusCode::PAYLOAD_TOO_LARGE));
        }
    }
    Ok(Json(received.finish()))
}

#[handler]
pub fn large() -> Json<&'static Large> {
    Json(&*LARGE)
}

#[handler]
pub async fn sleep(Path(ms): Path<u64>) -> Result<String> {
    if ms > SLEEP_MS_MAX {
        return Err(Error::from_status(StatusCode::BAD_REQUEST));
    }
    tokio::time::sleep(Duration::from_millis(ms)).await;
    Ok(ms.to_string())
}
