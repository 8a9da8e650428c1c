//! Properties of a request that are needed after it was passed on.

use peregrine_web::route::readable;
use peregrine_web::state::States;
use peregrine_web::{Head, Parts, Response};
use std::borrow::Cow;
use std::rc::Rc;

/// A request's head and route, stored without copying.
pub(crate) struct Seen {
    pub(crate) head: Head,
    states: Rc<States>,
}

impl Seen {
    pub(crate) fn new(parts: &Parts) -> Self {
        Self { head: parts.head.share(), states: Rc::clone(parts.states()) }
    }

    /// Renders `response` as it will be sent, if it was created from a problem.
    pub(crate) fn render(&self, response: Response) -> Response {
        self.states.render(response, &self.head)
    }

    /// The pattern of the request's route in readable form.
    pub(crate) fn route(&self) -> Option<Cow<'_, str>> {
        self.states.router()?.pattern(self.head.route()?).map(readable)
    }
}
