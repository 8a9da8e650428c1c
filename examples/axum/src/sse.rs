//! Server-sent events: numbered events at an interval, and keep-alive comments when there are none.

use axum::Router;
use axum::extract::Path;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::get;
use futures_util::stream::{self, Stream};
use serde_json::json;
use std::convert::Infallible;
use std::time::Duration;

/// The application.
pub fn app() -> Router {
    Router::new().route("/ticks/{count}", get(ticks)).route("/quiet", get(quiet))
}

/// Sends `count` events. A client that reconnects sends the id of the last event it received.
async fn ticks(
    Path(count): Path<u64>,
    fields: HeaderMap,
) -> Sse<impl Stream<Item = Result<Event, axum::Error>>> {
    let last = fields.get("last-event-id").and_then(|id| id.to_str().ok());
    let last = last.and_then(|id| id.parse::<u64>().ok()).unwrap_or(0);
    // The number is untrusted input.
    let first = last.saturating_add(1);
    let interval = tokio::time::interval(Duration::from_millis(20));
    let events = stream::unfold((first, interval), move |(number, mut interval)| async move {
        if number > count {
            return None;
        }
        interval.tick().await;
        let event = Event::default().id(number.to_string()).event("tick");
        Some((
            event.json_data(json!({ "number": number, "of": count })),
            (number.saturating_add(1), interval),
        ))
    });
    Sse::new(events)
}

/// No events, only comments that keep proxies from timing out.
async fn quiet() -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let alive = KeepAlive::new().interval(Duration::from_millis(20)).text("still here");
    Sse::new(stream::pending()).keep_alive(alive)
}
