//! The responses to an order's challenges: given by this server and, through the storage, by all
//! instances that share it.

use crate::scoped_storage::{ChallengeResponse, ScopedStorage};
use aws_lc_rs::digest::{SHA256, digest};
use peregrine_tls::ChallengeResponses;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use std::time::SystemTime;

/// The responses of one order, which are withdrawn on drop, however the order ends.
pub(crate) struct ActiveResponses<'a> {
    challenges: &'a ChallengeResponses,
    storage: &'a ScopedStorage,
    published: Vec<ChallengeResponse>,
}

impl<'a> ActiveResponses<'a> {
    pub(crate) fn new(challenges: &'a ChallengeResponses, stored: &'a ScopedStorage) -> Self {
        Self { challenges, storage: stored, published: Vec::new() }
    }

    /// Publishes a response, first here and then to other instances.
    pub(crate) fn publish(&mut self, answer: ChallengeResponse) -> Result<(), String> {
        if answer.is_tls_alpn {
            let made = tls_alpn_certificate(&answer.domain, &answer.key_authorization);
            let (chain, key) = made.map_err(|error| error.to_string())?;
            let given =
                self.challenges.set_tls_alpn(&answer.domain, chain.as_bytes(), key.as_bytes());
            given.map_err(|error| error.to_string())?;
        } else {
            self.challenges.set_http01(&answer.token, &answer.key_authorization);
        }
        // The authority may still connect to this instance, and a single instance needs no storage
        // for this.
        if let Err(error) = self.storage.store_challenge_response(answer.clone(), SystemTime::now())
        {
            tracing::error!(target: "peregrine", name = answer.domain, %error,
                "a challenge response cannot be stored: other instances cannot answer the challenge");
        }
        self.published.push(answer);
        Ok(())
    }
}

impl Drop for ActiveResponses<'_> {
    fn drop(&mut self) {
        for ChallengeResponse { domain: name, token, is_tls_alpn: is_by_connection, .. } in
            &self.published
        {
            if *is_by_connection {
                self.challenges.remove_tls_alpn(name);
            } else {
                self.challenges.remove_http01(token);
            }
            if let Err(error) = self.storage.remove_challenge_response(token, SystemTime::now()) {
                tracing::debug!(target: "peregrine", name, %error,
                    "a challenge response stays stored until it expires");
            }
        }
    }
}

/// A certificate that answers a challenge for `name` with this text, and its key, both in PEM.
// RFC 8737 §3: it is self-signed, has one name, and the digest in the critical extension
// acmeIdentifier.
pub(crate) fn tls_alpn_certificate(
    name: &str,
    text: &str,
) -> Result<(String, String), rcgen::Error> {
    let mut parameters = CertificateParams::new([name.to_owned()])?;
    let digest = digest(&SHA256, text.as_bytes());
    parameters.custom_extensions = vec![CustomExtension::new_acme_identifier(digest.as_ref())];
    let key = KeyPair::generate()?;
    Ok((parameters.self_signed(&key)?.pem(), key.serialize_pem()))
}
