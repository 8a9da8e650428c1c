//! Parsers for the lists to which proxies append, which are read from the right.

use crate::http::head::Head;
use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The entries of all fields called `name`, the last one first. Several fields are one list (RFC
/// 9110 §5.3).
pub(super) fn entries<'r>(head: &'r Head, name: &'r str) -> impl Iterator<Item = &'r [u8]> {
    lines(head, name).flat_map(|line| line.rsplit(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

/// The entry at `number` from the right, or the leftmost if there are fewer.
pub(super) fn nth_entry<'r>(head: &'r Head, name: &'r str, number: usize) -> Option<&'r [u8]> {
    entries(head, name).take(number.saturating_add(1)).last()
}

/// The fields called `name`, the last one first.
fn lines<'r>(head: &'r Head, name: &'r str) -> impl Iterator<Item = &'r [u8]> {
    let is_named = move |field: &(&[u8], &[u8])| field.0.eq_ignore_ascii_case(name.as_bytes());
    // Searches for each field again, which avoids allocating a list of them.
    let count = head.peek_fields().filter(is_named).count();
    (0..count).rev().filter_map(move |at| Some(head.peek_fields().filter(is_named).nth(at)?.1))
}

/// Parses an address of `X-Forwarded-For`, with or without a port, which some proxies add.
pub(super) fn plain_address(entry: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(entry).ok()?;
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(SocketAddr::new(ip, 0));
    }
    node(text)
}

/// RFC 7239 §6: an IPv4 address or an IPv6 address in brackets, optionally with a port, which may
/// be an obfuscated identifier.
fn node(text: &str) -> Option<SocketAddr> {
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
            hidden.bytes().all(is_hidden).then_some(0)?
        }
        Some(port) => {
            let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| port.parse().ok())??
        }
    };
    Some(SocketAddr::new(ip, port))
}

fn is_hidden(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

/// The element of one proxy in `Forwarded`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Element<'r> {
    /// `None` if the proxy does not report it, or hides it.
    pub(super) address: Option<SocketAddr>,
    pub(super) scheme: Option<&'r str>,
    pub(super) host: Option<Word<'r>>,
}

/// The value of a parameter: a token, or the inside of a quoted string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word<'r> {
    raw: &'r str,
    has_escapes: bool,
}

impl<'r> Word<'r> {
    pub(super) fn text(self) -> Cow<'r, str> {
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
pub(super) fn elements<'r>(
    head: &'r Head,
    name: &'r str,
) -> impl Iterator<Item = Option<Element<'r>>> {
    lines(head, name).flat_map(from_right).map(|element| read(element?))
}

/// Splits a list into its elements, from the right.
///
/// Quotes are matched from the right, too: a client that sends an unpaired quote cannot hide what a
/// proxy appends after it. Yields `None` for the part that an unpaired quote leaves over.
pub(super) fn from_right(line: &[u8]) -> impl Iterator<Item = Option<&str>> {
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
fn read(text: &str) -> Option<Element<'_>> {
    let mut element = Element::default();
    let (mut addresses, mut rest) = (0, text);
    loop {
        let (name, after) = rest.split_once('=')?;
        let (word, after) = word(after)?;
        if name.is_empty() || !name.bytes().all(is_token) {
            return None;
        }
        let is_new = match () {
            () if name.eq_ignore_ascii_case("for") => {
                addresses += 1;
                element.address = node(&word.text());
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
fn word(text: &str) -> Option<(Word<'_>, &str)> {
    let Some(inside) = text.strip_prefix('"') else {
        let end = text.bytes().position(|byte| !is_token(byte)).unwrap_or(text.len());
        let word = Word { raw: &text[..end], has_escapes: false };
        return (end > 0).then_some((word, &text[end..]));
    };
    let (mut is_escaped, mut has_escapes) = (false, false);
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => (is_escaped, has_escapes) = (true, true),
            b'"' => {
                return Some((Word { raw: &inside[..at], has_escapes }, &inside[at + 1..]));
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
