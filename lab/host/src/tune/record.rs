//! The record of old values: what lets the next run mend what a killed one left.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::TuneError;
use super::setting::Setting;

/// The record's name in its folder.
const NAME: &str = "tuning.json";

/// The version of the record's form. It grows when a field changes its meaning.
const SCHEMA: u32 = 1;

/// A setting that was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Change {
    /// Which one.
    pub(super) setting: Setting,
    /// What it was.
    pub(super) before: String,
    /// What it became.
    pub(super) set: String,
    /// Of a governor: the energy preference before, which some drivers change along with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) preference: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    schema: u32,
    changes: Vec<Change>,
}

/// An open record. While it is open no other program can open it; the kernel sees to that even
/// when this program is killed, so a record that can be opened belongs to nobody alive.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    file: File,
}

impl Drop for Record {
    fn drop(&mut self) {
        // A program that is being started beside this holds a copy of the descriptor for a moment,
        // and closing ours alone would leave the lock to it. Nothing can be done about a failure.
        let _ = self.file.unlock();
    }
}

impl Record {
    /// Where the record of a folder lies.
    pub(super) fn path_in(folder: &Path) -> PathBuf {
        folder.join(NAME)
    }

    /// Opens the folder's record, or begins it.
    pub(super) fn open(folder: &Path) -> Result<Record, TuneError> {
        let path = Record::path_in(folder);
        let failed = |error| TuneError::Record(path.clone(), error);
        fs::create_dir_all(folder).map_err(failed)?;
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(TuneError::Busy(path)),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // Its owner may have removed it between our opening and our locking it.
        if path.exists() { Ok(Record { path, file }) } else { Err(TuneError::Busy(path)) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The changes that a killed run left; none in a new record.
    pub(super) fn read(&mut self) -> Result<Vec<Change>, TuneError> {
        let mut text = String::new();
        self.file
            .read_to_string(&mut text)
            .map_err(|error| TuneError::Record(self.path.clone(), error))?;
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let damaged = |why: String| TuneError::Damaged(self.path.clone(), why);
        let saved: Saved =
            serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        if saved.schema != SCHEMA {
            return Err(damaged(format!("its form is {}, not {SCHEMA}", saved.schema)));
        }
        Ok(saved.changes)
    }

    /// Writes what is about to be changed. It need not reach the disk at once: what it is for is
    /// gone after a restart of the machine, and a killed program's writes are not lost.
    pub(super) fn write(&mut self, changes: &[Change]) -> io::Result<()> {
        self.clear()?;
        let saved = Saved { schema: SCHEMA, changes: changes.to_vec() };
        let text = serde_json::to_string_pretty(&saved)?;
        self.file.write_all(text.as_bytes())
    }

    /// Removes the record, when everything is as it was.
    pub(super) fn remove(mut self) -> Result<(), TuneError> {
        let removed = self.clear().and_then(|()| fs::remove_file(&self.path));
        removed.map_err(|error| TuneError::Record(self.path.clone(), error))
    }

    fn clear(&mut self) -> io::Result<()> {
        use std::io::Seek as _;
        self.file.set_len(0)?;
        self.file.rewind()
    }
}
