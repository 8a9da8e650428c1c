//! Parses patterns.

use crate::encoding::plain;
use crate::error::{PatternError, PatternErrorKind};
use crate::{LITERAL_BYTES_MAX, PARAMETERS_MAX, SEGMENTS_MAX};

/// A parsed pattern. Its shape is its parts; names are not part of the shape.
pub(crate) struct Pattern {
    pub(crate) parts: Vec<SegmentPattern>,
    /// The parameters' names, from the left.
    pub(crate) names: Vec<Box<str>>,
}

/// One segment of a pattern. Fixed text is in its plain form (see `encoding.rs`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SegmentPattern {
    /// Fixed text, possibly empty.
    Static(Vec<u8>),
    /// One parameter with fixed text before it, after it, or both.
    Affixed { prefix: Vec<u8>, suffix: Vec<u8> },
    /// One parameter that is the whole segment.
    Parameter,
    /// The catch-all, always last.
    CatchAll,
}

impl Pattern {
    /// Parses a pattern.
    pub(crate) fn parse(text: &str) -> Result<Self, PatternError> {
        let mut pattern = Self { parts: Vec::new(), names: Vec::new() };
        let fail =
            |(position, fault)| PatternError { pattern: text.to_owned(), position, kind: fault };
        let Some(segments) = text.strip_prefix('/') else {
            return Err(fail((0, PatternErrorKind::MissingLeadingSlash)));
        };
        let mut position = 1;
        for segment in segments.split('/') {
            pattern.read_segment(segment).map_err(|(at, fault)| fail((position + at, fault)))?;
            position += segment.len() + 1;
        }
        Ok(pattern)
    }

    fn read_segment(&mut self, segment: &str) -> Result<(), SegmentError> {
        if self.parts.last() == Some(&SegmentPattern::CatchAll) {
            return Err((0, PatternErrorKind::CatchAllNotLast));
        }
        if self.parts.len() == SEGMENTS_MAX {
            return Err((0, PatternErrorKind::TooManySegments));
        }
        if segment.starts_with([':', '*']) {
            return Err((0, PatternErrorKind::LegacySyntax));
        }
        let (prefix, hole) = read_literal(segment, 0)?;
        let Some(hole) = hole else {
            self.parts.push(SegmentPattern::Static(prefix));
            return Ok(());
        };
        let close =
            segment[hole..].find('}').ok_or((hole, PatternErrorKind::UnclosedBrace))? + hole;
        let (suffix, second) = read_literal(segment, close + 1)?;
        if let Some(second) = second {
            return Err((second, PatternErrorKind::TwoParametersInSegment));
        }
        if prefix.len() + suffix.len() > LITERAL_BYTES_MAX {
            return Err((0, PatternErrorKind::LiteralTooLong));
        }
        let inside = &segment[hole + 1..close];
        let (name, rest) = match inside.strip_prefix('*') {
            Some(name) => (name, true),
            None => (inside, false),
        };
        self.read_name(name, close - name.len())?;
        let affixed = !prefix.is_empty() || !suffix.is_empty();
        self.parts.push(match (rest, affixed) {
            (true, true) => return Err((hole, PatternErrorKind::AffixedCatchAll)),
            (true, false) => SegmentPattern::CatchAll,
            (false, true) => SegmentPattern::Affixed { prefix, suffix },
            (false, false) => SegmentPattern::Parameter,
        });
        Ok(())
    }

    fn read_name(&mut self, name: &str, position: usize) -> Result<(), SegmentError> {
        if name.is_empty() {
            return Err((position, PatternErrorKind::EmptyName));
        }
        let bad = |letter: char| !(letter.is_alphanumeric() || "_-.".contains(letter));
        if let Some(at) = name.find(bad) {
            let constraint = name[at..].starts_with(':');
            let fault = if constraint {
                PatternErrorKind::Constraint
            } else {
                PatternErrorKind::InvalidName
            };
            return Err((position + at, fault));
        }
        if self.names.iter().any(|known| **known == *name) {
            return Err((position, PatternErrorKind::DuplicateName));
        }
        if self.names.len() == PARAMETERS_MAX {
            return Err((position, PatternErrorKind::TooManyParameters));
        }
        self.names.push(name.into());
        Ok(())
    }
}

/// An error and where it begins in the segment.
type SegmentError = (usize, PatternErrorKind);

/// Reads fixed text from `start` to the end or to a parameter's `{`, whose position it returns.
fn read_literal(segment: &str, start: usize) -> Result<(Vec<u8>, Option<usize>), SegmentError> {
    let mut text = String::new();
    let mut letters = segment[start..].char_indices().map(|(at, letter)| (start + at, letter));
    let mut hole = None;
    while let Some((at, letter)) = letters.next() {
        let doubled = segment[at + letter.len_utf8()..].starts_with(letter);
        match letter {
            '{' | '}' if doubled => drop(letters.next()),
            '{' => {
                hole = Some(at);
                break;
            }
            '}' => return Err((at, PatternErrorKind::UnopenedBrace)),
            '?' | '#' => return Err((at, PatternErrorKind::QueryOrFragment)),
            _ => {}
        }
        text.push(letter);
    }
    let literal = plain(text.as_bytes());
    // A zero byte could not be distinguished from the padding of a word in the tables of children.
    if literal.contains(&0) {
        return Err((start, PatternErrorKind::Nul));
    }
    if literal.len() > LITERAL_BYTES_MAX {
        return Err((start, PatternErrorKind::LiteralTooLong));
    }
    Ok((literal, hole))
}

#[cfg(test)]
mod tests {
    use super::{Pattern, SegmentPattern};
    use crate::PatternErrorKind::{self, *};

    fn affixed(prefix: &str, suffix: &str) -> SegmentPattern {
        SegmentPattern::Affixed { prefix: prefix.into(), suffix: suffix.into() }
    }

    fn text(text: &str) -> SegmentPattern {
        SegmentPattern::Static(text.into())
    }

    #[test]
    fn patterns_are_read_into_parts_and_names() {
        for (pattern, parts, names) in [
            ("/", vec![text("")], vec![]),
            ("/a//b/", vec![text("a"), text(""), text("b"), text("")], vec![]),
            ("/{id}", vec![SegmentPattern::Parameter], vec!["id"]),
            ("/{name}.json", vec![affixed("", ".json")], vec!["name"]),
            ("/v{version}", vec![affixed("v", "")], vec!["version"]),
            ("/a-{b}-c", vec![affixed("a-", "-c")], vec!["b"]),
            ("/f/{*rest}", vec![text("f"), SegmentPattern::CatchAll], vec!["rest"]),
            ("/{{a}}", vec![text("{a}")], vec![]),
            ("/{{{a}}}", vec![affixed("{", "}")], vec!["a"]),
            ("/caf%C3%A9/%2f", vec![text("café"), text("%2F")], vec![]),
            ("/%3Aa", vec![text(":a")], vec![]),
        ] {
            let read = Pattern::parse(pattern).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(read.parts, parts, "{pattern}");
            assert_eq!(read.names.iter().map(|name| &**name).collect::<Vec<_>>(), names);
        }
    }

    #[test]
    fn bad_patterns_name_the_place_and_the_fix() {
        let many = (0..33).map(|n| format!("/{{p{n}}}")).collect::<String>();
        let deep = "/a".repeat(256);
        let long = format!("/{}", "a".repeat(256));
        let table: &[(&str, usize, PatternErrorKind)] = &[
            ("", 0, MissingLeadingSlash),
            ("a/b", 0, MissingLeadingSlash),
            ("/a/{b", 3, UnclosedBrace),
            ("/a/{b/c}", 3, UnclosedBrace),
            ("/a}", 2, UnopenedBrace),
            ("/a/{}", 4, EmptyName),
            ("/{*}", 3, EmptyName),
            ("/{a b}", 3, InvalidName),
            ("/{id:u64}", 4, Constraint),
            ("/{a}/x/{a}", 8, DuplicateName),
            ("/{a}{b}", 4, TwoParametersInSegment),
            ("/{a}-{b}", 5, TwoParametersInSegment),
            ("/x{*a}", 2, AffixedCatchAll),
            ("/{*a}x", 1, AffixedCatchAll),
            ("/{*a}/b", 6, CatchAllNotLast),
            ("/{*a}/", 6, CatchAllNotLast),
            ("/:id", 1, LegacySyntax),
            ("/a/*rest", 3, LegacySyntax),
            ("/a?b", 2, QueryOrFragment),
            ("/a#b", 2, QueryOrFragment),
            ("/a%00", 1, Nul),
            (&many, 184, TooManyParameters),
            (&deep, 511, TooManySegments),
            (&long, 1, LiteralTooLong),
        ];
        for (pattern, position, fault) in table {
            let error = Pattern::parse(pattern).err().unwrap_or_else(|| panic!("{pattern}"));
            assert_eq!((error.position, error.kind), (*position, *fault), "{pattern}");
            assert!(error.to_string().contains(pattern));
        }
    }
}
