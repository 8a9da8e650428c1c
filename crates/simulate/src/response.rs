//! Reads HTTP/1.1 responses (RFC 9112).

use super::connection::SimConnection;
use super::error::SimErrorKind;
use super::request::parse_status_line;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use std::rc::Rc;

/// The maximum size of a line of a response head or of a chunked body.
const LINE_BYTES_MAX: usize = 1 << 20;

/// A connection, and the bytes that were received but not parsed yet.
pub(super) struct ResponseReader {
    connection: Rc<SimConnection>,
    buffer: Vec<u8>,
}

/// The head of a response, and those of its interim responses.
pub(super) struct ResponseHead {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) interim_responses: Vec<(StatusCode, HeaderMap)>,
    pub(super) remaining: RemainingBody,
    /// Whether the connection cannot be used for another request.
    pub(super) closes_connection: bool,
}

/// The part of a body that has not been read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemainingBody {
    /// This number of bytes.
    Bytes(u64),
    /// Chunks; the next line is a chunk's size.
    Chunks,
    /// This number of bytes of a chunk, then more chunks.
    Chunk(u64),
    /// Everything until the server closes the connection.
    UntilClose,
}

impl ResponseReader {
    pub(super) fn new(connection: SimConnection) -> Self {
        Self { connection: Rc::new(connection), buffer: Vec::new() }
    }

    pub(super) fn connection(&self) -> Rc<SimConnection> {
        Rc::clone(&self.connection)
    }

    /// Whether something arrived that does not belong to a response, such as the end of the stream.
    pub(super) fn is_readable(&self) -> bool {
        !self.buffer.is_empty() || self.connection.is_readable()
    }

    /// Reads the head of the next final response.
    pub(super) async fn read_head(
        &mut self,
        is_head_request: bool,
    ) -> Result<ResponseHead, SimErrorKind> {
        let mut interim_responses = Vec::new();
        loop {
            let lines = self.read_lines().await?;
            let (status_line, header_lines) =
                lines.split_first().expect("a head has at least one line");
            let malformed_line = |line: &str| SimErrorKind::InvalidResponse(format!("{line:?}"));
            let status =
                parse_status_line(status_line).ok_or_else(|| malformed_line(status_line))?;
            let headers = parse_headers(header_lines).map_err(malformed_line)?;
            // RFC 9110 §15.2: any number of interim responses may precede the final one. 101 is
            // final: another protocol follows.
            if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
                interim_responses.push((status, headers));
                continue;
            }
            // RFC 9112 §6.3: these have no body, whatever their fields say.
            let has_no_body = is_head_request
                || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
            let remaining =
                if has_no_body { RemainingBody::Bytes(0) } else { body_framing(&headers)? };
            let closes_connection = remaining == RemainingBody::UntilClose
                || status == StatusCode::SWITCHING_PROTOCOLS
                || headers.get(header::CONNECTION).is_some_and(|value| value == "close");
            return Ok(ResponseHead {
                status,
                headers,
                interim_responses,
                remaining,
                closes_connection,
            });
        }
    }

    /// Reads the next chunk of a body. Returns `None` at its end.
    pub(super) async fn read_chunk(
        &mut self,
        remaining: &mut RemainingBody,
    ) -> Result<Option<Bytes>, SimErrorKind> {
        loop {
            match remaining {
                RemainingBody::Bytes(0) => return Ok(None),
                RemainingBody::Bytes(bytes_left) => {
                    return self.take_buffered(bytes_left).await.map(Some);
                }
                RemainingBody::Chunk(0) => {
                    // The line ending after the chunk.
                    self.read_line().await?;
                    *remaining = RemainingBody::Chunks;
                }
                RemainingBody::Chunk(bytes_left) => {
                    return self.take_buffered(bytes_left).await.map(Some);
                }
                RemainingBody::Chunks => {
                    let line = self.read_line().await?;
                    let size = line.split(';').next().unwrap_or_default().trim();
                    let size = u64::from_str_radix(size, 16).map_err(|_| {
                        SimErrorKind::InvalidResponse(format!("the size of a chunk: {line:?}"))
                    })?;
                    if size == 0 {
                        // Skip the trailers.
                        while !self.read_line().await?.is_empty() {}
                        *remaining = RemainingBody::Bytes(0);
                        return Ok(None);
                    }
                    *remaining = RemainingBody::Chunk(size);
                }
                RemainingBody::UntilClose => {
                    if self.buffer.is_empty() && !self.receive().await? {
                        return Ok(None);
                    }
                    return Ok(Some(std::mem::take(&mut self.buffer).into()));
                }
            }
        }
    }

    /// Reads some of the remaining bytes, and subtracts their number from `bytes_left`.
    async fn take_buffered(&mut self, bytes_left: &mut u64) -> Result<Bytes, SimErrorKind> {
        if self.buffer.is_empty() {
            self.receive_or_eof().await?;
        }
        let size = usize::try_from(*bytes_left).unwrap_or(usize::MAX).min(self.buffer.len());
        let bytes: Vec<u8> = self.buffer.drain(..size).collect();
        *bytes_left -= u64::try_from(size).expect("a length has at most 64 bits");
        Ok(bytes.into())
    }

    async fn read_lines(&mut self) -> Result<Vec<String>, SimErrorKind> {
        let mut lines = Vec::new();
        loop {
            let line = self.read_line().await?;
            if line.is_empty() && !lines.is_empty() {
                return Ok(lines);
            }
            lines.push(line);
        }
    }

    /// Reads the next line, without its line ending.
    async fn read_line(&mut self) -> Result<String, SimErrorKind> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).take(end).collect();
                return String::from_utf8(line)
                    .map_err(|_| SimErrorKind::InvalidResponse("a line is not UTF-8".to_owned()));
            }
            if self.buffer.len() > LINE_BYTES_MAX {
                return Err(SimErrorKind::InvalidResponse("a line is too long".to_owned()));
            }
            self.receive_or_eof().await?;
        }
    }

    async fn receive_or_eof(&mut self) -> Result<(), SimErrorKind> {
        if self.receive().await? { Ok(()) } else { Err(SimErrorKind::UnexpectedEof) }
    }

    /// Receives some bytes. Returns false at the end.
    async fn receive(&mut self) -> Result<bool, SimErrorKind> {
        let bytes = self.connection.recv().await?;
        self.buffer.extend_from_slice(&bytes);
        Ok(!bytes.is_empty())
    }
}

/// Parses header fields. The error is the first malformed line.
fn parse_headers(lines: &[String]) -> Result<HeaderMap, &str> {
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(line.as_str())?;
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| line.as_str())?;
        let value = HeaderValue::from_str(value.trim()).map_err(|_| line.as_str())?;
        headers.append(name, value);
    }
    Ok(headers)
}

/// Returns the framing of the body (RFC 9112 §6.3).
fn body_framing(headers: &HeaderMap) -> Result<RemainingBody, SimErrorKind> {
    if headers.get(header::TRANSFER_ENCODING).is_some_and(|value| value == "chunked") {
        return Ok(RemainingBody::Chunks);
    }
    let Some(length) = headers.get(header::CONTENT_LENGTH) else {
        return Ok(RemainingBody::UntilClose);
    };
    let length = length.to_str().ok().and_then(|text| text.parse().ok());
    length
        .map(RemainingBody::Bytes)
        .ok_or_else(|| SimErrorKind::InvalidResponse("its Content-Length".to_owned()))
}
