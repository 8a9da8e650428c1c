//! What went wrong with a request, as an RFC 9457 problem.

use http::StatusCode;
use std::borrow::Cow;
use std::fmt;

/// A request that could not be answered as asked: the one type of all rejections.
///
/// It becomes `application/problem+json` by default; the application may set one function that
/// turns every problem into a response of its own form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The status of the response.
    pub status: StatusCode,
    /// A short, stable name of the kind of problem, such as `invalid-json`, unique in this
    /// application. It becomes the `type` member.
    pub kind: Cow<'static, str>,
    /// What is wrong with this request, and how to mend it, in a sentence or two for the peer's
    /// developer. It must hold no secrets.
    pub detail: Cow<'static, str>,
    /// Further members, such as the position of an error.
    pub members: Vec<(Cow<'static, str>, serde_json::Value)>,
}

impl Problem {
    /// A problem.
    pub fn new(
        status: StatusCode,
        kind: impl Into<Cow<'static, str>>,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { status, kind: kind.into(), detail: detail.into(), members: Vec::new() }
    }

    /// The same with one more member.
    #[must_use]
    pub fn with(
        mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<serde_json::Value>,
    ) -> Self {
        self.members.push((name.into(), value.into()));
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status, self.detail)
    }
}

impl std::error::Error for Problem {}
