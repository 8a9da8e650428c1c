//! Paths that another server may read as a different path.
//!
//! The router does not normalize paths. A server behind it may first remove dot segments,
//! merge slashes, decode `%2F`, treat `\` as `/`, or remove path parameters (`;name=value`), and
//! then serve another resource than the one whose route matched.

use crate::hash::{read_short, read_u64};

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = ONES << 7;

/// Returns whether `path` contains anything that servers interpret differently: `%`, `\`, `;`, or a
/// `/` before another `/` or a `.`. A quick pre-check: returns true for every ambiguous path, but
/// also for some unambiguous ones.
#[inline]
#[must_use]
pub fn may_be_ambiguous(path: &[u8]) -> bool {
    let length = path.len();
    match length {
        0..8 => marks(read_short(path)) != 0,
        8..16 => (marks(read_u64(path, 0)) | marks(read_u64(path, length - 8))) != 0,
        _ => has_marks(path),
    }
}

/// Like [`may_be_ambiguous`], for a path of at least eight bytes. A separate function, because the
/// loop would slow down short paths.
#[inline(never)]
fn has_marks(path: &[u8]) -> bool {
    let (mut marked, mut at) = (0, 0);
    // The words overlap by a byte, so every pair of adjacent bytes lies within one of them.
    while at + 8 < path.len() {
        marked |= marks(read_u64(path, at));
        at += 7;
    }
    (marked | marks(read_u64(path, path.len() - 8))) != 0
}

/// Non-zero if a byte of `word`, or a pair of adjacent bytes, is one that [`may_be_ambiguous`]
/// looks for.
#[inline(always)]
fn marks(word: u64) -> u64 {
    // Sets the high bit of each byte that is zero. A byte after a zero byte may be marked by
    // mistake, which is harmless because the word is already marked.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word;
    let equal = |byte: u8| zeros(word ^ ONES.wrapping_mul(u64::from(byte)));
    // `.` and `/` differ in the lowest bit.
    let dots_and_slashes = zeros((word ^ ONES.wrapping_mul(u64::from(b'/'))) & !ONES);
    let pairs = equal(b'/') << 8 & dots_and_slashes;
    (equal(b'%') | equal(b'\\') | equal(b';') | pairs) & HIGHS
}

/// A byte or an escape of a path, classified by how some servers interpret it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    Slash,
    EncodedSlash,
    Backslash,
    EncodedBackslash,
    Dot,
    Semicolon,
    EncodedSemicolon,
    Other,
}

/// The tokens of `path`, each with its raw bytes.
fn tokens(mut path: &[u8]) -> impl Iterator<Item = (Token, &[u8])> {
    std::iter::from_fn(move || {
        let (token, length) = match path {
            [] => return None,
            [b'%', b'2', b'e' | b'E', ..] => (Token::Dot, 3),
            [b'%', b'2', b'f' | b'F', ..] => (Token::EncodedSlash, 3),
            [b'%', b'5', b'c' | b'C', ..] => (Token::EncodedBackslash, 3),
            [b'%', b'3', b'b' | b'B', ..] => (Token::EncodedSemicolon, 3),
            [b'\\', ..] => (Token::Backslash, 1),
            [b'/', ..] => (Token::Slash, 1),
            [b'.', ..] => (Token::Dot, 1),
            [b';', ..] => (Token::Semicolon, 1),
            _ => (Token::Other, 1),
        };
        let (raw, rest) = path.split_at(length);
        path = rest;
        Some((token, raw))
    })
}

/// Returns whether `path` has a segment `.` or `..` in any spelling: with `%2E`, between `%2F`, `\`
/// or `%5C` instead of slashes, or followed by path parameters (`..;a=b`).
///
/// ```
/// use peregrine_router::has_dot_segments;
///
/// assert!(has_dot_segments(b"/public/..%2fadmin"));
/// assert!(!has_dot_segments(b"/.well-known/a..b/..."));
/// ```
#[must_use]
pub fn has_dot_segments(path: &[u8]) -> bool {
    // The dots of the current segment; `None` once it contains anything else.
    let mut dots = None;
    for (token, _) in tokens(path) {
        match token {
            Token::Dot => dots = dots.map(|count: usize| count + 1),
            Token::Other => dots = None,
            Token::Semicolon | Token::EncodedSemicolon if matches!(dots, Some(1 | 2)) => {
                return true;
            }
            Token::Semicolon | Token::EncodedSemicolon => dots = None,
            Token::Slash | Token::EncodedSlash | Token::Backslash | Token::EncodedBackslash => {
                if matches!(dots, Some(1 | 2)) {
                    return true;
                }
                dots = Some(0);
            }
        }
    }
    matches!(dots, Some(1 | 2))
}

/// Steps that a server may apply to a path.
const DECODE_SLASHES: u8 = 1;
const CONVERT_BACKSLASHES: u8 = 2;
const STRIP_PARAMETERS: u8 = 4;
const MERGE_SLASHES: u8 = 8;
/// Parameters are removed before `%2F` and `%5C` are decoded, so that these belong to the
/// parameter.
const STRIP_BEFORE_DECODING: u8 = 16;

/// Passes the other readings of `path` to `accept` until it returns true, and returns whether it
/// did. A reading is a path that some server may interpret `path` as. There is one for each
/// combination of merged slashes, decoded `%2F`, backslashes as slashes, and path parameters
/// removed before or after decoding. Dot segments are not removed; see [`has_dot_segments`].
///
/// ```
/// use peregrine_router::any_reading;
///
/// let mut readings = Vec::new();
/// any_reading(b"/a%2F/b", |reading| {
///     readings.push(String::from_utf8_lossy(reading).into_owned());
///     false
/// });
/// assert_eq!(readings, ["/a//b", "/a/b"]);
/// ```
pub fn any_reading(path: &[u8], mut accept: impl FnMut(&[u8]) -> bool) -> bool {
    let (mut present, mut previous) = (0, Token::Other);
    for (token, _) in tokens(path) {
        present |= match token {
            Token::EncodedSlash => DECODE_SLASHES | MERGE_SLASHES,
            Token::Backslash | Token::EncodedBackslash => CONVERT_BACKSLASHES | MERGE_SLASHES,
            Token::Semicolon => STRIP_PARAMETERS | STRIP_BEFORE_DECODING | MERGE_SLASHES,
            Token::EncodedSemicolon => STRIP_PARAMETERS | MERGE_SLASHES,
            Token::Slash if previous == Token::Slash => MERGE_SLASHES,
            _ => 0,
        };
        previous = token;
    }
    let (mut reading, mut previous_reading) = (Vec::with_capacity(path.len()), path.to_vec());
    // Each number is a set of the five steps.
    for steps in 1..32 {
        let is_possible = steps & STRIP_BEFORE_DECODING == 0 || steps & STRIP_PARAMETERS > 0;
        if steps & !present != 0 || !is_possible {
            continue;
        }
        normalize(path, steps, &mut reading);
        if reading == path || reading == previous_reading {
            continue;
        }
        if accept(&reading) {
            return true;
        }
        std::mem::swap(&mut reading, &mut previous_reading);
    }
    false
}

/// Writes `path` as a server that applies these steps interprets it.
fn normalize(path: &[u8], steps: u8, out: &mut Vec<u8>) {
    let has_step = |step| steps & step != 0;
    let mut is_parameter = false;
    out.clear();
    for (token, raw) in tokens(path) {
        let is_separator = match token {
            Token::Slash => true,
            Token::Backslash => has_step(CONVERT_BACKSLASHES),
            Token::EncodedSlash => {
                has_step(DECODE_SLASHES) && !(is_parameter && has_step(STRIP_BEFORE_DECODING))
            }
            Token::EncodedBackslash => {
                has_step(CONVERT_BACKSLASHES) && !(is_parameter && has_step(STRIP_BEFORE_DECODING))
            }
            _ => false,
        };
        let begins_parameter = match token {
            Token::Semicolon => has_step(STRIP_PARAMETERS),
            Token::EncodedSemicolon => {
                has_step(STRIP_PARAMETERS) && !has_step(STRIP_BEFORE_DECODING)
            }
            _ => false,
        };
        if is_separator {
            is_parameter = false;
            if !has_step(MERGE_SLASHES) || out.last() != Some(&b'/') {
                out.push(b'/');
            }
        } else if begins_parameter {
            is_parameter = true;
        } else if !is_parameter {
            out.extend_from_slice(raw);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{any_reading, has_dot_segments, may_be_ambiguous};

    #[test]
    fn finds_dot_segments_in_every_spelling() {
        for path in [
            "/.",
            "/..",
            "/./a",
            "/a/../b",
            "/%2e/a",
            "/a/%2E%2e",
            "/a/.%2e/b",
            "/a/%2e./b",
            "/a%2f..",
            "/a%2F..%2Fb",
            "/a\\..\\b",
            "/a%5c%2e%2e%5Cb",
            "/a/..;x=1/b",
            "/a/.;/b",
            "//..",
        ] {
            assert!(has_dot_segments(path.as_bytes()), "{path}");
            assert!(may_be_ambiguous(path.as_bytes()), "{path}");
        }
        for path in
            ["/", "*", "", "..", "/...", "/..a", "/a..", "/.a/b.c", "/a;..", "/%2e%2e%2e", "/a;/b"]
        {
            assert!(!has_dot_segments(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn finds_marks_at_every_position() {
        for length in 1..40 {
            for mark in ["%", "\\", ";", "//", "/."] {
                for at in 0..=(length - 1) {
                    let mut path = "a".repeat(length);
                    path.insert_str(at, mark);
                    assert!(may_be_ambiguous(path.as_bytes()), "{path}");
                }
            }
        }
        for path in [
            "",
            "/",
            "*",
            "/a",
            "/a/",
            "/a.b/c.d",
            "/users/1234567/posts/89.json/",
            "/a./b-c_d~e:f@g",
        ] {
            assert!(!may_be_ambiguous(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn yields_every_combination_of_normalization_steps() {
        let readings = |path: &str| {
            let mut unique = Vec::new();
            any_reading(path.as_bytes(), |reading| {
                let reading = String::from_utf8(reading.to_vec()).expect("the path is ASCII");
                if !unique.contains(&reading) {
                    unique.push(reading);
                }
                false
            });
            unique.sort();
            unique
        };
        for (path, expected) in [
            ("/", &[][..]),
            ("/a/b/", &[]),
            ("/caf%C3%A9/.x", &[]),
            ("//a", &["/a"]),
            ("/a///b//", &["/a/b/"]),
            ("/a%2fb", &["/a/b"]),
            ("/a%5Cb\\c", &["/a/b/c"]),
            ("/a%2Fb//c", &["/a%2Fb/c", "/a/b//c", "/a/b/c"]),
            ("/a;x/b", &["/a/b"]),
            ("/;x/b", &["//b", "/b"]),
            ("/b%3bx", &["/b"]),
        ] {
            assert_eq!(readings(path), expected, "{path}");
        }
        // Parameters may be removed before the separators in them are decoded, or afterwards.
        for path in ["/;%2fx/%2fadmin", "/;%5Cx/%5cadmin", "/admin;x%2fy", "/admin%3bx"] {
            assert!(readings(path).contains(&"/admin".to_owned()), "{path}: {:?}", readings(path));
        }
        for path in ["/a;x%2fadmin", "/;x%2fadmin"] {
            let found = readings(path).iter().any(|reading| reading.ends_with("/admin"));
            assert!(found, "{path}: {:?}", readings(path));
        }
    }
}
