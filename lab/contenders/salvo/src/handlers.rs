//! One handler per route, in the order of the table of routes, and the hooks of the events route.

use std::time::Duration;

use futures_util::TryStreamExt;
use salvo::http::{HeaderValue, ParseError};
use salvo::prelude::*;

use crate::model::{
    Event, EventQuery, Example, Health, HookState, LARGE, Large, Message, Recorded, SLEEP_MS_MAX,
    Upload, Uploaded,
};

#[handler]
pub async fn root() -> &'static str {
    "Hello, World!"
}

#[handler]
pub async fn hello() -> &'static str {
    "Hello, World"
}

#[handler]
pub async fn json() -> Json<Message> {
    Json(Message { message: "Hello, World!" })
}

#[handler]
pub async fn health() -> Json<Health> {
    Json(Health { status: "ok" })
}

#[handler]
pub async fn example() -> Json<Example> {
    Json(Example::new())
}

#[handler]
pub async fn json_sort(request: &mut Request) -> Result<Json<Vec<i64>>, ParseError> {
    let mut numbers: Vec<i64> = request.parse_json().await?;
    numbers.sort_unstable();
    Ok(Json(numbers))
}

#[handler]
pub async fn json_complex(request: &mut Request) -> Result<String, ParseError> {
    let document: Example = request.parse_json().await?;
    Ok(document.a)
}

/// Leaves state before the handler and sets the field after it.
#[handler]
pub async fn hooks(
    request: &mut Request,
    depot: &mut Depot,
    response: &mut Response,
    control: &mut FlowCtrl,
) {
    depot.insert_typed(HookState { after: "done" });
    control.call_next(request, depot, response).await;
    response.headers_mut().insert("x-benchmark-after", HeaderValue::from_static("done"));
}

#[handler]
pub async fn record(
    request: &mut Request,
    depot: &mut Depot,
    response: &mut Response,
) -> Result<Json<Recorded>, StatusError> {
    if depot.get_typed::<HookState>().map_or("", |state| state.after) != "done" {
        return Err(StatusError::internal_server_error());
    }
    let refuse = |error: ParseError| StatusError::bad_request().cause(error);
    // First of all the body: a reply that leaves it unread costs the connection.
    let event: Event = request.parse_json().await.map_err(refuse)?;
    let project_id: String = request.try_param("project_id").map_err(refuse)?;
    let query: EventQuery = request.parse_queries().map_err(refuse)?;
    let request_id: String = request.try_header("x-request-id").map_err(refuse)?;
    if !event.is_complete() {
        return Err(StatusError::unprocessable_entity().brief("name and quantity are required"));
    }
    response.status_code(StatusCode::CREATED);
    Ok(Json(Recorded::new(project_id, query.tenant, request_id, event)))
}

#[handler]
pub async fn upload(request: &mut Request) -> Result<Json<Uploaded>, StatusError> {
    let mut body = request.take_body();
    let mut received = Upload::default();
    let refuse = |error| StatusError::bad_request().cause(error);
    while let Some(frame) = body.try_next().await.map_err(refuse)? {
        if frame.data_ref().is_some_and(|piece| !received.add(piece)) {
            return Err(StatusError::payload_too_large());
        }
    }
    Ok(Json(received.finish()))
}

#[handler]
pub async fn large() -> Json<&'static Large> {
    Json(&*LARGE)
}

#[handler]
pub async fn sleep(request: &mut Request) -> Result<String, StatusError> {
    let ms = request.param("ms").filter(|&ms: &u64| ms <= SLEEP_MS_MAX);
    let ms = ms.ok_or_else(StatusError::bad_request)?;
    tokio::time::sleep(Duration::from_millis(ms)).await;
    Ok(ms.to_string())
}

/// A collection of the 400 routes, or an item of it.
#[derive(Clone, Copy)]
pub struct Resource {
    pub version: &'static str,
    pub name: &'static str,
}

#[handler]
impl Resource {
    async fn handle(&self, request: &mut Request) -> String {
        let Resource { version, name } = self;
        let method = request.method();
        match request.param::<&str>("id") {
            Some(id) => format!("{method} {version} {name} {id}"),
            None => format!("{method} {version} {name}"),
        }
    }
}
