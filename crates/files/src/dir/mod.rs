//! Looks up files in a directory. All functions here may block.

mod beneath;

use crate::content_coding::{AcceptedCodings, is_compressible};
use crate::disk::read;
use crate::listing::{DirEntry, LISTING_MAX};
use crate::metadata::{FileContent, FileMetadata, ResolvedFile, media_type};
use crate::target::FilePath;
use beneath::Root;
use peregrine_web::panic::catch_subscriber_panic;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// A directory and how to serve it.
#[derive(Clone, Debug)]
pub(crate) struct Dir {
    pub(crate) root: PathBuf,
    pub(crate) index: Option<String>,
    pub(crate) follow_symlinks: bool,
    pub(crate) hidden_files: bool,
    pub(crate) directory_listing: bool,
    pub(crate) serve_precompressed: bool,
    /// Files of at most this size are read completely, so that they can be cached.
    pub(crate) cached_file_bytes_max: u64,
}

/// The result of a lookup.
#[derive(Debug)]
pub(crate) enum Resolution {
    File(ResolvedFile),
    /// A directory whose path was requested without a trailing slash.
    DirWithoutSlash,
    /// The entries of a directory, and whether there are more.
    Listing(Vec<DirEntry>, bool),
    NotFound,
}

impl Dir {
    /// Looks up a target.
    pub(crate) fn resolve(
        &self,
        target: &FilePath,
        accepted: AcceptedCodings,
    ) -> io::Result<Resolution> {
        match self.try_resolve(target, accepted) {
            Ok(resolution) => Ok(resolution),
            Err(error) if is_not_found(&error) => Ok(Resolution::NotFound),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                catch_subscriber_panic(
                    || tracing::warn!(target: "peregrine", path = target.path, "a file is not readable"),
                );
                Ok(Resolution::NotFound)
            }
            Err(error) => Err(error),
        }
    }

    fn try_resolve(&self, target: &FilePath, accepted: AcceptedCodings) -> io::Result<Resolution> {
        // The root may be a symbolic link that each release redirects, so it is opened anew for
        // each lookup, and once for all files of that lookup.
        let root = Root::open(&self.root, self.follow_symlinks)?;
        if !target.is_dir && !target.path.is_empty() {
            return self.open_file(&root, &target.path, accepted);
        }
        if !target.is_dir {
            return Ok(Resolution::DirWithoutSlash);
        }
        if let Some(index) = &self.index {
            let path = match &*target.path {
                "" => index.clone(),
                path => format!("{path}/{index}"),
            };
            match self.open_file(&root, &path, accepted) {
                Ok(Resolution::File(file)) => return Ok(Resolution::File(file)),
                Ok(_) => {}
                Err(error) if is_not_found(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if !self.directory_listing {
            return Ok(Resolution::NotFound);
        }
        let (mut entries, has_more) = root.list(&target.path, LISTING_MAX, |name, is_link| {
            (self.hidden_files || !name.starts_with('.')) && (self.follow_symlinks || !is_link)
        })?;
        entries.sort_by(|a, b| b.is_dir.cmp(&a.is_dir).then_with(|| a.name.cmp(&b.name)));
        Ok(Resolution::Listing(entries, has_more))
    }

    fn open_file(
        &self,
        root: &Root,
        path: &str,
        accepted: AcceptedCodings,
    ) -> io::Result<Resolution> {
        let file = root.open_file(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Ok(Resolution::DirWithoutSlash);
        }
        // Pipes, sockets and devices have no content to send.
        if !metadata.is_file() {
            return Ok(Resolution::NotFound);
        }
        let media_type = media_type(path);
        let essence = media_type.split(';').next().unwrap_or_default();
        let varies = self.serve_precompressed && is_compressible(essence);
        let mut selected = (file, metadata, None);
        for coding in accepted.into_iter().flatten().filter(|_| varies) {
            let Ok(variant) = root.open_file(&format!("{path}{}", coding.extension())) else {
                continue;
            };
            let metadata = variant.metadata()?;
            if metadata.is_file() {
                selected = (variant, metadata, Some(coding));
                break;
            }
        }
        let (file, metadata, coding) = selected;
        let file_metadata = FileMetadata::from_metadata(&metadata, coding);
        let content = self.read_content(file, &file_metadata)?;
        let path = path.to_owned();
        Ok(Resolution::File(ResolvedFile {
            path,
            media_type,
            metadata: file_metadata,
            content_coding: coding,
            varies,
            content,
        }))
    }

    fn read_content(&self, file: File, metadata: &FileMetadata) -> io::Result<FileContent> {
        if metadata.length <= self.cached_file_bytes_max {
            let length = usize::try_from(metadata.length).unwrap_or(usize::MAX);
            let bytes = read(&file, 0, length)?;
            // A file that is being written may have shrunk since: fall back to streaming, which
            // fails if the announced length is not reached.
            if bytes.len() == length {
                return Ok(FileContent::Memory(bytes.into()));
            }
        }
        Ok(FileContent::Open(Arc::new(file)))
    }
}

/// Whether the error means that no servable file exists.
fn is_not_found(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound};
    let kinds = [NotFound, NotADirectory, IsADirectory, InvalidInput, InvalidFilename];
    kinds.contains(&error.kind()) || beneath::is_forbidden(error)
}
