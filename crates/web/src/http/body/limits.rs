//! How much of a body may be read.

use super::{Body, BodyError};

/// The limit, in bytes, of a streamed body for which no limit was set: 2 MiB.
///
/// The server sets a limit for every request's body ([`Body::limit`]), which then applies instead. A
/// complete body without a limit was made by a middleware, and is not limited.
pub const BODY_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// The limits of a [`Body`], to be given to one that is made of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyLimits {
    /// More bytes than this are an error for the reader.
    pub(super) max: Option<u64>,
    /// They are an error only for a reader that keeps them in memory.
    pub(super) is_lifted: bool,
}

impl BodyLimits {
    pub(super) const NONE: Self = Self { max: None, is_lifted: false };
}

impl Body {
    /// The limit in force, in bytes. A request's body has one when the server hands it over; bodies
    /// made by the application have none.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        if self.limits.is_lifted { Some(u64::MAX) } else { self.limits.max }
    }

    /// The limit for reading all of the body into memory: the one in force, or the server's own
    /// where a handler has lifted that for itself, as mounted services do. For middleware that
    /// reads bodies: what it keeps is not the handler's affair.
    #[must_use]
    pub fn whole_limit(&self) -> u64 {
        match self.limits.max {
            Some(limit) => limit,
            None if self.whole().is_some() => u64::MAX,
            None => BODY_BYTES_MAX,
        }
    }

    /// Sets the limit in force, in bytes, lower or higher than before. Bytes already read count.
    #[must_use]
    pub fn limited(self, limit: u64) -> Self {
        self.with_limits(BodyLimits { max: Some(limit), is_lifted: false })
    }

    /// Lifts the limit, except for readers of the whole body ([`Body::whole_limit`]).
    #[must_use]
    pub(crate) fn lifted(mut self) -> Self {
        self.limits.is_lifted = self.limits.max.is_some();
        self
    }

    /// The limits, for a body that a middleware makes of this one.
    #[must_use]
    pub fn limits(&self) -> BodyLimits {
        self.limits
    }

    /// Sets the limits of the body that this one was made of. Bytes already read count.
    #[must_use]
    pub fn with_limits(mut self, limits: BodyLimits) -> Self {
        self.limits = limits;
        self
    }

    /// The error of reading `more` bytes, if that is too many.
    pub(super) fn beyond(&self, more: u64) -> Option<BodyError> {
        let limit = self.limits.max.filter(|_| !self.limits.is_lifted)?;
        (self.read.saturating_add(more) > limit).then_some(BodyError::TooLarge { limit })
    }
}
