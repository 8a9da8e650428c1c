//! Detects a cache around another cache with the same store.

use super::store::CacheStore;
use peregrine_web::Parts;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A request extension by which inner caches detect an outer one. An inner cache with the same
/// store must not wait for the outer one's flight, because the outer one is waiting for the inner
/// one. The inner cache stores the response in their common store, so the outer one need not.
#[derive(Clone)]
pub(crate) struct OuterCache {
    store: CacheStore,
    depth: u8,
    has_inner: Arc<AtomicBool>,
}

impl OuterCache {
    /// How many caches with this store enclose a request.
    pub(crate) fn depth(parts: &Parts, store: &CacheStore) -> u8 {
        let outer = parts.extensions().get::<Self>().filter(|outer| outer.store.ptr_eq(store));
        outer.map_or(0, |outer| outer.depth.saturating_add(1))
    }

    /// Adds the extension to a request that a cache sends to the handler.
    pub(crate) fn enter(parts: &mut Parts, store: &CacheStore) -> Self {
        let depth = Self::depth(parts, store);
        let outer = Self { store: store.clone(), depth, has_inner: Arc::default() };
        parts.extensions_mut().insert(outer.clone());
        outer
    }

    /// Reports that an inner cache with the same store handles this request.
    pub(crate) fn report_inner(parts: &Parts, store: &CacheStore) {
        if let Some(outer) =
            parts.extensions().get::<Self>().filter(|outer| outer.store.ptr_eq(store))
        {
            outer.has_inner.store(true, Relaxed);
        }
    }

    /// Whether an inner cache has handled the request.
    pub(crate) fn has_inner_cache(&self) -> bool {
        self.has_inner.load(Relaxed)
    }
}
