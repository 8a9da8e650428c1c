//! How a contender is built and started: a recipe, from a file or from the command line.
//!
//! A recipe's words may hold `{port}`, `{tls_port}`, `{tls_cert}`, `{tls_key}`, `{workers}`,
//! `{target}` (the folder of built programs) and `{folder}` (the recipe's own folder). Whatever
//! the recipe says, the program also finds the first five in the variables PORT, TLS_PORT,
//! TLS_CERT, TLS_KEY and WORKERS.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A recipe as it is written in `contender.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// The name in the report.
    pub name: String,
    /// The command that builds it, run in the recipe's folder. Empty: nothing to build.
    #[serde(default)]
    pub build: Vec<String>,
    /// The command that starts it.
    pub run: Vec<String>,
    /// More variables for its environment.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Where both commands run. The default is the folder of the file, or the current one.
    #[serde(default)]
    pub folder: PathBuf,
}

/// What a recipe's placeholders stand for in one start.
#[derive(Debug, Clone, Default)]
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
    /// Where built programs lie.
    pub target: String,
}

/// A recipe with every placeholder filled in.
#[derive(Debug, Clone, Serialize)]
pub struct Command {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// The variables added to the environment.
    pub environment: BTreeMap<String, String>,
    /// Where it runs.
    pub folder: PathBuf,
}

impl Recipe {
    /// Reads `<contenders>/<name>/contender.toml`.
    ///
    /// # Errors
    ///
    /// The file system's, or `InvalidData` if the file is not a recipe.
    pub fn load(contenders: &Path, name: &str) -> io::Result<Recipe> {
        let folder = contenders.join(name);
        let file = folder.join("contender.toml");
        let describe = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        let text = std::fs::read_to_string(&file)
            .map_err(|error| io::Error::new(error.kind(), describe(&error)))?;
        let mut recipe: Recipe = toml::from_str(&text)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, describe(&error)))?;
        recipe.folder = folder.join(&recipe.folder);
        Ok(recipe)
    }

    /// A recipe from the command line: `name=command with arguments`, split at white space.
    #[must_use]
    pub fn parse(text: &str) -> Option<Recipe> {
        let (name, command) = text.split_once('=')?;
        let run: Vec<String> = command.split_whitespace().map(String::from).collect();
        if name.is_empty() || run.is_empty() {
            return None;
        }
        Some(Recipe {
            name: name.to_owned(),
            build: Vec::new(),
            run,
            environment: BTreeMap::new(),
            folder: PathBuf::from("."),
        })
    }

    /// The command that starts the contender.
    #[must_use]
    pub fn command(&self, places: &Places) -> Command {
        let mut environment: BTreeMap<String, String> = [
            ("PORT", "{port}"),
            ("TLS_PORT", "{tls_port}"),
            ("TLS_CERT", "{tls_cert}"),
            ("TLS_KEY", "{tls_key}"),
            ("WORKERS", "{workers}"),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), self.fill(value, places)))
        .collect();
        for (name, value) in &self.environment {
            environment.insert(name.clone(), self.fill(value, places));
        }
        let words = self.run.iter().map(|word| self.fill(word, places)).collect();
        Command { words, environment, folder: self.folder.clone() }
    }

    fn fill(&self, text: &str, places: &Places) -> String {
        text.replace("{port}", &places.port.to_string())
            .replace("{tls_port}", &places.tls_port.to_string())
            .replace("{tls_cert}", &places.tls_cert)
            .replace("{tls_key}", &places.tls_key)
            .replace("{workers}", &places.workers.to_string())
            .replace("{target}", &places.target)
            .replace("{folder}", &self.folder.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_in_words_and_variables() {
        let mut recipe = Recipe::parse("mine=./server --port {port} -w {workers}").unwrap();
        recipe.environment.insert("LISTEN".into(), "127.0.0.1:{tls_port}".into());
        let places = Places { port: 8080, tls_port: 8443, workers: 2, ..Places::default() };
        let command = recipe.command(&places);
        assert_eq!(command.words, ["./server", "--port", "8080", "-w", "2"]);
        assert_eq!(command.environment["LISTEN"], "127.0.0.1:8443");
        assert_eq!(command.environment["PORT"], "8080");
    }

    #[test]
    fn a_server_without_name_or_command_is_refused() {
        for text in ["", "name", "name=", "=command", "name=  "] {
            assert!(Recipe::parse(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn a_file_that_is_no_recipe_is_named_in_the_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("odd")).unwrap();
        std::fs::write(folder.path().join("odd/contender.toml"), "name = 'odd'\nrum = []").unwrap();
        let error = Recipe::load(folder.path(), "odd").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("contender.toml"), "{error}");
    }

    #[test]
    fn the_rivals_of_this_repository_have_readable_recipes() {
        let contenders = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contenders");
        for name in ["hyper", "axum", "actix-web"] {
            let recipe = Recipe::load(&contenders, name).unwrap();
            assert_eq!(recipe.name, name);
            assert_eq!(recipe.build[0], "cargo");
        }
    }
}
