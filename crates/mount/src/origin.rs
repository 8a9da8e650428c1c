//! Our original request, kept while a tower layer has it in the form of the `http` crate.
//!
//! It stays in the request's row (`passage.rs`). `restore.rs` puts it there, and turns the layer's
//! request into ours again.

use peregrine_web::service::Erased;
use peregrine_web::upgrade::OnUpgrade;
use peregrine_web::{Parts, Response};

/// The kept request.
pub(crate) struct Origin {
    parts: Parts,
    /// What comes next; `None` if another owner has it, and calls it.
    next: Option<Erased>,
    /// The upgrades that responses inside the layer came with.
    upgrades: Vec<OnUpgrade>,
}

/// The number of the upgrade that a response came with, in its extensions: a layer that retries has
/// several.
#[derive(Clone)]
struct Number(usize);

impl Origin {
    /// The request that has `parts`.
    pub(crate) fn new(parts: Parts, next: Option<Erased>) -> Self {
        Self { parts, next, upgrades: Vec::new() }
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// What comes next.
    pub(crate) fn next(&self) -> Option<Erased> {
        self.next.clone()
    }

    /// Keeps the upgrade of a response for the layer's caller.
    pub(crate) fn put_upgrade(&mut self, upgrade: OnUpgrade, response: &mut Response) {
        response.extensions_mut().insert(Number(self.upgrades.len()));
        self.upgrades.push(upgrade);
    }

    /// The upgrade that the layer's response came with.
    pub(crate) fn into_upgrade(mut self, response: &mut Response) -> Option<OnUpgrade> {
        match response.extensions_mut().remove::<Number>() {
            Some(Number(number)) if number < self.upgrades.len() => {
                Some(self.upgrades.swap_remove(number))
            }
            // A layer may make a new response without the extensions.
            _ => self.upgrades.pop(),
        }
    }
}
