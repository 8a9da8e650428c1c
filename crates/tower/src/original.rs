//! The original request, stored while a tower layer owns the `http::Request` created from it.
//!
//! The module `restore` stores it in the request's row of a thread-local table (module
//! `request_table`). When the layer calls its inner service, `restore` finds the row through the
//! layer's request.

use peregrine_web::service::ErasedService;
use peregrine_web::upgrade::UpgradeHandler;
use peregrine_web::{Parts, Response};

/// The parts of the original request, and the rest of the application that handles it.
pub(crate) struct OriginalRequest {
    parts: Parts,
    /// The rest of the application; `None` if the layer middleware's `run` only borrows it. In that
    /// case `run` makes the layer's calls to its inner service.
    next: Option<ErasedService>,
    /// The upgrades of the responses that the layer received from its inner service.
    upgrades: Vec<UpgradeHandler>,
}

/// The index of a response's upgrade in `OriginalRequest::upgrades`. It is stored in the response's
/// extensions, because a layer that retries may receive several upgrades.
#[derive(Clone)]
struct UpgradeIndex(usize);

impl OriginalRequest {
    /// Stores a request's `parts` and the rest of the application.
    pub(crate) fn new(parts: Parts, next: Option<ErasedService>) -> Self {
        Self { parts, next, upgrades: Vec::new() }
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Returns the rest of the application, if this request owns it.
    pub(crate) fn next_service(&self) -> Option<ErasedService> {
        self.next.clone()
    }

    /// Stores the upgrade of a response until the layer has responded.
    pub(crate) fn store_upgrade(&mut self, upgrade: UpgradeHandler, response: &mut Response) {
        response.extensions_mut().insert(UpgradeIndex(self.upgrades.len()));
        self.upgrades.push(upgrade);
    }

    /// Returns the upgrade that belongs to the layer's response.
    pub(crate) fn into_upgrade(mut self, response: &mut Response) -> Option<UpgradeHandler> {
        match response.extensions_mut().remove::<UpgradeIndex>() {
            Some(UpgradeIndex(index)) if index < self.upgrades.len() => {
                Some(self.upgrades.swap_remove(index))
            }
            // The layer may have created a new response without the extensions. The last upgrade is
            // then the most likely one.
            _ => self.upgrades.pop(),
        }
    }
}
