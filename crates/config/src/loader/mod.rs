//! The layers of settings.

use crate::de::from_value;
use crate::error::{ConfigError, closest_name};
use crate::ser::to_value;
use crate::value::{ConfigValue, SourceLocation, TableEntry, ValueKind, normalize_key};
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
const TYPO_DISTANCE_MAX: usize = 2;

/// The maximum depth of a setting.
const DEPTH_MAX: usize = 16;

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
/// use peregrine::config::ConfigLoader;
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
/// let layers = ConfigLoader::new("APP_").env_vars(variables);
/// let code = Settings { greeting: "Hello".into(), ..Settings::default() };
/// let settings: Settings = layers.load(&code)?;
/// assert_eq!((&*settings.greeting, &*settings.mail.from), ("Hello", "me@example.org"));
///
/// let layers = ConfigLoader::new("APP_").env_vars([("APP_MAIL__FORM", "")]);
/// let error = layers.load(&Settings::default());
/// let text = error.unwrap_err().to_string();
/// let expected = "the variable APP_MAIL__FORM: `mail.form`: there is no such setting; \
///     did you mean `from`?";
/// assert_eq!(text, expected);
/// # Ok::<(), peregrine::config::ConfigError>(())
/// ```
#[doc(alias = "Figment")]
#[doc(alias = "ConfigBuilder")]
#[derive(Clone)]
pub struct ConfigLoader {
    prefix: String,
    file: Option<PathBuf>,
    env_vars: Vec<(OsString, OsString)>,
    env_aliases: Vec<(String, String)>,
}

/// Does not print variables, which may be secret.
impl fmt::Debug for ConfigLoader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, file, .. } = self;
        f.debug_struct("ConfigLoader")
            .field("prefix", prefix)
            .field("file", file)
            .finish_non_exhaustive()
    }
}

impl ConfigLoader {
    /// Creates layers without a file or variables. `prefix` is the common prefix of the variables.
    #[must_use]
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), file: None, env_vars: Vec::new(), env_aliases: Vec::new() }
    }

    /// Reads this file, which must exist.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// Reads the current environment of the process.
    #[must_use]
    pub fn env(self) -> Self {
        self.env_vars(env::vars_os())
    }

    /// Reads these variables.
    #[must_use]
    pub fn env_vars<N: Into<OsString>, V: Into<OsString>>(
        mut self,
        all: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let all = all.into_iter().map(|(name, value)| (name.into(), value.into()));
        self.env_vars.extend(all);
        self
    }

    /// Also reads the short variable `name` for the setting `path`.
    #[must_use]
    pub fn env_alias(mut self, name: impl Into<String>, path: impl Into<String>) -> Self {
        self.env_aliases.push((name.into(), path.into()));
        self
    }

    /// The path of the file, if there is one.
    #[must_use]
    pub fn file_path(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads all layers on top of `code`.
    ///
    /// # Errors
    /// A [`ConfigError`] with the position, the setting, and the expected value.
    pub fn load<T: Serialize + DeserializeOwned>(&self, code: &T) -> Result<T, ConfigError> {
        from_value(&self.merge_layers(code)?)
    }

    /// Like [`load`](Self::load); `change` can modify the tree before it is deserialised.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_with_overrides<T: Serialize + DeserializeOwned>(
        &self,
        code: &T,
        change: impl FnOnce(&mut ConfigValue),
    ) -> Result<T, ConfigError> {
        let mut value = self.merge_layers(code)?;
        change(&mut value);
        from_value(&value)
    }

    fn merge_layers<T: Serialize>(&self, code: &T) -> Result<ConfigValue, ConfigError> {
        let mut value = to_value(code)?;
        if let Some(path) = &self.file {
            value.merge(load_file(path)?, true);
        }
        let mut variables: Vec<_> = self.env_vars.iter().collect();
        variables.sort();
        for (name, text) in variables {
            if let Some((path, name)) = self.key_for_env_var(&value, name)? {
                // A short name that is set to an empty text counts as unset.
                if text.is_empty() && self.env_aliases.iter().any(|(known, _)| *known == name) {
                    continue;
                }
                let origin = SourceLocation::EnvVar(name.into());
                let text = text.to_str().ok_or_else(|| {
                    ConfigError::new("the text is not UTF-8").with_location(&origin)
                })?;
                value.merge(nest_value(&path, text, &origin), false);
            }
        }
        Ok(value)
    }

    /// The path of the setting for a variable, and the variable's name.
    fn key_for_env_var(
        &self,
        tree: &ConfigValue,
        name: &OsStr,
    ) -> Result<Option<(Vec<String>, String)>, ConfigError> {
        let Some(name) = name.to_str() else { return Ok(None) };
        if let Some((_, path)) = self.env_aliases.iter().find(|(known, _)| known == name) {
            let path = path.split('.').map(ToOwned::to_owned).collect();
            return Ok(Some((path, name.to_owned())));
        }
        let Some(rest) = name.strip_prefix(&self.prefix) else { return Ok(None) };
        let path: Vec<_> = rest.split("__").map(normalize_key).collect();
        let is_one = path.len() == 1;
        if is_one {
            let plain = tree.entries().iter().find(|entry| normalize_key(&entry.key) == path[0]);
            let is_plain =
                plain.is_some_and(|entry| !matches!(entry.value.kind, ValueKind::Table(_)));
            if !is_plain && let Some(meant) = self.suggest_env_var(tree, &path[0]) {
                let text = format!(
                    "two underscores separate the parts of a setting's path; did you mean {meant}?"
                );
                return Err(
                    ConfigError::new(text).with_location(&SourceLocation::EnvVar(name.into()))
                );
            }
            return Ok(is_plain.then(|| (path, name.to_owned())));
        }
        if path.len() > DEPTH_MAX || path.iter().any(String::is_empty) {
            let text = "separate the parts of a setting's path with two underscores";
            return Err(ConfigError::new(text).with_location(&SourceLocation::EnvVar(name.into())));
        }
        Ok(Some((path, name.to_owned())))
    }
}

impl ConfigLoader {
    /// The variable for the setting whose path, joined by single underscores, is `said` or nearly
    /// so.
    fn suggest_env_var(&self, tree: &ConfigValue, said: &str) -> Option<String> {
        if is_kubernetes_service_var(said) {
            return None;
        }
        let mut paths = Vec::new();
        collect_keys(tree, &mut Vec::new(), &mut paths);
        // The name of the table must be exact: the environment contains many unrelated variables.
        let is_near = |path: &&Vec<String>| {
            path.len() > 1 && said.strip_prefix(&*path[0]).is_some_and(|rest| rest.starts_with('_'))
        };
        let near: Vec<_> = paths.iter().filter(is_near).collect();
        let flat: Vec<_> = near.iter().map(|path| path.join("_")).collect();
        let found = closest_name(said, &flat, TYPO_DISTANCE_MAX)?;
        let at = flat.iter().position(|one| one == found)?;
        Some(format!("{}{}", self.prefix, near[at].join("__").to_uppercase()))
    }
}

/// Kubernetes sets variables prefixed with the name of each service: `APP_SERVICE_HOST`,
/// `APP_PORT_80_TCP_ADDR`.
fn is_kubernetes_service_var(rest: &str) -> bool {
    rest == "port" || rest.starts_with("service_") || rest.starts_with("port_")
}

/// Collects the paths of all values in a tree.
fn collect_keys(tree: &ConfigValue, way: &mut Vec<String>, all: &mut Vec<Vec<String>>) {
    if !matches!(tree.kind, ValueKind::Table(_)) {
        return all.push(way.clone());
    }
    if way.len() < DEPTH_MAX {
        for entry in tree.entries() {
            way.push(normalize_key(&entry.key));
            collect_keys(&entry.value, way, all);
            way.pop();
        }
    }
}

/// Wraps the text into nested tables.
fn nest_value(path: &[String], text: &str, origin: &SourceLocation) -> ConfigValue {
    let of = |kind| ConfigValue { kind, location: origin.clone() };
    let inner = of(ValueKind::String(text.to_owned()));
    path.iter().rev().fold(inner, |value, key| {
        of(ValueKind::Table(vec![TableEntry {
            key: key.clone(),
            key_location: origin.clone(),
            value,
        }]))
    })
}

fn load_file(path: &Path) -> Result<ConfigValue, ConfigError> {
    let unreadable = |cause: &dyn fmt::Display| ConfigError::unreadable(path.to_owned(), cause);
    let file = File::open(path).map_err(|error| unreadable(&error))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(unreadable(&"it is longer than 1 MiB"));
    }
    let text = String::from_utf8(bytes).map_err(|_| unreadable(&"it is not UTF-8"))?;
    parse_toml(&text, path)
}

/// Parses the text of a file.
pub(crate) fn parse_toml(text: &str, path: &Path) -> Result<ConfigValue, ConfigError> {
    let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let places = LineIndex { text, lines, path: path.into() };
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        ConfigError::new(format!("invalid TOML: {}", error.message()))
            .with_location(&places.location(at))
    })?;
    let origin = places.location(table.span().start);
    Ok(ConfigValue { kind: places.table(table.get_ref())?, location: origin })
}

/// Converts offsets in a text to positions.
struct LineIndex<'t> {
    text: &'t str,
    /// The offsets of line starts.
    lines: Vec<usize>,
    path: Arc<Path>,
}

impl LineIndex<'_> {
    fn location(&self, at: usize) -> SourceLocation {
        let line = self.lines.partition_point(|begin| *begin <= at);
        let begin = self.lines[line - 1];
        let before = self.text.get(begin..at).unwrap_or_default();
        // In such a long line, character columns are not useful.
        let is_long = before.len() > LINE_BYTES_MAX;
        let column = 1 + if is_long { before.len() } else { before.chars().count() };
        SourceLocation::File { path: Arc::clone(&self.path), line, column }
    }

    fn table(&self, table: &DeTable<'_>) -> Result<ValueKind, ConfigError> {
        let mut all: Vec<_> = table.iter().collect();
        // In the order in which they were written.
        all.sort_by_key(|(key, _)| key.span().start);
        let entry = |(key, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
            let origin = self.location(value.span().start);
            let value =
                ConfigValue { kind: self.convert(value.get_ref(), &origin)?, location: origin };
            let origin = self.location(key.span().start);
            Ok(TableEntry { key: key.get_ref().clone().into_owned(), key_location: origin, value })
        };
        Ok(ValueKind::Table(all.into_iter().map(entry).collect::<Result<_, _>>()?))
    }

    fn convert(
        &self,
        value: &DeValue<'_>,
        origin: &SourceLocation,
    ) -> Result<ValueKind, ConfigError> {
        Ok(match value {
            DeValue::String(text) => ValueKind::String(text.clone().into_owned()),
            DeValue::Boolean(is) => ValueKind::Bool(*is),
            DeValue::Integer(number) => {
                let read = i128::from_str_radix(number.as_str(), number.radix());
                let too_large =
                    |_| ConfigError::new("the number is too large").with_location(origin);
                ValueKind::Integer(read.map_err(too_large)?)
            }
            DeValue::Float(number) => {
                let none = |_| ConfigError::new("this is not a number").with_location(origin);
                ValueKind::Float(number.as_str().parse().map_err(none)?)
            }
            // Settings contain no dates, so treat a date as a string.
            DeValue::Datetime(time) => ValueKind::String(time.to_string()),
            DeValue::Array(all) => {
                let item = |item: &Spanned<DeValue<'_>>| {
                    let origin = self.location(item.span().start);
                    Ok(ConfigValue {
                        kind: self.convert(item.get_ref(), &origin)?,
                        location: origin,
                    })
                };
                ValueKind::Array(all.iter().map(item).collect::<Result<_, _>>()?)
            }
            DeValue::Table(table) => self.table(table)?,
        })
    }
}

#[cfg(test)]
mod tests;
