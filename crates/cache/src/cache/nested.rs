//! A cache around another one.

use super::store::CacheStore;
use peregrine_web::Parts;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What a request has with it that a cache fetches, for those further in. One with the same store must not wait for the outer one, which waits for it; what
/// it keeps, the outer one finds there.
#[derive(Clone)]
pub(crate) struct Outer {
    store: CacheStore,
    depth: u8,
    has_inner: Arc<AtomicBool>,
}

impl Outer {
    /// How many caches with this store are around a request.
    pub(crate) fn depth(parts: &Parts, store: &CacheStore) -> u8 {
        let outer = parts.extensions().get::<Self>().filter(|outer| outer.store.is(store));
        outer.map_or(0, |outer| outer.depth.saturating_add(1))
    }

    /// Lets those further in know, and gives what tells of them.
    pub(crate) fn enter(parts: &mut Parts, store: &CacheStore) -> Self {
        let depth = Self::depth(parts, store);
        let outer = Self { store: store.clone(), depth, has_inner: Arc::default() };
        parts.extensions_mut().insert(outer.clone());
        outer
    }

    /// A cache with the same store says that it looks after this request.
    pub(crate) fn take_over(parts: &Parts, store: &CacheStore) {
        if let Some(outer) = parts.extensions().get::<Self>().filter(|outer| outer.store.is(store))
        {
            outer.has_inner.store(true, Relaxed);
        }
    }

    /// Was there one?
    pub(crate) fn has_inner(&self) -> bool {
        self.has_inner.load(Relaxed)
    }
}
