//! The session, as handlers use it.

use crate::backend::LoadedSession;
use crate::manager::SessionSettings;
use http::StatusCode;
use peregrine_web::extract::FromRequestParts;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::private_response::PrivateResponse;
use peregrine_web::{Parts, Problem};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

/// Prefix of names reserved for this crate.
const RESERVED_PREFIX: &str = "_peregrine.";
/// When the session started, in seconds since 1970.
pub(crate) const STARTED_AT: &str = "_peregrine.begun";
const FLASH_KEY: &str = "_peregrine.flashes";
/// The maximum number of stored flash messages; older ones are dropped.
const FLASHES_MAX: usize = 16;

/// The data that the server keeps about a client.
///
/// As a handler's argument it needs [`SessionManager`](crate::SessionManager) around the handler;
/// otherwise the problem has status 500, and `Option<Session>` is `None`. The session is
/// loaded when it is first extracted and saved before the response is sent; later changes are lost.
/// A client with an empty session has no cookie and no entry in the store.
///
/// If two concurrent requests change the same session, the one that finishes last wins.
#[derive(Clone)]
pub struct Session(pub(crate) Rc<RefCell<SessionState>>);

#[derive(Clone)]
pub(crate) struct SessionState {
    pub(crate) loaded: LoadedSession,
    pub(crate) data: HashMap<String, Value>,
    pub(crate) change: SessionChange,
    /// The session gets a new ID when it is saved.
    pub(crate) regenerate_id: bool,
    /// The loaded session was destroyed, or there was none.
    pub(crate) is_new: bool,
    /// Something was added. If saving it fails, so must the request, or the client would believe
    /// that it was saved.
    pub(crate) has_inserted: bool,
}

/// The action to take on the session at the end of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionChange {
    Unchanged,
    Modified,
    Destroyed,
}

/// A message for the next page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flash {
    /// The kind of message, such as `error`.
    pub level: String,
    /// The text.
    pub message: String,
}

impl Session {
    /// Returns the value called `name`. A value that cannot be deserialized as `T`, for example
    /// after an update of the program, counts as absent and is logged.
    #[must_use]
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let state = self.0.borrow();
        let value = state.data.get(name)?;
        match T::deserialize(value) {
            Ok(value) => Some(value),
            Err(error) => {
                catch_subscriber_panic(
                    || tracing::warn!(target: "peregrine", name, %error, "a session value does not have the expected type"),
                );
                None
            }
        }
    }

    /// Stores a value.
    ///
    /// # Errors
    /// If the value cannot be serialized as JSON, or its name begins with `_peregrine.`: a problem
    /// of status 500, with details in the log.
    pub fn insert(&self, name: impl Into<String>, value: impl Serialize) -> Result<(), Problem> {
        let name = name.into();
        let value =
            serde_json::to_value(value).map_err(|error| serialize_problem(&name, &error))?;
        if name.starts_with(RESERVED_PREFIX) {
            return Err(serialize_problem(
                &name,
                &"names that begin with `_peregrine.` are reserved",
            ));
        }
        let mut state = self.0.borrow_mut();
        if state.data.get(&name) != Some(&value) {
            state.data.insert(name, value);
            state.mark_inserted();
        }
        Ok(())
    }

    /// Removes the value called `name`. Returns whether it existed.
    pub fn remove(&self, name: &str) -> bool {
        let mut state = self.0.borrow_mut();
        let existed = !name.starts_with(RESERVED_PREFIX) && state.data.remove(name).is_some();
        if existed {
            state.mark_modified();
        }
        existed
    }

    /// Whether the session has no values and no flash messages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0
            .borrow()
            .data
            .keys()
            .all(|name| name.starts_with(RESERVED_PREFIX) && name != FLASH_KEY)
    }

    /// Gives the session a new ID and invalidates the old one. Call this whenever the client gains
    /// rights, such as at login, so that anyone who knew the old ID does not gain them too.
    pub fn regenerate(&self) {
        let mut state = self.0.borrow_mut();
        state.regenerate_id = true;
        state.mark_inserted();
    }

    /// Ends the session: deletes its data here, in the store and in the browser. Values inserted
    /// later in the same request begin a new session.
    pub fn destroy(&self) {
        let mut state = self.0.borrow_mut();
        state.data.clear();
        state.regenerate_id = true;
        state.is_new = true;
        state.change = SessionChange::Destroyed;
    }

    /// Stores a message for the next request that calls [`take_flashes`](Self::take_flashes), such
    /// as the result of a form before a redirect. At most 16 messages are stored; older ones are
    /// dropped.
    pub fn flash(&self, level: impl Into<String>, message: impl Into<String>) {
        let mut state = self.0.borrow_mut();
        let mut flashes = state.flashes();
        flashes.push(Flash { level: level.into(), message: message.into() });
        let excess = flashes.len().saturating_sub(FLASHES_MAX);
        flashes.drain(..excess);
        // Strings always serialize.
        state.data.insert(FLASH_KEY.to_owned(), serde_json::to_value(flashes).unwrap_or_default());
        state.mark_inserted();
    }

    /// Removes and returns the stored messages.
    #[must_use]
    pub fn take_flashes(&self) -> Vec<Flash> {
        let mut state = self.0.borrow_mut();
        let flashes = state.flashes();
        if state.data.remove(FLASH_KEY).is_some() {
            state.mark_modified();
        }
        flashes
    }
}

impl SessionState {
    fn mark_modified(&mut self) {
        self.change = SessionChange::Modified;
    }

    fn mark_inserted(&mut self) {
        self.mark_modified();
        self.has_inserted = true;
    }

    fn flashes(&self) -> Vec<Flash> {
        self.data.get(FLASH_KEY).and_then(|value| Vec::deserialize(value).ok()).unwrap_or_default()
    }
}

fn serialize_problem(name: &str, error: &dyn fmt::Display) -> Problem {
    catch_subscriber_panic(
        || tracing::error!(target: "peregrine", name, %error, "a value cannot be saved in a session"),
    );
    let detail = "the server could not save a session value; its log says why";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "session-value", detail)
}

/// The session of the request that is currently polled.
pub(crate) struct CurrentSession {
    pub(crate) settings: Rc<SessionSettings>,
    pub(crate) session: Option<Session>,
}

thread_local! {
    pub(crate) static CURRENT: Cell<Option<CurrentSession>> = const { Cell::new(None) };
}

/// Calls `update` with the current request's context, and stores the context again.
fn with_current<T>(update: impl FnOnce(&mut CurrentSession) -> T) -> Option<T> {
    let mut context = CURRENT.take()?;
    let value = update(&mut context);
    CURRENT.set(Some(context));
    Some(value)
}

/// Returns the session of the request, loading it on first use. `None` without the middleware.
async fn current_session(parts: &mut Parts) -> Result<Option<Session>, Problem> {
    let context = with_current(|context| (Rc::clone(&context.settings), context.session.clone()));
    let Some((settings, existing)) = context else { return Ok(None) };
    PrivateResponse::mark(parts);
    if let Some(session) = existing {
        return Ok(Some(session));
    }
    let (loaded, data) = settings.load(&parts.head).await?;
    let is_new = loaded.id.is_none();
    let state = SessionState {
        loaded,
        data,
        change: SessionChange::Unchanged,
        regenerate_id: false,
        is_new,
        has_inserted: false,
    };
    let session = Session(Rc::new(RefCell::new(state)));
    // A concurrent future of the same request may have loaded the session meanwhile: use that one.
    Ok(with_current(|context| context.session.get_or_insert(session).clone()))
}

impl FromRequestParts for Session {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        current_session(parts).await?.ok_or_else(|| {
            catch_subscriber_panic(|| tracing::error!(target: "peregrine", "the handler needs a session; add `.wrap(SessionManager::new(store))` around it"));
            let detail = "the server lacks something that it needs for this request; its log says what";
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "missing-sessions", detail)
        })
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        current_session(parts).await
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values and the ID may be secret.
        let state = self.0.borrow();
        f.debug_struct("Session")
            .field("names", &state.data.keys())
            .field("change", &state.change)
            .finish()
    }
}
