//! Detects that files have changed.
//!
//! A file may be written in place or be replaced by a rename, and a symbolic link on the path to it
//! may be swapped. So this module watches the directory of the file and the directory of every such
//! link. After an event, it compares the file's stamp with the previous one to see whether the file
//! has changed.

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use peregrine_web::panic::catch_subscriber_panic;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The maximum number of links to follow: the limit that Linux uses.
const LINKS_MAX: usize = 40;

/// Watches the directories of files, and detects which files have changed.
pub(crate) struct FileWatcher {
    /// `None` if the system does not report file changes.
    watcher: Option<RecommendedWatcher>,
    /// The watched directories.
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
    /// Creates a watcher without files, which calls `on_change` when a watched directory changes.
    pub(crate) fn new(on_change: impl Fn() + Send + 'static) -> Self {
        let on_event = move |event: notify::Result<notify::Event>| {
            // Events are also sent when a file is read, which is not a change. An error may hide a
            // change, so it counts as one.
            if !event.is_ok_and(|event| is_read_access(event.kind)) {
                on_change();
            }
        };
        let watcher = notify::recommended_watcher(on_event)
            .inspect_err(|error| {
                catch_subscriber_panic(|| {
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
        let directories: BTreeSet<_> = files.flat_map(|file| watched_directories(&file)).collect();
        for directory in self.directories.difference(&directories) {
            // Fails if the directory was removed, and its watch with it.
            let _ = watcher.unwatch(directory);
        }
        let mut watched = BTreeSet::new();
        for directory in directories {
            if self.directories.contains(&directory) {
                // The watch is renewed, because another directory may now have this path.
                let _ = watcher.unwatch(&directory);
            }
            match watcher.watch(&directory, RecursiveMode::NonRecursive) {
                Ok(()) => drop(watched.insert(directory)),
                Err(error) => {
                    catch_subscriber_panic(|| {
                        tracing::warn!(target: "peregrine",
                        directory = %directory.display(), %error,
                        "changed certificates are noticed up to a minute late, because their \
                         directory cannot be watched")
                    });
                }
            }
        }
        self.directories = watched;
    }

    /// Records the stamps of these files, and returns whether one of them has changed since the
    /// last call. A file that is checked for the first time counts as unchanged.
    pub(crate) fn check_changed(&mut self, files: &[PathBuf]) -> bool {
        let mut have_changed = false;
        for file in files {
            let stamp = fs::metadata(file).ok().map(|metadata| FileStamp::new(&metadata));
            let previous = self.stamps.insert(file.clone(), stamp);
            have_changed |= previous.is_some_and(|previous| previous != stamp);
        }
        have_changed
    }
}

/// Whether the event is an access that changes no file.
fn is_read_access(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => false,
        EventKind::Access(_) => true,
        _ => false,
    }
}

impl FileStamp {
    fn new(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let file_id = {
            use std::os::unix::fs::MetadataExt;
            (metadata.dev(), metadata.ino())
        };
        #[cfg(not(unix))]
        let file_id = (0, 0);
        Self { modified: metadata.modified().ok(), len: metadata.len(), file_id }
    }
}

/// Returns the directories in which an entry changes when the file, or a link on the path to it, is
/// replaced.
fn watched_directories(file: &Path) -> BTreeSet<PathBuf> {
    let mut directories = BTreeSet::new();
    let mut pending = vec![std::path::absolute(file).unwrap_or_else(|_| file.to_owned())];
    let mut link_count = 0;
    while let Some(path) = pending.pop() {
        directories.extend(path.parent().map(Path::to_owned));
        // The file may be a link, and so may each directory on the path to it.
        for ancestor in path.ancestors() {
            let Ok(target) = fs::read_link(ancestor) else { continue };
            link_count += 1;
            if link_count > LINKS_MAX {
                return directories;
            }
            let Some(parent) = ancestor.parent() else { continue };
            directories.insert(parent.to_owned());
            let suffix = path.strip_prefix(ancestor).unwrap_or(Path::new(""));
            let next = parent.join(target);
            pending.push(if suffix.as_os_str().is_empty() { next } else { next.join(suffix) });
        }
    }
    directories
}

#[cfg(all(test, unix))]
mod tests {
    use super::{FileWatcher, watched_directories};
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_directories_of_all_links_on_the_path_are_watched() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        // Like Kubernetes: mount/tls.crt -> ..data/tls.crt, and ..data -> ..2026.
        let mount = root.join("mount");
        fs::create_dir_all(mount.join("..2026")).unwrap();
        fs::write(mount.join("..2026/tls.crt"), "").unwrap();
        symlink("..2026", mount.join("..data")).unwrap();
        symlink("..data/tls.crt", mount.join("tls.crt")).unwrap();
        let directories = watched_directories(&mount.join("tls.crt"));
        assert!(
            directories.contains(&mount) && directories.contains(&mount.join("..2026")),
            "{directories:?}"
        );
        // Like certbot: live/a.pem -> ../archive/a1.pem.
        for name in ["live", "archive"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        symlink("../archive/a1.pem", root.join("live/a.pem")).unwrap();
        let directories = watched_directories(&root.join("live/a.pem"));
        assert!(directories.contains(&root.join("live")), "{directories:?}");
        // A cycle of links is not followed forever.
        symlink("b", root.join("a")).unwrap();
        symlink("a", root.join("b")).unwrap();
        assert_eq!(watched_directories(&root.join("a")), BTreeSet::from([root]));
    }

    #[test]
    fn each_change_of_a_file_is_reported_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.pem");
        let mut watcher = FileWatcher::new(|| {});
        let mut has_changed = || watcher.check_changed(std::slice::from_ref(&path));
        assert!(!has_changed(), "the first check of a file, which does not exist yet");
        fs::write(&path, "one").unwrap();
        assert!(has_changed() && !has_changed());
        fs::write(&path, "longer").unwrap();
        assert!(has_changed() && !has_changed());
        fs::write(directory.path().join("other"), "longer").unwrap();
        fs::rename(directory.path().join("other"), &path).unwrap();
        assert!(has_changed() && !has_changed());
        fs::remove_file(&path).unwrap();
        assert!(has_changed() && !has_changed());
    }
}
