//! Rules for the values that requests bring, checked before a handler runs.
//!
//! The rules stand beside a type's fields, by the derive macro of [`garde`]; [`Valid`] around an extractor
//! checks them. What breaks a rule is a problem with status 422 that lists every rule broken, each with a JSON
//! pointer (RFC 6901) to the value, in the names that the peer uses.
//!
//! ```
//! use peregrine::prelude::*;
//! use garde::Validate;
//! use peregrine::validate::Valid;
//!
//! #[derive(serde::Deserialize, Validate)]
//! #[serde(rename_all = "camelCase")]
//! struct Account {
//!     #[garde(length(min = 3))]
//!     user_name: String,
//!     #[garde(range(min = 18))]
//!     age: u8,
//! }
//!
//! async fn create(Valid(Json(account)): Valid<Json<Account>>) -> String {
//!     format!("welcome, {}, aged {}", account.user_name, account.age)
//! }
//!
//! let client = App::new().post("/accounts", create).test();
//! let response = client.post("/accounts").header("content-type", "application/json");
//! let response = response.body(r#"{"userName":"ada","age":7}"#).send_now();
//! assert_eq!(response.status(), 422);
//! assert!(response.text().contains(r#""errors":[{"detail":"lower than 18","pointer":"/age"}]"#));
//! ```
//!
//! The macro names the crate `garde`, so an application depends on it too: `garde = { version = "0.23", features =
//! ["derive"] }`.
//!
//! # Names
//!
//! [`garde`] knows Rust's names of fields, a peer those of serde. So when a rule is broken, the document is read once
//! more by serde, and the names that serde asks for at each place are what a pointer is made of. A field's
//! name is found among them if it is the same, or the same but for case and what is no letter or digit, which all
//! forms of `rename_all` are, and most names given by `rename`. Where none fits, as in `#[serde(rename = "type")]
//! kind`, [`FieldNames`] tells it; without that, the pointer is to the value around, and the text names the field:
//! less exact, but never a name that the peer does not know. Behind `flatten`, and inside enums with
//! `tag` or `untagged`, serde does not say which names it asks for: there the names that the peer sent are taken, and a
//! flattened struct leaves no trace in a pointer. A name given by `alias` is told as the field's own name.
//!
//! Start reading at [`Valid`], then `names.rs`.
#![forbid(unsafe_code)]

mod names;
mod problem;
mod shape;
mod traced;
mod valid;

pub use names::FieldNames;
pub use problem::{ERRORS_MAX, Invalid};
pub use valid::Valid;
