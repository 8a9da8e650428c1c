//! What is answered to those who check names, for as long as an order goes on.

use instant_acme::KeyAuthorization;
use peregrine_tls::Challenges;
use rcgen::{CertificateParams, CustomExtension, KeyPair};

/// Answers of one order. They are given no longer when it is dropped, however the order ends.
pub(crate) struct Answers<'a> {
    challenges: &'a Challenges,
    names: Vec<String>,
    tokens: Vec<String>,
}

impl<'a> Answers<'a> {
    pub(crate) fn new(challenges: &'a Challenges) -> Self {
        Self { challenges, names: Vec::new(), tokens: Vec::new() }
    }

    /// Answers connections for `name` (tls-alpn-01).
    pub(crate) fn answer_connections(
        &mut self,
        name: &str,
        authorization: &KeyAuthorization,
    ) -> Result<(), String> {
        let (chain, key) = certificate(name, authorization).map_err(|error| error.to_string())?;
        let answered = self.challenges.answer_name(name, chain.as_bytes(), key.as_bytes());
        answered.map_err(|error| error.to_string())?;
        self.names.push(name.to_owned());
        Ok(())
    }

    /// Answers requests for `token` (http-01).
    pub(crate) fn answer_requests(&mut self, token: &str, authorization: &KeyAuthorization) {
        self.challenges.answer_token(token, authorization.as_str());
        self.tokens.push(token.to_owned());
    }
}

impl Drop for Answers<'_> {
    fn drop(&mut self) {
        for name in &self.names {
            self.challenges.forget_name(name);
        }
        for token in &self.tokens {
            self.challenges.forget_token(token);
        }
    }
}

/// A certificate that answers, and its key, both in PEM.
// RFC 8737 §3: it is self-signed, has one name, and the digest in the critical extension acmeIdentifier.
fn certificate(
    name: &str,
    authorization: &KeyAuthorization,
) -> Result<(String, String), rcgen::Error> {
    let mut parameters = CertificateParams::new([name.to_owned()])?;
    let digest = authorization.digest();
    parameters.custom_extensions = vec![CustomExtension::new_acme_identifier(digest.as_ref())];
    let key = KeyPair::generate()?;
    Ok((parameters.self_signed(&key)?.pem(), key.serialize_pem()))
}
