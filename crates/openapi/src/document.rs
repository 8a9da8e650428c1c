//! A finished document.

use crate::openapi::UndescribedRoute;
use crate::routes::PublishedDocument;
use peregrine_web::{App, BuildError, BuiltApp};
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::fmt;
use std::rc::Rc;

/// An OpenAPI document. Get its JSON with [`Document::value`] or `Serialize`.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    value: Value,
    undescribed: Vec<UndescribedRoute>,
}

impl Document {
    pub(crate) fn new(value: Value, undescribed: Vec<UndescribedRoute>) -> Self {
        Self { value, undescribed }
    }

    /// The whole document.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The operation of `method`, in any case, for the path as written in the document.
    #[must_use]
    pub fn operation(&self, method: &str, path: &str) -> Option<&Value> {
        self.value.get("paths")?.get(path)?.get(method.to_ascii_lowercase())
    }

    /// The routes that are not in the document.
    #[must_use]
    pub fn undescribed(&self) -> &[UndescribedRoute] {
        &self.undescribed
    }

    /// The document as it is served. The order of its members is deterministic.
    #[must_use]
    pub fn to_json(&self) -> String {
        self.value.to_string()
    }
}

/// Indented JSON, for files that people read and compare.
impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.value)
    }
}

impl Serialize for Document {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

/// Returns the documents of applications, for tests and for programs that write them to files.
///
/// ```
/// use peregrine::openapi::{DescribeExt, OpenApiExt, OpenApi};
/// use peregrine::prelude::*;
///
/// fn app() -> App {
///     App::new().get("/birds", (|| "all").described()).register(OpenApi::new("Birds", "1.0"))
/// }
///
/// let document = app().openapi()?;
/// assert!(document.operation("GET", "/birds").is_some());
/// assert!(document.undescribed().is_empty());
/// # Ok::<(), peregrine::openapi::OpenApiError>(())
/// ```
pub trait OpenApiExt {
    /// The document of the [`OpenApi`](crate::OpenApi) that was added to the application.
    ///
    /// # Errors
    /// If none was added, or the application cannot be built.
    fn openapi(self) -> Result<Rc<Document>, OpenApiError>;
}

impl OpenApiExt for App {
    fn openapi(self) -> Result<Rc<Document>, OpenApiError> {
        self.build().map_err(OpenApiError::Build)?.openapi()
    }
}

impl OpenApiExt for &BuiltApp {
    fn openapi(self) -> Result<Rc<Document>, OpenApiError> {
        let published =
            self.routes().find_map(|route| route.metadata::<PublishedDocument>().next());
        published.and_then(PublishedDocument::document).ok_or(OpenApiError::Missing)
    }
}

/// Why a document is not available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenApiError {
    /// The application cannot be built.
    Build(BuildError),
    /// No [`OpenApi`](crate::OpenApi) was added to the application.
    Missing,
}

impl fmt::Display for OpenApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Build(error) => error.fmt(f),
            Self::Missing => f.write_str(
                "no OpenApi was added to the application: `.register(OpenApi::new(..))`",
            ),
        }
    }
}

impl std::error::Error for OpenApiError {}
