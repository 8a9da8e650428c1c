//! Reads and writes run files.

use std::fmt;

use serde::Deserialize;

use crate::{RunFile, SCHEMA, pack};

/// Why a run file could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// The text is no JSON, or no run file: the message has the line and the column.
    Malformed(serde_json::Error),
    /// The file is not packed as it should be.
    Packed(std::io::Error),
    /// The document says in no `schema` field which form it has.
    NoSchema,
    /// The form is one that this library does not know.
    UnknownSchema {
        /// The version that the document names.
        found: u64,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Malformed(error) => write!(formatter, "not a run file: {error}"),
            ReadError::Packed(error) => write!(formatter, "not a packed run file: {error}"),
            ReadError::NoSchema => {
                write!(formatter, "not a run file: there is no number in the field `schema`")
            }
            ReadError::UnknownSchema { found } if *found > u64::from(SCHEMA) => write!(
                formatter,
                "the run file has schema {found}, and this lab reads up to {SCHEMA}: read it \
                 with a newer lab"
            ),
            ReadError::UnknownSchema { found } => write!(
                formatter,
                "the run file has schema {found}, which no lab wrote: the first one is 1"
            ),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadError::Malformed(error) => Some(error),
            ReadError::Packed(error) => Some(error),
            ReadError::NoSchema | ReadError::UnknownSchema { .. } => None,
        }
    }
}

/// What every form has.
#[derive(Deserialize)]
pub(crate) struct Form {
    schema: Option<serde_json::Value>,
}

impl Form {
    /// Whether this library knows the form.
    pub(crate) fn check(&self) -> Result<(), ReadError> {
        let schema = self.schema.as_ref().and_then(serde_json::Value::as_u64);
        match schema.ok_or(ReadError::NoSchema)? {
            found if found == 0 || found > u64::from(SCHEMA) => {
                Err(ReadError::UnknownSchema { found })
            }
            _ => Ok(()),
        }
    }
}

impl RunFile {
    /// Reads a run file, or a line of a packed one. The version of its form is looked at first, so that a newer form is
    /// named as such and not as a missing field.
    ///
    /// # Errors
    ///
    /// [`ReadError`] says what is wrong and what to do about it.
    pub fn read(text: &str) -> Result<RunFile, ReadError> {
        let form: Form = serde_json::from_str(text).map_err(ReadError::Malformed)?;
        form.check()?;
        pack::run(text).map_err(ReadError::Malformed)
    }

    /// The run file as JSON, ending in a line feed. Reading it gives an equal value.
    ///
    /// # Panics
    ///
    /// Never: every map in a run file has text for its keys.
    #[must_use]
    pub fn write(&self) -> String {
        let mut text = serde_json::to_string(self).expect("all keys are text");
        text.push('\n');
        text
    }
}
