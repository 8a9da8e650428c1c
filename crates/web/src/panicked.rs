//! A panic where nobody would catch it, kept for where somebody does.

use crate::request::Request;
use crate::response::Response;
use crate::service::{Endpoint, Service};
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

/// What answers requests for which no target was found, since a condition of a route panicked: the same panic, as
/// if it came from a handler.
#[derive(Clone)]
pub(crate) struct Panicked {
    payload: Rc<Cell<Option<Box<dyn Any + Send>>>>,
    endpoint: Rc<dyn Endpoint>,
}

impl Panicked {
    pub(crate) fn new() -> Self {
        let payload = Rc::default();
        Self { endpoint: Rc::new(Resumes(Rc::clone(&payload))), payload }
    }

    /// Runs `find`. If that panics, what answers instead.
    pub(crate) fn unless<T>(&self, find: impl FnOnce() -> T) -> Result<T, &Rc<dyn Endpoint>> {
        // Nothing of a search outlives it but what a head notes, which is whole at all times.
        catch_unwind(AssertUnwindSafe(find)).map_err(|payload| {
            self.payload.set(Some(payload));
            &self.endpoint
        })
    }
}

struct Resumes(Rc<Cell<Option<Box<dyn Any + Send>>>>);

impl Service for Resumes {
    async fn call(&self, _: Request) -> Response {
        resume_unwind(self.0.take().unwrap_or_else(|| Box::new("a condition of a route panicked")))
    }
}
