//! State shared by the ACME thread, the handles and the TLS configuration.

use crate::acme::AcmeSettings;
use crate::handle::{AcmeStatus, DomainStatus};
use peregrine_tls::{ChallengeResponses, TlsConfig};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// State shared by the ACME thread, the handles and the TLS configuration.
pub(crate) struct AcmeShared {
    pub(crate) settings: AcmeSettings,
    pub(crate) challenges: Arc<ChallengeResponses>,
    pub(crate) requested: Mutex<RequestedChanges>,
    pub(crate) changed: Notify,
    /// The last published status.
    pub(crate) status: Mutex<AcmeStatus>,
}

/// Changes requested by handles.
#[derive(Default)]
pub(crate) struct RequestedChanges {
    pub(crate) domains: Vec<String>,
    /// Names to order now.
    pub(crate) renew_now: Vec<String>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AcmeShared {
    pub(crate) fn new(
        settings: AcmeSettings,
        domains: Vec<String>,
        challenges: Arc<ChallengeResponses>,
    ) -> Arc<Self> {
        let requested = Mutex::new(RequestedChanges { domains, renew_now: Vec::new() });
        let (changed, status) = (Notify::new(), Mutex::default());
        Arc::new(Self { settings, challenges, requested, changed, status })
    }

    /// Returns the shared state of a TLS configuration, if it uses ACME.
    pub(crate) fn from_tls(tls: &TlsConfig) -> Option<Arc<Self>> {
        tls.provider()?.downcast().ok()
    }

    pub(crate) fn domains(&self) -> Vec<String> {
        lock(&self.requested).domains.clone()
    }

    pub(crate) fn change_domains(&self, change: impl FnOnce(&mut Vec<String>) -> bool) -> bool {
        let is_changed = change(&mut lock(&self.requested).domains);
        if is_changed {
            self.changed.notify_one();
        }
        is_changed
    }

    pub(crate) fn request_renewal(&self, name: &str) -> bool {
        let mut requested = lock(&self.requested);
        let is_known = requested.domains.iter().any(|domain| domain == name);
        if is_known {
            requested.renew_now.push(name.to_owned());
            self.changed.notify_one();
        }
        is_known
    }

    pub(crate) fn status(&self) -> AcmeStatus {
        let (status, domains) = (lock(&self.status).clone(), self.domains());
        let status_of = |name: String| {
            let domain_status =
                status.domains.iter().find(|domain_status| domain_status.domain == name).cloned();
            domain_status
                .unwrap_or_else(|| DomainStatus { domain: name, ..DomainStatus::default() })
        };
        let panics = status.panics + self.settings.storage.panics();
        AcmeStatus { domains: domains.into_iter().map(status_of).collect(), panics, ..status }
    }
}

/// Returns the status of each distinct ACME configuration among these TLS configurations.
#[must_use]
pub fn statuses<'t>(configs: impl Iterator<Item = &'t TlsConfig>) -> Vec<AcmeStatus> {
    let mut distinct: Vec<Arc<AcmeShared>> = Vec::new();
    for shared in configs.filter_map(AcmeShared::from_tls) {
        if !distinct.iter().any(|other| Arc::ptr_eq(other, &shared)) {
            distinct.push(shared);
        }
    }
    distinct.iter().map(|shared| shared.status()).collect()
}
