//! The handler that serves files.

use crate::cache::Cache;
#[cfg(feature = "embed")]
use crate::embedded::Embedded;
use crate::encoding::{Accepted, accepted};
use crate::facts::Found;
use crate::folder::{Folder, Lookup};
use crate::listing::{self, Entry};
use crate::names::{fits, is_hashed};
use crate::respond::respond;
use crate::target::Target;
use crate::work::Work;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, LOCATION, RETRY_AFTER};
use http::{HeaderValue, Method, StatusCode};
use peregrine_web::panics::contained;
use peregrine_web::respond::{Html, IntoResponse};
use peregrine_web::{Head, Parts, Problem, Request, Response, Service};
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The default size of each worker's cache of small files: 8 MiB.
pub const CACHE_BYTES: usize = 8 * 1024 * 1024;

/// The default time for which cached files count as fresh: 1 s.
pub const CACHE_FRESH_FOR: Duration = Duration::from_secs(1);

/// Larger files are not cached in memory, but read while they are sent: 64 KiB.
pub const SMALL_BYTES_MAX: u64 = 64 * 1024;

/// The methods that files support.
const METHODS: &str = "GET, HEAD, OPTIONS";

/// Serves the files of a directory, or of a tree embedded in the program. Use it as a handler for
/// [`App::subtree`](peregrine_web::App::subtree), as a fallback, or for a route that ends in
/// `{*path}`.
///
/// It answers GET and HEAD, with ranges and conditions, and OPTIONS; a missing file is a 404. It
/// serves regular files beneath the directory. Unless a method below changes that, names that begin
/// with a dot are not served and symbolic links are not followed; no path ever leads out of the
/// directory. An open file stays the same until its response has ended, even if it is replaced
/// meanwhile.
///
/// ```
/// use peregrine::files::Files;
/// use peregrine::prelude::*;
///
/// let folder = tempfile::tempdir().unwrap();
/// std::fs::write(folder.path().join("hello.txt"), "hello").unwrap();
///
/// let client = App::new().subtree("/files", Files::folder(folder.path())).test();
/// let response = client.get("/files/hello.txt").header("range", "bytes=1-").send_now();
/// assert_eq!((response.status().as_u16(), response.text().as_str()), (206, "ello"));
/// assert_eq!(client.get("/files/../Cargo.toml").send_now().status(), 400);
/// ```
pub struct Files {
    tree: Tree,
    index: Option<String>,
    has_dot_files: bool,
    fallback: Option<String>,
    rules: Vec<(Rule, HeaderValue)>,
    cache: RefCell<Cache>,
    cache_bytes: usize,
    fresh_for: Duration,
}

enum Tree {
    Folder(Arc<Folder>),
    #[cfg(feature = "embed")]
    Embedded(Embedded),
}

/// The files that a `Cache-Control` applies to.
enum Rule {
    Pattern(String),
    Hashed,
}

/// The result of a lookup for a request.
enum Outcome {
    File(Rc<Found>),
    Folder,
    Listing(Vec<Entry>, bool),
    Nothing,
}

impl Files {
    /// Serves the directory at `root`. If it does not exist at this time, that is logged.
    #[must_use]
    pub fn folder(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        if !root.is_dir() {
            contained(|| {
                tracing::error!(
                    target: "peregrine", root = %root.display(),
                    "the directory to serve files from does not exist: create it, or use another path",
                )
            });
        }
        Self::of(Tree::Folder(Arc::new(Folder {
            root,
            index: None,
            has_links: false,
            has_dot_files: false,
            is_listed: false,
            is_precompressed: false,
            small_bytes_max: SMALL_BYTES_MAX,
        })))
        .index("index.html")
    }

    /// Serves a tree embedded in the program: a type with `#[derive(rust_embed::Embed)]`. Files
    /// with the extensions `.br`, `.zst` and `.gz` are compressed variants of others, as with
    /// [`Files::precompressed`]. In debug builds, `rust-embed` reads the files from disk for each
    /// request, on the worker's thread.
    #[cfg(feature = "embed")]
    #[must_use]
    pub fn embedded<T: rust_embed::RustEmbed>() -> Self {
        Self::of(Tree::Embedded(Embedded::of::<T>())).index("index.html")
    }

    fn of(tree: Tree) -> Self {
        Self {
            tree,
            index: None,
            has_dot_files: false,
            fallback: None,
            rules: Vec::new(),
            cache: RefCell::new(Cache::new(CACHE_BYTES, CACHE_FRESH_FOR)),
            cache_bytes: CACHE_BYTES,
            fresh_for: CACHE_FRESH_FOR,
        }
    }

    fn set(mut self, change: impl FnOnce(&mut Folder)) -> Self {
        match &mut self.tree {
            Tree::Folder(folder) => change(Arc::make_mut(folder)),
            #[cfg(feature = "embed")]
            Tree::Embedded(_) => {}
        }
        self
    }

    /// Sets the file that is served for a directory. The default is `index.html`.
    #[must_use]
    pub fn index(mut self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.index = Some(name.clone());
        self.set(|folder| folder.index = Some(name))
    }

    /// Serves no index file for directories.
    #[must_use]
    pub fn no_index(mut self) -> Self {
        self.index = None;
        self.set(|folder| folder.index = None)
    }

    /// Serves this file with status 200 for missing pages: for applications whose routes exist only
    /// in the browser. A page is a request with `text/html` in its `Accept`, so that a missing
    /// script or image is still a 404.
    #[must_use]
    pub fn fallback(self, path: impl Into<String>) -> Self {
        Self { fallback: Some(path.into()), ..self }
    }

    /// Serves `x.css.br`, `x.css.zst` or `x.css.gz` instead of `x.css` to clients that accept it.
    /// Keep these files up to date with `x.css`: their content is not checked. Types that are
    /// compressed already, such as images, have no variants.
    #[must_use]
    pub fn precompressed(self) -> Self {
        self.set(|folder| folder.is_precompressed = true)
    }

    /// Serves files and directories whose names begin with a dot, such as `.well-known`.
    #[must_use]
    pub fn dot_files(mut self) -> Self {
        self.has_dot_files = true;
        self.set(|folder| folder.has_dot_files = true)
    }

    /// Follows symbolic links to targets beneath the directory. Links that lead out of it, and on
    /// Linux all absolute links, are still not followed.
    #[must_use]
    pub fn symlinks(self) -> Self {
        self.set(|folder| folder.has_links = true)
    }

    /// Lists directories without an index, with at most 1,000 entries. Embedded trees are not
    /// listed.
    #[must_use]
    pub fn listing(self) -> Self {
        self.set(|folder| folder.is_listed = true)
    }

    /// Sends this `Cache-Control` with files whose path below the directory matches the pattern, in
    /// which `*` stands for any characters including slashes. The first matching rule applies.
    ///
    /// # Panics
    /// If the value is not a valid header field value.
    #[must_use]
    pub fn cache_control(mut self, pattern: impl Into<String>, value: &str) -> Self {
        let value = HeaderValue::from_str(value).expect("a Cache-Control is plain text");
        self.rules.push((Rule::Pattern(pattern.into()), value));
        self
    }

    /// Lets clients cache files with a content hash in their names (`index-BXk29aQ1.js`) for a year
    /// without revalidation: `Cache-Control: public, max-age=31536000, immutable`. This is a rule
    /// like those of [`Files::cache_control`].
    #[must_use]
    pub fn immutable_hashed_names(mut self) -> Self {
        let value = HeaderValue::from_static("public, max-age=31536000, immutable");
        self.rules.push((Rule::Hashed, value));
        self
    }

    /// Sets how much content of small files each worker caches, in bytes, and how long cached files
    /// count as fresh. Up to 64 larger files are kept open for the same time. A change is noticed
    /// after that time at the latest, and at once if a larger file is modified in place. With a
    /// time of zero, nothing is cached. The defaults are [`CACHE_BYTES`] and [`CACHE_FRESH_FOR`].
    #[must_use]
    pub fn cache(self, bytes_max: usize, fresh_for: Duration) -> Self {
        let cache = RefCell::new(Cache::new(bytes_max, fresh_for));
        Self { cache, cache_bytes: bytes_max, fresh_for, ..self }
    }

    /// Answers a handler's request with the file at this path below the directory: plain names
    /// separated by slashes, not percent-encoded. For handlers that check permissions first. A
    /// directory is a 404, even if it has an index.
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
    /// let client = App::new().state(Files::folder(root)).get("/reports/{id}", report).test();
    /// assert_eq!(client.get("/reports/7").send_now().text(), "PDF");
    /// assert_eq!(client.get("/reports/8").send_now().status(), 404);
    /// ```
    pub async fn serve(&self, parts: &Parts, path: &str) -> Response {
        match Target::plain(path, self.has_dot_files) {
            Some(target) => self.answer(parts, Some(target), false).await,
            None => absent(),
        }
    }

    /// Answers with the target's file; without a target, with a 404. Unless the target `is_target`
    /// of the request's own path, a directory is a 404 too, since redirecting to that path with a
    /// slash would lead elsewhere.
    async fn answer(&self, parts: &Parts, target: Option<Target>, is_target: bool) -> Response {
        let (head, path) = (&parts.head, target.as_ref().map_or("", |target| &*target.path));
        let accepted = accepted(head);
        let mut outcome = match &target {
            Some(target) => self.look(target, accepted).await,
            None => Ok(Outcome::Nothing),
        };
        let without_folder = |outcome: io::Result<Outcome>| match outcome {
            Ok(Outcome::Folder) => Ok(Outcome::Nothing),
            other => other,
        };
        if !is_target {
            outcome = without_folder(outcome);
        }
        let fallback = self.fallback.as_ref().filter(|_| matches!(outcome, Ok(Outcome::Nothing)));
        if let Some(path) = fallback.filter(|_| takes_pages(head)) {
            let page = Target { path: path.clone(), is_folder: false };
            outcome = without_folder(self.look(&page, accepted).await);
        }
        let mut response = match outcome {
            Ok(Outcome::File(found)) => respond(head, &found, self.rule(&found.path)),
            Ok(Outcome::Folder) => with_slash(parts),
            Ok(Outcome::Listing(entries, more)) => {
                let page = listing::page(path, &entries, more);
                let policy = HeaderValue::from_static("default-src 'none'");
                let response = Html(page).into_response();
                response
                    .with_header(CONTENT_SECURITY_POLICY, policy)
                    .with_header(CACHE_CONTROL, HeaderValue::from_static("no-cache"))
            }
            Ok(Outcome::Nothing) => absent(),
            Err(error) => failed(path, &error),
        };
        // RFC 9110 §12.5.5: whether the response is the page or a 404 depends on this field.
        if fallback.is_some() {
            response.fields.vary("accept");
        }
        response
    }

    async fn look(&self, target: &Target, accepted: Accepted) -> io::Result<Outcome> {
        let folder = match &self.tree {
            Tree::Folder(folder) => Arc::clone(folder),
            #[cfg(feature = "embed")]
            Tree::Embedded(tree) => {
                let lookup = tree.look(target, self.index.as_deref(), accepted);
                return Ok(Outcome::of(lookup));
            }
        };
        // Take the time before the lookup, so that changes during the lookup are noticed in time.
        let (key, now) = ((target.clone(), accepted), Instant::now());
        if let Some(found) = self.cache.borrow_mut().find(&key, now) {
            return Ok(Outcome::File(found));
        }
        let mut closings = Some(self.cache.borrow().closings());
        let lookup = loop {
            let (folder, wanted) = (Arc::clone(&folder), target.clone());
            match Work::begin(move || folder.look(&wanted, accepted)).finish().await {
                Ok(lookup) => break lookup,
                // Cached open files are closed to make descriptors available for the requested one.
                Err(error) => match closings.take().filter(|_| is_exhausted(&error)) {
                    // They may have been closed for another request meanwhile.
                    Some(before) if self.cache.borrow_mut().close_all() != before => {}
                    _ => return Err(error),
                },
            }
        };
        let outcome = Outcome::of(lookup);
        if let Outcome::File(found) = &outcome {
            self.cache.borrow_mut().keep(key, found, now);
        }
        Ok(outcome)
    }

    fn rule(&self, path: &str) -> Option<&HeaderValue> {
        let mut rules = self.rules.iter();
        let (_, value) = rules.find(|(rule, _)| match rule {
            Rule::Pattern(pattern) => fits(pattern, path),
            Rule::Hashed => is_hashed(path),
        })?;
        Some(value)
    }
}

impl Outcome {
    fn of(lookup: Lookup) -> Self {
        match lookup {
            Lookup::File(found) => Self::File(Rc::new(found)),
            Lookup::Folder => Self::Folder,
            Lookup::Listing(entries, more) => Self::Listing(entries, more),
            Lookup::Nothing => Self::Nothing,
        }
    }
}

impl Service for Files {
    async fn call(&self, request: Request) -> Response {
        let head = &request.parts.head;
        // RFC 9110 §9.3.7: lists the supported methods, without a look at the disk.
        if head.method() == Method::OPTIONS {
            let response = Response::new(StatusCode::NO_CONTENT);
            return response.with_header(ALLOW, HeaderValue::from_static(METHODS));
        }
        if !matches!(head.method(), Method::GET | Method::HEAD) {
            let detail = "files support only GET and HEAD";
            let status = StatusCode::METHOD_NOT_ALLOWED;
            let problem = Problem::new(status, "method-not-allowed", detail);
            return problem.with_header(ALLOW, HeaderValue::from_static(METHODS)).into_response();
        }
        // A path that is not valid for a file may still be that of a page.
        let target = Target::of(&request.parts, self.has_dot_files);
        self.answer(&request.parts, target, true).await
    }
}

/// Whether the client accepts HTML pages, which the fallback replaces.
fn takes_pages(head: &Head) -> bool {
    let takes_pages = |list: &[u8]| list.windows(9).any(|it| it.eq_ignore_ascii_case(b"text/html"));
    head.fields_named("accept").any(takes_pages)
}

fn absent() -> Response {
    let detail = "there is no file at this path";
    Problem::new(StatusCode::NOT_FOUND, "no-such-file", detail).into_response()
}

fn failed(path: &str, error: &io::Error) -> Response {
    contained(|| tracing::error!(target: "peregrine", path, %error, "a file could not be read"));
    if is_exhausted(error) {
        let detail = "the server has no resources to open another file at present; try again later";
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "file-not-read", detail);
        return problem.with_header(RETRY_AFTER, HeaderValue::from_static("1")).into_response();
    }
    let detail = "the server could not read the file; its log says why";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "file-not-read", detail).into_response()
}

/// Whether the process or machine is out of descriptors or memory. ENOMEM, ENFILE and EMFILE have
/// no [`io::ErrorKind`]; their numbers are the same on every Unix.
fn is_exhausted(error: &io::Error) -> bool {
    cfg!(unix) && matches!(error.raw_os_error(), Some(12 | 23 | 24))
}

/// Redirects to the path with a trailing slash, so that relative links in the index resolve below
/// it.
fn with_slash(parts: &Parts) -> Response {
    let (head, client) = (&parts.head, parts.client());
    // A path that begins with two slashes would lead to another host.
    let path = head.original_path().trim_start_matches(['/', '\\']);
    let mut place = format!("{}/{path}/", client.prefix());
    if let Some(query) = head.query() {
        place.push('?');
        place.push_str(query);
    }
    let Ok(place) = HeaderValue::try_from(place) else { return absent() };
    Response::new(StatusCode::PERMANENT_REDIRECT).with_header(LOCATION, place)
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Files");
        match &self.tree {
            Tree::Folder(folder) => debug.field("folder", folder),
            #[cfg(feature = "embed")]
            Tree::Embedded(_) => debug.field("index", &self.index),
        };
        debug
            .field("fallback", &self.fallback)
            .field("cache_bytes", &self.cache_bytes)
            .field("fresh_for", &self.fresh_for)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn what_the_process_has_no_room_for_is_there_later() {
        for (error, status) in [(24, 503), (23, 503), (12, 503), (5, 500)] {
            let response = failed("page.html", &io::Error::from_raw_os_error(error));
            assert_eq!(response.status, status);
            assert_eq!(response.fields.get(&RETRY_AFTER).is_some(), status == 503);
        }
    }
}
