//! Uploaded files: in memory while they are small, otherwise in a temporary file.

use crate::blocking::BlockingTask;
use crate::file_name::sanitize_file_name;
use crate::part_headers::PartHeaders;
use bytes::Bytes;
use http::StatusCode;
use peregrine_web::memory::{MemoryPressure, MemoryReservation, pressure};
use peregrine_web::{BodyError, Problem};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A complete file from a form.
///
/// It is in memory, or in a temporary file if it exceeds
/// [`MultipartLimits::in_memory_bytes_max`](crate::MultipartLimits::in_memory_bytes_max). The
/// temporary file is in [`std::env::temp_dir`] (`TMPDIR` on Unix) and has no name; it disappears
/// when the last clone is dropped or the process ends in any way. It is read and written on threads
/// that may block.
///
/// In a [`MultipartForm`](crate::MultipartForm), a field can have the type `UploadedFile`,
/// `Option<UploadedFile>` or `Vec<UploadedFile>`.
#[doc(alias = "TempFile")]
#[doc(alias = "NamedTempFile")]
#[derive(Clone, Debug)]
pub struct UploadedFile {
    file_name: Option<String>,
    content_type: Option<String>,
    length: u64,
    content: FileStorage,
}

#[derive(Clone)]
enum FileStorage {
    Memory(Bytes),
    Temporary(Arc<File>),
}

/// A file could not be stored or read. As a problem it has status 507 if the disk is full,
/// otherwise 500; the cause is logged.
#[derive(Debug)]
pub struct UploadError(pub io::Error);

/// The schema of a file in OpenAPI documents.
#[cfg(feature = "schema")]
impl schemars::JsonSchema for UploadedFile {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Upload".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "format": "binary",
            "contentMediaType": "application/octet-stream",
        })
    }
}

impl UploadedFile {
    /// The file name sent by the client. Do not use it as a path; see
    /// [`UploadedFile::sanitized_file_name`].
    #[must_use]
    pub fn file_name(&self) -> Option<&str> {
        self.file_name.as_deref()
    }

    /// The file's name, safe as the last component of a path:
    /// [`sanitize_file_name`](crate::sanitize_file_name).
    #[must_use]
    pub fn sanitized_file_name(&self) -> Option<String> {
        sanitize_file_name(self.file_name()?)
    }

    /// The media type sent by the client. The content was not checked against it.
    #[must_use]
    pub fn content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
    }

    /// The file's length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether the file is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether the file is in memory.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        matches!(self.content, FileStorage::Memory(_))
    }

    /// Whether a file field was submitted without choosing a file.
    pub(crate) fn has_no_chosen_file(&self) -> bool {
        self.is_empty() && self.file_name().is_none_or(str::is_empty)
    }

    /// The content, if it is in memory.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        match &self.content {
            FileStorage::Memory(bytes) => Some(bytes),
            FileStorage::Temporary(_) => None,
        }
    }

    /// Reads the whole content into memory.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    pub async fn bytes(&self) -> Result<Bytes, UploadError> {
        let file = match &self.content {
            FileStorage::Memory(bytes) => return Ok(bytes.clone()),
            FileStorage::Temporary(file) => Arc::clone(file),
        };
        let length = self.length;
        let work = move || {
            let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
            TempFileReader { file, at: 0, length }.read_to_end(&mut bytes).map(|_| bytes.into())
        };
        BlockingTask::spawn(work).join().await.map_err(UploadError)
    }

    /// Copies the content to a new file at `path`. An existing file is not changed, and the error
    /// is [`io::ErrorKind::AlreadyExists`], so that clients cannot replace each other's files by
    /// sending the same name.
    ///
    /// # Errors
    /// The file exists, or cannot be created or written completely. A partially written file is not
    /// removed.
    pub async fn save(&self, path: impl Into<PathBuf>) -> Result<(), UploadError> {
        let (content, length, path) = (self.content.clone(), self.length, path.into());
        BlockingTask::spawn(move || save(content, length, &path)).join().await.map_err(UploadError)
    }

    /// Returns a reader of the content from its beginning. It may block: use it with
    /// `peregrine::spawn_blocking`.
    #[must_use]
    pub fn reader(&self) -> impl Read + Send + 'static {
        match &self.content {
            FileStorage::Memory(bytes) => UploadReader::Memory(io::Cursor::new(bytes.clone())),
            FileStorage::Temporary(file) => UploadReader::File(TempFileReader {
                file: Arc::clone(file),
                at: 0,
                length: self.length,
            }),
        }
    }
}

fn save(content: FileStorage, length: u64, path: &Path) -> io::Result<()> {
    let mut target = OpenOptions::new().write(true).create_new(true).open(path)?;
    match content {
        FileStorage::Memory(bytes) => target.write_all(&bytes),
        FileStorage::Temporary(file) => {
            io::copy(&mut TempFileReader { file, at: 0, length }, &mut target).map(drop)
        }
    }
}

enum UploadReader {
    Memory(io::Cursor<Bytes>),
    File(TempFileReader),
}

impl Read for UploadReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Memory(bytes) => bytes.read(buffer),
            Self::File(file) => file.read(buffer),
        }
    }
}

/// Reads a shared file, with its own position.
struct TempFileReader {
    file: Arc<File>,
    at: u64,
    length: u64,
}

impl Read for TempFileReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.length - self.at).unwrap_or(usize::MAX).min(buffer.len());
        let count = read_at(&self.file, self.at, &mut buffer[..wanted])?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(unix)]
fn read_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, offset)
}

#[cfg(windows)]
fn read_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, offset)
}

/// The minimum size of a write, except at the end of a file.
const WRITE_BATCH_BYTES: usize = 256 * 1024;

/// The memory of a waiting chunk in addition to its content.
const CHUNK_OVERHEAD_BYTES: usize = 64;

/// While a file is small, more waiting chunks than this are joined into one.
const CHUNKS_MAX: usize = 64;

/// Receives a file. While one batch is written, the next one is received.
pub(crate) struct UploadWriter {
    memory_bytes_max: usize,
    chunks: Vec<Bytes>,
    pending_bytes: usize,
    reservation: MemoryReservation,
    length: u64,
    file: Option<BlockingTask<io::Result<File>>>,
}

impl UploadWriter {
    pub(crate) fn new(memory_bytes_max: usize) -> Self {
        let (chunks, reservation) = (Vec::new(), MemoryReservation::empty());
        Self { memory_bytes_max, chunks, pending_bytes: 0, reservation, length: 0, file: None }
    }

    pub(crate) async fn write(&mut self, chunk: Bytes) -> Result<(), Problem> {
        self.length += chunk.len() as u64;
        self.pending_bytes += chunk.len() + CHUNK_OVERHEAD_BYTES;
        self.chunks.push(chunk);
        self.reservation.resize(self.pending_bytes);
        let is_large = self.length > self.memory_bytes_max as u64;
        // Many small chunks would occupy a multiple of their content's size.
        if !is_large && self.chunks.len() > CHUNKS_MAX {
            self.chunks = vec![self.chunks.concat().into()];
            self.pending_bytes = self.chunks[0].len() + CHUNK_OVERHEAD_BYTES;
            self.reservation.resize(self.pending_bytes);
        }
        let is_full = pressure() >= MemoryPressure::Critical;
        if is_large && (self.pending_bytes >= WRITE_BATCH_BYTES || is_full) {
            self.flush_batch().await?;
        } else if is_full {
            return Err(BodyError::Overloaded.into());
        }
        Ok(())
    }

    /// Starts to write the waiting chunks, after the previous write has finished.
    async fn flush_batch(&mut self) -> Result<(), Problem> {
        let file = match self.file.take() {
            Some(file) => Some(file.join().await.map_err(UploadError)?),
            None => None,
        };
        let chunks = std::mem::take(&mut self.chunks);
        self.pending_bytes = 0;
        self.reservation.resize(0);
        self.file = Some(BlockingTask::spawn(move || {
            let mut file = match file {
                Some(file) => file,
                None => tempfile::tempfile()?,
            };
            chunks.iter().try_for_each(|chunk| file.write_all(chunk))?;
            Ok(file)
        }));
        Ok(())
    }

    pub(crate) async fn finish(mut self, head: PartHeaders) -> Result<UploadedFile, Problem> {
        let content = if self.length > self.memory_bytes_max as u64 {
            self.flush_batch().await?;
            let file = self.file.take().expect("a write was started");
            FileStorage::Temporary(Arc::new(file.join().await.map_err(UploadError)?))
        } else {
            FileStorage::Memory(match &mut *self.chunks {
                [chunk] => std::mem::take(chunk),
                chunks => chunks.concat().into(),
            })
        };
        let (_, file_name, content_type) = head.into_parts();
        Ok(UploadedFile { file_name, content_type, length: self.length, content })
    }
}

impl fmt::Debug for FileStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory(_) => "in memory",
            Self::Temporary(_) => "in a temporary file",
        })
    }
}

impl fmt::Display for UploadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an uploaded file could not be stored or read: {}", self.0)
    }
}

impl std::error::Error for UploadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl From<UploadError> for Problem {
    fn from(UploadError(error): UploadError) -> Self {
        // The error may contain paths of the server, so it is only logged.
        tracing::error!(target: "peregrine", %error, "an uploaded file could not be stored or read");
        let status = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                StatusCode::INSUFFICIENT_STORAGE
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, "upload-not-stored", "the server could not store the file")
    }
}
