//! The responses to an order's challenges: given by this server and, through the storage, by all
//! instances that share it.

use crate::stored::{Answer, Stored};
use aws_lc_rs::digest::{SHA256, digest};
use peregrine_tls::Challenges;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use std::time::SystemTime;

/// The responses of one order, which are withdrawn on drop, however the order ends.
pub(crate) struct Answers<'a> {
    challenges: &'a Challenges,
    stored: &'a Stored,
    given: Vec<Answer>,
}

impl<'a> Answers<'a> {
    pub(crate) fn new(challenges: &'a Challenges, stored: &'a Stored) -> Self {
        Self { challenges, stored, given: Vec::new() }
    }

    /// Publishes a response, first here and then to other instances.
    pub(crate) fn give(&mut self, answer: Answer) -> Result<(), String> {
        if answer.is_by_connection {
            let made = certificate(&answer.name, &answer.text);
            let (chain, key) = made.map_err(|error| error.to_string())?;
            let given = self.challenges.answer_name(&answer.name, chain.as_bytes(), key.as_bytes());
            given.map_err(|error| error.to_string())?;
        } else {
            self.challenges.answer_token(&answer.token, &answer.text);
        }
        // The authority may still connect to this instance, and a single instance needs no storage
        // for this.
        if let Err(error) = self.stored.put_answer(answer.clone(), SystemTime::now()) {
            tracing::error!(target: "peregrine", name = answer.name, %error,
                "a challenge response cannot be stored: other instances cannot answer the challenge");
        }
        self.given.push(answer);
        Ok(())
    }
}

impl Drop for Answers<'_> {
    fn drop(&mut self) {
        for Answer { name, token, is_by_connection, .. } in &self.given {
            if *is_by_connection {
                self.challenges.forget_name(name);
            } else {
                self.challenges.forget_token(token);
            }
            if let Err(error) = self.stored.forget_answer(token, SystemTime::now()) {
                tracing::debug!(target: "peregrine", name, %error,
                    "a challenge response stays stored until it expires");
            }
        }
    }
}

/// A certificate that answers a challenge for `name` with this text, and its key, both in PEM.
// RFC 8737 §3: it is self-signed, has one name, and the digest in the critical extension
// acmeIdentifier.
pub(crate) fn certificate(name: &str, text: &str) -> Result<(String, String), rcgen::Error> {
    let mut parameters = CertificateParams::new([name.to_owned()])?;
    let digest = digest(&SHA256, text.as_bytes());
    parameters.custom_extensions = vec![CustomExtension::new_acme_identifier(digest.as_ref())];
    let key = KeyPair::generate()?;
    Ok((parameters.self_signed(&key)?.pem(), key.serialize_pem()))
}
