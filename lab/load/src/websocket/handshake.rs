//! The opening handshake (RFC 6455 §4).

use sha1::{Digest, Sha1};

use crate::client::fault::Fault;
use crate::client::reply::{Parsed, parse_reply};

/// What a server appends to the key before it hashes it (RFC 6455 §1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

const KEY_FIELD: &[u8] = b"Sec-WebSocket-Key";

/// What a client offers.
pub(crate) struct Offer {
    key: String,
}

impl Offer {
    pub(super) fn new(random: [u64; 2]) -> Offer {
        let bytes = u128::from(random[0]) << 64 | u128::from(random[1]);
        Offer { key: base64(&bytes.to_be_bytes()) }
    }

    /// Puts the request into `out`: the head of `request`, without the length of a body that is sent
    /// otherwise, and the fields of the offer.
    pub(super) fn write(&self, request: &[u8], out: &mut Vec<u8>) {
        let end = memchr::memmem::find(request, b"\r\n\r\n").unwrap_or(request.len());
        for line in request[..end].split(|&byte| byte == b'\n') {
            let line = line.trim_ascii_end();
            if !named(line, b"Content-Length") {
                out.extend_from_slice(line);
                out.extend_from_slice(b"\r\n");
            }
        }
        let fields = format!(
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: {}\r\n\r\n",
            self.key
        );
        out.extend_from_slice(fields.as_bytes());
    }

    /// How many bytes the server's answer takes up, if it takes the offer; none if it is not whole.
    pub(super) fn judge(&self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        let (count, reply) = match parse_reply(bytes, false)? {
            Parsed::PartOfHead => return Ok(None),
            // An answer with a body is a refusal, whatever the rest of it says.
            Parsed::PartOfBody => return Err(Fault::Upgrade),
            Parsed::Whole(count, reply) => (count, reply),
        };
        let has = |name, wanted: &str| {
            let value = reply.field(name).unwrap_or_default();
            let mut words = value.split(|&byte| byte == b',');
            words.any(|word| word.trim_ascii().eq_ignore_ascii_case(wanted.as_bytes()))
        };
        // RFC 6455 §4.1, the second list of six steps. Nothing was offered but the protocol itself.
        let is_taken = reply.status == 101
            && has("upgrade", "websocket")
            && has("connection", "upgrade")
            && reply.field("sec-websocket-accept")
                == Some(accept_key(self.key.as_bytes()).as_bytes())
            && reply.field("sec-websocket-extensions").is_none()
            && reply.field("sec-websocket-protocol").is_none();
        if is_taken { Ok(Some(count)) } else { Err(Fault::Upgrade) }
    }
}

/// What a server says of this key.
#[must_use]
pub fn accept_key(key: &[u8]) -> String {
    base64(&Sha1::new().chain_update(key).chain_update(GUID).finalize())
}

/// The key in the head of a request.
pub(crate) fn offered_key(head: &[u8]) -> Option<&[u8]> {
    let mut lines = head.split(|&byte| byte == b'\n');
    let line = lines.find(|line| named(line, KEY_FIELD))?;
    Some(line[KEY_FIELD.len() + 1..].trim_ascii())
}

/// Whether a line is that of the field of this name.
fn named(line: &[u8], name: &[u8]) -> bool {
    let start = line.get(..name.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(name))
        && line.get(name.len()) == Some(&b':')
}

/// RFC 4648 §4.
fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |place: usize| u32::from(three.get(place).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let six = (bits >> (18 - 6 * place)) & 63;
            let letter = if place <= three.len() { ALPHABET[six as usize] } else { b'=' };
            text.push(char::from(letter));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_key_is_that_of_the_standard() {
        // RFC 6455 §1.3.
        assert_eq!(accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn base64_is_that_of_the_standard() {
        // RFC 4648 §10.
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn the_offer_has_the_head_of_the_request_and_a_key_of_16_bytes() {
        let request = b"GET /ws HTTP/1.1\r\nHost: a\r\nX: y\r\nContent-Length: 2\r\n\r\nhi";
        let offer = Offer::new([1, 2]);
        let mut out = Vec::new();
        offer.write(request, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("GET /ws HTTP/1.1\r\nHost: a\r\nX: y\r\nConnection: Upgrade\r\n"));
        assert!(text.ends_with("\r\n\r\n") && !text.contains("Length"), "{text}");
        let key = offered_key(text.as_bytes()).unwrap();
        assert_eq!((key.len(), key), (24, offer.key.as_bytes()));
        assert_ne!(key, Offer::new([1, 3]).key.as_bytes());
    }
}
