//! The middleware.

use crate::backend::{Backend, Data, Loaded, begun};
use crate::clock::{now, seconds};
use crate::cookie::{self, Secure};
use crate::session::{BEGUN, Change, HELD, Held, Session, State};
use http::header::{CACHE_CONTROL, SET_COOKIE};
use http::{HeaderValue, StatusCode};
use peregrine_web::cookies::{CookieKeys, SameSite};
use peregrine_web::held::holding;
use peregrine_web::panics::contained;
use peregrine_web::requirements::Requirements;
use peregrine_web::{Head, IntoResponse, Middleware, Problem, Request, Response, Service};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration as StdDuration;
use time::{Duration, OffsetDateTime};
use tower_sessions_core::session::{Id, Record};
use tower_sessions_core::{SessionStore, session_store};

/// The longest cookie that browsers take, in bytes: name, value and attributes.
const COOKIE_BYTES_MAX: usize = 4096;
/// What a session may remember, in bytes of JSON.
const BYTES_MAX: usize = 64 * 1024;

/// Gives the routes inside sessions: [`Session`] as a handler's argument.
///
/// ```
/// use peregrine::session::{Session, Sessions};
/// use peregrine::web::Problem;
/// use peregrine::web::cookies::CookieKeys;
/// use peregrine::App;
///
/// async fn visit(session: Session) -> Result<String, Problem> {
///     let visits = session.get::<u32>("visits").unwrap_or(0) + 1;
///     session.insert("visits", visits)?;
///     Ok(format!("visit number {visits}"))
/// }
/// let secret = [7; 32]; // from the configuration
/// let client = App::new().with(Sessions::in_cookies(CookieKeys::new(&secret))).get("/", visit).test();
/// let first = client.get("/").send_now();
/// let cookie = first.header("set-cookie").unwrap().split(';').next().unwrap();
/// assert_eq!(client.get("/").header("cookie", cookie).send_now().text(), "visit number 2");
/// ```
///
/// | setting | default |
/// |---|---|
/// | [`cookie_name`](Self::cookie_name) | `session` |
/// | attributes of the cookie | `HttpOnly`, `SameSite=Lax`, `Path=/`, and `Secure` where the client speaks TLS, with a trusted proxy too |
/// | [`idle`](Self::idle): ends when not used for so long | a day |
/// | [`absolute`](Self::absolute): ends in any case | 30 days |
/// | [`bytes_max`](Self::bytes_max): what one may remember | 64 KiB of JSON; in cookies what fits into one, somewhat less than 3 KiB |
///
/// Using a session keeps it from ending for want of use; that is written down when it is loaded and a tenth of the time is over, not with every request.
/// A session is saved before the response leaves. If that fails, the response is a problem of status 500 in its place, so that nobody
/// believes what was not kept. What a request does to a session that has ended meanwhile, by another request or for want of use, is lost,
/// [`Session::regenerate`] too: where something was to be kept, the response is a problem of status 409. Stores cannot look and write in one step, so that this does not cover the moment between the two. An id that a browser brings counts only if the store has it; new sessions always have new ones. Responses of handlers
/// that asked for a session have `Cache-Control: private`, unless they say something else, and `Vary: Cookie`.
#[derive(Clone, Debug)]
#[must_use = "a middleware does nothing until it is added to an application or a scope"]
pub struct Sessions(Rc<Settings>);

#[derive(Clone)]
pub(crate) struct Settings {
    backend: Backend,
    cookie: cookie::Settings,
    idle: Duration,
    absolute: Duration,
    bytes_max: usize,
}

impl Sessions {
    /// Keeps sessions in a store of `tower-sessions`: `MemoryStore`, `PostgresStore`, `RedisStore` and so on, of its version 0.15. All
    /// workers share it: make it outside of what `serve` is given, and clone it in.
    pub fn new(store: impl SessionStore) -> Self {
        Self::over(Backend::Store(Arc::new(store)))
    }

    /// Keeps sessions in the visitor's cookie, encrypted. There is no store, and the server cannot end one before its time: whoever has copied a cookie can use it until
    /// then.
    pub fn in_cookies(keys: CookieKeys) -> Self {
        Self::over(Backend::Cookie(keys))
    }

    fn over(backend: Backend) -> Self {
        let cookie = cookie::Settings {
            name: "session".to_owned(),
            path: "/".to_owned(),
            domain: None,
            same_site: SameSite::Lax,
            secure: Secure::AsRequested,
            ends_with_browser: false,
        };
        let (idle, absolute) = (Duration::DAY, Duration::days(30));
        Self(Rc::new(Settings { backend, cookie, idle, absolute, bytes_max: BYTES_MAX }))
    }

    #[cfg(test)]
    pub(crate) fn settings(&self) -> &Settings {
        &self.0
    }

    fn set(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(Rc::make_mut(&mut self.0));
        self
    }

    /// The cookie's name. Over TLS `__Host-session` is best, with [`Sessions::always_secure`]: no other host can set it.
    pub fn cookie_name(self, name: impl Into<String>) -> Self {
        self.set(|settings| settings.cookie.name = name.into())
    }

    /// The cookie is sent for paths below this one only.
    pub fn path(self, path: impl Into<String>) -> Self {
        self.set(|settings| settings.cookie.path = path.into())
    }

    /// The cookie is sent to this host and all below it. By default it is sent to the host that set it.
    pub fn domain(self, domain: impl Into<String>) -> Self {
        self.set(|settings| settings.cookie.domain = Some(domain.into()))
    }

    /// Whether the cookie is sent with requests that other sites make the browser send. `Lax`, the default, sends it when a visitor follows a link.
    pub fn same_site(self, same_site: SameSite) -> Self {
        self.set(|settings| settings.cookie.same_site = same_site)
    }

    /// The cookie is for TLS only, wherever it is set. Browsers refuse it otherwise.
    pub fn always_secure(self) -> Self {
        self.set(|settings| settings.cookie.secure = Secure::Always)
    }

    /// The cookie ends with the browser, if not before.
    pub fn until_browser_closes(self) -> Self {
        self.set(|settings| settings.cookie.ends_with_browser = true)
    }

    /// A session ends that was not used for so long. The default is a day.
    pub fn idle(self, time: StdDuration) -> Self {
        self.set(|settings| settings.idle = Duration::try_from(time).unwrap_or(Duration::MAX))
    }

    /// A session ends after so long, however much it is used. The default is 30 days.
    pub fn absolute(self, time: StdDuration) -> Self {
        self.set(|settings| settings.absolute = Duration::try_from(time).unwrap_or(Duration::MAX))
    }

    /// How many bytes of JSON a session may be. A larger one is not kept, and the response is a problem of status 500. The default is 64 KiB.
    pub fn bytes_max(self, bytes: usize) -> Self {
        self.set(|settings| settings.bytes_max = bytes)
    }
}

impl Settings {
    /// The session of a request.
    pub(crate) async fn load(&self, head: &Head) -> Result<(Loaded, Data), Problem> {
        let Some(value) = self.cookie.value(head) else { return Ok(<_>::default()) };
        let record = self.backend.load(&self.cookie.name, value, self.absolute).await;
        let record = record.map_err(|error| failed("a session could not be loaded", &error))?;
        let loaded = Loaded { has_cookie: true, ..Loaded::default() };
        let Some(mut record) = record else { return Ok((loaded, Data::default())) };
        let expiry = self.stamp(&mut record.data);
        // Now, not when the request is over: that may take long, and another one may have changed it or ended it by then.
        // It may also be sooner, where another program kept it, or this one gave sessions more time before.
        let is_prolonged = (expiry - record.expiry_date).abs() >= self.idle / 10;
        if is_prolonged {
            record.expiry_date = expiry;
            self.backend.save(&record).await.map_err(unsaved)?;
        }
        let Record { id, data, expiry_date } = record;
        Ok((Loaded { id: Some(id), expiry: Some(expiry_date), is_prolonged, ..loaded }, data))
    }

    /// Keeps what became of the session. The field that tells the browser, if there is something to tell.
    async fn save(
        &self,
        session: &Session,
        is_secure: bool,
    ) -> Result<Option<HeaderValue>, Problem> {
        let State { loaded, mut data, change, is_renewed, is_new, has_added } =
            session.0.borrow().clone();
        if change == Change::None && !loaded.is_prolonged {
            return Ok(None);
        }
        // A request may take long, as slowly as its client sends the body: a session from which the visitor has logged out meanwhile
        // must not come back, nor under another id. The browser may have another one by now, so nothing is said to it.
        if let Some(id) = loaded.id.filter(|_| !is_new)
            && !self.backend.is_there(id, &loaded).await.map_err(unsaved)?
        {
            return if has_added { Err(ended()) } else { Ok(None) };
        }
        if change == Change::Destroyed || (session.is_empty() && change == Change::Changed) {
            if let Some(id) = loaded.id {
                self.backend.delete(id).await.map_err(unsaved)?;
            }
            return Ok(self.cookie.remove(is_secure).filter(|_| loaded.has_cookie));
        }
        let mut expiry = self.stamp(&mut data);
        if change == Change::Changed {
            self.check_length(&data)?;
        } else {
            expiry = loaded.expiry.unwrap_or(expiry);
        }
        let mut record = Record { id: Id::default(), data, expiry_date: expiry };
        match loaded.id {
            Some(id) if !is_renewed => {
                record.id = id;
                if change == Change::Changed {
                    self.backend.save(&record).await.map_err(unsaved)?;
                }
            }
            // The new one is there before the old one is not.
            old => {
                self.backend.create(&mut record).await.map_err(unsaved)?;
                if let Some(old) = old {
                    self.backend.delete(old).await.map_err(unsaved)?;
                }
            }
        }
        let value = self.backend.value(&self.cookie.name, &record).map_err(unsaved)?;
        // An answer that told the browser of the use of a session may have been lost, and the next one that does comes a tenth later.
        let lasts = expiry - now() + self.idle / 5;
        let field = self.cookie.set(&value, lasts, is_secure);
        let field = field.filter(|field| field.len() <= COOKIE_BYTES_MAX);
        field.map(Some).ok_or_else(|| {
            too_large(&format!("its cookie would be longer than {COOKIE_BYTES_MAX} bytes"))
        })
    }

    /// Writes down in the session when it began. When it ends unless it is used.
    pub(crate) fn stamp(&self, data: &mut Data) -> OffsetDateTime {
        let begun = begun(data).unwrap_or_else(now);
        data.insert(BEGUN.to_owned(), seconds(begun).into());
        now().saturating_add(self.idle).min(begun.saturating_add(self.absolute))
    }

    fn check_length(&self, data: &Data) -> Result<(), Problem> {
        let length = serde_json::to_vec(data).map_or(usize::MAX, |json| json.len());
        if length <= self.bytes_max {
            return Ok(());
        }
        Err(too_large(&format!(
            "it has {length} bytes of JSON, and may have {}; see Sessions::bytes_max",
            self.bytes_max
        )))
    }
}

fn failed(what: &str, error: &session_store::Error) -> Problem {
    contained(|| tracing::error!(target: "peregrine", %error, "{what}"));
    let detail = "The server could not reach what it remembers of its visitors. Try again later.";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "session-store", detail)
}

fn unsaved(error: session_store::Error) -> Problem {
    failed("a session could not be saved", &error)
}

/// The session has ended while a request added something to it.
fn ended() -> Problem {
    contained(|| {
        tracing::warn!(
            target: "peregrine",
            "a session ended while a request that changed it was served, so that nothing of the change is kept: another request \
             ended it, or Sessions::idle or Sessions::absolute is shorter than the request took"
        );
    });
    let detail =
        "What the server remembers of its visitor ended while it served the request. Try again.";
    Problem::new(StatusCode::CONFLICT, "session-ended", detail)
}

fn too_large(why: &str) -> Problem {
    contained(|| tracing::error!(target: "peregrine", "a session is too large to be kept: {why}"));
    let detail = "The server remembers too much of this visitor; its log says more.";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "session-too-large", detail)
}

impl Middleware for Sessions {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        let is_secure = request.client().is_secure();
        let held = Held { settings: Rc::clone(&self.0), session: None };
        let (mut response, held) = holding(&HELD, held, request, next).await;
        let Some(session) = held.and_then(|held| held.session) else { return response };
        match self.0.save(&session, is_secure).await {
            Ok(field) => {
                if let Some(field) = field {
                    response.fields.append(SET_COOKIE, field);
                }
                response.fields.vary("cookie");
                response.fields.set_default(CACHE_CONTROL, HeaderValue::from_static("private"));
                response
            }
            Err(problem) => problem.into_response(),
        }
    }

    fn require(&self, requirements: &mut Requirements) {
        let mut faults = self.0.cookie.faults();
        if self.0.idle <= Duration::ZERO || self.0.absolute <= Duration::ZERO {
            faults.push("idle(..) and absolute(..) must be more than zero".to_owned());
        }
        for fault in faults {
            requirements.fault(format!("Sessions: {fault}"));
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("backend", &self.backend)
            .field("cookie", &self.cookie)
            .field("idle", &self.idle)
            .field("absolute", &self.absolute)
            .finish_non_exhaustive()
    }
}
