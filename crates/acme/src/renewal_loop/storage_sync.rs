//! Serves stored certificates, and keeps the storage and the served certificates in step.

use super::{RenewalLoop, random_jitter};
use crate::scoped_storage::StoredCertificate;
use crate::shared::lock;
use peregrine_tls::{Certificate, TlsSetupError};
use std::time::SystemTime;

impl RenewalLoop {
    /// Checks the storage for certificates of other instances, and retries to store unsaved ones.
    pub(super) fn sync_storage(&mut self) {
        let stored = &self.shared.settings.storage;
        self.unstored.retain(|name, pem| {
            let kept = stored.store_certificate(name, pem);
            if kept.is_ok() {
                tracing::info!(target: "peregrine", name, "the certificate was stored");
            }
            kept.is_err()
        });
        let now = SystemTime::now();
        let valid = self.not_yet_valid.extract_if(|_, read| read.current.not_before <= now);
        for (name, read) in valid.collect::<Vec<_>>() {
            self.install(&name, &read);
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
        let Some(read) = self.shared.settings.storage.certificate(name) else { return false };
        let now = SystemTime::now();
        let is_better = read.current.not_after > now
            && entry.current.as_ref().is_none_or(|present| {
                read.current != *present && read.current.not_before > present.not_before
            });
        if is_better {
            tracing::info!(target: "peregrine", name,
                "a certificate stored by another instance was loaded");
            self.install(name, &read);
            self.schedule.set_current(name, read.current, now, random_jitter());
            self.publish_status();
            lock(&self.shared.status).adopted += 1;
        }
        is_better
    }

    /// Serves a certificate from the next handshake on, or once it becomes valid.
    pub(super) fn install(&mut self, name: &str, read: &StoredCertificate) {
        self.not_yet_valid.remove(name);
        let is_early = read.current.not_before > SystemTime::now();
        let names = self.shared.domains();
        // Clients that send no name get the first name's certificate.
        let later =
            names.iter().position(|known| known == name).map_or(&[][..], |at| &names[at + 1..]);
        for tls in &self.configs {
            let certificate = Certificate::from_pem(&read.pem, &read.pem).label(name);
            match tls.upsert_certificate_before(certificate, later) {
                Ok(()) => {}
                Err(TlsSetupError::OutsideValidity { .. }) if is_early => {
                    tracing::warn!(target: "peregrine", name,
                        "a certificate is not valid yet, and is served once it is; check the clock");
                    self.not_yet_valid.insert(name.to_owned(), read.clone());
                }
                // An expired certificate is served already if it was stored at the start.
                Err(TlsSetupError::OutsideValidity { .. }) => {}
                Err(error) => tracing::error!(target: "peregrine", name, %error,
                    "an issued certificate cannot be served"),
            }
        }
    }
}
