//! Values that the application or a middleware provides.

use super::FromRequestParts;
use crate::problem::Problem;
use crate::request::Parts;
use crate::requirements::Requirements;
use crate::respond::IntoResponseParts;
use crate::response::Response;
use http::StatusCode;
use std::any::type_name;

/// A clone of the application's state of type `T`, which was given with `.state(value)`.
///
/// That there is one is checked when the application is built. Share what is costly to clone in an
/// `Rc` (per worker) or an `Arc`. `Option<State<T>>` is `None` where there is no such state.
///
/// ```
/// use peregrine_web::extract::State;
/// use std::{cell::Cell, rc::Rc};
///
/// async fn count(State(counter): State<Rc<Cell<u64>>>) -> String {
///     counter.set(counter.get() + 1);
///     format!("request number {}", counter.get())
/// }
/// # let _ = count;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State<T>(pub T);

/// A clone of the value of type `T` that a middleware attached to this request.
///
/// Without one the problem has status 500, because the middleware is missing or did not run;
/// `Option<Extension<T>>` is `None`. Before the body of a response it attaches the value to that.
///
/// ```
/// use peregrine_web::extract::Extension;
///
/// #[derive(Clone)]
/// struct User(String);
///
/// async fn who(Extension(user): Extension<User>) -> String {
///     user.0
/// }
/// # let _ = who;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extension<T>(pub T);

impl<T: Clone + 'static> FromRequestParts for State<T> {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        parts.states().get::<T>().cloned().map(Self).ok_or_else(|| {
            absent(
                "missing-state",
                type_name::<T>(),
                "give it to the application with `.state(..)`",
            )
        })
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        Ok(parts.states().get::<T>().cloned().map(Self))
    }

    fn require(requirements: &mut Requirements) {
        requirements.state::<T>();
    }
}

impl<T: Clone + Send + Sync + 'static> FromRequestParts for Extension<T> {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        extension(parts).map(Self).ok_or_else(|| {
            absent(
                "missing-extension",
                type_name::<T>(),
                "add the middleware that attaches it, outside this handler",
            )
        })
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        Ok(extension(parts).map(Self))
    }
}

fn extension<T: Clone + Send + Sync + 'static>(parts: &Parts) -> Option<T> {
    parts.extensions().get::<T>().cloned()
}

/// What the handler's developer reads: the peer can do nothing about it.
fn absent(kind: &'static str, name: &'static str, remedy: &str) -> Problem {
    let detail = format!("the handler needs a `{name}`, but there is none; {remedy}");
    tracing::error!(kind, "{detail}");
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, kind, detail)
}

impl<T: Clone + Send + Sync + 'static> IntoResponseParts for Extension<T> {
    fn into_response_parts(self, response: &mut Response) -> Result<(), Problem> {
        response.extensions_mut().insert(self.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{from_parts, get, now, parts_with};
    use super::*;
    use crate::respond::IntoResponse;
    use crate::state::States;
    use std::any::TypeId;
    use std::rc::Rc;

    #[test]
    fn a_state_is_cloned_and_required() {
        let mut states = States::default();
        states.insert(Rc::new(7));
        let State(seven) =
            now(from_parts::<State<Rc<i32>>>(&mut parts_with(states))).expect("there");
        assert_eq!(*seven, 7);
        let mut requirements = Requirements::default();
        State::<Rc<i32>>::require(&mut requirements);
        <Option<State<u8>> as FromRequestParts>::require(&mut requirements);
        let needed: Vec<_> = requirements.states().map(|(id, _)| id).collect();
        assert_eq!(needed, [TypeId::of::<Rc<i32>>()]);
    }

    #[test]
    fn what_is_missing_is_named_with_the_remedy() {
        let mut parts = get("/").parts;
        let state = now(State::<u8>::from_request_parts(&mut parts)).expect_err("none");
        assert_eq!((state.status.as_u16(), state.kind.as_ref()), (500, "missing-state"));
        assert!(state.detail.contains("`u8`") && state.detail.contains(".state("));
        let extension = now(Extension::<u8>::from_request_parts(&mut parts)).expect_err("none");
        assert_eq!(
            (extension.status.as_u16(), extension.kind.as_ref()),
            (500, "missing-extension")
        );
        assert!(extension.detail.contains("`u8`") && extension.detail.contains("middleware"));
        assert_eq!(now(from_parts::<Option<State<u8>>>(&mut parts)), Ok(None));
        assert_eq!(now(from_parts::<Option<Extension<u8>>>(&mut parts)), Ok(None));
    }

    #[test]
    fn an_extension_is_what_was_attached() {
        let mut parts = get("/").parts;
        parts.extensions_mut().insert("lanner");
        assert_eq!(now(from_parts(&mut parts)), Ok(Extension("lanner")));
        let response = (Extension(9u8), "text").into_response();
        assert_eq!(response.extensions().and_then(|extensions| extensions.get::<u8>()), Some(&9));
    }
}
