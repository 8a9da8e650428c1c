//! Writes request bodies, and files in forms, to disk as they arrive.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Multipart, Path, Request, State};
use axum::http::StatusCode;
use axum::response::Redirect;
use axum::routing::{get, post};
use futures_util::{Stream, StreamExt};
use std::fmt::Display;
use std::io;
use std::path::{Component, Path as FilePath, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::fs::{self, File};
use tokio::io::{AsyncWriteExt, BufWriter};

/// The application, which writes to a temporary folder.
pub fn app() -> Router {
    app_in(std::env::temp_dir().join("peregrine-uploads"))
}

/// The application with another folder, which is created when the first file arrives.
pub fn app_in(folder: PathBuf) -> Router {
    Router::new()
        .route("/", post(receive_form))
        .route("/files/{name}", get(read).put(receive_body))
        .layer(DefaultBodyLimit::disable())
        .with_state(Arc::new(folder))
}

type Folder = State<Arc<PathBuf>>;
type Failed = (StatusCode, String);

async fn receive_body(
    State(folder): Folder,
    Path(name): Path<String>,
    request: Request,
) -> Result<StatusCode, Failed> {
    write(&folder, &name, request.into_body().into_data_stream()).await?;
    Ok(StatusCode::CREATED)
}

async fn receive_form(State(folder): Folder, mut form: Multipart) -> Result<Redirect, Failed> {
    let mut last = String::new();
    while let Some(field) = form.next_field().await.map_err(bad_request)? {
        let Some(name) = field.file_name().map(str::to_owned) else { continue };
        write(&folder, &name, field).await?;
        last = name;
    }
    Ok(Redirect::to(&format!("/files/{last}")))
}

async fn read(State(folder): Folder, Path(name): Path<String>) -> Result<Vec<u8>, Failed> {
    let place = place(&folder, &name)?;
    fs::read(place).await.map_err(|_| (StatusCode::NOT_FOUND, String::new()))
}

/// The file gets its final name only when it is complete.
async fn write<E: Display>(
    folder: &FilePath,
    name: &str,
    pieces: impl Stream<Item = Result<Bytes, E>>,
) -> Result<(), Failed> {
    let place = place(folder, name)?;
    fs::create_dir_all(folder).await.map_err(internal)?;
    let unfinished = Unfinished::new(folder);
    let mut file = BufWriter::new(File::create(unfinished.path()).await.map_err(internal)?);
    let mut pieces = pin!(pieces);
    while let Some(piece) = pieces.next().await {
        file.write_all(&piece.map_err(bad_request)?).await.map_err(internal)?;
    }
    file.flush().await.map_err(internal)?;
    fs::rename(unfinished.path(), place).await.map_err(internal)?;
    unfinished.keep();
    Ok(())
}

/// A temporary file that is removed on drop unless it was kept. On drop, because a handler is
/// dropped when its client disconnects.
struct Unfinished(Option<PathBuf>);

impl Unfinished {
    /// Chooses a unique name, because two clients may send the same file at once. The name starts
    /// with a dot, so clients cannot request the file.
    fn new(folder: &FilePath) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), LAST.fetch_add(1, Ordering::Relaxed));
        Self(Some(folder.join(format!(".{process}-{number}.part"))))
    }

    fn path(&self) -> &FilePath {
        self.0.as_deref().expect("only `keep` removes the path")
    }

    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // The file does not exist if creating it failed.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The path of a file. Names from clients must be validated here before they are used in a path.
fn place(folder: &FilePath, name: &str) -> Result<PathBuf, Failed> {
    if is_plain(name) {
        return Ok(folder.join(name));
    }
    Err((StatusCode::BAD_REQUEST, "That is not a file name.".to_owned()))
}

/// Whether the name is a single path component, not `..` and not hidden.
fn is_plain(name: &str) -> bool {
    let mut components = FilePath::new(name).components();
    let is_one = matches!(components.next(), Some(Component::Normal(_)));
    is_one && components.next().is_none() && !name.starts_with('.')
}

fn bad_request(error: impl Display) -> Failed {
    (StatusCode::BAD_REQUEST, error.to_string())
}

fn internal(error: io::Error) -> Failed {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}
