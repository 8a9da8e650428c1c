//! The results of reloads and the certificates' validity, for logs and metrics.

use crate::certificate::{Loaded, Staple};
use crate::client::LoadedClients;
use crate::error::{TlsError, Warning};
use crate::plan::{Built, Plan, Reloaded, now};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A snapshot of a server's TLS; created by [`Tls::status`](crate::Tls::status).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TlsStatus {
    /// The number of successful reloads, whether or not anything was new.
    pub reloads: u64,
    /// The number of failed reloads, which changed nothing.
    pub failures: u64,
    /// Failed reloads by error ([`TlsError::label`]); errors that did not occur are omitted.
    pub failures_by: BTreeMap<&'static str, u64>,
    /// When the last reload succeeded.
    pub reloaded_at: Option<SystemTime>,
    /// When the last reload failed.
    pub failed_at: Option<SystemTime>,
    /// Why the last reload failed; `None` once a later one succeeded.
    pub last_error: Option<String>,
    /// All certificates, the default first.
    pub certificates: Vec<CertificateStatus>,
    /// The current warnings.
    pub warnings: Vec<Warning>,
}

/// One certificate of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CertificateStatus {
    /// The name under which it is replaced and removed.
    pub label: String,
    /// Its DNS names, in lower case.
    pub names: Vec<String>,
    /// The start of its validity; `None` if the date cannot be read.
    pub not_before: Option<SystemTime>,
    /// The end of its validity.
    pub not_after: Option<SystemTime>,
    /// Whether an OCSP response is sent with it.
    pub is_stapled: bool,
}

impl From<&Loaded> for CertificateStatus {
    fn from(loaded: &Loaded) -> Self {
        Self {
            label: loaded.label.to_string(),
            names: loaded.names.clone(),
            not_before: loaded.validity.and_then(|valid| time(valid.not_before)),
            not_after: loaded.validity.and_then(|valid| time(valid.not_after)),
            is_stapled: matches!(loaded.staple, Staple::Sent(_)),
        }
    }
}

pub(crate) fn time(seconds: i64) -> Option<SystemTime> {
    let distance = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) }
}

/// The state that the status is made from.
#[derive(Default)]
pub(crate) struct Known {
    counts: TlsStatus,
    certificates: Vec<Arc<Loaded>>,
    clients: Option<LoadedClients>,
    never_chosen: Vec<Warning>,
    soon: Duration,
    /// The certificates are renewed automatically.
    is_renewed: bool,
}

impl Known {
    /// Updates the certificates and warnings after a change.
    pub(crate) fn follow(&mut self, plan: &Plan, built: &Built) {
        self.certificates = plan.certificates();
        self.clients = plan.clients().cloned();
        self.never_chosen.clone_from(&built.never_chosen);
        self.soon = plan.soon;
        self.is_renewed = plan.supplier.is_some();
    }

    /// Counts and logs the result of a reload.
    pub(crate) fn note(&mut self, result: &Result<Reloaded, TlsError>) {
        let counts = &mut self.counts;
        match result {
            Ok(_) => {
                counts.reloads += 1;
                counts.reloaded_at = Some(SystemTime::now());
                counts.last_error = None;
            }
            Err(error) => {
                counts.failures += 1;
                *counts.failures_by.entry(error.label()).or_default() += 1;
                counts.failed_at = Some(SystemTime::now());
                counts.last_error = Some(error.to_string());
            }
        }
        // A subscriber may panic; the usual one does if standard error was closed.
        let _ = catch_unwind(AssertUnwindSafe(|| match result {
            Ok(reloaded) => tracing::info!(target: "peregrine", %reloaded, "TLS was reloaded"),
            Err(error) => tracing::error!(target: "peregrine", %error,
                "TLS was not reloaded; the previous configuration stays in use"),
        }));
    }

    pub(crate) fn status(&self) -> TlsStatus {
        TlsStatus {
            certificates: self.certificates.iter().map(|loaded| (&**loaded).into()).collect(),
            warnings: self.warnings(),
            ..self.counts.clone()
        }
    }

    pub(crate) fn warnings(&self) -> Vec<Warning> {
        let (now, soon) = (now(), i64::try_from(self.soon.as_secs()).unwrap_or(i64::MAX));
        // Automatically renewed certificates may legitimately be valid for only a few days.
        let soon_for = |loaded: &Loaded| match loaded.validity {
            Some(valid) if self.is_renewed => soon.min((valid.not_after - valid.not_before) / 4),
            _ => soon,
        };
        let certificates = self.certificates.iter();
        let dates = certificates.flat_map(|loaded| loaded.warnings(now, soon_for(loaded)));
        let lists = self.clients.iter().flat_map(|clients| clients.warnings(now));
        dates.chain(lists).chain(self.never_chosen.iter().cloned()).collect()
    }

    /// Returns whether the last reload failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.counts.last_error.is_some()
    }

    /// Returns whether a stapled response has expired.
    pub(crate) fn has_old_staple(&self) -> bool {
        let now = now();
        self.certificates.iter().any(|loaded| loaded.staple_end().is_some_and(|end| end <= now))
    }
}
