//! Content negotiation with the `Accept` field (RFC 9110 §12.5.1).

use crate::extract::FromRequestParts;
#[cfg(feature = "cbor")]
use crate::extract::formats::Cbor;
#[cfg(feature = "message-pack")]
use crate::extract::formats::MessagePack;
use crate::http::head::RequestHead;
use crate::http::problem::Problem;
use crate::http::request::Parts;
use crate::http::response::content::Json;
use crate::http::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::ACCEPT;
use serde::Serialize;
use std::fmt;

/// The media types that the client accepts, with its preferences.
///
/// ```
/// use peregrine::App;
/// use peregrine::web::extract::Accept;
/// use peregrine::web::response::{Html, Json};
///
/// async fn bird(accept: Accept) -> peregrine::web::Response {
///     accept
///         .offer("application/json", || Json("kestrel"))
///         .or("text/html", || Html("<b>kestrel</b>"))
///         .respond()
/// }
/// let client = App::new().get("/", bird).test();
/// let get = |accept: &str| client.get("/").header("accept", accept).send_blocking();
/// assert_eq!(get("text/html, application/json;q=0.9").text(), "<b>kestrel</b>");
/// assert_eq!(get("*/*").text(), "\"kestrel\"");
/// assert_eq!(get("image/png").status(), 406);
/// ```
#[derive(Clone)]
pub struct Accept {
    /// In no particular order. If it is empty, all types are accepted equally.
    ranges: Vec<MediaRange>,
}

/// A media range of `Accept`, or an offered media type, which is parsed the same way. All parts are
/// in lower case.
#[derive(Clone)]
struct MediaRange {
    /// The part before the slash, such as `text`.
    kind: String,
    subtype: String,
    parameters: Vec<(String, String)>,
    /// The weight `q`, in thousandths.
    quality: u16,
}

/// The maximum number of ranges that are read. Further ranges in a request are ignored.
const MEDIA_RANGES_MAX: usize = 64;

impl Accept {
    /// The client's preference for a media type, such as `text/html; charset=utf-8`, from 0 (not
    /// acceptable) to 1000. The most specific matching range determines it.
    #[must_use]
    pub fn quality(&self, media_type: &str) -> u16 {
        if self.ranges.is_empty() {
            return 1000;
        }
        let Some(offered) = MediaRange::parse(media_type) else { return 0 };
        let matching = self
            .ranges
            .iter()
            .filter_map(|range| Some((range.match_specificity(&offered)?, range)));
        // Among equally specific ranges, the highest weight is used.
        matching
            .map(|(specificity, range)| (specificity, range.quality))
            .max()
            .map_or(0, |(_, quality)| quality)
    }

    /// Returns the type among `offers` that the client prefers. If it prefers several equally,
    /// returns the first of them. Returns `None` if the client accepts none of them.
    #[doc(alias = "negotiate")]
    #[must_use]
    pub fn best_match<'o>(&self, offers: &[&'o str]) -> Option<&'o str> {
        let mut best = None;
        for offer in offers {
            let quality = self.quality(offer);
            if quality > best.map_or(0, |(quality, _)| quality) {
                best = Some((quality, *offer));
            }
        }
        best.map(|(_, offer)| offer)
    }

    /// Begins a response that is available in several formats. Only the chosen format's `build` is
    /// called.
    #[doc(alias = "respond_to")]
    #[doc(alias = "negotiate")]
    pub fn offer<'m, R: IntoResponse>(
        &self,
        media_type: &'static str,
        build: impl FnOnce() -> R + 'm,
    ) -> Negotiation<'m> {
        Negotiation { accept: self.clone(), best: None, types: Vec::new() }.or(media_type, build)
    }

    /// Sends a value in the data format that the client prefers. The formats are JSON, CBOR (with
    /// the feature `cbor`) and MessagePack (with the feature `message-pack`).
    ///
    /// ```
    /// # use peregrine::App;
    /// # use peregrine::web::extract::Accept;
    /// let client = App::new().get("/", |accept: Accept| accept.serialize(&[1, 2])).test();
    /// let response = client.get("/").header("accept", "application/cbor").send_blocking();
    /// assert_eq!(response.bytes(), b"\x82\x01\x02"[..]);
    /// ```
    #[must_use]
    pub fn serialize<T: Serialize>(&self, value: &T) -> Response {
        let offers = self.offer("application/json", || Json(value));
        #[cfg(feature = "message-pack")]
        let offers = {
            // By itself, `MessagePack` sends `application/vnd.msgpack`, so the second format
            // overrides `content-type`.
            let msgpack = || ([("content-type", "application/msgpack")], MessagePack(value));
            offers
                .or("application/vnd.msgpack", || MessagePack(value))
                .or("application/msgpack", msgpack)
        };
        #[cfg(feature = "cbor")]
        let offers = offers.or("application/cbor", || Cbor(value));
        offers.respond()
    }
}

/// The available formats of a response. [`Negotiation::respond`] builds only the one that the
/// client prefers.
#[doc(alias = "respond_to")]
#[doc(alias = "Offers")]
#[must_use = "`respond` creates the response"]
pub struct Negotiation<'m> {
    accept: Accept,
    /// The best format so far: its quality, and the function that builds the response.
    best: Option<(u16, Box<dyn FnOnce() -> Response + 'm>)>,
    /// All offered types, for the 406.
    types: Vec<&'static str>,
}

impl<'m> Negotiation<'m> {
    /// Adds a format. If the client prefers several formats equally, the first of them is chosen.
    pub fn or<R: IntoResponse>(
        mut self,
        media_type: &'static str,
        build: impl FnOnce() -> R + 'm,
    ) -> Self {
        let quality = self.accept.quality(media_type);
        if quality > self.best.as_ref().map_or(0, |(quality, _)| *quality) {
            self.best = Some((quality, Box::new(|| build().into_response())));
        }
        self.types.push(media_type);
        self
    }

    /// Creates the response in the format that the client prefers, with `Vary: Accept`. If the
    /// client accepts none of the formats, the response is a problem with status 406 and kind
    /// `not-acceptable`.
    #[must_use]
    pub fn respond(self) -> Response {
        let mut response = match self.best {
            Some((_, build)) => build(),
            None => {
                let names = self.types.join(", ");
                let detail = format!("Accept matches none of the available types: {names}");
                let status = StatusCode::NOT_ACCEPTABLE;
                let problem = Problem::new(status, "not-acceptable", detail);
                problem.with_member("types", self.types).into_response()
            }
        };
        response.headers.add_vary("accept");
        response
    }
}

impl FromRequestParts for Accept {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        Ok(Self::from_head(&parts.head))
    }
}

impl Accept {
    /// The types that a request accepts. Parts with invalid syntax are ignored.
    #[must_use]
    pub fn from_head(head: &RequestHead) -> Self {
        let lists =
            head.header_values(ACCEPT.as_str()).filter_map(|value| std::str::from_utf8(value).ok());
        let ranges = lists.flat_map(|list| split_unquoted(list, b','));
        Self { ranges: ranges.filter_map(MediaRange::parse).take(MEDIA_RANGES_MAX).collect() }
    }
}

impl MediaRange {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = split_unquoted(text, b';');
        let (kind, subtype) = parts.next()?.trim_ascii().split_once('/')?;
        let is_name = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"')
        };
        if !is_name(kind) || !is_name(subtype) || (kind == "*" && subtype != "*") {
            return None;
        }
        let (mut parameters, mut quality) = (Vec::new(), 1000);
        for part in parts.map(str::trim_ascii).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            if name.eq_ignore_ascii_case("q") {
                quality = parse_qvalue(value)?;
                // Extensions after the weight are ignored.
                break;
            }
            let value = value
                .strip_prefix('"')
                .and_then(|quoted| quoted.strip_suffix('"'))
                .unwrap_or(value);
            parameters.push((name.to_ascii_lowercase(), value.to_ascii_lowercase()));
        }
        let (kind, subtype) = (kind.to_ascii_lowercase(), subtype.to_ascii_lowercase());
        Some(Self { kind, subtype, parameters, quality })
    }

    /// How specific this range is, or `None` if it does not match the offered type.
    fn match_specificity(&self, offered: &Self) -> Option<usize> {
        let has_all =
            self.parameters.iter().all(|parameter| offered.parameters.contains(parameter));
        let kind_matches = self.kind == offered.kind;
        match (self.kind.as_str(), self.subtype.as_str()) {
            ("*", _) => has_all.then_some(0),
            (_, "*") => (kind_matches && has_all).then_some(1),
            (_, subtype) => {
                let is_match = kind_matches && subtype == offered.subtype && has_all;
                is_match.then_some(2 + self.parameters.len())
            }
        }
    }
}

/// Splits a list at each `separator` outside quotes.
fn split_unquoted(list: &str, separator: u8) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    list.split(move |c: char| {
        let is_separator = c == char::from(separator) && !is_quoted;
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            _ => {}
        }
        is_separator
    })
}

/// RFC 9110 §12.4.2: up to three digits after the decimal point.
fn parse_qvalue(text: &str) -> Option<u16> {
    let (whole, digits) = text.split_once('.').unwrap_or((text, ""));
    if digits.len() > 3 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let thousandths: u16 = format!("{digits:0<3}").parse().ok()?;
    match whole {
        "0" => Some(thousandths),
        "1" => (thousandths == 0).then_some(1000),
        _ => None,
    }
}

impl fmt::Debug for Accept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types = self
            .ranges
            .iter()
            .map(|range| format!("{}/{};q={}", range.kind, range.subtype, range.quality));
        f.debug_list().entries(types).finish()
    }
}

impl fmt::Debug for Negotiation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.types).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extract::test_support::{get, post};
    use crate::http::body::Body;

    fn accept(values: &[&str]) -> Accept {
        let fields: Vec<_> = values.iter().map(|value| ("accept", *value)).collect();
        Accept::from_head(&post("/", &fields, Body::empty()).parts.head)
    }

    #[test]
    fn chooses_by_weight_of_the_most_specific_range_then_by_the_order_of_offers() {
        const JSON: &str = "application/json";
        const HTML: &str = "text/html; charset=utf-8";
        for (value, expected) in [
            ("", Some(JSON)),
            ("*/*", Some(JSON)),
            ("text/html", Some(HTML)),
            ("TEXT/HTML", Some(HTML)),
            ("text/*", Some(HTML)),
            ("text/html;charset=\"UTF-8\"", Some(HTML)),
            ("text/html;charset=latin1", None),
            ("text/html, application/json;q=0.9", Some(HTML)),
            ("text/html;q=0.9, application/json;q=0.901", Some(JSON)),
            ("*/*;q=0.1, text/html;q=0.2", Some(HTML)),
            ("*/*, application/json;q=0", Some(HTML)),
            ("text/*;q=0.9, text/html;q=0.1, application/json;q=0.5", Some(JSON)),
            ("application/json;q=0, text/html;q=0.000", None),
            ("image/png", None),
            ("application/json;q=1.001, text/html;q=0.1", Some(HTML)),
            ("application/json;q=0.1234, text/html;q=0.1", Some(HTML)),
            ("x, /json, */json, ;q=1, application/json", Some(JSON)),
            ("application/json;a=\"b,c\", text/html", Some(HTML)),
            ("application/json;q=1;ext=1", Some(JSON)),
            ("*/*;q=0", None),
        ] {
            assert_eq!(accept(&[value]).best_match(&[JSON, HTML]), expected, "{value}");
        }
        assert_eq!(
            accept(&["text/html;q=0.5", "application/json;q=0.4"]).best_match(&[JSON, HTML]),
            Some(HTML)
        );
        assert_eq!(Accept::from_head(&get("/").parts.head).best_match(&[JSON, HTML]), Some(JSON));
        assert_eq!(accept(&[&"a/b, ".repeat(1000)]).ranges.len(), MEDIA_RANGES_MAX);
    }

    #[test]
    fn builds_only_the_chosen_format_and_responds_406_if_none_matches() {
        let built = std::cell::Cell::new("");
        let response = accept(&["text/html"])
            .offer("application/json", || built.set("json"))
            .or("text/html", || built.set("html"))
            .respond();
        assert_eq!((built.get(), response.header("vary")), ("html", Some("accept")));
        let rejected = accept(&["image/png"]).offer("text/html", || "no").respond();
        assert_eq!((rejected.status.as_u16(), rejected.header("vary")), (406, Some("accept")));
    }
}
