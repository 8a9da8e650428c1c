//! What the client itself can do, measured against the null server.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::certificate;
use crate::generator::{Ceiling, Plan, Watch, run};
use crate::null::{self, NullServer, RequestEnd, Script};
use crate::schedule::Schedule;
use crate::workload::body_of;

/// How long a calibration asks, unless the run itself is shorter.
const CALIBRATION_TIME: Duration = Duration::from_millis(1000);

/// How long it asks before that, unless the run itself is shorter.
const CALIBRATION_WARMUP: Duration = Duration::from_millis(200);

/// How often a calibration without any reply is repeated, four times as long each time.
const RETRIES_MAX: u32 = 3;

/// What a client's frame of a WebSocket has and a server's has not.
const MASK_BYTES: usize = 4;

/// Runs the plan's client as a closed loop against the null server on `server_cpus` (empty:
/// anywhere). It pays for everything that a request costs the client in the real run: rendering,
/// TLS, new connections, judging. None if only the hash of the right body is known, or if the
/// method is not one that the null server can answer.
///
/// # Errors
///
/// The kernel's, or an error if the null server was not answered rightly.
pub fn calibrate(plan: &Plan, server_cpus: &[usize], watch: &Watch) -> io::Result<Option<Ceiling>> {
    let question = Arc::new(plan.question.frozen());
    let example = question.expected.example(question.values(), 0, question.is_head);
    let Some(reply) = example else { return Ok(None) };
    let (mut usual, mut last) = (Vec::new(), Vec::new());
    question.render(0, false, &mut Vec::new(), &mut usual);
    question.render(0, true, &mut Vec::new(), &mut last);
    let closing = plan.requests_per_connection.map(|after| {
        let place = memchr::memmem::find(&reply, b"\r\n").expect("a reply has lines") + 2;
        let mut closing = reply[..place].to_vec();
        closing.extend_from_slice(b"connection: close\r\n");
        closing.extend_from_slice(&reply[place..]);
        (after, last.len(), closing)
    });
    let folder = tempfile::tempdir()?;
    let tls = match &plan.tls {
        Some(_) => Some(null::tls(&certificate::write(folder.path())?)?),
        None => None,
    };
    let script = if plan.is_http2 {
        let reply = null::frames_of(&reply, question.is_head)?;
        Script { end: RequestEnd::Frames, reply, last: None, tls }
    } else if question.is_websocket {
        let (sent, reply) = (null::message_of(body_of(&usual)), null::message_of(body_of(&reply)));
        let end = RequestEnd::Messages(sent.len() + MASK_BYTES);
        Script { end, reply, last: None, tls }
    } else {
        Script { end: RequestEnd::Bytes(usual.len()), reply, last: closing, tls }
    };
    let server = NullServer::start(script, server_cpus.to_vec())?;
    let mut calibration = Plan {
        address: server.address(),
        question,
        schedule: Schedule::Closed,
        duration: CALIBRATION_TIME.min(plan.duration),
        warmup: CALIBRATION_WARMUP.min(plan.duration),
        requests_max: crate::generator::REQUESTS_MAX,
        ..plan.clone()
    };
    let mut outcome = run(&calibration, watch)?;
    // On a busy machine a short calibration may end before its first reply.
    for _ in 0..RETRIES_MAX {
        if !outcome.is_silent() || outcome.is_partial {
            break;
        }
        calibration.duration *= 4;
        outcome = run(&calibration, watch)?;
    }
    if outcome.is_partial {
        return Ok(None);
    }
    if !outcome.is_valid() {
        let text = format!("the calibration saw faults: {}", outcome.faults);
        return Err(io::Error::other(text));
    }
    Ok(Some(Ceiling { rate: outcome.rate(), client_us_per_reply: outcome.client_us_per_reply() }))
}
