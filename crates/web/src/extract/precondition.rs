//! Conditional requests (RFC 9110 §13).

use crate::extract::FromRequestParts;
use crate::http::head::RequestHead;
use crate::http::problem::Problem;
use crate::http::request::Parts;
use crate::http::response::{Headers, Response};
use http::header::{ETAG, LAST_MODIFIED};
use http::{Method, StatusCode};
use httpdate::parse_http_date;
use std::cell::Cell;
use std::fmt;
use std::time::{Duration, SystemTime};

/// The validators of a resource's current state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Validators<'v> {
    /// The entity tag as it is sent: `"abc"` or `W/"abc"`.
    pub etag: Option<&'v str>,
    /// When the resource was last modified.
    pub last_modified: Option<SystemTime>,
}

/// How entity tags are compared (RFC 9110 §8.8.3.2).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    /// A weak tag (`W/"abc"`) never matches.
    Strong,
    /// `W/` is ignored.
    Weak,
}

/// The result of evaluating a request's conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreconditionOutcome {
    /// Handle the request as if it had no conditions.
    Proceed,
    /// The client already has this state: 304. Only for GET and HEAD.
    NotModified,
    /// A condition failed: 412.
    Failed,
}

impl<'v> Validators<'v> {
    /// Validators with only an entity tag. `tag` includes the quotes.
    #[must_use]
    pub fn etag(tag: &'v str) -> Self {
        Self { etag: Some(tag), last_modified: None }
    }

    /// The validators in a response's header fields.
    #[must_use]
    pub fn from_headers(fields: &'v Headers) -> Self {
        let text = |name| fields.get(name)?.to_str().ok().map(str::trim_ascii);
        let last_modified = text(&LAST_MODIFIED).and_then(|date| parse_http_date(date).ok());
        Self { etag: text(&ETAG).filter(|tag| is_entity_tag(tag)), last_modified }
    }

    /// Evaluates the conditions for an existing resource, in the order of RFC 9110 §13.2.2.
    #[must_use]
    pub fn evaluate(&self, head: &RequestHead) -> PreconditionOutcome {
        let if_match = head
            .header_bytes("if-match")
            .map(|_| self.matches_any(head, "if-match", Comparison::Strong));
        let if_unmodified_since = || self.is_unmodified_since(head, "if-unmodified-since");
        if if_match == Some(false) || if_match.is_none() && if_unmodified_since() == Some(false) {
            return PreconditionOutcome::Failed;
        }
        let is_get_or_head = matches!(head.method(), Method::GET | Method::HEAD);
        let client_is_current = match head.header_bytes("if-none-match") {
            Some(_) => self.matches_any(head, "if-none-match", Comparison::Weak),
            // RFC 9110 §13.1.3: If-Modified-Since is ignored for other methods.
            None => {
                is_get_or_head && self.is_unmodified_since(head, "if-modified-since") == Some(true)
            }
        };
        // RFC 9110 §13.1.2: for methods other than GET and HEAD, a matching tag is a 412.
        match (client_is_current, is_get_or_head) {
            (true, true) => PreconditionOutcome::NotModified,
            (true, false) => PreconditionOutcome::Failed,
            (false, _) => PreconditionOutcome::Proceed,
        }
    }

    /// Whether a requested range applies to this state (RFC 9110 §13.1.5). True without `If-Range`.
    #[must_use]
    pub fn if_range_matches(&self, head: &RequestHead) -> bool {
        let Some(condition) = head.header_bytes("if-range") else { return true };
        let Ok(condition) = std::str::from_utf8(condition) else { return false };
        let condition = condition.trim_ascii();
        if condition.starts_with('"') || condition.starts_with("W/") {
            return self.etag.is_some_and(|tag| tags_match(condition, tag, Comparison::Strong));
        }
        // RFC 9110 §8.8.2.2: a date is a strong validator if it is well in the past.
        // This is assumed here, unless a weak tag shows that the date is not strong.
        let is_date_strong = self.etag.is_none_or(|tag| !tag.starts_with("W/"));
        let (Ok(date), Some(modified)) = (parse_http_date(condition), self.last_modified) else {
            return false;
        };
        is_date_strong && date == truncate_to_seconds(modified)
    }

    /// Whether the list in the field `name` contains the resource's tag. RFC 9110 §13.1: `*`
    /// matches any existing state.
    fn matches_any(&self, head: &RequestHead, name: &str, comparison: Comparison) -> bool {
        head.header_values(name).filter_map(|list| std::str::from_utf8(list).ok()).any(|list| {
            let mut rest = list.trim_ascii();
            if rest == "*" {
                return true;
            }
            let Some(tag) = self.etag else { return false };
            while let Some((candidate, remaining)) = split_first_tag(rest) {
                if tags_match(candidate, tag, comparison) {
                    return true;
                }
                rest = remaining;
            }
            false
        })
    }

    /// Whether the resource was last modified at or before the time in this field. `None` if the
    /// field is absent or is not a date, or if the resource has no date: the condition is then
    /// ignored.
    fn is_unmodified_since(&self, head: &RequestHead, name: &str) -> Option<bool> {
        let date = parse_http_date(head.header(name)?.trim_ascii()).ok()?;
        Some(truncate_to_seconds(self.last_modified?) <= date)
    }
}

/// The conditions of a request, for a handler that knows the current state of the resource that it
/// changes or sends.
///
/// [`Etag`](https://docs.rs/peregrine/latest/peregrine/cache/struct.Etag.html) evaluates the
/// conditions after the handler has responded, so it works for reads only. A handler that changes a
/// resource must check the conditions before the change.
///
/// Extraction never fails, so `Option<Preconditions>` is `Some` even for a request without
/// conditions.
///
/// ```
/// use peregrine::prelude::*;
/// use peregrine::web::extract::Preconditions;
/// use peregrine::web::precondition::Validators;
///
/// async fn rename(conditions: Preconditions, name: String) -> Result<String, Problem> {
///     conditions.require_precondition()?;
///     // The current version in the database.
///     conditions.check(Validators::etag("\"7\""))?;
///     Ok(name)
/// }
///
/// let client = App::new().put("/birds/1", rename).test();
/// let put = |tag: &str| {
///     let request = client.put("/birds/1").header("if-match", tag);
///     request.body("kestrel").send_blocking().status()
/// };
/// assert_eq!((put("\"7\"").as_u16(), put("\"6\"").as_u16()), (200, 412));
/// assert_eq!(client.put("/birds/1").body("kestrel").send_blocking().status(), 428);
/// ```
pub struct Preconditions {
    head: RequestHead,
    /// Whether `require_precondition` was called, so that `check` fails if no condition applies.
    is_required: Cell<bool>,
}

impl Preconditions {
    /// Evaluates the conditions for an existing resource in this state.
    #[must_use]
    pub fn evaluate(&self, current: Validators<'_>) -> PreconditionOutcome {
        current.evaluate(&self.head)
    }

    /// Whether the request has a condition that prevents lost updates: `If-Match`, or
    /// `If-Unmodified-Since` with a date.
    #[must_use]
    pub fn has_update_precondition(&self) -> bool {
        // RFC 9110 §13.1.4: a value that is not a date is ignored.
        let date = || self.head.header("if-unmodified-since").map(str::trim_ascii);
        self.head.header_bytes("if-match").is_some()
            || date().is_some_and(|date| parse_http_date(date).is_ok())
    }

    /// Requires a condition that prevents lost updates. Afterwards, [`check`](Self::check) also
    /// responds 428 if the request's condition cannot be evaluated. This is the case if the
    /// condition is `If-Unmodified-Since` and the resource has no known date.
    ///
    /// # Errors
    /// If the request has neither `If-Match` nor `If-Unmodified-Since` with a date: 428, kind
    /// `precondition-required`.
    #[doc(alias = "428")]
    #[doc(alias = "demand")]
    pub fn require_precondition(&self) -> Result<(), Problem> {
        self.is_required.set(true);
        if self.has_update_precondition() {
            return Ok(());
        }
        Err(Self::precondition_required())
    }

    fn precondition_required() -> Problem {
        // RFC 6585 §3: the response should explain how to resubmit the request.
        let detail =
            "this request must be conditional: send If-Match with the ETag that you received";
        let status = StatusCode::PRECONDITION_REQUIRED;
        Problem::new(status, "precondition-required", detail)
    }

    /// Checks the conditions against a resource in this state.
    ///
    /// # Errors
    /// If a condition fails: 412, kind `precondition-failed`, with the tag as `ETag`. If
    /// [`require_precondition`](Self::require_precondition) was called, but no condition that
    /// prevents lost updates applies: 428.
    pub fn check(&self, current: Validators<'_>) -> Result<(), Problem> {
        let no_update_condition_applies =
            self.head.header_bytes("if-match").is_none() && current.last_modified.is_none();
        match self.evaluate(current) {
            PreconditionOutcome::Failed => Err(precondition_failed(current)),
            _ if self.is_required.get() && no_update_condition_applies => {
                // Without a known date, `evaluate` has ignored `If-Unmodified-Since`.
                Err(Self::precondition_required())
            }
            PreconditionOutcome::Proceed | PreconditionOutcome::NotModified => Ok(()),
        }
    }

    /// Checks the conditions against a resource that does not exist: `If-Match` fails,
    /// `If-None-Match: *` holds. After [`require_precondition`](Self::require_precondition), this
    /// always fails, because a client that changes a resource expects it to exist.
    ///
    /// # Errors
    /// If a condition fails: 412, kind `precondition-failed`.
    pub fn check_nonexistent(&self) -> Result<(), Problem> {
        if self.head.header_bytes("if-match").is_some() || self.is_required.get() {
            return Err(precondition_failed(Validators::default()));
        }
        Ok(())
    }
}

impl FromRequestParts for Preconditions {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        Ok(Self { head: parts.head.share(), is_required: Cell::new(false) })
    }
}

impl fmt::Debug for Preconditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Preconditions")
    }
}

/// The problem for a request with a failed condition.
#[must_use]
pub fn precondition_failed(current: Validators<'_>) -> Problem {
    let detail = "the resource is not in the state that the conditions of the request require";
    let problem = Problem::new(StatusCode::PRECONDITION_FAILED, "precondition-failed", detail);
    match current.etag.and_then(|tag| http::HeaderValue::try_from(tag).ok()) {
        Some(tag) => problem.with_header(ETAG, tag),
        None => problem,
    }
}

/// Turns a response into a 304, for a client that already has its content.
pub fn not_modified(response: &mut Response) {
    use http::header;
    /// RFC 9110 §15.4.5: a 304 should not have metadata of the content, except fields that guide
    /// cache updates.
    const REMOVED: [http::HeaderName; 5] = [
        header::CONTENT_TYPE,
        header::CONTENT_LENGTH,
        header::CONTENT_ENCODING,
        header::CONTENT_LANGUAGE,
        header::CONTENT_RANGE,
    ];
    response.status = StatusCode::NOT_MODIFIED;
    response.body = crate::http::body::Body::empty();
    REMOVED.iter().for_each(|name| response.headers.remove(name));
}

/// Whether the text is a single entity tag (RFC 9110 §8.8.3).
fn is_entity_tag(text: &str) -> bool {
    split_first_tag(text).is_some_and(|(tag, rest)| tag.len() == text.len() && rest.is_empty())
}

/// The first tag of a list, and the rest. A tag may contain commas, but no quotes.
fn split_first_tag(list: &str) -> Option<(&str, &str)> {
    let list = list.trim_start_matches([' ', '\t', ',']);
    let quoted = list.strip_prefix("W/").unwrap_or(list);
    let quoted_len = quoted.strip_prefix('"')?.find('"')? + "\"\"".len();
    let prefix_len = list.len() - quoted.len();
    Some(list.split_at(prefix_len + quoted_len))
}

/// RFC 9110 §8.8.3.2: strong comparison requires two strong tags.
fn tags_match(tag: &str, other: &str, comparison: Comparison) -> bool {
    match (tag.strip_prefix("W/"), other.strip_prefix("W/")) {
        (None, None) => tag == other,
        (weak, weak_other) => {
            comparison == Comparison::Weak && weak.unwrap_or(tag) == weak_other.unwrap_or(other)
        }
    }
}

/// The time truncated to whole seconds, the precision of an HTTP date.
#[must_use]
pub fn truncate_to_seconds(time: SystemTime) -> SystemTime {
    let elapsed = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{App, Request};

    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn outcome_of(
        method: Method,
        tag: Option<&'static str>,
        fields: &[(&str, &str)],
    ) -> PreconditionOutcome {
        let (sender, receiver) = std::sync::mpsc::channel();
        let handler = move |request: Request| {
            let last_modified = parse_http_date(DATE).ok();
            let _ =
                sender.send(Validators { etag: tag, last_modified }.evaluate(&request.parts.head));
        };
        let client = App::new().any("/", handler).test();
        let request = fields.iter().fold(client.request(method, "/"), |request, (name, value)| {
            request.header(*name, *value)
        });
        drop(request.send_blocking());
        receiver.recv().expect("the handler ran")
    }

    #[test]
    fn evaluates_conditions_in_order_and_ignores_dates_if_tags_are_present() {
        use PreconditionOutcome::{Failed, NotModified, Proceed};
        let tag = Some("\"a\"");
        for (tag, fields, expected) in [
            (tag, &[][..], Proceed),
            (tag, &[("if-match", "\"a\"")], Proceed),
            (tag, &[("if-match", "\"b\", \"a\"")], Proceed),
            (tag, &[("if-match", "\"b\""), ("if-match", "\"a\"")], Proceed),
            (tag, &[("if-match", "*")], Proceed),
            (None, &[("if-match", "*")], Proceed),
            (None, &[("if-match", "\"a\"")], Failed),
            (tag, &[("if-match", "\"b\"")], Failed),
            (tag, &[("if-match", "W/\"a\"")], Failed),
            (Some("W/\"a\""), &[("if-match", "W/\"a\"")], Failed),
            (tag, &[("if-match", "a")], Failed),
            (tag, &[("if-match", "\"a")], Failed),
            (tag, &[("if-match", "\"a\""), ("if-unmodified-since", BEFORE)], Proceed),
            (tag, &[("if-unmodified-since", BEFORE)], Failed),
            (tag, &[("if-unmodified-since", DATE)], Proceed),
            (tag, &[("if-unmodified-since", "yesterday")], Proceed),
            (tag, &[("if-none-match", "\"a\"")], NotModified),
            (tag, &[("if-none-match", "W/\"a\"")], NotModified),
            (Some("W/\"a\""), &[("if-none-match", "\"a\"")], NotModified),
            (tag, &[("if-none-match", "\"b\",,  \"a\"")], NotModified),
            (tag, &[("if-none-match", "*")], NotModified),
            (tag, &[("if-none-match", "\"b\"")], Proceed),
            (tag, &[("if-none-match", "\"b\""), ("if-modified-since", AFTER)], Proceed),
            (tag, &[("if-modified-since", AFTER)], NotModified),
            (tag, &[("if-modified-since", DATE)], NotModified),
            (tag, &[("if-modified-since", BEFORE)], Proceed),
            (tag, &[("if-match", "\"b\""), ("if-none-match", "\"a\"")], Failed),
            (tag, &[("if-match", "\"a\""), ("if-none-match", "\"a\"")], NotModified),
        ] {
            assert_eq!(outcome_of(Method::GET, tag, fields), expected, "{tag:?} {fields:?}");
        }
    }

    #[test]
    fn an_ignored_condition_is_a_428_if_a_condition_is_required() {
        let update = |is_required: bool, modified: Option<SystemTime>| {
            move |conditions: Preconditions| -> Result<&'static str, Problem> {
                if is_required {
                    conditions.require_precondition()?;
                }
                conditions.check(Validators { etag: Some("\"a\""), last_modified: modified })?;
                Ok("changed")
            }
        };
        let create = |is_required: bool| {
            move |conditions: Preconditions| -> Result<&'static str, Problem> {
                if is_required {
                    conditions.require_precondition()?;
                }
                conditions.check_nonexistent().map(|()| "created")
            }
        };
        let date = parse_http_date(DATE).ok();
        let client = App::new()
            .put("/tagged", update(true, None))
            .put("/dated", update(true, date))
            .put("/free", update(false, None))
            .put("/absent", create(true))
            .put("/free-absent", create(false))
            .test();
        for (path, field, value, expected) in [
            ("/tagged", "if-match", "\"a\"", 200),
            ("/tagged", "if-match", "\"b\"", 412),
            // The resource has no known date, so this condition cannot be evaluated.
            ("/tagged", "if-unmodified-since", DATE, 428),
            ("/tagged", "if-unmodified-since", "yesterday", 428),
            ("/tagged", "if-none-match", "\"b\"", 428),
            ("/dated", "if-unmodified-since", DATE, 200),
            ("/dated", "if-unmodified-since", BEFORE, 412),
            ("/dated", "if-unmodified-since", "yesterday", 428),
            ("/free", "if-unmodified-since", DATE, 200),
            ("/free", "x-none", "", 200),
            ("/absent", "if-match", "*", 412),
            ("/absent", "if-unmodified-since", DATE, 412),
            ("/absent", "x-none", "", 428),
            ("/free-absent", "if-match", "*", 412),
            ("/free-absent", "if-none-match", "*", 200),
        ] {
            let status = client.put(path).header(field, value).send_blocking().status();
            assert_eq!(status, expected, "{path} {field}: {value}");
        }
    }

    #[test]
    fn optional_preconditions_are_present_without_conditions() {
        let client = App::new()
            .get("/", async |conditions: Option<Preconditions>| conditions.is_some().to_string())
            .test();
        assert_eq!(client.get("/").send_blocking().text(), "true");
    }

    #[test]
    fn an_unsafe_method_never_gets_not_modified() {
        use PreconditionOutcome::{Failed, Proceed};
        for (fields, expected) in [
            (&[("if-none-match", "*")][..], Failed),
            (&[("if-none-match", "\"a\"")], Failed),
            (&[("if-none-match", "\"b\"")], Proceed),
            (&[("if-modified-since", AFTER)], Proceed),
            (&[("if-match", "\"a\"")], Proceed),
        ] {
            assert_eq!(outcome_of(Method::PUT, Some("\"a\""), fields), expected, "{fields:?}");
        }
    }
}
