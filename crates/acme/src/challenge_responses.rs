//! The responses to an order's challenges. This server and, through the storage, all instances that
//! share it send them.

use crate::scoped_storage::{ChallengeResponse, ScopedStorage};
use aws_lc_rs::digest::{SHA256, digest};
use peregrine_tls::ChallengeResponses;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use std::time::SystemTime;

/// The published responses of one order. They are removed on drop, however the order ends.
pub(crate) struct ActiveResponses<'a> {
    challenges: &'a ChallengeResponses,
    storage: &'a ScopedStorage,
    published: Vec<ChallengeResponse>,
}

impl<'a> ActiveResponses<'a> {
    pub(crate) fn new(challenges: &'a ChallengeResponses, storage: &'a ScopedStorage) -> Self {
        Self { challenges, storage, published: Vec::new() }
    }

    /// Publishes a response, first here and then to other instances.
    pub(crate) fn publish(&mut self, response: ChallengeResponse) -> Result<(), String> {
        if response.is_tls_alpn {
            let result = tls_alpn_certificate(&response.domain, &response.key_authorization);
            let (chain, key) = result.map_err(|error| error.to_string())?;
            let set_result =
                self.challenges.set_tls_alpn(&response.domain, chain.as_bytes(), key.as_bytes());
            set_result.map_err(|error| error.to_string())?;
        } else {
            self.challenges.set_http01(&response.token, &response.key_authorization);
        }
        // The authority may still connect to this instance, and a single instance needs no storage
        // for this.
        if let Err(error) =
            self.storage.store_challenge_response(response.clone(), SystemTime::now())
        {
            tracing::error!(target: "peregrine", name = response.domain, %error,
                "a challenge response cannot be stored: other instances cannot respond to the challenge");
        }
        self.published.push(response);
        Ok(())
    }
}

impl Drop for ActiveResponses<'_> {
    fn drop(&mut self) {
        for ChallengeResponse { domain: name, token, is_tls_alpn, .. } in &self.published {
            if *is_tls_alpn {
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

/// A certificate with which to respond to a challenge for `name`, and its key, both in PEM.
// RFC 8737 §3: it is self-signed, has one name, and the digest in the critical extension
// acmeIdentifier.
pub(crate) fn tls_alpn_certificate(
    name: &str,
    key_authorization: &str,
) -> Result<(String, String), rcgen::Error> {
    let mut parameters = CertificateParams::new([name.to_owned()])?;
    let digest = digest(&SHA256, key_authorization.as_bytes());
    parameters.custom_extensions = vec![CustomExtension::new_acme_identifier(digest.as_ref())];
    let key = KeyPair::generate()?;
    Ok((parameters.self_signed(&key)?.pem(), key.serialize_pem()))
}
