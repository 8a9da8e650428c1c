//! The gate: who does not answer rightly is not timed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use peregrine_lab_load::generator::{self, Plan, Secured, Watch};
use peregrine_lab_load::question::Question;
use peregrine_lab_model::check::{Check, Outcome};
use peregrine_lab_scenario::{Exchange, Scenario};
use rustls::pki_types::ServerName;

use crate::error::RunError;

/// How long one reply of the gate may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How often an exchange is tried: values that vary are other ones each time.
const TRIES: u64 = 3;

/// How much of a wrong reply is shown, in bytes.
const SHOWN_BYTES: usize = 300;

/// Where a server is asked.
#[derive(Debug, Clone, Copy)]
pub struct Door {
    /// The address.
    pub address: SocketAddr,
    /// Whether TLS is spoken there.
    pub is_tls: bool,
    /// Whether HTTP/2 is spoken there.
    pub is_http2: bool,
}

/// The TLS settings of a client for this server; sessions are resumed if `is_resuming`.
#[must_use]
pub fn secured(is_resuming: bool) -> Secured {
    let server_name = ServerName::try_from("localhost").expect("localhost is a name");
    Secured { server_name, is_resuming }
}

/// Asks the scenario's own exchange and all of its probes. Each is a check about `name`.
///
/// # Errors
///
/// Only what keeps the client itself from going on.
pub fn scenario(name: &str, door: Door, scenario: &Scenario) -> Result<Vec<Check>, RunError> {
    let exchanges = scenario.exchange.iter().chain(&scenario.probes);
    exchanges.map(|exchange| exchange_check(name, door, exchange)).collect()
}

fn exchange_check(name: &str, door: Door, exchange: &Exchange) -> Result<Check, RunError> {
    let host = format!("localhost:{}", door.address.port());
    let question = exchange
        .question(&host, 1)
        .map_err(|error| RunError::Invalid(format!("{}: {error}", exchange.name)))?;
    let question = Arc::new(question);
    let plan = Plan {
        connections: 1,
        requests_max: TRIES,
        duration: TIMEOUT * TRIES as u32,
        timeout: TIMEOUT,
        tls: door.is_tls.then(|| secured(false)),
        is_http2: door.is_http2,
        ..Plan::new(door.address, question.clone())
    };
    let outcome =
        generator::run(&plan, &Watch::default()).map_err(RunError::io(format!("asking {name}")))?;
    let is_right = outcome.is_valid();
    let detail = if is_right {
        format!("{} right answers", outcome.replies)
    } else {
        let is_readable = !door.is_tls && !door.is_http2 && !question.is_websocket;
        let seen = if is_readable { seen(door.address, &question) } else { String::new() };
        format!("{}{seen}", outcome.faults)
    };
    Ok(Check {
        name: format!("answers: {}", exchange.name),
        contender: Some(name.to_owned()),
        outcome: if is_right { Outcome::Passed } else { Outcome::Failed },
        detail,
    })
}

/// What the server says to the question, for whoever has to mend it.
fn seen(address: SocketAddr, question: &Question) -> String {
    let (mut body, mut request) = (Vec::new(), Vec::new());
    question.render(0, true, &mut body, &mut request);
    let reply = (|| -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.write_all(&request)?;
        let mut reply = vec![0; 16 * SHOWN_BYTES];
        let mut length = 0;
        while length < reply.len() {
            match stream.read(&mut reply[length..]) {
                Ok(0) | Err(_) => break,
                Ok(count) => length += count,
            }
        }
        reply.truncate(length);
        Ok(reply)
    })();
    match reply {
        Ok(reply) if reply.is_empty() => "; it said nothing".to_owned(),
        Ok(reply) => {
            let shown = String::from_utf8_lossy(&reply[..reply.len().min(SHOWN_BYTES)]);
            let more = if reply.len() > SHOWN_BYTES { " ..." } else { "" };
            format!("; it said: {:?}{more}", shown.as_ref())
        }
        Err(error) => format!("; {error}"),
    }
}

/// The checks that failed, in one sentence for an error message; none if all passed.
#[must_use]
pub fn failures(checks: &[Check]) -> Option<String> {
    let failed: Vec<String> = checks
        .iter()
        .filter(|check| check.outcome == Outcome::Failed)
        .map(|check| format!("{}: {}", check.name, check.detail))
        .collect();
    (!failed.is_empty()).then(|| failed.join("\n  "))
}
