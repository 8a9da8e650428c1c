//! Why there is no certificate.

use crate::client::whole;
use instant_acme::{Error, Problem};
use std::fmt;
use std::io;
use std::time::{Instant, SystemTime};

/// What kept a certificate from being got, for metrics; the text is in
/// [`NameStatus::last_error`](crate::NameStatus::last_error).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FailureReason {
    /// The account cannot be made or used.
    Account,
    /// The authority asks for patience: too much was asked of it, or it is out of order.
    Busy,
    /// What was issued cannot be used.
    Certificate,
    /// The authority could not see that the name is this server's.
    Challenge,
    /// Another instance has the lock, and nothing comes of it.
    Locked,
    /// The authority cannot be reached, or what answers is no directory.
    Network,
    /// Something panicked, which is a mistake in a program.
    Panic,
    /// The authority refuses.
    Refused,
    /// Something cannot be stored or read.
    Storage,
    /// It took too long.
    Timeout,
}

impl FailureReason {
    /// All reasons.
    pub const ALL: [Self; 10] = [
        Self::Account,
        Self::Busy,
        Self::Certificate,
        Self::Challenge,
        Self::Locked,
        Self::Network,
        Self::Panic,
        Self::Refused,
        Self::Storage,
        Self::Timeout,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::Busy => "busy",
            Self::Certificate => "certificate",
            Self::Challenge => "challenge",
            Self::Locked => "locked",
            Self::Network => "network",
            Self::Panic => "panic",
            Self::Refused => "refused",
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

/// Why an order came to nothing.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) reason: FailureReason,
    pub(crate) text: String,
    /// The directory asks not to be asked before.
    pub(crate) until: Option<SystemTime>,
    /// The directory does not know the account.
    pub(crate) is_unknown_account: bool,
    /// Whoever goes on with the same order fails again.
    pub(crate) is_final: bool,
}

impl Failure {
    pub(crate) fn new(reason: FailureReason, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { reason, text, until: None, is_unknown_account: false, is_final: false }
    }

    /// One that would come again if the order was gone on with.
    pub(crate) fn for_good(reason: FailureReason, text: impl Into<String>) -> Self {
        Self { is_final: true, ..Self::new(reason, text) }
    }

    pub(crate) fn storage(what: &str, error: &io::Error) -> Self {
        Self::new(FailureReason::Storage, format!("{what} cannot be stored or read: {error}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (mut until, mut is_final) = (None, false);
        let reason = match &error {
            Error::Api(problem) => {
                is_final = problem.r#type.is_some() && !passes(problem);
                match kind(problem) {
                    "accountDoesNotExist" | "externalAccountRequired" => FailureReason::Account,
                    "rateLimited" => FailureReason::Busy,
                    _ => FailureReason::Refused,
                }
            }
            Error::Timeout(at) => {
                until = at.map(time);
                FailureReason::Timeout
            }
            Error::Crypto | Error::KeyRejected => FailureReason::Account,
            _ => FailureReason::Network,
        };
        let is_unknown_account = has_no_account(&error);
        Self { until, is_unknown_account, is_final, ..Self::new(reason, whole(&error)) }
    }
}

/// By the time of day, which pauses are reckoned in.
pub(crate) fn time(at: Instant) -> SystemTime {
    SystemTime::now() + at.saturating_duration_since(Instant::now())
}

/// Does the directory say that it does not know the account?
pub(crate) fn has_no_account(error: &Error) -> bool {
    matches!(error, Error::Api(problem) if kind(problem) == "accountDoesNotExist")
}

/// Does the problem say nothing about the order that it came up with? What is no problem of ACME's comes from somebody
/// before the directory.
// RFC 8555 §6.7.
pub(crate) fn passes(problem: &Problem) -> bool {
    matches!(
        kind(problem),
        "" | "accountDoesNotExist"
            | "badNonce"
            | "orderNotReady"
            | "rateLimited"
            | "serverInternal"
    )
}

/// The problem, as the protocol calls it.
pub(crate) fn kind(problem: &Problem) -> &str {
    let kind = problem.r#type.as_deref().unwrap_or_default();
    kind.strip_prefix("urn:ietf:params:acme:error:").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn problem(kind: &str) -> Error {
        let text = format!("{{\"type\":{kind:?}}}");
        Error::Api(serde_json::from_str(&text).expect("it is a problem"))
    }

    #[test]
    fn what_failed_is_known_by_what_was_said() {
        for (kind, reason, is_final) in [
            ("urn:ietf:params:acme:error:accountDoesNotExist", FailureReason::Account, false),
            ("urn:ietf:params:acme:error:rateLimited", FailureReason::Busy, false),
            ("urn:ietf:params:acme:error:serverInternal", FailureReason::Refused, false),
            ("urn:ietf:params:acme:error:badCSR", FailureReason::Refused, true),
            ("about:blank", FailureReason::Refused, false),
        ] {
            let failure = Failure::from(problem(kind));
            assert_eq!((failure.reason, failure.is_final), (reason, is_final), "{kind}");
            assert_eq!(failure.is_unknown_account, kind.ends_with("NotExist"), "{kind}");
        }
        let later = Failure::from(Error::Timeout(Some(Instant::now() + Duration::from_secs(300))));
        let left = later.until.expect("it is told").duration_since(SystemTime::now());
        assert!(left.expect("it is later") > Duration::from_secs(290));
        assert_eq!(Failure::from(Error::Timeout(None)).reason, FailureReason::Timeout);
        assert_eq!(Failure::from(Error::Str("no nonce")).reason, FailureReason::Network);
    }

    #[test]
    fn each_reason_has_a_name_of_its_own() {
        let mut names: Vec<_> = FailureReason::ALL.iter().map(|reason| reason.label()).collect();
        assert!(names.is_sorted());
        names.dedup();
        assert_eq!(names.len(), FailureReason::ALL.len());
    }
}
