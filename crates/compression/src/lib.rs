//! Compressed responses and request bodies: two middleware.
//!
//! [`Compression`] compresses what routes answer, whole bodies and streams, in a coding that the client accepts.
//! [`Decompression`] unpacks what clients send. Both build on `peregrine-web` only.
//!
//! The codings themselves are other people's libraries (flate2, brotli, zstd), each behind a feature. Adapters such as
//! `async-compression` are not used: they want readers and writers of bytes, where bodies here are streams of frames with
//! trailers, and they neither flush when a producer pauses, nor yield within a large piece, nor bound what a bomb makes of a small one.
//!
//! Start with `compression.rs`; `encoded.rs` is the body that it makes.
#![forbid(unsafe_code)]
// Without a coding there is nothing here.
#![cfg(any(feature = "br", feature = "deflate", feature = "gzip", feature = "zstd"))]

mod accept;
mod coding;
mod compression;
mod decode;
mod decompression;
mod eligible;
mod encode;
mod encoded;
#[cfg(all(test, feature = "br", feature = "deflate", feature = "gzip", feature = "zstd"))]
mod tests;

pub use coding::Coding;
pub use compression::{Compression, Level};
pub use decompression::Decompression;
pub use peregrine_web::respond::Uncompressed;
