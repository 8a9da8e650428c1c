//! Responses that were written are read back by a plain reader that shares no code with the writer.

use peregrine_proto::h1::{BodyMode, Connection, Event, ResponseLength};
use peregrine_proto::{Date, HeadIndex, Limits};
use proptest::prelude::*;

type Field = (Vec<u8>, Vec<u8>);

/// A response as read back: its status, fields, content, and how many bytes it had.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) fields: Vec<Field>,
    pub(crate) content: Vec<u8>,
    pub(crate) length: usize,
}

impl Response {
    /// The values of a field.
    pub(crate) fn values(&self, name: &str) -> Vec<&[u8]> {
        let fields = self.fields.iter();
        let fields = fields.filter(|field| field.0.eq_ignore_ascii_case(name.as_bytes()));
        fields.map(|field| field.1.as_slice()).collect()
    }
}

/// Reads one response, as RFC 9112 §6.3 has it. `None` if it is not whole.
pub(crate) fn read(bytes: &[u8], to_head: bool) -> Option<Response> {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(start) = response.parse(bytes).expect("a response is sound")
    else {
        return None;
    };
    let status = response.code.expect("a response has a status");
    let owned =
        |field: &httparse::Header<'_>| (field.name.as_bytes().to_vec(), field.value.to_vec());
    let fields = response.headers.iter().map(owned).collect();
    let mut read = Response { status, fields, content: Vec::new(), length: start };
    let lengths = read.values("content-length");
    let chunked = !read.values("transfer-encoding").is_empty();
    assert!(lengths.len() <= 1 && !(chunked && !lengths.is_empty()), "there is one framing");
    if to_head || status < 200 || status == 204 || status == 304 {
        return Some(read);
    }
    let length = lengths.first().map(|text| std::str::from_utf8(text).unwrap().parse().unwrap());
    let rest = &bytes[start..];
    if chunked {
        let (content, used) = dechunk(rest)?;
        (read.content, read.length) = (content, start + used);
    } else if let Some(length) = length {
        read.content = rest.get(..length)?.to_vec();
        read.length = start + length;
    } else {
        (read.content, read.length) = (rest.to_vec(), bytes.len());
    }
    Some(read)
}

/// The content of chunks, and how many bytes they had with the trailers.
fn dechunk(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut content, mut at) = (Vec::new(), 0);
    loop {
        let line = bytes[at..].windows(2).position(|window| window == b"\r\n")?;
        let size = std::str::from_utf8(&bytes[at..at + line]).expect("a size is text");
        let size = usize::from_str_radix(size, 16).expect("a size is hexadecimal");
        at += line + 2;
        if size == 0 {
            break;
        }
        content.extend_from_slice(bytes.get(at..at + size)?);
        assert_eq!(bytes.get(at + size..at + size + 2)?, b"\r\n", "data end with a line end");
        at += size + 2;
    }
    loop {
        let line = bytes[at..].windows(2).position(|window| window == b"\r\n")?;
        at += line + 2;
        if line == 0 {
            return Some((content, at));
        }
    }
}

fn bytes_of(fields: &[Field]) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice()))
}

fn fields() -> impl Strategy<Value = Vec<Field>> {
    let name = prop_oneof![
        prop::sample::select(vec![
            "Content-Length",
            "transfer-encoding",
            "connection",
            "date",
            "etag",
            "Set-Cookie"
        ])
        .prop_map(|name| name.as_bytes().to_vec()),
        "[a-z-]{1,12}".prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..8),
    ];
    let value = prop_oneof![
        "[ -~]{0,20}".prop_map(String::into_bytes),
        "[0-9]{1,4}".prop_map(String::into_bytes),
        prop::sample::select(vec!["close", "chunked", "upgrade, close"])
            .prop_map(|value| value.as_bytes().to_vec()),
        proptest::collection::vec(any::<u8>(), 0..20),
    ];
    proptest::collection::vec((name, value), 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_back(
        request in prop::sample::select(vec![
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.0\r\n\r\n",
            "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        ]),
        status in prop_oneof![4 => prop::sample::select(vec![200_u16, 204, 205, 304]), 1 => any::<u16>()],
        fields in fields(),
        trailers in fields(),
        parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..5),
        known_length: bool,
    ) {
        let limits = Limits::DEFAULT;
        let (mut connection, mut head) = (Connection::new(&limits), HeadIndex::new());
        let (_, event) = connection.receive(&limits, request.as_bytes(), &mut head);
        prop_assert_eq!(event, Event::Head);
        let content = parts.concat();
        let length = match known_length {
            true => ResponseLength::Exact(content.len() as u64),
            false => ResponseLength::Unknown,
        };
        let (mut out, date) = (Vec::new(), Date::from_unix_seconds(0));
        let mode = connection.respond(status, bytes_of(&fields), length, &date, &mut out);
        for part in &parts {
            connection.send_data(part, &mut out);
        }
        connection.finish(bytes_of(&trailers), &mut out);
        connection.check();

        let read = read(&out, request.starts_with("HEAD")).expect("the response is whole");
        prop_assert_eq!(read.length, out.len(), "nothing comes after it");
        let expected = if (200..1000).contains(&status) { status } else { 500 };
        prop_assert_eq!(read.status, expected);
        prop_assert_eq!(read.values("date").len(), 1);
        match mode {
            BodyMode::None => prop_assert!(read.content.is_empty()),
            BodyMode::Exact(bytes) => prop_assert_eq!(read.content.len() as u64, bytes),
            BodyMode::Chunked | BodyMode::UntilClose => prop_assert_eq!(read.content, content),
        }
    }
}
