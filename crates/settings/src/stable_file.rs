//! Waits until a file has stopped changing.
//!
//! Half of a file can be a valid configuration, so a reload in the middle of a write could drop
//! settings. A file that is renamed into place is accepted after one check; a file that is written
//! in place, once it has stopped changing. A file that stays empty was probably truncated by a
//! writer that then failed, and opening a pipe would block: both are refused.

use std::fs::Metadata;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

/// How long a file must stay unchanged.
const STABLE_INTERVAL: Duration = Duration::from_millis(100);

/// The maximum number of checks.
const CHECKS_MAX: usize = 50;

/// Larger files are not checked for being blank: the loader refuses them.
const BLANK_BYTES_MAX: u64 = 1 << 20;

/// The metadata that shows whether a file has changed.
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

/// Waits until the file at `path` stops changing. Errors from inspecting it are left to the loader.
///
/// # Errors
/// The file keeps changing, is blank, or is not a regular file.
pub fn wait_until_stable(path: &Path) -> io::Result<()> {
    let look = || std::fs::metadata(path).ok().as_ref().map(FileVersion::new);
    poll_until_stable(look, || thread::sleep(STABLE_INTERVAL))?;
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

/// Checks if the file contains only white space. Read errors are left to the loader.
fn is_blank(path: &Path) -> bool {
    let text = std::fs::read(path).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    text.is_some_and(|text| text.trim_start_matches('\u{feff}').trim().is_empty())
}

fn poll_until_stable<T: PartialEq>(
    mut look: impl FnMut() -> T,
    mut pause: impl FnMut(),
) -> io::Result<()> {
    let mut last = look();
    for _ in 0..CHECKS_MAX {
        pause();
        let now = look();
        if now == last {
            return Ok(());
        }
        last = now;
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "the file keeps changing"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// The number of pauses before a file is read that changes during the first `changes` pauses.
    fn pauses(changes: usize) -> Option<usize> {
        let paused = Cell::new(0);
        let look = || paused.get().min(changes);
        poll_until_stable(look, || paused.set(paused.get() + 1)).ok().map(|()| paused.get())
    }

    #[test]
    fn a_file_is_read_when_it_was_left_alone() {
        assert_eq!(pauses(0), Some(1));
        assert_eq!(pauses(1), Some(2));
        assert_eq!(pauses(7), Some(8));
        assert_eq!(pauses(usize::MAX), None, "gives up eventually");
    }

    #[test]
    fn a_file_that_was_written_to_or_replaced_is_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        let stamp = || FileVersion::new(&std::fs::metadata(&path).expect("the file exists"));
        std::fs::write(&path, "one").expect("a new file");
        let first = stamp();
        assert_eq!(stamp(), first);
        std::fs::write(&path, "one and a half").expect("the file exists");
        let second = stamp();
        assert_ne!(second, first);
        #[cfg(unix)]
        {
            let other = folder.path().join("b");
            std::fs::write(&other, "another and 1/2").expect("a new file");
            std::fs::rename(other, &path).expect("same folder");
            assert_ne!(stamp(), second);
        }
        assert!(
            wait_until_stable(&path).is_ok()
                && wait_until_stable(&folder.path().join("none")).is_ok()
        );
    }

    #[test]
    fn what_is_no_file_or_has_nothing_in_it_is_not_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        let refused = |path: &Path| wait_until_stable(path).expect_err("refused").to_string();
        for text in ["", "\n", " \n\n\t\n", "\u{feff}", "\u{feff}\r\n", &"\n".repeat(5000)] {
            std::fs::write(&path, text).expect("a file");
            assert!(refused(&path).contains("the file is empty"), "{text:?}");
        }
        std::fs::write(&path, "# all defaults").expect("the file exists");
        assert!(wait_until_stable(&path).is_ok());
        assert!(refused(folder.path()).contains("not a regular file"));
        #[cfg(target_os = "linux")]
        {
            let pipe = folder.path().join("pipe");
            let made = std::process::Command::new("mkfifo").arg(&pipe).status();
            assert!(made.expect("mkfifo is installed").success());
            assert!(refused(&pipe).contains("not a regular file"), "it does not wait for a writer");
        }
    }
}
