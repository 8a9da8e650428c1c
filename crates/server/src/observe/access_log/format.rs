//! The formats of access log lines.
//!
//! Everything that a peer sends is escaped, so that a peer can neither end a line nor end a field
//! within a line.

use crate::observe::metrics::{RequestAttributes, method_name};
use crate::observe::span::split_host_port;
use peregrine_proto::{Date, Version};
use peregrine_web::client::ClientInfo;
use peregrine_web::connection::{ConnectionAddr, ConnectionInfo};
use peregrine_web::head::RequestHead;
use peregrine_web::trace::{Hex, LazyTraceContext};
use std::io::Write as _;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

/// A line contains at most this many bytes of each value that a peer sent.
const FIELD_BYTES_MAX: usize = 8 * 1024;

/// The format of access log lines.
#[doc(alias = "log_format")]
#[doc(alias = "Logger")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessLogFormat {
    /// The Common Log Format, Apache's `%h %l %u %t "%r" %>s %b`.
    Common,
    /// The Common Log Format plus `"%{Referer}i" "%{User-agent}i"`. Most tools can read it.
    #[default]
    Combined,
    /// A JSON object with OpenTelemetry attribute names.
    Json,
}

/// A whole second as text, in the date formats of the CLF and of JSON.
#[derive(Clone, Copy)]
pub(super) struct LogTimestamp {
    second: u64,
    /// `10/Oct/2000:13:55:36 +0000`.
    clf: [u8; 26],
    /// `2000-10-10T13:55:36`.
    iso: [u8; 19],
}

impl LogTimestamp {
    pub(super) fn from_unix(unix_time: Duration) -> Self {
        let second = unix_time.as_secs();
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

    /// Returns whether `unix_time` is in this second.
    pub(super) fn covers(&self, unix_time: Duration) -> bool {
        self.second == unix_time.as_secs()
    }
}

/// Data about a request for the access log, in addition to its [`RequestAttributes`]. Metrics use
/// the body sizes too.
#[derive(Default)]
pub(crate) struct AccessLogRecord {
    /// The request's head, if it was valid and there is an access log.
    pub(crate) head: Option<RequestHead>,
    /// The connection, if there is an access log.
    pub(crate) connection: Option<Rc<ConnectionInfo>>,
    /// The first line of an invalid request.
    pub(crate) invalid_request_line: Vec<u8>,
    /// The request's trace context.
    pub(crate) trace_context: Option<LazyTraceContext>,
    /// How many bytes of the request's body were received.
    pub(crate) request_body_bytes: u64,
    /// How many bytes of the response's body were written.
    pub(crate) response_body_bytes: u64,
}

/// A line of the access log before it is formatted.
pub(super) struct AccessLogLine<'e> {
    pub(super) attributes: &'e RequestAttributes,
    pub(super) record: &'e AccessLogRecord,
    /// The time since the Unix epoch when the request's head was complete.
    pub(super) started_at: Duration,
    pub(super) duration: Duration,
    /// The whole second of `started_at`, as text.
    pub(super) time: LogTimestamp,
    pub(super) route: Option<&'e str>,
    pub(super) omit_query: bool,
}

impl AccessLogLine<'_> {
    /// Writes the line, with its line feed.
    pub(super) fn write(&self, format: AccessLogFormat, out: &mut Vec<u8>) {
        match format {
            AccessLogFormat::Common => self.write_common(out),
            AccessLogFormat::Combined => {
                self.write_common(out);
                for name in ["referer", "user-agent"] {
                    out.extend_from_slice(b" \"");
                    match self.head().and_then(|head| head.header_bytes(name)) {
                        Some(value) if !value.is_empty() => escape(self.redacted(name, value), out),
                        _ => out.push(b'-'),
                    }
                    out.push(b'"');
                }
            }
            AccessLogFormat::Json => self.write_json(out),
        }
        out.push(b'\n');
    }

    fn head(&self) -> Option<&RequestHead> {
        self.record.head.as_ref()
    }

    fn client(&self) -> Option<ClientInfo<'_>> {
        Some(ClientInfo::new(self.head()?, self.record.connection.as_deref()?))
    }

    /// The client's address, without a port.
    fn address(&self) -> Option<IpAddr> {
        match self.client() {
            Some(client) => client.ip(),
            // An invalid request has no header fields that could name the client.
            None => {
                Some(self.record.connection.as_deref()?.peer.socket_addr()?.ip().to_canonical())
            }
        }
    }

    fn is_unix(&self) -> bool {
        let peer = self.record.connection.as_deref().map(|connection| &connection.peer);
        matches!(peer, Some(ConnectionAddr::Unix { .. }))
    }

    fn write_common(&self, out: &mut Vec<u8>) {
        match self.address() {
            Some(address) => push_fmt(out, format_args!("{address}")),
            None if self.is_unix() => out.extend_from_slice(b"unix:"),
            None => out.push(b'-'),
        }
        out.extend_from_slice(b" - - [");
        out.extend_from_slice(&self.time.clf);
        out.extend_from_slice(b"] \"");
        self.write_request_line(out);
        out.extend_from_slice(b"\" ");
        match self.attributes.status {
            0 => out.push(b'-'),
            status => push_decimal(u64::from(status), out),
        }
        out.push(b' ');
        match self.record.response_body_bytes {
            0 => out.push(b'-'),
            sent => push_decimal(sent, out),
        }
    }

    /// The part of the value of the field `name` that is logged. If queries are omitted, the query
    /// of the URL in `Referer` is omitted too, because that URL often belongs to the same site.
    fn redacted<'v>(&self, name: &str, value: &'v [u8]) -> &'v [u8] {
        if name == "referer" { self.without_query(value) } else { value }
    }

    /// Returns `text` up to its query, if queries are omitted.
    fn without_query<'v>(&self, text: &'v [u8]) -> &'v [u8] {
        let query = text.iter().position(|byte| *byte == b'?').filter(|_| self.omit_query);
        &text[..query.unwrap_or(text.len())]
    }

    /// Writes the request line, or the first line of an invalid request.
    fn write_request_line(&self, out: &mut Vec<u8>) {
        let Some(head) = self.head() else {
            match &self.record.invalid_request_line[..] {
                [] => out.push(b'-'),
                line => escape(self.without_query(line), out),
            }
            return;
        };
        escape(head.method_str().as_bytes(), out);
        out.push(b' ');
        escape(self.without_query(origin_form(head)), out);
        out.extend_from_slice(match head.index().version {
            Version::Http10 => b" HTTP/1.0",
            Version::Http11 => b" HTTP/1.1",
            Version::Http2 => b" HTTP/2.0",
        });
    }

    fn write_json(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"time\":\"");
        out.extend_from_slice(&self.time.iso);
        push_fmt(out, format_args!(".{:06}Z\"", self.started_at.subsec_micros()));
        match self.address() {
            Some(address) => push_fmt(out, format_args!(",\"client.address\":\"{address}\"")),
            None if self.is_unix() => push_json_string("client.address", b"unix:", out),
            None => {}
        }
        self.write_json_request(out);
        if let Some(route) = self.route {
            push_json_string("http.route", route.as_bytes(), out);
        }
        if self.attributes.status != 0 {
            push_json_number("http.response.status_code", u64::from(self.attributes.status), out);
        }
        push_json_number("http.request.body.size", self.record.request_body_bytes, out);
        push_json_number("http.response.body.size", self.record.response_body_bytes, out);
        let (seconds, micros) = (self.duration.as_secs(), self.duration.subsec_micros());
        push_fmt(out, format_args!(",\"http.server.request.duration\":{seconds}.{micros:06}"));
        let error = self.attributes.error_type();
        if !error.is_empty() {
            push_json_string("error.type", error.as_bytes(), out);
        }
        if let Some(trace) = self.record.trace_context.as_ref().map(LazyTraceContext::context) {
            let (trace_id, span_id) = (trace.trace_id(), trace.span_id());
            push_fmt(out, format_args!(",\"trace_id\":\"{}\"", Hex(&trace_id)));
            push_fmt(out, format_args!(",\"span_id\":\"{}\"", Hex(&span_id)));
        }
        out.push(b'}');
    }

    /// Writes the members that come from the request's head.
    fn write_json_request(&self, out: &mut Vec<u8>) {
        let Some(head) = self.head() else {
            if !self.record.invalid_request_line.is_empty() {
                push_json_string(
                    "http.request.line",
                    self.without_query(&self.record.invalid_request_line),
                    out,
                );
            }
            return;
        };
        push_json_string(
            "http.request.method",
            method_name(self.attributes.method as usize).as_bytes(),
            out,
        );
        if head.index().method.name().is_none() {
            push_json_string("http.request.method_original", head.method_str().as_bytes(), out);
        }
        if let Some(client) = self.client() {
            push_json_string("url.scheme", client.scheme().as_bytes(), out);
            let host = client.host();
            let (address, port) = split_host_port(&host);
            if !address.is_empty() {
                push_json_string("server.address", address.as_bytes(), out);
            }
            if let Some(port) = port {
                push_json_number("server.port", u64::from(port), out);
            }
        }
        push_json_string("url.path", head.path().as_bytes(), out);
        if let Some(query) = head.query().filter(|_| !self.omit_query) {
            push_json_string("url.query", query.as_bytes(), out);
        }
        push_json_string(
            "network.protocol.version",
            self.attributes.version_name().as_bytes(),
            out,
        );
        for (name, field) in
            [("user_agent.original", "user-agent"), ("http.request.header.referer", "referer")]
        {
            if let Some(value) = head.header_bytes(field) {
                push_json_string(name, self.redacted(field, value), out);
            }
        }
    }
}

/// The request target as an HTTP/1.1 client sends it. An HTTP/2 target is stored with its scheme
/// and authority, which are left out here.
fn origin_form(head: &RequestHead) -> &[u8] {
    let target = head.slice(head.index().target);
    if head.index().version != Version::Http2 {
        return target;
    }
    let path = head.path().as_bytes();
    let length = path.len() + head.query().map_or(0, |query| 1 + query.len());
    let suffix = target.len().checked_sub(length).map(|start| &target[start..]);
    suffix.filter(|suffix| !path.is_empty() && suffix.starts_with(path)).unwrap_or(target)
}

fn push_fmt(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a Vec cannot fail");
}

fn push_decimal(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b"0123456789"[(number % 10) as usize];
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

/// The beginning of `value`, up to the length limit.
fn truncated(value: &[u8]) -> &[u8] {
    &value[..value.len().min(FIELD_BYTES_MAX)]
}

/// Escapes a value as Apache's `ap_escape_logitem` does: `\"` and `\\`, C escapes for control
/// characters that have one, and `\xhh` for all other bytes except printable ASCII.
fn escape(value: &[u8], out: &mut Vec<u8>) {
    for byte in truncated(value) {
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

fn push_json_number(name: &str, value: u64, out: &mut Vec<u8>) {
    push_fmt(out, format_args!(",\"{name}\":"));
    push_decimal(value, out);
}

/// Writes a JSON member with a text value. Invalid UTF-8 is replaced with U+FFFD. Characters that
/// some readers treat as line ends, or terminals as control codes, are escaped.
fn push_json_string(name: &str, value: &[u8], out: &mut Vec<u8>) {
    push_fmt(out, format_args!(",\"{name}\":\""));
    for character in String::from_utf8_lossy(truncated(value)).chars() {
        match character {
            '"' | '\\' => push_fmt(out, format_args!("\\{character}")),
            '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{2028}' | '\u{2029}' => {
                push_fmt(out, format_args!("\\u{:04x}", u32::from(character)));
            }
            other => out.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::ErrorType;
    use peregrine_proto::{Limits, Method, RequestLine};
    use peregrine_web::TrustedProxies;
    use peregrine_web::trace::TraceContext;
    use std::sync::Arc;

    /// 10 October 2000, 13:55:36 UTC, the date in Apache's documentation.
    const STARTED_AT: Duration = Duration::new(971_186_136, 250_000_000);

    fn head(target: &str, version: Version, fields: &[(&str, &[u8])]) -> RequestHead {
        let (method, authority, target) = (&b"GET"[..], &b""[..], target.as_bytes());
        let line = RequestLine { method, scheme: None, authority, target, version };
        let fields = fields.iter().map(|(name, value)| (name.as_bytes(), *value));
        let fields = fields.chain([(&b"host"[..], &b"birds.example:8080"[..])]);
        RequestHead::build(&Limits::default(), &line, fields).expect("a valid head")
    }

    fn record(head: Option<RequestHead>, peer: &str) -> AccessLogRecord {
        let peer = match peer {
            "unix" => ConnectionAddr::Unix { path: None, credentials: None },
            "" => ConnectionAddr::None,
            address => ConnectionAddr::Tcp(address.parse().expect("an address")),
        };
        let connection = ConnectionInfo { peer, ..ConnectionInfo::default() };
        AccessLogRecord {
            head,
            connection: Some(Rc::new(connection)),
            response_body_bytes: 2326,
            ..AccessLogRecord::default()
        }
    }

    fn attributes(status: u16, version: Version) -> RequestAttributes {
        RequestAttributes { method: Method::Get, status, version, ..RequestAttributes::default() }
    }

    fn line(
        format: AccessLogFormat,
        attributes: &RequestAttributes,
        record: &AccessLogRecord,
        omit_query: bool,
    ) -> String {
        let duration = Duration::from_micros(1_500_042);
        let time = LogTimestamp::from_unix(STARTED_AT);
        let route = Some("/birds/{id}");
        let entry = AccessLogLine {
            attributes,
            record,
            started_at: STARTED_AT,
            duration,
            time,
            route,
            omit_query,
        };
        let mut out = Vec::new();
        entry.write(format, &mut out);
        String::from_utf8(out).expect("every format is text")
    }

    #[test]
    fn lines_match_apaches_format() {
        let request = |peer: &str| record(Some(head("/apache_pb.gif", Version::Http10, &[])), peer);
        let common = |peer: &str| {
            format!(
                "{peer} - - [10/Oct/2000:13:55:36 +0000] \"GET /apache_pb.gif HTTP/1.0\" 200 2326\n"
            )
        };
        let attributes = attributes(200, Version::Http10);
        for (peer, expected) in [
            ("127.0.0.1:99", "127.0.0.1"),
            ("[2001:db8::1]:99", "2001:db8::1"),
            ("[::ffff:192.0.2.1]:99", "192.0.2.1"),
            ("unix", "unix:"),
            ("", "-"),
        ] {
            assert_eq!(
                line(AccessLogFormat::Common, &attributes, &request(peer), false),
                common(expected)
            );
        }
        let combined =
            line(AccessLogFormat::Combined, &attributes, &request("127.0.0.1:99"), false);
        assert_eq!(combined, format!("{} \"-\" \"-\"\n", common("127.0.0.1").trim_end()));
    }

    #[test]
    fn missing_values_are_written_as_dashes() {
        let mut record = record(None, "192.0.2.1:9");
        record.response_body_bytes = 0;
        let nothing = attributes(0, Version::Http11);
        let common = line(AccessLogFormat::Common, &nothing, &record, false);
        assert_eq!(common, "192.0.2.1 - - [10/Oct/2000:13:55:36 +0000] \"-\" - -\n");
        let combined = line(AccessLogFormat::Combined, &nothing, &record, false);
        assert!(combined.ends_with(" \"-\" - - \"-\" \"-\"\n"), "{combined}");
    }

    #[test]
    fn versions_and_targets_are_logged_as_sent() {
        for (target, version, expected) in [
            ("/a?b=c&d=%22", Version::Http11, "GET /a?b=c&d=%22 HTTP/1.1"),
            ("/a", Version::Http2, "GET /a HTTP/2.0"),
        ] {
            let request = record(Some(head(target, version, &[])), "192.0.2.1:9");
            let text = line(AccessLogFormat::Common, &attributes(404, version), &request, false);
            assert!(text.contains(&format!("] \"{expected}\" 404 2326\n")), "{text}");
        }
    }

    #[test]
    fn queries_are_omitted_if_configured() {
        let fields = [("referer", &b"http://birds.example/b?secret"[..])];
        let valid = record(Some(head("/a?secret", Version::Http11, &fields)), "192.0.2.1:9");
        let invalid = b"GET /a?secret HTTP/1.1".to_vec();
        let invalid =
            AccessLogRecord { invalid_request_line: invalid, ..record(None, "192.0.2.1:9") };
        for format in [AccessLogFormat::Common, AccessLogFormat::Combined, AccessLogFormat::Json] {
            for record in [&valid, &invalid] {
                let full = line(format, &attributes(200, Version::Http11), record, false);
                assert!(full.contains("secret"), "{full}");
                let text = line(format, &attributes(200, Version::Http11), record, true);
                assert!(!text.contains("secret") && text.contains("/a"), "{text}");
            }
        }
    }

    #[test]
    fn peer_cannot_forge_a_line_or_a_field() {
        for (input, expected) in [
            (&b"plain"[..], "plain"),
            (b"\"", "\\\""),
            (b"\\", "\\\\"),
            (b"a\" 200 1 \"-\" \"-", "a\\\" 200 1 \\\"-\\\" \\\"-"),
            (b"\\\"", "\\\\\\\""),
            (b"a\tb", "a\\tb"),
            (b"a\nb", "a\\nb"),
            (b"a\rb", "a\\rb"),
            (b"a\x08b\x0b", "a\\bb\\v"),
            (b"\x1b[2J", "\\x1b[2J"),
            (b"\0\x01\x1f\x7f", "\\x00\\x01\\x1f\\x7f"),
            ("caf\u{e9}".as_bytes(), "caf\\xc3\\xa9"),
            (b"\xff", "\\xff"),
            ("\u{85}\u{2028}".as_bytes(), "\\xc2\\x85\\xe2\\x80\\xa8"),
        ] {
            let mut out = Vec::new();
            escape(input, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
            // The same in a line for an invalid request.
            let record = AccessLogRecord {
                invalid_request_line: input.to_vec(),
                ..record(None, "192.0.2.1:9")
            };
            let common =
                line(AccessLogFormat::Common, &attributes(400, Version::Http11), &record, false);
            assert!(common.contains(&format!("] \"{expected}\" 400 ")), "{common}");
            assert_eq!(common.matches('\n').count(), 1, "{common}");
            let json =
                line(AccessLogFormat::Json, &attributes(400, Version::Http11), &record, false);
            assert!(json.strip_suffix('\n').is_some_and(|json| {
                json.chars().all(|character| !character.is_control() && character != '\u{2028}')
            }));
            assert_eq!(
                unquoted(&json, "http.request.line"),
                String::from_utf8_lossy(input),
                "{json}"
            );
        }
    }

    /// Reads back the text value of a member, by the rules of JSON.
    fn unquoted(json: &str, name: &str) -> String {
        let (_, rest) = json.split_once(&format!("\"{name}\":\"")).expect("the member is there");
        let (mut text, mut rest) = (String::new(), rest.chars());
        loop {
            match rest.next().expect("the string ends") {
                '"' => return text,
                '\\' => match rest.next() {
                    Some('u') => {
                        let digits: String = rest.by_ref().take(4).collect();
                        let code = u32::from_str_radix(&digits, 16).expect("digits");
                        text.push(char::from_u32(code).expect("no surrogates are written"));
                    }
                    Some(same) => text.push(same),
                    None => panic!("an escape at the end: {json}"),
                },
                other => text.push(other),
            }
        }
    }

    #[test]
    fn fields_are_quoted_and_bounded() {
        let long = vec![b'x'; FIELD_BYTES_MAX + 1];
        for (agent, expected) in [
            (&b"curl/8 \"the\" \\"[..], "curl/8 \\\"the\\\" \\\\"),
            (b"\xe9t\xe9", "\\xe9t\\xe9"),
            (b"", "-"),
            (&long, std::str::from_utf8(&long[1..]).unwrap()),
        ] {
            let fields = [("user-agent", agent), ("referer", b"http://a/\"")];
            let request = record(Some(head("/", Version::Http11, &fields)), "192.0.2.1:9");
            let text =
                line(AccessLogFormat::Combined, &attributes(200, Version::Http11), &request, false);
            assert!(text.ends_with(&format!(" \"http://a/\\\"\" \"{expected}\"\n")), "{text}");
        }
    }

    #[test]
    fn json_uses_opentelemetry_names() {
        let fields = [("user-agent", &b"\"curl\"/8"[..]), ("referer", b"http://a/")];
        let trace = TraceContext::root([1; 16], [2; 8], true)
            .map(|context| LazyTraceContext::Computed(Rc::new(context)));
        let record = AccessLogRecord {
            request_body_bytes: 7,
            trace_context: trace,
            ..record(Some(head("/birds/7?a='b", Version::Http2, &fields)), "192.0.2.1:9")
        };
        let attributes =
            RequestAttributes { error: ErrorType::Aborted, ..attributes(200, Version::Http2) };
        assert_eq!(
            line(AccessLogFormat::Json, &attributes, &record, false),
            concat!(
                "{\"time\":\"2000-10-10T13:55:36.250000Z\",\"client.address\":\"192.0.2.1\",",
                "\"http.request.method\":\"GET\",\"url.scheme\":\"http\",",
                "\"server.address\":\"birds.example\",\"server.port\":8080,",
                "\"url.path\":\"/birds/7\",\"url.query\":\"a='b\",\"network.protocol.version\":\"2\",",
                "\"user_agent.original\":\"\\\"curl\\\"/8\",\"http.request.header.referer\":\"http://a/\",",
                "\"http.route\":\"/birds/{id}\",\"http.response.status_code\":200,",
                "\"http.request.body.size\":7,\"http.response.body.size\":2326,",
                "\"http.server.request.duration\":1.500042,\"error.type\":\"aborted\",",
                "\"trace_id\":\"01010101010101010101010101010101\",\"span_id\":\"0202020202020202\"}\n",
            )
        );
    }

    #[test]
    fn client_address_comes_from_a_trusted_proxy() {
        let fields = [("x-forwarded-for", &b"10.0.0.1, 198.51.100.7"[..])];
        let connection = ConnectionInfo {
            peer: ConnectionAddr::Tcp("192.0.2.1:9".parse().unwrap()),
            trusted_proxies: Some(Arc::new(TrustedProxies::hops(1))),
            ..ConnectionInfo::default()
        };
        let record = AccessLogRecord {
            connection: Some(Rc::new(connection)),
            ..record(Some(head("/", Version::Http11, &fields)), "")
        };
        let line = line(AccessLogFormat::Common, &attributes(200, Version::Http11), &record, false);
        assert!(line.starts_with("198.51.100.7 - - ["), "{line}");
    }

    #[test]
    fn timestamps_have_both_formats_across_month_ends() {
        for (unix_seconds, clf, iso) in [
            (0, "01/Jan/1970:00:00:00 +0000", "1970-01-01T00:00:00"),
            (951_782_400, "29/Feb/2000:00:00:00 +0000", "2000-02-29T00:00:00"),
            (1_735_689_599, "31/Dec/2024:23:59:59 +0000", "2024-12-31T23:59:59"),
            (1_762_041_600, "02/Nov/2025:00:00:00 +0000", "2025-11-02T00:00:00"),
        ] {
            let time = LogTimestamp::from_unix(Duration::from_secs(unix_seconds));
            assert_eq!((&time.clf[..], &time.iso[..]), (clf.as_bytes(), iso.as_bytes()));
            assert!(
                time.covers(Duration::new(unix_seconds, 999))
                    && !time.covers(Duration::from_secs(unix_seconds + 1))
            );
        }
    }
}
