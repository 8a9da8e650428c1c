//! A tree of settings with the position of each part.

use crate::secret::Secret;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Where a setting was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The program's values.
    Code,
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
    Variable(Arc<str>),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code => f.write_str("the program"),
            Self::File { path, line, column } => {
                write!(f, "{}:{line}:{column}", path.display())
            }
            Self::Variable(name) => write!(f, "the variable {name}"),
        }
    }
}

/// A setting, or a table of settings.
#[derive(Clone, Debug)]
pub struct Value {
    /// The value.
    pub kind: Kind,
    /// Where it was set.
    pub origin: Origin,
}

/// The value of a setting.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Unset. Printed as if it did not exist.
    Nothing,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i128),
    /// Any other number.
    Float(f64),
    /// A string.
    Text(String),
    /// A hidden string.
    Secret(Secret),
    /// A list of values.
    List(Vec<Value>),
    /// Settings by name, in the order in which they were set.
    Table(Vec<Entry>),
}

/// One setting of a table.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name.
    pub key: String,
    /// Where the name was written.
    pub origin: Origin,
    /// Its value.
    pub value: Value,
}

/// Ignores where it was set.
impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

/// Ignores where it was set.
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.value == other.value
    }
}

impl Value {
    pub(crate) fn code(kind: Kind) -> Self {
        Self { kind, origin: Origin::Code }
    }

    /// The entries of a table.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        match &self.kind {
            Kind::Table(entries) => entries,
            _ => &[],
        }
    }

    /// The entry of this name, if this is a table that contains it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entries().iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// The entry of this name, mutably.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        match &mut self.kind {
            Kind::Table(entries) => {
                entries.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.value)
            }
            _ => None,
        }
    }

    /// Merges `stronger` into this value: tables entry by entry, all other values as a whole. If
    /// `is_strict`, names must be equal; otherwise case and hyphens are ignored for existing names,
    /// because variables cannot express them.
    pub fn overlay(&mut self, stronger: Self, is_strict: bool) {
        match (&mut self.kind, stronger.kind) {
            (_, Kind::Nothing) => {}
            (Kind::Table(own), Kind::Table(others)) => {
                for other in others {
                    let is_same = |entry: &&mut Entry| {
                        entry.key == other.key || !is_strict && folded(&entry.key) == other.key
                    };
                    match own.iter_mut().find(is_same) {
                        Some(entry) => {
                            entry.origin = other.origin;
                            entry.value.overlay(other.value, is_strict);
                        }
                        None => own.push(other),
                    }
                }
                self.origin = stronger.origin;
            }
            (own, kind) => {
                *own = kind;
                self.origin = stronger.origin;
            }
        }
    }

    /// All values with their full names, without the tables that contain them.
    #[must_use]
    pub fn leaves(&self) -> Vec<(String, &Self)> {
        let mut all = Vec::new();
        self.walk("", &mut all);
        all
    }

    fn walk<'v>(&'v self, path: &str, all: &mut Vec<(String, &'v Self)>) {
        for entry in self.entries() {
            let path = match path {
                "" => entry.key.clone(),
                path => format!("{path}.{}", entry.key),
            };
            match &entry.value.kind {
                Kind::Nothing => {}
                Kind::Table(_) => entry.value.walk(&path, all),
                _ => all.push((path, &entry.value)),
            }
        }
    }
}

/// A name in the form used by variables.
pub(crate) fn folded(key: &str) -> String {
    key.to_ascii_lowercase().replace('-', "_")
}
