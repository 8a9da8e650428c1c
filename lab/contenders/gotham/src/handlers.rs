//! One handler per route, in the order of the table of routes.

use std::time::Duration;

use gotham::anyhow::anyhow;
use gotham::bytes::Bytes;
use gotham::handler::{HandlerError, MapHandlerError};
use gotham::helpers::http::Body;
use gotham::http::{HeaderMap, StatusCode};
use gotham::http_body_util::{BodyExt, LengthLimitError, Limited};
use gotham::mime::{APPLICATION_JSON, Mime, TEXT_PLAIN};
use gotham::prelude::*;
use gotham::state::State;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::model::{
    Event, EventQuery, Example, Health, HookState, LARGE, Message, ProjectPath, Recorded,
    SLEEP_MS_MAX, SleepPath, Upload,
};

/// A body of JSON is read whole, up to this length.
const JSON_BYTES_MAX: usize = 2 << 20;

type Json = (StatusCode, Mime, Vec<u8>);

fn encode(status: StatusCode, value: &impl Serialize) -> Json {
    let text = serde_json::to_vec(value).expect("plain structures serialise");
    (status, APPLICATION_JSON, text)
}

async fn read(state: &mut State) -> Result<Bytes, HandlerError> {
    match Limited::new(Body::take_from(state), JSON_BYTES_MAX).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            Err(HandlerError::from(anyhow!(error)).with_status(StatusCode::PAYLOAD_TOO_LARGE))
        }
        Err(error) => Err(HandlerError::from(anyhow!(error)).with_status(StatusCode::BAD_REQUEST)),
    }
}

async fn decode<T: DeserializeOwned>(state: &mut State) -> Result<T, HandlerError> {
    serde_json::from_slice(&read(state).await?).map_err_with_status(StatusCode::BAD_REQUEST)
}

pub fn json(state: State) -> (State, Json) {
    (state, encode(StatusCode::OK, &Message { message: "Hello, World!" }))
}

pub fn health(state: State) -> (State, Json) {
    (state, encode(StatusCode::OK, &Health { status: "ok" }))
}

pub fn example(state: State) -> (State, Json) {
    (state, encode(StatusCode::OK, &Example::new()))
}

pub async fn json_sort(state: &mut State) -> Result<Json, HandlerError> {
    let mut numbers: Vec<i64> = decode(state).await?;
    numbers.sort_unstable();
    Ok(encode(StatusCode::OK, &numbers))
}

pub async fn json_complex(state: &mut State) -> Result<String, HandlerError> {
    let example: Example = decode(state).await?;
    Ok(example.a)
}

pub async fn record(state: &mut State) -> Result<Json, HandlerError> {
    if HookState::borrow_from(state).after != "done" {
        return Ok(refuse(StatusCode::INTERNAL_SERVER_ERROR, "the before-hook did not run"));
    }
    // First of all the body: a reply that leaves it unread costs the connection.
    let event: Event = decode(state).await?;
    let headers = HeaderMap::borrow_from(state);
    let Some(request_id) = headers.get("x-request-id").and_then(|value| value.to_str().ok()) else {
        return Ok(refuse(StatusCode::BAD_REQUEST, "the header X-Request-ID is missing"));
    };
    let request_id = request_id.to_owned();
    if !event.is_complete() {
        return Ok(refuse(StatusCode::UNPROCESSABLE_ENTITY, "name and quantity are required"));
    }
    let ProjectPath { project_id } = ProjectPath::take_from(state);
    let query = EventQuery::take_from(state);
    let recorded = Recorded::new(project_id, query.tenant, request_id, event);
    Ok(encode(StatusCode::CREATED, &recorded))
}

fn refuse(status: StatusCode, text: &str) -> Json {
    (status, TEXT_PLAIN, text.into())
}

pub async fn upload(state: &mut State) -> Result<Json, HandlerError> {
    let mut body = Body::take_from(state);
    let mut upload = Upload::default();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err_with_status(StatusCode::BAD_REQUEST)?;
        if frame.data_ref().is_some_and(|piece| !upload.add(piece)) {
            return Ok(refuse(StatusCode::PAYLOAD_TOO_LARGE, "at most 16 MiB"));
        }
    }
    Ok(encode(StatusCode::OK, &upload.finish()))
}

pub fn large(state: State) -> (State, Json) {
    (state, encode(StatusCode::OK, &*LARGE))
}

pub async fn sleep(state: &mut State) -> Result<(StatusCode, Mime, String), HandlerError> {
    let SleepPath { ms } = SleepPath::take_from(state);
    if ms > SLEEP_MS_MAX {
        return Ok((StatusCode::BAD_REQUEST, TEXT_PLAIN, "at most 1000 ms".to_owned()));
    }
    tokio::time::sleep(Duration::from_millis(ms)).await;
    Ok((StatusCode::OK, TEXT_PLAIN, ms.to_string()))
}
