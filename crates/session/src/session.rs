//! A visitor's session, as handlers have it.

use crate::backend::Loaded;
use crate::sessions::Settings;
use http::StatusCode;
use peregrine_web::extract::FromRequestParts;
use peregrine_web::panics::contained;
use peregrine_web::personal::Personal;
use peregrine_web::{Parts, Problem};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

/// Names that begin so are the session's own.
const OWN: &str = "_peregrine.";
/// When the session began, in seconds since 1970.
pub(crate) const BEGUN: &str = "_peregrine.begun";
const FLASHES: &str = "_peregrine.flashes";
/// More messages than this are not kept; the oldest go.
const FLASHES_MAX: usize = 16;

/// What is remembered of a visitor.
///
/// As a handler's argument it needs [`Sessions`](crate::Sessions) around the handler; otherwise the problem has status 500, and
/// `Option<Session>` is `None`. It is loaded when a handler first asks for it, and saved before the response leaves; after that, changes are lost. A
/// visitor of whom nothing is remembered has no cookie, and nothing in the store.
///
/// Of two requests of a visitor at the same time that change it, the one that is answered last says what is kept.
#[derive(Clone)]
pub struct Session(pub(crate) Rc<RefCell<State>>);

#[derive(Clone)]
pub(crate) struct State {
    pub(crate) loaded: Loaded,
    pub(crate) data: HashMap<String, Value>,
    pub(crate) change: Change,
    /// Gets another id, whatever else becomes of it.
    pub(crate) is_renewed: bool,
    /// Nothing is left in it of the session that was loaded.
    pub(crate) is_new: bool,
    /// There is something that whoever hears of success believes to be kept.
    pub(crate) has_added: bool,
}

/// What becomes of the session when the request is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    Changed,
    Destroyed,
}

/// A message for the next page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flash {
    /// What kind of message, such as `error`.
    pub kind: String,
    /// The message.
    pub text: String,
}

impl Session {
    /// The value called `name`. One that is there, but is no `T`, as after a change of the program, counts as absent, and the log
    /// says so.
    #[must_use]
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let state = self.0.borrow();
        let value = state.data.get(name)?;
        match T::deserialize(value) {
            Ok(value) => Some(value),
            Err(error) => {
                contained(
                    || tracing::warn!(target: "peregrine", name, %error, "a value of a session is not what it is read as"),
                );
                None
            }
        }
    }

    /// Remembers a value.
    ///
    /// # Errors
    /// It cannot be written as JSON, or its name begins with `_peregrine.`: a problem of status 500, and the log says more.
    pub fn insert(&self, name: impl Into<String>, value: impl Serialize) -> Result<(), Problem> {
        let name = name.into();
        let value = serde_json::to_value(value).map_err(|error| unwritable(&name, &error))?;
        if name.starts_with(OWN) {
            return Err(unwritable(
                &name,
                &"names that begin with `_peregrine.` are the session's own",
            ));
        }
        let mut state = self.0.borrow_mut();
        if state.data.get(&name) != Some(&value) {
            state.data.insert(name, value);
            state.add();
        }
        Ok(())
    }

    /// Forgets the value called `name`; `false`: there was none.
    pub fn remove(&self, name: &str) -> bool {
        let mut state = self.0.borrow_mut();
        let was_there = !name.starts_with(OWN) && state.data.remove(name).is_some();
        if was_there {
            state.touch();
        }
        was_there
    }

    /// Is nothing remembered?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.borrow().data.keys().all(|name| name.starts_with(OWN) && name != FLASHES)
    }

    /// Gives the session another id: to be called whenever the visitor gets more rights, as by a login, so that nobody who knew the id
    /// before has them too. The old id is worth nothing any more.
    pub fn regenerate(&self) {
        let mut state = self.0.borrow_mut();
        state.is_renewed = true;
        state.add();
    }

    /// Ends the session: forgets everything, here, in the store, and in the browser. What is inserted later in the same request begins a new one.
    pub fn destroy(&self) {
        let mut state = self.0.borrow_mut();
        state.data.clear();
        state.is_renewed = true;
        state.is_new = true;
        state.change = Change::Destroyed;
    }

    /// Keeps a message for the next request that asks for it: what a redirect after a form wants to say. At most 16 are kept.
    pub fn flash(&self, kind: impl Into<String>, text: impl Into<String>) {
        let mut state = self.0.borrow_mut();
        let mut all = state.flashes();
        all.push(Flash { kind: kind.into(), text: text.into() });
        let excess = all.len().saturating_sub(FLASHES_MAX);
        all.drain(..excess);
        // Texts are always JSON.
        state.data.insert(FLASHES.to_owned(), serde_json::to_value(all).unwrap_or_default());
        state.add();
    }

    /// The messages that were kept, each shown once.
    #[must_use]
    pub fn take_flashes(&self) -> Vec<Flash> {
        let mut state = self.0.borrow_mut();
        let all = state.flashes();
        if state.data.remove(FLASHES).is_some() {
            state.touch();
        }
        all
    }
}

impl State {
    fn touch(&mut self) {
        self.change = Change::Changed;
    }

    fn add(&mut self) {
        self.touch();
        self.has_added = true;
    }

    fn flashes(&self) -> Vec<Flash> {
        self.data.get(FLASHES).and_then(|value| Vec::deserialize(value).ok()).unwrap_or_default()
    }
}

fn unwritable(name: &str, error: &dyn fmt::Display) -> Problem {
    contained(
        || tracing::error!(target: "peregrine", name, %error, "a value cannot be kept in a session"),
    );
    let detail = "the server could not keep something in the session; its log says why";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "session-value", detail)
}

/// The session of the request that is being polled.
pub(crate) struct Held {
    pub(crate) settings: Rc<Settings>,
    pub(crate) session: Option<Session>,
}

thread_local! {
    pub(crate) static HELD: Cell<Option<Held>> = const { Cell::new(None) };
}

/// Looks at what the middleware holds, and puts it back.
fn with_held<T>(look: impl FnOnce(&mut Held) -> T) -> Option<T> {
    let mut held = HELD.take()?;
    let value = look(&mut held);
    HELD.set(Some(held));
    Some(value)
}

async fn current(parts: &mut Parts) -> Result<Option<Session>, Problem> {
    let held = with_held(|held| (Rc::clone(&held.settings), held.session.clone()));
    let Some((settings, present)) = held else { return Ok(None) };
    Personal::note(parts);
    if let Some(session) = present {
        return Ok(Some(session));
    }
    let (loaded, data) = settings.load(&parts.head).await?;
    let is_new = loaded.id.is_none();
    let state =
        State { loaded, data, change: Change::None, is_renewed: false, is_new, has_added: false };
    let session = Session(Rc::new(RefCell::new(state)));
    // Somebody else may have loaded it meanwhile: there is one for a request.
    Ok(with_held(|held| held.session.get_or_insert(session).clone()))
}

impl FromRequestParts for Session {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        current(parts).await?.ok_or_else(|| {
            contained(|| tracing::error!(target: "peregrine", "the handler needs a session; add `.with(Sessions::new(store))` around it"));
            let detail = "the server lacks something that it needs for this request; its log says what";
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "missing-sessions", detail)
        })
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        current(parts).await
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be secrets, and so is the id.
        let state = self.0.borrow();
        f.debug_struct("Session")
            .field("names", &state.data.keys())
            .field("change", &state.change)
            .finish()
    }
}
