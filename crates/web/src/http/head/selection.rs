//! What a request was matched by, beside its method and path: for caches, which must not give one
//! route's response for another.

use crate::http::head::Head;
use crate::http::response::Response;
use http::header::VARY;
use http::{HeaderName, HeaderValue};
use std::cell::{Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// What the guards of routes looked at, of those routes that a request might have come to. All
/// copies of a head share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuardReads(Rc<RefCell<Looked>>);

#[derive(Debug, Default)]
struct Looked {
    fields: Vec<HeaderName>,
    /// A guard does not say what it looks at.
    is_unknown: bool,
}

impl GuardReads {
    /// Notes that a guard looked at these fields; `None`: it does not say at what.
    pub(crate) fn note(&self, fields: Option<&[HeaderName]>) {
        let mut looked = self.0.borrow_mut();
        match fields {
            None => looked.is_unknown = true,
            Some(fields) => {
                for field in fields {
                    if !looked.fields.contains(field) {
                        looked.fields.push(field.clone());
                    }
                }
            }
        }
    }

    /// Forgets everything, unless another owner holds it still.
    pub(crate) fn clear(&mut self) {
        match Rc::get_mut(&mut self.0) {
            Some(looked) => {
                let Looked { fields, is_unknown } = looked.get_mut();
                fields.clear();
                *is_unknown = false;
            }
            None => self.0 = Rc::default(),
        }
    }
}

/// What a request was matched by, and where its application is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    pub(crate) guards: GuardReads,
    /// The routes of the applications around this one.
    routes_around: u64,
    /// Where this application is mounted as a tower service.
    mounted: Option<Mounted>,
}

impl Selection {
    pub(crate) fn clear(&mut self) {
        let Self { guards, routes_around, mounted } = self;
        guards.clear();
        (*routes_around, *mounted) = (0, None);
    }

    /// Goes on to the application that is the handler of this route.
    pub(crate) fn enter(&mut self, route: Option<u32>) {
        self.routes_around = self.routes_with(route);
    }

    fn routes_with(&self, route: Option<u32>) -> u64 {
        // FNV-1a, of numbers: neighbours must differ, and nobody but the application makes them.
        let with = |route: u32| {
            (self.routes_around ^ (u64::from(route) + 1))
                .wrapping_mul(0x0100_0000_01b3)
                .rotate_left(23)
        };
        route.map_or(self.routes_around, with)
    }
}

/// Where a request was before it came to an application that is mounted as a tower service: in the
/// extensions of its request.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Mounted {
    /// The path as the client sent it.
    pub path: Arc<str>,
    /// The routes that led here.
    pub routes: u64,
}

impl Head {
    /// The fields that guards of routes looked at.
    pub fn guard_fields(&self) -> Ref<'_, [HeaderName]> {
        Ref::map(self.selection().guards.0.borrow(), |looked| &looked.fields[..])
    }

    /// Was there a guard that does not say what it looks at, such as a closure? Then nothing tells
    /// which other requests come to the same route.
    #[must_use]
    pub fn has_opaque_guards(&self) -> bool {
        self.selection().guards.0.borrow().is_unknown
    }

    /// Says in `Vary` what the route was chosen by (RFC 9110 §12.5.5): the fields that guards
    /// looked at, and `*` where one of them does not say what it looks at. So no cache, here or
    /// further out, takes the response of one route for that of another.
    pub fn vary_by_guards(&self, response: &mut Response) {
        let looked = self.selection().guards.0.borrow();
        if looked.is_unknown {
            response.fields.set(VARY, HeaderValue::from_static("*"));
            return;
        }
        for field in &looked.fields {
            response.fields.vary_by(field);
        }
    }

    /// Does the target alone not say where the request belongs?
    #[doc(hidden)]
    #[must_use]
    pub fn is_told_apart(&self) -> bool {
        let looked = self.selection().guards.0.borrow();
        self.selection().mounted.as_ref().is_some()
            || looked.is_unknown
            || !looked.fields.is_empty()
    }

    /// The path as the client sent it, also in an application that is mounted below a prefix.
    #[must_use]
    pub fn original_path(&self) -> &str {
        self.selection().mounted.as_ref().map_or_else(|| self.path(), |mounted| &mounted.path)
    }

    /// The request came by this way.
    #[doc(hidden)]
    pub fn set_mounted(&mut self, mounted: Mounted) {
        let selection = self.selection_mut();
        (selection.routes_around, selection.mounted) = (mounted.routes, Some(mounted));
    }

    /// A number for the route that was matched, and for those of the applications around this one.
    /// Equal applications have equal numbers, also on other workers.
    #[doc(hidden)]
    #[must_use]
    pub fn route_path(&self) -> u64 {
        self.selection().routes_with(self.route())
    }
}
