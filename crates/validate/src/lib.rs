//! Validation of request data before a handler runs.
//!
//! Declare rules on a type's fields with the derive macro of [`garde`], and wrap an extractor in
//! [`Valid`]. If rules are broken, the client gets a problem of status 422 that lists each of them
//! with a JSON pointer (RFC 6901) to the value, in the names that the client uses.
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
//! let response = response.body(r#"{"userName":"ada","age":7}"#).send_blocking();
//! assert_eq!(response.status(), 422);
//! assert!(response.text().contains(r#""errors":[{"detail":"lower than 18","pointer":"/age"}]"#));
//! ```
//!
//! The macro refers to the crate `garde`, so the application must depend on it:
//! `garde = { version = "0.23", features = ["derive"] }`.
//!
//! # Names
//!
//! [`garde`] knows the Rust names of fields, clients the serde names. When a rule is broken, serde
//! therefore reads the document once more, and the names that it requests at each place make up the
//! pointer. A field matches a name that is equal, or equal except for case and punctuation, which
//! covers all forms of `rename_all` and most uses of `rename`. For other names, as in
//! `#[serde(rename = "type")] kind`, use [`FieldNames`]. Otherwise the pointer leads to the
//! enclosing value and the text names the field: less exact, but never a name that the client does
//! not know.
//!
//! Inside `flatten`, and in enums with `tag` or `untagged`, serde does not reveal which names it
//! expects. There, the names in the document are used, and a flattened struct adds nothing to a
//! pointer. A field sent under an `alias` is reported under its own name.
//!
//! Start reading at [`Valid`], then `json_pointer.rs`.
#![forbid(unsafe_code)]

mod json_pointer;
mod probe;
mod problem;
mod recorder;
mod valid;

pub use json_pointer::FieldNames;
pub use problem::{ERRORS_MAX, ValidationErrors};
pub use valid::Valid;
