//! Where account, certificates and orders are kept.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Where account, certificates and orders are kept, between restarts and for all instances of a server: a
/// [`Folder`], or something of your own, such as a database or a store of secrets.
///
/// All methods may block: they are called on a thread that does nothing else, and where
/// [`Acme::tls`](crate::Acme::tls) is called. What is kept are secrets. Keys are made of letters, digits, dots, hyphens
/// and a slash, and have no meaning for a storage.
pub trait Storage: Send + Sync + 'static {
    /// What was stored by this key; `None` if nothing was.
    ///
    /// # Errors
    /// It cannot be read. It is taken for missing, and the log says so.
    fn load(&self, key: &str) -> io::Result<Option<Vec<u8>>>;

    /// Stores `value` in place of what was there, so that whoever loads it gets the whole of the one or of the
    /// other, even if this process or the machine ends meanwhile.
    ///
    /// # Errors
    /// It cannot be stored. It is tried again later, and a new certificate is served meanwhile.
    fn store(&self, key: &str, value: &[u8]) -> io::Result<()>;

    /// Removes what was stored; nothing is done if nothing was.
    ///
    /// # Errors
    /// It cannot be removed.
    fn remove(&self, key: &str) -> io::Result<()>;

    /// Takes the lock `key`, which is free again when the returned value is dropped, or when this process has
    /// ended, however it does; `None`, at once, if another instance has it.
    ///
    /// # Errors
    /// It cannot be known who has it.
    fn try_lock(&self, key: &str) -> io::Result<Option<Box<dyn Send>>>;
}

/// A folder of files that only their owner may read. Each file is written beside, and put in its place when all of
/// it is on the disk. Locks are those of the file system (`flock`), which frees them when a process ends: on a network
/// file system that has none, give each instance a folder of its own.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

/// Nothing that is kept is larger.
const BYTES_MAX: u64 = 1 << 20;

/// What a process that was killed left half written may be removed after.
const LEFT_OVER: Duration = Duration::from_secs(3_600);

impl Folder {
    /// The folder, which is made when something is stored.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    fn place(&self, key: &str) -> io::Result<PathBuf> {
        // Names are checked before; a storage that was given others must not leave its folder.
        let is_sound = key.split('/').all(|part| !part.is_empty() && !part.starts_with('.'))
            && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"./-_".contains(&byte));
        if is_sound { Ok(self.path.join(key)) } else { Err(io::ErrorKind::InvalidFilename.into()) }
    }

    /// The same, in a folder that is there.
    fn place_to_write(&self, key: &str) -> io::Result<(PathBuf, PathBuf)> {
        let place = self.place(key)?;
        let folder = place.parent().unwrap_or(&self.path).to_owned();
        make_folder(&folder)?;
        Ok((place, folder))
    }
}

impl Storage for Folder {
    fn load(&self, key: &str) -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(self.place(key)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut value = Vec::new();
        file.take(BYTES_MAX + 1).read_to_end(&mut value)?;
        if value.len() as u64 > BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(Some(value))
    }

    fn store(&self, key: &str, value: &[u8]) -> io::Result<()> {
        let (place, folder) = self.place_to_write(key)?;
        remove_left_overs(&folder);
        let beside = beside(&folder)?;
        let written = write_whole(&beside, value)
            .and_then(|()| fs::rename(&beside, &place))
            .and_then(|()| sync_folder(&folder));
        if written.is_err() {
            let _ = fs::remove_file(&beside);
        }
        written
    }

    fn remove(&self, key: &str) -> io::Result<()> {
        match fs::remove_file(self.place(key)?) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn try_lock(&self, key: &str) -> io::Result<Option<Box<dyn Send>>> {
        let (place, _) = self.place_to_write(key)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        private(&mut options);
        let mut file = options.open(place)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // For people who wonder; nobody reads it here, and a full disk takes no lock away.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Some(Box::new(file)))
    }
}

#[cfg(unix)]
fn private(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt;
    options.mode(0o600);
}

#[cfg(not(unix))]
fn private(_: &mut OpenOptions) {}

fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder.create(folder)
}

/// A file that nobody else writes: instances in containers may all have the same process number.
fn beside(folder: &Path) -> io::Result<PathBuf> {
    let mut random = [0; 16];
    aws_lc_rs::rand::fill(&mut random).map_err(io::Error::other)?;
    Ok(folder.join(format!(".{:032x}.new", u128::from_ne_bytes(random))))
}

/// A new file with this content, all of it on the disk.
fn write_whole(path: &Path, value: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    private(&mut options);
    let mut file = options.open(path)?;
    file.write_all(value)?;
    file.sync_all()
}

/// Has the names in the folder on the disk, where systems know how.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// Removes what processes left half written that were killed long ago.
fn remove_left_overs(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with('.')) else { continue };
        let modified = entry.metadata().and_then(|found| found.modified()).ok();
        let age = modified.and_then(|at| SystemTime::now().duration_since(at).ok());
        if name.ends_with(".new") && age.is_some_and(|age| age > LEFT_OVER) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let root = tempfile::tempdir().expect("a folder");
        let folder = Folder::new(root.path().join("of/acme"));
        (root, folder)
    }

    #[test]
    fn what_is_stored_is_there_until_it_is_replaced_or_removed() {
        let (_root, folder) = folder();
        assert_eq!(folder.load("ca/a.test.pem").expect("it is missing"), None);
        folder.remove("ca/a.test.pem").expect("nothing is to be done");
        for value in [&b"one"[..], b"", b"another"] {
            folder.store("ca/a.test.pem", value).expect("there is room");
            assert_eq!(folder.load("ca/a.test.pem").expect("it is there").as_deref(), Some(value));
        }
        folder.remove("ca/a.test.pem").expect("it may be removed");
        assert_eq!(folder.load("ca/a.test.pem").expect("it is missing"), None);
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_may_read_and_nothing_is_left_beside() {
        use std::os::unix::fs::PermissionsExt;
        let (_root, folder) = folder();
        folder.store("ca/account.json", b"secret").expect("there is room");
        let _lock = folder.try_lock("ca/lock").expect("it is free");
        let files: Vec<_> = fs::read_dir(folder.path.join("ca")).expect("a folder").collect();
        assert_eq!(files.len(), 2);
        for file in files {
            let mode = file.expect("a file").metadata().expect("it is there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        let mode = fs::metadata(&folder.path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn a_lock_is_had_by_one_and_is_free_when_it_is_dropped() {
        let (_root, folder) = folder();
        let one = folder.try_lock("ca/lock").expect("it is known").expect("it is free");
        let other = Folder::new(&folder.path);
        assert!(other.try_lock("ca/lock").expect("it is known").is_none());
        assert!(other.try_lock("ca/other").expect("it is known").is_some());
        drop(one);
        assert!(other.try_lock("ca/lock").expect("it is known").is_some());
    }

    #[test]
    fn keys_that_would_leave_the_folder_are_none() {
        let (root, folder) = folder();
        for key in ["../a", "a/../b", "/a", "a//b", "", ".a", "a/.b", "a\\b", "a\0b"] {
            assert!(folder.store(key, b"x").is_err() && folder.load(key).is_err(), "{key:?}");
            assert!(folder.remove(key).is_err() && folder.try_lock(key).is_err(), "{key:?}");
        }
        assert_eq!(fs::read_dir(root.path()).expect("a folder").count(), 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_leaves_what_was_there_and_nothing_beside() {
        let (_root, folder) = folder();
        folder.store("ca/a.test.pem", b"old").expect("there is room");
        // `/dev/full` takes no byte: a file beside that is a link to it cannot be made here, since it must
        // be new. A value that is too large for the limit of files of this process would end it. So the
        // folder goes away under the writer's hands.
        let place = folder.path.join("ca");
        fs::rename(&place, folder.path.join("moved")).expect("it can be moved");
        fs::write(&place, "a file in the place of the folder").expect("there is room");
        assert!(folder.store("ca/a.test.pem", b"new").is_err());
        let kept = fs::read(folder.path.join("moved/a.test.pem")).expect("it is there");
        assert_eq!(kept, b"old");
        assert_eq!(fs::read_dir(folder.path.join("moved")).expect("a folder").count(), 1);
    }

    #[test]
    fn what_is_far_too_large_is_not_read() {
        let (_root, folder) = folder();
        folder.store("ca/large", &vec![b'x'; BYTES_MAX as usize + 1]).expect("there is room");
        let error = folder.load("ca/large").expect_err("it is too large");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
