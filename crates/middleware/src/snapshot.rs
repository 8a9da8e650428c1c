//! Properties of a request that are needed after it was passed on.

use peregrine_web::route::display_pattern;
use peregrine_web::state::States;
use peregrine_web::{Parts, RequestHead, Response};
use std::borrow::Cow;
use std::rc::Rc;

/// A request's head and route, stored without copying.
pub(crate) struct RequestSnapshot {
    pub(crate) head: RequestHead,
    states: Rc<States>,
}

impl RequestSnapshot {
    pub(crate) fn new(parts: &Parts) -> Self {
        Self { head: parts.head.share(), states: Rc::clone(parts.states()) }
    }

    /// Renders `response` as it will be sent, if it was created from a problem.
    pub(crate) fn render_problem(&self, response: Response) -> Response {
        self.states.render_problem(response, &self.head)
    }

    /// The pattern of the request's route in readable form.
    pub(crate) fn route_pattern(&self) -> Option<Cow<'_, str>> {
        self.states.router()?.pattern(self.head.route_id()?).map(display_pattern)
    }
}
