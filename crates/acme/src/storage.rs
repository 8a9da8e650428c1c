//! The storage of account, certificates and orders.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Stores the account, certificates and orders across restarts and for all instances of a server.
/// Use a [`DirStorage`], or implement it for a database or secret store.
///
/// All methods may block: they are called on dedicated threads, and by
/// [`Acme::build`](crate::Acme::build). The values are secrets. Keys consist of letters, digits,
/// dots, hyphens and a slash, and have no meaning for the storage. Instances that share a storage
/// respond to each other's challenges, so a value stored by one must be visible to loads by all
/// others immediately. A panic of a method counts as a failure and is logged.
pub trait Storage: Send + Sync + 'static {
    /// Loads the value of this key. Returns `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read. The value then counts as missing, and the error is logged.
    fn load(&self, key: &str) -> io::Result<Option<Vec<u8>>>;

    /// Stores `value` atomically: a concurrent load, or one after a crash, must return either the
    /// old or the new value completely.
    ///
    /// # Errors
    /// If it cannot be stored. Storing is retried later; a new certificate is served meanwhile.
    fn store(&self, key: &str, value: &[u8]) -> io::Result<()>;

    /// Removes a value, if there is one.
    ///
    /// # Errors
    /// If it cannot be removed.
    fn remove(&self, key: &str) -> io::Result<()>;

    /// Takes the lock `key`, or returns `None` immediately if another instance holds it. The lock
    /// is released when the returned value is dropped, and at the latest after `lease`, even if its
    /// holder hangs. Holders finish their work well before that.
    ///
    /// # Errors
    /// If the state of the lock is unknown.
    fn try_lock(&self, key: &str, lease: Duration) -> io::Result<Option<Box<dyn Send>>>;
}

/// A directory of files that only the owner can read. Files are written to a temporary name, synced
/// and renamed. Locks are those of the file system (`flock`), which are released when a process
/// ends; on Unix, a lock is also revoked from a hanging process when its lease expires. On network
/// file systems without such locks, use a separate directory for each instance.
#[doc(alias = "DirCache")]
#[derive(Clone, Debug)]
pub struct DirStorage {
    path: PathBuf,
}

/// The maximum size of a value.
const BYTES_MAX: u64 = 1 << 20;

/// The age at which temporary files of killed processes are removed.
const TEMP_FILE_MAX_AGE: Duration = Duration::from_secs(3_600);

impl DirStorage {
    /// Uses this directory, which is created when the first value is stored.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    fn key_path(&self, key: &str) -> io::Result<PathBuf> {
        // Domain names were validated before; this protects the directory from other callers.
        let is_valid = key.split('/').all(|part| !part.is_empty() && !part.starts_with('.'))
            && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"./-_".contains(&byte));
        if is_valid { Ok(self.path.join(key)) } else { Err(io::ErrorKind::InvalidFilename.into()) }
    }

    /// Creates the directory of a key if necessary. Returns the path of the key and that directory.
    fn create_parent_dir(&self, key: &str) -> io::Result<(PathBuf, PathBuf)> {
        let path = self.key_path(key)?;
        let dir = path.parent().unwrap_or(&self.path).to_owned();
        create_dir(&dir)?;
        Ok((path, dir))
    }
}

impl Storage for DirStorage {
    fn load(&self, key: &str) -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(self.key_path(key)?) {
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
        let (path, dir) = self.create_parent_dir(key)?;
        remove_stale_temp_files(&dir);
        let temp_path = temp_file_path(&dir)?;
        let result = write_durable(&temp_path, value)
            .and_then(|()| fs::rename(&temp_path, &path))
            .and_then(|()| sync_dir(&dir));
        if result.is_err() {
            let _ = fs::remove_file(&temp_path);
        }
        result
    }

    fn remove(&self, key: &str) -> io::Result<()> {
        match fs::remove_file(self.key_path(key)?) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn try_lock(&self, key: &str, lease: Duration) -> io::Result<Option<Box<dyn Send>>> {
        let (lock_path, _) = self.create_parent_dir(key)?;
        let (guard_path, _) = self.create_parent_dir(&format!("{key}.guard"))?;
        // The guard lock makes the check and the takeover below atomic among processes. It is held
        // only briefly.
        let Some(_guard) = try_open_locked(&guard_path)? else { return Ok(None) };
        let file = match try_open_locked(&lock_path)? {
            Some(file) => file,
            None if cfg!(unix)
                && is_lease_expired(&fs::read(&lock_path)?, SystemTime::now(), lease) =>
            {
                tracing::warn!(target: "peregrine", path = %lock_path.display(),
                    "the lock of the ACME directory was taken from a process that held it for too long");
                // The old holder keeps an unlinked file, so releasing it does not affect the new
                // lock.
                fs::remove_file(&lock_path)?;
                let Some(file) = try_open_locked(&lock_path)? else { return Ok(None) };
                file
            }
            None => return Ok(None),
        };
        // If the lease cannot be written, for example on a full disk, the lock still holds until
        // this process ends.
        let _ = write_lease(&file, SystemTime::now() + lease);
        Ok(Some(Box::new(file)))
    }
}

/// Opens and locks a file. Returns `None` if another process holds the lock.
fn try_open_locked(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    set_owner_only(&mut options);
    let file = options.open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Writes when the lease ends, in seconds since 1970, and the process ID for troubleshooting.
fn write_lease(mut file: &File, lease_end: SystemTime) -> io::Result<()> {
    let lease_end = lease_end.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    file.set_len(0)?;
    writeln!(file, "{lease_end} {}", std::process::id())
}

/// Whether the lease in the lock file has ended. A lease that is far too long was written with a
/// wrong clock, and counts as ended. An unreadable lease is still being written.
fn is_lease_expired(text: &[u8], now: SystemTime, lease: Duration) -> bool {
    let text = String::from_utf8_lossy(text);
    let lease_end = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    lease_end.is_some_and(|lease_end| {
        lease_end <= now || lease_end - now > lease.as_secs().saturating_mul(2)
    })
}

#[cfg(unix)]
fn set_owner_only(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt;
    options.mode(0o600);
}

#[cfg(not(unix))]
fn set_owner_only(_: &mut OpenOptions) {}

fn create_dir(dir: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder.create(dir)
}

/// Returns a unique temporary name. Process IDs are not unique across containers.
fn temp_file_path(dir: &Path) -> io::Result<PathBuf> {
    let mut random = [0; 16];
    aws_lc_rs::rand::fill(&mut random).map_err(io::Error::other)?;
    Ok(dir.join(format!(".{:032x}.new", u128::from_ne_bytes(random))))
}

/// Creates a file with this content and syncs it to disk.
fn write_durable(path: &Path, value: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    set_owner_only(&mut options);
    let mut file = options.open(path)?;
    file.write_all(value)?;
    file.sync_all()
}

/// Syncs the names in the directory to disk, where supported.
fn sync_dir(dir: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}

/// Removes old temporary files of killed processes.
fn remove_stale_temp_files(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with('.')) else { continue };
        let modified = entry.metadata().and_then(|metadata| metadata.modified()).ok();
        let age = modified.and_then(|time| SystemTime::now().duration_since(time).ok());
        if name.ends_with(".new") && age.is_some_and(|age| age > TEMP_FILE_MAX_AGE) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn dir_storage() -> (tempfile::TempDir, DirStorage) {
        let root = tempfile::tempdir().expect("the temporary directory is writable");
        let storage = DirStorage::new(root.path().join("of/acme"));
        (root, storage)
    }

    #[test]
    fn a_value_is_loaded_until_it_is_replaced_or_removed() {
        let (_root, storage) = dir_storage();
        assert_eq!(storage.load("ca/a.test.pem").expect("a missing file is not an error"), None);
        storage.remove("ca/a.test.pem").expect("a missing file is not an error");
        for value in [&b"one"[..], b"", b"another"] {
            storage.store("ca/a.test.pem", value).expect("the disk has space");
            assert_eq!(
                storage.load("ca/a.test.pem").expect("the file exists").as_deref(),
                Some(value)
            );
        }
        storage.remove("ca/a.test.pem").expect("the file can be removed");
        assert_eq!(storage.load("ca/a.test.pem").expect("a missing file is not an error"), None);
    }

    #[cfg(unix)]
    #[test]
    fn files_are_private_and_no_temporary_files_remain() {
        use std::os::unix::fs::PermissionsExt;
        let (_root, storage) = dir_storage();
        storage.store("ca/account.json", b"secret").expect("the disk has space");
        let _lock = storage.try_lock("ca/lock", MINUTE).expect("the lock is free");
        let files: Vec<_> =
            fs::read_dir(storage.path.join("ca")).expect("the directory exists").collect();
        assert_eq!(files.len(), 3);
        for file in files {
            let mode = file
                .expect("the entry is readable")
                .metadata()
                .expect("the file exists")
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        let mode = fs::metadata(&storage.path).expect("the file exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn a_lock_has_one_holder_and_is_released_on_drop() {
        let (_root, storage) = dir_storage();
        let held =
            storage.try_lock("ca/lock", MINUTE).expect("locks work").expect("the lock is free");
        let other_storage = DirStorage::new(&storage.path);
        assert!(other_storage.try_lock("ca/lock", MINUTE).expect("locks work").is_none());
        assert!(other_storage.try_lock("ca/other", MINUTE).expect("locks work").is_some());
        drop(held);
        assert!(other_storage.try_lock("ca/lock", MINUTE).expect("locks work").is_some());
    }

    #[cfg(unix)]
    #[test]
    fn an_expired_lock_is_revoked_and_dropping_it_releases_no_other() {
        let (_root, storage) = dir_storage();
        let try_lock = |lease| storage.try_lock("ca/lock", lease).expect("locks work");
        let expired_lock = try_lock(Duration::ZERO).expect("the lock is free");
        let new_lock = try_lock(MINUTE).expect("the lease is over");
        assert!(try_lock(MINUTE).is_none());
        // Dropping the old lock releases an unlinked file.
        drop(expired_lock);
        assert!(try_lock(MINUTE).is_none());
        drop(new_lock);
        assert!(try_lock(MINUTE).is_some());
    }

    #[test]
    fn a_lease_is_expired_at_its_end_or_if_it_is_too_long() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        for (text, expected) in [
            ("999 1", true),
            ("1000 1", true),
            ("1001 1", false),
            ("1120", false),
            ("1121 1", true),
            ("18446744073709551615 1", true),
            // A lease that is being written.
            ("", false),
            ("soon", false),
        ] {
            assert_eq!(is_lease_expired(text.as_bytes(), now, MINUTE), expected, "{text}");
        }
    }

    #[test]
    fn keys_outside_the_directory_are_rejected() {
        let (root, storage) = dir_storage();
        for key in ["../a", "a/../b", "/a", "a//b", "", ".a", "a/.b", "a\\b", "a\0b"] {
            assert!(storage.store(key, b"x").is_err() && storage.load(key).is_err(), "{key:?}");
            assert!(storage.remove(key).is_err(), "{key:?}");
            assert!(storage.try_lock(key, MINUTE).is_err(), "{key:?}");
        }
        assert_eq!(fs::read_dir(root.path()).expect("the directory exists").count(), 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_failed_store_keeps_the_old_value_and_no_temporary_file() {
        let (_root, storage) = dir_storage();
        storage.store("ca/a.test.pem", b"old").expect("the disk has space");
        // `/dev/full` accepts no bytes, but the temporary file must be new, so it cannot be a link
        // to that. A value above the file size limit would end the process. Instead, the directory
        // is moved away.
        let dir = storage.path.join("ca");
        fs::rename(&dir, storage.path.join("moved")).expect("the directory can be moved");
        fs::write(&dir, "a file in place of the directory").expect("the disk has space");
        assert!(storage.store("ca/a.test.pem", b"new").is_err());
        let content = fs::read(storage.path.join("moved/a.test.pem")).expect("the file exists");
        assert_eq!(content, b"old");
        assert_eq!(
            fs::read_dir(storage.path.join("moved")).expect("the directory exists").count(),
            1
        );
    }

    #[test]
    fn a_value_that_is_too_large_is_not_loaded() {
        let (_root, storage) = dir_storage();
        storage.store("ca/large", &vec![b'x'; BYTES_MAX as usize + 1]).expect("the disk has space");
        let error = storage.load("ca/large").expect_err("the file is too large");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
