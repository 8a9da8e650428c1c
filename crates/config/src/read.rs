//! The layers in which settings are said.

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

/// The longest line in which columns are those of characters.
const LINE_BYTES_MAX: usize = 4096;

/// So many letters may be wrong in the name of a variable that has one underscore where there should be two.
const MISTAKES_MAX: usize = 2;

/// How many names there may be on the way to a setting.
const NAMES_MAX: usize = 16;

/// The longest file that is read.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Where settings are said besides in the program: a file of TOML, and variables of the environment. What is said later
/// is stronger: program, file, variables.
///
/// A variable's name is a prefix and the names on the way to the setting, with two underscores between them:
/// `APP_LIMITS__IDLE_TIMEOUT=75s` for `limits.idle_timeout`. Case does not count, and hyphens are underscores.
/// Lists are written with commas. A variable with two underscores that names no setting is an error. One without them is a
/// setting only if the tree has a plain one of that name. If it would be one with two underscores somewhere, or nearly, that is an
/// error (`APP_LIMITS_IDLE_TIMEOUT`); others may be somebody else's, such as those that Kubernetes sets for each of its
/// services, and are left alone.
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
/// let settings: Settings = layers.load(&Settings { greeting: "Hello".into(), ..Settings::default() })?;
/// assert_eq!((&*settings.greeting, &*settings.mail.from), ("Hello", "me@example.org"));
///
/// let error = Layers::new("APP_").variables([("APP_MAIL__FORM", "")]).load(&Settings::default());
/// let text = error.unwrap_err().to_string();
/// assert_eq!(text, "the variable APP_MAIL__FORM: `mail.form`: there is no such setting; did you mean `from`?");
/// # Ok::<(), peregrine::config::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Layers {
    prefix: String,
    file: Option<PathBuf>,
    variables: Vec<(OsString, OsString)>,
    others: Vec<(String, String)>,
}

/// What variables say may be secret.
impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, file, .. } = self;
        f.debug_struct("Layers").field("prefix", prefix).field("file", file).finish_non_exhaustive()
    }
}

impl Layers {
    /// Neither a file nor variables yet. Variables are those whose names begin with `prefix`.
    #[must_use]
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), file: None, variables: Vec::new(), others: Vec::new() }
    }

    /// Reads this file, which must be there.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// Reads the environment of the process, as it is now.
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

    /// The variable `name`, which is short, stands for the setting `path`.
    #[must_use]
    pub fn variable_for(mut self, name: impl Into<String>, path: impl Into<String>) -> Self {
        self.others.push((name.into(), path.into()));
        self
    }

    /// The file, if there is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads all layers over `code`.
    ///
    /// # Errors
    /// A [`ConfigError`] names the place, the setting, and what was expected.
    pub fn load<T: Serialize + DeserializeOwned>(&self, code: &T) -> Result<T, ConfigError> {
        from_value(&self.value(code)?)
    }

    /// The same, after `change` has seen what was said.
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
                // A short name is often set to nothing where nothing is meant.
                if text.is_empty() && self.others.iter().any(|(known, _)| *known == name) {
                    continue;
                }
                let origin = Origin::Variable(name.into());
                let text = text
                    .to_str()
                    .ok_or_else(|| ConfigError::new("the text is no UTF-8").at(&origin))?;
                value.overlay(nested(&path, text, &origin), false);
            }
        }
        Ok(value)
    }

    /// The names on the way to the setting that a variable is for, and the variable's name.
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
                    "two underscores stand between the names on the way to a setting; did you mean {meant}?"
                );
                return Err(ConfigError::new(text).at(&Origin::Variable(name.into())));
            }
            return Ok(is_plain.then(|| (path, name.to_owned())));
        }
        if path.len() > NAMES_MAX || path.iter().any(String::is_empty) {
            let text = "write the names on the way to a setting, with two underscores between them";
            return Err(ConfigError::new(text).at(&Origin::Variable(name.into())));
        }
        Ok(Some((path, name.to_owned())))
    }
}

impl Layers {
    /// The variable of the setting whose names, with one underscore between them, are `said` or nearly so.
    fn meant(&self, tree: &Value, said: &str) -> Option<String> {
        if is_of_kubernetes(said) {
            return None;
        }
        let mut paths = Vec::new();
        collect(tree, &mut Vec::new(), &mut paths);
        // Only of tables that are named right: there are many variables in the world.
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

/// Kubernetes has variables for each service, with the service's name before them: `APP_SERVICE_HOST`, `APP_PORT_80_TCP_ADDR`.
fn is_of_kubernetes(rest: &str) -> bool {
    rest == "port" || rest.starts_with("service_") || rest.starts_with("port_")
}

/// The ways to all plain settings of a tree.
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

/// The text as a setting in tables.
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
    let text = String::from_utf8(bytes).map_err(|_| unreadable(&"it is no UTF-8"))?;
    parse(&text, path)
}

/// Reads a file's text.
pub(crate) fn parse(text: &str, path: &Path) -> Result<Value, ConfigError> {
    let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let places = Places { text, lines, path: path.into() };
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        ConfigError::new(format!("this is no TOML: {}", error.message())).at(&places.origin(at))
    })?;
    let origin = places.origin(table.span().start);
    Ok(Value { kind: places.table(table.get_ref())?, origin })
}

/// Tells where in a text something is.
struct Places<'t> {
    text: &'t str,
    /// Where lines begin.
    lines: Vec<usize>,
    path: Arc<Path>,
}

impl Places<'_> {
    fn origin(&self, at: usize) -> Origin {
        let line = self.lines.partition_point(|begin| *begin <= at);
        let begin = self.lines[line - 1];
        let before = self.text.get(begin..at).unwrap_or_default();
        // Nobody counts the characters of such a line.
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
                let none = |_| ConfigError::new("this is no number").at(origin);
                Kind::Float(number.as_str().parse().map_err(none)?)
            }
            // Nothing here is a date: whoever expects a text may take it as one.
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
