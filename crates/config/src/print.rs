//! Prints complete settings as TOML.

use crate::error::ConfigError;
use crate::ser::to_value;
use crate::value::{Kind, Value};
use serde::Serialize;
use std::fmt::Write as _;

/// Prints settings as TOML that parses to the same values, except for secrets, which are hidden.
///
/// # Errors
/// The value contains something that settings cannot contain, such as bytes.
pub fn print<T: Serialize>(tree: &T) -> Result<String, ConfigError> {
    print_with(tree, &|_| None)
}

/// Like [`print()`], with comments: `comment` is called with the full name of each setting and
/// table.
///
/// # Errors
/// As [`print()`].
pub fn print_with<T: Serialize>(
    tree: &T,
    comment: &dyn Fn(&str) -> Option<String>,
) -> Result<String, ConfigError> {
    let mut text = String::new();
    table(&mut text, &to_value(tree)?, &Name::default(), comment);
    Ok(text)
}

/// A full name, plain and quoted for TOML.
#[derive(Default)]
struct Name {
    plain: String,
    quoted: String,
}

impl Name {
    fn below(&self, key: &str) -> Self {
        let join = |above: &str, key: &str| match above {
            "" => key.to_owned(),
            above => format!("{above}.{key}"),
        };
        Self { plain: join(&self.plain, key), quoted: join(&self.quoted, &quoted_key(key)) }
    }
}

fn table(text: &mut String, value: &Value, name: &Name, comment: &dyn Fn(&str) -> Option<String>) {
    let is_table = |value: &Value| matches!(value.kind, Kind::Table(_));
    for entry in value.entries().iter().filter(|entry| !is_table(&entry.value)) {
        if entry.value.kind == Kind::Nothing {
            continue;
        }
        remark(text, comment(&name.below(&entry.key).plain));
        let _ = write!(text, "{} = ", quoted_key(&entry.key));
        inline(text, &entry.value);
        text.push('\n');
    }
    for entry in value.entries().iter().filter(|entry| is_table(&entry.value)) {
        let name = name.below(&entry.key);
        if !text.is_empty() {
            text.push('\n');
        }
        remark(text, comment(&name.plain));
        let _ = writeln!(text, "[{}]", name.quoted);
        table(text, &entry.value, &name, comment);
    }
}

fn remark(text: &mut String, comment: Option<String>) {
    for line in comment.iter().flat_map(|comment| comment.lines()) {
        let _ = writeln!(text, "{}", format!("# {line}").trim_end());
    }
}

/// Writes a value on one line.
pub(crate) fn inline(text: &mut String, value: &Value) {
    // Writing to a string cannot fail.
    let _ = match &value.kind {
        Kind::Nothing => write!(text, "\"\""),
        Kind::Bool(is) => write!(text, "{is}"),
        Kind::Integer(number) => write!(text, "{number}"),
        Kind::Float(number) if number.is_nan() => write!(text, "nan"),
        Kind::Float(number) => write!(text, "{number:?}"),
        Kind::Text(given) => {
            text.push_str(&quoted(given));
            Ok(())
        }
        Kind::Secret(secret) => {
            text.push_str(&quoted(&secret.to_string()));
            Ok(())
        }
        Kind::List(all) => {
            text.push('[');
            for (number, item) in all.iter().enumerate() {
                text.push_str(if number == 0 { "" } else { ", " });
                inline(text, item);
            }
            write!(text, "]")
        }
        Kind::Table(entries) => {
            text.push_str("{ ");
            let said = entries.iter().filter(|entry| entry.value.kind != Kind::Nothing);
            for (number, entry) in said.enumerate() {
                text.push_str(if number == 0 { "" } else { ", " });
                let _ = write!(text, "{} = ", quoted_key(&entry.key));
                inline(text, &entry.value);
            }
            write!(text, " }}")
        }
    };
}

/// Writes the value as TOML.
impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::new();
        inline(&mut text, self);
        f.write_str(&text)
    }
}

fn quoted_key(key: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !key.is_empty() && key.bytes().all(is_bare) { key.to_owned() } else { quoted(key) }
}

fn quoted(text: &str) -> String {
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
