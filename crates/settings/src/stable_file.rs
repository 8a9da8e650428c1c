//! Waits until a file has stopped changing.
//!
//! Half of a file can be a valid configuration, so a reload in the middle of a write could lose
//! settings. A file that is renamed into place is accepted after one check. A file that is written
//! in place is accepted once it has stopped changing. An empty file is rejected, because it was
//! probably truncated by a writer that then failed. A pipe is rejected, because opening it would
//! block.

use std::fs::Metadata;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

/// How long a file must stay unchanged.
const STABLE_INTERVAL: Duration = Duration::from_millis(100);

/// The maximum number of checks.
const CHECKS_MAX: usize = 50;

/// Larger files are not checked for being blank, because the loader rejects them.
const BLANK_BYTES_MAX: u64 = 1 << 20;

/// The metadata that identifies a version of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileVersion {
    len: u64,
    modified: Option<SystemTime>,
    #[cfg(unix)]
    file_id: (u64, u64),
}

impl FileVersion {
    fn new(metadata: &Metadata) -> Self {
        Self {
            len: metadata.len(),
            modified: metadata.modified().ok(),
            #[cfg(unix)]
            file_id: {
                use std::os::unix::fs::MetadataExt;
                (metadata.dev(), metadata.ino())
            },
        }
    }
}

/// Waits until the file at `path` stops changing. Ignores a missing or inaccessible file, which the
/// loader reports.
///
/// # Errors
/// The file keeps changing, is blank, or is not a regular file.
pub fn wait_until_stable(path: &Path) -> io::Result<()> {
    let read_version = || std::fs::metadata(path).ok().as_ref().map(FileVersion::new);
    poll_until_stable(read_version, || thread::sleep(STABLE_INTERVAL))?;
    let invalid = |cause| Err(io::Error::new(io::ErrorKind::InvalidInput, cause));
    match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => {
            invalid("not a regular file, so it cannot be reloaded")
        }
        Ok(metadata) if metadata.len() <= BLANK_BYTES_MAX && is_blank(path) => invalid(
            "the file is empty; to use the defaults for all settings, write a comment into it",
        ),
        _ => Ok(()),
    }
}

/// Whether the file contains only white space. Returns false if the file cannot be read, which the
/// loader reports.
fn is_blank(path: &Path) -> bool {
    let text = std::fs::read(path).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    text.is_some_and(|text| text.trim_start_matches('\u{feff}').trim().is_empty())
}

/// Calls `read_version` and `wait` alternately until the version stops changing.
fn poll_until_stable<T: PartialEq>(
    mut read_version: impl FnMut() -> T,
    mut wait: impl FnMut(),
) -> io::Result<()> {
    let mut previous = read_version();
    for _ in 0..CHECKS_MAX {
        wait();
        let current = read_version();
        if current == previous {
            return Ok(());
        }
        previous = current;
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "the file keeps changing"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Returns the number of waits for a file that changes during the first `changes` waits, or
    /// `None` if the file counts as changing forever.
    fn count_waits(changes: usize) -> Option<usize> {
        let waits = Cell::new(0);
        let read_version = || waits.get().min(changes);
        poll_until_stable(read_version, || waits.set(waits.get() + 1)).ok().map(|()| waits.get())
    }

    #[test]
    fn a_file_is_stable_once_it_stops_changing() {
        assert_eq!(count_waits(0), Some(1));
        assert_eq!(count_waits(1), Some(2));
        assert_eq!(count_waits(7), Some(8));
        assert_eq!(count_waits(usize::MAX), None, "gives up eventually");
    }

    #[test]
    fn writing_or_replacing_a_file_changes_its_version() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("a");
        let version = || FileVersion::new(&std::fs::metadata(&path).expect("the file exists"));
        std::fs::write(&path, "one").expect("a new file");
        let first = version();
        assert_eq!(version(), first);
        std::fs::write(&path, "one and a half").expect("the file exists");
        let second = version();
        assert_ne!(second, first);
        #[cfg(unix)]
        {
            let other = directory.path().join("b");
            std::fs::write(&other, "another and 1/2").expect("a new file");
            std::fs::rename(other, &path).expect("both files are in one directory");
            assert_ne!(version(), second);
        }
        assert!(
            wait_until_stable(&path).is_ok()
                && wait_until_stable(&directory.path().join("none")).is_ok()
        );
    }

    #[test]
    fn blank_files_and_other_file_types_are_refused() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("a");
        let refusal = |path: &Path| wait_until_stable(path).expect_err("refused").to_string();
        for text in ["", "\n", " \n\n\t\n", "\u{feff}", "\u{feff}\r\n", &"\n".repeat(5000)] {
            std::fs::write(&path, text).expect("a file");
            assert!(refusal(&path).contains("the file is empty"), "{text:?}");
        }
        std::fs::write(&path, "# all defaults").expect("the file exists");
        assert!(wait_until_stable(&path).is_ok());
        assert!(refusal(directory.path()).contains("not a regular file"));
        #[cfg(target_os = "linux")]
        {
            let pipe = directory.path().join("pipe");
            let status = std::process::Command::new("mkfifo").arg(&pipe).status();
            assert!(status.expect("mkfifo is installed").success());
            assert!(refusal(&pipe).contains("not a regular file"), "it does not wait for a writer");
        }
    }
}
