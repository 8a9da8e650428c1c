//! What is answered to those who check names, for as long as an order goes on: by this server, and through the storage
//! by all that share it.

use crate::stored::{Answer, Stored};
use aws_lc_rs::digest::{SHA256, digest};
use peregrine_tls::Challenges;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use std::time::SystemTime;

/// Answers of one order. They are given no longer when it is dropped, however the order ends.
pub(crate) struct Answers<'a> {
    challenges: &'a Challenges,
    stored: &'a Stored,
    given: Vec<Answer>,
}

impl<'a> Answers<'a> {
    pub(crate) fn new(challenges: &'a Challenges, stored: &'a Stored) -> Self {
        Self { challenges, stored, given: Vec::new() }
    }

    /// Gives an answer, here and then elsewhere.
    pub(crate) fn give(&mut self, answer: Answer) -> Result<(), String> {
        if answer.is_by_connection {
            let made = certificate(&answer.name, &answer.text);
            let (chain, key) = made.map_err(|error| error.to_string())?;
            let given = self.challenges.answer_name(&answer.name, chain.as_bytes(), key.as_bytes());
            given.map_err(|error| error.to_string())?;
        } else {
            self.challenges.answer_token(&answer.token, &answer.text);
        }
        // The authority may come here all the same: an instance that is alone needs no other.
        if let Err(error) = self.stored.put_answer(answer.clone(), SystemTime::now()) {
            tracing::error!(target: "peregrine", name = answer.name, %error,
                "an answer to the authority cannot be stored: other instances do not know it");
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
                    "an answer to the authority stays stored until its time is over");
            }
        }
    }
}

/// A certificate that answers for `name` with this text, and its key, both in PEM.
// RFC 8737 §3: it is self-signed, has one name, and the digest in the critical extension acmeIdentifier.
pub(crate) fn certificate(name: &str, text: &str) -> Result<(String, String), rcgen::Error> {
    let mut parameters = CertificateParams::new([name.to_owned()])?;
    let digest = digest(&SHA256, text.as_bytes());
    parameters.custom_extensions = vec![CustomExtension::new_acme_identifier(digest.as_ref())];
    let key = KeyPair::generate()?;
    Ok((parameters.self_signed(&key)?.pem(), key.serialize_pem()))
}
