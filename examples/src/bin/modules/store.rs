//! The state that all workers share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Places by bird. The store is created once and cloned into each worker's application.
#[derive(Clone, Default)]
pub(crate) struct Store(Arc<Mutex<BTreeMap<String, Vec<String>>>>);

impl Store {
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<String, Vec<String>>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
