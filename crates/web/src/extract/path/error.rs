//! A parameter of a path, and errors from reading parameters as a type.

use serde::de::Error;
use std::borrow::Cow;
use std::fmt;

/// One parameter: its name in the pattern and its value, percent-decoded.
pub(super) struct PathParameter<'p> {
    pub(super) name: &'p str,
    pub(super) value: Cow<'p, str>,
}

/// Why parameters could not be read as a type.
#[derive(Debug)]
pub(super) enum PathError {
    /// A value cannot be parsed as its type.
    Value { name: String, value: String, expected: String },
    /// A type rejected a value. The reason is the type's own error message.
    Custom { name: String, value: String, reason: String },
    /// The type does not fit the route's parameters, regardless of their values.
    Mismatch(String),
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for PathError {}

impl Error for PathError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        // If a value caused the error, `for_parameter` replaces this variant.
        Self::Mismatch(message.to_string())
    }

    fn missing_field(field: &'static str) -> Self {
        Self::Mismatch(format!("the route has no parameter `{field}`"))
    }
}

impl PathError {
    pub(super) fn count_mismatch(available: usize, expected: usize) -> Self {
        Self::Mismatch(format!(
            "the route has {available} parameters, but the type takes {expected}"
        ))
    }

    /// Adds the name and value of `parameter` to an error that a type returned for the value.
    pub(super) fn for_parameter(self, parameter: &PathParameter<'_>) -> Self {
        match self {
            Self::Mismatch(reason) => Self::Custom {
                name: parameter.name.to_owned(),
                value: parameter.value.clone().into_owned(),
                reason,
            },
            other => other,
        }
    }
}
