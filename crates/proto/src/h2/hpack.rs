//! HPACK (RFC 7541): header blocks to fields and back.
//!
//! A [`Decoder`] gives each field to a [`Sink`] as soon as it is read, in place: from the static
//! table, the dynamic table, the block itself, or the one buffer that Huffman-coded strings are
//! decoded into. Nothing is collected, so it is the sink that limits the decoded size, as it grows. A
//! sink that has enough says so, and the decoder goes on without it, because the dynamic table must
//! stay what the peer believes it is.
//!
//! An [`Encoder`] writes an index for what the tables have, and puts into its small dynamic table
//! what a connection sends again and again.

mod decode;
mod encode;
mod huffman;
mod integer;
mod static_table;
mod table;

pub use decode::{Decoder, Field, Sink, Traits};
pub(crate) use decode::{NameClass, is_value};
pub use encode::{Encoder, TABLE_BYTES_DEFAULT};
