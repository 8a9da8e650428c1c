//! Names that change while the server runs, and what became of them.

use crate::acme::check_name;
use crate::error::AcmeError;
use crate::failure::FailureReason;
use crate::shared::Shared;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

/// Changes the names while the server runs, from any thread; made by [`Acme::open`](crate::Acme::open). Clones are
/// handles to the same.
#[derive(Clone)]
pub struct AcmeHandle(Arc<Shared>);

impl AcmeHandle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// Gets a certificate for `name` too, or takes the stored one; false if it was there. It begins at once where a
    /// server runs.
    ///
    /// # Errors
    /// It is no name that can have one.
    pub fn add(&self, name: &str) -> Result<bool, AcmeError> {
        let name = check_name(name)?;
        Ok(self.0.change_names(|names| {
            let is_new = !names.contains(&name);
            if is_new {
                names.push(name);
            }
            is_new
        }))
    }

    /// No longer serves or renews the certificate of `name`, which stays stored; false if it was not there.
    pub fn remove(&self, name: &str) -> bool {
        let Ok(name) = check_name(name) else { return false };
        self.0.change_names(|names| {
            let count = names.len();
            names.retain(|known| *known != name);
            names.len() < count
        })
    }

    /// Orders a new certificate for `name` now, such as after its key was lost, or tries again what failed; false if
    /// the name is not there. Authorities limit how often one may.
    pub fn renew(&self, name: &str) -> bool {
        check_name(name).is_ok_and(|name| self.0.hurry(&name))
    }

    /// What became of it so far.
    pub fn status(&self) -> AcmeStatus {
        self.0.status()
    }
}

impl fmt::Debug for AcmeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AcmeHandle").field(&self.status()).finish()
    }
}

/// What became of orders, and what is planned.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct AcmeStatus {
    /// All names, in the order in which they were given.
    pub names: Vec<NameStatus>,
    /// How many certificates were issued to this process.
    pub issued: u64,
    /// How many were taken from the storage because another instance had got them.
    pub taken: u64,
    /// How many orders failed.
    pub failed: u64,
    /// The same by what they failed for; reasons that nothing failed for are left out.
    pub failed_by: BTreeMap<FailureReason, u64>,
    /// How often something panicked: a storage, or what gets certificates itself, which goes on.
    pub panics: u64,
}

/// One name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NameStatus {
    /// The name.
    pub name: String,
    /// Until when its certificate is valid; `None` if it has none, or no server has begun.
    pub not_after: Option<SystemTime>,
    /// When the next order begins, as far as it is planned.
    pub renew_at: Option<SystemTime>,
    /// How many orders have failed since the last one that did not.
    pub failures: u32,
    /// Why the last one failed; `None` once one did not.
    pub last_error: Option<String>,
}
