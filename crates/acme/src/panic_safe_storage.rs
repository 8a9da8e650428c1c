//! Wraps a user's storage, and turns its panics into errors.

use crate::catch_unwind::panic_message;
use crate::storage::Storage;
use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Calls a storage and catches panics.
#[derive(Clone)]
pub(crate) struct PanicSafeStorage {
    storage: Arc<dyn Storage>,
    panics: Arc<AtomicU64>,
}

impl PanicSafeStorage {
    pub(crate) fn new(storage: Arc<dyn Storage>) -> Self {
        Self { storage, panics: Arc::default() }
    }

    /// Returns how often the storage has panicked.
    pub(crate) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    pub(crate) fn load(&self, key: &str) -> io::Result<Option<Vec<u8>>> {
        self.call(key, || self.storage.load(key))
    }

    pub(crate) fn store(&self, key: &str, value: &[u8]) -> io::Result<()> {
        self.call(key, || self.storage.store(key, value))
    }

    pub(crate) fn remove(&self, key: &str) -> io::Result<()> {
        self.call(key, || self.storage.remove(key))
    }

    pub(crate) fn try_lock(&self, key: &str, lease: Duration) -> io::Result<Option<StorageLock>> {
        let lock = self.call(key, || self.storage.try_lock(key, lease))?;
        Ok(lock.map(|lock| StorageLock { lock: Some(lock), panics: Arc::clone(&self.panics) }))
    }

    fn call<T>(&self, key: &str, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        // The storage is responsible for its own state after a panic.
        catch_unwind(AssertUnwindSafe(operation)).unwrap_or_else(|panic| {
            Err(io::Error::other(record_panic(&self.panics, key, panic.as_ref())))
        })
    }
}

/// A lock, released on drop.
pub(crate) struct StorageLock {
    lock: Option<Box<dyn Send>>,
    panics: Arc<AtomicU64>,
}

impl Drop for StorageLock {
    fn drop(&mut self) {
        let lock = self.lock.take();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(lock))) {
            record_panic(&self.panics, "the lock", panic.as_ref());
        }
    }
}

fn record_panic(panics: &AtomicU64, key: &str, panic: &(dyn Any + Send)) -> String {
    panics.fetch_add(1, Ordering::Relaxed);
    let panic = panic_message(panic);
    tracing::error!(target: "peregrine", key, panic, "the ACME storage panicked");
    format!("the storage panicked: {panic}")
}
