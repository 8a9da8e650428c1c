//! The handler that serves files.

use crate::blocking::BlockingTask;
use crate::cache::FileCache;
use crate::content_coding::{AcceptedCodings, negotiate};
use crate::content_disposition::{glob_matches, has_content_hash};
use crate::dir::{Dir, Resolution};
#[cfg(feature = "embed")]
use crate::embedded::Embedded;
use crate::listing::{self, DirEntry};
use crate::metadata::ResolvedFile;
use crate::respond::respond;
use crate::target::FilePath;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, LOCATION, RETRY_AFTER};
use http::{HeaderValue, Method, StatusCode};
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::response::{Html, IntoResponse};
use peregrine_web::{Parts, Problem, Request, RequestHead, Response, Service};
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The default size of each worker's cache of small files: 8 MiB.
pub const CACHE_BYTES_DEFAULT: usize = 8 * 1024 * 1024;

/// The default time for which cached files count as fresh: 1 s.
pub const CACHE_TTL_DEFAULT: Duration = Duration::from_secs(1);

/// The maximum size of a file whose content is cached: 64 KiB. Larger files are read while they are
/// sent.
pub const CACHED_FILE_BYTES_MAX: u64 = 64 * 1024;

/// The methods that [`Files`] supports.
const ALLOWED_METHODS: &str = "GET, HEAD, OPTIONS";

/// Serves the files of a directory, or of a tree embedded in the program. Use it as a handler for
/// [`App::subtree`](peregrine_web::App::subtree), as a fallback, or for a route that ends in
/// `{*path}`.
///
/// It supports GET and HEAD, with ranges and conditions, and OPTIONS. A missing file gets a 404. It
/// serves regular files beneath the directory. Unless a method below changes that, names that begin
/// with a dot are not served and symbolic links are not followed; no path ever leads out of the
/// directory. A response comes from one open file, even if the file is replaced while the response
/// is sent.
///
/// ```
/// use peregrine::files::Files;
/// use peregrine::prelude::*;
///
/// let folder = tempfile::tempdir().unwrap();
/// std::fs::write(folder.path().join("hello.txt"), "hello").unwrap();
///
/// let client = App::new().subtree("/files", Files::dir(folder.path())).test();
/// let response = client.get("/files/hello.txt").header("range", "bytes=1-").send_blocking();
/// assert_eq!((response.status().as_u16(), response.text().as_str()), (206, "ello"));
/// assert_eq!(client.get("/files/../Cargo.toml").send_blocking().status(), 400);
/// ```
#[doc(alias = "ServeDir")]
#[doc(alias = "static_files")]
pub struct Files {
    source: FileSource,
    index: Option<String>,
    hidden_files: bool,
    fallback: Option<String>,
    rules: Vec<(CacheControlRule, HeaderValue)>,
    cache: RefCell<FileCache>,
    cache_bytes: usize,
    cache_ttl: Duration,
}

enum FileSource {
    Dir(Arc<Dir>),
    #[cfg(feature = "embed")]
    Embedded(Embedded),
}

/// The files that a `Cache-Control` applies to.
enum CacheControlRule {
    Pattern(String),
    Hashed,
}

/// The result of a lookup for a request.
enum ServeOutcome {
    File(Rc<ResolvedFile>),
    DirWithoutSlash,
    Listing(Vec<DirEntry>, bool),
    NotFound,
}

impl Files {
    /// Serves the directory at `root`. If it does not exist yet, this is logged.
    #[doc(alias = "ServeDir")]
    #[doc(alias = "root")]
    #[must_use]
    pub fn dir(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        if !root.is_dir() {
            catch_subscriber_panic(|| {
                tracing::error!(
                    target: "peregrine", root = %root.display(),
                    "the directory to serve files from does not exist: create it, or use another path",
                )
            });
        }
        Self::from_source(FileSource::Dir(Arc::new(Dir {
            root,
            index: None,
            follow_symlinks: false,
            hidden_files: false,
            directory_listing: false,
            serve_precompressed: false,
            cached_file_bytes_max: CACHED_FILE_BYTES_MAX,
        })))
        .index_file("index.html")
    }

    /// Serves a tree embedded in the program: a type with `#[derive(rust_embed::Embed)]`. Files
    /// with the extensions `.br`, `.zst` and `.gz` are compressed variants of others, as with
    /// [`Files::serve_precompressed`]. In debug builds, `rust-embed` reads the files from disk for
    /// each request, on the worker's thread.
    #[cfg(feature = "embed")]
    #[must_use]
    pub fn embedded<T: rust_embed::RustEmbed>() -> Self {
        Self::from_source(FileSource::Embedded(Embedded::new::<T>())).index_file("index.html")
    }

    fn from_source(source: FileSource) -> Self {
        Self {
            source,
            index: None,
            hidden_files: false,
            fallback: None,
            rules: Vec::new(),
            cache: RefCell::new(FileCache::new(CACHE_BYTES_DEFAULT, CACHE_TTL_DEFAULT)),
            cache_bytes: CACHE_BYTES_DEFAULT,
            cache_ttl: CACHE_TTL_DEFAULT,
        }
    }

    fn configure_dir(mut self, change: impl FnOnce(&mut Dir)) -> Self {
        match &mut self.source {
            FileSource::Dir(folder) => change(Arc::make_mut(folder)),
            #[cfg(feature = "embed")]
            FileSource::Embedded(_) => {}
        }
        self
    }

    /// Sets the file that is served for a directory. The default is `index.html`.
    #[doc(alias = "DirectoryIndex")]
    #[must_use]
    pub fn index_file(mut self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.index = Some(name.clone());
        self.configure_dir(|folder| folder.index = Some(name))
    }

    /// Serves no index file for directories.
    #[must_use]
    pub fn no_index(mut self) -> Self {
        self.index = None;
        self.configure_dir(|folder| folder.index = None)
    }

    /// Serves this file with status 200 for missing pages: for applications whose routes exist only
    /// in the browser. A page is a request with `text/html` in its `Accept`, so that a missing
    /// script or image is still a 404.
    #[doc(alias = "try_files")]
    #[doc(alias = "not_found_service")]
    #[must_use]
    pub fn spa_fallback(self, path: impl Into<String>) -> Self {
        Self { fallback: Some(path.into()), ..self }
    }

    /// Serves `x.css.br`, `x.css.zst` or `x.css.gz` instead of `x.css` to clients that accept it.
    /// Keep these files up to date with `x.css`: their content is not checked. Types that are
    /// compressed already, such as images, have no variants.
    #[doc(alias = "precompressed_gzip")]
    #[doc(alias = "gzip_static")]
    #[must_use]
    pub fn serve_precompressed(self) -> Self {
        self.configure_dir(|folder| folder.serve_precompressed = true)
    }

    /// Serves files and directories whose names begin with a dot, such as `.well-known`.
    #[doc(alias = "use_hidden_files")]
    #[must_use]
    pub fn hidden_files(mut self) -> Self {
        self.hidden_files = true;
        self.configure_dir(|folder| folder.hidden_files = true)
    }

    /// Follows symbolic links to targets beneath the directory. Links that lead out of it are still
    /// not followed. On Linux, if `openat2` is available, no absolute links are followed.
    #[doc(alias = "disable_symlinks")]
    #[must_use]
    pub fn follow_symlinks(self) -> Self {
        self.configure_dir(|folder| folder.follow_symlinks = true)
    }

    /// Lists directories without an index, with at most 1,000 entries. Embedded trees are not
    /// listed.
    #[doc(alias = "autoindex")]
    #[doc(alias = "show_files_listing")]
    #[must_use]
    pub fn directory_listing(self) -> Self {
        self.configure_dir(|folder| folder.directory_listing = true)
    }

    /// Sends this `Cache-Control` with files whose path below the directory matches the pattern, in
    /// which `*` stands for any characters including slashes. The first matching rule applies.
    ///
    /// # Panics
    /// If the value is not a valid header field value.
    #[must_use]
    pub fn cache_control(mut self, pattern: impl Into<String>, value: &str) -> Self {
        let value = HeaderValue::from_str(value).expect("a Cache-Control is plain text");
        self.rules.push((CacheControlRule::Pattern(pattern.into()), value));
        self
    }

    /// Lets clients cache files with a content hash in their names (`index-BXk29aQ1.js`) for a year
    /// without revalidation: `Cache-Control: public, max-age=31536000, immutable`. This is a rule
    /// like those of [`Files::cache_control`].
    #[must_use]
    pub fn immutable_hashed_names(mut self) -> Self {
        let value = HeaderValue::from_static("public, max-age=31536000, immutable");
        self.rules.push((CacheControlRule::Hashed, value));
        self
    }

    /// Sets how much content of small files each worker caches, in bytes, and how long cached files
    /// count as fresh. Up to 64 larger files are kept open for the same time. A change is noticed
    /// after that time at the latest, and immediately if a larger file is modified in place. With a
    /// time of zero, nothing is cached. The defaults are [`CACHE_BYTES_DEFAULT`] and
    /// [`CACHE_TTL_DEFAULT`].
    #[doc(alias = "open_file_cache")]
    #[must_use]
    pub fn memory_cache(self, bytes_max: usize, ttl: Duration) -> Self {
        let cache = RefCell::new(FileCache::new(bytes_max, ttl));
        Self { cache, cache_bytes: bytes_max, cache_ttl: ttl, ..self }
    }

    /// Returns the response to a handler's request for the file at this path below the directory:
    /// plain names separated by slashes, not percent-encoded. For handlers that check permissions
    /// first. A directory is a 404, even if it has an index.
    ///
    /// ```
    /// use peregrine::files::{Files, attachment};
    /// use peregrine::http::header::CONTENT_DISPOSITION;
    /// use peregrine::prelude::*;
    ///
    /// # let folder = tempfile::tempdir().unwrap();
    /// # std::fs::write(folder.path().join("7.pdf"), "PDF").unwrap();
    /// # let root = folder.path().to_owned();
    /// async fn report(files: StateRef<Files>, Path(id): Path<u32>, request: Request) -> Response {
    ///     let response = files.serve(&request.parts, &format!("{id}.pdf")).await;
    ///     response.with_header(CONTENT_DISPOSITION, attachment("report.pdf"))
    /// }
    ///
    /// let client = App::new().state(Files::dir(root)).get("/reports/{id}", report).test();
    /// assert_eq!(client.get("/reports/7").send_blocking().text(), "PDF");
    /// assert_eq!(client.get("/reports/8").send_blocking().status(), 404);
    /// ```
    pub async fn serve(&self, parts: &Parts, path: &str) -> Response {
        match FilePath::from_path(path, self.hidden_files) {
            Some(target) => self.respond(parts, Some(target), false).await,
            None => not_found(),
        }
    }

    /// Responds with the target's file, or with a 404 if there is no target. `is_request_path`:
    /// whether the target is the request's own path. If not, a directory is a 404 too, since
    /// redirecting to that path with a slash would lead elsewhere.
    async fn respond(
        &self,
        parts: &Parts,
        target: Option<FilePath>,
        is_request_path: bool,
    ) -> Response {
        let (head, path) = (&parts.head, target.as_ref().map_or("", |target| &*target.path));
        let accepted = negotiate(head);
        let mut outcome = match &target {
            Some(target) => self.resolve(target, accepted).await,
            None => Ok(ServeOutcome::NotFound),
        };
        let without_redirect = |outcome: io::Result<ServeOutcome>| match outcome {
            Ok(ServeOutcome::DirWithoutSlash) => Ok(ServeOutcome::NotFound),
            other => other,
        };
        if !is_request_path {
            outcome = without_redirect(outcome);
        }
        let fallback =
            self.fallback.as_ref().filter(|_| matches!(outcome, Ok(ServeOutcome::NotFound)));
        if let Some(path) = fallback.filter(|_| accepts_html(head)) {
            let page = FilePath { path: path.clone(), is_dir: false };
            outcome = without_redirect(self.resolve(&page, accepted).await);
        }
        let mut response = match outcome {
            Ok(ServeOutcome::File(file)) => {
                respond(head, &file, self.cache_control_for(&file.path))
            }
            Ok(ServeOutcome::DirWithoutSlash) => redirect_to_slash(parts),
            Ok(ServeOutcome::Listing(entries, has_more)) => {
                let page = listing::render_listing(path, &entries, has_more);
                let policy = HeaderValue::from_static("default-src 'none'");
                let response = Html(page).into_response();
                response
                    .with_header(CONTENT_SECURITY_POLICY, policy)
                    .with_header(CACHE_CONTROL, HeaderValue::from_static("no-cache"))
            }
            Ok(ServeOutcome::NotFound) => not_found(),
            Err(error) => io_error_response(path, &error),
        };
        // RFC 9110 §12.5.5: whether the response is the page or a 404 depends on this field.
        if fallback.is_some() {
            response.headers.add_vary("accept");
        }
        response
    }

    async fn resolve(
        &self,
        target: &FilePath,
        accepted: AcceptedCodings,
    ) -> io::Result<ServeOutcome> {
        let folder = match &self.source {
            FileSource::Dir(folder) => Arc::clone(folder),
            #[cfg(feature = "embed")]
            FileSource::Embedded(tree) => {
                let resolution = tree.resolve(target, self.index.as_deref(), accepted);
                return Ok(ServeOutcome::from_resolution(resolution));
            }
        };
        // Take the time before the lookup, so that changes during the lookup are noticed in time.
        let (key, now) = ((target.clone(), accepted), Instant::now());
        if let Some(file) = self.cache.borrow_mut().get(&key, now) {
            return Ok(ServeOutcome::File(file));
        }
        let mut close_count = Some(self.cache.borrow().close_all_count());
        let resolution = loop {
            let (folder, file_path) = (Arc::clone(&folder), target.clone());
            match BlockingTask::spawn(move || folder.resolve(&file_path, accepted)).join().await {
                Ok(resolution) => break resolution,
                // Cached open files are closed to make descriptors available for the requested one.
                Err(error) => match close_count.take().filter(|_| is_resource_exhausted(&error)) {
                    // Try again if this or a concurrent request has closed some.
                    Some(previous) if self.cache.borrow_mut().close_all() != previous => {}
                    _ => return Err(error),
                },
            }
        };
        let outcome = ServeOutcome::from_resolution(resolution);
        if let ServeOutcome::File(file) = &outcome {
            self.cache.borrow_mut().insert(key, file, now);
        }
        Ok(outcome)
    }

    fn cache_control_for(&self, path: &str) -> Option<&HeaderValue> {
        let mut rules = self.rules.iter();
        let (_, value) = rules.find(|(rule, _)| match rule {
            CacheControlRule::Pattern(pattern) => glob_matches(pattern, path),
            CacheControlRule::Hashed => has_content_hash(path),
        })?;
        Some(value)
    }
}

impl ServeOutcome {
    fn from_resolution(resolution: Resolution) -> Self {
        match resolution {
            Resolution::File(file) => Self::File(Rc::new(file)),
            Resolution::DirWithoutSlash => Self::DirWithoutSlash,
            Resolution::Listing(entries, has_more) => Self::Listing(entries, has_more),
            Resolution::NotFound => Self::NotFound,
        }
    }
}

impl Service for Files {
    async fn call(&self, request: Request) -> Response {
        let head = &request.parts.head;
        // RFC 9110 §9.3.7: lists the supported methods, without disk access.
        if head.method() == Method::OPTIONS {
            let response = Response::new(StatusCode::NO_CONTENT);
            return response.with_header(ALLOW, HeaderValue::from_static(ALLOWED_METHODS));
        }
        if !matches!(head.method(), Method::GET | Method::HEAD) {
            let detail = "files support only GET and HEAD";
            let status = StatusCode::METHOD_NOT_ALLOWED;
            let problem = Problem::new(status, "method-not-allowed", detail);
            return problem
                .with_header(ALLOW, HeaderValue::from_static(ALLOWED_METHODS))
                .into_response();
        }
        // A path that is invalid for a file can still be that of a page of the application.
        let target = FilePath::from_request(&request.parts, self.hidden_files);
        self.respond(&request.parts, target, true).await
    }
}

/// Whether the request is for an HTML page, which the fallback can replace.
fn accepts_html(head: &RequestHead) -> bool {
    let names_html =
        |list: &[u8]| list.windows(9).any(|window| window.eq_ignore_ascii_case(b"text/html"));
    head.header_values("accept").any(names_html)
}

fn not_found() -> Response {
    let detail = "there is no file at this path";
    Problem::new(StatusCode::NOT_FOUND, "no-such-file", detail).into_response()
}

fn io_error_response(path: &str, error: &io::Error) -> Response {
    catch_subscriber_panic(
        || tracing::error!(target: "peregrine", path, %error, "a file could not be read"),
    );
    if is_resource_exhausted(error) {
        let detail = "the server has no resources to open another file at present; try again later";
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "file-unreadable", detail);
        return problem.with_header(RETRY_AFTER, HeaderValue::from_static("1")).into_response();
    }
    let detail = "the server could not read the file; its log says why";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "file-unreadable", detail).into_response()
}

/// Whether the process or machine is out of descriptors or memory. ENOMEM, ENFILE and EMFILE have
/// no [`io::ErrorKind`]; their numbers are the same on every Unix.
fn is_resource_exhausted(error: &io::Error) -> bool {
    cfg!(unix) && matches!(error.raw_os_error(), Some(12 | 23 | 24))
}

/// Redirects to the path with a trailing slash, so that relative links in the index resolve below
/// it.
fn redirect_to_slash(parts: &Parts) -> Response {
    let (head, client) = (&parts.head, parts.client());
    // A path that begins with two slashes would lead to another host.
    let path = head.original_path().trim_start_matches(['/', '\\']);
    let mut location = format!("{}/{path}/", client.prefix());
    if let Some(query) = head.query() {
        location.push('?');
        location.push_str(query);
    }
    let Ok(location) = HeaderValue::try_from(location) else { return not_found() };
    Response::new(StatusCode::PERMANENT_REDIRECT).with_header(LOCATION, location)
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Files");
        match &self.source {
            FileSource::Dir(folder) => debug.field("folder", folder),
            #[cfg(feature = "embed")]
            FileSource::Embedded(_) => debug.field("index", &self.index),
        };
        debug
            .field("fallback", &self.fallback)
            .field("cache_bytes", &self.cache_bytes)
            .field("cache_ttl", &self.cache_ttl)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn resource_exhaustion_is_a_503_with_retry_after() {
        for (errno, status) in [(24, 503), (23, 503), (12, 503), (5, 500)] {
            let response = io_error_response("page.html", &io::Error::from_raw_os_error(errno));
            assert_eq!(response.status, status);
            assert_eq!(response.headers.get(&RETRY_AFTER).is_some(), status == 503);
        }
    }
}
