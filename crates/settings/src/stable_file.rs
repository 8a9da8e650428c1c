//! Waiting until nobody writes to a file any more.
//!
//! Half of a file may be sound, so that a reload in the middle would take settings away. Who renames a new file into place is not
//! waited for longer than one look; who writes in place, until the file is left alone. One that stays empty is what a writer leaves
//! behind that has failed, and a pipe would keep whoever opens it waiting.

use std::fs::Metadata;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

/// How long a file must be left alone.
const QUIET: Duration = Duration::from_millis(100);

/// How often it may have changed meanwhile.
const LOOKS_MAX: usize = 50;

/// A longer file is refused when it is read.
const BLANK_BYTES_MAX: u64 = 1 << 20;

/// What tells that a file has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    length: u64,
    changed: Option<SystemTime>,
    #[cfg(unix)]
    file: (u64, u64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            length: metadata.len(),
            changed: metadata.modified().ok(),
            #[cfg(unix)]
            file: {
                use std::os::unix::fs::MetadataExt;
                (metadata.dev(), metadata.ino())
            },
        }
    }
}

/// Waits until the file at `path` is left alone. What cannot be looked at is for who reads it.
///
/// # Errors
/// It changes all the time, is empty, or no ordinary file.
pub fn settle(path: &Path) -> io::Result<()> {
    let look = || std::fs::metadata(path).ok().as_ref().map(Stamp::of);
    until_same(look, || thread::sleep(QUIET))?;
    let invalid = |cause| Err(io::Error::new(io::ErrorKind::InvalidInput, cause));
    match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => {
            invalid("it is no ordinary file, and cannot be read again")
        }
        Ok(metadata) if metadata.len() <= BLANK_BYTES_MAX && is_blank(path) => invalid(
            "there is nothing in it; a comment says that all settings shall have their defaults",
        ),
        _ => Ok(()),
    }
}

/// Has the file nothing but white space in it? What cannot be read is for who reads it.
fn is_blank(path: &Path) -> bool {
    let text = std::fs::read(path).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    text.is_some_and(|text| text.trim_start_matches('\u{feff}').trim().is_empty())
}

fn until_same<T: PartialEq>(
    mut look: impl FnMut() -> T,
    mut pause: impl FnMut(),
) -> io::Result<()> {
    let mut last = look();
    for _ in 0..LOOKS_MAX {
        pause();
        let now = look();
        if now == last {
            return Ok(());
        }
        last = now;
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "somebody writes to it all the time"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// After how many pauses a file is read that changes in so many of them.
    fn pauses(changes: usize) -> Option<usize> {
        let paused = Cell::new(0);
        let look = || paused.get().min(changes);
        until_same(look, || paused.set(paused.get() + 1)).ok().map(|()| paused.get())
    }

    #[test]
    fn a_file_is_read_when_it_was_left_alone() {
        assert_eq!(pauses(0), Some(1));
        assert_eq!(pauses(1), Some(2));
        assert_eq!(pauses(7), Some(8));
        assert_eq!(pauses(usize::MAX), None, "not for ever");
    }

    #[test]
    fn a_file_that_was_written_to_or_replaced_is_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        let stamp = || Stamp::of(&std::fs::metadata(&path).expect("it is there"));
        std::fs::write(&path, "one").expect("a new file");
        let first = stamp();
        assert_eq!(stamp(), first);
        std::fs::write(&path, "one and a half").expect("it is there");
        let second = stamp();
        assert_ne!(second, first);
        #[cfg(unix)]
        {
            let other = folder.path().join("b");
            std::fs::write(&other, "another and 1/2").expect("a new file");
            std::fs::rename(other, &path).expect("one folder");
            assert_ne!(stamp(), second);
        }
        assert!(settle(&path).is_ok() && settle(&folder.path().join("none")).is_ok());
    }

    #[test]
    fn what_is_no_file_or_has_nothing_in_it_is_not_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        let refused = |path: &Path| settle(path).expect_err("refused").to_string();
        for text in ["", "\n", " \n\n\t\n", "\u{feff}", "\u{feff}\r\n", &"\n".repeat(5000)] {
            std::fs::write(&path, text).expect("a file");
            assert!(refused(&path).contains("there is nothing in it"), "{text:?}");
        }
        std::fs::write(&path, "# all defaults").expect("it is there");
        assert!(settle(&path).is_ok());
        assert!(refused(folder.path()).contains("no ordinary file"));
        #[cfg(target_os = "linux")]
        {
            let pipe = folder.path().join("pipe");
            let made = std::process::Command::new("mkfifo").arg(&pipe).status();
            assert!(made.expect("it is installed").success());
            assert!(refused(&pipe).contains("no ordinary file"), "nobody waits for a writer");
        }
    }
}
