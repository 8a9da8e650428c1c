//! Reasons why a certificate could not be obtained.

use crate::http_client::error_chain;
use instant_acme::{Error, Problem};
use std::fmt;
use std::io;
use std::time::{Instant, SystemTime};

/// Why a certificate could not be obtained, for metrics; the details are in
/// [`DomainStatus::last_error`](crate::DomainStatus::last_error).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FailureReason {
    /// The account cannot be created or used.
    Account,
    /// The authority could not verify the name.
    Challenge,
    /// The issued certificate cannot be used.
    InvalidCertificate,
    /// Another instance holds the lock without a result.
    Locked,
    /// The authority is unreachable, or the server that responds is not an ACME directory.
    Network,
    /// A panic, which is a bug.
    Panic,
    /// The authority is overloaded, or a rate limit was exceeded.
    RateLimited,
    /// The authority rejected the request.
    Rejected,
    /// The storage cannot be read or written.
    Storage,
    /// A timeout.
    Timeout,
}

impl FailureReason {
    /// All reasons.
    pub const ALL: [Self; 10] = [
        Self::Account,
        Self::Challenge,
        Self::InvalidCertificate,
        Self::Locked,
        Self::Network,
        Self::Panic,
        Self::RateLimited,
        Self::Rejected,
        Self::Storage,
        Self::Timeout,
    ];

    /// Returns the reason's label in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::Challenge => "challenge",
            Self::InvalidCertificate => "invalid_certificate",
            Self::Locked => "locked",
            Self::Network => "network",
            Self::Panic => "panic",
            Self::RateLimited => "rate_limited",
            Self::Rejected => "rejected",
            Self::Storage => "storage",
            Self::Timeout => "timeout",
        }
    }
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// Why an order failed.
#[derive(Debug)]
pub(crate) struct OrderFailure {
    pub(crate) reason: FailureReason,
    pub(crate) message: String,
    /// The directory requests that no requests are sent before this time.
    pub(crate) retry_after: Option<SystemTime>,
    /// The directory does not know the account.
    pub(crate) is_unknown_account: bool,
    /// Resuming the order would fail again.
    pub(crate) is_permanent: bool,
}

impl OrderFailure {
    pub(crate) fn new(reason: FailureReason, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { reason, message, retry_after: None, is_unknown_account: false, is_permanent: false }
    }

    /// A failure after which the order must not be resumed.
    pub(crate) fn permanent(reason: FailureReason, text: impl Into<String>) -> Self {
        Self { is_permanent: true, ..Self::new(reason, text) }
    }

    pub(crate) fn storage(what: &str, error: &io::Error) -> Self {
        Self::new(FailureReason::Storage, format!("{what} cannot be stored or read: {error}"))
    }
}

impl From<Error> for OrderFailure {
    fn from(error: Error) -> Self {
        let (mut retry_after, mut is_permanent) = (None, false);
        let reason = match &error {
            Error::Api(problem) => {
                is_permanent = problem.r#type.is_some() && !is_unrelated_to_order(problem);
                match problem_type(problem) {
                    "accountDoesNotExist" | "externalAccountRequired" => FailureReason::Account,
                    "rateLimited" => FailureReason::RateLimited,
                    _ => FailureReason::Rejected,
                }
            }
            Error::Timeout(time) => {
                retry_after = time.map(to_system_time);
                FailureReason::Timeout
            }
            Error::Crypto | Error::KeyRejected => FailureReason::Account,
            _ => FailureReason::Network,
        };
        let is_unknown_account = is_account_unknown(&error);
        Self {
            retry_after,
            is_unknown_account,
            is_permanent,
            ..Self::new(reason, error_chain(&error))
        }
    }
}

/// Converts to wall-clock time, in which delays are computed.
pub(crate) fn to_system_time(instant: Instant) -> SystemTime {
    SystemTime::now() + instant.saturating_duration_since(Instant::now())
}

/// Whether the directory does not know the account.
pub(crate) fn is_account_unknown(error: &Error) -> bool {
    matches!(error, Error::Api(problem) if problem_type(problem) == "accountDoesNotExist")
}

/// Whether the problem does not concern the order itself. Problems without an ACME type come from a
/// proxy in front of the directory.
// RFC 8555 §6.7.
pub(crate) fn is_unrelated_to_order(problem: &Problem) -> bool {
    matches!(
        problem_type(problem),
        "" | "accountDoesNotExist"
            | "badNonce"
            | "orderNotReady"
            | "rateLimited"
            | "serverInternal"
    )
}

/// Returns the problem's type in the protocol.
pub(crate) fn problem_type(problem: &Problem) -> &str {
    let kind = problem.r#type.as_deref().unwrap_or_default();
    kind.strip_prefix("urn:ietf:params:acme:error:").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn problem(kind: &str) -> Error {
        let text = format!("{{\"type\":{kind:?}}}");
        Error::Api(serde_json::from_str(&text).expect("the text is a problem"))
    }

    #[test]
    fn the_reason_is_derived_from_the_error() {
        for (kind, reason, is_permanent) in [
            ("urn:ietf:params:acme:error:accountDoesNotExist", FailureReason::Account, false),
            ("urn:ietf:params:acme:error:rateLimited", FailureReason::RateLimited, false),
            ("urn:ietf:params:acme:error:serverInternal", FailureReason::Rejected, false),
            ("urn:ietf:params:acme:error:badCSR", FailureReason::Rejected, true),
            ("about:blank", FailureReason::Rejected, false),
        ] {
            let failure = OrderFailure::from(problem(kind));
            assert_eq!((failure.reason, failure.is_permanent), (reason, is_permanent), "{kind}");
            assert_eq!(failure.is_unknown_account, kind.ends_with("NotExist"), "{kind}");
        }
        let timeout =
            OrderFailure::from(Error::Timeout(Some(Instant::now() + Duration::from_secs(300))));
        let remaining =
            timeout.retry_after.expect("the time is set").duration_since(SystemTime::now());
        assert!(remaining.expect("the time is in the future") > Duration::from_secs(290));
        assert_eq!(OrderFailure::from(Error::Timeout(None)).reason, FailureReason::Timeout);
        assert_eq!(OrderFailure::from(Error::Str("no nonce")).reason, FailureReason::Network);
    }

    #[test]
    fn reasons_have_distinct_sorted_labels() {
        let mut names: Vec<_> = FailureReason::ALL.iter().map(|reason| reason.label()).collect();
        assert!(names.is_sorted());
        names.dedup();
        assert_eq!(names.len(), FailureReason::ALL.len());
    }
}
