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

/// What a field takes up in the table at least (RFC 7541 §4.1).
const FIELD_BYTES_MIN: usize = 32;

/// The last field of the static table.
const STATIC_LAST: usize = 61;

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
    /// The last block, if the same bytes mean the same head again: it left the table alone, or took
    /// nothing from it that a reply before had added.
    last_block: Vec<u8>,
    last: Arc<Head>,
    /// How many fields each such block adds to the table.
    added: usize,
    /// How often it came again without having been read.
    skipped: usize,
    /// The last block of trailers, if it left the table alone and the table is as it was then.
    trailers_block: Vec<u8>,
    trailers: Arc<Head>,
}

impl Default for Heads {
    fn default() -> Heads {
        let mut decoder = Decoder::new();
        decoder.set_max_allowed_table_size(TABLE_BYTES_MAX);
        Heads {
            decoder,
            last_block: Vec::new(),
            last: Arc::default(),
            added: 0,
            skipped: 0,
            trailers_block: Vec::new(),
            trailers: Arc::default(),
        }
    }
}

impl Heads {
    pub(super) fn read(&mut self, block: &[u8]) -> Result<Arc<Head>, Fault> {
        if !block.is_empty() && block == self.last_block {
            self.skipped += 1;
            return Ok(self.last.clone());
        }
        self.catch_up()?;
        let head = self.decode(block, false)?;
        if head.status == 0 {
            return Err(Fault::Malformed);
        }
        self.last = Arc::new(head);
        let added = added_fields(block);
        if let Some(added) = added {
            self.last_block.extend_from_slice(block);
            self.added = added;
        }
        if added != Some(0) {
            self.trailers_block.clear();
        }
        Ok(self.last.clone())
    }

    /// Reads trailers. Where neither they nor the heads between them add to the table, the same
    /// blocks need no reading again.
    pub(super) fn read_trailers(&mut self, block: &[u8]) -> Result<Arc<Head>, Fault> {
        if !block.is_empty() && block == self.trailers_block {
            return Ok(self.trailers.clone());
        }
        if self.added > 0 {
            self.catch_up()?;
        }
        self.trailers = Arc::new(self.decode(block, true)?);
        self.trailers_block.clear();
        if added_fields(block) == Some(0) {
            self.trailers_block.extend_from_slice(block);
        } else {
            self.catch_up()?;
        }
        Ok(self.trailers.clone())
    }

    /// Brings the table to where the server's is, by reading what was skipped. More often than fills
    /// the table it need not be read: the table then holds nothing else.
    fn catch_up(&mut self) -> Result<(), Fault> {
        let block = std::mem::take(&mut self.last_block);
        if self.added > 0 {
            let filling = TABLE_BYTES_MAX / (FIELD_BYTES_MIN * self.added) + 1;
            for _ in 0..self.skipped.min(filling) {
                self.decode(&block, false)?;
            }
        }
        (self.added, self.skipped) = (0, 0);
        Ok(())
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

/// How many fields a block adds to the table, if its meaning does not depend on what is in there
/// (RFC 7541 §6); none if it does, if it changes the size of the table, or if it cannot be read.
fn added_fields(block: &[u8]) -> Option<usize> {
    let (mut rest, mut added, mut is_fixed) = (block, 0, true);
    while let Some(&byte) = rest.first() {
        let prefix = match byte {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => return None,
            _ => 4,
        };
        let (index, after) = integer(rest, prefix)?;
        is_fixed &= index <= STATIC_LAST;
        added += usize::from(prefix == 6);
        rest = match (prefix, index) {
            (7, _) => after,
            (_, 0) => string_end(string_end(after)?)?,
            _ => string_end(after)?,
        };
    }
    // Where nothing is added, what is in the table stays the same.
    (is_fixed || added == 0).then_some(added)
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
    fn the_same_block_is_read_once_and_the_table_is_as_if_it_had_been_read_each_time() {
        let mut heads = Heads::default();
        let plain = b"\x88\x00\x01a\x01b";
        let first = heads.read(plain).unwrap();
        assert_eq!((first.status, first.lines.as_slice()), (200, &b"a: b\r\n"[..]));
        assert!(Arc::ptr_eq(&first, &heads.read(plain).unwrap()));
        heads.read(b"\x88\x40\x01a\x01z").unwrap();
        let adding = b"\x88\x40\x01a\x01c";
        let added = heads.read(adding).unwrap();
        assert!(Arc::ptr_eq(&added, &heads.read(adding).unwrap()));
        // What was added last has number 62: c twice, before that z.
        assert_eq!(heads.read(b"\x88\xbe").unwrap().lines, b"a: c\r\n");
        assert_eq!(heads.read(b"\x88\xbf").unwrap().lines, b"a: c\r\n");
        assert_eq!(heads.read(b"\x88\xc0").unwrap().lines, b"a: z\r\n");
        let trailers = heads.read_trailers(b"\x40\x01a\x01e").unwrap();
        assert_eq!(trailers.lines, b"a: e\r\n");
        assert_eq!(heads.read(b"\x88\xbe").unwrap().lines, b"a: e\r\n");
        for _ in 0..1000 {
            heads.read(adding).unwrap();
        }
        // The table has room for 4096 bytes: 120 fields of 34.
        let oldest = 61 + 120 - 127;
        assert_eq!(heads.read(&[0x88, 0xff, oldest]).unwrap().lines, b"a: c\r\n");
        assert!(heads.read(&[0x88, 0xff, oldest + 1]).is_err());
    }

    #[test]
    fn the_same_trailers_are_read_once_as_long_as_the_table_stays_the_same() {
        let mut heads = Heads::default();
        heads.read(b"\x88\x40\x01a\x01b").unwrap();
        let trailers = heads.read_trailers(b"\xbe").unwrap();
        assert_eq!(trailers.lines, b"a: b\r\n");
        // A head that adds nothing leaves the trailers known, and they it.
        let head = heads.read(b"\x88\x00\x01c\x01d").unwrap();
        assert!(Arc::ptr_eq(&trailers, &heads.read_trailers(b"\xbe").unwrap()));
        assert!(Arc::ptr_eq(&head, &heads.read(b"\x88\x00\x01c\x01d").unwrap()));
        // A head that adds a field gives the number of the old one to it.
        let adding = b"\x88\x40\x01a\x01e";
        heads.read(adding).unwrap();
        assert_eq!(heads.read_trailers(b"\xbe").unwrap().lines, b"a: e\r\n");
        heads.read(adding).unwrap();
        heads.read(adding).unwrap();
        assert_eq!(heads.read_trailers(b"\xc0").unwrap().lines, b"a: e\r\n");
        assert_eq!(heads.read_trailers(b"\xc1").unwrap().lines, b"a: b\r\n");
        // Trailers that add a field move what heads refer to.
        heads.read(b"\x88\xbe").unwrap();
        heads.read_trailers(b"\x40\x01a\x01f").unwrap();
        assert_eq!(heads.read(b"\x88\xbe").unwrap().lines, b"a: f\r\n");
    }

    #[test]
    fn blocks_whose_meaning_depends_on_the_table_are_told_from_others() {
        for (block, added) in [
            (&b"\x88"[..], Some(0)),
            (b"\xbe", Some(0)),
            (b"\x00\x01a\x01b", Some(0)),
            (b"\x0f\x0d\x0227", Some(0)),
            (b"\x10\x01a\x01b\x88", Some(0)),
            (b"\x40\x01a\x01b\x61\x01b", Some(2)),
            (b"\xbe\x61\x01b", None),
            (b"\x7e\x01b", None),
            (b"\x20\x88", None),
            (b"\x00\x01a\x05b", None),
            (b"\xff", None),
        ] {
            assert_eq!(added_fields(block), added, "{block:?}");
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
        assert_eq!(Heads::default().read_trailers(b"\x88").err(), Some(Fault::Malformed));
    }
}
