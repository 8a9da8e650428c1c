//! Parses the header fields to which proxies append entries. The lists are read from the right.

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

/// The entry at `index` from the right, starting at 0, or the leftmost entry if there are fewer.
pub(super) fn nth_list_value_rev<'r>(
    head: &'r RequestHead,
    name: &'r str,
    index: usize,
) -> Option<&'r [u8]> {
    list_values_rev(head, name).take(index.saturating_add(1)).last()
}

/// The values of the fields called `name`, the last one first.
fn header_lines_rev<'r>(head: &'r RequestHead, name: &'r str) -> impl Iterator<Item = &'r [u8]> {
    let is_named = move |field: &(&[u8], &[u8])| field.0.eq_ignore_ascii_case(name.as_bytes());
    // Searches for each field again, which avoids allocating a list of them. Unlike `headers`,
    // `headers_untracked` does not mark the response as specific to the client.
    let count = head.headers_untracked().filter(is_named).count();
    (0..count)
        .rev()
        .filter_map(move |index| Some(head.headers_untracked().filter(is_named).nth(index)?.1))
}

/// Parses an address in `X-Forwarded-For`. Some proxies add a port.
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
    let (ip, port_part): (IpAddr, _) = match text.strip_prefix('[') {
        Some(address) => {
            let (address, port_part) = address.split_once(']')?;
            (address.parse::<Ipv6Addr>().ok()?.into(), port_part)
        }
        None => {
            let end = text.find(':').unwrap_or(text.len());
            (text[..end].parse::<Ipv4Addr>().ok()?.into(), &text[end..])
        }
    };
    let port = match port_part.strip_prefix(':') {
        None if port_part.is_empty() => 0,
        None => return None,
        Some(identifier) if identifier.len() > 1 && identifier.starts_with('_') => {
            identifier.bytes().all(is_identifier_byte).then_some(0)?
        }
        Some(port) => {
            let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| port.parse().ok())??
        }
    };
    Some(SocketAddr::new(ip, port))
}

fn is_identifier_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

/// The element that one proxy appended to `Forwarded`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ForwardedElement<'r> {
    /// The address of the proxy's peer. `None` if the proxy does not report it, or reports an
    /// obfuscated identifier or anything else that is not an address.
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
    /// The value without the escapes of a quoted string.
    pub(super) fn unquoted(self) -> Cow<'r, str> {
        if !self.has_escapes {
            return Cow::Borrowed(self.raw);
        }
        let mut text = String::with_capacity(self.raw.len());
        let mut chars = self.raw.chars();
        while let Some(c) = chars.next() {
            text.extend(if c == '\\' { chars.next() } else { Some(c) });
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
/// proxy appends after it. Yields `None` for the remaining part if it has an unpaired quote, and
/// for a line that is not UTF-8.
pub(super) fn split_list_rev(line: &[u8]) -> impl Iterator<Item = Option<&str>> {
    let mut rest = std::str::from_utf8(line).ok();
    let mut is_invalid = rest.is_none();
    std::iter::from_fn(move || {
        if std::mem::take(&mut is_invalid) {
            return Some(None);
        }
        let unsplit = rest?;
        let bytes = unsplit.as_bytes();
        let mut is_quoted = false;
        for index in (0..bytes.len()).rev() {
            match bytes[index] {
                b'"' if is_quoted => {
                    // After an odd number of backslashes, the quote is part of the string, which
                    // begins further to the left.
                    let escapes = bytes[..index].iter().rev().take_while(|byte| **byte == b'\\');
                    is_quoted = escapes.count() % 2 == 1;
                }
                b'"' => is_quoted = true,
                b',' if !is_quoted => {
                    rest = Some(&unsplit[..index]);
                    return Some(Some(unsplit[index + 1..].trim_ascii()));
                }
                _ => {}
            }
        }
        rest = None;
        Some((!is_quoted).then_some(unsplit.trim_ascii()))
    })
}

/// RFC 7239 §4: pairs separated by semicolons, each known name at most once.
fn parse_element(text: &str) -> Option<ForwardedElement<'_>> {
    let mut element = ForwardedElement::default();
    let (mut for_count, mut unparsed) = (0, text);
    loop {
        let (name, remaining) = unparsed.split_once('=')?;
        let (value, remaining) = parse_value(remaining)?;
        if name.is_empty() || !name.bytes().all(is_token_byte) {
            return None;
        }
        let is_valid = match () {
            () if name.eq_ignore_ascii_case("for") => {
                for_count += 1;
                element.address = parse_node(&value.unquoted());
                for_count == 1
            }
            () if name.eq_ignore_ascii_case("proto") => {
                element.scheme.replace(value.raw).is_none() && !value.has_escapes
            }
            () if name.eq_ignore_ascii_case("host") => element.host.replace(value).is_none(),
            () => true,
        };
        if !is_valid {
            return None;
        }
        let remaining = remaining.trim_ascii();
        if remaining.is_empty() {
            return Some(element);
        }
        unparsed = remaining.strip_prefix(';')?.trim_ascii();
    }
}

/// A token or a quoted string, and what follows it.
fn parse_value(text: &str) -> Option<(ForwardedValue<'_>, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.bytes().position(|byte| !is_token_byte(byte)).unwrap_or(text.len());
        let value = ForwardedValue { raw: &text[..end], has_escapes: false };
        return (end > 0).then_some((value, &text[end..]));
    };
    let (mut is_escaped, mut has_escapes) = (false, false);
    for (index, byte) in quoted.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => (is_escaped, has_escapes) = (true, true),
            b'"' => {
                return Some((
                    ForwardedValue { raw: &quoted[..index], has_escapes },
                    &quoted[index + 1..],
                ));
            }
            _ => {}
        }
    }
    None
}

// RFC 9110 §5.6.2: the characters of a token.
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
