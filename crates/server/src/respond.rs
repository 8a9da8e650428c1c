//! Writing responses into the outbox.

use crate::connection::Talk;
use crate::ended::Ended;
use crate::exchange::{self, Raced, race};
use crate::upload::Upload;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::{Body as _, Frame};
use peregrine_driver::Driver;
use peregrine_proto::Reject;
use peregrine_proto::h1::{BodyMode, ResponseLength};
use peregrine_web::{Body, Fields, Problem, Response, respond::IntoResponse};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

/// Writes a whole response, and sends it piece by piece where it is large or a stream.
pub(crate) async fn run<D: Driver>(
    talk: &mut Talk<'_, D>,
    mut response: Response,
    upload: &mut Upload,
) -> Result<(), Ended> {
    let length = response.body.length().map_or(ResponseLength::Unknown, ResponseLength::Exact);
    let mode = write_head(talk, &response, length);
    if let Some(bytes) = response.body.as_slice() {
        let most = talk.link.worker.limits.pending_output_bytes_max.max(1);
        if bytes.len() <= most {
            talk.protocol.send_data(bytes, talk.link.outbox);
        } else {
            for piece in bytes.chunks(most) {
                talk.protocol.send_data(piece, talk.link.outbox);
                talk.link.flush().await?;
            }
        }
        talk.protocol.finish(std::iter::empty(), talk.link.outbox);
        return Ok(());
    }
    Box::pin(stream(talk, &mut response.body, mode, upload)).await
}

/// Sends a body as its pieces become ready.
async fn stream<D: Driver>(
    talk: &mut Talk<'_, D>,
    body: &mut Body,
    mode: BodyMode,
    upload: &mut Upload,
) -> Result<(), Ended> {
    let mut trailers = HeaderMap::new();
    let most = talk.link.worker.limits.pending_output_bytes_max.max(1);
    // What is beyond it would be dropped, and a stream that is always ready and has no end would
    // hold the worker for ever: nothing waits for a peer where nothing is sent.
    let mut left = match mode {
        BodyMode::None => Some(0),
        BodyMode::Exact(bytes) => Some(bytes),
        BodyMode::Chunked | BodyMode::UntilClose => None,
    };
    while left != Some(0) {
        let frame = match next_frame(talk, body, upload).await? {
            None => break,
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                // What was promised cannot be kept, and only closing says so: the peer sees a body
                // that ends too early.
                tracing::error!(target: "peregrine", %error, "the body of a response failed");
                let _ = talk.link.flush().await;
                return Err(Ended::ResponseFailed);
            }
        };
        match frame.into_data() {
            Ok(data) => {
                // A piece may be of any size, and what is written at a time is limited.
                for part in data.chunks(most) {
                    let taken = talk.protocol.send_data(part, talk.link.outbox);
                    left = left.map(|left| left - taken as u64);
                    if talk.link.is_full() {
                        talk.link.flush().await?;
                    }
                }
            }
            Err(frame) => {
                if let Ok(more) = frame.into_trailers() {
                    trailers.extend(more);
                }
            }
        }
    }
    let pairs = trailers.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
    talk.protocol.finish(pairs, talk.link.outbox);
    Ok(())
}

type Framed = Option<Result<Frame<Bytes>, peregrine_web::BodyError>>;

/// The next piece of a response's body. While there is none, what was written is sent, and the
/// request's body goes on being received.
async fn next_frame<D: Driver>(
    talk: &mut Talk<'_, D>,
    body: &mut Body,
    upload: &mut Upload,
) -> Result<Framed, Ended> {
    let pulse = &talk.link.worker.pulse;
    let pattern = talk.request.as_ref().and_then(|asked| asked.pattern);
    let mut poll_frame = |context: &mut Context<'_>| {
        let _beat = pulse.beat(pattern);
        poll_frame(body, context)
    };
    let first = poll_fn(|context| Poll::Ready(poll_frame(context))).await;
    if let Poll::Ready(frame) = first {
        return Ok(frame);
    }
    let _hold = talk.link.worker.driver.hold();
    let frame = pin!(poll_fn(poll_frame));
    // A probe would stand in the middle of the response, so none is sent: what is written next
    // finds out.
    let meanwhile = pin!(exchange::meanwhile(talk, upload, false));
    match race(frame, meanwhile).await {
        Raced::First(frame) => Ok(frame),
        Raced::Second(Ended::Broken(_)) => Err(Ended::PeerLeft),
        Raced::Second(ended) => Err(ended),
    }
}

/// Polls a body that the application made. If it panics, that is how it fails.
fn poll_frame(body: &mut Body, context: &mut Context<'_>) -> Poll<Framed> {
    let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut *body).poll_frame(context)));
    polled.unwrap_or_else(|panic| {
        // It is not polled again, so whatever state it left is never seen.
        *body = Body::empty();
        let message = exchange::message_of(&*panic);
        let error = format!("the stream panicked: {message}").into();
        Poll::Ready(Some(Err(peregrine_web::BodyError::Failed(error))))
    })
}

/// Writes the 101 that hands the connection over. False if the request did not ask for it.
pub(crate) fn switch_protocols<D: Driver>(talk: &mut Talk<'_, D>, response: &Response) -> bool {
    response.status == StatusCode::SWITCHING_PROTOCOLS
        && talk.protocol.switch_protocols(pairs(&response.fields), talk.link.outbox)
}

/// Writes the answer to a broken rule.
pub(crate) fn rejected<D: Driver>(talk: &mut Talk<'_, D>, reject: Reject) {
    let status = StatusCode::from_u16(reject.status()).unwrap_or(StatusCode::BAD_REQUEST);
    let problem = Problem::new(status, "invalid-request", format!("{}.", reject.cause()))
        .with("rule", reject.section());
    whole(talk, problem);
}

/// Writes the answer to a head that took too long.
pub(crate) fn head_late<D: Driver>(talk: &mut Talk<'_, D>) {
    let detail = "The request's head was not complete in time.";
    talk.protocol.drain();
    whole(talk, Problem::new(StatusCode::REQUEST_TIMEOUT, "head-late", detail));
}

/// The answer of a handler that panicked. It tells nothing about the inside.
pub(crate) fn panicked() -> Response {
    let detail = "The server failed while it worked on this request.";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal-error", detail).into_response()
}

/// The answer in the place of a handler that took longer than its route allows.
pub(crate) fn handler_late() -> Response {
    let detail = "The server did not get the answer ready in time. Try again later.";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "handler-late", detail).into_response()
}

fn whole<D: Driver>(talk: &mut Talk<'_, D>, problem: Problem) {
    let response = problem.into_response();
    let bytes = response.body.as_slice().unwrap_or_default();
    write_head(talk, &response, ResponseLength::Exact(bytes.len() as u64));
    talk.protocol.send_data(bytes, talk.link.outbox);
    talk.protocol.finish(std::iter::empty(), talk.link.outbox);
}

fn write_head<D: Driver>(
    talk: &mut Talk<'_, D>,
    response: &Response,
    length: ResponseLength,
) -> BodyMode {
    let date = talk.link.worker.date();
    let status = response.status.as_u16();
    talk.protocol.respond(status, pairs(&response.fields), length, &date, talk.link.outbox)
}

fn pairs(fields: &Fields) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
}
