//! The layers of settings.

use crate::de::from_value;
use crate::error::{ConfigError, nearest_name};
use crate::ser::to_value;
use crate::value::{Entry, Kind, Origin, Value, folded};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// In longer lines, columns are counted in bytes instead of characters.
const LINE_BYTES_MAX: usize = 4096;

/// The maximum edit distance to a setting for a variable with one underscore instead of two.
const MISTAKES_MAX: usize = 2;

/// The maximum depth of a setting.
const NAMES_MAX: usize = 16;

/// The maximum size of a file in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The sources of settings besides the program's values: a TOML file and environment variables.
/// Later layers override earlier ones: program, file, variables.
///
/// The name of a variable is a prefix and the path of the setting, joined by two underscores:
/// `APP_LIMITS__IDLE_TIMEOUT=75s` for `limits.idle_timeout`. Case is ignored, and hyphens are
/// written as underscores. Lists are separated by commas. A variable with two underscores that
/// matches no setting is an error. One without them is used only if the settings have a top-level
/// value of that name. If it would match a setting, exactly or nearly, with two underscores in some
/// place, that is an error (`APP_LIMITS_IDLE_TIMEOUT`). Other variables are ignored, because they
/// may have another purpose, such as those that Kubernetes sets for each of its services.
///
/// ```
/// use peregrine::config::Layers;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Default, Deserialize, Serialize)]
/// #[serde(default, deny_unknown_fields)]
/// struct Settings {
///     greeting: String,
///     mail: Mail,
/// }
///
/// #[derive(Debug, Default, Deserialize, Serialize)]
/// #[serde(default, deny_unknown_fields)]
/// struct Mail {
///     from: String,
/// }
///
/// let variables = [("APP_MAIL__FROM", "me@example.org")];
/// let layers = Layers::new("APP_").variables(variables);
/// let code = Settings { greeting: "Hello".into(), ..Settings::default() };
/// let settings: Settings = layers.load(&code)?;
/// assert_eq!((&*settings.greeting, &*settings.mail.from), ("Hello", "me@example.org"));
///
/// let error = Layers::new("APP_").variables([("APP_MAIL__FORM", "")]).load(&Settings::default());
/// let text = error.unwrap_err().to_string();
/// let expected = "the variable APP_MAIL__FORM: `mail.form`: there is no such setting; \
///     did you mean `from`?";
/// assert_eq!(text, expected);
/// # Ok::<(), peregrine::config::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Layers {
    prefix: String,
    file: Option<PathBuf>,
    variables: Vec<(OsString, OsString)>,
    others: Vec<(String, String)>,
}

/// Does not print variables, which may be secret.
impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, file, .. } = self;
        f.debug_struct("Layers").field("prefix", prefix).field("file", file).finish_non_exhaustive()
    }
}

impl Layers {
    /// Creates layers without a file or variables. `prefix` is the common prefix of the variables.
    #[must_use]
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), file: None, variables: Vec::new(), others: Vec::new() }
    }

    /// Reads this file, which must exist.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// Reads the current environment of the process.
    #[must_use]
    pub fn environment(self) -> Self {
        self.variables(env::vars_os())
    }

    /// Reads these variables.
    #[must_use]
    pub fn variables<N: Into<OsString>, V: Into<OsString>>(
        mut self,
        all: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let all = all.into_iter().map(|(name, value)| (name.into(), value.into()));
        self.variables.extend(all);
        self
    }

    /// Also reads the short variable `name` for the setting `path`.
    #[must_use]
    pub fn variable_for(mut self, name: impl Into<String>, path: impl Into<String>) -> Self {
        self.others.push((name.into(), path.into()));
        self
    }

    /// The path of the file, if there is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads all layers on top of `code`.
    ///
    /// # Errors
    /// A [`ConfigError`] with the position, the setting, and the expected value.
    pub fn load<T: Serialize + DeserializeOwned>(&self, code: &T) -> Result<T, ConfigError> {
        from_value(&self.value(code)?)
    }

    /// Like [`load`](Self::load); `change` can modify the tree before it is deserialised.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_with<T: Serialize + DeserializeOwned>(
        &self,
        code: &T,
        change: impl FnOnce(&mut Value),
    ) -> Result<T, ConfigError> {
        let mut value = self.value(code)?;
        change(&mut value);
        from_value(&value)
    }

    fn value<T: Serialize>(&self, code: &T) -> Result<Value, ConfigError> {
        let mut value = to_value(code)?;
        if let Some(path) = &self.file {
            value.overlay(read_file(path)?, true);
        }
        let mut variables: Vec<_> = self.variables.iter().collect();
        variables.sort();
        for (name, text) in variables {
            if let Some((path, name)) = self.path_of(&value, name)? {
                // A short name that is set to an empty text counts as unset.
                if text.is_empty() && self.others.iter().any(|(known, _)| *known == name) {
                    continue;
                }
                let origin = Origin::Variable(name.into());
                let text = text
                    .to_str()
                    .ok_or_else(|| ConfigError::new("the text is not UTF-8").at(&origin))?;
                value.overlay(nested(&path, text, &origin), false);
            }
        }
        Ok(value)
    }

    /// The path of the setting for a variable, and the variable's name.
    fn path_of(
        &self,
        tree: &Value,
        name: &OsStr,
    ) -> Result<Option<(Vec<String>, String)>, ConfigError> {
        let Some(name) = name.to_str() else { return Ok(None) };
        if let Some((_, path)) = self.others.iter().find(|(known, _)| known == name) {
            let path = path.split('.').map(ToOwned::to_owned).collect();
            return Ok(Some((path, name.to_owned())));
        }
        let Some(rest) = name.strip_prefix(&self.prefix) else { return Ok(None) };
        let path: Vec<_> = rest.split("__").map(folded).collect();
        let is_one = path.len() == 1;
        if is_one {
            let plain = tree.entries().iter().find(|entry| folded(&entry.key) == path[0]);
            let is_plain = plain.is_some_and(|entry| !matches!(entry.value.kind, Kind::Table(_)));
            if !is_plain && let Some(meant) = self.meant(tree, &path[0]) {
                let text = format!(
                    "two underscores separate the parts of a setting's path; did you mean {meant}?"
                );
                return Err(ConfigError::new(text).at(&Origin::Variable(name.into())));
            }
            return Ok(is_plain.then(|| (path, name.to_owned())));
        }
        if path.len() > NAMES_MAX || path.iter().any(String::is_empty) {
            let text = "separate the parts of a setting's path with two underscores";
            return Err(ConfigError::new(text).at(&Origin::Variable(name.into())));
        }
        Ok(Some((path, name.to_owned())))
    }
}

impl Layers {
    /// The variable for the setting whose path, joined by single underscores, is `said` or nearly
    /// so.
    fn meant(&self, tree: &Value, said: &str) -> Option<String> {
        if is_of_kubernetes(said) {
            return None;
        }
        let mut paths = Vec::new();
        collect(tree, &mut Vec::new(), &mut paths);
        // The name of the table must be exact: the environment contains many unrelated variables.
        let is_near = |path: &&Vec<String>| {
            path.len() > 1 && said.strip_prefix(&*path[0]).is_some_and(|rest| rest.starts_with('_'))
        };
        let near: Vec<_> = paths.iter().filter(is_near).collect();
        let flat: Vec<_> = near.iter().map(|path| path.join("_")).collect();
        let found = nearest_name(said, &flat, MISTAKES_MAX)?;
        let at = flat.iter().position(|one| one == found)?;
        Some(format!("{}{}", self.prefix, near[at].join("__").to_uppercase()))
    }
}

/// Kubernetes sets variables prefixed with the name of each service: `APP_SERVICE_HOST`,
/// `APP_PORT_80_TCP_ADDR`.
fn is_of_kubernetes(rest: &str) -> bool {
    rest == "port" || rest.starts_with("service_") || rest.starts_with("port_")
}

/// Collects the paths of all values in a tree.
fn collect(tree: &Value, way: &mut Vec<String>, all: &mut Vec<Vec<String>>) {
    if !matches!(tree.kind, Kind::Table(_)) {
        return all.push(way.clone());
    }
    if way.len() < NAMES_MAX {
        for entry in tree.entries() {
            way.push(folded(&entry.key));
            collect(&entry.value, way, all);
            way.pop();
        }
    }
}

/// Wraps the text into nested tables.
fn nested(path: &[String], text: &str, origin: &Origin) -> Value {
    let of = |kind| Value { kind, origin: origin.clone() };
    let inner = of(Kind::Text(text.to_owned()));
    path.iter().rev().fold(inner, |value, key| {
        of(Kind::Table(vec![Entry { key: key.clone(), origin: origin.clone(), value }]))
    })
}

fn read_file(path: &Path) -> Result<Value, ConfigError> {
    let unreadable = |cause: &dyn fmt::Display| ConfigError::unreadable(path.to_owned(), cause);
    let file = File::open(path).map_err(|error| unreadable(&error))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(unreadable(&"it is longer than 1 MiB"));
    }
    let text = String::from_utf8(bytes).map_err(|_| unreadable(&"it is not UTF-8"))?;
    parse(&text, path)
}

/// Parses the text of a file.
pub(crate) fn parse(text: &str, path: &Path) -> Result<Value, ConfigError> {
    let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let places = Places { text, lines, path: path.into() };
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        ConfigError::new(format!("invalid TOML: {}", error.message())).at(&places.origin(at))
    })?;
    let origin = places.origin(table.span().start);
    Ok(Value { kind: places.table(table.get_ref())?, origin })
}

/// Converts offsets in a text to positions.
struct Places<'t> {
    text: &'t str,
    /// The offsets of line starts.
    lines: Vec<usize>,
    path: Arc<Path>,
}

impl Places<'_> {
    fn origin(&self, at: usize) -> Origin {
        let line = self.lines.partition_point(|begin| *begin <= at);
        let begin = self.lines[line - 1];
        let before = self.text.get(begin..at).unwrap_or_default();
        // In such a long line, character columns are not useful.
        let is_long = before.len() > LINE_BYTES_MAX;
        let column = 1 + if is_long { before.len() } else { before.chars().count() };
        Origin::File { path: Arc::clone(&self.path), line, column }
    }

    fn table(&self, table: &DeTable<'_>) -> Result<Kind, ConfigError> {
        let mut all: Vec<_> = table.iter().collect();
        // In the order in which they were written.
        all.sort_by_key(|(key, _)| key.span().start);
        let entry = |(key, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
            let origin = self.origin(value.span().start);
            let value = Value { kind: self.kind(value.get_ref(), &origin)?, origin };
            let origin = self.origin(key.span().start);
            Ok(Entry { key: key.get_ref().clone().into_owned(), origin, value })
        };
        Ok(Kind::Table(all.into_iter().map(entry).collect::<Result<_, _>>()?))
    }

    fn kind(&self, value: &DeValue<'_>, origin: &Origin) -> Result<Kind, ConfigError> {
        Ok(match value {
            DeValue::String(text) => Kind::Text(text.clone().into_owned()),
            DeValue::Boolean(is) => Kind::Bool(*is),
            DeValue::Integer(number) => {
                let read = i128::from_str_radix(number.as_str(), number.radix());
                let too_large = |_| ConfigError::new("the number is too large").at(origin);
                Kind::Integer(read.map_err(too_large)?)
            }
            DeValue::Float(number) => {
                let none = |_| ConfigError::new("this is not a number").at(origin);
                Kind::Float(number.as_str().parse().map_err(none)?)
            }
            // Settings contain no dates, so treat a date as a string.
            DeValue::Datetime(time) => Kind::Text(time.to_string()),
            DeValue::Array(all) => {
                let item = |item: &Spanned<DeValue<'_>>| {
                    let origin = self.origin(item.span().start);
                    Ok(Value { kind: self.kind(item.get_ref(), &origin)?, origin })
                };
                Kind::List(all.iter().map(item).collect::<Result<_, _>>()?)
            }
            DeValue::Table(table) => self.table(table)?,
        })
    }
}

#[cfg(test)]
mod tests;
