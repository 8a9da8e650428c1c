//! Notices that files have been replaced.
//!
//! A file may be written in place, be replaced by a rename, or be reached through a symbolic link
//! that is swapped. So this module watches the directory of the file and the directory of every
//! link on the path to it. After an event, it compares the file's stamp with the previous one to
//! see whether the file has changed.

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use peregrine_web::panic::catch_log_panic;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The maximum number of links to follow, the same as in Linux.
const LINKS_MAX: usize = 40;

pub(crate) struct FileWatcher {
    /// `None` if the system does not report file changes.
    watcher: Option<RecommendedWatcher>,
    directories: BTreeSet<PathBuf>,
    /// The stamp of each file at the last check; `None` if it did not exist.
    stamps: BTreeMap<PathBuf, Option<FileStamp>>,
}

/// Identifies a version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    modified: Option<SystemTime>,
    len: u64,
    /// Device and inode number, which change if another file replaces this one.
    file_id: (u64, u64),
}

impl FileWatcher {
    /// Calls `wake` when a watched directory changes.
    pub(crate) fn watch(wake: impl Fn() + Send + 'static) -> Self {
        let notice = move |event: notify::Result<notify::Event>| {
            // Reading a file is an event too, but not a change. An error may hide a change.
            if !event.is_ok_and(|event| is_access(event.kind)) {
                wake();
            }
        };
        let watcher = notify::recommended_watcher(notice)
            .inspect_err(|error| {
                catch_log_panic(|| {
                    tracing::warn!(target: "peregrine", %error,
                    "changed certificates are noticed up to a minute late, because the system \
                     does not report file changes")
                });
            })
            .ok();
        Self { watcher, directories: BTreeSet::new(), stamps: BTreeMap::new() }
    }

    /// Watches the directories of these files, and stops watching all others.
    pub(crate) fn set_files(&mut self, files: impl Iterator<Item = PathBuf>) {
        let Some(watcher) = &mut self.watcher else { return };
        let wanted: BTreeSet<_> = files.flat_map(|file| watched_directories(&file)).collect();
        for folder in self.directories.difference(&wanted) {
            // Fails if the directory was removed, and its watch with it.
            let _ = watcher.unwatch(folder);
        }
        let mut watched = BTreeSet::new();
        for folder in wanted {
            // The watch is renewed, because another directory may now have this path.
            if self.directories.contains(&folder) {
                let _ = watcher.unwatch(&folder);
            }
            match watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => drop(watched.insert(folder)),
                Err(error) => {
                    catch_log_panic(|| {
                        tracing::warn!(target: "peregrine", directory = %folder.display(), %error,
                        "changed certificates are noticed up to a minute late, because their \
                         directory cannot be watched")
                    });
                }
            }
        }
        self.directories = watched;
    }

    /// Whether one of these files has changed since the last call. A file that is checked for the
    /// first time counts as unchanged.
    pub(crate) fn have_changed(&mut self, files: &[PathBuf]) -> bool {
        let mut have_changed = false;
        for file in files {
            let stamp = fs::metadata(file).ok().map(|found| FileStamp::new(&found));
            let before = self.stamps.insert(file.clone(), stamp);
            have_changed |= before.is_some_and(|before| before != stamp);
        }
        have_changed
    }
}

fn is_access(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => false,
        EventKind::Access(_) => true,
        _ => false,
    }
}

impl FileStamp {
    fn new(found: &Metadata) -> Self {
        #[cfg(unix)]
        let identity = {
            use std::os::unix::fs::MetadataExt;
            (found.dev(), found.ino())
        };
        #[cfg(not(unix))]
        let identity = (0, 0);
        Self { modified: found.modified().ok(), len: found.len(), file_id: identity }
    }
}

/// The directories in which an entry changes when the file is replaced.
fn watched_directories(file: &Path) -> BTreeSet<PathBuf> {
    let mut folders = BTreeSet::new();
    let mut places = vec![std::path::absolute(file).unwrap_or_else(|_| file.to_owned())];
    let mut links = 0;
    while let Some(place) = places.pop() {
        folders.extend(place.parent().map(Path::to_owned));
        // The file may be a link, and so may each directory on the path to it.
        for part in place.ancestors() {
            let Ok(target) = fs::read_link(part) else { continue };
            links += 1;
            if links > LINKS_MAX {
                return folders;
            }
            let Some(folder) = part.parent() else { continue };
            folders.insert(folder.to_owned());
            let rest = place.strip_prefix(part).unwrap_or(Path::new(""));
            let next = folder.join(target);
            places.push(if rest.as_os_str().is_empty() { next } else { next.join(rest) });
        }
    }
    folders
}

#[cfg(all(test, unix))]
mod tests {
    use super::{FileWatcher, watched_directories};
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_folders_of_all_links_on_the_way_are_watched() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        // Like Kubernetes: mount/tls.crt -> ..data/tls.crt, and ..data -> ..2026.
        let mount = root.join("mount");
        fs::create_dir_all(mount.join("..2026")).unwrap();
        fs::write(mount.join("..2026/tls.crt"), "").unwrap();
        symlink("..2026", mount.join("..data")).unwrap();
        symlink("..data/tls.crt", mount.join("tls.crt")).unwrap();
        let found = watched_directories(&mount.join("tls.crt"));
        assert!(found.contains(&mount) && found.contains(&mount.join("..2026")), "{found:?}");
        // Like certbot: live/a.pem -> ../archive/a1.pem.
        for folder in ["live", "archive"] {
            fs::create_dir(root.join(folder)).unwrap();
        }
        symlink("../archive/a1.pem", root.join("live/a.pem")).unwrap();
        let found = watched_directories(&root.join("live/a.pem"));
        assert!(found.contains(&root.join("live")), "{found:?}");
        // A cycle of links is not followed forever.
        symlink("b", root.join("a")).unwrap();
        symlink("a", root.join("b")).unwrap();
        assert_eq!(watched_directories(&root.join("a")), BTreeSet::from([root]));
    }

    #[test]
    fn a_file_that_was_written_replaced_or_removed_has_changed_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pem");
        let mut files = FileWatcher::watch(|| {});
        let mut has_changed = || files.have_changed(std::slice::from_ref(&path));
        assert!(!has_changed(), "the first check of a file, which does not exist yet");
        fs::write(&path, "one").unwrap();
        assert!(has_changed() && !has_changed());
        fs::write(&path, "longer").unwrap();
        assert!(has_changed() && !has_changed());
        fs::write(folder.path().join("other"), "longer").unwrap();
        fs::rename(folder.path().join("other"), &path).unwrap();
        assert!(has_changed() && !has_changed());
        fs::remove_file(&path).unwrap();
        assert!(has_changed() && !has_changed());
    }
}
