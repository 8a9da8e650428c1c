//! Parsers for the lists to which proxies append, which are read from the right.

use crate::http::head::RequestHead;
use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The entries of all fields called `name`, the last one first. Several fields are one list (RFC
/// 9110 §5.3).
pub(super) fn list_values_rev<'r>(
    head: &'r RequestHead,
    name: &'r str,
) -> impl Iterator<Item = &'r [u8]> {
    header_lines_rev(head, name)
        .flat_map(|line| line.rsplit(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
}

/// The entry at `number` from the right, or the leftmost if there are fewer.
pub(super) fn nth_list_value_rev<'r>(
    head: &'r RequestHead,
    name: &'r str,
    number: usize,
) -> Option<&'r [u8]> {
    list_values_rev(head, name).take(number.saturating_add(1)).last()
}

/// The fields called `name`, the last one first.
fn header_lines_rev<'r>(head: &'r RequestHead, name: &'r str) -> impl Iterator<Item = &'r [u8]> {
    let is_named = move |field: &(&[u8], &[u8])| field.0.eq_ignore_ascii_case(name.as_bytes());
    // Searches for each field again, which avoids allocating a list of them.
    let count = head.peek_headers().filter(is_named).count();
    (0..count).rev().filter_map(move |at| Some(head.peek_headers().filter(is_named).nth(at)?.1))
}

/// Parses an address of `X-Forwarded-For`, with or without a port, which some proxies add.
pub(super) fn parse_x_forwarded_for(entry: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(entry).ok()?;
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(SocketAddr::new(ip, 0));
    }
    parse_node(text)
}

/// RFC 7239 §6: an IPv4 address or an IPv6 address in brackets, optionally with a port, which may
/// be an obfuscated identifier.
fn parse_node(text: &str) -> Option<SocketAddr> {
    let (ip, rest): (IpAddr, _) = match text.strip_prefix('[') {
        Some(literal) => {
            let (literal, rest) = literal.split_once(']')?;
            (literal.parse::<Ipv6Addr>().ok()?.into(), rest)
        }
        None => {
            let end = text.find(':').unwrap_or(text.len());
            (text[..end].parse::<Ipv4Addr>().ok()?.into(), &text[end..])
        }
    };
    let port = match rest.strip_prefix(':') {
        None if rest.is_empty() => 0,
        None => return None,
        Some(hidden) if hidden.len() > 1 && hidden.starts_with('_') => {
            hidden.bytes().all(is_obfuscated).then_some(0)?
        }
        Some(port) => {
            let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| port.parse().ok())??
        }
    };
    Some(SocketAddr::new(ip, port))
}

fn is_obfuscated(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

/// The element of one proxy in `Forwarded`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ForwardedElement<'r> {
    /// `None` if the proxy does not report it, or hides it.
    pub(super) address: Option<SocketAddr>,
    pub(super) scheme: Option<&'r str>,
    pub(super) host: Option<ForwardedValue<'r>>,
}

/// The value of a parameter: a token, or the inside of a quoted string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ForwardedValue<'r> {
    raw: &'r str,
    has_escapes: bool,
}

impl<'r> ForwardedValue<'r> {
    pub(super) fn unquoted(self) -> Cow<'r, str> {
        if !self.has_escapes {
            return Cow::Borrowed(self.raw);
        }
        let mut text = String::with_capacity(self.raw.len());
        let mut all = self.raw.chars();
        while let Some(one) = all.next() {
            text.extend(if one == '\\' { all.next() } else { Some(one) });
        }
        Cow::Owned(text)
    }
}

/// The elements of all fields called `name`, the last one first; `None` for a malformed element.
pub(super) fn forwarded_elements_rev<'r>(
    head: &'r RequestHead,
    name: &'r str,
) -> impl Iterator<Item = Option<ForwardedElement<'r>>> {
    header_lines_rev(head, name).flat_map(split_list_rev).map(|element| parse_element(element?))
}

/// Splits a list into its elements, from the right.
///
/// Quotes are matched from the right, too: a client that sends an unpaired quote cannot hide what a
/// proxy appends after it. Yields `None` for the part that an unpaired quote leaves over.
pub(super) fn split_list_rev(line: &[u8]) -> impl Iterator<Item = Option<&str>> {
    let mut rest = std::str::from_utf8(line).ok();
    let mut is_bad = rest.is_none();
    std::iter::from_fn(move || {
        if std::mem::take(&mut is_bad) {
            return Some(None);
        }
        let line = rest?;
        let bytes = line.as_bytes();
        let mut is_quoted = false;
        for at in (0..bytes.len()).rev() {
            match bytes[at] {
                b'"' if is_quoted => {
                    let escapes = bytes[..at].iter().rev().take_while(|byte| **byte == b'\\');
                    is_quoted = escapes.count() % 2 == 1;
                }
                b'"' => is_quoted = true,
                b',' if !is_quoted => {
                    rest = Some(&line[..at]);
                    return Some(Some(line[at + 1..].trim_ascii()));
                }
                _ => {}
            }
        }
        rest = None;
        Some((!is_quoted).then_some(line.trim_ascii()))
    })
}

/// RFC 7239 §4: pairs separated by semicolons, each name at most once.
fn parse_element(text: &str) -> Option<ForwardedElement<'_>> {
    let mut element = ForwardedElement::default();
    let (mut addresses, mut rest) = (0, text);
    loop {
        let (name, after) = rest.split_once('=')?;
        let (word, after) = parse_value(after)?;
        if name.is_empty() || !name.bytes().all(is_token) {
            return None;
        }
        let is_new = match () {
            () if name.eq_ignore_ascii_case("for") => {
                addresses += 1;
                element.address = parse_node(&word.unquoted());
                addresses == 1
            }
            () if name.eq_ignore_ascii_case("proto") => {
                element.scheme.replace(word.raw).is_none() && !word.has_escapes
            }
            () if name.eq_ignore_ascii_case("host") => element.host.replace(word).is_none(),
            () => true,
        };
        if !is_new {
            return None;
        }
        let after = after.trim_ascii();
        if after.is_empty() {
            return Some(element);
        }
        rest = after.strip_prefix(';')?.trim_ascii();
    }
}

/// A token or a quoted string, and what follows it.
fn parse_value(text: &str) -> Option<(ForwardedValue<'_>, &str)> {
    let Some(inside) = text.strip_prefix('"') else {
        let end = text.bytes().position(|byte| !is_token(byte)).unwrap_or(text.len());
        let word = ForwardedValue { raw: &text[..end], has_escapes: false };
        return (end > 0).then_some((word, &text[end..]));
    };
    let (mut is_escaped, mut has_escapes) = (false, false);
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => (is_escaped, has_escapes) = (true, true),
            b'"' => {
                return Some((
                    ForwardedValue { raw: &inside[..at], has_escapes },
                    &inside[at + 1..],
                ));
            }
            _ => {}
        }
    }
    None
}

// RFC 9110 §5.6.2: the characters of a token.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
