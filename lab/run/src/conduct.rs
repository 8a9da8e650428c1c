//! The conduct of a server beyond its answers: what every HTTP/1.1 server owes its clients.
//!
//! Some of it voids a timing: who breaks up under fragments or pipelining would be timed for
//! something that it does not do. The rest is told and stays a remark, because the founding
//! systems differ in it and a reader should see that.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use peregrine_lab_load::client::reply::{Parsed, parse_reply};
use peregrine_lab_load::question::Question;
use peregrine_lab_model::check::{Check, Outcome};

/// How long a reply may take.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause between the fragments of a head.
const FRAGMENT_PAUSE: Duration = Duration::from_millis(30);

/// The most bytes that the replies of one conversation have: two of the largest that scenarios ask for.
const REPLY_BYTES_MAX: usize = 32 << 20;

/// What came back.
#[derive(Debug, Default)]
struct Heard {
    bytes: Vec<u8>,
    /// Whether the server closed the connection.
    is_closed: bool,
}

/// One rule: its name, whether breaking it voids a timing, and how it is tried.
struct Rule {
    name: &'static str,
    is_voiding: bool,
    test: fn(&Visit) -> io::Result<Result<String, String>>,
}

/// The rule that voids only where a load makes connections end: who ignores it would be spared
/// their cost.
const CLOSE: &str = "close is obeyed";

const RULES: [Rule; 8] = [
    Rule { name: "a head in fragments", is_voiding: true, test: fragments },
    Rule { name: "two requests sent together", is_voiding: true, test: pipelined },
    Rule { name: CLOSE, is_voiding: false, test: close },
    Rule { name: "Date is sent", is_voiding: false, test: date },
    Rule { name: "HEAD has no body", is_voiding: false, test: head },
    Rule { name: "an unknown method is refused", is_voiding: false, test: unknown_method },
    Rule { name: "a request without Host is refused", is_voiding: false, test: no_host },
    Rule { name: "two framings at once are not believed", is_voiding: false, test: smuggling },
];

/// A server, and a question that it answers rightly.
struct Visit {
    address: SocketAddr,
    request: Vec<u8>,
    /// The same as the last one of its connection: with `Connection: close`.
    last: Vec<u8>,
}

/// Tries every rule on a server that answers `question` rightly. Each is a check about `name`.
/// `is_closing` says that the load to come ends its connections.
#[must_use]
pub fn checks(
    name: &str,
    address: SocketAddr,
    question: &Question,
    is_closing: bool,
) -> Vec<Check> {
    let (mut request, mut last) = (Vec::new(), Vec::new());
    question.render(0, false, &mut Vec::new(), &mut request);
    question.render(0, true, &mut Vec::new(), &mut last);
    let visit = Visit { address, request, last };
    RULES
        .iter()
        .map(|rule| {
            let result = (rule.test)(&visit).unwrap_or_else(|error| Err(error.to_string()));
            let is_voiding = rule.is_voiding || (is_closing && rule.name == CLOSE);
            let (outcome, detail) = match (result, is_voiding) {
                (Ok(detail), _) => (Outcome::Passed, detail),
                (Err(detail), true) => (Outcome::Failed, detail),
                (Err(detail), false) => (Outcome::Warned, detail),
            };
            Check {
                name: format!("conduct: {}", rule.name),
                contender: Some(name.to_owned()),
                outcome,
                detail,
            }
        })
        .collect()
}

impl Visit {
    fn stream(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&self.address, READ_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        stream.set_write_timeout(Some(READ_TIMEOUT))?;
        Ok(stream)
    }

    /// Sends the parts with pauses between them and listens until `replies` replies are whole, the
    /// server closes, or it is silent for too long.
    fn talk(&self, parts: &[&[u8]], replies: usize, is_head: bool) -> io::Result<Heard> {
        Ok(self.converse(parts, replies, is_head)?.0)
    }

    /// The same, and waits whether the server closes after the last reply.
    fn talk_to_end(&self, parts: &[&[u8]], replies: usize) -> io::Result<Heard> {
        let (mut heard, mut stream) = self.converse(parts, replies, false)?;
        if !heard.is_closed {
            heard.is_closed = matches!(stream.read(&mut [0; 1024]), Ok(0));
        }
        Ok(heard)
    }

    fn converse(
        &self,
        parts: &[&[u8]],
        replies: usize,
        is_head: bool,
    ) -> io::Result<(Heard, TcpStream)> {
        let mut stream = self.stream()?;
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                std::thread::sleep(FRAGMENT_PAUSE);
            }
            // A server may close before it has read everything; what it said still counts.
            if stream.write_all(part).is_err() {
                break;
            }
        }
        let mut heard = Heard::default();
        let mut room = vec![0; 64 << 10];
        while statuses(&heard.bytes, is_head).len() < replies && heard.bytes.len() < REPLY_BYTES_MAX
        {
            match stream.read(&mut room) {
                Ok(0) => {
                    heard.is_closed = true;
                    break;
                }
                Ok(count) => heard.bytes.extend_from_slice(&room[..count]),
                Err(error) if is_silence(&error) => break,
                Err(_) => {
                    heard.is_closed = true;
                    break;
                }
            }
        }
        Ok((heard, stream))
    }

    /// The request with another method.
    fn with_method(&self, method: &str) -> Vec<u8> {
        let end = self.last.iter().position(|&byte| byte == b' ').unwrap_or(0);
        [method.as_bytes(), &self.last[end..]].concat()
    }
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// The status codes of the whole replies at the beginning of the bytes.
fn statuses(bytes: &[u8], is_head: bool) -> Vec<u16> {
    let mut statuses = Vec::new();
    let mut rest = bytes;
    while let Ok(Parsed::Whole(count, reply)) = parse_reply(rest, is_head) {
        statuses.push(reply.status);
        rest = &rest[count..];
    }
    statuses
}

fn fragments(visit: &Visit) -> io::Result<Result<String, String>> {
    let (first, rest) = visit.last.split_at(visit.last.len().min(7));
    let (second, third) = rest.split_at(rest.len() / 2);
    let heard = visit.talk(&[first, second, third], 1, false)?;
    Ok(match statuses(&heard.bytes, false)[..] {
        [status] if status < 300 => Ok(format!("answered with {status}")),
        ref other => Err(format!("the replies were {other:?}")),
    })
}

fn pipelined(visit: &Visit) -> io::Result<Result<String, String>> {
    let both = [visit.request.as_slice(), &visit.last].concat();
    let heard = visit.talk(&[&both], 2, false)?;
    Ok(match statuses(&heard.bytes, false)[..] {
        [one, other] if one < 300 && other < 300 => Ok("both were answered".to_owned()),
        ref other => Err(format!("the replies were {other:?}")),
    })
}

fn close(visit: &Visit) -> io::Result<Result<String, String>> {
    let heard = visit.talk_to_end(&[&visit.last], 1)?;
    Ok(match heard.is_closed {
        true => Ok("it closed after the reply".to_owned()),
        false => Err("it left the connection open after Connection: close".to_owned()),
    })
}

fn date(visit: &Visit) -> io::Result<Result<String, String>> {
    let heard = visit.talk(&[&visit.last], 1, false)?;
    let has_date = match parse_reply(&heard.bytes, false) {
        Ok(Parsed::Whole(_, reply)) => reply.field("date").is_some(),
        _ => return Ok(Err("there was no reply".to_owned())),
    };
    Ok(match has_date {
        true => Ok("it was there".to_owned()),
        // RFC 9110 §6.6.1: an origin server with a clock MUST generate Date.
        false => Err("it is missing (RFC 9110 §6.6.1)".to_owned()),
    })
}

fn head(visit: &Visit) -> io::Result<Result<String, String>> {
    let request = visit.with_method("HEAD");
    let heard = visit.talk(&[&request], 1, true)?;
    let reply = match parse_reply(&heard.bytes, true) {
        Ok(Parsed::Whole(count, reply)) => (count, reply.status),
        _ => return Ok(Err("there was no reply".to_owned())),
    };
    Ok(match reply {
        (count, status) if count == heard.bytes.len() => Ok(format!("{status} without a body")),
        (count, status) => {
            Err(format!("{status} with {} bytes of body", heard.bytes.len() - count))
        }
    })
}

fn unknown_method(visit: &Visit) -> io::Result<Result<String, String>> {
    let heard = visit.talk(&[&visit.with_method("BREW")], 1, false)?;
    Ok(refused(&heard))
}

fn no_host(visit: &Visit) -> io::Result<Result<String, String>> {
    let text = String::from_utf8_lossy(&visit.last);
    let lines = text.split_inclusive("\r\n");
    let without: String =
        lines.filter(|line| !line.to_ascii_lowercase().starts_with("host:")).collect();
    // RFC 9112 §3.2: a server MUST respond with 400 to a request that lacks Host.
    Ok(refused(&visit.talk(&[without.as_bytes()], 1, false)?))
}

fn smuggling(visit: &Visit) -> io::Result<Result<String, String>> {
    // RFC 9112 §6.1: such a message ought to be handled as an error, or the connection closed.
    let target = visit.request.split(|&byte| byte == b' ').nth(1).unwrap_or(b"/");
    let request = [
        b"POST ".as_slice(),
        target,
        b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\
          Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        &visit.request,
    ]
    .concat();
    let heard = visit.talk_to_end(&[&request], 2)?;
    let answers = statuses(&heard.bytes, false);
    Ok(match answers[..] {
        [status] if status >= 400 && heard.is_closed => Ok(format!("refused with {status}")),
        [] if heard.is_closed => Ok("the connection was closed".to_owned()),
        [_] if heard.is_closed => Ok("answered once, then closed".to_owned()),
        ref other => Err(format!("the connection lived on; the replies were {other:?}")),
    })
}

fn refused(heard: &Heard) -> Result<String, String> {
    match statuses(&heard.bytes, false)[..] {
        [status] if status >= 400 => Ok(format!("refused with {status}")),
        [] if heard.is_closed => Ok("the connection was closed".to_owned()),
        [] => Err("there was no reply".to_owned()),
        ref other => Err(format!("the replies were {other:?}")),
    }
}
