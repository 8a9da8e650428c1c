//! Values that the application or a middleware provides.

use super::{FromRequestParts, misconfiguration_problem};
use crate::http::problem::Problem;
use crate::http::request::Parts;
use crate::http::requirements::RouteRequirements;
use crate::http::response::{IntoResponseParts, Response};
use std::any::type_name;
use std::ops::Deref;
use std::rc::Rc;

/// A clone of the application's state of type `T`, which was added with `.state(value)`.
///
/// Building the application fails if the state is missing. `Option<State<T>>` is `None` if there is
/// no such state.
///
/// Use it for values that are cheap to clone: numbers, `&'static` references, an `Rc` that belongs
/// to the worker. Cloning an `Arc` is not cheap: all cores contend for the cache line of its
/// reference count. [`StateRef`] does not change that count.
///
/// ```
/// use peregrine::web::extract::State;
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

/// The application's state of type `T`, which was added with `.state(value)`: a reference to the
/// worker's own value, not a clone.
///
/// For any `T`, the extractor increments only one reference count, which is local to the worker.
/// Use it for an `Arc` that workers share, for pools and clients, and for values that cannot be
/// cloned. It dereferences to `T`. It is not `Send`: for a task that may run on another thread,
/// clone the value. As for [`State`], building the application fails if the state is missing, and
/// `Option<StateRef<T>>` is `None` if the state is missing.
///
/// ```
/// use peregrine::App;
/// use peregrine::web::extract::StateRef;
/// use std::sync::Arc;
///
/// struct Catalogue(Vec<String>);
///
/// async fn first(catalogue: StateRef<Arc<Catalogue>>) -> String {
///     catalogue.0.first().cloned().unwrap_or_default()
/// }
///
/// let catalogue = Arc::new(Catalogue(vec!["peregrine".to_owned()]));
/// let client = App::new().state(Arc::clone(&catalogue)).get("/", first).test();
/// assert_eq!(client.get("/").send_blocking().text(), "peregrine");
/// ```
#[doc(alias = "Data")]
#[derive(Debug)]
pub struct StateRef<T> {
    value: Rc<T>,
}

/// Creates another reference to the same value.
impl<T> Clone for StateRef<T> {
    fn clone(&self) -> Self {
        Self { value: Rc::clone(&self.value) }
    }
}

impl<T> Deref for StateRef<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// A clone of the value of type `T` that a middleware attached to this request.
///
/// If there is no such value, the middleware is missing or did not run. Then the extractor responds
/// 500, and `Option<Extension<T>>` is `None`. A handler can also return an `Extension` in a tuple
/// before the body, which attaches the value to the response.
///
/// ```
/// use peregrine::web::extract::Extension;
///
/// #[derive(Clone)]
/// struct User(String);
///
/// async fn whoami(Extension(user): Extension<User>) -> String {
///     user.0
/// }
/// # let _ = whoami;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extension<T>(pub T);

impl<T: Clone + 'static> FromRequestParts for State<T> {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        parts.states().get::<T>().cloned().map(Self).ok_or_else(missing_state::<T>)
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        Ok(parts.states().get::<T>().cloned().map(Self))
    }

    fn require(requirements: &mut RouteRequirements) {
        requirements.state::<T>();
    }
}

impl<T: 'static> FromRequestParts for StateRef<T> {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        let value = parts.states().get_rc().ok_or_else(missing_state::<T>)?;
        Ok(Self { value })
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        Ok(parts.states().get_rc().map(|value| Self { value }))
    }

    fn require(requirements: &mut RouteRequirements) {
        requirements.state::<T>();
    }
}

impl<T: Clone + Send + Sync + 'static> FromRequestParts for Extension<T> {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        get_extension(parts).map(Self).ok_or_else(|| {
            missing_value(
                "missing-extension",
                type_name::<T>(),
                "add the middleware that attaches it, so that it wraps this handler",
            )
        })
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        Ok(get_extension(parts).map(Self))
    }
}

fn get_extension<T: Clone + Send + Sync + 'static>(parts: &Parts) -> Option<T> {
    parts.extensions().get::<T>().cloned()
}

fn missing_state<T>() -> Problem {
    missing_value("missing-state", type_name::<T>(), "add it to the application with `.state(..)`")
}

fn missing_value(kind: &'static str, name: &'static str, remedy: &str) -> Problem {
    let cause = format!("the handler needs a `{name}`, but there is none; {remedy}");
    misconfiguration_problem(kind, &cause)
}

impl<T: Clone + Send + Sync + 'static> IntoResponseParts for Extension<T> {
    fn into_response_parts(self, response: &mut Response) -> Result<(), Problem> {
        response.extensions_mut().insert(self.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{assert_ready, from_parts, get, parts_with};
    use super::*;
    use crate::http::response::IntoResponse;
    use crate::http::state::States;
    use std::any::TypeId;
    use std::sync::Arc;

    #[test]
    fn extracts_a_clone_of_a_state_and_requires_it() {
        let mut states = States::default();
        states.insert(Rc::new(7));
        let State(seven) = assert_ready(from_parts::<State<Rc<i32>>>(&mut parts_with(states)))
            .expect("the state is present");
        assert_eq!(*seven, 7);
        let mut requirements = RouteRequirements::default();
        State::<Rc<i32>>::require(&mut requirements);
        <Option<State<u8>> as FromRequestParts>::require(&mut requirements);
        let required: Vec<_> = requirements.states().map(|(id, _)| id).collect();
        assert_eq!(required, [TypeId::of::<Rc<i32>>()]);
    }

    #[test]
    fn extracts_a_reference_to_a_state_without_a_clone_and_requires_it() {
        struct Unclonable(Arc<u8>);
        let shared = Arc::new(7);
        let mut states = States::default();
        states.insert(Unclonable(Arc::clone(&shared)));
        states.insert(Arc::clone(&shared));
        let count_before = Arc::strong_count(&shared);
        let mut parts = parts_with(states);
        let arc: StateRef<Arc<u8>> =
            assert_ready(from_parts(&mut parts)).expect("the state is present");
        let value: StateRef<Unclonable> =
            assert_ready(from_parts(&mut parts)).expect("the state is present");
        let second: StateRef<Unclonable> =
            assert_ready(from_parts(&mut parts)).expect("the state is present");
        assert_eq!((**arc, *value.0), (7, 7));
        assert!(std::ptr::eq(&*value, &*second) && std::ptr::eq(&*value, &*value.clone()));
        assert_eq!(Arc::strong_count(&shared), count_before, "the shared count does not change");
        assert!(
            assert_ready(from_parts::<Option<StateRef<u8>>>(&mut parts))
                .expect("no error")
                .is_none()
        );
        let mut requirements = RouteRequirements::default();
        StateRef::<Unclonable>::require(&mut requirements);
        let required: Vec<_> = requirements.states().map(|(id, _)| id).collect();
        assert_eq!(required, [TypeId::of::<Unclonable>()]);
    }

    #[test]
    fn a_missing_value_is_a_500_that_does_not_name_its_type() {
        let mut parts = get("/").parts;
        let state = assert_ready(State::<u8>::from_request_parts(&mut parts))
            .expect_err("there is no such value");
        assert_eq!((state.status.as_u16(), state.kind.as_ref()), (500, "missing-state"));
        let extension = assert_ready(Extension::<u8>::from_request_parts(&mut parts))
            .expect_err("there is no such value");
        assert_eq!(
            (extension.status.as_u16(), extension.kind.as_ref()),
            (500, "missing-extension")
        );
        // The name of the type is for the log, not for the client.
        for detail in [state.detail, extension.detail] {
            assert!(!detail.contains("u8") && detail.contains("its log says what"), "{detail}");
        }
        let state_ref = assert_ready(StateRef::<u8>::from_request_parts(&mut parts))
            .expect_err("there is no such value");
        assert_eq!(state_ref.kind, "missing-state");
        assert_eq!(assert_ready(from_parts::<Option<State<u8>>>(&mut parts)), Ok(None));
        assert_eq!(assert_ready(from_parts::<Option<Extension<u8>>>(&mut parts)), Ok(None));
    }

    #[test]
    fn extracts_an_extension_and_attaches_one_to_a_response() {
        let mut parts = get("/").parts;
        parts.extensions_mut().insert("lanner");
        assert_eq!(assert_ready(from_parts(&mut parts)), Ok(Extension("lanner")));
        let response = (Extension(9u8), "text").into_response();
        assert_eq!(response.extensions().and_then(|extensions| extensions.get::<u8>()), Some(&9));
    }
}
