//! What of a run is finished, kept so that a crash costs one block at most.
//!
//! A journal is a file of JSON lines that only grows. Its first line says which run it belongs to;
//! each line after it is one finished block, on the disk before the next one begins.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A journal that is open for writing. No other program can open it meanwhile.
#[derive(Debug)]
pub struct Journal {
    file: File,
    /// Whole lines end here.
    length: u64,
}

/// A journal and what stands in it.
#[derive(Debug)]
pub struct Opened<Entry> {
    /// For what comes next.
    pub journal: Journal,
    /// The finished blocks in the order of writing; none in a new journal.
    pub entries: Vec<Entry>,
    /// How many bytes of a line that was being written at the crash were cut off.
    pub torn_bytes: u64,
}

/// Why a journal cannot be gone on with.
#[derive(Debug)]
pub enum JournalError {
    /// The file system's word.
    Io(PathBuf, io::Error),
    /// Another program writes to it.
    Busy(PathBuf),
    /// It belongs to a run with another header: other contenders, scenarios or settings.
    OtherRun(PathBuf),
    /// A whole line is not what was written. Lines count from 1.
    Corrupt(PathBuf, usize, serde_json::Error),
}

impl fmt::Display for JournalError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JournalError::Io(path, error) => write!(formatter, "{}: {error}", path.display()),
            JournalError::Busy(path) => {
                write!(formatter, "{}: another run writes to it", path.display())
            }
            JournalError::OtherRun(path) => write!(
                formatter,
                "{}: it belongs to a run with other settings; resume with those, or choose \
                 another folder",
                path.display()
            ),
            JournalError::Corrupt(path, line, error) => {
                write!(formatter, "{}: line {line} is damaged: {error}", path.display())
            }
        }
    }
}

impl std::error::Error for JournalError {}

impl Journal {
    /// Opens the journal at `path`, or begins it. `header` says which run it is: a journal with
    /// another one is refused. A last line without its end is cut off: it was being written when
    /// the run was broken off, and its block runs again.
    ///
    /// # Errors
    ///
    /// A [`JournalError`] with the path.
    pub fn open<Header, Entry>(path: &Path, header: &Header) -> Result<Opened<Entry>, JournalError>
    where
        Header: Serialize,
        Entry: DeserializeOwned,
    {
        let failed = |error| JournalError::Io(path.to_owned(), error);
        let corrupt = |line, error| JournalError::Corrupt(path.to_owned(), line, error);
        let mut file =
            OpenOptions::new().read(true).append(true).create(true).open(path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(JournalError::Busy(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let torn_bytes = (bytes.len() - whole) as u64;
        if torn_bytes > 0 {
            file.set_len(whole as u64).and_then(|()| file.sync_all()).map_err(failed)?;
        }
        let mut journal = Journal { file, length: whole as u64 };
        let mut lines = bytes[..whole].split_inclusive(|&byte| byte == b'\n');
        let header = serde_json::to_value(header).map_err(|error| corrupt(1, error))?;
        match lines.next() {
            None => {
                journal.append(&header).map_err(failed)?;
                sync_folder(path).map_err(failed)?;
            }
            Some(line) => {
                let found: serde_json::Value =
                    serde_json::from_slice(line).map_err(|error| corrupt(1, error))?;
                if found != header {
                    return Err(JournalError::OtherRun(path.to_owned()));
                }
            }
        }
        let entry = |(index, line): (usize, &[u8])| {
            serde_json::from_slice(line).map_err(|error| corrupt(index + 2, error))
        };
        let entries = lines.enumerate().map(entry).collect::<Result<Vec<Entry>, _>>()?;
        Ok(Opened { journal, entries, torn_bytes })
    }

    /// Writes one finished block, and returns when it is on the disk.
    ///
    /// # Errors
    ///
    /// The file system's. The journal is then as it was before, as far as the file system lets us.
    pub fn append<Entry: Serialize>(&mut self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        let written = self.file.write_all(&line).and_then(|()| self.file.sync_data());
        if written.is_err() {
            // Half a line in the middle would make all after it unreadable.
            self.file.set_len(self.length)?;
        } else {
            self.length += line.len() as u64;
        }
        written
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // A program that is being started beside this holds a copy of the descriptor for a moment,
        // and closing ours alone would leave the lock to it. Nothing can be done about a failure.
        let _ = self.file.unlock();
    }
}

/// Makes a new file's name survive a crash, too.
fn sync_folder(path: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        return Ok(());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn open(path: &Path, header: &str) -> Result<Opened<(u32, String)>, JournalError> {
        Journal::open(path, &header)
    }

    /// A journal with two finished blocks.
    fn two_blocks() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let mut opened = open(&path, "run").unwrap();
        assert!(opened.entries.is_empty());
        opened.journal.append(&(1, "one\nline")).unwrap();
        opened.journal.append(&(2, "two")).unwrap();
        (folder, path)
    }

    #[test]
    fn finished_blocks_are_found_again_and_more_can_follow() {
        let (_folder, path) = two_blocks();
        let mut opened = open(&path, "run").unwrap();
        assert_eq!(opened.entries, [(1, "one\nline".to_owned()), (2, "two".to_owned())]);
        opened.journal.append(&(3, "three")).unwrap();
        drop(opened);
        assert_eq!(open(&path, "run").unwrap().entries.len(), 3);
    }

    #[test]
    fn a_crash_at_any_byte_loses_the_unfinished_line_only() {
        let (folder, path) = two_blocks();
        let whole = fs::read(&path).unwrap();
        for length in 0..=whole.len() {
            let path = folder.path().join(format!("crashed-{length}"));
            fs::write(&path, &whole[..length]).unwrap();
            let lines = whole[..length].iter().filter(|&&byte| byte == b'\n').count();
            let mut opened = open(&path, "run").unwrap();
            assert_eq!(opened.entries.len(), lines.saturating_sub(1), "cut at {length}");
            opened.journal.append(&(9, "next")).unwrap();
            drop(opened);
            let entries = open(&path, "run").unwrap().entries;
            assert_eq!(entries.last(), Some(&(9, "next".to_owned())), "cut at {length}");
        }
    }

    #[test]
    fn a_journal_of_another_run_is_refused_and_left_as_it_is() {
        let (_folder, path) = two_blocks();
        let before = fs::read(&path).unwrap();
        let error = open(&path, "another run").unwrap_err();
        assert!(matches!(error, JournalError::OtherRun(_)), "{error}");
        assert_eq!(fs::read(&path).unwrap(), before);
    }

    #[test]
    fn a_damaged_line_is_named() {
        let (_folder, path) = two_blocks();
        let text = fs::read_to_string(&path).unwrap().replace("[1,", "[x,");
        fs::write(&path, text).unwrap();
        let error = open(&path, "run").unwrap_err();
        assert!(matches!(error, JournalError::Corrupt(_, 2, _)), "{error}");
    }

    #[test]
    fn two_runs_cannot_write_to_one_journal() {
        let (_folder, path) = two_blocks();
        let _first = open(&path, "run").unwrap();
        assert!(matches!(open(&path, "run"), Err(JournalError::Busy(_))));
    }
}
