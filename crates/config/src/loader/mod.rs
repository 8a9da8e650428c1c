//! [`ConfigLoader`]: reads and merges the layers of settings.

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

/// Beyond this offset in a line, columns are counted in bytes instead of characters.
const LINE_BYTES_MAX: usize = 4096;

/// The maximum edit distance at which a variable with single underscores counts as a misspelled
/// setting.
const TYPO_DISTANCE_MAX: usize = 2;

/// The maximum number of parts in a setting's path.
const DEPTH_MAX: usize = 16;

/// The maximum size of a file in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Reads settings from a TOML file and environment variables, over the program's values. Variables
/// override the file, and the file overrides the program's values.
///
/// The name of a variable is a prefix followed by the path of the setting, whose parts are
/// separated by two underscores: `APP_LIMITS__IDLE_TIMEOUT=75s` sets `limits.idle_timeout`. Case is
/// ignored, and hyphens are written as underscores. The items of a list are separated by commas.
///
/// A variable whose name contains two underscores must match a setting. A variable without them is
/// used only if there is a top-level setting of that name. If its name instead resembles a setting
/// with single underscores, such as `APP_LIMITS_IDLE_TIMEOUT`, loading fails. All other variables
/// are ignored, because they may have another purpose, such as those that Kubernetes sets for each
/// service.
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

/// Omits the variables, whose values may be secrets.
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
    /// Creates a loader without a file or variables. `prefix` is the common prefix of the
    /// variables.
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
        vars: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let vars = vars.into_iter().map(|(name, value)| (name.into(), value.into()));
        self.env_vars.extend(vars);
        self
    }

    /// Also reads the short variable `name` for the setting `path`.
    #[must_use]
    pub fn env_alias(mut self, name: impl Into<String>, path: impl Into<String>) -> Self {
        self.env_aliases.push((name.into(), path.into()));
        self
    }

    /// Returns the path of the file, if there is one.
    #[must_use]
    pub fn file_path(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads all layers on top of `code`.
    ///
    /// # Errors
    /// A layer is invalid. The [`ConfigError`] names the position, the setting, and the expected
    /// value.
    pub fn load<T: Serialize + DeserializeOwned>(&self, code: &T) -> Result<T, ConfigError> {
        from_value(&self.merge_layers(code)?)
    }

    /// Like [`load`](Self::load), but `change` can modify the tree before it is deserialised.
    ///
    /// # Errors
    /// See [`load`](Self::load).
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
        let mut vars: Vec<_> = self.env_vars.iter().collect();
        vars.sort();
        for (name, text) in vars {
            if let Some((path, name)) = self.key_for_env_var(&value, name)? {
                // An alias that is set to an empty text counts as unset.
                if text.is_empty() && self.env_aliases.iter().any(|(alias, _)| *alias == name) {
                    continue;
                }
                let location = SourceLocation::EnvVar(name.into());
                let text = text.to_str().ok_or_else(|| {
                    ConfigError::new("the text is not UTF-8").with_location(&location)
                })?;
                value.merge(nest_value(&path, text, &location), false);
            }
        }
        Ok(value)
    }

    /// Returns the path of the setting that a variable sets, and the variable's name. Returns
    /// `None` if the variable has another purpose.
    fn key_for_env_var(
        &self,
        tree: &ConfigValue,
        name: &OsStr,
    ) -> Result<Option<(Vec<String>, String)>, ConfigError> {
        let Some(name) = name.to_str() else { return Ok(None) };
        if let Some((_, path)) = self.env_aliases.iter().find(|(alias, _)| alias == name) {
            let path = path.split('.').map(ToOwned::to_owned).collect();
            return Ok(Some((path, name.to_owned())));
        }
        let Some(suffix) = name.strip_prefix(&self.prefix) else { return Ok(None) };
        let path: Vec<_> = suffix.split("__").map(normalize_key).collect();
        let is_top_level = path.len() == 1;
        if is_top_level {
            let entry = tree.entries().iter().find(|entry| normalize_key(&entry.key) == path[0]);
            let is_value =
                entry.is_some_and(|entry| !matches!(entry.value.kind, ValueKind::Table(_)));
            if !is_value && let Some(suggestion) = self.suggest_env_var(tree, &path[0]) {
                let text = format!(
                    "two underscores separate the parts of a setting's path; did you mean \
                     {suggestion}?"
                );
                return Err(
                    ConfigError::new(text).with_location(&SourceLocation::EnvVar(name.into()))
                );
            }
            return Ok(is_value.then(|| (path, name.to_owned())));
        }
        if path.len() > DEPTH_MAX || path.iter().any(String::is_empty) {
            let text = "separate the parts of a setting's path with two underscores";
            return Err(ConfigError::new(text).with_location(&SourceLocation::EnvVar(name.into())));
        }
        Ok(Some((path, name.to_owned())))
    }
}

impl ConfigLoader {
    /// Returns the variable for the setting whose path, joined by single underscores, is equal or
    /// similar to `name`.
    fn suggest_env_var(&self, tree: &ConfigValue, name: &str) -> Option<String> {
        if is_kubernetes_service_var(name) {
            return None;
        }
        let mut paths = Vec::new();
        collect_keys(tree, &mut Vec::new(), &mut paths);
        // The name of the top-level table must match exactly, because the environment contains many
        // unrelated variables.
        let is_in_table = |path: &&Vec<String>| {
            path.len() > 1
                && name.strip_prefix(&*path[0]).is_some_and(|suffix| suffix.starts_with('_'))
        };
        let candidates: Vec<_> = paths.iter().filter(is_in_table).collect();
        let joined: Vec<_> = candidates.iter().map(|path| path.join("_")).collect();
        let closest = closest_name(name, &joined, TYPO_DISTANCE_MAX)?;
        let index = joined.iter().position(|candidate| candidate == closest)?;
        Some(format!("{}{}", self.prefix, candidates[index].join("__").to_uppercase()))
    }
}

/// Whether Kubernetes may have set the variable. For a service `app`, it sets `APP_SERVICE_HOST`,
/// `APP_PORT_80_TCP_ADDR` and others.
fn is_kubernetes_service_var(name: &str) -> bool {
    name == "port" || name.starts_with("service_") || name.starts_with("port_")
}

/// Collects the paths of all values in a tree.
fn collect_keys(tree: &ConfigValue, path: &mut Vec<String>, paths: &mut Vec<Vec<String>>) {
    if !matches!(tree.kind, ValueKind::Table(_)) {
        return paths.push(path.clone());
    }
    if path.len() < DEPTH_MAX {
        for entry in tree.entries() {
            path.push(normalize_key(&entry.key));
            collect_keys(&entry.value, path, paths);
            path.pop();
        }
    }
}

/// Nests the text in a table for each part of the path.
fn nest_value(path: &[String], text: &str, location: &SourceLocation) -> ConfigValue {
    let with_location = |kind| ConfigValue { kind, location: location.clone() };
    let leaf = with_location(ValueKind::String(text.to_owned()));
    path.iter().rev().fold(leaf, |value, key| {
        with_location(ValueKind::Table(vec![TableEntry {
            key: key.clone(),
            key_location: location.clone(),
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
    let line_starts =
        std::iter::once(0).chain(text.match_indices('\n').map(|(offset, _)| offset + 1)).collect();
    let line_index = LineIndex { text, line_starts, path: path.into() };
    let table = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        ConfigError::new(format!("invalid TOML: {}", error.message()))
            .with_location(&line_index.location(offset))
    })?;
    let location = line_index.location(table.span().start);
    Ok(ConfigValue { kind: line_index.table(table.get_ref())?, location })
}

/// Converts offsets in a text to positions, and the parsed text to a tree.
struct LineIndex<'t> {
    text: &'t str,
    /// The offsets at which lines start.
    line_starts: Vec<usize>,
    path: Arc<Path>,
}

impl LineIndex<'_> {
    fn location(&self, offset: usize) -> SourceLocation {
        let line = self.line_starts.partition_point(|line_start| *line_start <= offset);
        let line_start = self.line_starts[line - 1];
        let before = self.text.get(line_start..offset).unwrap_or_default();
        // Counting characters would be slow, and the result would not be useful.
        let is_long = before.len() > LINE_BYTES_MAX;
        let column = 1 + if is_long { before.len() } else { before.chars().count() };
        SourceLocation::File { path: Arc::clone(&self.path), line, column }
    }

    fn table(&self, table: &DeTable<'_>) -> Result<ValueKind, ConfigError> {
        let mut entries: Vec<_> = table.iter().collect();
        // `DeTable` may not preserve the order of the file.
        entries.sort_by_key(|(key, _)| key.span().start);
        let to_entry = |(key, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
            let location = self.location(value.span().start);
            let value = ConfigValue { kind: self.convert(value.get_ref(), &location)?, location };
            let location = self.location(key.span().start);
            Ok(TableEntry {
                key: key.get_ref().clone().into_owned(),
                key_location: location,
                value,
            })
        };
        Ok(ValueKind::Table(entries.into_iter().map(to_entry).collect::<Result<_, _>>()?))
    }

    fn convert(
        &self,
        value: &DeValue<'_>,
        location: &SourceLocation,
    ) -> Result<ValueKind, ConfigError> {
        Ok(match value {
            DeValue::String(text) => ValueKind::String(text.clone().into_owned()),
            DeValue::Boolean(boolean) => ValueKind::Bool(*boolean),
            DeValue::Integer(number) => {
                let parsed = i128::from_str_radix(number.as_str(), number.radix());
                let too_large =
                    |_| ConfigError::new("the number is too large").with_location(location);
                ValueKind::Integer(parsed.map_err(too_large)?)
            }
            DeValue::Float(number) => {
                let not_a_number =
                    |_| ConfigError::new("this is not a number").with_location(location);
                ValueKind::Float(number.as_str().parse().map_err(not_a_number)?)
            }
            // Settings contain no dates, so a date is treated as a string.
            DeValue::Datetime(time) => ValueKind::String(time.to_string()),
            DeValue::Array(items) => {
                let to_value = |item: &Spanned<DeValue<'_>>| {
                    let location = self.location(item.span().start);
                    Ok(ConfigValue { kind: self.convert(item.get_ref(), &location)?, location })
                };
                ValueKind::Array(items.iter().map(to_value).collect::<Result<_, _>>()?)
            }
            DeValue::Table(table) => self.table(table)?,
        })
    }
}

#[cfg(test)]
mod tests;
