//! Opens files beneath a directory, and never a file outside of it.
//!
//! On Linux, the kernel enforces this (`openat2`). On other Unix systems, each path component is
//! opened in the previous directory without following links. On other systems, links are checked
//! before the file is opened, which is a race that anyone who can write to the directory can win.

use crate::listing::DirEntry;
use std::io;

#[cfg(unix)]
pub(super) use unix::{Root, is_forbidden};

#[cfg(not(unix))]
pub(super) use other::{Root, is_forbidden};

/// The entries and whether there are more, or the error.
type ListResult = io::Result<(Vec<DirEntry>, bool)>;

#[cfg(unix)]
mod unix {
    use super::{DirEntry, ListResult};
    use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, openat};
    use rustix::io::Errno;
    use std::fs::File;
    use std::io;
    use std::os::fd::{AsFd, OwnedFd};
    use std::path::{Path, PathBuf};

    /// An open directory.
    #[derive(Debug)]
    pub(in crate::dir) struct Root {
        dir: OwnedFd,
        /// The directory that links must stay beneath; `None` if links are not followed.
        symlink_root: Option<PathBuf>,
    }

    /// `NONBLOCK` because opening a pipe without a writer would block forever otherwise.
    const FILE_FLAGS: OFlags =
        OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

    const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

    impl Root {
        pub(in crate::dir) fn open(path: &Path, follow_symlinks: bool) -> io::Result<Self> {
            let dir = openat(CWD, path, DIR_FLAGS, Mode::empty())?;
            Ok(Self { dir, symlink_root: follow_symlinks.then(|| path.to_owned()) })
        }

        pub(in crate::dir) fn open_file(&self, path: &str) -> io::Result<File> {
            self.open_beneath(path, FILE_FLAGS).map(File::from)
        }

        /// The entries of a directory for which `accepts` returns `true`, up to `entries_max`, and
        /// whether there are more.
        pub(in crate::dir) fn list(
            &self,
            path: &str,
            entries_max: usize,
            accepts: impl Fn(&str, bool) -> bool,
        ) -> ListResult {
            let dir = match path {
                "" => openat(&self.dir, ".", DIR_FLAGS, Mode::empty())?,
                path => self.open_beneath(path, DIR_FLAGS)?,
            };
            let mut entries = Vec::new();
            for entry in Dir::read_from(&dir)? {
                let entry = entry?;
                let Ok(name) = entry.file_name().to_str() else { continue };
                let kind = entry.file_type();
                if matches!(name, "." | "..") || !accepts(name, kind == FileType::Symlink) {
                    continue;
                }
                if entries.len() == entries_max {
                    return Ok((entries, true));
                }
                let is_dir = kind == FileType::Directory;
                entries.push(DirEntry { name: name.to_owned(), is_dir });
            }
            Ok((entries, false))
        }

        #[cfg(any(target_os = "linux", target_os = "android"))]
        fn open_beneath(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
            use rustix::fs::{ResolveFlags, openat2};
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            let resolve = match self.symlink_root {
                Some(_) => resolve,
                None => resolve | ResolveFlags::NO_SYMLINKS,
            };
            match openat2(&self.dir, path, flags, Mode::empty(), resolve) {
                // An old kernel, or a seccomp filter that does not know the call.
                Err(Errno::NOSYS | Errno::PERM) => self.open_components(path, flags),
                // A path component was renamed during the lookup.
                Err(Errno::AGAIN) => self.open_components(path, flags),
                opened => Ok(opened?),
            }
        }

        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        fn open_beneath(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
            self.open_components(path, flags)
        }

        /// Opens the path component by component.
        pub(super) fn open_components(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
            if let Some(root) = &self.symlink_root {
                // The canonical path is opened component by component too: a link that is created
                // in it meanwhile is not followed.
                let root = root.canonicalize()?;
                let canonical = root.join(path).canonicalize()?;
                let relative = canonical.strip_prefix(&root).map_err(|_| Errno::XDEV)?;
                let path = relative.to_str().ok_or(Errno::INVAL)?;
                let dir = openat(CWD, &root, DIR_FLAGS, Mode::empty())?;
                return Self { dir, symlink_root: None }.open_components(path, flags);
            }
            let mut dir: Option<OwnedFd> = None;
            let mut rest = path;
            while let Some((name, remaining)) = rest.split_once('/') {
                let parent = dir.as_ref().map_or(self.dir.as_fd(), AsFd::as_fd);
                let next = openat(parent, name, DIR_FLAGS | OFlags::NOFOLLOW, Mode::empty())?;
                dir = Some(next);
                rest = remaining;
            }
            let parent = dir.as_ref().map_or(self.dir.as_fd(), AsFd::as_fd);
            Ok(openat(parent, rest, flags | OFlags::NOFOLLOW, Mode::empty())?)
        }
    }

    /// Whether the error means a link that is not followed, a path that leads out, or a device
    /// without a driver.
    pub(in crate::dir) fn is_forbidden(error: &io::Error) -> bool {
        let forbidden = [Errno::LOOP, Errno::XDEV, Errno::NAMETOOLONG, Errno::NXIO, Errno::MLINK];
        Errno::from_io_error(error).is_some_and(|error| forbidden.contains(&error))
    }
}

#[cfg(not(unix))]
mod other {
    use super::{DirEntry, ListResult};
    use std::fs::{self, File};
    use std::io;
    use std::path::{Path, PathBuf};

    /// A directory.
    #[derive(Debug)]
    pub(in crate::dir) struct Root {
        root: PathBuf,
        follow_symlinks: bool,
    }

    impl Root {
        pub(in crate::dir) fn open(path: &Path, follow_symlinks: bool) -> io::Result<Self> {
            Ok(Self { root: path.canonicalize()?, follow_symlinks })
        }

        pub(in crate::dir) fn open_file(&self, path: &str) -> io::Result<File> {
            File::open(self.resolve_beneath(path)?)
        }

        /// The entries of a directory for which `accepts` returns `true`, up to `entries_max`, and
        /// whether there are more.
        pub(in crate::dir) fn list(
            &self,
            path: &str,
            entries_max: usize,
            accepts: impl Fn(&str, bool) -> bool,
        ) -> ListResult {
            let mut entries = Vec::new();
            for entry in fs::read_dir(self.resolve_beneath(path)?)? {
                let entry = entry?;
                let (kind, name) = (entry.file_type()?, entry.file_name());
                let Some(name) = name.to_str() else { continue };
                if !accepts(name, kind.is_symlink()) {
                    continue;
                }
                if entries.len() == entries_max {
                    return Ok((entries, true));
                }
                entries.push(DirEntry { name: name.to_owned(), is_dir: kind.is_dir() });
            }
            Ok((entries, false))
        }

        fn resolve_beneath(&self, path: &str) -> io::Result<PathBuf> {
            let forbidden = || io::Error::from(io::ErrorKind::NotFound);
            let mut full_path = self.root.clone();
            for name in path.split('/').filter(|name| !name.is_empty()) {
                full_path.push(name);
                if !self.follow_symlinks && fs::symlink_metadata(&full_path)?.is_symlink() {
                    return Err(forbidden());
                }
            }
            let canonical = full_path.canonicalize()?;
            if canonical.starts_with(&self.root) { Ok(canonical) } else { Err(forbidden()) }
        }
    }

    /// On these systems, every refusal is already reported as a missing file.
    pub(in crate::dir) fn is_forbidden(_: &io::Error) -> bool {
        false
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::unix::Root;
    use rustix::fs::OFlags;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_fallback_does_not_follow_links_out_either() {
        let outside = tempfile::tempdir().expect("a directory");
        std::fs::write(outside.path().join("secret"), "s").expect("the disk has space");
        let folder = tempfile::tempdir().expect("a directory");
        let root = folder.path();
        std::fs::create_dir_all(root.join("a/b")).expect("the disk has space");
        std::fs::write(root.join("a/b/c"), "c").expect("the disk has space");
        symlink(outside.path(), root.join("out")).expect("the file system has links");
        symlink(outside.path().join("secret"), root.join("a/secret"))
            .expect("the file system has links");
        symlink("b/c", root.join("a/within")).expect("the file system has links");
        for (follow_symlinks, path, opens) in [
            (false, "a/b/c", true),
            (false, "a/within", false),
            (false, "a/secret", false),
            (false, "out/secret", false),
            (true, "a/b/c", true),
            (true, "a/within", true),
            (true, "a/secret", false),
            (true, "out/secret", false),
        ] {
            let root = Root::open(root, follow_symlinks).expect("the directory exists");
            assert_eq!(
                root.open_components(path, OFlags::RDONLY).is_ok(),
                opens,
                "{path} {follow_symlinks}"
            );
            assert_eq!(root.open_file(path).is_ok(), opens, "{path} {follow_symlinks}");
        }
    }
}
