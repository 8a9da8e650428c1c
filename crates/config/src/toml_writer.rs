//! Prints complete settings as TOML.

use crate::error::ConfigError;
use crate::ser::to_value;
use crate::value::{ConfigValue, ValueKind};
use serde::Serialize;
use std::fmt::Write as _;

/// Prints settings as TOML that parses to the same values, except for secrets, which are hidden.
///
/// # Errors
/// The value contains a type that settings cannot contain, such as bytes.
pub fn to_toml_string<T: Serialize>(tree: &T) -> Result<String, ConfigError> {
    to_toml_string_with_comments(tree, &|_| None)
}

/// Like [`to_toml_string()`], but adds the comment that `comment` returns for the full name of each
/// setting and table.
///
/// # Errors
/// See [`to_toml_string()`].
pub fn to_toml_string_with_comments<T: Serialize>(
    tree: &T,
    comment: &dyn Fn(&str) -> Option<String>,
) -> Result<String, ConfigError> {
    let mut text = String::new();
    write_table(&mut text, &to_value(tree)?, &KeyPath::default(), comment);
    Ok(text)
}

/// A full name, in plain form and quoted for TOML.
#[derive(Default)]
struct KeyPath {
    plain: String,
    quoted: String,
}

impl KeyPath {
    fn child(&self, key: &str) -> Self {
        let join = |parent: &str, key: &str| match parent {
            "" => key.to_owned(),
            parent => format!("{parent}.{key}"),
        };
        Self { plain: join(&self.plain, key), quoted: join(&self.quoted, &quote_key(key)) }
    }
}

fn write_table(
    text: &mut String,
    value: &ConfigValue,
    name: &KeyPath,
    comment: &dyn Fn(&str) -> Option<String>,
) {
    let is_table = |value: &ConfigValue| matches!(value.kind, ValueKind::Table(_));
    for entry in value.entries().iter().filter(|entry| !is_table(&entry.value)) {
        if entry.value.kind == ValueKind::Nil {
            continue;
        }
        write_comment(text, comment(&name.child(&entry.key).plain));
        let _ = write!(text, "{} = ", quote_key(&entry.key));
        write_inline(text, &entry.value);
        text.push('\n');
    }
    for entry in value.entries().iter().filter(|entry| is_table(&entry.value)) {
        let name = name.child(&entry.key);
        if !text.is_empty() {
            text.push('\n');
        }
        write_comment(text, comment(&name.plain));
        let _ = writeln!(text, "[{}]", name.quoted);
        write_table(text, &entry.value, &name, comment);
    }
}

fn write_comment(text: &mut String, comment: Option<String>) {
    for line in comment.iter().flat_map(|comment| comment.lines()) {
        let _ = writeln!(text, "{}", format!("# {line}").trim_end());
    }
}

/// Writes a value on one line.
pub(crate) fn write_inline(text: &mut String, value: &ConfigValue) {
    // Writing to a string cannot fail.
    let _ = match &value.kind {
        ValueKind::Nil => write!(text, "\"\""),
        ValueKind::Bool(boolean) => write!(text, "{boolean}"),
        ValueKind::Integer(number) => write!(text, "{number}"),
        ValueKind::Float(number) if number.is_nan() => write!(text, "nan"),
        ValueKind::Float(number) => write!(text, "{number:?}"),
        ValueKind::String(string) => {
            text.push_str(&quote(string));
            Ok(())
        }
        ValueKind::Secret(secret) => {
            text.push_str(&quote(&secret.to_string()));
            Ok(())
        }
        ValueKind::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                text.push_str(if index == 0 { "" } else { ", " });
                write_inline(text, item);
            }
            write!(text, "]")
        }
        ValueKind::Table(entries) => {
            text.push_str("{ ");
            let set_entries = entries.iter().filter(|entry| entry.value.kind != ValueKind::Nil);
            for (index, entry) in set_entries.enumerate() {
                text.push_str(if index == 0 { "" } else { ", " });
                let _ = write!(text, "{} = ", quote_key(&entry.key));
                write_inline(text, &entry.value);
            }
            write!(text, " }}")
        }
    };
}

/// Writes the value as TOML.
impl std::fmt::Display for ConfigValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::new();
        write_inline(&mut text, self);
        f.write_str(&text)
    }
}

fn quote_key(key: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !key.is_empty() && key.bytes().all(is_bare) { key.to_owned() } else { quote(key) }
}

fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}
