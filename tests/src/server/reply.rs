//! A strict response parser that shares no code with the server.
//!
//! The parser accepts only what this server may send: one space where the grammar has one, no line
//! folding, and framing that is given exactly once.

/// A complete response, with the interim responses before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status of each preceding interim response.
    pub interim: Vec<u16>,
    /// The status.
    pub status: u16,
    /// Names in lower case, and values.
    pub fields: Vec<(String, String)>,
    /// The content, without its framing.
    pub body: Vec<u8>,
    /// The fields after the content.
    pub trailers: Vec<(String, String)>,
    /// How its end was found.
    pub framing: Framing,
}

/// How the end of a response is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// The response has no content.
    None,
    /// By `Content-Length`.
    Length,
    /// By the last chunk.
    Chunked,
    /// By the end of the connection.
    UntilClose,
}

impl Reply {
    /// The value of a field that occurs at most once.
    ///
    /// # Panics
    /// If it occurs twice.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut values = self.fields.iter().filter(|(other, _)| other == name);
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} occurs twice: {self:?}");
        value
    }

    /// The content as text.
    ///
    /// # Panics
    /// If it is not text.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the content is text")
    }

    /// Whether it says that the connection ends after it.
    #[must_use]
    pub fn closes(&self) -> bool {
        let options = self.field("connection").unwrap_or_default();
        options.split(", ").any(|option| option == "close")
    }
}

/// A response at the beginning of some bytes, and its length.
pub type Parsed = Result<Option<(Reply, usize)>, String>;

/// Parses one response at the beginning of `bytes`; `None` if it is incomplete. `is_head`: it
/// answers a HEAD request. `is_ended`: nothing follows `bytes`.
///
/// # Errors
/// A description of the violation.
pub fn parse(bytes: &[u8], is_head: bool, is_ended: bool) -> Parsed {
    let mut interim = Vec::new();
    let mut used = 0;
    loop {
        let Some(head) = parse_head(&bytes[used..])? else { return Ok(None) };
        used += head.bytes;
        if (100..200).contains(&head.status) && head.status != 101 {
            if head.field("content-length").is_some() || head.field("transfer-encoding").is_some() {
                return Err("an interim response declares content".to_owned());
            }
            interim.push(head.status);
            continue;
        }
        let framing = head.framing(is_head)?;
        let Some(content) = parse_content(&bytes[used..], framing, &head, is_ended)? else {
            return Ok(None);
        };
        used += content.used;
        let reply = Reply {
            interim,
            status: head.status,
            fields: head.fields,
            body: content.body,
            trailers: content.trailers,
            framing,
        };
        return Ok(Some((reply, used)));
    }
}

pub(super) struct Head {
    is_http11: bool,
    pub(super) status: u16,
    pub(super) fields: Vec<(String, String)>,
    pub(super) bytes: usize,
}

impl Head {
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn framing(&self, is_head: bool) -> Result<Framing, String> {
        let count = |name| self.fields.iter().filter(|(other, _)| other == name).count();
        let (lengths, codings) = (count("content-length"), count("transfer-encoding"));
        if lengths + codings > 1 {
            return Err(format!("the framing is given more than once: {:?}", self.fields));
        }
        if count("date") != 1 && self.status != 101 {
            return Err(format!("a response has one date: {:?}", self.fields));
        }
        if !self.is_http11 {
            return Err("the server speaks HTTP/1.1 in every response".to_owned());
        }
        if matches!(self.status, 101 | 204 | 304) {
            if self.status != 304 && lengths + codings > 0 {
                return Err(format!("a {} has content", self.status));
            }
            return Ok(Framing::None);
        }
        match (self.field("content-length"), self.field("transfer-encoding")) {
            _ if is_head => Ok(Framing::None),
            (Some(_), _) => Ok(Framing::Length),
            (None, Some("chunked")) => Ok(Framing::Chunked),
            (None, Some(coding)) => Err(format!("unrequested transfer coding {coding}")),
            (None, None) if self.field("connection") == Some("close") => Ok(Framing::UntilClose),
            (None, None) => Err("the end of the content is not given".to_owned()),
        }
    }
}

/// The first line, without its line ending, and its length including the line ending.
pub(super) fn line(bytes: &[u8]) -> Result<Option<(&str, usize)>, String> {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
        return match bytes.len() {
            0..=20_000 => Ok(None),
            _ => Err("a line has no end".to_owned()),
        };
    };
    let line = bytes[..end].strip_suffix(b"\r").ok_or("a line feed stands alone")?;
    let is_text = line.iter().all(|byte| (b' '..=b'~').contains(byte));
    match std::str::from_utf8(line) {
        Ok(line) if is_text => Ok(Some((line, end + 1))),
        _ => Err(format!("a line has odd bytes: {line:?}")),
    }
}

pub(super) fn parse_head(bytes: &[u8]) -> Result<Option<Head>, String> {
    let Some((status_line, mut used)) = line(bytes)? else { return Ok(None) };
    let (version, rest) = status_line.split_once(' ').ok_or("a status line has spaces")?;
    let (status, reason) = rest.split_once(' ').ok_or("a status line has two spaces")?;
    let is_status = status.len() == 3 && status.bytes().all(|byte| byte.is_ascii_digit());
    let status = status.parse().ok().filter(|status| is_status && *status >= 100);
    let status = status.ok_or_else(|| format!("no status: {status_line:?}"))?;
    if reason.is_empty() || reason.starts_with(' ') {
        return Err(format!("no reason: {status_line:?}"));
    }
    let mut fields = Vec::new();
    loop {
        let Some((line, bytes)) = line(&bytes[used..])? else { return Ok(None) };
        used += bytes;
        if line.is_empty() {
            let is_http11 = version == "HTTP/1.1";
            return Ok(Some(Head { is_http11, status, fields, bytes: used }));
        }
        fields.push(field(line)?);
    }
}

pub(super) fn field(line: &str) -> Result<(String, String), String> {
    let (name, value) = line.split_once(": ").ok_or_else(|| format!("no field: {line:?}"))?;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) || value != value.trim() {
        return Err(format!("no field: {line:?}"));
    }
    Ok((name.to_ascii_lowercase(), value.to_owned()))
}

#[derive(Default)]
struct Content {
    body: Vec<u8>,
    trailers: Vec<(String, String)>,
    used: usize,
}

fn parse_content(
    bytes: &[u8],
    framing: Framing,
    head: &Head,
    is_ended: bool,
) -> Result<Option<Content>, String> {
    match framing {
        Framing::None => Ok(Some(Content::default())),
        Framing::Length => {
            let text = head.field("content-length").expect("the framing says so");
            let length: usize = text.parse().map_err(|_| format!("no length: {text:?}"))?;
            if text.len() > 1 && text.starts_with('0') {
                return Err(format!("no length: {text:?}"));
            }
            Ok(bytes.get(..length).map(|body| Content {
                body: body.to_vec(),
                used: length,
                ..Content::default()
            }))
        }
        Framing::Chunked => parse_chunks(bytes),
        Framing::UntilClose => Ok(is_ended.then(|| Content {
            body: bytes.to_vec(),
            used: bytes.len(),
            ..Content::default()
        })),
    }
}

fn parse_chunks(bytes: &[u8]) -> Result<Option<Content>, String> {
    let mut content = Content::default();
    loop {
        let Some((size, used)) = line(&bytes[content.used..])? else { return Ok(None) };
        content.used += used;
        let is_hex = !size.is_empty() && size.bytes().all(|byte| byte.is_ascii_hexdigit());
        let size = usize::from_str_radix(size, 16).ok().filter(|_| is_hex);
        let size = size.ok_or("a chunk has no size")?;
        if size == 0 {
            break;
        }
        let Some(chunk) = bytes.get(content.used..content.used + size + 2) else {
            return Ok(None);
        };
        let data = chunk.strip_suffix(b"\r\n").ok_or("a chunk has no end")?;
        content.body.extend_from_slice(data);
        content.used += size + 2;
    }
    loop {
        let Some((line, used)) = line(&bytes[content.used..])? else { return Ok(None) };
        content.used += used;
        if line.is_empty() {
            return Ok(Some(content));
        }
        content.trailers.push(field(line)?);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_complete(text: &str) -> Reply {
        let (reply, used) = parse(text.as_bytes(), false, false).unwrap().unwrap();
        assert_eq!(used, text.len());
        for length in 0..text.len() {
            assert_eq!(
                parse(&text.as_bytes()[..length], false, false),
                Ok(None),
                "cut at {length}"
            );
        }
        reply
    }

    #[test]
    fn responses_are_read_whatever_their_framing() {
        let date = "date: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
        let text = format!("HTTP/1.1 200 OK\r\n{date}content-length: 2\r\n\r\nhi");
        assert_eq!(parse_complete(&text).body, b"hi");
        let chunks = "4\r\nWiki\r\n5\r\npedia\r\n0\r\nx: y\r\n\r\n";
        let text = format!("HTTP/1.1 200 OK\r\n{date}transfer-encoding: chunked\r\n\r\n{chunks}");
        let reply = parse_complete(&text);
        assert_eq!(reply.body, b"Wikipedia");
        assert_eq!(reply.trailers, [("x".to_owned(), "y".to_owned())]);
        let text = format!("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n{date}\r\n");
        assert_eq!(parse_complete(&text).interim, [100]);
        let text = format!("HTTP/1.1 200 OK\r\n{date}connection: close\r\n\r\nall of it");
        assert_eq!(parse(text.as_bytes(), false, false), Ok(None));
        assert_eq!(parse(text.as_bytes(), false, true).unwrap().unwrap().0.body, b"all of it");
    }

    #[test]
    fn sloppy_responses_are_refused() {
        let date = "date: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
        let both = "content-length: 2\r\ntransfer-encoding: chunked\r\n";
        for text in [
            "HTTP/1.1 200\r\n".to_owned(),
            "HTTP/1.1 20 OK\r\n".to_owned(),
            "HTTP/1.1 200 OK\n".to_owned(),
            format!("HTTP/1.0 200 OK\r\n{date}content-length: 0\r\n\r\n"),
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned(),
            format!("HTTP/1.1 200 OK\r\n{date}{both}\r\n"),
            format!("HTTP/1.1 200 OK\r\n{date}content-length: 02\r\n\r\n"),
            format!("HTTP/1.1 200 OK\r\n{date}\r\n"),
            format!("HTTP/1.1 204 No Content\r\n{date}content-length: 0\r\n\r\n"),
            format!("HTTP/1.1 200 OK\r\n{date}transfer-encoding: chunked\r\n\r\nx\r\n"),
            format!("HTTP/1.1 200 OK\r\n{date}transfer-encoding: chunked\r\n\r\n1\r\nabc"),
        ] {
            assert!(parse(text.as_bytes(), false, false).is_err(), "{text}");
        }
    }
}
