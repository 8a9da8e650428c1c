//! What the selection of a request's route depended on, besides the method and path. Caches need
//! this so that they do not serve one route's response for another.

use crate::http::head::RequestHead;
use crate::http::response::Response;
use http::header::VARY;
use http::{HeaderName, HeaderValue};
use std::cell::{Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// The header fields that guards examined while the route of a request was selected, including the
/// guards of routes that were not selected. All copies of a head share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuardReads(Rc<RefCell<ExaminedHeaders>>);

#[derive(Debug, Default)]
struct ExaminedHeaders {
    names: Vec<HeaderName>,
    /// Whether a guard does not declare which fields it examines.
    has_opaque_guard: bool,
}

impl GuardReads {
    /// Records that a guard examined these fields; `None` if the guard does not declare its fields.
    pub(crate) fn record(&self, fields: Option<&[HeaderName]>) {
        let mut examined = self.0.borrow_mut();
        match fields {
            None => examined.has_opaque_guard = true,
            Some(fields) => {
                for field in fields {
                    if !examined.names.contains(field) {
                        examined.names.push(field.clone());
                    }
                }
            }
        }
    }

    /// Clears the record. If another owner still holds this one, replaces it with a new one
    /// instead.
    pub(crate) fn clear(&mut self) {
        match Rc::get_mut(&mut self.0) {
            Some(examined) => {
                let ExaminedHeaders { names, has_opaque_guard } = examined.get_mut();
                names.clear();
                *has_opaque_guard = false;
            }
            None => self.0 = Rc::default(),
        }
    }
}

/// How a request's route was selected, and how the request reached its application.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    pub(crate) guards: GuardReads,
    /// A hash of the routes that lead through the enclosing applications to this one.
    outer_routes_hash: u64,
    /// How the request reached this application, if the application is mounted as a tower service
    /// or a tower layer has changed the path.
    mount: Option<MountInfo>,
}

impl Selection {
    pub(crate) fn clear(&mut self) {
        let Self { guards, outer_routes_hash, mount } = self;
        guards.clear();
        (*outer_routes_hash, *mount) = (0, None);
    }

    /// Adds `route`, whose handler is a nested application, to the hash of the outer routes.
    pub(crate) fn enter(&mut self, route: Option<u32>) {
        self.outer_routes_hash = self.routes_hash(route);
    }

    /// The hash of the outer routes and `route`. If no route matched, that of the outer routes.
    fn routes_hash(&self, route: Option<u32>) -> u64 {
        // A step of FNV-1a, with the route's number instead of a byte, and a rotation. Adding 1 to
        // the number makes number 0 change a hash of 0, too. Clients cannot choose the numbers, so
        // the hash need not resist deliberate collisions.
        let hash_with = |route: u32| {
            (self.outer_routes_hash ^ (u64::from(route) + 1))
                .wrapping_mul(0x0100_0000_01b3)
                .rotate_left(23)
        };
        route.map_or(self.outer_routes_hash, hash_with)
    }
}

/// How a request reached an application that is mounted as a tower service. It is stored in the
/// extensions of the request.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct MountInfo {
    /// The path as the client sent it.
    pub path: Arc<str>,
    /// A hash of the routes that led to the application.
    pub routes_hash: u64,
}

impl RequestHead {
    /// The header fields that the guards of routes examined.
    pub fn guard_header_names(&self) -> Ref<'_, [HeaderName]> {
        Ref::map(self.selection().guards.0.borrow(), |examined| &examined.names[..])
    }

    /// Whether a guard does not declare which fields it examines, as with a closure. It is then
    /// unknown which other requests would select the same route.
    #[must_use]
    pub fn has_opaque_guards(&self) -> bool {
        self.selection().guards.0.borrow().has_opaque_guard
    }

    /// Adds to `Vary` the fields on which the selection of the route depended (RFC 9110 §12.5.5):
    /// those that guards examined, or `*` if a guard does not declare its fields. Then no cache,
    /// here or downstream, serves one route's response for another.
    pub fn vary_by_guards(&self, response: &mut Response) {
        let examined = self.selection().guards.0.borrow();
        if examined.has_opaque_guard {
            response.headers.insert(VARY, HeaderValue::from_static("*"));
            return;
        }
        for field in &examined.names {
            response.headers.add_vary_name(field);
        }
    }

    /// Whether a request with the same target may be handled by another route or application,
    /// because guards examined the request, because its application is mounted, or because a tower
    /// layer changed its path.
    #[doc(hidden)]
    #[must_use]
    pub fn depends_on_selection(&self) -> bool {
        let examined = self.selection().guards.0.borrow();
        self.selection().mount.as_ref().is_some()
            || examined.has_opaque_guard
            || !examined.names.is_empty()
    }

    /// The path as the client sent it, even in an application that is mounted below a prefix.
    #[must_use]
    pub fn original_path(&self) -> &str {
        self.selection().mount.as_ref().map_or_else(|| self.path(), |mount| &mount.path)
    }

    /// Keeps the path that the client sent as this head's [`original_path`](Self::original_path),
    /// if its path differs because a tower layer changed the request. `original` is the head before
    /// that layer. Caches distinguish requests by the original path.
    #[doc(hidden)]
    pub fn keep_original_path(&mut self, original: &Self) {
        if self.path() != original.original_path() {
            let path = original.original_path().into();
            let selection = self.selection_mut();
            selection.mount = Some(MountInfo { path, routes_hash: selection.outer_routes_hash });
        }
    }

    /// Records how the request reached this application.
    #[doc(hidden)]
    pub fn set_mount(&mut self, mount: MountInfo) {
        let selection = self.selection_mut();
        (selection.outer_routes_hash, selection.mount) = (mount.routes_hash, Some(mount));
    }

    /// A hash of the matched route and of the routes of the enclosing applications. It is the same
    /// on all workers, whose applications are equal.
    #[doc(hidden)]
    #[must_use]
    pub fn routes_hash(&self) -> u64 {
        self.selection().routes_hash(self.route_id())
    }
}
