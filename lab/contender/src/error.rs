//! What is wrong with a recipe: where, why, and how to mend it.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// A recipe that cannot be used.
#[derive(Debug)]
pub struct RecipeError {
    /// The file, or the folder where a file is missing.
    pub file: PathBuf,
    /// What is wrong in it.
    pub fault: Fault,
}

/// What is wrong in a recipe's file.
#[derive(Debug)]
pub enum Fault {
    /// It cannot be read.
    Unreadable(io::Error),
    /// It is no TOML, or a value has the wrong type.
    Malformed {
        /// The line, from 1, if it is known.
        line: Option<usize>,
        /// The key on this line; empty if there is none.
        key: String,
        /// What the parser says.
        cause: String,
    },
    /// A key that recipes do not have.
    UnknownKey {
        /// The key.
        key: String,
        /// The key that was meant, most likely.
        near: Option<String>,
    },
    /// A key that every recipe has is not there.
    MissingKey(&'static str),
    /// A value that says nothing.
    Empty(&'static str),
    /// The name is not the folder's.
    OtherName {
        /// What the file says.
        name: String,
        /// The folder's name.
        folder: String,
    },
    /// A name that cannot be part of a file's name.
    StrangeName(String),
    /// A variant has the name of another contender.
    SameName(String),
    /// There is no such folder to build and run in.
    NoFolder(PathBuf),
    /// A version of Rust that is none.
    NoRustVersion(String),
    /// A reason is given, but nothing that could fail.
    NothingNeeded,
    /// Another recipe builds the same file in another way.
    SharedProgram {
        /// The file, as `run` has it.
        program: String,
        /// The other contender.
        other: String,
    },
    /// A version is to be read in two ways at once.
    TwoVersions,
}

impl fmt::Display for RecipeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.file.display())?;
        match &self.fault {
            Fault::Unreadable(error) => write!(
                formatter,
                ": it cannot be read ({error}); a contender is a folder with a contender.toml"
            ),
            Fault::Malformed { line, key, cause } => {
                if let Some(line) = line {
                    write!(formatter, ", line {line}")?;
                }
                if !key.is_empty() {
                    write!(formatter, ", key `{key}`")?;
                }
                write!(formatter, ": {cause}; lab/contenders/README.md shows each key's form")
            }
            Fault::UnknownKey { key, near } => {
                write!(formatter, ", key `{key}`: recipes have no such key; ")?;
                match near {
                    Some(near) => write!(formatter, "write `{near}`"),
                    None => write!(formatter, "remove it, or use one of {}", KEYS.join(", ")),
                }
            }
            Fault::MissingKey(key) => {
                write!(formatter, ", key `{key}`: it is missing; every recipe has it, so add it")
            }
            Fault::Empty(key) => {
                write!(formatter, ", key `{key}`: it is empty; fill it or leave the key out")
            }
            Fault::OtherName { name, folder } => write!(
                formatter,
                ", key `name`: it is {name:?} in the folder {folder:?}; write name = {folder:?}"
            ),
            Fault::StrangeName(name) => write!(
                formatter,
                ", key `name`: {name:?} cannot name files; use letters, digits, `-`, `_` and `.`, \
                 and begin with a letter or digit"
            ),
            Fault::SameName(name) => write!(
                formatter,
                ", key `variants`: another contender is called {name:?} as well; rename one of them"
            ),
            Fault::NoFolder(folder) => write!(
                formatter,
                ", key `folder`: {} is no folder; give one relative to the recipe",
                folder.display()
            ),
            Fault::NoRustVersion(text) => write!(
                formatter,
                ", key `rust`: {text:?} is no version of Rust; write one such as \"1.88\""
            ),
            Fault::NothingNeeded => write!(
                formatter,
                ", key `unobtainable`: without `needs` nothing decides it; add a command that \
                 fails where the program cannot be had"
            ),
            Fault::SharedProgram { program, other } => write!(
                formatter,
                ", key `run`: {other} builds {program} too, but otherwise, so that either would \
                 be taken for the other; give the program another name"
            ),
            Fault::TwoVersions => write!(
                formatter,
                ", key `version`: `package` already says where the version stands; leave one out"
            ),
        }
    }
}

impl std::error::Error for RecipeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.fault {
            Fault::Unreadable(error) => Some(error),
            _ => None,
        }
    }
}

/// All keys of a recipe.
pub const KEYS: [&str; 18] = [
    "name",
    "class",
    "build",
    "run",
    "folder",
    "package",
    "lock",
    "version",
    "rust",
    "needs",
    "unobtainable",
    "allocator",
    "tls",
    "protocols",
    "serves",
    "lacks",
    "environment",
    "variants",
];

/// A text that is no `name=command with arguments`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotACommand(pub(crate) String);

impl fmt::Display for NotACommand {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{:?} is no contender; write name=command with arguments, and begin the name with a \
             letter or digit",
            self.0
        )
    }
}

impl std::error::Error for NotACommand {}
