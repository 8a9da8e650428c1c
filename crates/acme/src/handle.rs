//! Changes names while the server runs, and reports status.

use crate::acme::check_domain;
use crate::error::AcmeSetupError;
use crate::failure::FailureReason;
use crate::shared::AcmeShared;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

/// Changes the names while the server runs, from any thread; created by
/// [`Acme::build_with_handle`](crate::Acme::build_with_handle). Clones refer to the same
/// configuration.
#[derive(Clone)]
pub struct AcmeHandle(Arc<AcmeShared>);

impl AcmeHandle {
    pub(crate) fn new(shared: Arc<AcmeShared>) -> Self {
        Self(shared)
    }

    /// Adds a name: loads its stored certificate or obtains one, immediately if a server runs.
    /// Returns `false` if the name existed.
    ///
    /// # Errors
    /// If ACME cannot obtain a certificate for the name.
    pub fn add_domain(&self, name: &str) -> Result<bool, AcmeSetupError> {
        let name = check_domain(name)?;
        Ok(self.0.change_domains(|names| {
            let is_new = !names.contains(&name);
            if is_new {
                names.push(name);
            }
            is_new
        }))
    }

    /// Stops serving and renewing the certificate of `name`, which stays stored. Returns `false` if
    /// the name did not exist.
    pub fn remove_domain(&self, name: &str) -> bool {
        let Ok(name) = check_domain(name) else { return false };
        self.0.change_domains(|names| {
            let count = names.len();
            names.retain(|domain| *domain != name);
            names.len() < count
        })
    }

    /// Orders a new certificate for `name` now, for example after its key was compromised, or
    /// retries a failed order. Returns `false` if the name does not exist. Authorities limit the
    /// number of orders.
    pub fn renew(&self, name: &str) -> bool {
        check_domain(name).is_ok_and(|name| self.0.request_renewal(&name))
    }

    /// Returns the current status.
    pub fn status(&self) -> AcmeStatus {
        self.0.status()
    }
}

impl fmt::Debug for AcmeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AcmeHandle").field(&self.status()).finish()
    }
}

/// The results of orders so far, and the schedule.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct AcmeStatus {
    /// All names, in the order in which they were added.
    pub domains: Vec<DomainStatus>,
    /// Certificates issued to this process.
    pub issued: u64,
    /// Certificates loaded from the storage that another instance had obtained.
    pub adopted: u64,
    /// Failed orders.
    pub failures: u64,
    /// Failed orders by reason; reasons without failures are omitted.
    pub failures_by_reason: BTreeMap<FailureReason, u64>,
    /// Panics of the storage or of the ACME thread itself, which continues.
    pub panics: u64,
}

/// The status of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DomainStatus {
    /// The name.
    pub domain: String,
    /// The expiry of its certificate; `None` if it has none, or no server has started.
    pub not_after: Option<SystemTime>,
    /// When the next order begins, if scheduled.
    pub renew_at: Option<SystemTime>,
    /// The number of failed orders since the last success.
    pub failures: u32,
    /// Why the last order failed; `None` after a success.
    pub last_error: Option<String>,
}
