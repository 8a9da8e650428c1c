//! Multipart forms with file uploads (`multipart/form-data`, RFC 7578), as browsers send them.
//!
//! [`Multipart`] yields the fields of a form as they arrive, each as a stream with backpressure;
//! [`MultipartForm`] deserializes the whole form. Small files stay in memory; larger ones go to
//! temporary files, written by threads that may block.
//!
//! ```
//! use peregrine::multipart::{MultipartForm, UploadedFile};
//! use peregrine::prelude::*;
//!
//! #[derive(serde::Deserialize)]
//! struct Photo {
//!     title: String,
//!     picture: UploadedFile,
//! }
//!
//! async fn show(form: MultipartForm<Photo>) -> String {
//!     format!("{}: {} bytes", form.title, form.picture.len())
//! }
//!
//! let app = App::new().post("/photos", show.body_limit(20 << 20));
//! # drop(app);
//! ```
//!
//! Everything has a limit ([`MultipartLimits`]), and file names are not paths
//! ([`sanitize_file_name`]). Nested parts (`multipart/mixed`, deprecated by RFC 7578, section 4.3)
//! are treated as ordinary content, and so is a field named `_charset_`.
//!
//! Start reading at `parser.rs`, which does no I/O, then `multipart.rs`.
#![forbid(unsafe_code)]

mod blocking;
mod de;
mod error;
mod file_name;
mod form;
#[doc(hidden)]
pub mod fuzz;
mod limits;
mod multipart;
#[doc(hidden)]
pub mod parser;
mod part_headers;
mod uploaded_file;

pub use error::MultipartError;
pub use file_name::sanitize_file_name;
pub use form::MultipartForm;
pub use limits::MultipartLimits;
pub use multipart::{Field, Multipart, MultipartProgress};
pub use part_headers::PartHeaders;
pub use uploaded_file::{UploadError, UploadedFile};
