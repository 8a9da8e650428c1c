//! Metadata of a file.

use crate::content_coding::ContentCoding;
use bytes::Bytes;
use http::HeaderValue;
use httpdate::fmt_http_date;
use peregrine_web::precondition::{Validators, truncate_to_seconds};
use std::fmt::Write;
use std::fs::{File, Metadata};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A file to serve, open or in memory.
#[derive(Debug)]
pub(crate) struct ResolvedFile {
    /// The path below the root of the requested file, not of its compressed variant.
    pub(crate) path: String,
    pub(crate) media_type: &'static str,
    pub(crate) metadata: FileMetadata,
    /// The compression format of the content.
    pub(crate) content_coding: Option<ContentCoding>,
    /// Whether other values of `Accept-Encoding` may select another variant.
    pub(crate) varies: bool,
    pub(crate) content: FileContent,
}

impl ResolvedFile {
    /// Whether this value holds an open file.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.content, FileContent::Open(_))
    }

    /// Whether an open file was modified since its metadata was read; its bytes would no longer
    /// match that metadata. This takes one system call without a path lookup: the kernel has the
    /// metadata of open files in memory.
    pub(crate) fn is_stale(&self) -> bool {
        let FileContent::Open(file) = &self.content else { return false };
        let is_unchanged = |current: &Metadata| {
            current.len() == self.metadata.length
                && current.modified().ok() == self.metadata.modified
        };
        !file.metadata().is_ok_and(|current| is_unchanged(&current))
    }
}

#[derive(Clone, Debug)]
pub(crate) enum FileContent {
    Memory(Bytes),
    /// An open file, so that all bytes come from the same file.
    Open(Arc<File>),
}

/// The metadata that distinguishes the versions of a file.
#[derive(Clone, Debug)]
pub(crate) struct FileMetadata {
    pub(crate) length: u64,
    pub(crate) modified: Option<SystemTime>,
    /// The entity tag, with its quotes.
    pub(crate) etag: String,
    /// `etag` and `modified` as header field values.
    pub(crate) etag_header: HeaderValue,
    pub(crate) last_modified_header: Option<HeaderValue>,
}

/// A file modified more recently than this may change again without a change of its timestamp,
/// whose resolution is limited.
const MTIME_GRANULARITY: Duration = Duration::from_secs(2);

impl FileMetadata {
    /// Creates metadata with this entity tag, which must be visible ASCII.
    pub(crate) fn new(length: u64, modified: Option<SystemTime>, etag: String) -> Self {
        let text = |text: &str| HeaderValue::from_str(text).expect("tags and dates are plain text");
        let last_modified_header =
            modified.map(|time| text(&fmt_http_date(truncate_to_seconds(time))));
        Self { length, modified, etag_header: text(&etag), last_modified_header, etag }
    }

    pub(crate) fn from_metadata(metadata: &Metadata, coding: Option<ContentCoding>) -> Self {
        let modified = metadata.modified().ok();
        let since_epoch = modified.and_then(|modified| modified.duration_since(UNIX_EPOCH).ok());
        let age = modified.and_then(|modified| SystemTime::now().duration_since(modified).ok());
        // RFC 9110 §8.8.1: a strong validator changes whenever the content does.
        let is_strong = age.is_some_and(|age| age >= MTIME_GRANULARITY);
        let mut tag = String::from(if is_strong { "\"" } else { "W/\"" });
        let nanos = since_epoch.unwrap_or_default().as_nanos();
        // Writing to a string never fails.
        let _ = write!(tag, "{nanos:x}-{:x}-{:x}", metadata.len(), inode(metadata));
        if let Some(coding) = coding {
            let _ = write!(tag, "-{}", coding.name());
        }
        tag.push('"');
        Self::new(metadata.len(), modified, tag)
    }

    /// The validators for conditional requests.
    pub(crate) fn validators(&self) -> Validators<'_> {
        Validators { etag: Some(&self.etag), last_modified: self.modified }
    }
}

#[cfg(unix)]
fn inode(metadata: &Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(metadata)
}

#[cfg(not(unix))]
fn inode(_: &Metadata) -> u64 {
    0
}

/// Returns the media type for a path, by its extension.
pub(crate) fn media_type(path: &str) -> &'static str {
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    // Types that browsers depend on, with the charset of web pages.
    match extension.to_ascii_lowercase().as_str() {
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "txt" => "text/plain; charset=utf-8",
        "md" => "text/markdown; charset=utf-8",
        "csv" => "text/csv; charset=utf-8",
        "webmanifest" => "application/manifest+json",
        _ => mime_guess2::from_path(path).first_raw().unwrap_or("application/octet-stream"),
    }
}
