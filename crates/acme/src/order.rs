//! One order, from the account to the certificate, resuming an order of a previous process if there
//! is one.

use crate::acme::{Challenge, Settings};
use crate::answers::Answers;
use crate::book::Present;
use crate::client::whole;
use crate::failure::{Failure, FailureReason, kind, passes, time};
use crate::stored::{Answer, Begun, Read, read};
use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeStatus, Error, Identifier,
    NewOrder, Order, OrderStatus, RetryPolicy,
};
use peregrine_tls::Challenges;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls_pki_types::Der;
use std::time::{Duration, Instant, SystemTime};
use tokio::time::sleep;

/// How often to poll the directory, and for how long, unless it requests an interval itself.
const POLLS: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(250))
    .backoff(1.5)
    .timeout(Duration::from_secs(120));

/// The context of an order.
pub(crate) struct Ordering<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) challenges: &'a Challenges,
    pub(crate) name: &'a str,
    /// The number of failed orders so far.
    pub(crate) failures: u32,
    pub(crate) present: Option<&'a Present>,
    /// The deadline for waiting for the directory. Slower orders are suspended and resumed later.
    pub(crate) until: Instant,
}

/// The authority's identifier of a certificate.
// RFC 9773 §4.1: the key identifier of its issuer, and its serial number.
pub(crate) fn identifier(present: &Present) -> Option<CertificateIdentifier<'static>> {
    let issuer = Der::from_slice(present.issuer.as_deref()?);
    Some(CertificateIdentifier::new(issuer, Der::from_slice(&present.serial)).into_owned())
}

impl Ordering<'_> {
    /// Obtains a certificate.
    pub(crate) async fn run(&self, account: &Account) -> Result<Read, Failure> {
        let (order, key) = match self.resume(account).await? {
            Some(begun) => begun,
            None => self.begin(account).await?,
        };
        let result = self.go_on(order, &key).await;
        if let Err(Failure { is_final: true, .. }) = &result
            && let Err(error) = self.settings.stored.forget_begun(self.name)
        {
            tracing::error!(target: "peregrine", name = self.name, %error,
                "a failed order cannot be deleted from the storage, and is tried again");
        }
        result
    }

    /// Waits until the time of the next poll, if the directory's last response specified one.
    // RFC 8555 §7.4 and §7.5.1: Retry-After says when to poll again.
    async fn rest(&self) -> Result<(), Failure> {
        match self.settings.client.last_told() {
            Some(until) => self.rest_until(until).await,
            None => Ok(()),
        }
    }

    async fn rest_until(&self, until: SystemTime) -> Result<(), Failure> {
        let pause = until.duration_since(SystemTime::now()).unwrap_or_default();
        if self.until.saturating_duration_since(Instant::now()) < pause {
            let text = format!("the authority requires {} s more", pause.as_secs());
            let failure = Failure::new(FailureReason::Timeout, text);
            return Err(Failure { until: Some(until), ..failure });
        }
        sleep(pause).await;
        Ok(())
    }

    /// Waits if the library gave up because of a delay requested by the directory; returns other
    /// errors.
    async fn rest_after(&self, error: Error) -> Result<Result<(), Error>, Failure> {
        let Error::Timeout(Some(at)) = error else { return Ok(Err(error)) };
        self.rest_until(time(at)).await.map(Ok)
    }

    async fn go_on(&self, mut order: Order, key: &str) -> Result<Read, Failure> {
        if order.state().status == OrderStatus::Pending {
            // The responses are given until the authority has seen them.
            let mut answers = Answers::new(self.challenges, &self.settings.stored);
            self.answer(&mut order, &mut answers).await?;
            self.rest().await?;
            let status = loop {
                match order.poll_ready(&POLLS).await {
                    Ok(status) => break Ok(status),
                    Err(error) => {
                        if let Err(error) = self.rest_after(error).await? {
                            break Err(error);
                        }
                    }
                }
            };
            match status {
                Ok(OrderStatus::Invalid) => return Err(blame(&mut order, None).await),
                Ok(_) => {}
                Err(error @ Error::Api(_)) => return Err(blame(&mut order, Some(error)).await),
                Err(error) => return Err(error.into()),
            }
        }
        if order.state().status == OrderStatus::Ready {
            order.finalize_csr(&self.request(key)?).await?;
            self.rest().await?;
        }
        let chain = loop {
            match order.poll_certificate(&POLLS).await {
                Ok(chain) => break chain,
                Err(error) => self.rest_after(error).await??,
            }
        };
        let pem = format!("{}\n{key}", chain.trim_end()).into_bytes();
        let unusable = |cause| {
            let text = format!("the issued certificate is not usable: {cause}");
            Failure::for_good(FailureReason::Certificate, text)
        };
        read(self.name, pem).map_err(unusable)
    }

    /// The order that a previous process began, if it is still usable.
    async fn resume(&self, account: &Account) -> Result<Option<(Order, String)>, Failure> {
        let stored = &self.settings.stored;
        let Some(Begun { order, key }) = stored.begun(self.name) else { return Ok(None) };
        // Its certificate may be stored already.
        let is_done = |read: Read| String::from_utf8_lossy(&read.pem).contains(key.trim());
        if !stored.certificate(self.name).is_some_and(is_done) {
            match account.order(order).await {
                Ok(mut order) => {
                    if order.state().status != OrderStatus::Invalid {
                        tracing::info!(target: "peregrine", name = self.name, order = order.url(),
                            "resuming an order");
                        return Ok(Some((order, key)));
                    }
                }
                // The directory does not know the order any more.
                Err(Error::Api(problem)) if !passes(&problem) => {}
                Err(error) => return Err(error.into()),
            }
        }
        stored.forget_begun(self.name).map_err(|error| Failure::storage("an order", &error))?;
        Ok(None)
    }

    /// A new order, which is stored before it is processed.
    async fn begin(&self, account: &Account) -> Result<(Order, String), Failure> {
        let key = KeyPair::generate()
            .map_err(|error| Failure::new(FailureReason::Certificate, error.to_string()))?;
        let identifiers = [Identifier::Dns(self.name.to_owned())];
        let new = || {
            let new = NewOrder::new(&identifiers);
            match &self.settings.profile {
                Some(profile) => new.profile(profile),
                None => new,
            }
        };
        let replaced = self.present.and_then(identifier);
        let order = match replaced {
            None => account.new_order(&new()).await?,
            Some(replaced) => match account.new_order(&new().replaces(replaced)).await {
                // Naming the replaced certificate only informs the authority; a rejection must not
                // prevent the order.
                Err(error) if is_about_replacing(&error) => account.new_order(&new()).await?,
                order => order?,
            },
        };
        let begun = Begun { order: order.url().to_owned(), key: key.serialize_pem() };
        let kept = self.settings.stored.keep_begun(self.name, &begun);
        kept.map_err(|error| Failure::storage("an order", &error))?;
        tracing::info!(target: "peregrine", name = self.name, order = begun.order,
            "a certificate was ordered");
        Ok((order, begun.key))
    }

    /// Responds to all pending challenges.
    async fn answer(&self, order: &mut Order, answers: &mut Answers<'_>) -> Result<(), Failure> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            match authorization.status {
                AuthorizationStatus::Valid => continue,
                AuthorizationStatus::Pending => {}
                status => {
                    let text = format!("the authorization has the status {status:?}");
                    return Err(Failure::for_good(FailureReason::Refused, text));
                }
            }
            let offered: Vec<_> =
                authorization.challenges.iter().map(|offered| offered.r#type.clone()).collect();
            let may = |kind: &Challenge| offered.contains(&kind.kind());
            let able: Vec<_> = self.settings.challenges.iter().copied().filter(may).collect();
            // In a suspended order, the authority may be processing a challenge already; after a
            // failure, try the next kind.
            let is_at = |kind: &&Challenge| {
                let mut all = authorization.challenges.iter();
                let is_it = |status| status == ChallengeStatus::Processing;
                all.any(|offered| offered.r#type == kind.kind() && is_it(offered.status))
            };
            let next = || able.get(self.failures as usize % able.len().max(1));
            let Some(&kind) = able.iter().find(is_at).or_else(next) else {
                let text = format!(
                    "the authority offers none of the enabled kinds of challenge: {offered:?}"
                );
                return Err(Failure::new(FailureReason::Challenge, text));
            };
            let Some(mut challenge) = authorization.challenge(kind.kind()) else { continue };
            let text = challenge.key_authorization();
            let answer = match kind {
                Challenge::TlsAlpn01 => Answer::by_connection,
                Challenge::Http01 => Answer::by_request,
            };
            let given = answers.give(answer(self.name, &challenge.token, text.as_str()));
            given.map_err(|text| Failure::new(FailureReason::Challenge, text))?;
            tracing::debug!(target: "peregrine", name = self.name, ?kind, "responding to a challenge");
            if challenge.status == ChallengeStatus::Pending {
                challenge.set_ready().await?;
            }
        }
        Ok(())
    }

    /// The certificate request with this key.
    fn request(&self, key: &str) -> Result<Vec<u8>, Failure> {
        let made = || {
            let mut parameters = CertificateParams::new([self.name.to_owned()])?;
            parameters.distinguished_name = DistinguishedName::new();
            let request = parameters.serialize_request(&KeyPair::from_pem(key)?)?;
            Ok::<_, rcgen::Error>(request.der().to_vec())
        };
        made().map_err(|error| Failure::for_good(FailureReason::Certificate, error.to_string()))
    }
}

/// Whether the order was rejected because of the certificate it replaces.
fn is_about_replacing(error: &Error) -> bool {
    match error {
        Error::Unsupported(_) => true,
        // RFC 9773 §5: alreadyReplaced; other authorities use other errors.
        Error::Api(problem) => !matches!(kind(problem), "rateLimited" | "accountDoesNotExist"),
        // The library compares the authority's `replaces` with ours.
        error => error.to_string().contains("replaces field mismatch"),
    }
}

/// Why the authority could not verify the name, according to the challenges.
async fn blame(order: &mut Order, error: Option<Error>) -> Failure {
    let mut found = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let Ok(state) = authorization.refresh().await else { continue };
        for challenge in &state.challenges {
            if let Some(problem) = &challenge.error {
                found.push(format!("{:?}: {problem}", challenge.r#type));
            }
        }
    }
    if found.is_empty() {
        let cause = error.map_or("no reason given".to_owned(), |error| whole(&error));
        let text = format!("the authority rejected the order: {cause}");
        return Failure::new(FailureReason::Refused, text);
    }
    let text = format!(
        "the authority could not verify the name: {}; \
        port 443 (tls-alpn-01) or 80 (http-01) of the name must reach this server",
        found.join("; ")
    );
    Failure::new(FailureReason::Challenge, text)
}
