//! Counts of handler calls, where a contender offers them: whether each reply was made by a call.
//!
//! A contender that answers `GET /lab/calls` with a decimal number says how many requests its
//! handlers have seen, without those for that path. What it counts in a look must be what the
//! client sent; a server that answers from a cache of replies counts less.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use peregrine_lab_load::client::reply::{Parsed, parse};
use peregrine_lab_model::check::{Check, Outcome};

const NAME: &str = "each reply is a handler's call";

const TIMEOUT: Duration = Duration::from_secs(2);

const REQUEST: &[u8] = b"GET /lab/calls HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// How often handlers were called so far; none if the contender does not count.
#[must_use]
pub fn read(address: SocketAddr) -> Option<u64> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    stream.write_all(REQUEST).ok()?;
    let mut bytes = Vec::new();
    // The reply may be whole before the server closes; silence then is no error.
    let _ = stream.take(64 << 10).read_to_end(&mut bytes);
    match parse(&bytes) {
        Ok(Parsed::Whole(_, reply)) if reply.status == 200 => {
            std::str::from_utf8(&reply.body).ok()?.trim().parse().ok()
        }
        _ => None,
    }
}

/// Compares the counts before and after a look with what the client sent in it.
#[must_use]
pub fn check(name: &str, before: Option<u64>, after: Option<u64>, sent: u64) -> Check {
    let (outcome, detail) = match (before, after) {
        (Some(before), Some(after)) if after - before.min(after) == sent => {
            (Outcome::Passed, format!("{sent} sent, {sent} calls"))
        }
        (Some(before), Some(after)) => {
            let calls = after.saturating_sub(before);
            (Outcome::Failed, format!("{sent} sent, {calls} calls"))
        }
        _ => (Outcome::Skipped, "the contender does not count its calls".to_owned()),
    };
    Check { name: NAME.to_owned(), contender: Some(name.to_owned()), outcome, detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_calls_than_requests_fail_and_no_counter_is_no_failure() {
        assert_eq!(check("a", Some(5), Some(105), 100).outcome, Outcome::Passed);
        assert_eq!(check("a", Some(5), Some(104), 100).outcome, Outcome::Failed);
        assert_eq!(check("a", None, Some(104), 100).outcome, Outcome::Skipped);
    }
}
