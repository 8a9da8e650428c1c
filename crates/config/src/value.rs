//! A tree of settings with the position of each part.

use crate::secret_string::SecretString;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Where a setting was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceLocation {
    /// The program's values.
    Default,
    /// A file.
    File {
        /// The path of the file, as given.
        path: Arc<Path>,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
    },
    /// An environment variable.
    EnvVar(Arc<str>),
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the program"),
            Self::File { path, line, column } => {
                write!(f, "{}:{line}:{column}", path.display())
            }
            Self::EnvVar(name) => write!(f, "the variable {name}"),
        }
    }
}

/// A setting, or a table of settings.
#[derive(Clone, Debug)]
pub struct ConfigValue {
    /// The value.
    pub kind: ValueKind,
    /// Where it was set.
    pub location: SourceLocation,
}

/// The value of a setting.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueKind {
    /// Unset. It is omitted when settings are printed.
    Nil,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i128),
    /// A floating-point number.
    Float(f64),
    /// A string.
    String(String),
    /// A string that is never printed.
    Secret(SecretString),
    /// A list of values.
    Array(Vec<ConfigValue>),
    /// Settings by name, in the order in which they were set.
    Table(Vec<TableEntry>),
}

/// One setting of a table.
#[derive(Clone, Debug)]
pub struct TableEntry {
    /// The setting's name.
    pub key: String,
    /// Where the name was written.
    pub key_location: SourceLocation,
    /// The setting's value.
    pub value: ConfigValue,
}

/// Compares only the values, and ignores where they were set.
impl PartialEq for ConfigValue {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

/// Compares only the keys and values, and ignores where they were set.
impl PartialEq for TableEntry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.value == other.value
    }
}

impl ConfigValue {
    /// Creates a value that was set by the program.
    pub(crate) fn default_value(kind: ValueKind) -> Self {
        Self { kind, location: SourceLocation::Default }
    }

    /// Returns the entries of a table. Empty if this is not a table.
    #[must_use]
    pub fn entries(&self) -> &[TableEntry] {
        match &self.kind {
            ValueKind::Table(entries) => entries,
            _ => &[],
        }
    }

    /// Returns the value of this name, if this is a table that contains it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entries().iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// Like [`get`](Self::get), but returns a mutable reference.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        match &mut self.kind {
            ValueKind::Table(entries) => {
                entries.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.value)
            }
            _ => None,
        }
    }

    /// Merges `stronger` into this value. Tables are merged entry by entry, and all other values
    /// are replaced. If `is_strict`, names must be equal. Otherwise the case and the hyphens of
    /// existing names are ignored, because the names of environment variables cannot express them.
    pub fn merge(&mut self, stronger: Self, is_strict: bool) {
        match (&mut self.kind, stronger.kind) {
            (_, ValueKind::Nil) => {}
            (ValueKind::Table(entries), ValueKind::Table(other_entries)) => {
                for other in other_entries {
                    let has_same_key = |entry: &&mut TableEntry| {
                        entry.key == other.key
                            || !is_strict && normalize_key(&entry.key) == other.key
                    };
                    match entries.iter_mut().find(has_same_key) {
                        Some(entry) => {
                            entry.key_location = other.key_location;
                            entry.value.merge(other.value, is_strict);
                        }
                        None => entries.push(other),
                    }
                }
                self.location = stronger.location;
            }
            (own_kind, kind) => {
                *own_kind = kind;
                self.location = stronger.location;
            }
        }
    }

    /// Returns all values except tables, with their full names.
    #[must_use]
    pub fn leaves(&self) -> Vec<(String, &Self)> {
        let mut leaves = Vec::new();
        self.collect_leaves("", &mut leaves);
        leaves
    }

    fn collect_leaves<'v>(&'v self, path: &str, leaves: &mut Vec<(String, &'v Self)>) {
        for entry in self.entries() {
            let path = match path {
                "" => entry.key.clone(),
                path => format!("{path}.{}", entry.key),
            };
            match &entry.value.kind {
                ValueKind::Nil => {}
                ValueKind::Table(_) => entry.value.collect_leaves(&path, leaves),
                _ => leaves.push((path, &entry.value)),
            }
        }
    }
}

/// Converts a name to the form that environment variables use.
pub(crate) fn normalize_key(key: &str) -> String {
    key.to_ascii_lowercase().replace('-', "_")
}
