//! What may change for a listener while it is open.

use crate::limits::Limits;
use peregrine_web::TrustedProxies;

/// What holds for connections of a listener, and may change while it is open: for those that are accepted from then on.
/// Connections that are open go on with what they began with.
///
/// What concerns a worker as a whole (`poll_budget`, `lame_duck`, `shutdown_timeout`, `background_timeout`,
/// `overload`) is not taken from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// Limits in place of those that it had.
    pub limits: Limits,
    /// Whose word counts about who sent a request.
    pub proxies: Option<TrustedProxies>,
}
