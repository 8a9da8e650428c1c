//! Limits on how much of a body may be read.

use super::{Body, BodyError};

/// The limit, in bytes, for reading a streamed body into memory if no limit was set for it: 2 MiB.
///
/// The server sets a limit for every request body ([`Body::limit`]), which then applies instead. A
/// complete body without a limit was created by middleware and is already in memory, so it is not
/// limited.
#[doc(alias = "DefaultBodyLimit")]
#[doc(alias = "client_max_body_size")]
pub const DEFAULT_BODY_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// The limits of a [`Body`], to be set on another body that is derived from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyLimits {
    /// Reading more bytes than this is an error.
    pub(super) max: Option<u64>,
    /// Whether `max` applies only to code that reads the whole body into memory.
    pub(super) is_lifted: bool,
}

impl BodyLimits {
    pub(super) const NONE: Self = Self { max: None, is_lifted: false };
}

impl Body {
    /// The limit in force, in bytes. The server sets one on the body of a request; bodies created
    /// by the application have none. It is `u64::MAX` if the options of the handler's route lift
    /// the limit.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        if self.limits.is_lifted { Some(u64::MAX) } else { self.limits.max }
    }

    /// The limit for reading the whole body into memory. It still applies if the options of a
    /// handler's route lift the limit, as for a mounted service, so that middleware around that
    /// handler does not buffer more. If no limit was set, it is 2 MiB for a stream and unlimited
    /// for a complete body.
    #[must_use]
    pub fn buffer_limit(&self) -> u64 {
        match self.limits.max {
            Some(limit) => limit,
            None if self.as_full().is_some() => u64::MAX,
            None => DEFAULT_BODY_BYTES_MAX,
        }
    }

    /// Sets the limit, in bytes. It may be lower or higher than the previous one. Bytes already
    /// read count towards it.
    #[doc(alias = "with_limit")]
    #[doc(alias = "Limited")]
    #[must_use]
    pub fn limited(self, limit: u64) -> Self {
        self.with_limits(BodyLimits { max: Some(limit), is_lifted: false })
    }

    /// Lifts the limit, if one was set, except for code that reads the whole body into memory
    /// ([`Body::buffer_limit`]).
    #[must_use]
    pub(crate) fn with_lifted_limit(mut self) -> Self {
        self.limits.is_lifted = self.limits.max.is_some();
        self
    }

    /// The limits, to be set with [`Body::with_limits`] on a body that is derived from this one.
    #[must_use]
    pub fn limits(&self) -> BodyLimits {
        self.limits
    }

    /// Sets the limits of the body from which this one is derived. Bytes already read from this one
    /// count towards them.
    #[must_use]
    pub fn with_limits(mut self, limits: BodyLimits) -> Self {
        self.limits = limits;
        self
    }

    /// The error for reading `additional` more bytes, if that exceeds the limit.
    pub(super) fn limit_error(&self, additional: u64) -> Option<BodyError> {
        let limit = self.limits.max.filter(|_| !self.limits.is_lifted)?;
        (self.bytes_read.saturating_add(additional) > limit)
            .then_some(BodyError::TooLarge { limit })
    }
}
