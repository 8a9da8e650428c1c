//! File names: in `Content-Disposition`, matched by patterns, and with content hashes.

use http::HeaderValue;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// RFC 8187, section 3.2.1: the characters of an extended value that need no encoding.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// A `Content-Disposition` with which browsers save the response under this name (RFC 6266). The
/// name can contain any Unicode characters.
///
/// In the form for old clients, characters other than plain ASCII become `_`. In both forms,
/// slashes and control characters do, so that the name cannot be taken for a path.
///
/// ```
/// use peregrine::files::attachment;
///
/// let value = attachment("grün.pdf");
/// assert_eq!(value, "attachment; filename=\"gr_n.pdf\"; filename*=UTF-8''gr%C3%BCn.pdf");
/// ```
#[must_use]
pub fn attachment(name: &str) -> HeaderValue {
    content_disposition("attachment", name)
}

/// Like [`attachment`], but browsers display the response, and suggest this name when it is saved.
#[must_use]
pub fn inline(name: &str) -> HeaderValue {
    content_disposition("inline", name)
}

fn content_disposition(kind: &str, name: &str) -> HeaderValue {
    let is_path = |c: char| c.is_control() || c == '/' || c == '\\';
    let name: String = name.chars().map(|c| if is_path(c) { '_' } else { c }).collect();
    // RFC 6266 appendix D: clients differ in how they read quotes and percent signs.
    let is_plain = |c: char| (' '..='~').contains(&c) && !['"', '%'].contains(&c);
    let plain: String = name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    let value = if plain == name {
        format!("{kind}; filename=\"{plain}\"")
    } else {
        let extended = utf8_percent_encode(&name, VALUE);
        format!("{kind}; filename=\"{plain}\"; filename*=UTF-8''{extended}")
    };
    HeaderValue::try_from(value).expect("all characters are plain ASCII")
}

/// Whether the path matches the pattern, in which `*` stands for any characters including slashes.
pub(crate) fn glob_matches(pattern: &str, path: &str) -> bool {
    let (pattern, path) = (pattern.as_bytes(), path.as_bytes());
    // Where to resume after the last `*` if the rest does not match.
    let (mut pattern_index, mut path_index, mut retry) = (0, 0, None);
    while path_index < path.len() {
        match pattern.get(pattern_index) {
            Some(b'*') => {
                retry = Some((pattern_index + 1, path_index));
                pattern_index += 1;
            }
            Some(byte) if *byte == path[path_index] => {
                pattern_index += 1;
                path_index += 1;
            }
            _ => {
                let Some((after, retried)) = retry else { return false };
                retry = Some((after, retried + 1));
                (pattern_index, path_index) = (after, retried + 1);
            }
        }
    }
    pattern[pattern_index..].iter().all(|byte| *byte == b'*')
}

/// Whether the name has a content hash as written by build tools: `index-BXk29aQ1.js`,
/// `app.3f2a9c1b.css`. This is a part between dots, hyphens or underscores, before the extension,
/// of at least eight letters and digits, with a digit, and with letters that are all hexadecimal
/// digits or of both cases.
pub(crate) fn has_content_hash(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let Some((stem, _)) = name.rsplit_once('.') else { return false };
    let mut parts = stem.split(['.', '-', '_']).skip(1);
    parts.any(|part| {
        let has = |predicate: fn(&u8) -> bool| part.as_bytes().iter().any(&predicate);
        let is_hex = part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_mixed = has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase);
        let is_plain = part.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let has_both = has(u8::is_ascii_digit) && has(u8::is_ascii_alphabetic);
        part.len() >= 8 && is_plain && has_both && (is_hex || is_mixed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn download_names_are_safe_in_both_forms() {
        for (name, value) in [
            ("a b.txt", "attachment; filename=\"a b.txt\""),
            ("../x", "attachment; filename=\".._x\""),
            ("a\"b\\c", "attachment; filename=\"a_b_c\"; filename*=UTF-8''a%22b_c"),
            ("a\r\nb", "attachment; filename=\"a__b\""),
            ("100%.txt", "attachment; filename=\"100_.txt\"; filename*=UTF-8''100%25.txt"),
            ("鷹", "attachment; filename=\"_\"; filename*=UTF-8''%E9%B7%B9"),
        ] {
            assert_eq!(attachment(name), value, "{name:?}");
        }
        assert_eq!(inline("a"), "inline; filename=\"a\"");
    }

    #[test]
    fn a_star_matches_any_characters() {
        for (pattern, path, expected) in [
            ("*", "a/b.c", true),
            ("*", "", true),
            ("*.html", "a/b.html", true),
            ("*.html", "a.html.txt", false),
            ("assets/*", "assets/x/y", true),
            ("assets/*", "x/assets/y", false),
            ("a*b*c", "aXbXbXc", true),
            ("a*b", "ab", true),
            ("a*b", "ba", false),
            ("exact", "exact", true),
            ("exact", "exactly", false),
            ("", "a", false),
        ] {
            assert_eq!(glob_matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn content_hashes_are_distinguished_from_words_and_dates() {
        for (path, expected) in [
            ("assets/index-BXk29aQ1.js", true),
            ("app.3f2a9c1b.css", true),
            ("app.3f2a9c1b4d5e.chunk.js", true),
            ("logo_0a1b2c3d.png", true),
            ("index.html", false),
            ("jquery-3.7.1.min.js", false),
            ("report-20240131.pdf", false),
            ("some-javascript-file.js", false),
            ("bootstrap5grid-sys1234.css", false),
            ("3f2a9c1b", false),
        ] {
            assert_eq!(has_content_hash(path), expected, "{path}");
        }
    }
}
