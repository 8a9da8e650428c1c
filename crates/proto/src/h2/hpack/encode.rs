//! Encodes fields to header blocks. RFC 7541 §6.

use super::decode::FieldInfo;
use super::integer;
use super::static_table;
use super::table::{Name, Table};
use crate::field::{self, KnownField};

/// The initial size of a dynamic table. RFC 9113 §6.5.2.
pub const TABLE_BYTES_DEFAULT: u32 = 4096;

/// Encodes header blocks, and chooses the entries of its dynamic table.
///
/// A field is inserted when it occurs for the second time: content types, the server's name, the
/// date of the current second. A field that occurs once costs no entry. Credentials and cookies are
/// never inserted, and are marked so that proxies do not index them either. Strings are not
/// Huffman-coded: that would save bytes only where the table saves nearly all of them.
#[derive(Debug)]
pub struct Encoder {
    table: Table,
    /// Pairs of slots that store the hashes of fields seen before; empty before the first field.
    /// There are few of them, because they are read for each field, and the work of other
    /// connections evicts them from the CPU's cache.
    seen: Vec<Seen>,
    /// The maximum size that this side chooses.
    own_size_limit: u32,
    /// The size that was signalled to the peer's decoder.
    signalled_size: u32,
    /// The maximum size that the peer allows.
    peer_size_limit: u32,
    /// Whether the table was emptied, which must be signalled to the peer.
    was_cleared: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    hash: u16,
    /// The number of the field's insertion, plus 1, modulo 2^16; 0 if it was not inserted.
    insertion_tag: u16,
}

/// The number of pairs of slots.
const SEEN_SETS: u16 = 16;

impl Encoder {
    /// Creates an encoder whose table has at most `own_size_limit` bytes, and at most 4,096 before
    /// the peer allows more.
    #[must_use]
    pub const fn new(own_size_limit: u32) -> Self {
        Self {
            table: Table::new(if own_size_limit < TABLE_BYTES_DEFAULT {
                own_size_limit
            } else {
                TABLE_BYTES_DEFAULT
            }),
            seen: Vec::new(),
            own_size_limit,
            signalled_size: TABLE_BYTES_DEFAULT,
            peer_size_limit: TABLE_BYTES_DEFAULT,
            was_cleared: false,
        }
    }

    /// Applies the peer's SETTINGS_HEADER_TABLE_SIZE.
    pub fn set_peer_size_limit(&mut self, size: u32) {
        // RFC 7541 §4.2 requires two size updates if the limit was lower in between: the smallest
        // size, and the final one. Clearing the table signals the smallest possible size, 0.
        if size > self.peer_size_limit && self.peer_size_limit < self.signalled_size {
            self.was_cleared = true;
            self.table.clear();
        }
        self.peer_size_limit = size;
        if size < self.table.size_max() {
            self.table.resize(size);
        }
    }

    /// Starts a block. Must be called for every block.
    // RFC 7541 §4.2: a change of the size is signalled at the beginning of the first block after
    // it.
    #[inline]
    pub fn begin_block(&mut self, out: &mut Vec<u8>) {
        let size = self.own_size_limit.min(self.peer_size_limit);
        if self.was_cleared
            || self.signalled_size > self.peer_size_limit
            || size > self.signalled_size
        {
            self.write_size_update(size, out);
        }
    }

    #[cold]
    fn write_size_update(&mut self, size: u32, out: &mut Vec<u8>) {
        if self.was_cleared {
            integer::write(0, 5, 0x20, out);
        }
        integer::write(size as usize, 5, 0x20, out);
        self.table.resize(size);
        self.signalled_size = size;
        self.was_cleared = false;
    }

    /// Writes `:status`.
    #[inline]
    pub fn status(&mut self, status: u16, out: &mut Vec<u8>) {
        match static_table::find_status(status) {
            0 => {
                let digit = |number: u16| b'0' + u8::try_from(number % 10).unwrap_or(0);
                let digits = [digit(status / 100), digit(status / 10), digit(status)];
                write_literal(0x00, 4, STATUS_INDEX, b"", &digits, out);
            }
            index => out.push(0x80 | index),
        }
    }

    /// Writes a field. `name` is a token in lower case, `known` is its variant, and the value
    /// contains no control bytes.
    #[inline]
    pub fn field(&mut self, known: KnownField, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let bytes = name.len() + value.len() + super::table::ENTRY_OVERHEAD as usize;
        let lookup = if is_sensitive(known) {
            FieldLookup::NeverIndexed
        } else if bytes > self.table.size_max() as usize / 4 {
            FieldLookup::New
        } else {
            self.lookup(hash(known, name, value), name, value)
        };
        if let FieldLookup::Indexed(age) = lookup {
            return integer::write(static_table::COUNT as usize + 1 + age, 7, 0x80, out);
        }
        let (pattern, bits) = match lookup {
            FieldLookup::SeenBefore => (0x40, 6),
            // RFC 7541 §7.1.3: values that must not be guessed are marked as never indexed.
            FieldLookup::NeverIndexed => (0x10, 4),
            FieldLookup::New | FieldLookup::Indexed(_) => (0x00, 4),
        };
        write_literal(pattern, bits, static_table::find_name(known, name), name, value, out);
        if let FieldLookup::SeenBefore = lookup {
            self.table.insert(Name::Bytes(name), value, FieldInfo { known, ..UNUSED });
        }
    }

    /// Looks a field up, and records that it was seen or will be inserted.
    #[inline]
    fn lookup(&mut self, hash: u16, name: &[u8], value: &[u8]) -> FieldLookup {
        if self.seen.is_empty() {
            self.seen.resize(2 * usize::from(SEEN_SETS), Seen::default());
        }
        let (inserted, live) = (insertion_tag(self.table.inserted()), self.table.len());
        let age = |seen: &Seen| usize::from(inserted.wrapping_sub(seen.insertion_tag));
        let is_live = |seen: &Seen| seen.insertion_tag != 0 && age(seen) < live;
        let start = 2 * usize::from(hash % SEEN_SETS);
        let pair = &mut self.seen[start..start + 2];
        if let Some(seen) = pair.iter_mut().find(|seen| seen.hash == hash) {
            if is_live(seen) {
                let entry =
                    self.table.get(age(seen)).filter(|entry| (entry.0, entry.1) == (name, value));
                return if entry.is_some() {
                    FieldLookup::Indexed(age(seen))
                } else {
                    FieldLookup::New
                };
            }
            seen.insertion_tag = inserted.wrapping_add(1);
            return FieldLookup::SeenBefore;
        }
        let index = match (is_live(&pair[0]), is_live(&pair[1])) {
            (false, _) => 0,
            (_, false) => 1,
            // The older entry is replaced, for example the date of a past second.
            _ => usize::from(age(&pair[1]) > age(&pair[0])),
        };
        // Fills the slots alternately, so that a field seen once survives one other new field.
        pair[index] = Seen { hash, insertion_tag: 0 };
        if index == 0 && !is_live(&pair[1]) {
            pair.swap(0, 1);
        }
        FieldLookup::New
    }

    /// Empties the table and frees its memory. The next block signals it to the peer, which can do
    /// the same.
    pub fn shrink(&mut self) {
        self.was_cleared |= self.table.size() > 0;
        self.table.clear();
        self.table.shrink();
        self.seen = Vec::new();
    }

    /// The memory held, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes() + self.seen.capacity() * size_of::<Seen>()
    }

    /// Checks all invariants.
    pub fn assert_invariants(&self) {
        self.table.assert_invariants();
        assert!(self.table.size_max() <= self.own_size_limit.min(self.peer_size_limit));
        assert!(self.seen.len() <= 2 * usize::from(SEEN_SETS));
    }
}

/// The lookup result for a field that is about to be written.
enum FieldLookup {
    /// The field is in the table, this many entries before the newest.
    Indexed(usize),
    /// The field was seen before, and will be inserted.
    SeenBefore,
    /// The field is new, or too long for the table.
    New,
    /// The field must not be indexed.
    NeverIndexed,
}

/// The index of `:status` in the static table.
const STATUS_INDEX: usize = 8;

/// The info of an encoder's entries; only a decoder reads it.
const UNUSED: FieldInfo = FieldInfo {
    known: KnownField::Other,
    name: super::decode::NameClass::Field,
    value_is_valid: true,
};

// RFC 7541 §7.1.3: Authorization and Cookie are examples of fields that an encoder should not
// index.
const fn is_sensitive(known: KnownField) -> bool {
    matches!(
        known,
        KnownField::SetCookie
            | KnownField::Cookie
            | KnownField::Authorization
            | KnownField::ProxyAuthorization
    )
}

/// Writes a literal field. `index` is the index of its name in the static table, or 0.
#[inline]
fn write_literal(
    pattern: u8,
    bits: u32,
    index: usize,
    name: &[u8],
    value: &[u8],
    out: &mut Vec<u8>,
) {
    integer::write(index, bits, pattern, out);
    if index == 0 {
        integer::write(name.len(), 7, 0, out);
        out.extend_from_slice(name);
    }
    integer::write(value.len(), 7, 0, out);
    let start = out.len();
    out.extend_from_slice(value);
    if field::value_end(value, 0) < value.len() {
        replace_control_bytes(&mut out[start..]);
    }
}

/// Replaces control bytes by spaces.
// RFC 9110 §5.5: CR, LF and NUL are dangerous and are to be replaced with SP.
#[cold]
fn replace_control_bytes(value: &mut [u8]) {
    for byte in value {
        if (*byte < b' ' && *byte != b'\t') || *byte == 0x7f {
            *byte = b' ';
        }
    }
}

/// A hash of a name and a value. It covers only their first, middle and last bytes, so the caller
/// compares the whole field after a match.
#[inline]
fn hash(known: KnownField, name: &[u8], value: &[u8]) -> u16 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let name = if known == KnownField::Other { hash_sample(name) } else { known as u64 };
    let lengths = (value.len() as u64) << 32 | name.rotate_left(16);
    let mixed = (hash_sample(value) ^ lengths ^ name.rotate_left(40)).wrapping_mul(FACTOR);
    (mixed >> 48) as u16
}

/// The number of an insertion, as stored in [`Seen`]. After 2^16 insertions, an old slot can be
/// mistaken for a newer one, so the caller also compares the entry.
#[inline]
const fn insertion_tag(inserted: u32) -> u16 {
    (inserted & 0xffff) as u16
}

/// A word made of the first, the last and the middle bytes of a text.
#[inline]
fn hash_sample(text: &[u8]) -> u64 {
    match (text.first_chunk::<8>(), text.last_chunk::<8>()) {
        (Some(first), Some(last)) => {
            let middle = text[text.len() / 2 - 4..].first_chunk::<8>().unwrap_or(first);
            let [first, middle, last] =
                [first, middle, last].map(|chunk| u64::from_le_bytes(*chunk));
            first ^ middle.rotate_left(23) ^ last.rotate_left(45)
        }
        _ => text.iter().fold(text.len() as u64, |word, byte| word << 8 | u64::from(*byte)),
    }
}
