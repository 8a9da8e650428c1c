//! Forms with files: `multipart/form-data` (RFC 7578), as browsers send it.
//!
//! [`Multipart`] gives a form's fields as they arrive, each as a stream of pieces that holds the peer back;
//! [`MultipartForm`] gives the whole form as a type of the application's. Files stay in memory while they
//! are small, and go to temporary files otherwise, written by threads that may block.
//!
//! ```
//! use peregrine::multipart::{MultipartForm, Upload};
//! use peregrine::prelude::*;
//!
//! #[derive(serde::Deserialize)]
//! struct Photo {
//!     title: String,
//!     picture: Upload,
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
//! Everything has a limit ([`Limits`]), and names of files are no paths ([`safe_name`]). Parts in parts
//! (`multipart/mixed`, which RFC 7578 §4.3 gave up) are content like any other, and so is a field
//! `_charset_`.
//!
//! Start reading at `parser.rs`, which has no I/O, then `multipart.rs`.
#![forbid(unsafe_code)]

mod form;
#[doc(hidden)]
pub mod fuzz;
mod head;
mod limits;
mod multipart;
mod name;
#[doc(hidden)]
pub mod parser;
mod read;
mod reject;
mod upload;
mod work;

pub use form::MultipartForm;
pub use head::PartHead;
pub use limits::Limits;
pub use multipart::{Field, Multipart, Progress};
pub use name::safe_name;
pub use reject::Reject;
pub use upload::{StoreError, Upload};
