//! Parses the list `tracestate` (W3C Trace Context §3.3).

use std::collections::HashSet;
use std::sync::Arc;

/// The maximum number of members in a list.
const MEMBERS_MAX: usize = 32;

/// Joins the members of all `fields` into one list. `None` if there are no members, or if one of
/// them breaks a rule, which makes the whole list invalid.
pub(super) fn parse<'f>(fields: impl IntoIterator<Item = &'f [u8]>) -> Option<Arc<str>> {
    let (mut list, mut keys) = (String::new(), HashSet::new());
    for field in fields {
        let field = std::str::from_utf8(field).ok()?;
        for member in field.split(',') {
            let member = member.trim_matches([' ', '\t']);
            // §3.3.1.2: members may be empty.
            if member.is_empty() {
                continue;
            }
            let (key, value) = member.split_once('=')?;
            if !is_key(key) || !is_value(value) || !keys.insert(key) || keys.len() > MEMBERS_MAX {
                return None;
            }
            let separator = if list.is_empty() { "" } else { "," };
            list.extend([separator, member]);
        }
    }
    (!list.is_empty()).then(|| list.into())
}

/// §3.3.1.3.1: a name, or a tenant and a system separated by `@`.
fn is_key(key: &str) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_lowercase();
    let is_letter_or_digit = |byte: &u8| is_letter(byte) || byte.is_ascii_digit();
    let is_allowed = |byte: &u8| is_letter_or_digit(byte) || b"_-*/".contains(byte);
    let is_name = |name: &str, may_begin: &dyn Fn(&u8) -> bool, bytes_max: usize| {
        let name = name.as_bytes();
        let begins_well = name.first().is_some_and(may_begin);
        begins_well && name.iter().all(is_allowed) && name.len() <= bytes_max
    };
    match key.split_once('@') {
        None => is_name(key, &is_letter, 256),
        Some((tenant, system)) => {
            is_name(tenant, &is_letter_or_digit, 241) && is_name(system, &is_letter, 14)
        }
    }
}

/// §3.3.1.3.2: visible ASCII without commas and equal signs; spaces are allowed except at the end.
fn is_value(value: &str) -> bool {
    let is_allowed = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b',' && byte != b'=';
    (1..=256).contains(&value.len()) && value.bytes().all(is_allowed) && !value.ends_with(' ')
}
