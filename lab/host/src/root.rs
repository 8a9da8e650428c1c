//! Where the kernel's files are read from: `/`, or a folder that looks like another machine.

use std::fs;
use std::path::{Path, PathBuf};

/// A folder that stands for `/`. Absolute paths given to its methods are read below it.
#[derive(Debug, Clone)]
pub struct Root {
    folder: PathBuf,
}

impl Root {
    /// The machine that this program runs on.
    #[must_use]
    pub fn this_machine() -> Root {
        Root::at(Path::new("/"))
    }

    /// The machine that `folder` looks like.
    #[must_use]
    pub fn at(folder: &Path) -> Root {
        Root { folder: folder.to_owned() }
    }

    /// Where `path` lies in truth.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path.trim_start_matches('/'))
    }

    /// What a process has used of CPUs, in nanoseconds, with its threads that have ended; nothing if it is gone,
    /// on other systems than Linux, and where this is a folder that looks like a machine.
    #[must_use]
    pub fn cpu_clock(&self, process: u32) -> Option<u64> {
        if self.folder != Path::new("/") {
            return None;
        }
        cpu_clock(process)
    }

    /// A whole file as text, or nothing if it cannot be read.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok()
    }

    /// A file's first line without its surrounding white space, or nothing if that is empty.
    #[must_use]
    pub fn line(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text.lines().next()?.trim();
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// A file's first line as a number.
    #[must_use]
    pub fn number(&self, path: &str) -> Option<u64> {
        self.line(path)?.parse().ok()
    }

    /// The value behind `name` in a file of lines `name value` or `name: value`.
    #[must_use]
    pub fn field(&self, path: &str, name: &str) -> Option<String> {
        field(&self.text(path)?, name)
    }

    /// The names in a folder, sorted; none if it cannot be read.
    #[must_use]
    pub fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        names
    }

    /// Whether there is such a file or folder.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }
}

/// The value behind `name` in lines of the form `name value` or `name: value`.
#[must_use]
pub fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value = rest.trim_start().strip_prefix(':').or_else(|| {
            // Without a colon the name must end here, lest `Rss` also match `RssAnon`.
            rest.starts_with([' ', '\t']).then_some(rest)
        })?;
        Some(value.trim().to_owned())
    })
}

#[cfg(target_os = "linux")]
fn cpu_clock(process: u32) -> Option<u64> {
    use nix::{time::ClockId, unistd::Pid};
    let process = Pid::from_raw(i32::try_from(process).ok()?);
    let used = ClockId::pid_cpu_clock_id(process).ok()?.now().ok()?;
    u64::try_from(std::time::Duration::from(used).as_nanos()).ok()
}

#[cfg(not(target_os = "linux"))]
fn cpu_clock(_: u32) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text =
            "RssAnon:\t 12 kB\nRss: 40 kB\nnr_periods 5\nnr_throttled 2\nmodel name\t: X y\n";
        assert_eq!(field(text, "Rss").as_deref(), Some("40 kB"));
        assert_eq!(field(text, "nr_throttled").as_deref(), Some("2"));
        assert_eq!(field(text, "nr").as_deref(), None);
        assert_eq!(field(text, "model name").as_deref(), Some("X y"));
    }

    #[test]
    fn what_is_not_there_is_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        std::fs::write(folder.path().join("empty"), "\n").unwrap();
        assert_eq!(root.line("/empty"), None);
        assert_eq!(root.number("/missing"), None);
        assert!(root.names("/missing").is_empty());
        assert!(root.exists("/empty") && !root.exists("/missing"));
    }
}
