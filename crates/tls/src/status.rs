//! What became of reloads, and until when certificates are valid: for logs and metrics.

use crate::certificate::{Loaded, Staple};
use crate::client::LoadedClients;
use crate::error::{TlsError, Warning};
use crate::plan::{Built, Plan, Reloaded, now};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What a server's TLS looks like at this moment; made by [`Tls::status`](crate::Tls::status).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TlsStatus {
    /// How many reloads were done, whether or not anything was new.
    pub reloads: u64,
    /// How many failed and changed nothing.
    pub failures: u64,
    /// The same by what failed ([`TlsError::label`]); what has not failed is left out.
    pub failures_by: BTreeMap<&'static str, u64>,
    /// When the last one was done.
    pub reloaded_at: Option<SystemTime>,
    /// When the last one failed.
    pub failed_at: Option<SystemTime>,
    /// Why the last one failed; `None` once one was done after it.
    pub last_error: Option<String>,
    /// All certificates, the default first.
    pub certificates: Vec<CertificateStatus>,
    /// What its owner should know of now.
    pub warnings: Vec<Warning>,
}

/// One certificate of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CertificateStatus {
    /// The name by which it is replaced and removed.
    pub label: String,
    /// The DNS names that it is for, in lower case.
    pub names: Vec<String>,
    /// From when it is valid; `None` if the date cannot be read.
    pub not_before: Option<SystemTime>,
    /// Until when it is valid.
    pub not_after: Option<SystemTime>,
    /// Is an OCSP response sent with it?
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

/// What is known of what is served.
#[derive(Default)]
pub(crate) struct Known {
    counts: TlsStatus,
    certificates: Vec<Arc<Loaded>>,
    clients: Option<LoadedClients>,
    never_chosen: Vec<Warning>,
    soon: Duration,
    /// Somebody renews the certificates.
    is_renewed: bool,
}

impl Known {
    /// What is served has changed.
    pub(crate) fn follow(&mut self, plan: &Plan, built: &Built) {
        self.certificates = plan.certificates();
        self.clients = plan.clients().cloned();
        self.never_chosen.clone_from(&built.never_chosen);
        self.soon = plan.soon;
        self.is_renewed = plan.supplier.is_some();
    }

    /// Counts and tells.
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
        // A subscriber may panic, as the usual one does when nobody reads standard error any more.
        let _ = catch_unwind(AssertUnwindSafe(|| match result {
            Ok(reloaded) => tracing::info!(target: "peregrine", %reloaded, "TLS was reloaded"),
            Err(error) => tracing::error!(target: "peregrine", %error,
                "TLS was not reloaded; what was in use before stays in use"),
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
        // Whoever renews certificates may rightly get some that live for a few days only.
        let soon_for = |loaded: &Loaded| match loaded.validity {
            Some(valid) if self.is_renewed => soon.min((valid.not_after - valid.not_before) / 4),
            _ => soon,
        };
        let certificates = self.certificates.iter();
        let dates = certificates.flat_map(|loaded| loaded.warnings(now, soon_for(loaded)));
        let lists = self.clients.iter().flat_map(|clients| clients.warnings(now));
        dates.chain(lists).chain(self.never_chosen.iter().cloned()).collect()
    }

    /// Did the last reload fail?
    pub(crate) fn has_failed(&self) -> bool {
        self.counts.last_error.is_some()
    }

    /// Is there a staple that is too old by now?
    pub(crate) fn has_old_staple(&self) -> bool {
        let now = now();
        self.certificates.iter().any(|loaded| loaded.staple_end().is_some_and(|end| end <= now))
    }
}
