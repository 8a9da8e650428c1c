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
pub(crate) fn read(bytes: &[u8], to_head: bool) -> Option<Response> {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(start) = response.parse(bytes).expect("a valid response") else {
        return None;
    };
    let status = response.code.expect("a response has a status");
    let owned =
        |field: &httparse::Header<'_>| (field.name.as_bytes().to_vec(), field.value.to_vec());
    let fields = response.headers.iter().map(owned).collect();
    let mut read = Response { status, fields, content: Vec::new(), length: start };
    let lengths = read.values("content-length");
    let chunked = !read.values("transfer-encoding").is_empty();
    assert!(lengths.len() + usize::from(chunked) <= 1, "there is one framing");
    if to_head || status < 200 || status == 204 || status == 304 {
        return Some(read);
    }
    let number = |text: &&[u8]| {
        let text = std::str::from_utf8(text).expect("a length is text");
        text.parse().expect("a length is a number")
    };
    let length = lengths.first().map(number);
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

/// The content of chunks, and their length in bytes including the trailers.
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
