//! Sessions identified by a cookie; an extractor gives handlers the logged-in user.

use axum::Router;
use axum::extract::{Form, FromRef, FromRequestParts, State};
use axum::http::HeaderMap;
use axum::http::header::{COOKIE, SET_COOKIE};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

const NAME: &str = "session";

/// The application.
pub fn app() -> Router {
    Router::new()
        .route("/", get(home))
        .route("/login", post(log_in))
        .route("/logout", post(log_out))
        .route("/secret", get(secret))
        .with_state(Sessions::default())
}

#[derive(Clone, Default)]
struct Sessions(Arc<Mutex<Stored>>);

/// User names by session. A real program uses random session ids.
#[derive(Default)]
struct Stored {
    last_id: u64,
    names: BTreeMap<u64, String>,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, Stored> {
        self.0.lock().expect("no panic while the lock is held")
    }
}

/// A logged-in user.
struct User {
    session: u64,
    name: String,
}

impl<S> FromRequestParts<S> for User
where
    Sessions: FromRef<S>,
    S: Send + Sync,
{
    type Rejection = Redirect;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Redirect> {
        let session = session(&parts.headers).ok_or_else(|| Redirect::to("/"))?;
        let sessions = Sessions::from_ref(state);
        let name = sessions.lock().names.get(&session).cloned();
        name.map(|name| Self { session, name }).ok_or_else(|| Redirect::to("/"))
    }
}

/// The session id from the cookies. There may be several Cookie fields.
fn session(fields: &HeaderMap) -> Option<u64> {
    let values = fields.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, _)| *name == NAME)
        .and_then(|(_, value)| value.parse().ok())
}

async fn home(user: Result<User, Redirect>) -> String {
    user.map_or_else(|_| "Who are you?".to_owned(), |user| format!("Hello, {}!", user.name))
}

async fn secret(user: User) -> String {
    format!("{}, this is for you.", user.name)
}

#[derive(Deserialize)]
struct Login {
    name: String,
}

async fn log_in(State(sessions): State<Sessions>, Form(login): Form<Login>) -> Response {
    let mut stored = sessions.lock();
    stored.last_id += 1;
    let id = stored.last_id;
    stored.names.insert(id, login.name);
    let cookie = format!("{NAME}={id}; SameSite=Lax; HttpOnly; Path=/");
    ([(SET_COOKIE, cookie)], Redirect::to("/secret")).into_response()
}

async fn log_out(State(sessions): State<Sessions>, user: User) -> Response {
    sessions.lock().names.remove(&user.session);
    ([(SET_COOKIE, format!("{NAME}=; Max-Age=0; Path=/"))], Redirect::to("/")).into_response()
}
