//! Parses patterns.

use crate::encoding::plain;
use crate::error::{PatternError, PatternFault};
use crate::{LITERAL_BYTES_MAX, PARAMETERS_MAX, SEGMENTS_MAX};

/// A parsed pattern. Its shape is its parts; names are not part of the shape.
pub(crate) struct Pattern {
    pub(crate) parts: Vec<Part>,
    /// The parameters' names, from the left.
    pub(crate) names: Vec<Box<str>>,
}

/// One segment of a pattern. Fixed text is in its plain form (see `encoding.rs`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// Fixed text, possibly empty.
    Static(Vec<u8>),
    /// One parameter with fixed text before it, after it, or both.
    Affixed { prefix: Vec<u8>, suffix: Vec<u8> },
    /// One parameter that is the whole segment.
    Parameter,
    /// The catch-all, always last.
    Rest,
}

impl Pattern {
    /// Parses a pattern.
    pub(crate) fn parse(text: &str) -> Result<Self, PatternError> {
        let mut pattern = Self { parts: Vec::new(), names: Vec::new() };
        let fail = |(position, fault)| PatternError { pattern: text.to_owned(), position, fault };
        let Some(segments) = text.strip_prefix('/') else {
            return Err(fail((0, PatternFault::NoLeadingSlash)));
        };
        let mut position = 1;
        for segment in segments.split('/') {
            pattern.read_segment(segment).map_err(|(at, fault)| fail((position + at, fault)))?;
            position += segment.len() + 1;
        }
        Ok(pattern)
    }

    fn read_segment(&mut self, segment: &str) -> Result<(), Fault> {
        if self.parts.last() == Some(&Part::Rest) {
            return Err((0, PatternFault::CatchAllNotLast));
        }
        if self.parts.len() == SEGMENTS_MAX {
            return Err((0, PatternFault::TooManySegments));
        }
        if segment.starts_with([':', '*']) {
            return Err((0, PatternFault::OldSyntax));
        }
        let (prefix, hole) = read_literal(segment, 0)?;
        let Some(hole) = hole else {
            self.parts.push(Part::Static(prefix));
            return Ok(());
        };
        let close = segment[hole..].find('}').ok_or((hole, PatternFault::Unclosed))? + hole;
        let (suffix, second) = read_literal(segment, close + 1)?;
        if let Some(second) = second {
            return Err((second, PatternFault::TwoInSegment));
        }
        if prefix.len() + suffix.len() > LITERAL_BYTES_MAX {
            return Err((0, PatternFault::LiteralTooLong));
        }
        let inside = &segment[hole + 1..close];
        let (name, rest) = match inside.strip_prefix('*') {
            Some(name) => (name, true),
            None => (inside, false),
        };
        self.read_name(name, close - name.len())?;
        let affixed = !prefix.is_empty() || !suffix.is_empty();
        self.parts.push(match (rest, affixed) {
            (true, true) => return Err((hole, PatternFault::AffixedCatchAll)),
            (true, false) => Part::Rest,
            (false, true) => Part::Affixed { prefix, suffix },
            (false, false) => Part::Parameter,
        });
        Ok(())
    }

    fn read_name(&mut self, name: &str, position: usize) -> Result<(), Fault> {
        if name.is_empty() {
            return Err((position, PatternFault::EmptyName));
        }
        let bad = |letter: char| !(letter.is_alphanumeric() || "_-.".contains(letter));
        if let Some(at) = name.find(bad) {
            let constraint = name[at..].starts_with(':');
            let fault = if constraint { PatternFault::Constraint } else { PatternFault::BadName };
            return Err((position + at, fault));
        }
        if self.names.iter().any(|known| **known == *name) {
            return Err((position, PatternFault::NameTwice));
        }
        if self.names.len() == PARAMETERS_MAX {
            return Err((position, PatternFault::TooManyParameters));
        }
        self.names.push(name.into());
        Ok(())
    }
}

/// An error and where it begins in the segment.
type Fault = (usize, PatternFault);

/// Reads fixed text from `start` to the end or to a parameter's `{`, whose position it returns.
fn read_literal(segment: &str, start: usize) -> Result<(Vec<u8>, Option<usize>), Fault> {
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
            '}' => return Err((at, PatternFault::Unopened)),
            '?' | '#' => return Err((at, PatternFault::NotInPath)),
            _ => {}
        }
        text.push(letter);
    }
    let literal = plain(text.as_bytes());
    // A zero byte could not be distinguished from the padding of a word in the tables of children.
    if literal.contains(&0) {
        return Err((start, PatternFault::Nul));
    }
    if literal.len() > LITERAL_BYTES_MAX {
        return Err((start, PatternFault::LiteralTooLong));
    }
    Ok((literal, hole))
}

#[cfg(test)]
mod tests {
    use super::{Part, Pattern};
    use crate::PatternFault::{self, *};

    fn affixed(prefix: &str, suffix: &str) -> Part {
        Part::Affixed { prefix: prefix.into(), suffix: suffix.into() }
    }

    fn text(text: &str) -> Part {
        Part::Static(text.into())
    }

    #[test]
    fn patterns_are_read_into_parts_and_names() {
        for (pattern, parts, names) in [
            ("/", vec![text("")], vec![]),
            ("/a//b/", vec![text("a"), text(""), text("b"), text("")], vec![]),
            ("/{id}", vec![Part::Parameter], vec!["id"]),
            ("/{name}.json", vec![affixed("", ".json")], vec!["name"]),
            ("/v{version}", vec![affixed("v", "")], vec!["version"]),
            ("/a-{b}-c", vec![affixed("a-", "-c")], vec!["b"]),
            ("/f/{*rest}", vec![text("f"), Part::Rest], vec!["rest"]),
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
        let table: &[(&str, usize, PatternFault)] = &[
            ("", 0, NoLeadingSlash),
            ("a/b", 0, NoLeadingSlash),
            ("/a/{b", 3, Unclosed),
            ("/a/{b/c}", 3, Unclosed),
            ("/a}", 2, Unopened),
            ("/a/{}", 4, EmptyName),
            ("/{*}", 3, EmptyName),
            ("/{a b}", 3, BadName),
            ("/{id:u64}", 4, Constraint),
            ("/{a}/x/{a}", 8, NameTwice),
            ("/{a}{b}", 4, TwoInSegment),
            ("/{a}-{b}", 5, TwoInSegment),
            ("/x{*a}", 2, AffixedCatchAll),
            ("/{*a}x", 1, AffixedCatchAll),
            ("/{*a}/b", 6, CatchAllNotLast),
            ("/{*a}/", 6, CatchAllNotLast),
            ("/:id", 1, OldSyntax),
            ("/a/*rest", 3, OldSyntax),
            ("/a?b", 2, NotInPath),
            ("/a#b", 2, NotInPath),
            ("/a%00", 1, Nul),
            (&many, 184, TooManyParameters),
            (&deep, 511, TooManySegments),
            (&long, 1, LiteralTooLong),
        ];
        for (pattern, position, fault) in table {
            let error = Pattern::parse(pattern).err().unwrap_or_else(|| panic!("{pattern}"));
            assert_eq!((error.position, error.fault), (*position, *fault), "{pattern}");
            assert!(error.to_string().contains(pattern));
        }
    }
}
