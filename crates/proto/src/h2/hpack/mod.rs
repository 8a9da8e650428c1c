//! HPACK (RFC 7541): converts between header blocks and fields.
//!
//! A [`Decoder`] passes each field to a [`FieldSink`] as soon as it is read, in place: from the
//! static table, the dynamic table, the block itself, or the single buffer for decoded Huffman
//! strings. Nothing is collected, so the sink limits the decoded size as it grows. A sink can
//! reject further fields; the decoder then continues without it, because the dynamic table must
//! stay in sync with the peer's.
//!
//! An [`Encoder`] writes an index for fields in the tables, and inserts into its small dynamic
//! table the fields that a connection sends repeatedly.

mod decode;
mod encode;
mod huffman;
mod integer;
mod static_table;
mod table;

pub use decode::{Decoder, Field, FieldInfo, FieldSink};
pub(crate) use decode::{NameClass, is_value};
pub use encode::{Encoder, TABLE_BYTES_DEFAULT};
