//! Files as responses: of a folder, or of a tree that is part of the program.
//!
//! ```
//! use peregrine::files::Files;
//! use peregrine::prelude::*;
//!
//! let files = Files::folder("static").precompressed().immutable_hashed_names();
//! let app = App::new().subtree("/static", files);
//! # drop(app);
//! ```
//!
//! Ranges (RFC 9110 §14), conditions (§13), compressed forms beside a file, media types, an index, a fallback for
//! applications of a single page, listings, names for downloads. Nothing outside of the folder is served, and
//! nothing hidden. The disk is left to threads that may block; a large file is sent from the system's memory as its
//! peer takes it, and small ones are kept for a moment.
//!
//! Start reading at [`Files`], then `folder.rs` for the disk and `respond.rs` for HTTP. `range.rs` and `encoding.rs`
//! are rules without I/O; those of conditions are in `peregrine-web`. `body.rs` gives parts of files to drivers that send them, and `disk.rs` asks what the system has in memory.
#![forbid(unsafe_code)]

mod body;
mod cache;
mod disk;
#[cfg(feature = "embed")]
mod embedded;
mod encoding;
mod facts;
mod files;
mod folder;
mod listing;
mod names;
mod range;
mod respond;
mod target;
mod work;

pub use files::{CACHE_BYTES, CACHE_FRESH_FOR, Files, SMALL_BYTES_MAX};
pub use names::{attachment, inline};
