//! Files embedded in the program.

use crate::content_coding::{AcceptedCodings, ContentCoding, is_compressible};
use crate::dir::Resolution;
use crate::metadata::{FileContent, FileMetadata, ResolvedFile, media_type};
use crate::target::FilePath;
use bytes::Bytes;
use rust_embed::{EmbeddedFile, RustEmbed};
use std::borrow::Cow;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

/// An embedded file tree.
#[derive(Clone, Debug)]
pub(crate) struct Embedded {
    get: fn(&str) -> Option<EmbeddedFile>,
    /// Whether there are files below this path, so that it is a directory.
    is_dir: fn(&str) -> bool,
}

impl Embedded {
    pub(crate) fn new<T: RustEmbed>() -> Self {
        let is_dir = |path: &str| {
            T::iter().any(|name| {
                let below = name.strip_prefix(path);
                below.is_some_and(|below| below.starts_with('/'))
            })
        };
        Self { get: T::get, is_dir }
    }

    pub(crate) fn resolve(
        &self,
        target: &FilePath,
        index: Option<&str>,
        accepted: AcceptedCodings,
    ) -> Resolution {
        if !target.is_dir {
            return match self.find_file(&target.path, accepted) {
                Some(file) => Resolution::File(file),
                None if target.path.is_empty() || (self.is_dir)(&target.path) => {
                    Resolution::DirWithoutSlash
                }
                None => Resolution::NotFound,
            };
        }
        let Some(index) = index else { return Resolution::NotFound };
        let path = match &*target.path {
            "" => index.to_owned(),
            path => format!("{path}/{index}"),
        };
        self.find_file(&path, accepted).map_or(Resolution::NotFound, Resolution::File)
    }

    fn find_file(&self, path: &str, accepted: AcceptedCodings) -> Option<ResolvedFile> {
        let plain = (self.get)(path)?;
        let media_type = media_type(path);
        let essence = media_type.split(';').next().unwrap_or_default();
        let varies = is_compressible(essence);
        let compressed = accepted.into_iter().flatten().filter(|_| varies).find_map(|coding| {
            Some(((self.get)(&format!("{path}{}", coding.extension()))?, Some(coding)))
        });
        let (file, coding) = compressed.unwrap_or((plain, None));
        let metadata = metadata(&file, coding);
        let content = match file.data {
            Cow::Borrowed(bytes) => Bytes::from_static(bytes),
            Cow::Owned(bytes) => bytes.into(),
        };
        let (path, content) = (path.to_owned(), FileContent::Memory(content));
        Some(ResolvedFile { path, media_type, metadata, content_coding: coding, varies, content })
    }
}

fn metadata(file: &EmbeddedFile, coding: Option<ContentCoding>) -> FileMetadata {
    let since_epoch = file.metadata.last_modified().map(Duration::from_secs);
    let mut tag = String::from("\"");
    for byte in &file.metadata.sha256_hash()[..16] {
        // Writing to a string never fails.
        let _ = write!(tag, "{byte:02x}");
    }
    if let Some(coding) = coding {
        let _ = write!(tag, "-{}", coding.name());
    }
    tag.push('"');
    let modified = since_epoch.map(|since_epoch| SystemTime::UNIX_EPOCH + since_epoch);
    FileMetadata::new(file.data.len() as u64, modified, tag)
}
