//! How a line of the access log looks.
//!
//! Whatever a peer sends stands in a line escaped, so that it can neither end the line nor its own place in it.

use crate::counts::{Key, method_name};
use crate::span::split_port;
use crate::told::Told;
use peregrine_proto::{Date, Version};
use peregrine_web::client::Client;
use peregrine_web::connection::Peer;
use peregrine_web::head::Head;
use peregrine_web::trace::{Hex, Place};
use std::io::Write as _;
use std::net::IpAddr;
use std::time::Duration;

/// Of what a peer sends, so much stands in a line at most.
const FIELD_BYTES_MAX: usize = 8 * 1024;

/// How a line of the access log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// The Common Log Format, Apache's `%h %l %u %t "%r" %>s %b`.
    Common,
    /// Common with `"%{Referer}i" "%{User-agent}i"`: what most tools read.
    #[default]
    Combined,
    /// A JSON object, with the names of OpenTelemetry.
    Json,
}

/// A second, in both forms that lines have it in.
#[derive(Clone, Copy)]
pub(super) struct Time {
    second: u64,
    /// `10/Oct/2000:13:55:36 +0000`.
    clf: [u8; 26],
    /// `2000-10-10T13:55:36`.
    iso: [u8; 19],
}

impl Time {
    pub(super) fn at(unix: Duration) -> Self {
        let second = unix.as_secs();
        // `Sun, 06 Nov 1994 08:49:37 GMT`
        let date = Date::from_unix_seconds(second);
        let date = date.as_bytes();
        let (mut clf, mut iso) = (*b"00/xxx/0000:00:00:00 +0000", *b"0000-00-00T00:00:00");
        clf[..2].copy_from_slice(&date[5..7]);
        clf[3..6].copy_from_slice(&date[8..11]);
        clf[7..11].copy_from_slice(&date[12..16]);
        clf[12..20].copy_from_slice(&date[17..25]);
        let months = b"JanFebMarAprMayJunJulAugSepOctNovDec";
        let month = (1..).zip(months.chunks(3)).find(|(_, name)| **name == date[8..11]);
        let month: u8 = month.map_or(1, |(month, _)| month);
        iso[..4].copy_from_slice(&date[12..16]);
        iso[5..7].copy_from_slice(&[b'0' + month / 10, b'0' + month % 10]);
        iso[8..10].copy_from_slice(&date[5..7]);
        iso[11..19].copy_from_slice(&date[17..25]);
        Self { second, clf, iso }
    }

    pub(super) fn is_of(&self, unix: Duration) -> bool {
        self.second == unix.as_secs()
    }
}

/// All that a line is made of.
pub(super) struct Entry<'e> {
    pub(super) key: &'e Key,
    pub(super) told: &'e Told,
    /// When the request's head was there, since the Unix epoch.
    pub(super) began: Duration,
    pub(super) took: Duration,
    /// The second of that.
    pub(super) time: Time,
    pub(super) route: Option<&'e str>,
    pub(super) leaves_query_out: bool,
}

impl Entry<'_> {
    /// Writes the line, with its end.
    pub(super) fn write(&self, form: Form, out: &mut Vec<u8>) {
        match form {
            Form::Common => self.write_common(out),
            Form::Combined => {
                self.write_common(out);
                for name in ["referer", "user-agent"] {
                    out.extend_from_slice(b" \"");
                    match self.head().and_then(|head| head.field(name)) {
                        Some(value) if !value.is_empty() => escape(self.shown(name, value), out),
                        _ => out.push(b'-'),
                    }
                    out.push(b'"');
                }
            }
            Form::Json => self.write_json(out),
        }
        out.push(b'\n');
    }

    fn head(&self) -> Option<&Head> {
        self.told.head.as_ref()
    }

    fn client(&self) -> Option<Client<'_>> {
        Some(Client::of(self.head()?, self.told.connection.as_deref()?))
    }

    /// The client's address, without a port.
    fn address(&self) -> Option<IpAddr> {
        match self.client() {
            Some(client) => client.ip(),
            None => Some(self.told.connection.as_deref()?.peer.tcp()?.ip().to_canonical()),
        }
    }

    fn is_unix(&self) -> bool {
        let peer = self.told.connection.as_deref().map(|connection| &connection.peer);
        matches!(peer, Some(Peer::Unix { .. }))
    }

    fn write_common(&self, out: &mut Vec<u8>) {
        match self.address() {
            Some(address) => print(out, format_args!("{address}")),
            None if self.is_unix() => out.extend_from_slice(b"unix:"),
            None => out.push(b'-'),
        }
        out.extend_from_slice(b" - - [");
        out.extend_from_slice(&self.time.clf);
        out.extend_from_slice(b"] \"");
        self.write_request_line(out);
        out.extend_from_slice(b"\" ");
        match self.key.status {
            0 => out.push(b'-'),
            status => decimal(u64::from(status), out),
        }
        out.push(b' ');
        match self.told.sent {
            0 => out.push(b'-'),
            sent => decimal(sent, out),
        }
    }

    /// What a line shows of a field. That which names another page has that one's query, often of this site.
    fn shown<'v>(&self, name: &str, value: &'v [u8]) -> &'v [u8] {
        if name == "referer" { self.without_query(value) } else { value }
    }

    /// Text as far as its query, where queries are left out.
    fn without_query<'v>(&self, text: &'v [u8]) -> &'v [u8] {
        let query = text.iter().position(|byte| *byte == b'?').filter(|_| self.leaves_query_out);
        &text[..query.unwrap_or(text.len())]
    }

    /// The first line of the request, or what came in its place.
    fn write_request_line(&self, out: &mut Vec<u8>) {
        let Some(head) = self.head() else {
            match &self.told.refused[..] {
                [] => out.push(b'-'),
                line => escape(self.without_query(line), out),
            }
            return;
        };
        escape(head.method_name().as_bytes(), out);
        out.push(b' ');
        escape(self.without_query(target(head)), out);
        out.extend_from_slice(match head.index().version {
            Version::Http10 => b" HTTP/1.0",
            Version::Http11 => b" HTTP/1.1",
            Version::Http2 => b" HTTP/2.0",
        });
    }

    fn write_json(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"time\":\"");
        out.extend_from_slice(&self.time.iso);
        print(out, format_args!(".{:06}Z\"", self.began.subsec_micros()));
        match self.address() {
            Some(address) => print(out, format_args!(",\"client.address\":\"{address}\"")),
            None if self.is_unix() => text("client.address", b"unix:", out),
            None => {}
        }
        self.write_json_request(out);
        if let Some(route) = self.route {
            text("http.route", route.as_bytes(), out);
        }
        if self.key.status != 0 {
            number("http.response.status_code", u64::from(self.key.status), out);
        }
        number("http.request.body.size", self.told.received, out);
        number("http.response.body.size", self.told.sent, out);
        let (seconds, micros) = (self.took.as_secs(), self.took.subsec_micros());
        print(out, format_args!(",\"http.server.request.duration\":{seconds}.{micros:06}"));
        let error = self.key.error_type();
        if !error.is_empty() {
            text("error.type", error.as_bytes(), out);
        }
        if let Some(trace) = self.told.trace.as_ref().map(Place::context) {
            let (trace_id, span_id) = (trace.trace_id(), trace.span_id());
            print(out, format_args!(",\"trace_id\":\"{}\"", Hex(&trace_id)));
            print(out, format_args!(",\"span_id\":\"{}\"", Hex(&span_id)));
        }
        out.push(b'}');
    }

    /// What the request says of itself.
    fn write_json_request(&self, out: &mut Vec<u8>) {
        let Some(head) = self.head() else {
            if !self.told.refused.is_empty() {
                text("http.request.line", self.without_query(&self.told.refused), out);
            }
            return;
        };
        text("http.request.method", method_name(self.key.method as usize).as_bytes(), out);
        if head.index().method.name().is_none() {
            text("http.request.method_original", head.method_name().as_bytes(), out);
        }
        if let Some(client) = self.client() {
            text("url.scheme", client.scheme().as_bytes(), out);
            let host = client.host();
            let (address, port) = split_port(&host);
            if !address.is_empty() {
                text("server.address", address.as_bytes(), out);
            }
            if let Some(port) = port {
                number("server.port", u64::from(port), out);
            }
        }
        text("url.path", head.path().as_bytes(), out);
        if let Some(query) = head.query().filter(|_| !self.leaves_query_out) {
            text("url.query", query.as_bytes(), out);
        }
        text("network.protocol.version", self.key.version_name().as_bytes(), out);
        for (name, field) in
            [("user_agent.original", "user-agent"), ("http.request.header.referer", "referer")]
        {
            if let Some(value) = head.field(field) {
                text(name, self.shown(field, value), out);
            }
        }
    }
}

/// The target as HTTP/1.1 has it. Over HTTP/2 it is kept with its scheme and authority.
fn target(head: &Head) -> &[u8] {
    let whole = head.slice(head.index().target);
    if head.index().version != Version::Http2 {
        return whole;
    }
    let path = head.path().as_bytes();
    let length = path.len() + head.query().map_or(0, |query| 1 + query.len());
    let origin = whole.len().checked_sub(length).map(|start| &whole[start..]);
    origin.filter(|origin| !path.is_empty() && origin.starts_with(path)).unwrap_or(whole)
}

fn print(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("memory takes everything");
}

fn decimal(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b"0123456789"[(number % 10) as usize];
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// The beginning of `value`, as far as there is room for it.
fn bounded(value: &[u8]) -> &[u8] {
    &value[..value.len().min(FIELD_BYTES_MAX)]
}

/// Apache's `ap_escape_logitem`: `\"` and `\\`, the letters that C has for control characters, and `\xhh` for all
/// that is no printable ASCII.
fn escape(value: &[u8], out: &mut Vec<u8>) {
    for byte in bounded(value) {
        let letter = match *byte {
            b'"' | b'\\' => *byte,
            b'\x08' => b'b',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            b'\x0b' => b'v',
            b' '..=b'~' => {
                out.push(*byte);
                continue;
            }
            other => {
                let digit = |value: u8| b"0123456789abcdef"[usize::from(value & 15)];
                out.extend_from_slice(&[b'\\', b'x', digit(other >> 4), digit(other)]);
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', letter]);
    }
}

fn number(name: &str, value: u64, out: &mut Vec<u8>) {
    print(out, format_args!(",\"{name}\":"));
    decimal(value, out);
}

/// A member whose value is text. What is not UTF-8 is replaced (U+FFFD), and what some readers take for the end of a
/// line, or terminals for orders, is escaped.
fn text(name: &str, value: &[u8], out: &mut Vec<u8>) {
    print(out, format_args!(",\"{name}\":\""));
    for character in String::from_utf8_lossy(bounded(value)).chars() {
        match character {
            '"' | '\\' => print(out, format_args!("\\{character}")),
            '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{2028}' | '\u{2029}' => {
                print(out, format_args!("\\u{:04x}", u32::from(character)));
            }
            other => out.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests;
