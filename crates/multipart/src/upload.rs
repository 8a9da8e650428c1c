//! Files of forms: in memory while they are small, else in a temporary file.

use crate::head::PartHead;
use crate::name::safe_name;
use crate::work::Work;
use bytes::Bytes;
use http::StatusCode;
use peregrine_web::account::{Charge, Filling, filling};
use peregrine_web::{BodyError, Problem};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file that came with a form, whole.
///
/// It is in memory, or beyond [`Limits::memory_bytes_max`](crate::Limits::memory_bytes_max) in a temporary
/// file in the folder that [`std::env::temp_dir`] tells (the variable `TMPDIR`, on Unix). That file has no
/// name, and vanishes when the last copy of this is dropped or the process ends, however it ends. Reading
/// and writing it is left to threads that may block.
///
/// In a [`MultipartForm`](crate::MultipartForm) it is a field's type, and so are `Option<Upload>` and
/// `Vec<Upload>`.
#[derive(Clone, Debug)]
pub struct Upload {
    file_name: Option<String>,
    content_type: Option<String>,
    length: u64,
    content: Content,
}

#[derive(Clone)]
enum Content {
    Memory(Bytes),
    Temporary(Arc<File>),
}

/// A file could not be stored or read. As a problem it has status 507 if there is no room, else 500; the log
/// has the cause.
#[derive(Debug)]
pub struct StoreError(pub io::Error);

/// A file, as documents of OpenAPI have it.
#[cfg(feature = "schema")]
impl schemars::JsonSchema for Upload {
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

impl Upload {
    /// The name that the file has at the peer, as the peer says. It is no path; see
    /// [`Upload::safe_name`].
    #[must_use]
    pub fn file_name(&self) -> Option<&str> {
        self.file_name.as_deref()
    }

    /// The file's name, safe as the last part of a path: [`safe_name`](crate::safe_name).
    #[must_use]
    pub fn safe_name(&self) -> Option<String> {
        safe_name(self.file_name()?)
    }

    /// The media type, as the peer says. Nobody looked whether the content is of that type.
    #[must_use]
    pub fn content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
    }

    /// The file's length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Has the file no bytes?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Is the file in memory?
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        matches!(self.content, Content::Memory(_))
    }

    /// Was there a field for a file and none was chosen?
    pub(crate) fn is_unchosen(&self) -> bool {
        self.is_empty() && self.file_name().is_none_or(str::is_empty)
    }

    /// The content, if it is in memory.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        match &self.content {
            Content::Memory(bytes) => Some(bytes),
            Content::Temporary(_) => None,
        }
    }

    /// The whole content, in memory.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    pub async fn bytes(&self) -> Result<Bytes, StoreError> {
        let file = match &self.content {
            Content::Memory(bytes) => return Ok(bytes.clone()),
            Content::Temporary(file) => Arc::clone(file),
        };
        let length = self.length;
        let read = move || {
            let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
            Reader { file, at: 0, length }.read_to_end(&mut bytes).map(|_| bytes.into())
        };
        Work::begin(read).finish().await.map_err(StoreError)
    }

    /// Copies the content to a new file at `path`. A file that is there already is left as it is, and the
    /// error is [`io::ErrorKind::AlreadyExists`], so that two peers who send the same name do not replace
    /// each other's files.
    ///
    /// # Errors
    /// The file is there, cannot be made, or cannot be written to its end; what was written stays.
    pub async fn save(&self, path: impl Into<PathBuf>) -> Result<(), StoreError> {
        let (content, length, path) = (self.content.clone(), self.length, path.into());
        Work::begin(move || save(content, length, &path)).finish().await.map_err(StoreError)
    }

    /// Reads the content from its beginning, on a thread that may block: the reader is made for
    /// `peregrine::offload`.
    #[must_use]
    pub fn reader(&self) -> impl Read + Send + 'static {
        match &self.content {
            Content::Memory(bytes) => Either::Memory(io::Cursor::new(bytes.clone())),
            Content::Temporary(file) => {
                Either::File(Reader { file: Arc::clone(file), at: 0, length: self.length })
            }
        }
    }
}

fn save(content: Content, length: u64, path: &Path) -> io::Result<()> {
    let mut target = OpenOptions::new().write(true).create_new(true).open(path)?;
    match content {
        Content::Memory(bytes) => target.write_all(&bytes),
        Content::Temporary(file) => {
            io::copy(&mut Reader { file, at: 0, length }, &mut target).map(drop)
        }
    }
}

enum Either {
    Memory(io::Cursor<Bytes>),
    File(Reader),
}

impl Read for Either {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Memory(bytes) => bytes.read(buffer),
            Self::File(file) => file.read(buffer),
        }
    }
}

/// Reads a file that others may read too, at a place of its own.
struct Reader {
    file: Arc<File>,
    at: u64,
    length: u64,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.length - self.at).unwrap_or(usize::MAX).min(buffer.len());
        let read = read_at(&self.file, self.at, &mut buffer[..left])?;
        self.at += read as u64;
        Ok(read)
    }
}

#[cfg(unix)]
fn read_at(file: &File, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, at)
}

#[cfg(windows)]
fn read_at(file: &File, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, at)
}

/// How much is handed to the thread that writes, at least, but at a file's end.
const BATCH_BYTES: usize = 256 * 1024;

/// What a piece costs beside its bytes while it waits.
const PIECE_BYTES: usize = 64;

/// Takes a file in. While one batch is written, the next one is received.
pub(crate) struct Store {
    memory_bytes_max: usize,
    pieces: Vec<Bytes>,
    waiting: usize,
    charge: Charge,
    length: u64,
    file: Option<Work<io::Result<File>>>,
}

impl Store {
    pub(crate) fn new(memory_bytes_max: usize) -> Self {
        let (pieces, charge) = (Vec::new(), Charge::new());
        Self { memory_bytes_max, pieces, waiting: 0, charge, length: 0, file: None }
    }

    pub(crate) async fn add(&mut self, piece: Bytes) -> Result<(), Problem> {
        self.length += piece.len() as u64;
        self.waiting += piece.len() + PIECE_BYTES;
        self.pieces.push(piece);
        self.charge.set(self.waiting);
        let is_large = self.length > self.memory_bytes_max as u64;
        // Many small pieces are put together, lest they cost a multiple of their bytes.
        if !is_large && self.pieces.len() > 64 {
            self.pieces = vec![self.pieces.concat().into()];
            self.waiting = self.pieces[0].len() + PIECE_BYTES;
            self.charge.set(self.waiting);
        }
        let is_full = filling() >= Filling::Full;
        if is_large && (self.waiting >= BATCH_BYTES || is_full) {
            self.write().await?;
        } else if is_full {
            return Err(BodyError::Overloaded.into());
        }
        Ok(())
    }

    /// Hands over what waits, when what was handed over before is written.
    async fn write(&mut self) -> Result<(), Problem> {
        let file = match self.file.take() {
            Some(file) => Some(file.finish().await.map_err(StoreError)?),
            None => None,
        };
        let pieces = std::mem::take(&mut self.pieces);
        self.waiting = 0;
        self.charge.set(0);
        self.file = Some(Work::begin(move || {
            let mut file = match file {
                Some(file) => file,
                None => tempfile::tempfile()?,
            };
            pieces.iter().try_for_each(|piece| file.write_all(piece))?;
            Ok(file)
        }));
        Ok(())
    }

    pub(crate) async fn finish(mut self, head: PartHead) -> Result<Upload, Problem> {
        let content = if self.length > self.memory_bytes_max as u64 {
            self.write().await?;
            let file = self.file.take().expect("something was written");
            Content::Temporary(Arc::new(file.finish().await.map_err(StoreError)?))
        } else {
            Content::Memory(match &mut *self.pieces {
                [piece] => std::mem::take(piece),
                pieces => pieces.concat().into(),
            })
        };
        let (_, file_name, content_type) = head.into_names();
        Ok(Upload { file_name, content_type, length: self.length, content })
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory(_) => "in memory",
            Self::Temporary(_) => "in a temporary file",
        })
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a file of a form could not be stored or read: {}", self.0)
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl From<StoreError> for Problem {
    fn from(StoreError(error): StoreError) -> Self {
        // The text may name paths of the server, so it goes to the log only.
        tracing::error!(target: "peregrine", %error, "a file of a form could not be stored or read");
        let status = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                StatusCode::INSUFFICIENT_STORAGE
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, "upload-not-stored", "the server could not store the file")
    }
}
