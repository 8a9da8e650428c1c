//! The account at the directory: created once, stored, and updated when the settings change.

use crate::acme::AcmeSettings;
use crate::failure::{FailureReason, OrderFailure, is_account_unknown};
use crate::scoped_storage::ScopedStorage;
use instant_acme::{Account, AccountBuilder, AccountCredentials, NewAccount};
use serde_json::{Map, Value};

/// A stored account: the credentials of the ACME library, and the data sent to the directory.
struct StoredAccount(Map<String, Value>);

/// Additional members of the stored object.
const CONTACTS_KEY: &str = "contacts";
const EXTERNAL_ACCOUNT_KEY: &str = "external";

impl StoredAccount {
    fn new(credentials: &AccountCredentials, settings: &AcmeSettings) -> serde_json::Result<Self> {
        let Value::Object(members) = serde_json::to_value(credentials)? else {
            return Err(serde::ser::Error::custom("an account is not a map"));
        };
        let mut stored = Self(members);
        stored
            .0
            .insert(EXTERNAL_ACCOUNT_KEY.to_owned(), settings.external_account_id.clone().into());
        stored.set_contacts(settings);
        Ok(stored)
    }

    fn parse(bytes: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(bytes).map(Self)
    }

    /// Records the contacts known to the directory.
    fn set_contacts(&mut self, settings: &AcmeSettings) {
        self.0.insert(CONTACTS_KEY.to_owned(), settings.contacts.clone().into());
    }

    fn has_contacts(&self, contacts: &[String]) -> bool {
        self.0.get(CONTACTS_KEY).is_some_and(|stored| *stored == Value::from(contacts))
    }

    /// Whether the account is bound to another external account than the one in the settings. An
    /// account is bound only on creation.
    fn has_other_external_account(&self, settings: &AcmeSettings) -> bool {
        let Some(expected) = &settings.external_account_id else { return false };
        self.0.get(EXTERNAL_ACCOUNT_KEY).is_some_and(|stored| stored.as_str() != Some(expected))
    }

    /// Returns the credentials for the current directory URL, since one storage can serve two URLs.
    fn credentials(&self, directory: &str) -> serde_json::Result<AccountCredentials> {
        let mut members = self.0.clone();
        members.insert("directory".to_owned(), directory.into());
        serde_json::from_value(Value::Object(members))
    }

    fn store(&self, storage: &ScopedStorage) -> Result<(), OrderFailure> {
        let bytes = serde_json::to_vec(&self.0);
        let bytes =
            bytes.map_err(|error| OrderFailure::new(FailureReason::Account, error.to_string()))?;
        storage.store_account(&bytes).map_err(|error| OrderFailure::storage("the account", &error))
    }
}

/// Loads the account. If `may_create`, which requires the lock, a missing account or one that does
/// not match the settings is created, and changed contacts are sent to the directory.
pub(crate) async fn load_or_create_account(
    settings: &AcmeSettings,
    may_create: bool,
) -> Result<Option<Account>, OrderFailure> {
    let stored =
        settings.storage.account().map_err(|error| OrderFailure::storage("the account", &error))?;
    let parsed = stored.map(|bytes| {
        let stored = StoredAccount::parse(&bytes)?;
        stored.credentials(&settings.directory).map(|credentials| (stored, credentials))
    });
    match parsed {
        Some(Ok((stored, _))) if stored.has_other_external_account(settings) => tracing::info!(
            target: "peregrine", directory = settings.directory, external = settings.external_account_id,
            "the stored ACME account belongs to another external account; a new one is created"),
        Some(Ok((stored, credentials))) => {
            let account = account_builder(settings).from_credentials(credentials).await?;
            if may_create && !stored.has_contacts(&settings.contacts) {
                update_contacts(settings, &account, stored).await?;
            }
            return Ok(Some(account));
        }
        Some(Err(error)) => tracing::error!(target: "peregrine", %error,
            "the stored ACME account cannot be used; a new one is created"),
        None => {}
    }
    if may_create { create_account(settings).await.map(Some) } else { Ok(None) }
}

fn account_builder(settings: &AcmeSettings) -> AccountBuilder {
    Account::builder_with_http(settings.client.http())
}

async fn create_account(settings: &AcmeSettings) -> Result<Account, OrderFailure> {
    // Authorities limit the number of accounts: do not create one that cannot be stored.
    settings.storage.probe().map_err(|error| OrderFailure::storage("the account", &error))?;
    let contact: Vec<_> = settings.contacts.iter().map(String::as_str).collect();
    let new_account = NewAccount {
        contact: &contact,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let (url, external_account) =
        (settings.directory.clone(), settings.external_account_binding.as_ref());
    let result = account_builder(settings).create(&new_account, url, external_account).await;
    let (account, credentials) = result.map_err(|error| match OrderFailure::from(error) {
        failure @ OrderFailure { reason: FailureReason::Rejected, .. } => {
            OrderFailure { reason: FailureReason::Account, ..failure }
        }
        failure => failure,
    })?;
    let stored = StoredAccount::new(&credentials, settings);
    let stored =
        stored.map_err(|error| OrderFailure::new(FailureReason::Account, error.to_string()))?;
    stored.store(&settings.storage)?;
    tracing::info!(target: "peregrine", directory = settings.directory, account = account.id(),
        "an ACME account was created");
    Ok(account)
}

/// Sends changed contacts to the directory. If it rejects them, orders continue.
async fn update_contacts(
    settings: &AcmeSettings,
    account: &Account,
    mut stored: StoredAccount,
) -> Result<(), OrderFailure> {
    let contacts: Vec<_> = settings.contacts.iter().map(String::as_str).collect();
    match account.update_contacts(&contacts).await {
        Ok(()) => {
            tracing::info!(target: "peregrine", account = account.id(), ?contacts,
                "the contacts of the ACME account were changed");
            stored.set_contacts(settings);
            if let Err(failure) = stored.store(&settings.storage) {
                tracing::error!(target: "peregrine", error = failure.message,
                    "the contacts sent to the authority cannot be stored, and will be sent again");
            }
            Ok(())
        }
        Err(error) if is_account_unknown(&error) => Err(error.into()),
        Err(error) => {
            tracing::error!(target: "peregrine", account = account.id(), ?contacts,
                error = OrderFailure::from(error).message,
                "the contacts of the ACME account cannot be changed; orders continue");
            Ok(())
        }
    }
}

/// Removes an account that the directory does not know, unless another instance has replaced it.
pub(crate) fn remove_account(storage: &ScopedStorage, id: Option<&str>) {
    let has_other_id = |bytes: Vec<u8>| {
        let stored = StoredAccount::parse(&bytes).ok()?;
        Some(stored.0.get("id")?.as_str()? != id?)
    };
    if storage.account().ok().flatten().and_then(has_other_id) == Some(true) {
        return;
    }
    tracing::warn!(target: "peregrine", account = id,
        "the authority does not know the ACME account; a new one is created");
    if let Err(error) = storage.remove_account() {
        tracing::error!(target: "peregrine", %error, "the ACME account cannot be deleted from the storage");
    }
}
