//! Looks up files in a directory. All functions here may block.

mod beneath;

use crate::disk::read;
use crate::encoding::{Accepted, is_compressible};
use crate::facts::{Content, Facts, Found, media_type};
use crate::listing::{Entry, LISTING_MAX};
use crate::target::Target;
use beneath::Root;
use peregrine_web::panics::contained;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// A directory and how to serve it.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    pub(crate) root: PathBuf,
    pub(crate) index: Option<String>,
    pub(crate) has_links: bool,
    pub(crate) has_dot_files: bool,
    pub(crate) is_listed: bool,
    pub(crate) is_precompressed: bool,
    /// Files of at most this size are read completely.
    pub(crate) small_bytes_max: u64,
}

/// The result of a lookup.
#[derive(Debug)]
pub(crate) enum Lookup {
    File(Found),
    /// A directory whose path was requested without a trailing slash.
    Folder,
    /// The entries of a directory, and whether there are more.
    Listing(Vec<Entry>, bool),
    Nothing,
}

impl Folder {
    /// Looks up a target.
    pub(crate) fn look(&self, target: &Target, accepted: Accepted) -> io::Result<Lookup> {
        match self.try_look(target, accepted) {
            Ok(lookup) => Ok(lookup),
            Err(error) if is_absence(&error) => Ok(Lookup::Nothing),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                contained(
                    || tracing::warn!(target: "peregrine", path = target.path, "a file is not readable"),
                );
                Ok(Lookup::Nothing)
            }
            Err(error) => Err(error),
        }
    }

    fn try_look(&self, target: &Target, accepted: Accepted) -> io::Result<Lookup> {
        // The root may be a symbolic link that each release redirects, so it is opened anew for
        // each lookup, and once for all files of that lookup.
        let root = Root::open(&self.root, self.has_links)?;
        if !target.is_folder && !target.path.is_empty() {
            return self.file(&root, &target.path, accepted);
        }
        if !target.is_folder {
            return Ok(Lookup::Folder);
        }
        if let Some(index) = &self.index {
            let path = match &*target.path {
                "" => index.clone(),
                path => format!("{path}/{index}"),
            };
            match self.file(&root, &path, accepted) {
                Ok(Lookup::File(found)) => return Ok(Lookup::File(found)),
                Ok(_) => {}
                Err(error) if is_absence(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if !self.is_listed {
            return Ok(Lookup::Nothing);
        }
        let (mut entries, more) = root.list(&target.path, LISTING_MAX, |name, is_link| {
            (self.has_dot_files || !name.starts_with('.')) && (self.has_links || !is_link)
        })?;
        entries.sort_by(|one, other| {
            other.is_folder.cmp(&one.is_folder).then_with(|| one.name.cmp(&other.name))
        });
        Ok(Lookup::Listing(entries, more))
    }

    fn file(&self, root: &Root, path: &str, accepted: Accepted) -> io::Result<Lookup> {
        let file = root.file(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Ok(Lookup::Folder);
        }
        // Pipes, sockets and devices have no content to send.
        if !metadata.is_file() {
            return Ok(Lookup::Nothing);
        }
        let media_type = media_type(path);
        let essence = media_type.split(';').next().unwrap_or_default();
        let varies = self.is_precompressed && is_compressible(essence);
        let mut chosen = (file, metadata, None);
        for encoding in accepted.into_iter().flatten().filter(|_| varies) {
            let Ok(beside) = root.file(&format!("{path}{}", encoding.ending())) else { continue };
            let metadata = beside.metadata()?;
            if metadata.is_file() {
                chosen = (beside, metadata, Some(encoding));
                break;
            }
        }
        let (file, metadata, encoding) = chosen;
        let facts = Facts::of(&metadata, encoding);
        let content = self.content(file, &facts)?;
        let path = path.to_owned();
        Ok(Lookup::File(Found { path, media_type, facts, encoding, varies, content }))
    }

    fn content(&self, file: File, facts: &Facts) -> io::Result<Content> {
        if facts.length <= self.small_bytes_max {
            let length = usize::try_from(facts.length).unwrap_or(usize::MAX);
            let bytes = read(&file, 0, length)?;
            // A file that is being written may have shrunk since: fall back to streaming, which
            // fails if the announced length is not reached.
            if bytes.len() == length {
                return Ok(Content::Memory(bytes.into()));
            }
        }
        Ok(Content::Open(Arc::new(file)))
    }
}

/// Whether the error means that no servable file exists.
fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound};
    let kinds = [NotFound, NotADirectory, IsADirectory, InvalidInput, InvalidFilename];
    kinds.contains(&error.kind()) || beneath::is_refusal(error)
}
