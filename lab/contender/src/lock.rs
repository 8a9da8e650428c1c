//! The framework's version, as a lock file has it.

use std::fs;

use crate::recipe::Recipe;

impl Recipe {
    /// The version of the recipe's `package` in its lock file, or nothing if that does not say.
    pub(crate) fn lock_version(&self) -> Option<String> {
        let package = self.package.as_deref()?;
        let lock = self.lock.as_deref()?;
        let text = fs::read_to_string(lock).ok()?;
        match lock.file_name()?.to_str()? {
            "go.sum" | "go.mod" => {
                let module = fs::read_to_string(lock.with_file_name("go.mod")).unwrap_or_default();
                go_required(&module, package).or_else(|| go_summed(&text, package))
            }
            _ => cargo_locked(&text, package),
        }
    }
}

/// From `Cargo.lock`. Where a package is there in several versions, the contender's own program
/// says which one it names; packages without a source are its own.
fn cargo_locked(text: &str, package: &str) -> Option<String> {
    let lock: toml::Table = toml::from_str(text).ok()?;
    let packages = lock.get("package")?.as_array()?;
    let field = |entry: &toml::Value, name: &str| Some(entry.get(name)?.as_str()?.to_owned());
    let versions: Vec<String> = packages
        .iter()
        .filter(|entry| field(entry, "name").as_deref() == Some(package))
        .filter_map(|entry| field(entry, "version"))
        .collect();
    if versions.len() < 2 {
        return versions.into_iter().next();
    }
    let own = packages.iter().filter(|entry| entry.get("source").is_none());
    let named = own
        .filter_map(|entry| entry.get("dependencies")?.as_array())
        .flatten()
        .filter_map(|dependency| dependency.as_str()?.strip_prefix(package)?.strip_prefix(' '))
        .find_map(|rest| rest.split(' ').next());
    named.map(String::from).or_else(|| Some(versions.join(" and ")))
}

/// From the requirements in `go.mod`: the version that is built, which `go.sum` does not tell
/// where it has several.
fn go_required(text: &str, module: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|&word| word == "require");
        (words.next()? == module).then(|| words.next())?.map(String::from)
    })
}

/// From `go.sum`, the last of the lines that are for whole modules.
fn go_summed(text: &str, module: &str) -> Option<String> {
    let mut versions = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == module).then(|| words.next())?
    });
    versions.rfind(|version| !version.ends_with("/go.mod")).map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_versions_the_programs_own_is_told() {
        let package = |name: &str, version: &str, more: &str| {
            format!("[[package]]\nname = '{name}'\nversion = '{version}'\n{more}\n")
        };
        let outside = "source = 'registry+x'";
        let two = package("hyper", "0.14.9", outside) + &package("hyper", "1.6.0", outside);
        let own = |names: &str| {
            two.clone() + &package("lab", "0.1.0", &format!("dependencies = {names}"))
        };
        for (text, version) in [
            (package("hyper", "1.6.0", outside), Some("1.6.0")),
            (own("['hyper-util', 'hyper 1.6.0']"), Some("1.6.0")),
            (own("['hyper 0.14.9 (registry+x)']"), Some("0.14.9")),
            (two.clone(), Some("0.14.9 and 1.6.0")),
            (package("hyper-util", "0.1.0", outside), None),
            ("no lock file".to_owned(), None),
        ] {
            assert_eq!(cargo_locked(&text, "hyper").as_deref(), version, "{text}");
        }
    }

    #[test]
    fn a_go_module_has_the_version_that_is_required_and_not_one_that_was_looked_at() {
        let module = "module lab\n\ngo 1.26\n\nrequire github.com/a/one v1.2.3\n\nrequire (\n\
                      \tgithub.com/a/two/v3 v3.4.5 // indirect\n)\n";
        let sum = "github.com/a/six v0.9.0/go.mod h1:x=\ngithub.com/a/six v1.0.0 h1:y=\n\
                   github.com/a/six v1.0.0/go.mod h1:z=\n";
        assert_eq!(go_required(module, "github.com/a/one").as_deref(), Some("v1.2.3"));
        assert_eq!(go_required(module, "github.com/a/two/v3").as_deref(), Some("v3.4.5"));
        assert_eq!(go_required(module, "github.com/a/two"), None);
        assert_eq!(go_summed(sum, "github.com/a/six").as_deref(), Some("v1.0.0"));
        assert_eq!(go_summed(sum, "github.com/a"), None);
    }
}
