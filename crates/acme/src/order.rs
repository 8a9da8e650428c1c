//! One order: from an account to the certificate, going on where a process before this one was.

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

/// How often the directory is asked whether it is done, and for how long. It says itself how often it wants to be
/// asked.
const POLLS: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(250))
    .backoff(1.5)
    .timeout(Duration::from_secs(120));

/// What an order needs.
pub(crate) struct Ordering<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) challenges: &'a Challenges,
    pub(crate) name: &'a str,
    /// How many orders for it have failed.
    pub(crate) failures: u32,
    pub(crate) present: Option<&'a Present>,
    /// Until when it may wait for the directory. What takes longer is left, and gone on with later.
    pub(crate) until: Instant,
}

/// By which its authority knows a certificate.
// RFC 9773 §4.1: the key identifier of its issuer, and its serial number.
pub(crate) fn identifier(present: &Present) -> Option<CertificateIdentifier<'static>> {
    let issuer = Der::from_slice(present.issuer.as_deref()?);
    Some(CertificateIdentifier::new(issuer, Der::from_slice(&present.serial)).into_owned())
}

impl Ordering<'_> {
    /// Gets a certificate.
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
                "an order that failed cannot be forgotten, and is tried again");
        }
        result
    }

    /// Waits until the directory wants to be asked, if it has said so with its last answer.
    // RFC 8555 §7.4 and §7.5.1: a server says by Retry-After when to look again.
    async fn rest(&self) -> Result<(), Failure> {
        match self.settings.client.last_told() {
            Some(until) => self.rest_until(until).await,
            None => Ok(()),
        }
    }

    async fn rest_until(&self, until: SystemTime) -> Result<(), Failure> {
        let pause = until.duration_since(SystemTime::now()).unwrap_or_default();
        if self.until.saturating_duration_since(Instant::now()) < pause {
            let text = format!("the authority asks for {} s more", pause.as_secs());
            let failure = Failure::new(FailureReason::Timeout, text);
            return Err(Failure { until: Some(until), ..failure });
        }
        sleep(pause).await;
        Ok(())
    }

    /// Goes on where the library has lost its patience with what the directory asks for; other errors stay.
    async fn rest_after(&self, error: Error) -> Result<Result<(), Error>, Failure> {
        let Error::Timeout(Some(at)) = error else { return Ok(Err(error)) };
        self.rest_until(time(at)).await.map(Ok)
    }

    async fn go_on(&self, mut order: Order, key: &str) -> Result<Read, Failure> {
        if order.state().status == OrderStatus::Pending {
            // They are given until the authority has seen them.
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
            let text = format!("the issued certificate cannot be used: {cause}");
            Failure::for_good(FailureReason::Certificate, text)
        };
        read(self.name, pem).map_err(unusable)
    }

    /// The order that a process before this one has begun, if it can still be of use.
    async fn resume(&self, account: &Account) -> Result<Option<(Order, String)>, Failure> {
        let stored = &self.settings.stored;
        let Some(Begun { order, key }) = stored.begun(self.name) else { return Ok(None) };
        // What came of it may be stored already.
        let is_done = |read: Read| String::from_utf8_lossy(&read.pem).contains(key.trim());
        if !stored.certificate(self.name).is_some_and(is_done) {
            match account.order(order).await {
                Ok(mut order) => {
                    if order.state().status != OrderStatus::Invalid {
                        tracing::info!(target: "peregrine", name = self.name, order = order.url(),
                            "an order is gone on with");
                        return Ok(Some((order, key)));
                    }
                }
                // The directory knows nothing of it any more.
                Err(Error::Api(problem)) if !passes(&problem) => {}
                Err(error) => return Err(error.into()),
            }
        }
        stored.forget_begun(self.name).map_err(|error| Failure::storage("an order", &error))?;
        Ok(None)
    }

    /// A new order, which is stored before anything comes of it.
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
                // What is replaced is for the authority to know, and no reason to have no certificate.
                Err(error) if is_about_replacing(&error) => account.new_order(&new()).await?,
                order => order?,
            },
        };
        let begun = Begun { order: order.url().to_owned(), key: key.serialize_pem() };
        let kept = self.settings.stored.keep_begun(self.name, &begun);
        kept.map_err(|error| Failure::storage("an order", &error))?;
        tracing::info!(target: "peregrine", name = self.name, order = begun.order,
            "a certificate is ordered");
        Ok((order, begun.key))
    }

    /// Answers all challenges that are left.
    async fn answer(&self, order: &mut Order, answers: &mut Answers<'_>) -> Result<(), Failure> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            match authorization.status {
                AuthorizationStatus::Valid => continue,
                AuthorizationStatus::Pending => {}
                status => {
                    let text = format!("its authorization is {status:?}");
                    return Err(Failure::for_good(FailureReason::Refused, text));
                }
            }
            let offered: Vec<_> =
                authorization.challenges.iter().map(|offered| offered.r#type.clone()).collect();
            let may = |kind: &Challenge| offered.contains(&kind.kind());
            let able: Vec<_> = self.settings.challenges.iter().copied().filter(may).collect();
            // The authority is at one already, if the order was left; after a failure the next kind is tried.
            let is_at = |kind: &&Challenge| {
                let mut all = authorization.challenges.iter();
                let is_it = |status| status == ChallengeStatus::Processing;
                all.any(|offered| offered.r#type == kind.kind() && is_it(offered.status))
            };
            let next = || able.get(self.failures as usize % able.len().max(1));
            let Some(&kind) = able.iter().find(is_at).or_else(next) else {
                let text = format!(
                    "the authority offers no kind of challenge that may be answered: {offered:?}"
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
            tracing::debug!(target: "peregrine", name = self.name, ?kind, "a challenge is answered");
            if challenge.status == ChallengeStatus::Pending {
                challenge.set_ready().await?;
            }
        }
        Ok(())
    }

    /// The request for a certificate with this key.
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

/// Was the order refused because of what it replaces?
fn is_about_replacing(error: &Error) -> bool {
    match error {
        Error::Unsupported(_) => true,
        // RFC 9773 §5: alreadyReplaced; others say what they think of it in words of their own.
        Error::Api(problem) => !matches!(kind(problem), "rateLimited" | "accountDoesNotExist"),
        // The library compares what the authority says to have replaced.
        error => error.to_string().contains("replaces field mismatch"),
    }
}

/// Why the authority found that the name is not ours: what it says of the challenges.
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
        let cause = error.map_or("it does not say why".to_owned(), |error| whole(&error));
        let text = format!("the authority refuses the order: {cause}");
        return Failure::new(FailureReason::Refused, text);
    }
    let text = format!(
        "the authority could not see that the name is this server's: {}; \
        its ports 443 (tls-alpn-01) or 80 (http-01) must lead here",
        found.join("; ")
    );
    Failure::new(FailureReason::Challenge, text)
}
