//! Decodes header blocks to fields. RFC 7541 §3 and §6.

use super::huffman;
use super::integer;
use super::static_table;
use super::table::{Name, SIZE_CEILING, Table};
use crate::authority;
use crate::field::{self, KnownField, QUERY};
use crate::h2::Http2Error;

/// A field of a header block.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    /// The name; may contain any bytes.
    pub name: &'a [u8],
    /// The value; may contain any bytes.
    pub value: &'a [u8],
    /// The properties of both.
    pub info: FieldInfo,
}

/// Receives the fields of a block.
pub trait FieldSink {
    /// Receives a field. Returns whether the sink accepts more fields; if not, the decoder decodes
    /// the rest of the block without calling it.
    fn field(&mut self, field: Field<'_>) -> bool;
}

/// Properties of a field. The dynamic table stores them, so that they are computed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldInfo {
    /// The name's variant.
    pub known: KnownField,
    /// The role of the name in a request.
    pub(crate) name: NameClass,
    /// Whether the value is valid for its field: for `:authority`, a host and a port; for `:path`,
    /// a path with its slash and optionally a query.
    pub(crate) value_is_valid: bool,
}

/// The role of a name in an HTTP/2 request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum NameClass {
    /// `:method`.
    Method,
    /// `:scheme`.
    Scheme,
    /// `:authority`.
    Authority,
    /// `:path`.
    Path,
    /// `:protocol`.
    Protocol,
    /// Any other name with a colon at its start.
    OtherPseudo,
    /// The name of a field.
    Field,
    /// The name of a field that has a meaning only for HTTP/1 connections.
    Connection,
    /// A name with an upper-case letter.
    Uppercase,
    /// An empty name, or one that is not a token.
    Invalid,
}

impl FieldInfo {
    /// The properties of a name and a value.
    #[must_use]
    pub fn new(name: &[u8], value: &[u8]) -> Self {
        let known = KnownField::from_name(name);
        let this = Self { known, name: NameClass::classify(name, known), value_is_valid: false };
        this.with_value(value)
    }

    fn with_value(self, value: &[u8]) -> Self {
        let value_is_valid = match self.name {
            NameClass::Authority => authority::is_host_and_port(value),
            NameClass::Path => {
                value.first() == Some(&b'/')
                    && value.iter().all(|byte| field::has_class(*byte, QUERY))
            }
            _ => is_value(value),
        };
        Self { value_is_valid, ..self }
    }
}

// RFC 9113 §8.2.1: a value has no NUL, CR or LF, nor white space at its ends. Other control bytes
// are not allowed in a value by RFC 9110 §5.5.
pub(crate) fn is_value(value: &[u8]) -> bool {
    let edges = (value.first(), value.last());
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    !is_space(edges.0) && !is_space(edges.1) && field::value_end(value, 0) == value.len()
}

impl NameClass {
    fn classify(name: &[u8], known: KnownField) -> Self {
        match known {
            KnownField::Other => Self::classify_other(name),
            _ if name != known.name().as_bytes() => Self::Uppercase,
            // RFC 9113 §8.2.2: connection-specific fields.
            KnownField::Connection
            | KnownField::KeepAlive
            | KnownField::TransferEncoding
            | KnownField::Upgrade => Self::Connection,
            _ => Self::Field,
        }
    }

    fn classify_other(name: &[u8]) -> Self {
        match name {
            b":method" => Self::Method,
            b":scheme" => Self::Scheme,
            b":authority" => Self::Authority,
            b":path" => Self::Path,
            b":protocol" => Self::Protocol,
            b"proxy-connection" => Self::Connection,
            [b':', ..] => Self::OtherPseudo,
            _ if !field::is_token(name) => Self::Invalid,
            _ if name.iter().any(u8::is_ascii_uppercase) => Self::Uppercase,
            _ => Self::Field,
        }
    }
}

/// The position of a string.
enum StringRef {
    /// In the block.
    Block(usize, usize),
    /// In the scratch buffer, where Huffman-coded strings are decoded.
    Scratch(usize, usize),
}

impl StringRef {
    #[inline]
    fn get<'a>(&self, block: &'a [u8], scratch: &'a [u8]) -> &'a [u8] {
        match *self {
            Self::Block(start, end) => &block[start..end],
            Self::Scratch(start, end) => &scratch[start..end],
        }
    }
}

/// Decodes header blocks, with the dynamic table that the peer's encoder fills.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// The maximum size that the peer may choose: the acknowledged setting.
    size_limit: u32,
    /// Whether the setting was reduced below the table's size, and the peer has not yet sent a size
    /// update.
    needs_size_update: bool,
    scratch: Vec<u8>,
}

impl Decoder {
    /// Creates a decoder with an empty table of the default size. RFC 9113 §6.5.2.
    #[must_use]
    pub const fn new() -> Self {
        let size = super::TABLE_BYTES_DEFAULT;
        Self {
            table: Table::new(size),
            size_limit: size,
            needs_size_update: false,
            scratch: Vec::new(),
        }
    }

    /// Applies a SETTINGS_HEADER_TABLE_SIZE that the peer has acknowledged. Values above 65,535 are
    /// reduced to that.
    pub fn set_size_max(&mut self, size_max: u32) {
        self.size_limit = size_max.min(SIZE_CEILING);
        // RFC 7541 §4.2: a change that makes the table smaller is signalled before the next field.
        self.needs_size_update |= self.size_limit < self.table.size_max();
    }

    /// Passes the fields of a block to `sink` until the sink accepts no more. Returns the size of
    /// all fields as defined by RFC 9113 §6.5.2, which must not exceed `bytes_max`.
    ///
    /// # Errors
    /// The block cannot be decoded completely. The table is then out of sync with the peer's, so
    /// the connection must end.
    pub fn decode(
        &mut self,
        block: &[u8],
        bytes_max: usize,
        sink: &mut impl FieldSink,
    ) -> Result<usize, Http2Error> {
        let (mut at, mut bytes, mut wants_more, mut has_fields) = (0, 0_usize, true, false);
        while let Some(first) = block.get(at) {
            if first & 0xe0 == 0x20 {
                at = self.read_size_update(block, at, has_fields)?;
                continue;
            }
            if self.needs_size_update {
                return Err(Http2Error::SizeUpdateMissing);
            }
            has_fields = true;
            let length;
            if first & 0x80 != 0 {
                let (index, next) = integer::read(block, at, 7)?;
                let field = self.entry(index)?;
                length = field.name.len() + field.value.len();
                wants_more = wants_more && sink.field(field);
                at = next;
            } else {
                (at, length) = self.read_literal(block, at, *first, &mut wants_more, sink)?;
            }
            bytes += length + super::table::ENTRY_OVERHEAD as usize;
            if bytes > bytes_max {
                return Err(Http2Error::HeaderListTooLarge);
            }
        }
        Ok(bytes)
    }

    /// Reads a literal field; returns the offset of the next one, and the size of this one.
    fn read_literal(
        &mut self,
        block: &[u8],
        at: usize,
        first: u8,
        wants_more: &mut bool,
        sink: &mut impl FieldSink,
    ) -> Result<(usize, usize), Http2Error> {
        let inserts = first & 0x40 != 0;
        let (index, at) = integer::read(block, at, if inserts { 6 } else { 4 })?;
        self.scratch.clear();
        let (name, at) = match index {
            0 => self.read_string(block, at).map(|(name, at)| (Some(name), at))?,
            _ => (None, at),
        };
        let (value, at) = self.read_string(block, at)?;
        let value = value.get(block, &self.scratch);
        let field = match &name {
            Some(name) => {
                let name = name.get(block, &self.scratch);
                Field { name, value, info: FieldInfo::new(name, value) }
            }
            None => {
                let entry = self.entry(index)?;
                Field { value, info: entry.info.with_value(value), ..entry }
            }
        };
        let (length, info) = (field.name.len() + value.len(), field.info);
        *wants_more = *wants_more && sink.field(field);
        if inserts {
            let name = match (&name, index.checked_sub(static_table::COUNT + 1)) {
                (Some(name), _) => Name::Bytes(name.get(block, &self.scratch)),
                (None, Some(age)) => Name::Entry(age as usize),
                (None, None) => {
                    Name::Bytes(static_table::entry(index).map_or(&[], |entry| entry.name))
                }
            };
            self.table.insert(name, value, info);
        }
        Ok((at, length))
    }

    // RFC 7541 §5.2: a string has its length, and a bit for whether it is Huffman-coded.
    fn read_string(&mut self, block: &[u8], at: usize) -> Result<(StringRef, usize), Http2Error> {
        let is_huffman = block.get(at).ok_or(Http2Error::HeaderBlockTruncated)? & 0x80 != 0;
        let (length, start) = integer::read(block, at, 7)?;
        let end = start + length as usize;
        let code = block.get(start..end).ok_or(Http2Error::HeaderBlockTruncated)?;
        if !is_huffman {
            return Ok((StringRef::Block(start, end), end));
        }
        let from = self.scratch.len();
        huffman::decode(code, &mut self.scratch)?;
        Ok((StringRef::Scratch(from, self.scratch.len()), end))
    }

    // RFC 7541 §4.2: a size update is at the beginning of a block; §6.3: it must not exceed the
    // limit.
    fn read_size_update(
        &mut self,
        block: &[u8],
        at: usize,
        has_fields: bool,
    ) -> Result<usize, Http2Error> {
        let (size, at) = integer::read(block, at, 5)?;
        if has_fields {
            return Err(Http2Error::SizeUpdateMisplaced);
        }
        if size > self.size_limit {
            return Err(Http2Error::SizeUpdateTooLarge);
        }
        self.table.resize(size);
        self.needs_size_update = false;
        Ok(at)
    }

    // RFC 7541 §2.3.3: an index beyond both tables is a decoding error, and so is 0 (§6.1).
    #[inline]
    fn entry(&self, index: u32) -> Result<Field<'_>, Http2Error> {
        if let Some(age) = index.checked_sub(static_table::COUNT + 1) {
            let (name, value, info) =
                self.table.get(age as usize).ok_or(Http2Error::IndexInvalid)?;
            return Ok(Field { name, value, info });
        }
        let entry = static_table::entry(index).ok_or(Http2Error::IndexInvalid)?;
        Ok(Field { name: entry.name, value: entry.value, info: entry.info })
    }

    /// Frees memory that is only needed while a block is read.
    pub fn trim(&mut self) {
        self.scratch = Vec::new();
    }

    /// Frees memory that the table's entries do not need.
    pub fn shrink(&mut self) {
        self.table.shrink();
        self.trim();
    }

    /// The memory held, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes() + self.scratch.capacity()
    }

    /// The size of the dynamic table as defined by RFC 7541 §4.1.
    #[must_use]
    pub const fn table_bytes(&self) -> u32 {
        self.table.size()
    }

    /// Checks all invariants.
    pub fn assert_invariants(&self) {
        self.table.assert_invariants();
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}
