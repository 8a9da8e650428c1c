//! The account at the directory: created once, stored, and updated when the settings change.

use crate::acme::Settings;
use crate::failure::{Failure, FailureReason, has_no_account};
use crate::stored::Stored;
use instant_acme::{Account, AccountBuilder, AccountCredentials, NewAccount};
use serde_json::{Map, Value};

/// A stored account: the credentials of the ACME library, and the data sent to the directory.
struct Kept(Map<String, Value>);

/// Additional members of the stored object.
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

    /// Records the contacts known to the directory.
    fn told(&mut self, settings: &Settings) {
        self.0.insert(CONTACTS.to_owned(), settings.contacts.clone().into());
    }

    fn knows(&self, contacts: &[String]) -> bool {
        self.0.get(CONTACTS).is_some_and(|known| *known == Value::from(contacts))
    }

    /// Whether it is bound to another external account than the settings name. An account is bound
    /// only on creation.
    fn is_bound_elsewhere(&self, settings: &Settings) -> bool {
        let Some(wanted) = &settings.external_id else { return false };
        self.0.get(EXTERNAL).is_some_and(|bound| bound.as_str() != Some(wanted))
    }

    /// The credentials for the current directory URL, since one storage may serve two URLs.
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

/// Loads the account. With `may_make`, which requires the lock, a missing account, or one that does
/// not match the settings, is created, and changed contacts are sent to the directory.
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
            "the stored ACME account belongs to another external account; a new one is created"),
        Some(Ok((kept, credentials))) => {
            let account = builder(settings).from_credentials(credentials).await?;
            if may_make && !kept.knows(&settings.contacts) {
                tell_contacts(settings, &account, kept).await?;
            }
            return Ok(Some(account));
        }
        Some(Err(error)) => tracing::error!(target: "peregrine", %error,
            "the stored ACME account cannot be used; a new one is created"),
        None => {}
    }
    if may_make { make(settings).await.map(Some) } else { Ok(None) }
}

fn builder(settings: &Settings) -> AccountBuilder {
    Account::builder_with_http(settings.client.http())
}

async fn make(settings: &Settings) -> Result<Account, Failure> {
    // Authorities limit the number of accounts: do not create one that cannot be stored.
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
        "an ACME account was created");
    Ok(account)
}

/// Sends changed contacts to the directory. If it rejects them, orders continue.
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
                    "the contacts sent to the authority cannot be stored, and will be sent again");
            }
            Ok(())
        }
        Err(error) if has_no_account(&error) => Err(error.into()),
        Err(error) => {
            tracing::error!(target: "peregrine", account = account.id(), ?contacts,
                error = Failure::from(error).text,
                "the contacts of the ACME account cannot be changed; orders continue");
            Ok(())
        }
    }
}

/// Removes an account that the directory does not know, unless another instance has replaced it.
pub(crate) fn forget(stored: &Stored, id: Option<&str>) {
    let is_other = |bytes: Vec<u8>| {
        let kept = Kept::read(&bytes).ok()?;
        Some(kept.0.get("id")?.as_str()? != id?)
    };
    if stored.account().ok().flatten().and_then(is_other) == Some(true) {
        return;
    }
    tracing::warn!(target: "peregrine", account = id,
        "the authority does not know the ACME account; a new one is created");
    if let Err(error) = stored.forget_account() {
        tracing::error!(target: "peregrine", %error, "the ACME account cannot be deleted from the storage");
    }
}
