//! Selects the fields that are forwarded, and adds those of the proxy itself. No I/O.

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, MAX_FORWARDS, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue, Version};
use http_body::Frame;
use peregrine_web::response::Headers;
use peregrine_web::{Parts, RequestHead};
use std::net::IpAddr;

/// A request that has passed this many proxies is assumed to be in a loop.
pub(crate) const VIA_HOPS_MAX: usize = 16;

/// RFC 9110 §7.6.1: the fields that belong to one connection, whether `Connection` names them or
/// not. Also the fields for the length of the content, which are generated again.
const HOP_BY_HOP: [HeaderName; 10] = [
    CONNECTION,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    CONTENT_LENGTH,
];

const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Fields that describe the client. Upstreams trust them, so their values are removed unless a
/// trusted proxy sent them.
const FORWARDING_FIELDS: [&str; 7] = [
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-real-ip",
];

/// Some programs trust other fields with this prefix, such as `X-Forwarded-Ssl` and
/// `X-Forwarded-User`. Only trusted proxies may send them.
const X_FORWARDED_PREFIX: &str = "x-forwarded-";

/// The fields in which an upstream receives the client's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ForwardedHeaders {
    /// `X-Forwarded-For`, `-Proto` and `-Host`.
    #[default]
    XForwarded,
    /// `Forwarded` (RFC 7239).
    Forwarded,
    Off,
}

/// The value of `Host` in requests to upstreams.
#[derive(Clone, Debug, Default)]
pub(crate) enum HostHeader {
    /// The client's value.
    #[default]
    Preserve,
    /// The upstream's own host.
    Upstream,
    Fixed(HeaderValue),
}

/// The fields of the request to an upstream, except Host. `pseudonym` is the proxy's name in `Via`.
pub(crate) fn upstream_headers(
    parts: &Parts,
    forwarded: ForwardedHeaders,
    pseudonym: &str,
) -> HeaderMap {
    let head = &parts.head;
    let nominated = connection_options(head.header_values("connection"));
    let is_trusted = parts.connection_untracked().trusted_proxies.is_some();
    let mut fields = HeaderMap::with_capacity(16);
    for (name, value) in head.headers_untracked() {
        let Ok(name) = HeaderName::from_bytes(name) else { continue };
        let Ok(value) = HeaderValue::from_bytes(value) else { continue };
        let is_forwarding = is_forwarding_field(&name);
        let is_removed = HOP_BY_HOP.contains(&name)
            || name == HOST
            // RFC 9110 §10.1.1: this server sends the 100 itself, when the content is first read.
            || name == EXPECT
            || is_forwarding && !(is_trusted && is_extended_list(&name, forwarded))
            || !is_trusted && has_prefix(&name, X_FORWARDED_PREFIX)
            || nominated.contains(&name);
        if !is_removed {
            fields.append(name, value);
        }
    }
    // RFC 9110 §10.1.4: trailers are forwarded, so the client's `TE: trailers` is forwarded too.
    let accepts_trailers = head.header_values("te").any(|list| has_token(list, b"trailers"));
    if accepts_trailers {
        fields.insert(TE, HeaderValue::from_static("trailers"));
        fields.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    set_forwarding_fields(&mut fields, parts, forwarded, is_trusted);
    append_via(&mut fields, head.version(), pseudonym);
    fields
}

/// The fields of an upstream's response, for the client.
pub(crate) fn client_headers(headers: &HeaderMap, version: Version, pseudonym: &str) -> Headers {
    let nominated =
        connection_options(headers.get_all(CONNECTION).iter().map(HeaderValue::as_bytes));
    let mut fields = Headers::new();
    let mut via = String::new();
    for (name, value) in headers {
        if *name == VIA {
            if let Ok(value) = value.to_str() {
                via.push_str(value);
                via.push_str(", ");
            }
        } else if !HOP_BY_HOP.contains(name) && !nominated.contains(name) {
            fields.append(name.clone(), value.clone());
        }
    }
    if let Ok(value) = HeaderValue::try_from(format!("{via}{} {pseudonym}", via_version(version))) {
        fields.append(VIA, value);
    }
    fields
}

/// The fields of an interim response, for the client.
pub(crate) fn interim_headers(headers: &HeaderMap) -> HeaderMap {
    let nominated =
        connection_options(headers.get_all(CONNECTION).iter().map(HeaderValue::as_bytes));
    let is_end_to_end = |name: &HeaderName| !HOP_BY_HOP.contains(name) && !nominated.contains(name);
    let forwarded = headers.iter().filter(|(name, _)| is_end_to_end(name));
    forwarded.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Removes the fields that belong to one connection, and those that describe the client, from
/// trailers. Other frames are unchanged.
pub(crate) fn filter_trailers<T>(frame: Frame<T>) -> Frame<T> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            let is_removed = |name: &HeaderName| {
                HOP_BY_HOP.contains(name)
                    || is_forwarding_field(name)
                    || has_prefix(name, X_FORWARDED_PREFIX)
            };
            let removed: Vec<_> =
                trailers.keys().filter(|name| is_removed(name)).cloned().collect();
            removed.iter().for_each(|name| drop(trailers.remove(name)));
            Frame::trailers(trailers)
        }
        Err(data) => data,
    }
}

/// The protocols in the client's `Upgrade`, except those that would carry further HTTP requests
/// past this proxy: other versions of HTTP, and TLS. `None` if none is left.
pub(crate) fn upgrade_protocols(head: &RequestHead) -> Option<HeaderValue> {
    let protocols = head.header_values("upgrade").flat_map(|list| list.split(|byte| *byte == b','));
    let mut allowed = Vec::new();
    for protocol in protocols.map(<[u8]>::trim_ascii).filter(|protocol| !protocol.is_empty()) {
        let name = protocol.split(|byte| *byte == b'/').next().unwrap_or_default();
        let excluded = [&b"h2c"[..], b"h2", b"h3", b"http", b"tls"];
        if excluded.iter().any(|other| name.trim_ascii().eq_ignore_ascii_case(other)) {
            continue;
        }
        if !allowed.is_empty() {
            allowed.extend_from_slice(b", ");
        }
        allowed.extend_from_slice(protocol);
    }
    if allowed.is_empty() { None } else { HeaderValue::try_from(allowed).ok() }
}

/// Whether an upstream switched only to protocols that the request named.
pub(crate) fn is_requested_upgrade(requested: &HeaderValue, response: &HeaderMap) -> bool {
    let mut protocols = response
        .get_all(UPGRADE)
        .iter()
        .flat_map(|list| list.as_bytes().split(|byte| *byte == b','));
    response.contains_key(UPGRADE)
        && protocols.all(|protocol| has_token(requested.as_bytes(), protocol.trim_ascii()))
}

/// Whether the framing of an upstream's response can be forwarded to any client. RFC 9112 §6.1: an
/// unrequested transfer coding would be taken for the content. §6.3: a `Content-Length` together
/// with a transfer coding ought to be handled as an error.
pub(crate) fn has_valid_framing(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(coding), None) => {
            coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked")
                && !headers.contains_key(CONTENT_LENGTH)
        }
        (Some(_), Some(_)) => false,
    }
}

/// RFC 9110 §7.6.2: decrements Max-Forwards of an OPTIONS request (TRACE is not forwarded). Returns
/// false if the request must not be forwarded.
pub(crate) fn decrement_max_forwards(fields: &mut HeaderMap) -> bool {
    let Some(hops) = fields.get(MAX_FORWARDS) else { return true };
    let hops: Option<u64> = hops.to_str().ok().and_then(|hops| hops.trim().parse().ok());
    // An invalid value is ignored.
    let Some(hops) = hops else { return true };
    if let Some(remaining) = hops.checked_sub(1) {
        fields.insert(MAX_FORWARDS, remaining.into());
    }
    hops > 0
}

/// The number of proxies in the request's `Via`.
pub(crate) fn via_hops(head: &RequestHead) -> usize {
    head.header_values("via").map(|list| list.split(|byte| *byte == b',').count()).sum()
}

/// RFC 9110 §7.6.1: the fields that `Connection` names belong to the connection too.
fn connection_options<'v>(lists: impl Iterator<Item = &'v [u8]>) -> Vec<HeaderName> {
    let options = lists.flat_map(|list| list.split(|byte| *byte == b','));
    options.filter_map(|option| HeaderName::from_bytes(option.trim_ascii()).ok()).collect()
}

fn has_token(list: &[u8], token: &[u8]) -> bool {
    list.split(|byte| *byte == b',').any(|element| element.trim_ascii().eq_ignore_ascii_case(token))
}

fn is_forwarding_field(name: &HeaderName) -> bool {
    FORWARDING_FIELDS
        .iter()
        .any(|field| field.len() == name.as_str().len() && has_prefix(name, field))
}

/// CGI programs and similar ones read `X_Forwarded_For` as `X-Forwarded-For`, so an underscore
/// matches a hyphen.
fn has_prefix(name: &HeaderName, prefix: &str) -> bool {
    let (name, prefix) = (name.as_str().as_bytes(), prefix.as_bytes());
    let is_same = |(expected, actual): (&u8, &u8)| {
        expected == actual || (*expected == b'-' && *actual == b'_')
    };
    name.len() >= prefix.len() && prefix.iter().zip(name).all(is_same)
}

/// Whether a trusted proxy's value of this field is kept: only the list that this proxy extends is.
fn is_extended_list(name: &HeaderName, forwarded: ForwardedHeaders) -> bool {
    match forwarded {
        ForwardedHeaders::XForwarded => *name == X_FORWARDED_FOR,
        ForwardedHeaders::Forwarded => *name == FORWARDED,
        ForwardedHeaders::Off => false,
    }
}

/// Adds the client's address, host and scheme, in the configured form.
fn set_forwarding_fields(
    fields: &mut HeaderMap,
    parts: &Parts,
    forwarded: ForwardedHeaders,
    is_trusted: bool,
) {
    let (client, peer) = (
        parts.client(),
        parts.connection_untracked().peer.socket_addr().map(|peer| peer.ip().to_canonical()),
    );
    let host = client.host();
    // If a trusted proxy reported the client in another field, the client is added to this one.
    let unlisted_client = |fields: &HeaderMap, name: &HeaderName| {
        client.ip().filter(|ip| is_trusted && !fields.contains_key(name) && Some(*ip) != peer)
    };
    match forwarded {
        ForwardedHeaders::Off => {}
        ForwardedHeaders::XForwarded => {
            let addresses = unlisted_client(fields, &X_FORWARDED_FOR).into_iter().chain(peer);
            for address in addresses {
                append_element(fields, &X_FORWARDED_FOR, address.to_string());
            }
            set_field(fields, X_FORWARDED_PROTO, client.scheme());
            if !host.is_empty() {
                set_field(fields, X_FORWARDED_HOST, &host);
            }
        }
        ForwardedHeaders::Forwarded => {
            if let Some(address) = unlisted_client(fields, &FORWARDED) {
                append_element(
                    fields,
                    &FORWARDED,
                    format!("for={}", forwarded_node(Some(address))),
                );
            }
            let mut element = format!("for={};proto={}", forwarded_node(peer), client.scheme());
            if !host.is_empty() && !host.contains(['"', '\\']) {
                element.push_str(&format!(";host=\"{host}\""));
            }
            append_element(fields, &FORWARDED, element);
        }
    }
}

/// RFC 7239 §6: an IPv6 address is in brackets and quotes.
fn forwarded_node(address: Option<IpAddr>) -> String {
    match address {
        Some(IpAddr::V4(address)) => address.to_string(),
        Some(IpAddr::V6(address)) => format!("\"[{address}]\""),
        None => "unknown".to_owned(),
    }
}

/// RFC 9110 §7.6.3: each proxy adds the version of the message that it received, and its name.
fn append_via(fields: &mut HeaderMap, version: Version, pseudonym: &str) {
    append_element(fields, &VIA, format!("{} {pseudonym}", via_version(version)));
}

fn via_version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2.0",
        Version::HTTP_3 => "3.0",
        _ => "1.1",
    }
}

/// Appends an element to a list, in one field.
fn append_element(fields: &mut HeaderMap, name: &HeaderName, element: String) {
    let mut list: Vec<u8> = Vec::new();
    for value in fields.get_all(name) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(element.as_bytes());
    if let Ok(value) = HeaderValue::try_from(list) {
        fields.insert(name.clone(), value);
    }
}

fn set_field(fields: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::try_from(value) {
        fields.insert(name, value);
    }
}
