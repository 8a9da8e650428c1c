//! The results of reloads, and the validity of the certificates, for logs and metrics.

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
            not_before: loaded.validity.and_then(|validity| system_time(validity.not_before)),
            not_after: loaded.validity.and_then(|validity| system_time(validity.not_after)),
            is_stapled: matches!(loaded.ocsp, OcspStatus::Stapled(_)),
        }
    }
}

pub(crate) fn system_time(seconds: i64) -> Option<SystemTime> {
    let offset = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { UNIX_EPOCH.checked_sub(offset) } else { UNIX_EPOCH.checked_add(offset) }
}

/// The state from which the status is computed.
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
    pub(crate) fn on_config_change(&mut self, spec: &ConfigSpec, built: &BuiltConfig) {
        self.certificates = spec.certificates();
        self.client_auth = spec.client_auth().cloned();
        self.shadowed.clone_from(&built.shadowed);
        self.expiry_warning_before = spec.expiry_warning_before;
        self.has_provider = spec.provider.is_some();
    }

    /// Counts and logs the result of a reload.
    pub(crate) fn record_reload(&mut self, result: &Result<ReloadReport, TlsSetupError>) {
        let status = &mut self.status;
        match result {
            Ok(_) => {
                status.reloads += 1;
                status.reloaded_at = Some(SystemTime::now());
                status.last_error = None;
            }
            Err(error) => {
                status.failed_reloads += 1;
                *status.failures_by_kind.entry(error.label()).or_default() += 1;
                status.failed_at = Some(SystemTime::now());
                status.last_error = Some(error.to_string());
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
        let (now, warn_before) =
            (now(), i64::try_from(self.expiry_warning_before.as_secs()).unwrap_or(i64::MAX));
        // Automatically renewed certificates may legitimately be valid for only a few days.
        let warn_before_for = |loaded: &LoadedCertificate| match loaded.validity {
            Some(validity) if self.has_provider => {
                warn_before.min((validity.not_after - validity.not_before) / 4)
            }
            _ => warn_before,
        };
        let certificates = self.certificates.iter();
        let certificate_warnings =
            certificates.flat_map(|loaded| loaded.warnings(now, warn_before_for(loaded)));
        let crl_warnings =
            self.client_auth.iter().flat_map(|client_auth| client_auth.warnings(now));
        certificate_warnings.chain(crl_warnings).chain(self.shadowed.iter().cloned()).collect()
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
            .any(|loaded| loaded.ocsp_next_update().is_some_and(|next_update| next_update <= now))
    }
}
