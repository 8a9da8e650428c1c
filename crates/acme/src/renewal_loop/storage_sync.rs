//! Serves stored certificates, and synchronizes the storage with the served certificates.

use super::{RenewalLoop, random_jitter};
use crate::scoped_storage::StoredCertificate;
use crate::shared::lock;
use peregrine_tls::{Certificate, TlsSetupError};
use std::time::SystemTime;

impl RenewalLoop {
    /// Checks the storage for certificates of other instances, and retries to store those that
    /// could not be stored.
    pub(super) fn sync_storage(&mut self) {
        let storage = &self.shared.settings.storage;
        self.unstored.retain(|name, pem| {
            let result = storage.store_certificate(name, pem);
            if result.is_ok() {
                tracing::info!(target: "peregrine", name, "the certificate was stored");
            }
            result.is_err()
        });
        let now = SystemTime::now();
        let now_valid =
            self.not_yet_valid.extract_if(|_, certificate| certificate.current.not_before <= now);
        for (name, certificate) in now_valid.collect::<Vec<_>>() {
            self.install(&name, &certificate);
        }
        for name in self.shared.domains() {
            if !self.unstored.contains_key(&name) {
                self.adopt_stored(&name);
            }
        }
    }

    /// Takes over a certificate that another instance has stored, if it is better than the served
    /// one.
    pub(super) fn adopt_stored(&mut self, name: &str) -> bool {
        let Some(entry) = self.schedule.entry(name) else { return false };
        let Some(stored) = self.shared.settings.storage.certificate(name) else { return false };
        let now = SystemTime::now();
        let is_better = stored.current.not_after > now
            && entry.current.as_ref().is_none_or(|current| {
                stored.current != *current && stored.current.not_before > current.not_before
            });
        if is_better {
            tracing::info!(target: "peregrine", name,
                "a certificate stored by another instance was loaded");
            self.install(name, &stored);
            self.schedule.set_current(name, stored.current, now, random_jitter());
            self.publish_status();
            lock(&self.shared.status).adopted += 1;
        }
        is_better
    }

    /// Serves a certificate from the next handshake on, or once it becomes valid.
    pub(super) fn install(&mut self, name: &str, stored: &StoredCertificate) {
        self.not_yet_valid.remove(name);
        let is_not_yet_valid = stored.current.not_before > SystemTime::now();
        let domains = self.shared.domains();
        // Clients that send no name get the first name's certificate.
        let later_domains = domains
            .iter()
            .position(|domain| domain == name)
            .map_or(&[][..], |index| &domains[index + 1..]);
        for tls in &self.configs {
            let certificate = Certificate::from_pem(&stored.pem, &stored.pem).label(name);
            match tls.upsert_certificate_before(certificate, later_domains) {
                Ok(()) => {}
                Err(TlsSetupError::OutsideValidity { .. }) if is_not_yet_valid => {
                    tracing::warn!(target: "peregrine", name,
                        "a certificate is not valid yet, and is served once it is; check the clock");
                    self.not_yet_valid.insert(name.to_owned(), stored.clone());
                }
                // An expired certificate is served already if it was stored at the start.
                Err(TlsSetupError::OutsideValidity { .. }) => {}
                Err(error) => tracing::error!(target: "peregrine", name, %error,
                    "an issued certificate cannot be served"),
            }
        }
    }
}
