//! Errors in settings, with their positions.

use crate::value::SourceLocation;
use serde::de::{Expected, Unexpected};
use std::fmt;
use std::path::PathBuf;

/// The reason why settings cannot be used, with the position, the setting, the expected value, and
/// the most similar name.
///
/// The `Debug` form is the same text as the `Display` form, because Rust prints the `Debug` form
/// when `main` returns an error.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The parts of the setting's path, the last one first.
    path: Vec<String>,
    location: Option<SourceLocation>,
    kind: ErrorKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ErrorKind {
    /// The name of an unknown setting, and the known names.
    UnknownKey(String, Vec<String>),
    /// An unknown enum value, and the known values.
    UnknownVariant(String, &'static [&'static str]),
    /// Descriptions of the found and of the expected value.
    InvalidType(String, String),
    /// The name of a required setting.
    MissingKey(&'static str),
    /// The path of a file, and why it cannot be read.
    Unreadable(PathBuf, String),
    /// A message.
    Other(String),
}

impl ConfigError {
    /// Creates an error with this text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self::from_kind(ErrorKind::Other(text.into()))
    }

    /// Creates an error with this text for the setting `path`.
    #[must_use]
    pub fn for_key(path: &str, text: impl Into<String>) -> Self {
        let mut error = Self::new(text);
        error.path = path.split('.').rev().map(ToOwned::to_owned).collect();
        error
    }

    fn from_kind(kind: ErrorKind) -> Self {
        Self { path: Vec::new(), location: None, kind }
    }

    pub(crate) fn unreadable(path: PathBuf, cause: impl fmt::Display) -> Self {
        Self::from_kind(ErrorKind::Unreadable(path, cause.to_string()))
    }

    /// Creates an error for an unknown setting.
    pub(crate) fn unknown(key: &str, known: Vec<String>) -> Self {
        Self::from_kind(ErrorKind::UnknownKey(key.to_owned(), known))
    }

    /// Adds `key` to the front of the setting's path.
    pub(crate) fn nested_in(mut self, key: &str) -> Self {
        self.path.push(key.to_owned());
        self
    }

    /// Sets the position, unless one is already set, which is more precise.
    #[must_use]
    pub fn with_location(mut self, location: &SourceLocation) -> Self {
        self.location.get_or_insert_with(|| location.clone());
        self
    }

    /// Returns the full name of the setting. Empty if the error is not about a setting.
    #[must_use]
    pub fn key(&self) -> String {
        let mut names: Vec<&str> = self.path.iter().rev().map(String::as_str).collect();
        match &self.kind {
            ErrorKind::UnknownKey(key, _) => names.push(key),
            ErrorKind::MissingKey(key) => names.push(key),
            _ => {}
        }
        names.join(".")
    }

    /// Returns the position, if it is known.
    #[must_use]
    pub fn location(&self) -> Option<&SourceLocation> {
        self.location.as_ref()
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(f, "{location}: ")?;
        }
        let setting = self.key();
        if !setting.is_empty() {
            write!(f, "`{setting}`: ")?;
        }
        match &self.kind {
            ErrorKind::UnknownKey(key, known) => {
                f.write_str("there is no such setting")?;
                write_suggestion(f, key, known)
            }
            ErrorKind::UnknownVariant(value, known) => {
                write!(f, "`{value}` is not a valid value")?;
                let known: Vec<_> = known.iter().map(|value| (*value).to_owned()).collect();
                write_suggestion(f, value, &known)
            }
            ErrorKind::InvalidType(found, expected) => {
                write!(f, "expected {expected}, found {found}")
            }
            ErrorKind::MissingKey(_) => f.write_str("this setting is required"),
            ErrorKind::Unreadable(path, cause) => {
                write!(f, "cannot read {}: {cause}", path.display())
            }
            ErrorKind::Other(text) => f.write_str(text),
        }
    }
}

impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ConfigError {}

/// The maximum number of names to list if none is similar.
const SUGGESTIONS_MAX: usize = 24;

/// Writes the known name that is most similar to `name`, or else a list of known names.
fn write_suggestion(f: &mut fmt::Formatter<'_>, name: &str, known: &[String]) -> fmt::Result {
    if let Some(nearest) = closest(name, known) {
        return write!(f, "; did you mean `{nearest}`?");
    }
    let listed: Vec<_> =
        known.iter().take(SUGGESTIONS_MAX).map(|known| format!("`{known}`")).collect();
    if listed.is_empty() {
        return Ok(());
    }
    let more = if known.len() > listed.len() { " and others" } else { "" };
    write!(f, "; expected one of {}{more}", listed.join(", "))
}

/// Returns the name most similar to `target`, if any is similar enough.
fn closest<'k>(target: &str, known: &'k [String]) -> Option<&'k str> {
    let target = crate::value::normalize_key(target);
    // A third of the characters may differ.
    let distance_max = (target.chars().count() / 3).clamp(1, 4);
    let distances = known.iter().map(|name| (edit_distance(&target, name), name));
    let (distance, name) = distances.min_by_key(|(distance, _)| *distance)?;
    // Users often remember only the beginning or the end of a name.
    let partial_match = || {
        known.iter().find(|name| {
            target.len() >= 4 && (name.starts_with(&target) || name.ends_with(&target))
        })
    };
    if distance <= distance_max { Some(name) } else { partial_match().map(String::as_str) }
}

/// Returns the name most similar to `target`, if at most `distance_max` edits convert one to the
/// other.
pub(crate) fn closest_name<'k>(
    target: &str,
    known: &'k [String],
    distance_max: usize,
) -> Option<&'k str> {
    let distances = known.iter().map(|name| (edit_distance(target, name), name));
    let (distance, name) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance <= distance_max).then_some(name)
}

/// Returns the edit distance, in which each edit adds, removes or replaces a character, or swaps
/// two neighbours.
fn edit_distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    // No setting has such a long name.
    if left.len() > 64 || right.len() > 64 {
        return usize::MAX;
    }
    let mut row_before_last: Vec<usize> = Vec::new();
    let mut previous_row: Vec<usize> = (0..=right.len()).collect();
    for (row, a) in left.iter().enumerate() {
        let mut current_row = vec![row + 1];
        for (column, b) in right.iter().enumerate() {
            let mut distance = (previous_row[column] + usize::from(a != b))
                .min(previous_row[column + 1] + 1)
                .min(current_row[column] + 1);
            let is_transposition =
                row > 0 && column > 0 && *a == right[column - 1] && left[row - 1] == *b;
            if is_transposition {
                distance = distance.min(row_before_last[column - 1] + 1);
            }
            current_row.push(distance);
        }
        row_before_last = std::mem::replace(&mut previous_row, current_row);
    }
    previous_row[right.len()]
}

impl serde::de::Error for ConfigError {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self::new(text.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::from_kind(ErrorKind::InvalidType(
            describe_unexpected(found),
            describe_expected(expected),
        ))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::from_kind(ErrorKind::InvalidType(
            describe_unexpected(found),
            describe_expected(expected),
        ))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::unknown(field, expected.iter().map(|name| (*name).to_owned()).collect())
    }

    fn unknown_variant(value: &str, expected: &'static [&'static str]) -> Self {
        Self::from_kind(ErrorKind::UnknownVariant(value.to_owned(), expected))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::from_kind(ErrorKind::MissingKey(field))
    }
}

impl serde::ser::Error for ConfigError {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self::new(text.to_string())
    }
}

fn describe_unexpected(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => format!("`{value}`"),
        Unexpected::Unsigned(value) => format!("the number {value}"),
        Unexpected::Signed(value) => format!("the number {value}"),
        Unexpected::Float(value) => format!("the number {value}"),
        Unexpected::Str(text) => format!("`{}`", truncate(text)),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a table".to_owned(),
        other => other.to_string(),
    }
}

fn truncate(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Describes the expected type for users who do not know Rust.
fn describe_expected(expected: &dyn Expected) -> String {
    let text = expected.to_string();
    let up_to = |max: u64| format!("a whole number from 0 to {max}");
    match text.as_str() {
        "u8" => up_to(u8::MAX.into()),
        "u16" => up_to(u16::MAX.into()),
        "u32" => up_to(u32::MAX.into()),
        "u64" | "usize" => "a whole number, 0 or more".to_owned(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".to_owned(),
        "a boolean" => "`true` or `false`".to_owned(),
        "a string" => "a text in quotes".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "a table".to_owned(),
        other if other.starts_with("struct ") => "a table".to_owned(),
        other if other.starts_with("enum ") || other == "variant identifier" => {
            "one of its values".to_owned()
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::{closest, edit_distance};

    #[test]
    fn the_closest_name_is_suggested() {
        let known = ["idle_timeout", "head_timeout", "connections_max", "workers", "tls"];
        let known = known.map(ToOwned::to_owned);
        for (word, expected) in [
            ("idle_timout", Some("idle_timeout")),
            ("idel_timeout", Some("idle_timeout")),
            ("idle-timeout", Some("idle_timeout")),
            ("IDLE_TIMEOUT", Some("idle_timeout")),
            ("connection_max", Some("connections_max")),
            ("connections", Some("connections_max")),
            ("tsl", Some("tls")),
            ("worker", Some("workers")),
            ("keepalive", None),
            ("", None),
        ] {
            assert_eq!(closest(word, &known), expected, "{word:?}");
        }
        assert_eq!(edit_distance("abc", "abc"), 0);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("ab", "ba"), 1);
    }
}
