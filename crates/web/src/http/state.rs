//! The application's shared values, looked up by type.

use crate::http::head::RequestHead;
use crate::http::problem_renderer::{ProblemRenderer, render_problem};
use crate::http::response::Response;
use crate::http::route_index::RouteIndex;
use peregrine_router::Router;
use std::any::{Any, TypeId, type_name};
use std::cell::OnceCell;
use std::fmt;
use std::rc::Rc;

/// The values that the application shares with its handlers, at most one of each type, and its
/// router and problem renderer. Applications have few values, so a linear scan finds one quickly.
///
/// The router and the renderer are set while the application is built, when its parts already share
/// the states; hence the `OnceCell`s.
#[derive(Default)]
pub struct States {
    router: OnceCell<Rc<Router>>,
    route_index: OnceCell<Rc<RouteIndex>>,
    problem_renderer: OnceCell<ProblemRenderer>,
    values: Vec<(TypeId, &'static str, Rc<dyn Any>)>,
}

impl States {
    /// Adds `value`, replacing an earlier value of the same type.
    pub fn insert<T: 'static>(&mut self, value: T) {
        let id = TypeId::of::<T>();
        self.values.retain(|(other, ..)| *other != id);
        self.values.push((id, type_name::<T>(), Rc::new(value)));
    }

    /// The value of type `T`.
    #[must_use]
    pub fn get<T: 'static>(&self) -> Option<&T> {
        self.find::<T>()?.downcast_ref()
    }

    /// The value of type `T` as an `Rc`. All handlers on the worker share the value.
    #[must_use]
    pub fn get_rc<T: 'static>(&self) -> Option<Rc<T>> {
        Rc::clone(self.find::<T>()?).downcast().ok()
    }

    fn find<T: 'static>(&self) -> Option<&Rc<dyn Any>> {
        let id = TypeId::of::<T>();
        self.values.iter().find(|(other, ..)| *other == id).map(|(.., value)| value)
    }

    /// Adds the values of `defaults` whose types are missing here. The values are shared, not
    /// copied.
    pub fn extend(&mut self, defaults: &Self) {
        for (id, name, value) in &defaults.values {
            if !self.contains(*id) {
                self.values.push((*id, name, Rc::clone(value)));
            }
        }
    }

    /// Whether no value was inserted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The application's routes, which define the names of path parameters. `None` until the
    /// application is built.
    #[must_use]
    pub fn router(&self) -> Option<&Router> {
        self.router.get().map(|router| &**router)
    }

    /// Information about the application's routes that the router does not have. `None` until the
    /// application is built.
    pub(crate) fn route_index(&self) -> Option<&Rc<RouteIndex>> {
        self.route_index.get()
    }

    /// Sets the value of [`States::route_index`]. Calls after the first one are ignored.
    pub(crate) fn set_route_index(&self, index: &Rc<RouteIndex>) {
        self.route_index.get_or_init(|| Rc::clone(index));
    }

    /// Sets the value of [`States::router`]. Calls after the first one are ignored.
    pub fn set_router(&self, router: Rc<Router>) {
        self.router.get_or_init(|| router);
    }

    /// If `response` was created from a problem, renders the problem with the application's
    /// function ([`App::on_problem`](crate::App::on_problem)). By default a problem is rendered
    /// after all middleware; this is for middleware that needs the response as it will be sent. A
    /// response that is already rendered is returned unchanged.
    #[must_use]
    pub fn render_problem(&self, response: Response, head: &RequestHead) -> Response {
        match self.problem_renderer.get() {
            Some(renderer) => render_problem(&**renderer, head, response),
            None => response,
        }
    }

    /// Sets the function that renders problems. Calls after the first one are ignored.
    pub(crate) fn set_problem_renderer(&self, renderer: &ProblemRenderer) {
        self.problem_renderer.get_or_init(|| Rc::clone(renderer));
    }

    /// Whether there is a value of the type with this id.
    #[must_use]
    pub fn contains(&self, id: TypeId) -> bool {
        self.values.iter().any(|(other, ..)| *other == id)
    }
}

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.values.iter().map(|(_, name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_value_by_its_type_and_inserting_again_replaces_it() {
        let mut states = States::default();
        states.insert(1u8);
        states.insert("text");
        states.insert(2u8);
        assert_eq!((states.get::<u8>(), states.get::<&str>()), (Some(&2), Some(&"text")));
        assert_eq!(states.get::<u16>(), None);
        assert!(states.contains(TypeId::of::<u8>()) && !states.contains(TypeId::of::<u16>()));
    }
}
