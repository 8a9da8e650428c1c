//! How a contender is built and started: a recipe, from a file or from the command line.
//!
//! Words and variables may hold `{port}`, `{tls_port}`, `{tls_cert}`, `{tls_key}`, `{workers}`,
//! `{echo_port}`, `{target}` (the folder of built programs) and `{folder}` (the recipe's own folder).
//! Anything else in braces stands for itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use peregrine_lab_model::contender::Class;
use serde::Deserialize;

use crate::error::{Fault, KEYS, NotACommand, RecipeError};
use crate::select;
use crate::toolchain;

/// The file that makes a folder a contender.
pub const FILE_NAME: &str = "contender.toml";

/// A recipe, checked: its folders exist and its command has a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// The name in the report, which is also the name of the folder.
    pub name: String,
    /// As the framework's documentation shows it, or changed for speed.
    pub class: Class,
    /// The command that builds it, with placeholders. Empty: there is nothing to build.
    pub build: Vec<String>,
    /// The command that starts it, with placeholders. It has a first word.
    pub run: Vec<String>,
    /// The folder of the recipe itself: `{folder}`. An absolute path.
    pub home: PathBuf,
    /// Where it is built and run. An absolute path.
    pub folder: PathBuf,
    /// The framework's package in the lock file, from which its version is read.
    pub package: Option<String>,
    /// The lock file, if there is one. An absolute path.
    pub lock: Option<PathBuf>,
    /// A command that prints the version, where no lock file has it. Empty: none.
    pub version: Vec<String>,
    /// The oldest Rust that builds it, such as `1.88`.
    pub rust: Option<String>,
    /// What must succeed before it can be built or run.
    pub needs: Vec<Need>,
    /// What is said if a need fails because the program is not published.
    pub unobtainable: Option<String>,
    /// The allocator. The default is `system`.
    pub allocator: String,
    /// Whether it can serve HTTPS.
    pub is_tls_able: bool,
    /// What it speaks.
    pub protocols: Vec<Protocol>,
    /// The only scenarios that it serves; empty: all that it does not lack.
    pub serves: Vec<String>,
    /// The scenarios that it cannot serve, with reasons.
    pub lacks: BTreeMap<String, String>,
    /// Variables for its environment, with placeholders.
    pub environment: BTreeMap<String, String>,
    /// Whether it is a variant of the contender in its folder: one that is asked only where it is named.
    pub is_variant: bool,
}

/// A version of HTTP, and how both sides agree on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Protocol {
    /// HTTP/1.1, with TLS and without.
    #[serde(rename = "http/1.1")]
    Http1,
    /// HTTP/2 without TLS, by prior knowledge.
    #[serde(rename = "h2c")]
    H2c,
    /// HTTP/2 over TLS, by ALPN.
    #[serde(rename = "h2")]
    H2,
}

/// A command that must succeed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Need {
    /// The program and its arguments. It runs in the recipe's `folder` and reads nothing.
    pub command: Vec<String>,
    /// What is missing where it fails, in a sentence.
    pub reason: String,
}

/// What a recipe's placeholders stand for in one start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    /// The port for plain HTTP.
    pub port: u16,
    /// The port for HTTPS.
    pub tls_port: u16,
    /// The certificate's path, or nothing.
    pub tls_cert: String,
    /// The key's path, or nothing.
    pub tls_key: String,
    /// How many workers the server is to have.
    pub workers: usize,
    /// The port of the lab's echo server.
    pub echo_port: u16,
    /// Where built programs lie.
    pub target: PathBuf,
}

/// A recipe's command with every placeholder filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The program and its arguments. The program is an absolute path or a name to be found on
    /// the PATH.
    pub words: Vec<String>,
    /// The variables added to the environment.
    pub environment: BTreeMap<String, String>,
    /// Where it runs.
    pub folder: PathBuf,
}

/// A recipe as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: Option<String>,
    #[serde(default)]
    class: WrittenClass,
    build: Option<Vec<String>>,
    run: Option<Vec<String>>,
    folder: Option<PathBuf>,
    package: Option<String>,
    lock: Option<PathBuf>,
    version: Option<Vec<String>>,
    rust: Option<String>,
    #[serde(default)]
    needs: Vec<Need>,
    unobtainable: Option<String>,
    allocator: Option<String>,
    tls: Option<bool>,
    protocols: Option<Vec<Protocol>>,
    #[serde(default)]
    serves: Vec<String>,
    #[serde(default)]
    lacks: BTreeMap<String, String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    #[serde(default)]
    variants: Variants,
}

/// Variables that are added to the environment, by the variant's name.
type Variants = BTreeMap<String, BTreeMap<String, String>>;

/// The classes that a recipe may give itself. The model's also has one for what a later version
/// might bring, which here would swallow spelling mistakes.
#[derive(Deserialize, Default)]
#[serde(rename_all = "lowercase")]
enum WrittenClass {
    #[default]
    Stock,
    Tuned,
}

/// Every recipe in `contenders`, variants too, sorted by name. A folder without a `contender.toml` is none.
///
/// # Errors
///
/// That of the first bad recipe, that two of them have one name or build one file in two ways, or that
/// `contenders` cannot be read.
pub fn all(contenders: &Path) -> Result<Vec<Recipe>, RecipeError> {
    let unreadable =
        |error| RecipeError { file: contenders.to_owned(), fault: Fault::Unreadable(error) };
    let mut recipes = Vec::new();
    for entry in fs::read_dir(contenders).map_err(unreadable)? {
        let folder = entry.map_err(unreadable)?.path();
        if folder.join(FILE_NAME).exists() {
            let (recipe, variants) = Recipe::load_with_variants(&folder)?;
            recipes.push(recipe);
            recipes.extend(variants);
        }
    }
    recipes.sort_by(|one, other| one.name.cmp(&other.name));
    if let Some([one, other]) = recipes.array_windows().find(|[one, other]| one.name == other.name)
    {
        let variant = if one.is_variant { one } else { other };
        let fault = Fault::SameName(variant.name.clone());
        return Err(RecipeError { file: variant.home.join(FILE_NAME), fault });
    }
    clash(&recipes).map_or(Ok(recipes), Err)
}

impl Recipe {
    /// Reads and checks `<folder>/contender.toml`.
    ///
    /// # Errors
    ///
    /// A [`RecipeError`] with the file, the key, the cause and how to mend it.
    pub fn load(folder: &Path) -> Result<Recipe, RecipeError> {
        Self::load_with_variants(folder).map(|(recipe, _)| recipe)
    }

    fn load_with_variants(folder: &Path) -> Result<(Recipe, Vec<Recipe>), RecipeError> {
        let file = folder.join(FILE_NAME);
        let bad = |fault| RecipeError { file: file.clone(), fault };
        let unreadable = |error| bad(Fault::Unreadable(error));
        let text = fs::read_to_string(&file).map_err(unreadable)?;
        // Links are followed, so that the paths in messages and in dependency files agree.
        let home = fs::canonicalize(folder).map_err(unreadable)?;
        let mut written = read(&text).map_err(bad)?;
        let variants = std::mem::take(&mut written.variants);
        let recipe = check(written, home).map_err(bad)?;
        let variants =
            variants.into_iter().map(|(name, environment)| recipe.variant(&name, environment));
        let variants = variants.collect::<Result<_, _>>().map_err(bad)?;
        Ok((recipe, variants))
    }

    /// The same contender with more variables.
    fn variant(&self, name: &str, more: BTreeMap<String, String>) -> Result<Recipe, Fault> {
        let name = format!("{}-{name}", self.name);
        if !is_good_name(&name) {
            return Err(Fault::StrangeName(name));
        }
        let mut environment = self.environment.clone();
        environment.extend(more);
        Ok(Recipe { name, environment, is_variant: true, ..self.clone() })
    }

    /// A recipe from the command line: `name=command with arguments`, split at white space. It
    /// runs in the current folder.
    ///
    /// # Errors
    ///
    /// [`NotACommand`], if the name or the command is missing.
    pub fn parse(text: &str) -> Result<Recipe, NotACommand> {
        let wrong = || NotACommand(text.to_owned());
        let (name, command) = text.split_once('=').ok_or_else(wrong)?;
        let run: Vec<String> = command.split_whitespace().map(String::from).collect();
        if !is_good_name(name) || run.is_empty() {
            return Err(wrong());
        }
        let here = std::env::current_dir().map_err(|_| wrong())?;
        Ok(Recipe {
            name: name.to_owned(),
            class: Class::Stock,
            build: Vec::new(),
            run,
            home: here.clone(),
            folder: here,
            package: None,
            lock: None,
            version: Vec::new(),
            rust: None,
            needs: Vec::new(),
            unobtainable: None,
            allocator: "unknown".to_owned(),
            is_tls_able: true,
            // Who does not speak one will not answer rightly.
            protocols: vec![Protocol::Http1, Protocol::H2c, Protocol::H2],
            serves: Vec::new(),
            lacks: BTreeMap::new(),
            environment: BTreeMap::new(),
            is_variant: false,
        })
    }

    /// The command that starts the contender.
    #[must_use]
    pub fn command(&self, places: &Places) -> Command {
        // Paths that the caller means from here would mean others in the contender's folder.
        let path = |text: &String| match text.as_str() {
            "" => String::new(),
            text => absolute(Path::new(text)).to_string_lossy().into_owned(),
        };
        let places = &Places {
            tls_cert: path(&places.tls_cert),
            tls_key: path(&places.tls_key),
            target: absolute(&places.target),
            ..*places
        };
        let mut environment: BTreeMap<String, String> = self
            .environment
            .iter()
            .map(|(name, value)| (name.clone(), self.fill(value, places)))
            .collect();
        let promised = [
            ("PORT", places.port.to_string()),
            ("TLS_PORT", places.tls_port.to_string()),
            ("TLS_CERT", places.tls_cert.clone()),
            ("TLS_KEY", places.tls_key.clone()),
            ("WORKERS", places.workers.to_string()),
            ("ECHO_PORT", places.echo_port.to_string()),
        ];
        environment.extend(promised.map(|(name, value)| (name.to_owned(), value)));
        let words = self.filled(&self.run, places);
        Command { words, environment, folder: self.folder.clone() }
    }

    /// Why the contender cannot be asked `scenario`, over TLS and HTTP/2 or not; nothing if it can.
    #[must_use]
    pub fn lacks(&self, scenario: &str, is_tls: bool, is_http2: bool) -> Option<String> {
        if is_tls && !self.is_tls_able {
            return Some("it cannot serve HTTPS".to_owned());
        }
        let (protocol, reason) = match (is_http2, is_tls) {
            (false, _) => (Protocol::Http1, "it does not speak HTTP/1.1"),
            (true, false) => (Protocol::H2c, "it does not speak HTTP/2 without TLS"),
            (true, true) => (Protocol::H2, "it does not speak HTTP/2 over TLS"),
        };
        if !self.protocols.contains(&protocol) {
            return Some(reason.to_owned());
        }
        if !self.serves.is_empty() && !self.serves.iter().any(|served| served == scenario) {
            return Some(format!("it serves {} alone", self.serves.join(", ")));
        }
        self.lacks.get(scenario).cloned()
    }

    /// The command that builds it, or nothing if there is nothing to build.
    pub(crate) fn build_words(&self, target: &Path) -> Option<Vec<String>> {
        let places = Places { target: target.to_owned(), ..Places::default() };
        (!self.build.is_empty()).then(|| self.filled(&self.build, &places))
    }

    /// Fills in `words`, and makes a program that is given by a relative path absolute: how such
    /// a path is understood differs between systems where a program starts in another folder.
    pub(crate) fn filled(&self, words: &[String], places: &Places) -> Vec<String> {
        let mut words: Vec<String> = words.iter().map(|word| self.fill(word, places)).collect();
        if let Some(program) = words.first_mut()
            && program.contains('/')
        {
            // Taking the path apart and together again leaves out `.`, which nobody wants to read.
            let path: PathBuf = self.folder.join(&*program).components().collect();
            *program = path.to_string_lossy().into_owned();
        }
        words
    }

    fn fill(&self, text: &str, places: &Places) -> String {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            filled.push_str(&rest[..open]);
            rest = &rest[open..];
            let value = rest.find('}').and_then(|close| {
                let value = match &rest[1..close] {
                    "port" => places.port.to_string(),
                    "tls_port" => places.tls_port.to_string(),
                    "tls_cert" => places.tls_cert.clone(),
                    "tls_key" => places.tls_key.clone(),
                    "workers" => places.workers.to_string(),
                    "echo_port" => places.echo_port.to_string(),
                    "target" => places.target.to_string_lossy().into_owned(),
                    "folder" => self.home.to_string_lossy().into_owned(),
                    _ => return None,
                };
                Some((value, close + 1))
            });
            let (value, length) = value.unwrap_or_else(|| ("{".to_owned(), 1));
            filled.push_str(&value);
            rest = &rest[length..];
        }
        filled.push_str(rest);
        filled
    }
}

fn read(text: &str) -> Result<Written, Fault> {
    let malformed = |error: toml::de::Error| {
        let span = error.span();
        let line = span.map(|span| text[..span.start].matches('\n').count() + 1);
        let key = line.and_then(|line| text.lines().nth(line - 1)?.split_once('='));
        Fault::Malformed {
            line,
            key: key.map(|(key, _)| key.trim().to_owned()).unwrap_or_default(),
            cause: error.message().trim().replace('\n', ", "),
        }
    };
    let table: toml::Table = toml::from_str(text).map_err(malformed)?;
    if let Some(key) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
        let near = select::near(key, KEYS).into_iter().next();
        return Err(Fault::UnknownKey { key: key.clone(), near });
    }
    toml::from_str(text).map_err(malformed)
}

fn check(written: Written, home: PathBuf) -> Result<Recipe, Fault> {
    let name = written.name.ok_or(Fault::MissingKey("name"))?;
    let expected = home.file_name().unwrap_or_default().to_string_lossy();
    if name != expected {
        return Err(Fault::OtherName { name, folder: expected.into_owned() });
    }
    if !is_good_name(&name) {
        return Err(Fault::StrangeName(name));
    }
    let run = written.run.ok_or(Fault::MissingKey("run"))?;
    let filled = |key, words: Option<Vec<String>>| match words {
        Some(words) if words.first().is_none_or(String::is_empty) => Err(Fault::Empty(key)),
        words => Ok(words.unwrap_or_default()),
    };
    let build = filled("build", written.build)?;
    let run = filled("run", Some(run))?;
    let version = filled("version", written.version)?;
    for need in &written.needs {
        filled("needs.command", Some(need.command.clone()))?;
        if need.reason.trim().is_empty() {
            return Err(Fault::Empty("needs.reason"));
        }
    }
    if written.unobtainable.is_some() && written.needs.is_empty() {
        return Err(Fault::NothingNeeded);
    }
    if written.package.is_some() && !version.is_empty() {
        return Err(Fault::TwoVersions);
    }
    if let Some(rust) = &written.rust
        && toolchain::parse(rust).is_none()
    {
        return Err(Fault::NoRustVersion(rust.clone()));
    }
    let folder = written.folder.map_or_else(|| home.clone(), |folder| home.join(folder));
    let folder = fs::canonicalize(&folder)
        .ok()
        .filter(|folder| folder.is_dir())
        .ok_or(Fault::NoFolder(folder))?;
    let lock = written.lock.map(|lock| folder.join(lock)).or_else(|| default_lock(&folder));
    Ok(Recipe {
        name,
        class: match written.class {
            WrittenClass::Stock => Class::Stock,
            WrittenClass::Tuned => Class::Tuned,
        },
        build,
        run,
        home,
        folder,
        package: written.package,
        lock,
        version,
        rust: written.rust,
        needs: written.needs,
        unobtainable: written.unobtainable,
        allocator: written.allocator.unwrap_or_else(|| "system".to_owned()),
        is_tls_able: written.tls.unwrap_or(true),
        protocols: written.protocols.unwrap_or_else(|| vec![Protocol::Http1]),
        serves: written.serves,
        lacks: written.lacks,
        environment: written.environment,
        is_variant: false,
    })
}

/// `go.sum` beside a `go.mod`, else `Cargo.lock`; neither where neither is. A module without
/// dependencies has no `go.sum`, and its `go.mod` says as much.
fn default_lock(folder: &Path) -> Option<PathBuf> {
    let names: &[&str] =
        if folder.join("go.mod").exists() { &["go.sum", "go.mod"] } else { &["Cargo.lock"] };
    names.iter().map(|name| folder.join(name)).find(|path| path.exists())
}

/// A path as seen from here. An empty one stays empty.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Two recipes that build one file in two ways: the second build would pass for the first.
fn clash(recipes: &[Recipe]) -> Option<RecipeError> {
    let is_same_file = |one: &Recipe, other: &Recipe| {
        let (one_program, other_program) = (&one.run[0], &other.run[0]);
        one_program == other_program && one_program.starts_with("{target}")
    };
    let is_other_build =
        |one: &Recipe, other: &Recipe| (&one.build, &one.folder) != (&other.build, &other.folder);
    recipes.iter().enumerate().find_map(|(index, recipe)| {
        let mut earlier = recipes[..index].iter();
        let other =
            earlier.find(|other| is_same_file(recipe, other) && is_other_build(recipe, other))?;
        let fault =
            Fault::SharedProgram { program: recipe.run[0].clone(), other: other.name.clone() };
        Some(RecipeError { file: recipe.home.join(FILE_NAME), fault })
    })
}

/// Whether a name can be part of file names and of lists on the command line.
fn is_good_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.chars().all(|each| each.is_ascii_alphanumeric() || "-_.".contains(each))
}
