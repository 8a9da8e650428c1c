//! Writes HTTP/1.1 responses: heads, content with its framing, and trailers.

use crate::exchange::fields::{header_map, map_pairs, pairs};
use crate::io::output::Writer;
use crate::panic::Quiet;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use peregrine_driver::FilePart;
use peregrine_proto::Date;
use peregrine_proto::h1::{BodyMode, Connection, ResponseLength};
use peregrine_web::Response;

/// Writes a response's head.
pub(crate) fn head(
    protocol: &mut Connection,
    response: &Response,
    length: ResponseLength,
    date: &Date,
    out: &mut Vec<u8>,
) -> BodyMode {
    protocol.respond(response.status.as_u16(), pairs(&response.fields), length, date, out)
}

/// Writes a response whose body is in memory. Returns how much content was written.
pub(crate) fn whole(
    protocol: &mut Connection,
    response: &Response,
    date: &Date,
    out: &mut Vec<u8>,
) -> usize {
    let bytes = response.body.as_slice().unwrap_or_default();
    head(protocol, response, ResponseLength::Exact(bytes.len() as u64), date, out);
    let sent = protocol.send_data(bytes, out);
    protocol.finish(std::iter::empty(), out);
    sent
}

/// Writes content with its framing. Large content is not copied. Returns how many bytes of it were
/// written.
pub(crate) fn content(protocol: &mut Connection, content: Bytes, writer: &mut Writer) -> usize {
    let mut content = Quiet::new(content);
    let announced = protocol.announce(content.len(), &mut writer.plain);
    content.truncate(announced.taken);
    writer.share(content);
    writer.plain.extend_from_slice(announced.after);
    announced.taken
}

/// Writes a part of a file with its framing. Returns how many bytes of it were written.
pub(crate) fn file(protocol: &mut Connection, mut part: FilePart, writer: &mut Writer) -> usize {
    let announced = protocol.announce(part.length, &mut writer.plain);
    part.length = announced.taken;
    if part.length > 0 {
        writer.share_file(part);
    }
    writer.plain.extend_from_slice(announced.after);
    announced.taken
}

/// Writes the 101 response, after which the upgraded protocol uses the connection. Returns false if
/// the response is not a 101 or the request did not ask for an upgrade.
pub(crate) fn switch_protocols(
    protocol: &mut Connection,
    response: &Response,
    out: &mut Vec<u8>,
) -> bool {
    response.status == StatusCode::SWITCHING_PROTOCOLS
        && protocol.switch_protocols(pairs(&response.fields), out)
}

/// Ends a response's body.
pub(crate) fn finish(protocol: &mut Connection, trailers: &HeaderMap, out: &mut Vec<u8>) {
    protocol.finish(map_pairs(trailers), out);
}

/// The trailers of the current request.
pub(crate) fn trailers(protocol: &Connection) -> HeaderMap {
    header_map(protocol.trailers())
}
