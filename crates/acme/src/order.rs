//! One order: from the account to the certificate, going on where a process before this one was.

use crate::acme::{Challenge, Settings};
use crate::answers::Answers;
use crate::book::Present;
use crate::client::whole;
use crate::stored::{Begun, Read, read};
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, CertificateIdentifier, ChallengeStatus,
    Error, Identifier, NewAccount, NewOrder, Order, OrderStatus, Problem, RetryPolicy,
};
use peregrine_tls::Challenges;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls_pki_types::Der;
use std::time::Duration;

/// How often the directory is asked whether it is done, and for how long. It says itself how often it wants to be
/// asked.
const POLLS: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(250))
    .backoff(1.5)
    .timeout(Duration::from_secs(120));

/// Why there is no certificate.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) text: String,
    /// The directory does not know the account.
    pub(crate) is_unknown_account: bool,
    /// Whoever goes on with the same order fails again.
    is_final: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (is_unknown_account, is_final) = (has_no_account(&error), is_final(&error));
        Self { is_unknown_account, is_final, text: whole(&error) }
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self { text, is_unknown_account: false, is_final: false }
    }
}

/// What an order needs.
pub(crate) struct Ordering<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) challenges: &'a Challenges,
    pub(crate) name: &'a str,
    /// How many orders for it have failed.
    pub(crate) failures: u32,
    pub(crate) present: Option<&'a Present>,
}

/// The account at the directory. It is made if there is none and it `may_make` one.
pub(crate) async fn account(
    settings: &Settings,
    may_make: bool,
) -> Result<Option<Account>, Failure> {
    let builder = || Account::builder_with_http(settings.client.http());
    let kept = settings.stored.account().map_err(|error| storage("the account", &error))?;
    let kept = kept.map(|bytes| serde_json::from_slice::<AccountCredentials>(&bytes));
    match kept {
        Some(Ok(credentials)) => {
            return Ok(Some(builder().from_credentials(credentials).await?));
        }
        Some(Err(error)) => tracing::error!(target: "peregrine", %error,
            "the stored ACME account cannot be used; another one will be made"),
        None => {}
    }
    if !may_make {
        return Ok(None);
    }
    // Authorities allow few accounts: none is made that would be lost.
    settings.stored.probe().map_err(|error| storage("the account", &error))?;
    let contact: Vec<_> = settings.contacts.iter().map(String::as_str).collect();
    let new = NewAccount {
        contact: &contact,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let url = settings.directory.clone();
    let (account, credentials) = builder().create(&new, url, settings.external.as_ref()).await?;
    let bytes =
        serde_json::to_vec(&credentials).map_err(|error| Failure::from(error.to_string()))?;
    settings.stored.keep_account(&bytes).map_err(|error| storage("the account", &error))?;
    tracing::info!(target: "peregrine", directory = settings.directory, account = account.id(),
        "an ACME account was made");
    Ok(Some(account))
}

fn storage(what: &str, error: &std::io::Error) -> Failure {
    Failure::from(format!("{what} cannot be stored or read: {error}"))
}

/// Does the directory say that it does not know the account?
fn has_no_account(error: &Error) -> bool {
    let Error::Api(Problem { r#type: Some(kind), .. }) = error else { return false };
    kind == "urn:ietf:params:acme:error:accountDoesNotExist"
}

/// Does the directory refuse this order for good, such as for its key or because the certificate is gone?
fn is_final(error: &Error) -> bool {
    matches!(error, Error::Api(problem) if problem.r#type.is_some() && !passes(problem))
}

/// Does the problem say nothing about the order that it came up with?
// RFC 8555 §6.7.
fn passes(problem: &Problem) -> bool {
    let kind = problem.r#type.as_deref().unwrap_or_default();
    let kind = kind.strip_prefix("urn:ietf:params:acme:error:").unwrap_or_default();
    matches!(
        kind,
        "accountDoesNotExist" | "badNonce" | "orderNotReady" | "rateLimited" | "serverInternal"
    )
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

    async fn go_on(&self, mut order: Order, key: &str) -> Result<Read, Failure> {
        if order.state().status == OrderStatus::Pending {
            // They are given until the authority has seen them.
            let mut answers = Answers::new(self.challenges);
            self.answer(&mut order, &mut answers).await?;
            match order.poll_ready(&POLLS).await {
                Ok(OrderStatus::Invalid) => return Err(blame(&mut order, None).await),
                Ok(_) => {}
                Err(error @ Error::Api(_)) => return Err(blame(&mut order, Some(error)).await),
                Err(error) => return Err(error.into()),
            }
        }
        if order.state().status == OrderStatus::Ready {
            order.finalize_csr(&self.request(key)?).await?;
        }
        let chain = order.poll_certificate(&POLLS).await?;
        let pem = format!("{}\n{key}", chain.trim_end()).into_bytes();
        let unusable = |cause| Failure {
            is_final: true,
            ..Failure::from(format!("the issued certificate cannot be used: {cause}"))
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
        stored.forget_begun(self.name).map_err(|error| storage("an order", &error))?;
        Ok(None)
    }

    /// A new order, which is stored before anything comes of it.
    async fn begin(&self, account: &Account) -> Result<(Order, String), Failure> {
        let key = KeyPair::generate().map_err(|error| Failure::from(error.to_string()))?;
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
        kept.map_err(|error| storage("an order", &error))?;
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
                status => return Err(format!("its authorization is {status:?}").into()),
            }
            let offered: Vec<_> =
                authorization.challenges.iter().map(|offered| offered.r#type.clone()).collect();
            let may = |kind: &Challenge| offered.contains(&kind.kind());
            let able: Vec<_> = self.settings.challenges.iter().copied().filter(may).collect();
            // After a failure the next kind is tried.
            let Some(&kind) = able.get(self.failures as usize % able.len().max(1)) else {
                return Err(format!(
                    "the authority offers no kind of challenge that may be \
                    answered: {offered:?}"
                )
                .into());
            };
            let Some(mut challenge) = authorization.challenge(kind.kind()) else { continue };
            let key_authorization = challenge.key_authorization();
            match kind {
                Challenge::TlsAlpn01 => {
                    answers.answer_connections(self.name, &key_authorization)?
                }
                Challenge::Http01 => answers.answer_requests(&challenge.token, &key_authorization),
            }
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
        made().map_err(|error| Failure { is_final: true, ..Failure::from(error.to_string()) })
    }
}

/// Was the order refused because of what it replaces?
fn is_about_replacing(error: &Error) -> bool {
    match error {
        Error::Unsupported(_) => true,
        // RFC 9773 §5: alreadyReplaced; others say what they think of it in words of their own.
        Error::Api(problem) => {
            let kind = problem.r#type.as_deref().unwrap_or_default();
            !kind.ends_with(":rateLimited") && !kind.ends_with(":accountDoesNotExist")
        }
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
        return Failure::from(format!("the authority refuses the order: {cause}"));
    }
    Failure::from(format!(
        "the authority could not see that the name is this server's: {}; \
        its ports 443 (tls-alpn-01) or 80 (http-01) must lead here",
        found.join("; ")
    ))
}
