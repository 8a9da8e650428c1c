//! State shared by the ACME thread, the handles and the TLS configuration.

use crate::acme::Settings;
use crate::handle::{AcmeStatus, NameStatus};
use peregrine_tls::{Challenges, Tls};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// State shared by the ACME thread, the handles and the TLS configuration.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) challenges: Arc<Challenges>,
    pub(crate) wanted: Mutex<Wanted>,
    pub(crate) changed: Notify,
    /// The last published status.
    pub(crate) status: Mutex<AcmeStatus>,
}

/// Changes requested by handles.
#[derive(Default)]
pub(crate) struct Wanted {
    pub(crate) names: Vec<String>,
    /// Names to order now.
    pub(crate) hurried: Vec<String>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(
        settings: Settings,
        names: Vec<String>,
        challenges: Arc<Challenges>,
    ) -> Arc<Self> {
        let wanted = Mutex::new(Wanted { names, hurried: Vec::new() });
        let (changed, status) = (Notify::new(), Mutex::default());
        Arc::new(Self { settings, challenges, wanted, changed, status })
    }

    /// The shared state of a TLS configuration that uses ACME.
    pub(crate) fn of(tls: &Tls) -> Option<Arc<Self>> {
        tls.owner()?.downcast().ok()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        lock(&self.wanted).names.clone()
    }

    pub(crate) fn change_names(&self, change: impl FnOnce(&mut Vec<String>) -> bool) -> bool {
        let is_changed = change(&mut lock(&self.wanted).names);
        if is_changed {
            self.changed.notify_one();
        }
        is_changed
    }

    pub(crate) fn hurry(&self, name: &str) -> bool {
        let mut wanted = lock(&self.wanted);
        let is_known = wanted.names.iter().any(|known| known == name);
        if is_known {
            wanted.hurried.push(name.to_owned());
            self.changed.notify_one();
        }
        is_known
    }

    pub(crate) fn status(&self) -> AcmeStatus {
        let (told, names) = (lock(&self.status).clone(), self.names());
        let of = |name: String| {
            let known = told.names.iter().find(|known| known.name == name).cloned();
            known.unwrap_or_else(|| NameStatus { name, ..NameStatus::default() })
        };
        let panics = told.panics + self.settings.stored.panics();
        AcmeStatus { names: names.into_iter().map(of).collect(), panics, ..told }
    }
}

/// The status of each distinct ACME configuration among these TLS configurations.
#[must_use]
pub fn statuses<'t>(all: impl Iterator<Item = &'t Tls>) -> Vec<AcmeStatus> {
    let mut each: Vec<Arc<Shared>> = Vec::new();
    for shared in all.filter_map(Shared::of) {
        if !each.iter().any(|known| Arc::ptr_eq(known, &shared)) {
            each.push(shared);
        }
    }
    each.iter().map(|shared| shared.status()).collect()
}
