//! The set of marks behind [`private_response`](crate::http::private_response).

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// The identities (cookies, credentials, client certificates) that the response to a request
/// depends on so far, as a set of marks. All copies of the request's head share the set.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdentityReads(Rc<Marks>);

/// The marks of a request to a mounted service that an application inside the service sets,
/// possibly on another thread. They reach the outer request even if the service builds a new
/// response.
pub(crate) type NestedMarks = Arc<AtomicU8>;

#[derive(Debug, Default)]
struct Marks {
    bits: Cell<u8>,
    /// What a nested application adds to these marks.
    nested: OnceCell<NestedMarks>,
    /// In a nested application: the `nested` marks of the outer request.
    outer: OnceCell<NestedMarks>,
}

impl IdentityReads {
    /// The marks, one bit each. [`private_response`](crate::http::private_response) defines them.
    #[inline]
    pub(crate) fn bits(&self) -> u8 {
        self.0.bits.get() | self.0.nested.get().map_or(0, |nested| nested.load(Relaxed))
    }

    #[inline]
    pub(crate) fn mark(&self, bits: u8) {
        self.0.bits.set(self.0.bits.get() | bits);
        if let Some(outer) = self.0.outer.get() {
            outer.fetch_or(bits, Relaxed);
        }
    }

    /// The marks that a nested application can set.
    pub(crate) fn nested(&self) -> NestedMarks {
        Arc::clone(self.0.nested.get_or_init(NestedMarks::default))
    }

    /// Sets all later marks of this request for the outer request too.
    pub(crate) fn forward_to(&self, outer: &NestedMarks) {
        // A request is passed to a nested application once.
        let _ = self.0.outer.set(Arc::clone(outer));
    }

    /// Clears the marks. If an `IdentityMarks` or another head still holds this set, replaces it
    /// with a new one instead.
    pub(super) fn clear(&mut self) {
        match Rc::get_mut(&mut self.0) {
            Some(marks) => *marks = Marks::default(),
            None => self.0 = Rc::default(),
        }
    }
}
