//! Writes HTTP/1.1 responses: heads, content with its framing, and trailers.

use crate::exchange::fields::{field_pairs, header_map_pairs, to_header_map};
use crate::io::output::OutputBuffer;
use crate::panic::CatchDropPanic;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use peregrine_driver::FileRange;
use peregrine_proto::Date;
use peregrine_proto::h1::{BodyFraming, Connection, ResponseLength};
use peregrine_web::Response;

/// Writes a response's head. Returns the framing that its body must have.
pub(crate) fn write_head(
    protocol: &mut Connection,
    response: &Response,
    length: ResponseLength,
    date: &Date,
    out: &mut Vec<u8>,
) -> BodyFraming {
    protocol.send_response(
        response.status.as_u16(),
        field_pairs(&response.headers),
        length,
        date,
        out,
    )
}

/// Writes a response whose body is in memory. Returns how many bytes of the body were written.
pub(crate) fn write_full(
    protocol: &mut Connection,
    response: &Response,
    date: &Date,
    out: &mut Vec<u8>,
) -> usize {
    let bytes = response.body.as_slice().unwrap_or_default();
    write_head(protocol, response, ResponseLength::Exact(bytes.len() as u64), date, out);
    let sent = protocol.send_data(bytes, out);
    protocol.finish(std::iter::empty(), out);
    sent
}

/// Writes content with its framing. Large content is not copied. Returns how many bytes of the
/// content were written; the declared length may cut it short.
pub(crate) fn write_content(
    protocol: &mut Connection,
    content: Bytes,
    output: &mut OutputBuffer,
) -> usize {
    let mut content = CatchDropPanic::new(content);
    let chunk = protocol.begin_external_data(content.len(), &mut output.plaintext);
    content.truncate(chunk.accepted);
    output.write_shared(content);
    output.plaintext.extend_from_slice(chunk.suffix);
    chunk.accepted
}

/// Writes a part of a file with its framing. Returns how many bytes of the part were written.
pub(crate) fn write_file(
    protocol: &mut Connection,
    mut range: FileRange,
    output: &mut OutputBuffer,
) -> usize {
    let chunk = protocol.begin_external_data(range.len, &mut output.plaintext);
    range.len = chunk.accepted;
    if range.len > 0 {
        output.write_file(range);
    }
    output.plaintext.extend_from_slice(chunk.suffix);
    chunk.accepted
}

/// Writes the 101 response, after which the upgraded protocol uses the connection. Writes nothing
/// and returns false if the response is not a 101, the client did not request an upgrade, or the
/// request's body was not fully received.
pub(crate) fn switch_protocols(
    protocol: &mut Connection,
    response: &Response,
    out: &mut Vec<u8>,
) -> bool {
    response.status == StatusCode::SWITCHING_PROTOCOLS
        && protocol.switch_protocols(field_pairs(&response.headers), out)
}

/// Ends a response's body. With chunked framing, writes its trailers.
pub(crate) fn finish_body(protocol: &mut Connection, trailers: &HeaderMap, out: &mut Vec<u8>) {
    protocol.finish(header_map_pairs(trailers), out);
}

/// The trailers of the current request.
pub(crate) fn request_trailers(protocol: &Connection) -> HeaderMap {
    to_header_map(protocol.trailers())
}
