//! The session middleware: settings, loading and saving.

use crate::backend::{Backend, Data, LoadedSession, started_at};
use crate::clock::{now, seconds};
use crate::cookie::{self, SecurePolicy};
use crate::session::{CURRENT, CurrentSession, STARTED_AT, Session, SessionChange, SessionState};
use http::header::{CACHE_CONTROL, SET_COOKIE};
use http::{HeaderValue, StatusCode};
use peregrine_web::cookies::{CookieKeys, SameSite};
use peregrine_web::extract::RouteRequirements;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::task_local::with_task_local;
use peregrine_web::{IntoResponse, Middleware, Problem, Request, RequestHead, Response, Service};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration as StdDuration;
use time::{Duration, OffsetDateTime};
use tower_sessions_core::session::{Id, Record};
use tower_sessions_core::{SessionStore, session_store};

/// The cookie size that browsers accept, in bytes: name, value and attributes.
const COOKIE_BYTES_MAX: usize = 4096;
/// The default size limit of a session, in bytes of JSON.
const BYTES_MAX: usize = 64 * 1024;

/// Adds sessions to the routes inside, which extract them as [`Session`].
///
/// ```
/// use peregrine::session::{Session, SessionManager};
/// use peregrine::web::Problem;
/// use peregrine::web::cookies::CookieKeys;
/// use peregrine::App;
///
/// async fn visit(session: Session) -> Result<String, Problem> {
///     let visits = session.get::<u32>("visits").unwrap_or(0) + 1;
///     session.insert("visits", visits)?;
///     Ok(format!("visit number {visits}"))
/// }
/// let keys = CookieKeys::new(&[7; 32]); // from the configuration
/// let client = App::new().wrap(SessionManager::cookie_store(keys)).get("/", visit).test();
/// let first = client.get("/").send_blocking();
/// let cookie = first.header("set-cookie").unwrap().split(';').next().unwrap();
/// assert_eq!(client.get("/").header("cookie", cookie).send_blocking().text(), "visit number 2");
/// ```
///
/// | setting | default |
/// |---|---|
/// | [`cookie_name`](Self::cookie_name) | `session` |
/// | cookie attributes | `HttpOnly`, `SameSite=Lax`, `Path=/`, and `Secure` over TLS |
/// | [`idle_timeout`](Self::idle_timeout): lifetime since the last use | 1 day |
/// | [`absolute_timeout`](Self::absolute_timeout): total lifetime | 30 days |
/// | [`bytes_max`](Self::bytes_max) | 64 KiB of JSON; a cookie holds somewhat less than 3 KiB |
///
/// `Secure` is also set if a trusted proxy reports that the client uses TLS.
///
/// Using a session extends its idle time. To save writes, the store gets the new expiry only
/// when a session is loaded and a tenth of the idle time has passed, not on every request.
///
/// A session is saved before the response is sent. If saving fails, the client gets a problem of
/// status 500 instead of the response, so that it never believes that lost changes were saved. If
/// another request or a timeout ends the session while a request uses it, that request's changes
/// are lost, including [`Session::regenerate`]; if it had added something, the response is a
/// problem of status 409. Stores cannot check and write in one step, so a short race remains
/// between the two.
///
/// A session ID from a client is accepted only if the store has it; new sessions always get new
/// IDs. Responses of handlers that extract a session get `Vary: Cookie`, and `Cache-Control:
/// private` unless they set it themselves.
#[doc(alias = "SessionManagerLayer")]
#[doc(alias = "SessionMiddleware")]
#[derive(Clone, Debug)]
#[must_use = "a middleware does nothing until it is added to an application or a scope"]
pub struct SessionManager(Rc<SessionSettings>);

#[derive(Clone)]
pub(crate) struct SessionSettings {
    backend: Backend,
    cookie: cookie::CookieSettings,
    idle_timeout: Duration,
    absolute_timeout: Duration,
    bytes_max: usize,
}

impl SessionManager {
    /// Stores sessions in a `tower-sessions` store (version 0.15), such as `MemoryStore`,
    /// `PostgresStore` or `RedisStore`. All workers share the store: create one `SessionManager`
    /// outside the closure passed to `serve` and clone it in there.
    pub fn new(store: impl SessionStore) -> Self {
        Self::with_backend(Backend::Store(Arc::new(store)))
    }

    /// Stores sessions, encrypted, in the client's cookie instead of on the server. The server
    /// cannot end such a session early: a copied cookie remains usable until it expires.
    #[doc(alias = "CookieSessionStore")]
    pub fn cookie_store(keys: CookieKeys) -> Self {
        Self::with_backend(Backend::Cookie(keys))
    }

    fn with_backend(backend: Backend) -> Self {
        let cookie = cookie::CookieSettings {
            name: "session".to_owned(),
            path: "/".to_owned(),
            domain: None,
            same_site: SameSite::Lax,
            secure: SecurePolicy::SameAsRequest,
            is_browser_session: false,
        };
        let (idle_timeout, absolute_timeout) = (Duration::DAY, Duration::days(30));
        Self(Rc::new(SessionSettings {
            backend,
            cookie,
            idle_timeout,
            absolute_timeout,
            bytes_max: BYTES_MAX,
        }))
    }

    #[cfg(test)]
    pub(crate) fn settings(&self) -> &SessionSettings {
        &self.0
    }

    fn configure(mut self, update: impl FnOnce(&mut SessionSettings)) -> Self {
        update(Rc::make_mut(&mut self.0));
        self
    }

    /// Sets the cookie's name. Over TLS, prefer `__Host-session` with
    /// [`SessionManager::always_secure`]: no other host can set such a cookie.
    pub fn cookie_name(self, name: impl Into<String>) -> Self {
        self.configure(|settings| settings.cookie.name = name.into())
    }

    /// Sets the path: browsers send the cookie only with requests below it.
    pub fn cookie_path(self, path: impl Into<String>) -> Self {
        self.configure(|settings| settings.cookie.path = path.into())
    }

    /// Sends the cookie to this domain and its subdomains. By default it is sent only to the host
    /// that set it.
    pub fn cookie_domain(self, domain: impl Into<String>) -> Self {
        self.configure(|settings| settings.cookie.domain = Some(domain.into()))
    }

    /// Sets whether browsers send the cookie with requests initiated by other sites. With `Lax`,
    /// the default, they do so only when a user follows a link.
    pub fn same_site(self, same_site: SameSite) -> Self {
        self.configure(|settings| settings.cookie.same_site = same_site)
    }

    /// Always sets `Secure`, even over plain HTTP, where browsers then reject the cookie.
    pub fn always_secure(self) -> Self {
        self.configure(|settings| settings.cookie.secure = SecurePolicy::Always)
    }

    /// Makes the cookie last until the browser closes, or the session ends, whichever is first.
    #[doc(alias = "on_session_end")]
    #[doc(alias = "BrowserSession")]
    pub fn expire_on_browser_close(self) -> Self {
        self.configure(|settings| settings.cookie.is_browser_session = true)
    }

    /// Sets how long a session lasts without use. The default is 1 day.
    #[doc(alias = "on_inactivity")]
    pub fn idle_timeout(self, time: StdDuration) -> Self {
        self.configure(|settings| {
            settings.idle_timeout = Duration::try_from(time).unwrap_or(Duration::MAX)
        })
    }

    /// Sets how long a session lasts, even if it is in use. The default is 30 days.
    #[doc(alias = "max_age")]
    pub fn absolute_timeout(self, time: StdDuration) -> Self {
        self.configure(|settings| {
            settings.absolute_timeout = Duration::try_from(time).unwrap_or(Duration::MAX)
        })
    }

    /// Sets the size limit of a session in bytes of JSON. A larger session is not saved, and the
    /// response is a problem of status 500. The default is 64 KiB.
    pub fn bytes_max(self, bytes: usize) -> Self {
        self.configure(|settings| settings.bytes_max = bytes)
    }
}

impl SessionSettings {
    /// Loads the session of a request.
    pub(crate) async fn load(&self, head: &RequestHead) -> Result<(LoadedSession, Data), Problem> {
        let Some(value) = self.cookie.value(head) else { return Ok(<_>::default()) };
        let record = self.backend.load(&self.cookie.name, value, self.absolute_timeout).await;
        let record =
            record.map_err(|error| store_problem("a session could not be loaded", &error))?;
        let loaded = LoadedSession { has_cookie: true, ..LoadedSession::default() };
        let Some(mut record) = record else { return Ok((loaded, Data::default())) };
        let expiry = self.record_start(&mut record.data);
        // Extend the lifetime now rather than after the request: a request may take long, and
        // another one may change or end the session meanwhile. The new expiry may also be earlier,
        // if another program saved the session or the idle timeout was longer before.
        let was_touched = (expiry - record.expiry_date).abs() >= self.idle_timeout / 10;
        if was_touched {
            record.expiry_date = expiry;
            self.backend.save(&record).await.map_err(save_problem)?;
        }
        let Record { id, data, expiry_date } = record;
        Ok((LoadedSession { id: Some(id), expiry: Some(expiry_date), was_touched, ..loaded }, data))
    }

    /// Saves the session. Returns the value of `Set-Cookie` if the client needs one.
    async fn save(
        &self,
        session: &Session,
        is_secure: bool,
    ) -> Result<Option<HeaderValue>, Problem> {
        let SessionState { loaded, mut data, change, regenerate_id, is_new, has_inserted } =
            session.0.borrow().clone();
        if change == SessionChange::Unchanged && !loaded.was_touched {
            return Ok(None);
        }
        // A request can take long, for example if its client sends the body slowly. A session that
        // was logged out meanwhile must not be recreated, even under another ID. The browser may
        // already have another session, so its cookie is not removed.
        if let Some(id) = loaded.id.filter(|_| !is_new)
            && !self.backend.exists(id, &loaded).await.map_err(save_problem)?
        {
            return if has_inserted { Err(session_ended()) } else { Ok(None) };
        }
        if change == SessionChange::Destroyed
            || (session.is_empty() && change == SessionChange::Modified)
        {
            if let Some(id) = loaded.id {
                self.backend.delete(id).await.map_err(save_problem)?;
            }
            return Ok(self.cookie.expire_cookie(is_secure).filter(|_| loaded.has_cookie));
        }
        let mut expiry = self.record_start(&mut data);
        if change == SessionChange::Modified {
            self.check_size(&data)?;
        } else {
            // Only the cookie is sent again, with the expiry that `load` saved.
            expiry = loaded.expiry.unwrap_or(expiry);
        }
        let mut record = Record { id: Id::default(), data, expiry_date: expiry };
        match loaded.id {
            Some(id) if !regenerate_id => {
                record.id = id;
                if change == SessionChange::Modified {
                    self.backend.save(&record).await.map_err(save_problem)?;
                }
            }
            // Create the new session before deleting the old one.
            old_id => {
                self.backend.create(&mut record).await.map_err(save_problem)?;
                if let Some(old_id) = old_id {
                    self.backend.delete(old_id).await.map_err(save_problem)?;
                }
            }
        }
        let value = self.backend.cookie_value(&self.cookie.name, &record).map_err(save_problem)?;
        // The cookie outlives the session by a fifth of the idle time: a response that extended it
        // may have been lost, and the next extension comes a tenth of the idle time later.
        let max_age = expiry - now() + self.idle_timeout / 5;
        let field = self.cookie.set_cookie(&value, max_age, is_secure);
        let field = field.filter(|field| field.len() <= COOKIE_BYTES_MAX);
        field.map(Some).ok_or_else(|| {
            too_large(&format!("its cookie would be longer than {COOKIE_BYTES_MAX} bytes"))
        })
    }

    /// Records when the session started. Returns when it expires unless it is used again.
    pub(crate) fn record_start(&self, data: &mut Data) -> OffsetDateTime {
        let started = started_at(data).unwrap_or_else(now);
        data.insert(STARTED_AT.to_owned(), seconds(started).into());
        now().saturating_add(self.idle_timeout).min(started.saturating_add(self.absolute_timeout))
    }

    /// Checks the size limit.
    fn check_size(&self, data: &Data) -> Result<(), Problem> {
        let length = serde_json::to_vec(data).map_or(usize::MAX, |json| json.len());
        if length <= self.bytes_max {
            return Ok(());
        }
        Err(too_large(&format!(
            "it has {length} bytes of JSON, and the limit is {}; see SessionManager::bytes_max",
            self.bytes_max
        )))
    }
}

fn store_problem(message: &str, error: &session_store::Error) -> Problem {
    catch_subscriber_panic(|| tracing::error!(target: "peregrine", %error, "{message}"));
    let detail = "The server could not reach its session store. Try again later.";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "session-store", detail)
}

fn save_problem(error: session_store::Error) -> Problem {
    store_problem("a session could not be saved", &error)
}

/// The response if a session ended while a request added something to it.
fn session_ended() -> Problem {
    catch_subscriber_panic(|| {
        tracing::warn!(
            target: "peregrine",
            "a session ended while a request that changed it was served, and the change is lost: another request \
             ended it, or SessionManager::idle_timeout or absolute_timeout is shorter than the request took"
        );
    });
    let detail = "The session ended while the server handled the request. Try again.";
    Problem::new(StatusCode::CONFLICT, "session-ended", detail)
}

fn too_large(reason: &str) -> Problem {
    catch_subscriber_panic(
        || tracing::error!(target: "peregrine", "a session is too large to be saved: {reason}"),
    );
    let detail = "The session is too large; the server's log has details.";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "session-too-large", detail)
}

impl Middleware for SessionManager {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        let is_secure = request.client().is_secure();
        let current = CurrentSession { settings: Rc::clone(&self.0), session: None };
        let (mut response, current) = with_task_local(&CURRENT, current, request, next).await;
        let Some(session) = current.and_then(|current| current.session) else { return response };
        match self.0.save(&session, is_secure).await {
            Ok(field) => {
                if let Some(field) = field {
                    response.headers.append(SET_COOKIE, field);
                }
                response.headers.add_vary("cookie");
                response
                    .headers
                    .insert_if_not_present(CACHE_CONTROL, HeaderValue::from_static("private"));
                response
            }
            Err(problem) => problem.into_response(),
        }
    }

    fn require(&self, requirements: &mut RouteRequirements) {
        let mut errors = self.0.cookie.config_errors();
        if self.0.idle_timeout <= Duration::ZERO || self.0.absolute_timeout <= Duration::ZERO {
            errors.push(
                "idle_timeout(..) and absolute_timeout(..) must be more than zero".to_owned(),
            );
        }
        for error in errors {
            requirements.config_error(format!("SessionManager: {error}"));
        }
    }
}

impl fmt::Debug for SessionSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionSettings")
            .field("backend", &self.backend)
            .field("cookie", &self.cookie)
            .field("idle", &self.idle_timeout)
            .field("absolute", &self.absolute_timeout)
            .finish_non_exhaustive()
    }
}
