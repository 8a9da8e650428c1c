//! A tree of settings that knows where each part came from.

use crate::secret::Secret;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Where a setting was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In the program.
    Code,
    /// In a file.
    File {
        /// The file's path, as it was given.
        path: Arc<Path>,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
    },
    /// By a variable of the environment.
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

/// A setting, or a table of them.
#[derive(Clone, Debug)]
pub struct Value {
    /// What it is.
    pub kind: Kind,
    /// Where that was said.
    pub origin: Origin,
}

/// What a setting is.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Nothing was said. Printed as if it were not there.
    Nothing,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i128),
    /// Any other number.
    Float(f64),
    /// A text.
    Text(String),
    /// A text that is not shown.
    Secret(Secret),
    /// Several of them.
    List(Vec<Value>),
    /// Settings by name, in the order in which they were said.
    Table(Vec<Entry>),
}

/// One setting of a table.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name.
    pub key: String,
    /// Where the name was written.
    pub origin: Origin,
    /// What it is set to.
    pub value: Value,
}

/// Where it was said does not count.
impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

/// Where it was said does not count.
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.value == other.value
    }
}

impl Value {
    pub(crate) fn code(kind: Kind) -> Self {
        Self { kind, origin: Origin::Code }
    }

    /// The settings of a table.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        match &self.kind {
            Kind::Table(entries) => entries,
            _ => &[],
        }
    }

    /// The setting of this name, if this is a table that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entries().iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        match &mut self.kind {
            Kind::Table(entries) => {
                entries.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.value)
            }
            _ => None,
        }
    }

    /// Puts what `stronger` says over this: tables setting by setting, all else as a whole. Names differ by more than
    /// case and hyphens where `is_strict`; otherwise a name that is there already is meant, as variables cannot say it
    /// better.
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

    /// All settings with their whole names, but the tables that hold them.
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

/// A name as a variable would have it.
pub(crate) fn folded(key: &str) -> String {
    key.to_ascii_lowercase().replace('-', "_")
}
