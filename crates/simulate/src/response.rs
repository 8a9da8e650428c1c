//! Reads HTTP/1.1 responses (RFC 9112).

use super::connection::SimConnection;
use super::error::Why;
use super::request::status;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use std::rc::Rc;

/// The maximum size of a response head, and of a line of a chunked body.
const HEAD_BYTES_MAX: usize = 1 << 20;

/// A connection, and the bytes that were received but not parsed yet.
pub(super) struct Reading {
    connection: Rc<SimConnection>,
    unread: Vec<u8>,
}

/// The head of a response, and those of its interim responses.
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) fields: HeaderMap,
    pub(super) interims: Vec<(StatusCode, HeaderMap)>,
    pub(super) rest: Rest,
    /// Whether the connection cannot be used for another request.
    pub(super) is_last: bool,
}

/// The part of a body that has not been read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// This number of bytes.
    Bytes(u64),
    /// Chunks; the next line is a chunk's size.
    Chunks,
    /// This number of bytes of a chunk, then more chunks.
    Chunk(u64),
    /// Everything until the server closes the connection.
    All,
}

impl Reading {
    pub(super) fn new(connection: SimConnection) -> Self {
        Self { connection: Rc::new(connection), unread: Vec::new() }
    }

    pub(super) fn connection(&self) -> Rc<SimConnection> {
        Rc::clone(&self.connection)
    }

    /// Whether anything arrived that does not belong to a response, such as the end.
    pub(super) fn has_something(&self) -> bool {
        !self.unread.is_empty() || self.connection.has_something()
    }

    /// Reads the head of the next final response.
    pub(super) async fn head(&mut self, is_head_request: bool) -> Result<Head, Why> {
        let mut interims = Vec::new();
        loop {
            let lines = self.lines_until_empty().await?;
            let (first, rest) = lines.split_first().expect("at least one line");
            let malformed = |line: &str| Why::Malformed(format!("{line:?}"));
            let status = status(first).ok_or_else(|| malformed(first))?;
            let fields = fields(rest).map_err(malformed)?;
            // RFC 9110 §15.2: any number of interim responses may precede the final one. 101 is
            // final: another protocol follows.
            if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
                interims.push((status, fields));
                continue;
            }
            // RFC 9112 §6.3: these have no body, whatever their fields say.
            let has_none = is_head_request
                || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
            let rest = if has_none { Rest::Bytes(0) } else { body_of(&fields)? };
            let is_last = rest == Rest::All
                || status == StatusCode::SWITCHING_PROTOCOLS
                || fields.get(header::CONNECTION).is_some_and(|value| value == "close");
            return Ok(Head { status, fields, interims, rest, is_last });
        }
    }

    /// Reads the next piece of a body; `None` at its end.
    pub(super) async fn piece(&mut self, rest: &mut Rest) -> Result<Option<Bytes>, Why> {
        loop {
            match rest {
                Rest::Bytes(0) => return Ok(None),
                Rest::Bytes(left) => return self.some(left).await.map(Some),
                Rest::Chunk(0) => {
                    self.line().await?;
                    *rest = Rest::Chunks;
                }
                Rest::Chunk(left) => return self.some(left).await.map(Some),
                Rest::Chunks => {
                    let line = self.line().await?;
                    let size = line.split(';').next().unwrap_or_default().trim();
                    let size = u64::from_str_radix(size, 16)
                        .map_err(|_| Why::Malformed(format!("the size of a chunk: {line:?}")))?;
                    if size == 0 {
                        // Skip the trailers.
                        while !self.line().await?.is_empty() {}
                        *rest = Rest::Bytes(0);
                        return Ok(None);
                    }
                    *rest = Rest::Chunk(size);
                }
                Rest::All => {
                    if self.unread.is_empty() && !self.receive().await? {
                        return Ok(None);
                    }
                    return Ok(Some(std::mem::take(&mut self.unread).into()));
                }
            }
        }
    }

    /// Reads some of the `left` bytes.
    async fn some(&mut self, left: &mut u64) -> Result<Bytes, Why> {
        if self.unread.is_empty() {
            self.must_receive().await?;
        }
        let size = usize::try_from(*left).unwrap_or(usize::MAX).min(self.unread.len());
        let piece: Vec<u8> = self.unread.drain(..size).collect();
        *left -= u64::try_from(size).expect("a length has at most 64 bits");
        Ok(piece.into())
    }

    async fn lines_until_empty(&mut self) -> Result<Vec<String>, Why> {
        let mut lines = Vec::new();
        loop {
            let line = self.line().await?;
            if line.is_empty() && !lines.is_empty() {
                return Ok(lines);
            }
            lines.push(line);
        }
    }

    /// Reads the next line, without its line ending.
    async fn line(&mut self) -> Result<String, Why> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.unread.drain(..end + 2).take(end).collect();
                return String::from_utf8(line)
                    .map_err(|_| Why::Malformed("a line is not UTF-8".to_owned()));
            }
            if self.unread.len() > HEAD_BYTES_MAX {
                return Err(Why::Malformed("a line is too long".to_owned()));
            }
            self.must_receive().await?;
        }
    }

    async fn must_receive(&mut self) -> Result<(), Why> {
        if self.receive().await? { Ok(()) } else { Err(Why::Ended) }
    }

    /// Receives some bytes. Returns false at the end.
    async fn receive(&mut self) -> Result<bool, Why> {
        let bytes = self.connection.recv().await?;
        self.unread.extend_from_slice(&bytes);
        Ok(!bytes.is_empty())
    }
}

/// Parses header fields. The error is the first malformed line.
fn fields(lines: &[String]) -> Result<HeaderMap, &str> {
    let mut fields = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(line.as_str())?;
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| line.as_str())?;
        let value = HeaderValue::from_str(value.trim()).map_err(|_| line.as_str())?;
        fields.append(name, value);
    }
    Ok(fields)
}

/// The framing of the body (RFC 9112 §6.3).
fn body_of(fields: &HeaderMap) -> Result<Rest, Why> {
    if fields.get(header::TRANSFER_ENCODING).is_some_and(|value| value == "chunked") {
        return Ok(Rest::Chunks);
    }
    let Some(length) = fields.get(header::CONTENT_LENGTH) else { return Ok(Rest::All) };
    let length = length.to_str().ok().and_then(|text| text.parse().ok());
    length.map(Rest::Bytes).ok_or_else(|| Why::Malformed("its Content-Length".to_owned()))
}
