//! The account at the directory: made once, kept, and brought in line with settings that have changed.

use crate::acme::Settings;
use crate::failure::{Failure, FailureReason, has_no_account};
use crate::stored::Stored;
use instant_acme::{Account, AccountBuilder, AccountCredentials, NewAccount};
use serde_json::{Map, Value};

/// What is kept of an account: what the library for the protocol wants, and beside that what the directory was told.
struct Kept(Map<String, Value>);

/// The members that are ours.
const CONTACTS: &str = "contacts";
const EXTERNAL: &str = "external";

impl Kept {
    fn new(credentials: &AccountCredentials, settings: &Settings) -> serde_json::Result<Self> {
        let Value::Object(members) = serde_json::to_value(credentials)? else {
            return Err(serde::ser::Error::custom("an account is not a map"));
        };
        let mut kept = Self(members);
        kept.0.insert(EXTERNAL.to_owned(), settings.external_id.clone().into());
        kept.told(settings);
        Ok(kept)
    }

    fn read(bytes: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(bytes).map(Self)
    }

    /// The directory knows the contacts.
    fn told(&mut self, settings: &Settings) {
        self.0.insert(CONTACTS.to_owned(), settings.contacts.clone().into());
    }

    fn knows(&self, contacts: &[String]) -> bool {
        self.0.get(CONTACTS).is_some_and(|known| *known == Value::from(contacts))
    }

    /// Was it made for another account elsewhere than the settings name now? An account is bound once, when it is made.
    fn is_bound_elsewhere(&self, settings: &Settings) -> bool {
        let Some(wanted) = &settings.external_id else { return false };
        self.0.get(EXTERNAL).is_some_and(|bound| bound.as_str() != Some(wanted))
    }

    /// For the directory that is asked now: two may have one folder.
    fn credentials(&self, directory: &str) -> serde_json::Result<AccountCredentials> {
        let mut members = self.0.clone();
        members.insert("directory".to_owned(), directory.into());
        serde_json::from_value(Value::Object(members))
    }

    fn store(&self, stored: &Stored) -> Result<(), Failure> {
        let bytes = serde_json::to_vec(&self.0);
        let bytes =
            bytes.map_err(|error| Failure::new(FailureReason::Account, error.to_string()))?;
        stored.keep_account(&bytes).map_err(|error| Failure::storage("the account", &error))
    }
}

/// The account. Where this instance has the lock (`may_make`), it is made if there is none, or if the present one is for
/// something else, and the directory is told of contacts that have changed.
pub(crate) async fn account(
    settings: &Settings,
    may_make: bool,
) -> Result<Option<Account>, Failure> {
    let kept =
        settings.stored.account().map_err(|error| Failure::storage("the account", &error))?;
    let read = kept.map(|bytes| {
        let kept = Kept::read(&bytes)?;
        kept.credentials(&settings.directory).map(|credentials| (kept, credentials))
    });
    match read {
        Some(Ok((kept, _))) if kept.is_bound_elsewhere(settings) => tracing::info!(
            target: "peregrine", directory = settings.directory, external = settings.external_id,
            "the stored ACME account belongs to another external account; a new one takes its place"),
        Some(Ok((kept, credentials))) => {
            let account = builder(settings).from_credentials(credentials).await?;
            if may_make && !kept.knows(&settings.contacts) {
                tell_contacts(settings, &account, kept).await?;
            }
            return Ok(Some(account));
        }
        Some(Err(error)) => tracing::error!(target: "peregrine", %error,
            "the stored ACME account cannot be used; another one will be made"),
        None => {}
    }
    if may_make { make(settings).await.map(Some) } else { Ok(None) }
}

fn builder(settings: &Settings) -> AccountBuilder {
    Account::builder_with_http(settings.client.http())
}

async fn make(settings: &Settings) -> Result<Account, Failure> {
    // Authorities allow few accounts: none is made that would be lost.
    settings.stored.probe().map_err(|error| Failure::storage("the account", &error))?;
    let contact: Vec<_> = settings.contacts.iter().map(String::as_str).collect();
    let new = NewAccount {
        contact: &contact,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let (url, external) = (settings.directory.clone(), settings.external.as_ref());
    let made = builder(settings).create(&new, url, external).await;
    let (account, credentials) = made.map_err(|error| match Failure::from(error) {
        failure @ Failure { reason: FailureReason::Refused, .. } => {
            Failure { reason: FailureReason::Account, ..failure }
        }
        failure => failure,
    })?;
    let kept = Kept::new(&credentials, settings);
    let kept = kept.map_err(|error| Failure::new(FailureReason::Account, error.to_string()))?;
    kept.store(&settings.stored)?;
    tracing::info!(target: "peregrine", directory = settings.directory, account = account.id(),
        "an ACME account was made");
    Ok(account)
}

/// Tells the directory of contacts that have changed. That it does not take them is no reason to have no certificate.
async fn tell_contacts(
    settings: &Settings,
    account: &Account,
    mut kept: Kept,
) -> Result<(), Failure> {
    let contacts: Vec<_> = settings.contacts.iter().map(String::as_str).collect();
    match account.update_contacts(&contacts).await {
        Ok(()) => {
            tracing::info!(target: "peregrine", account = account.id(), ?contacts,
                "the contacts of the ACME account were changed");
            kept.told(settings);
            if let Err(failure) = kept.store(&settings.stored) {
                tracing::error!(target: "peregrine", error = failure.text,
                    "what the authority was told is not stored, and is told again");
            }
            Ok(())
        }
        Err(error) if has_no_account(&error) => Err(error.into()),
        Err(error) => {
            tracing::error!(target: "peregrine", account = account.id(), ?contacts,
                error = Failure::from(error).text,
                "the contacts of the ACME account cannot be changed; orders go on");
            Ok(())
        }
    }
}

/// Forgets the account that the directory does not know, unless another instance has put a new one in its place.
pub(crate) fn forget(stored: &Stored, id: Option<&str>) {
    let is_other = |bytes: Vec<u8>| {
        let kept = Kept::read(&bytes).ok()?;
        Some(kept.0.get("id")?.as_str()? != id?)
    };
    if stored.account().ok().flatten().and_then(is_other) == Some(true) {
        return;
    }
    tracing::warn!(target: "peregrine", account = id,
        "the authority does not know the ACME account; another one will be made");
    if let Err(error) = stored.forget_account() {
        tracing::error!(target: "peregrine", %error, "the ACME account cannot be forgotten");
    }
}
