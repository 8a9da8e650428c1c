//! One order, from the account to the certificate, resuming an order of a previous process if there
//! is one.

use crate::acme::{AcmeSettings, Challenge};
use crate::challenge_responses::ActiveResponses;
use crate::failure::{
    FailureReason, OrderFailure, is_unrelated_to_order, problem_type, to_system_time,
};
use crate::http_client::error_chain;
use crate::schedule::CurrentCertificate;
use crate::scoped_storage::{
    ChallengeResponse, PendingOrder, StoredCertificate, parse_certificate,
};
use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeStatus, Error, Identifier,
    NewOrder, Order, OrderStatus, RetryPolicy,
};
use peregrine_tls::ChallengeResponses;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls_pki_types::Der;
use std::time::{Duration, Instant, SystemTime};
use tokio::time::sleep;

/// How often to poll the directory, and for how long, unless it requests an interval itself.
const POLL_RETRY_POLICY: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(250))
    .backoff(1.5)
    .timeout(Duration::from_secs(120));

/// The context of an order.
pub(crate) struct OrderContext<'a> {
    pub(crate) settings: &'a AcmeSettings,
    pub(crate) challenges: &'a ChallengeResponses,
    pub(crate) domain: &'a str,
    /// The number of failed orders so far.
    pub(crate) failures: u32,
    pub(crate) current: Option<&'a CurrentCertificate>,
    /// The deadline for waiting for the directory. Slower orders are suspended and resumed later.
    pub(crate) deadline: Instant,
}

/// Returns the identifier of a certificate for requests for renewal information.
// RFC 9773 §4.1: the key identifier of its issuer, and its serial number.
pub(crate) fn ari_certificate_id(
    current: &CurrentCertificate,
) -> Option<CertificateIdentifier<'static>> {
    let issuer = Der::from_slice(current.issuer.as_deref()?);
    Some(CertificateIdentifier::new(issuer, Der::from_slice(&current.serial)).into_owned())
}

impl OrderContext<'_> {
    /// Obtains a certificate.
    pub(crate) async fn run(&self, account: &Account) -> Result<StoredCertificate, OrderFailure> {
        let (order, key) = match self.resume(account).await? {
            Some(resumed) => resumed,
            None => self.create(account).await?,
        };
        let result = self.drive(order, &key).await;
        if let Err(OrderFailure { is_permanent: true, .. }) = &result
            && let Err(error) = self.settings.storage.remove_pending_order(self.domain)
        {
            tracing::error!(target: "peregrine", name = self.domain, %error,
                "a failed order cannot be deleted from the storage, and is tried again");
        }
        result
    }

    /// Waits until the time of the next poll, if the directory's last response specified one.
    // RFC 8555 §7.4 and §7.5.1: Retry-After says when to poll again.
    async fn wait_retry_after(&self) -> Result<(), OrderFailure> {
        match self.settings.client.last_retry_after() {
            Some(until) => self.wait_until(until).await,
            None => Ok(()),
        }
    }

    async fn wait_until(&self, until: SystemTime) -> Result<(), OrderFailure> {
        let delay = until.duration_since(SystemTime::now()).unwrap_or_default();
        if self.deadline.saturating_duration_since(Instant::now()) < delay {
            let text = format!("the authority requires {} s more", delay.as_secs());
            let failure = OrderFailure::new(FailureReason::Timeout, text);
            return Err(OrderFailure { retry_after: Some(until), ..failure });
        }
        sleep(delay).await;
        Ok(())
    }

    /// Waits if the library gave up because of a delay requested by the directory; returns other
    /// errors.
    async fn wait_if_rate_limited(&self, error: Error) -> Result<Result<(), Error>, OrderFailure> {
        let Error::Timeout(Some(at)) = error else { return Ok(Err(error)) };
        self.wait_until(to_system_time(at)).await.map(Ok)
    }

    async fn drive(&self, mut order: Order, key: &str) -> Result<StoredCertificate, OrderFailure> {
        if order.state().status == OrderStatus::Pending {
            // The responses stay published until the authority has requested them.
            let mut responses = ActiveResponses::new(self.challenges, &self.settings.storage);
            self.complete_challenges(&mut order, &mut responses).await?;
            self.wait_retry_after().await?;
            let status = loop {
                match order.poll_ready(&POLL_RETRY_POLICY).await {
                    Ok(status) => break Ok(status),
                    Err(error) => {
                        if let Err(error) = self.wait_if_rate_limited(error).await? {
                            break Err(error);
                        }
                    }
                }
            };
            match status {
                Ok(OrderStatus::Invalid) => return Err(challenge_failure(&mut order, None).await),
                Ok(_) => {}
                Err(error @ Error::Api(_)) => {
                    return Err(challenge_failure(&mut order, Some(error)).await);
                }
                Err(error) => return Err(error.into()),
            }
        }
        if order.state().status == OrderStatus::Ready {
            order.finalize_csr(&self.create_csr(key)?).await?;
            self.wait_retry_after().await?;
        }
        let chain = loop {
            match order.poll_certificate(&POLL_RETRY_POLICY).await {
                Ok(chain) => break chain,
                Err(error) => self.wait_if_rate_limited(error).await??,
            }
        };
        let pem = format!("{}\n{key}", chain.trim_end()).into_bytes();
        let unusable = |cause| {
            let text = format!("the issued certificate is not usable: {cause}");
            OrderFailure::permanent(FailureReason::InvalidCertificate, text)
        };
        parse_certificate(self.domain, pem).map_err(unusable)
    }

    /// Resumes the order that a previous process started, if it is still usable.
    async fn resume(&self, account: &Account) -> Result<Option<(Order, String)>, OrderFailure> {
        let storage = &self.settings.storage;
        let Some(PendingOrder { order_url, private_key_pem }) = storage.pending_order(self.domain)
        else {
            return Ok(None);
        };
        // Its certificate may be stored already.
        let has_same_key = |certificate: StoredCertificate| {
            String::from_utf8_lossy(&certificate.pem).contains(private_key_pem.trim())
        };
        if !storage.certificate(self.domain).is_some_and(has_same_key) {
            match account.order(order_url).await {
                Ok(mut order) => {
                    if order.state().status != OrderStatus::Invalid {
                        tracing::info!(target: "peregrine", name = self.domain, order = order.url(),
                            "resuming an order");
                        return Ok(Some((order, private_key_pem)));
                    }
                }
                // The directory does not know the order anymore.
                Err(Error::Api(problem)) if !is_unrelated_to_order(&problem) => {}
                Err(error) => return Err(error.into()),
            }
        }
        storage
            .remove_pending_order(self.domain)
            .map_err(|error| OrderFailure::storage("an order", &error))?;
        Ok(None)
    }

    /// Creates an order, and stores it before it is processed.
    async fn create(&self, account: &Account) -> Result<(Order, String), OrderFailure> {
        let key = KeyPair::generate().map_err(|error| {
            OrderFailure::new(FailureReason::InvalidCertificate, error.to_string())
        })?;
        let identifiers = [Identifier::Dns(self.domain.to_owned())];
        let new_order = || {
            let new_order = NewOrder::new(&identifiers);
            match &self.settings.profile {
                Some(profile) => new_order.profile(profile),
                None => new_order,
            }
        };
        let replaced = self.current.and_then(ari_certificate_id);
        let order = match replaced {
            None => account.new_order(&new_order()).await?,
            Some(replaced) => match account.new_order(&new_order().replaces(replaced)).await {
                // Naming the replaced certificate only informs the authority; a rejection must not
                // prevent the order.
                Err(error) if is_replaces_error(&error) => account.new_order(&new_order()).await?,
                order => order?,
            },
        };
        let pending_order = PendingOrder {
            order_url: order.url().to_owned(),
            private_key_pem: key.serialize_pem(),
        };
        let result = self.settings.storage.store_pending_order(self.domain, &pending_order);
        result.map_err(|error| OrderFailure::storage("an order", &error))?;
        tracing::info!(target: "peregrine", name = self.domain, order = pending_order.order_url,
            "a certificate was ordered");
        Ok((order, pending_order.private_key_pem))
    }

    /// Responds to all pending challenges.
    async fn complete_challenges(
        &self,
        order: &mut Order,
        responses: &mut ActiveResponses<'_>,
    ) -> Result<(), OrderFailure> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            match authorization.status {
                AuthorizationStatus::Valid => continue,
                AuthorizationStatus::Pending => {}
                status => {
                    let text = format!("the authorization has the status {status:?}");
                    return Err(OrderFailure::permanent(FailureReason::Rejected, text));
                }
            }
            let offered: Vec<_> =
                authorization.challenges.iter().map(|challenge| challenge.r#type.clone()).collect();
            let is_offered = |kind: &Challenge| offered.contains(&kind.to_protocol());
            let usable: Vec<_> =
                self.settings.challenges.iter().copied().filter(is_offered).collect();
            // In a suspended order, the authority may be processing a challenge already; after a
            // failure, try the next kind.
            let is_processing = |kind: &&Challenge| {
                let mut challenges = authorization.challenges.iter();
                let is_processing_status = |status| status == ChallengeStatus::Processing;
                challenges.any(|challenge| {
                    challenge.r#type == kind.to_protocol() && is_processing_status(challenge.status)
                })
            };
            let next = || usable.get(self.failures as usize % usable.len().max(1));
            let Some(&kind) = usable.iter().find(is_processing).or_else(next) else {
                let text = format!(
                    "the authority offers none of the enabled kinds of challenge: {offered:?}"
                );
                return Err(OrderFailure::new(FailureReason::Challenge, text));
            };
            let Some(mut challenge) = authorization.challenge(kind.to_protocol()) else { continue };
            let key_authorization = challenge.key_authorization();
            let build_response = match kind {
                Challenge::TlsAlpn01 => ChallengeResponse::tls_alpn01,
                Challenge::Http01 => ChallengeResponse::http01,
            };
            let published = responses.publish(build_response(
                self.domain,
                &challenge.token,
                key_authorization.as_str(),
            ));
            published.map_err(|text| OrderFailure::new(FailureReason::Challenge, text))?;
            tracing::debug!(target: "peregrine", name = self.domain, ?kind, "responding to a challenge");
            if challenge.status == ChallengeStatus::Pending {
                challenge.set_ready().await?;
            }
        }
        Ok(())
    }

    /// Creates a certificate request with this key.
    fn create_csr(&self, key: &str) -> Result<Vec<u8>, OrderFailure> {
        let build = || {
            let mut parameters = CertificateParams::new([self.domain.to_owned()])?;
            parameters.distinguished_name = DistinguishedName::new();
            let request = parameters.serialize_request(&KeyPair::from_pem(key)?)?;
            Ok::<_, rcgen::Error>(request.der().to_vec())
        };
        build().map_err(|error| {
            OrderFailure::permanent(FailureReason::InvalidCertificate, error.to_string())
        })
    }
}

/// Whether the order was rejected because of the certificate it replaces.
fn is_replaces_error(error: &Error) -> bool {
    match error {
        Error::Unsupported(_) => true,
        // RFC 9773 §5: alreadyReplaced; other authorities use other errors.
        Error::Api(problem) => {
            !matches!(problem_type(problem), "rateLimited" | "accountDoesNotExist")
        }
        // The library compares the authority's `replaces` with ours.
        error => error.to_string().contains("replaces field mismatch"),
    }
}

/// Returns why the authority could not verify the name, according to the challenges.
async fn challenge_failure(order: &mut Order, error: Option<Error>) -> OrderFailure {
    let mut problems = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let Ok(state) = authorization.refresh().await else { continue };
        for challenge in &state.challenges {
            if let Some(problem) = &challenge.error {
                problems.push(format!("{:?}: {problem}", challenge.r#type));
            }
        }
    }
    if problems.is_empty() {
        let cause = error.map_or("no reason given".to_owned(), |error| error_chain(&error));
        let text = format!("the authority rejected the order: {cause}");
        return OrderFailure::new(FailureReason::Rejected, text);
    }
    let text = format!(
        "the authority could not verify the name: {}; \
        port 443 (tls-alpn-01) or 80 (http-01) of the name must reach this server",
        problems.join("; ")
    );
    OrderFailure::new(FailureReason::Challenge, text)
}
