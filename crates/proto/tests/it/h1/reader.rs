//! A simple reader of responses that shares no code with their writer.

/// A name and a value.
pub(crate) type Field = (Vec<u8>, Vec<u8>);

/// A response as read back: its status, fields, content, and length in bytes.
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

/// Reads one response according to RFC 9112 §6.3. `None` if it is incomplete.
pub(crate) fn read(bytes: &[u8], is_head_response: bool) -> Option<Response> {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(start) = response.parse(bytes).expect("a valid response") else {
        return None;
    };
    let status = response.code.expect("a response has a status");
    let to_owned_field =
        |field: &httparse::Header<'_>| (field.name.as_bytes().to_vec(), field.value.to_vec());
    let fields = response.headers.iter().map(to_owned_field).collect();
    let mut result = Response { status, fields, content: Vec::new(), length: start };
    let lengths = result.values("content-length");
    let is_chunked = !result.values("transfer-encoding").is_empty();
    assert!(lengths.len() + usize::from(is_chunked) <= 1, "there is at most one framing");
    if is_head_response || status < 200 || status == 204 || status == 304 {
        return Some(result);
    }
    let parse_length = |text: &&[u8]| {
        let text = std::str::from_utf8(text).expect("a length is text");
        text.parse().expect("a length is a number")
    };
    let length = lengths.first().map(parse_length);
    let body = &bytes[start..];
    if is_chunked {
        let (content, used) = read_chunks(body)?;
        (result.content, result.length) = (content, start + used);
    } else if let Some(length) = length {
        result.content = body.get(..length)?.to_vec();
        result.length = start + length;
    } else {
        (result.content, result.length) = (body.to_vec(), bytes.len());
    }
    Some(result)
}

/// The content of the chunks, and their length in bytes including the trailer section.
fn read_chunks(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
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
