//! What a request makes its answer depend on (RFC 9110 §13).

use crate::facts::Facts;
use httpdate::parse_http_date;
use peregrine_web::Head;
use std::time::{Duration, SystemTime};

/// What the conditions come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The file is sent.
    Send,
    /// The peer has it: 304.
    Known,
    /// The peer did not mean this state of it: 412.
    Failed,
}

/// RFC 9110 §13.2.2: the order in which conditions are looked at.
pub(crate) fn judge(head: &Head, facts: &Facts) -> Verdict {
    let matches = head.field("if-match").map(|_| is_in(head, "if-match", &facts.tag, true));
    let unmodified = || since(head, "if-unmodified-since", facts);
    if matches == Some(false) || matches.is_none() && unmodified() == Some(false) {
        return Verdict::Failed;
    }
    let is_known = match head.field("if-none-match") {
        Some(_) => is_in(head, "if-none-match", &facts.tag, false),
        None => since(head, "if-modified-since", facts) == Some(true),
    };
    if is_known { Verdict::Known } else { Verdict::Send }
}

/// Does a range still belong to this state of the file (RFC 9110 §13.1.5)? Without the condition it does.
pub(crate) fn range_holds(head: &Head, facts: &Facts) -> bool {
    let Some(sent) = head.field("if-range") else { return true };
    let Ok(sent) = std::str::from_utf8(sent) else { return false };
    let sent = sent.trim_ascii();
    if sent.starts_with('"') || sent.starts_with("W/") {
        return is_same(sent, &facts.tag, true);
    }
    // RFC 9110 §8.8.2.2: a date is as good as a strong tag if it is well in the past.
    let is_strong = !facts.tag.starts_with("W/");
    let (Ok(sent), Some(modified)) = (parse_http_date(sent), facts.modified) else { return false };
    is_strong && sent == whole_seconds(modified)
}

/// Is the tag one of those in a list? RFC 9110 §13.1: `*` is any that is there.
fn is_in(head: &Head, name: &str, tag: &str, strong: bool) -> bool {
    head.fields_named(name).filter_map(|list| std::str::from_utf8(list).ok()).any(|list| {
        let mut rest = list.trim_ascii();
        if rest == "*" {
            return true;
        }
        while let Some((one, behind)) = first_tag(rest) {
            if is_same(one, tag, strong) {
                return true;
            }
            rest = behind;
        }
        false
    })
}

/// The first tag of a list, and what is behind it. A tag may have commas, but no quotes.
fn first_tag(list: &str) -> Option<(&str, &str)> {
    let list = list.trim_start_matches([' ', '\t', ',']);
    let quoted = list.strip_prefix("W/").unwrap_or(list);
    let end = quoted.strip_prefix('"')?.find('"')? + 2;
    let length = list.len() - quoted.len() + end;
    Some(list.split_at(length))
}

/// RFC 9110 §8.8.3.2: strong comparison wants two strong tags.
fn is_same(one: &str, other: &str, strong: bool) -> bool {
    let opaque = |tag: &'_ str| tag.strip_prefix("W/").map_or(0, |_| 2);
    let (weak_one, weak_other) = (opaque(one), opaque(other));
    if strong && weak_one + weak_other > 0 {
        return false;
    }
    one[weak_one..] == other[weak_other..]
}

/// Was the file last changed at the time in this field or before? `None`: the field is absent or no date,
/// and does not count, or the file has no date.
fn since(head: &Head, name: &str, facts: &Facts) -> Option<bool> {
    let sent = parse_http_date(head.field_text(name)?.trim_ascii()).ok()?;
    Some(whole_seconds(facts.modified?) <= sent)
}

/// A time as a date can tell it.
pub(crate) fn whole_seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs())
}
