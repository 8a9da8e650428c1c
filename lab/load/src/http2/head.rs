//! Heads of replies: from header blocks to a status and field lines.

use std::borrow::Cow;
use std::sync::Arc;

use loona_hpack::Decoder;

use crate::client::fault::Fault;
use crate::client::reply::{BODY_BYTES_MAX, HEAD_BYTES_MAX, is_text, is_token};

/// Fields that no message of HTTP/2 has (RFC 9113 §8.2.2).
const FORBIDDEN: [&[u8]; 5] =
    [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"];

/// How large the table of a server may become, which is what both sides take for granted.
const TABLE_BYTES_MAX: usize = 4096;

/// The head of a reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) status: u16,
    /// The field lines in the form of HTTP/1.1, each with its line end.
    pub(super) lines: Vec<u8>,
    /// What Content-Length says.
    pub(super) length: Option<usize>,
}

/// Reads the heads of a connection.
pub(super) struct Heads {
    decoder: Decoder<'static>,
    /// The last block, if it left the table alone: the same bytes then mean the same head.
    last_block: Vec<u8>,
    last: Arc<Head>,
}

impl Default for Heads {
    fn default() -> Heads {
        let mut decoder = Decoder::new();
        decoder.set_max_allowed_table_size(TABLE_BYTES_MAX);
        Heads { decoder, last_block: Vec::new(), last: Arc::default() }
    }
}

impl Heads {
    pub(super) fn read(&mut self, block: &[u8]) -> Result<Arc<Head>, Fault> {
        if !block.is_empty() && block == self.last_block {
            return Ok(self.last.clone());
        }
        self.last_block.clear();
        let head = self.decode(block, false)?;
        if head.status == 0 {
            return Err(Fault::Malformed);
        }
        self.last = Arc::new(head);
        if !changes_table(block) {
            self.last_block.extend_from_slice(block);
        }
        Ok(self.last.clone())
    }

    pub(super) fn read_trailers(&mut self, block: &[u8]) -> Result<(), Fault> {
        // They may change the table, after which the same bytes may mean another head.
        self.last_block.clear();
        self.decode(block, true).map(drop)
    }

    fn decode(&mut self, block: &[u8], is_trailer: bool) -> Result<Head, Fault> {
        let mut head = Head::default();
        let mut fault = None;
        let decoded = self.decoder.decode_with_cb(block, |name: Cow<[u8]>, value: Cow<[u8]>| {
            if fault.is_none() {
                fault = head.add(&name, &value, is_trailer).err();
            }
        });
        match (decoded, fault) {
            (Ok(()), None) => Ok(head),
            _ => Err(Fault::Malformed),
        }
    }
}

impl Head {
    fn add(&mut self, name: &[u8], value: &[u8], is_trailer: bool) -> Result<(), Fault> {
        if name.starts_with(b":") {
            // RFC 9113 §8.3: before all fields, and of replies only the status, once.
            let is_first = self.status == 0 && self.lines.is_empty() && !is_trailer;
            let &[a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] = value else {
                return Err(Fault::Malformed);
            };
            if name != b":status" || !is_first {
                return Err(Fault::Malformed);
            }
            self.status =
                u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0');
            return Ok(());
        }
        // RFC 9113 §8.2: names are in lower case, and no white space stands around values.
        let is_name = !name.is_empty()
            && name.iter().all(|&byte| is_token(byte) && !byte.is_ascii_uppercase());
        let is_value = value.iter().all(is_text) && value.trim_ascii().len() == value.len();
        let bytes = self.lines.len() + name.len() + value.len();
        if !is_name || !is_value || FORBIDDEN.contains(&name) || bytes > HEAD_BYTES_MAX {
            return Err(Fault::Malformed);
        }
        if name == b"content-length" {
            let text = std::str::from_utf8(value).map_err(|_| Fault::Malformed)?;
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            let length: usize = text.parse().map_err(|_| Fault::Malformed)?;
            if !is_number || length > BODY_BYTES_MAX || self.length.replace(length).is_some() {
                return Err(Fault::Malformed);
            }
        }
        for part in [name, b": ", value, b"\r\n"] {
            self.lines.extend_from_slice(part);
        }
        Ok(())
    }
}

/// Whether a block adds to the table or changes its size (RFC 7541 §6). A block that cannot be read is
/// said to.
fn changes_table(block: &[u8]) -> bool {
    let mut rest = block;
    while let Some(&byte) = rest.first() {
        let after = match byte {
            0x80.. => integer(rest, 7).map(|(_, after)| after),
            0x20..=0x7f => return true,
            _ => literal_end(rest),
        };
        let Some(after) = after else { return true };
        rest = after;
    }
    false
}

/// What stands behind a literal that no table remembers.
fn literal_end(bytes: &[u8]) -> Option<&[u8]> {
    let (index, mut rest) = integer(bytes, 4)?;
    if index == 0 {
        rest = string_end(rest)?;
    }
    string_end(rest)
}

fn string_end(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = integer(bytes, 7)?;
    rest.get(length..)
}

/// An integer in the lowest `prefix` bits of the first byte and as many more as it takes, and what
/// follows (RFC 7541 §5.1).
fn integer(bytes: &[u8], prefix: u32) -> Option<(usize, &[u8])> {
    let (&first, mut rest) = bytes.split_first()?;
    let most = (1_usize << prefix) - 1;
    let mut value = usize::from(first) & most;
    if value < most {
        return Some((value, rest));
    }
    for shift in [0, 7, 14, 21] {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        value += usize::from(byte & 127) << shift;
        if byte < 128 {
            return Some((value, rest));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS_200: u8 = 0x88;

    #[test]
    fn the_same_block_is_read_once_unless_it_changes_the_table() {
        let mut heads = Heads::default();
        let plain = b"\x88\x00\x01a\x01b";
        let first = heads.read(plain).unwrap();
        assert_eq!((first.status, first.lines.as_slice()), (200, &b"a: b\r\n"[..]));
        assert!(Arc::ptr_eq(&first, &heads.read(plain).unwrap()));
        let adding = b"\x88\x40\x01a\x01c";
        let added = heads.read(adding).unwrap();
        assert!(!Arc::ptr_eq(&added, &heads.read(adding).unwrap()));
        // What was added last has number 62.
        assert_eq!(heads.read(b"\x88\xbe").unwrap().lines, b"a: c\r\n");
        heads.read(b"\x88\x40\x01a\x01d").unwrap();
        assert_eq!(heads.read(b"\x88\xbe").unwrap().lines, b"a: d\r\n");
        heads.read_trailers(b"\x40\x01a\x01e").unwrap();
        assert_eq!(heads.read(b"\x88\xbe").unwrap().lines, b"a: e\r\n");
    }

    #[test]
    fn blocks_that_change_the_table_are_told_from_others() {
        for (block, changes) in [
            (&b"\x88"[..], false),
            (b"\x00\x01a\x01b", false),
            (b"\x0f\x0d\x0227", false),
            (b"\x10\x01a\x01b\x88", false),
            (b"\x40\x01a\x01b", true),
            (b"\x88\x61\x01b", true),
            (b"\x20\x88", true),
            (b"\x00\x01a\x05b", true),
            (b"\xff", true),
        ] {
            assert_eq!(changes_table(block), changes, "{block:?}");
        }
    }

    #[test]
    fn heads_that_are_none_are_refused() {
        for fields in [
            &b""[..],
            b"\x00\x01A\x01b",
            b"\x00\x01a\x02b ",
            b"\x00\x01a\x01\n",
            b"\x00\x00\x01b",
            b"\x00\x0aconnection\x05close",
            b"\x00\x11transfer-encoding\x07chunked",
            b"\x00\x0econtent-length\x02+1",
            b"\x00\x0econtent-length\x011\x00\x0econtent-length\x011",
            b"\x88",
            b"\x82",
            b"\xff",
        ] {
            let block = if fields.is_empty() {
                b"\x00\x01a\x01b".to_vec()
            } else {
                [&[STATUS_200], fields].concat()
            };
            assert_eq!(Heads::default().read(&block).err(), Some(Fault::Malformed), "{block:?}");
        }
        assert_eq!(Heads::default().read_trailers(b"\x88"), Err(Fault::Malformed));
    }
}
