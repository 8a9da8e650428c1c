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
        let make_error =
            |(position, kind)| PatternError { pattern: text.to_owned(), position, kind };
        let Some(segments) = text.strip_prefix('/') else {
            return Err(make_error((0, PatternErrorKind::MissingLeadingSlash)));
        };
        let mut position = 1;
        for segment in segments.split('/') {
            pattern
                .parse_segment(segment)
                .map_err(|(offset, kind)| make_error((position + offset, kind)))?;
            position += segment.len() + 1;
        }
        Ok(pattern)
    }

    fn parse_segment(&mut self, segment: &str) -> Result<(), SegmentError> {
        if self.parts.last() == Some(&SegmentPattern::CatchAll) {
            return Err((0, PatternErrorKind::CatchAllNotLast));
        }
        if self.parts.len() == SEGMENTS_MAX {
            return Err((0, PatternErrorKind::TooManySegments));
        }
        if segment.starts_with([':', '*']) {
            return Err((0, PatternErrorKind::LegacySyntax));
        }
        let (prefix, open) = parse_literal(segment, 0)?;
        let Some(open) = open else {
            self.parts.push(SegmentPattern::Static(prefix));
            return Ok(());
        };
        let close =
            segment[open..].find('}').ok_or((open, PatternErrorKind::UnclosedBrace))? + open;
        let (suffix, second_open) = parse_literal(segment, close + 1)?;
        if let Some(second_open) = second_open {
            return Err((second_open, PatternErrorKind::TwoParametersInSegment));
        }
        if prefix.len() + suffix.len() > LITERAL_BYTES_MAX {
            return Err((0, PatternErrorKind::LiteralTooLong));
        }
        let content = &segment[open + 1..close];
        let (name, is_catch_all) = match content.strip_prefix('*') {
            Some(name) => (name, true),
            None => (content, false),
        };
        self.parse_name(name, close - name.len())?;
        let is_affixed = !prefix.is_empty() || !suffix.is_empty();
        self.parts.push(match (is_catch_all, is_affixed) {
            (true, true) => return Err((open, PatternErrorKind::AffixedCatchAll)),
            (true, false) => SegmentPattern::CatchAll,
            (false, true) => SegmentPattern::Affixed { prefix, suffix },
            (false, false) => SegmentPattern::Parameter,
        });
        Ok(())
    }

    fn parse_name(&mut self, name: &str, position: usize) -> Result<(), SegmentError> {
        if name.is_empty() {
            return Err((position, PatternErrorKind::EmptyName));
        }
        let is_invalid =
            |character: char| !(character.is_alphanumeric() || "_-.".contains(character));
        if let Some(offset) = name.find(is_invalid) {
            let is_constraint = name[offset..].starts_with(':');
            let kind = if is_constraint {
                PatternErrorKind::Constraint
            } else {
                PatternErrorKind::InvalidName
            };
            return Err((position + offset, kind));
        }
        if self.names.iter().any(|other| **other == *name) {
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

/// Parses fixed text from `start` to the end or to a parameter's `{`, whose position it returns.
fn parse_literal(segment: &str, start: usize) -> Result<(Vec<u8>, Option<usize>), SegmentError> {
    let mut text = String::new();
    let mut characters =
        segment[start..].char_indices().map(|(at, character)| (start + at, character));
    let mut open = None;
    while let Some((at, character)) = characters.next() {
        let is_doubled = segment[at + character.len_utf8()..].starts_with(character);
        match character {
            '{' | '}' if is_doubled => drop(characters.next()),
            '{' => {
                open = Some(at);
                break;
            }
            '}' => return Err((at, PatternErrorKind::UnopenedBrace)),
            '?' | '#' => return Err((at, PatternErrorKind::QueryOrFragment)),
            _ => {}
        }
        text.push(character);
    }
    let literal = plain(text.as_bytes());
    // In the tables of children, a zero byte would look like the padding of a short text.
    if literal.contains(&0) {
        return Err((start, PatternErrorKind::Nul));
    }
    if literal.len() > LITERAL_BYTES_MAX {
        return Err((start, PatternErrorKind::LiteralTooLong));
    }
    Ok((literal, open))
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
    fn parses_patterns_into_parts_and_names() {
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
            let actual = Pattern::parse(pattern).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(actual.parts, parts, "{pattern}");
            assert_eq!(actual.names.iter().map(|name| &**name).collect::<Vec<_>>(), names);
        }
    }

    #[test]
    fn errors_contain_the_pattern_and_the_position() {
        let many_parameters = (0..33).map(|n| format!("/{{p{n}}}")).collect::<String>();
        let many_segments = "/a".repeat(256);
        let long_literal = format!("/{}", "a".repeat(256));
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
            (&many_parameters, 184, TooManyParameters),
            (&many_segments, 511, TooManySegments),
            (&long_literal, 1, LiteralTooLong),
        ];
        for (pattern, position, kind) in table {
            let error = Pattern::parse(pattern).err().unwrap_or_else(|| panic!("{pattern}"));
            assert_eq!((error.position, error.kind), (*position, *kind), "{pattern}");
            assert!(error.to_string().contains(pattern));
        }
    }
}
