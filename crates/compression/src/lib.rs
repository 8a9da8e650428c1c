//! Middleware for compressed responses and request bodies.
//!
//! [`Compression`] compresses responses, complete or streamed, with a coding that the client
//! accepts; [`Decompression`] decodes request bodies. The codings are libraries (flate2, brotli,
//! zstd), each behind a feature.
//!
//! Adapters such as `async-compression` are not used. They work on byte streams, whereas bodies
//! here are streams of frames with trailers; and they do not flush when a producer pauses, do not
//! yield within a large chunk, and do not limit the output of a decompression bomb.
//!
//! Start reading with `compression.rs`; `encoded_body.rs` is the body that it produces.
#![forbid(unsafe_code)]
// Without any coding, the crate is empty.
#![cfg(any(feature = "br", feature = "deflate", feature = "gzip", feature = "zstd"))]

mod accept_encoding;
mod coding;
mod compression;
mod decoder;
mod decompression;
mod eligible;
mod encoded_body;
mod encoder;
#[cfg(all(test, feature = "br", feature = "deflate", feature = "gzip", feature = "zstd"))]
mod tests;

pub use coding::ContentCoding;
pub use compression::{Compression, CompressionLevel};
pub use decompression::Decompression;
pub use peregrine_web::response::NoCompression;
