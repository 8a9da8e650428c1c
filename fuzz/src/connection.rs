//! Targets for the receiving side.

use crate::play::{ResponseTiming, Server, play};
use peregrine_proto::h1::{Connection, Event};
use peregrine_proto::{HeadIndex, KnownField, Limits, TargetForm, Version};

/// A head. If it is accepted, another parser accepts it too, with the same parts. Feeding it byte
/// by byte gives the same events as all at once.
pub fn head(data: &[u8]) {
    let limits = Limits { fields_max: FIELDS_MAX, ..Limits::DEFAULT };
    assert_same_when_split(&limits, data, TLS_SERVER, &(0..data.len()).collect::<Vec<_>>());
    let mut head = HeadIndex::new();
    let mut connection = Connection::new(&limits);
    let (used, event) = connection.receive(&limits, data, &mut head);
    connection.assert_invariants();
    if let Event::Head(framing) = event {
        compare_with_oracle(&data[usize::from(framing.leading_bytes)..used], &head);
    }
}

fn compare_with_oracle(bytes: &[u8], head: &HeadIndex) {
    // The oracle does not accept a minor version above 1, which this parser treats as 1.
    let mut bytes = bytes.to_vec();
    let minor = usize::from(head.target.end) + " HTTP/1.".len();
    bytes[minor] = if head.version == Version::Http10 { b'0' } else { b'1' };
    let bytes = bytes.as_slice();
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut reference = httparse::Request::new(&mut fields);
    let status = reference.parse(bytes);
    assert_eq!(status, Ok(httparse::Status::Complete(bytes.len())), "the oracle accepts the head");
    assert_eq!(reference.method.map(str::as_bytes), Some(head.method_span.slice(bytes)));
    assert_eq!(reference.path.map(str::as_bytes), Some(head.target.slice(bytes)));
    assert_eq!(reference.version, Some(u8::from(head.version == Version::Http11)));
    assert_eq!(reference.headers.len(), head.fields.len());
    for (expected, actual) in reference.headers.iter().zip(&head.fields) {
        assert_eq!(expected.name.as_bytes(), actual.name.slice(bytes));
        // RFC 9112 §3.2.2: an authority in the target replaces the value of the Host field.
        let is_replaced =
            actual.known == KnownField::Host && head.target_form == TargetForm::Absolute;
        let value = if is_replaced { head.authority.slice(bytes) } else { expected.value };
        assert_eq!(value, actual.value.slice(bytes));
    }
}

/// A whole connection. Bits of the first byte choose the limits, when the response is sent, and a
/// prefix for the rest of the input, so that mutation can concentrate on content.
pub fn body(data: &[u8]) {
    let Some((options, rest)) = data.split_first() else { return };
    let limits = if options & 1 == 0 { Limits::DEFAULT } else { SMALL_LIMITS };
    let timing = [
        ResponseTiming::RequestComplete,
        ResponseTiming::Early,
        ResponseTiming::EarlyDiscardingBody,
    ][usize::from(options >> 1 & 3) % 3];
    let server = Server { timing, is_secure: options & 4 == 0 };
    let prefix: &[u8] = match options >> 2 & 3 {
        0 => b"",
        1 => b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        2 => b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
        _ => b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
    };
    let bytes = [prefix, rest].concat();
    assert_same_when_split(&limits, &bytes, server, &(0..bytes.len()).collect::<Vec<_>>());
    // Splits at positions that the input itself determines.
    let step = usize::from(options >> 4) + 2;
    let cuts: Vec<_> = (0..bytes.len()).step_by(step).collect();
    assert_same_when_split(&limits, &bytes, server, &cuts);
}

fn assert_same_when_split(limits: &Limits, bytes: &[u8], server: Server, cuts: &[usize]) {
    let expected = play(limits, bytes, &[], server);
    let actual = play(limits, bytes, cuts, server);
    assert_eq!(expected, actual, "the events do not depend on the cuts");
}

const TLS_SERVER: Server = Server { timing: ResponseTiming::RequestComplete, is_secure: true };

const FIELDS_MAX: usize = 64;

const SMALL_LIMITS: Limits = Limits {
    head_bytes_max: 200,
    request_line_bytes_max: 60,
    field_bytes_max: 80,
    fields_max: 5,
    body_bytes_max: 100,
    chunk_extension_bytes_max: 20,
    trailer_bytes_max: 60,
    drain_bytes_max: 20,
};
