//! One handler per route, in the order of the table of routes.

use std::borrow::Cow;
use std::io::{self, BufRead, Read};
use std::time::Duration;

use may::coroutine;
use may_minihttp::{BodyReader, Request, Response};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::model::{
    Event, Example, Health, HookState, LARGE, Message, Recorded, SLEEP_MS_MAX, Upload,
};

/// A body of JSON is read whole, up to this length.
const JSON_BYTES_MAX: u64 = 2 << 20;

pub fn text(response: &mut Response, text: &'static str) {
    response.header("Content-Type: text/plain; charset=utf-8").body(text);
}

fn owned_text(response: &mut Response, text: String) {
    response.header("Content-Type: text/plain; charset=utf-8").body_vec(text.into_bytes());
}

pub fn refuse(response: &mut Response, status: usize, reason: &'static str) {
    response.status_code(status, reason);
    text(response, reason);
}

fn encode(response: &mut Response, value: &impl Serialize) {
    let body = serde_json::to_vec(value).expect("plain structures serialise");
    response.header("Content-Type: application/json").body_vec(body);
}

fn decode<T: DeserializeOwned>(body: BodyReader) -> io::Result<Option<T>> {
    let mut text = Vec::new();
    body.take(JSON_BYTES_MAX).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text).ok())
}

pub fn json(response: &mut Response) {
    encode(response, &Message { message: "Hello, World!" });
}

pub fn health(response: &mut Response) {
    encode(response, &Health { status: "ok" });
}

pub fn example(response: &mut Response) {
    encode(response, &Example::new());
}

pub fn json_sort(request: Request, response: &mut Response) -> io::Result<()> {
    match decode::<Vec<i64>>(request.body())? {
        Some(mut numbers) => {
            numbers.sort_unstable();
            encode(response, &numbers);
        }
        None => refuse(response, 400, "Bad Request"),
    }
    Ok(())
}

pub fn json_complex(request: Request, response: &mut Response) -> io::Result<()> {
    match decode::<Example>(request.body())? {
        Some(example) => owned_text(response, example.a),
        None => refuse(response, 400, "Bad Request"),
    }
    Ok(())
}

/// The hooks around the events route: state before the handler, a field after it.
pub fn events(
    project: &str,
    query: &str,
    request: Request,
    response: &mut Response,
) -> io::Result<()> {
    let state = HookState { after: "done" };
    record(&state, project, query, request, response)?;
    response.header("X-Benchmark-After: done");
    Ok(())
}

fn record(
    state: &HookState,
    project: &str,
    query: &str,
    request: Request,
    response: &mut Response,
) -> io::Result<()> {
    let request_id = field(&request, "x-request-id");
    let event: Option<Event> = decode(request.body())?;
    let project_id = percent_decode_str(project).decode_utf8().map(Cow::into_owned);
    let tenant = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "tenant");
    let (Some(request_id), Some(event), Ok(project_id), Some((_, tenant))) =
        (request_id, event, project_id, tenant)
    else {
        refuse(response, 400, "Bad Request");
        return Ok(());
    };
    if state.after != "done" {
        refuse(response, 500, "Internal Server Error");
    } else if event.is_complete() {
        response.status_code(201, "Created");
        let recorded = Recorded::new(project_id, tenant.into_owned(), request_id, event);
        encode(response, &recorded);
    } else {
        refuse(response, 422, "Unprocessable Content");
    }
    Ok(())
}

fn field(request: &Request, name: &str) -> Option<String> {
    let header = request.headers().iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
    str::from_utf8(header.value).ok().map(str::to_owned)
}

pub fn upload(request: Request, response: &mut Response) -> io::Result<()> {
    let mut body = request.body();
    let mut upload = Upload::default();
    loop {
        let piece = body.fill_buf()?;
        if piece.is_empty() {
            encode(response, &upload.finish());
            return Ok(());
        }
        if !upload.add(piece) {
            refuse(response, 413, "Content Too Large");
            return Ok(());
        }
        let length = piece.len();
        body.consume(length);
    }
}

pub fn large(response: &mut Response) {
    encode(response, &*LARGE);
}

pub fn sleep(ms: &str, response: &mut Response) {
    match ms.parse() {
        Ok(ms) if ms <= SLEEP_MS_MAX => {
            coroutine::sleep(Duration::from_millis(ms));
            owned_text(response, ms.to_string());
        }
        _ => refuse(response, 400, "Bad Request"),
    }
}

pub fn resource(
    method: &str,
    version: &str,
    resource: &str,
    item: Option<&str>,
    response: &mut Response,
) {
    let text = match item {
        Some(id) => format!("{method} {version} {resource} {id}"),
        None => format!("{method} {version} {resource}"),
    };
    owned_text(response, text);
}
