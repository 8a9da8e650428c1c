//! What a contender's program is made of, and whether it is newer than that.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::program;
use crate::recipe::{FILE_NAME, Places, Recipe};

/// How many files are looked at for one contender. What lies beyond is not seen.
const FILES_MAX: usize = 20_000;

/// Folders that hold what builds make, not what they are made of.
const PRODUCT_FOLDERS: [&str; 2] = ["target", "node_modules"];

/// The file that says how a package is built, in whichever folder above a source it lies.
const MANIFEST: &str = "Cargo.toml";

impl Recipe {
    /// The program that `run` starts: its path, or nothing if it is not on the PATH.
    pub(crate) fn program(&self, target: &Path) -> Option<PathBuf> {
        let first = self.run_words(target).into_iter().next()?;
        if first.contains('/') { Some(PathBuf::from(first)) } else { program::find(&first) }
    }

    /// The files that the build makes and `run` needs: the program where it is a path, else the
    /// arguments that lie in the folder of built programs.
    pub(crate) fn products(&self, target: &Path) -> Vec<PathBuf> {
        let words = self.run_words(target);
        if words[0].contains('/') {
            return vec![PathBuf::from(&words[0])];
        }
        if self.build.is_empty() {
            return Vec::new();
        }
        let arguments = words.iter().skip(1).map(Path::new);
        arguments.filter(|path| path.starts_with(target)).map(Path::to_owned).collect()
    }

    fn run_words(&self, target: &Path) -> Vec<String> {
        let places = Places { target: target.to_owned(), ..Places::default() };
        self.filled(&self.run, &places)
    }

    /// When the youngest of its sources was changed: everything in its folder, and whatever cargo
    /// noted that the program was made of, with the manifests above that.
    pub(crate) fn sources_changed(&self, target: &Path) -> Option<SystemTime> {
        let mut files = BTreeSet::new();
        collect(&self.folder, target, &mut files);
        files.extend(self.lock.clone());
        let mut folders = BTreeSet::new();
        for product in self.products(target) {
            let text = fs::read_to_string(product.with_extension("d")).unwrap_or_default();
            for source in dependencies(&text).into_iter().map(|path| self.folder.join(path)) {
                for folder in source.ancestors().skip(1) {
                    if !folders.insert(folder.to_owned()) {
                        break;
                    }
                    let manifest = folder.join(MANIFEST);
                    let is_root = is_workspace_root(&manifest);
                    files.insert(manifest);
                    // No manifest above a workspace's root has a say in its packages.
                    if is_root {
                        break;
                    }
                }
                files.insert(source);
            }
        }
        files.iter().filter_map(|file| modified(file)).max()
    }
}

/// Whether the manifest says that a workspace begins there.
fn is_workspace_root(manifest: &Path) -> bool {
    let text = fs::read_to_string(manifest).unwrap_or_default();
    text.lines().any(|line| line.trim_start().starts_with("[workspace"))
}

/// When a file was changed last, or nothing if there is none.
pub(crate) fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}

/// Every file below `folder`. Hidden ones, links, products and the recipe itself are left out: the
/// recipe's commands are compared by their text.
fn collect(folder: &Path, target: &Path, files: &mut BTreeSet<PathBuf>) {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let name = name.to_string_lossy();
            let Ok(kind) = entry.file_type() else { continue };
            if files.len() >= FILES_MAX {
                return;
            }
            if name.starts_with('.') || name == FILE_NAME {
                continue;
            }
            if kind.is_file() {
                files.insert(path);
            } else if kind.is_dir() && path != target && !PRODUCT_FOLDERS.contains(&&*name) {
                folders.push(path);
            }
        }
    }
}

/// The paths behind the first colon of a dependency file, as cargo writes it for make: separated by
/// spaces, with a backslash before a space that belongs to a path.
fn dependencies(text: &str) -> Vec<PathBuf> {
    let Some((_, list)) = text.lines().next().and_then(|line| line.split_once(": ")) else {
        return Vec::new();
    };
    let mut paths = vec![String::new()];
    let mut letters = list.chars().peekable();
    while let Some(letter) = letters.next() {
        let path = paths.last_mut().expect("the list begins with one path");
        match letter {
            '\\' if letters.peek() == Some(&' ') => path.extend(letters.next()),
            ' ' => paths.push(String::new()),
            _ => path.push(letter),
        }
    }
    paths.into_iter().filter(|path| !path.is_empty()).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_begins_where_its_table_stands() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder.path().join("Cargo.toml");
        assert!(!is_workspace_root(&manifest));
        fs::write(&manifest, "[package]\nname = \"a\"\n").unwrap();
        assert!(!is_workspace_root(&manifest));
        fs::write(&manifest, "[package]\nname = \"a\"\n\n[workspace]\n").unwrap();
        assert!(is_workspace_root(&manifest));
    }

    #[test]
    fn a_dependency_file_is_read_with_spaces_in_its_paths() {
        let text = "/out/a: /src/a.rs /with\\ space/b.rs\n\n/src/a.rs:\n";
        assert_eq!(dependencies(text), [Path::new("/src/a.rs"), Path::new("/with space/b.rs")]);
        assert!(dependencies("").is_empty());
    }
}
