//! The results of reloads and the certificates' validity, for logs and metrics.

use crate::certificate::{LoadedCertificate, OcspStatus};
use crate::client_auth::LoadedClientAuth;
use crate::error::{TlsSetupError, TlsWarning};
use crate::spec::{BuiltConfig, ConfigSpec, ReloadReport, now};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A snapshot of a server's TLS; created by [`TlsConfig::status`](crate::TlsConfig::status).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TlsStatus {
    /// The number of successful reloads, whether or not anything was new.
    pub reloads: u64,
    /// The number of failed reloads, which changed nothing.
    pub failed_reloads: u64,
    /// Failed reloads by error ([`TlsSetupError::label`]); errors that did not occur are omitted.
    pub failures_by_kind: BTreeMap<&'static str, u64>,
    /// When the last reload succeeded.
    pub reloaded_at: Option<SystemTime>,
    /// When the last reload failed.
    pub failed_at: Option<SystemTime>,
    /// Why the last reload failed; `None` once a later one succeeded.
    pub last_error: Option<String>,
    /// All certificates, the default first.
    pub certificates: Vec<CertificateStatus>,
    /// The current warnings.
    pub warnings: Vec<TlsWarning>,
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

impl From<&LoadedCertificate> for CertificateStatus {
    fn from(loaded: &LoadedCertificate) -> Self {
        Self {
            label: loaded.label.to_string(),
            names: loaded.names.clone(),
            not_before: loaded.validity.and_then(|valid| system_time(valid.not_before)),
            not_after: loaded.validity.and_then(|valid| system_time(valid.not_after)),
            is_stapled: matches!(loaded.ocsp, OcspStatus::Stapled(_)),
        }
    }
}

pub(crate) fn system_time(seconds: i64) -> Option<SystemTime> {
    let distance = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) }
}

/// The state that the status is made from.
#[derive(Default)]
pub(crate) struct StatusTracker {
    status: TlsStatus,
    certificates: Vec<Arc<LoadedCertificate>>,
    client_auth: Option<LoadedClientAuth>,
    shadowed: Vec<TlsWarning>,
    expiry_warning_before: Duration,
    /// The certificates are renewed automatically.
    has_provider: bool,
}

impl StatusTracker {
    /// Updates the certificates and warnings after a change.
    pub(crate) fn on_config_change(&mut self, plan: &ConfigSpec, built: &BuiltConfig) {
        self.certificates = plan.certificates();
        self.client_auth = plan.client_auth().cloned();
        self.shadowed.clone_from(&built.shadowed);
        self.expiry_warning_before = plan.expiry_warning_before;
        self.has_provider = plan.provider.is_some();
    }

    /// Counts and logs the result of a reload.
    pub(crate) fn record_reload(&mut self, result: &Result<ReloadReport, TlsSetupError>) {
        let counts = &mut self.status;
        match result {
            Ok(_) => {
                counts.reloads += 1;
                counts.reloaded_at = Some(SystemTime::now());
                counts.last_error = None;
            }
            Err(error) => {
                counts.failed_reloads += 1;
                *counts.failures_by_kind.entry(error.label()).or_default() += 1;
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
            ..self.status.clone()
        }
    }

    pub(crate) fn warnings(&self) -> Vec<TlsWarning> {
        let (now, soon) =
            (now(), i64::try_from(self.expiry_warning_before.as_secs()).unwrap_or(i64::MAX));
        // Automatically renewed certificates may legitimately be valid for only a few days.
        let soon_for = |loaded: &LoadedCertificate| match loaded.validity {
            Some(valid) if self.has_provider => soon.min((valid.not_after - valid.not_before) / 4),
            _ => soon,
        };
        let certificates = self.certificates.iter();
        let dates = certificates.flat_map(|loaded| loaded.warnings(now, soon_for(loaded)));
        let lists = self.client_auth.iter().flat_map(|clients| clients.warnings(now));
        dates.chain(lists).chain(self.shadowed.iter().cloned()).collect()
    }

    /// Returns whether the last reload failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.status.last_error.is_some()
    }

    /// Returns whether a stapled response has expired.
    pub(crate) fn has_expired_ocsp(&self) -> bool {
        let now = now();
        self.certificates
            .iter()
            .any(|loaded| loaded.ocsp_next_update().is_some_and(|end| end <= now))
    }
}
