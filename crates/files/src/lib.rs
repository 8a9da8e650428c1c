//! Serves static files from a directory or an embedded tree.
//!
//! ```
//! use peregrine::files::Files;
//! use peregrine::prelude::*;
//!
//! let files = Files::dir("static").serve_precompressed().immutable_hashed_names();
//! let app = App::new().subtree("/static", files);
//! # drop(app);
//! ```
//!
//! Supports ranges and conditions (RFC 9110, sections 14 and 13), precompressed files, media types,
//! index files, a fallback for single-page applications, listings and download names. Files outside
//! the directory and hidden files are not served. Disk access that may block runs on other threads;
//! large files are sent from the page cache as the client takes them, and small files are cached
//! briefly.
//!
//! Start reading at [`Files`], then `dir/mod.rs` for the disk and `respond.rs` for HTTP. `range.rs`
//! and `content_coding.rs` do no I/O; the rules for conditions are in `peregrine-web`. `body.rs`
//! passes file ranges to drivers, and `disk.rs` queries the page cache.
#![forbid(unsafe_code)]

mod blocking;
mod body;
mod cache;
mod content_coding;
mod content_disposition;
mod dir;
mod disk;
#[cfg(feature = "embed")]
mod embedded;
mod files;
mod listing;
mod metadata;
mod range;
mod respond;
mod target;

pub use content_disposition::{attachment, inline};
pub use files::{CACHE_BYTES_DEFAULT, CACHE_TTL_DEFAULT, CACHED_FILE_BYTES_MAX, Files};
