//! Where account, certificates and orders are kept.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Where account, certificates and orders are kept, between restarts and for all instances of a server: a
/// [`Folder`], or something of your own, such as a database or a store of secrets.
///
/// All methods may block: they are called on threads that do nothing else, and where
/// [`Acme::tls`](crate::Acme::tls) is called. What is kept are secrets. Keys are made of letters, digits, dots, hyphens
/// and a slash, and have no meaning for a storage. Instances that share one answer an authority's checks for each other:
/// what one of them has stored, a load by any other must give from then on. A method that panics has failed, and is
/// told of as such.
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

    /// Takes the lock `key`, which is free again when the returned value is dropped, and at the latest when `lease` is
    /// over, whatever became of who had it; `None`, at once, if another instance has it. Whoever has it is done with its
    /// work well before that.
    ///
    /// # Errors
    /// It cannot be known who has it.
    fn try_lock(&self, key: &str, lease: Duration) -> io::Result<Option<Box<dyn Send>>>;
}

/// A folder of files that only their owner may read. Each file is written beside, and put in its place when all of
/// it is on the disk. Locks are those of the file system (`flock`), which frees them when a process ends, and one whose
/// process hangs is taken from it when its lease is over (on Unix): on a network file system that has none, give each
/// instance a folder of its own.
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

    fn try_lock(&self, key: &str, lease: Duration) -> io::Result<Option<Box<dyn Send>>> {
        let (place, _) = self.place_to_write(key)?;
        let (guarding, _) = self.place_to_write(&format!("{key}.guard"))?;
        // Who has the guard looks and takes: nobody else does meanwhile. It is had for a moment only.
        let Some(_guard) = try_open_locked(&guarding)? else { return Ok(None) };
        let file = match try_open_locked(&place)? {
            Some(file) => file,
            None if cfg!(unix) && is_over(&fs::read(&place)?, SystemTime::now(), lease) => {
                tracing::warn!(target: "peregrine", path = %place.display(),
                    "the lock of ACME's folder was taken from a process that had it for too long");
                // That one keeps a file that has no name any more, so it takes nothing from anybody.
                fs::remove_file(&place)?;
                let Some(file) = try_open_locked(&place)? else { return Ok(None) };
                file
            }
            None => return Ok(None),
        };
        // Where it cannot be written, such as on a full disk, the lock is had all the same, until this process ends.
        let _ = write_lease(&file, SystemTime::now() + lease);
        Ok(Some(Box::new(file)))
    }
}

/// A file whose lock this process has now; `None` if another one has it.
fn try_open_locked(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    private(&mut options);
    let file = options.open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Until when the lock is had, in seconds since 1970, and by which process, for people who wonder.
fn write_lease(mut file: &File, until: SystemTime) -> io::Result<()> {
    let until = until.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    file.set_len(0)?;
    writeln!(file, "{until} {}", std::process::id())
}

/// Is the lease over that was written there? One that lasts for longer than leases do was written by a wrong clock. What
/// cannot be read is none that has been written.
fn is_over(text: &[u8], now: SystemTime, lease: Duration) -> bool {
    let text = String::from_utf8_lossy(text);
    let until = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    until.is_some_and(|until| until <= now || until - now > lease.as_secs().saturating_mul(2))
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

    const MINUTE: Duration = Duration::from_secs(60);

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
        let _lock = folder.try_lock("ca/lock", MINUTE).expect("it is free");
        let files: Vec<_> = fs::read_dir(folder.path.join("ca")).expect("a folder").collect();
        assert_eq!(files.len(), 3);
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
        let one = folder.try_lock("ca/lock", MINUTE).expect("it is known").expect("it is free");
        let other = Folder::new(&folder.path);
        assert!(other.try_lock("ca/lock", MINUTE).expect("it is known").is_none());
        assert!(other.try_lock("ca/other", MINUTE).expect("it is known").is_some());
        drop(one);
        assert!(other.try_lock("ca/lock", MINUTE).expect("it is known").is_some());
    }

    #[cfg(unix)]
    #[test]
    fn a_lock_whose_lease_is_over_is_taken_from_who_has_it_and_that_one_takes_none_away() {
        let (_root, folder) = folder();
        let locked = |lease| folder.try_lock("ca/lock", lease).expect("it is known");
        let hung = locked(Duration::ZERO).expect("it is free");
        let next = locked(MINUTE).expect("the lease is over");
        assert!(locked(MINUTE).is_none());
        // Whoever comes back frees what it had, which is nobody's any more.
        drop(hung);
        assert!(locked(MINUTE).is_none());
        drop(next);
        assert!(locked(MINUTE).is_some());
    }

    #[test]
    fn a_lease_is_over_when_it_says_so_or_cannot_be_true() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        for (text, expected) in [
            ("999 1", true),
            ("1000 1", true),
            ("1001 1", false),
            ("1120", false),
            ("1121 1", true),
            ("18446744073709551615 1", true),
            // Somebody is writing it.
            ("", false),
            ("soon", false),
        ] {
            assert_eq!(is_over(text.as_bytes(), now, MINUTE), expected, "{text}");
        }
    }

    #[test]
    fn keys_that_would_leave_the_folder_are_none() {
        let (root, folder) = folder();
        for key in ["../a", "a/../b", "/a", "a//b", "", ".a", "a/.b", "a\\b", "a\0b"] {
            assert!(folder.store(key, b"x").is_err() && folder.load(key).is_err(), "{key:?}");
            assert!(folder.remove(key).is_err(), "{key:?}");
            assert!(folder.try_lock(key, MINUTE).is_err(), "{key:?}");
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
