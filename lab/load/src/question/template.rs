//! Text with places that differ from request to request.
//!
//! A placeholder is `{counter}`, `{random:LOW..HIGH}` (both ends included) or `{choice:A|B|C}`.
//! The same placeholder stands for the same value within one request and its answer; where two
//! values of one kind are needed, each gets a name, as in `{x=random:1..9}`, and `{x}` repeats it.
//! `{` before anything but a lower-case letter is itself, so JSON needs no escapes; `{{` is one
//! `{` before a letter.
//!
//! A value is a pure function of the seed and of the request's number. So a request that is under
//! way is remembered by its number alone, and the expected answer is made when it is needed.

use std::fmt;

use peregrine_lab_stats::random::Random;

/// The most placeholders that one question may define.
pub const VALUES_MAX: usize = 64;

/// Why a text is no template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateError {
    /// The placeholder that is wrong, as far as it could be read.
    pub placeholder: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.placeholder, self.reason)
    }
}

impl std::error::Error for TemplateError {}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    Counter,
    Random { low: u64, high: u64 },
    Choice(Vec<Vec<u8>>),
}

/// The values of one question: what its placeholders stand for.
#[derive(Debug, Clone, Default)]
pub struct Values {
    seed: u64,
    /// By name or, where a placeholder has none, by its own text.
    sources: Vec<(String, Source)>,
}

impl Values {
    /// No values yet; `seed` decides all that will be defined.
    #[must_use]
    pub fn new(seed: u64) -> Values {
        Values { seed, sources: Vec::new() }
    }

    /// Whether no placeholder was defined, so that all requests are alike.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Appends the value at `place` in the request of this number.
    fn write(&self, place: usize, number: u64, out: &mut Vec<u8>) {
        let draw = |bound: u64| {
            let own = Random::new(self.seed ^ (place as u64) << 56).draw();
            let mixed = Random::new(own.wrapping_add(number)).draw();
            let product = u128::from(mixed) * u128::from(bound);
            u64::try_from(product >> 64).expect("the result is below the bound")
        };
        match &self.sources[place].1 {
            Source::Counter => write_decimal(number, out),
            Source::Random { low, high } => write_decimal(low + draw(high - low + 1), out),
            Source::Choice(words) => {
                let index = usize::try_from(draw(words.len() as u64)).expect("an index is small");
                out.extend_from_slice(&words[index]);
            }
        }
    }

    fn define(&mut self, inner: &str) -> Result<usize, &'static str> {
        if let Some(known) = self.sources.iter().position(|(name, _)| name == inner) {
            return Ok(known);
        }
        let (name, kind) = match inner.split_once('=') {
            Some((name, kind)) if name.bytes().all(is_name_byte) => (name, kind),
            _ => (inner, inner),
        };
        let source = parse_source(kind)?;
        if let Some(known) = self.sources.iter().position(|(other, _)| other == name) {
            let is_same = self.sources[known].1 == source;
            return if is_same { Ok(known) } else { Err("the name stands for something else") };
        }
        if self.sources.len() == VALUES_MAX {
            return Err("there are too many placeholders");
        }
        self.sources.push((name.to_owned(), source));
        Ok(self.sources.len() - 1)
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn parse_source(kind: &str) -> Result<Source, &'static str> {
    if kind == "counter" {
        return Ok(Source::Counter);
    }
    if let Some(range) = kind.strip_prefix("random:") {
        let ends = range.split_once("..").and_then(|(low, high)| {
            Some((low.parse::<u64>().ok()?, high.parse::<u64>().ok().filter(|&n| n < u64::MAX)?))
        });
        return match ends {
            Some((low, high)) if low <= high => Ok(Source::Random { low, high }),
            _ => Err("random needs LOW..HIGH"),
        };
    }
    if let Some(words) = kind.strip_prefix("choice:") {
        return Ok(Source::Choice(words.split('|').map(|word| word.into()).collect()));
    }
    Err("a placeholder is counter, random:LOW..HIGH, choice:A|B, or a name that is defined before")
}

/// A text with placeholders, ready to be rendered.
#[derive(Debug, Clone, Default)]
pub struct Template {
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone)]
enum Piece {
    Text(Vec<u8>),
    Value(usize),
}

impl Template {
    /// Reads a text; its placeholders are defined in `values`, or refer to earlier ones.
    ///
    /// # Errors
    ///
    /// The first placeholder that cannot be read, and why.
    pub fn parse(text: &[u8], values: &mut Values) -> Result<Template, TemplateError> {
        let mut template = Template::default();
        let mut rest = text;
        while let Some(open) = memchr::memchr(b'{', rest) {
            let after = &rest[open + 1..];
            if after.len() > 1 && after[0] == b'{' && after[1].is_ascii_lowercase() {
                template.push_text(&rest[..=open]);
                template.push_text(&after[1..2]);
                rest = &after[2..];
                continue;
            }
            if !after.first().is_some_and(u8::is_ascii_lowercase) {
                template.push_text(&rest[..=open]);
                rest = after;
                continue;
            }
            template.push_text(&rest[..open]);
            let Some(close) = memchr::memchr(b'}', after) else {
                return Err(error(after, "the placeholder has no end"));
            };
            let inner = std::str::from_utf8(&after[..close])
                .map_err(|_| error(&after[..close], "a placeholder is UTF-8"))?;
            let place = values.define(inner).map_err(|why| error(inner.as_bytes(), why))?;
            template.pieces.push(Piece::Value(place));
            rest = &after[close + 1..];
        }
        template.push_text(rest);
        Ok(template)
    }

    /// A text without placeholders, whatever it contains.
    #[must_use]
    pub fn fixed(text: &[u8]) -> Template {
        let mut template = Template::default();
        template.push_text(text);
        template
    }

    /// Puts the other template behind this one.
    pub fn append(&mut self, other: Template) {
        for piece in other.pieces {
            match piece {
                Piece::Text(text) => self.push_text(&text),
                Piece::Value(_) => self.pieces.push(piece),
            }
        }
    }

    fn push_text(&mut self, text: &[u8]) {
        match self.pieces.last_mut() {
            Some(Piece::Text(last)) => last.extend_from_slice(text),
            _ if text.is_empty() => {}
            _ => self.pieces.push(Piece::Text(text.to_vec())),
        }
    }

    /// Whether every rendering gives the same bytes; they are returned.
    #[must_use]
    pub fn constant(&self) -> Option<&[u8]> {
        match self.pieces.as_slice() {
            [] => Some(&[]),
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Appends the text for the request of this number.
    pub fn render(&self, values: &Values, number: u64, out: &mut Vec<u8>) {
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Value(place) => values.write(*place, number, out),
            }
        }
    }
}

fn error(placeholder: &[u8], reason: &'static str) -> TemplateError {
    let placeholder = String::from_utf8_lossy(&placeholder[..placeholder.len().min(40)]);
    TemplateError { placeholder: format!("{{{placeholder}}}"), reason }
}

/// Appends a number in decimal digits.
pub(crate) fn write_decimal(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + u8::try_from(number % 10).expect("a digit is below ten");
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(text: &str, numbers: std::ops::Range<u64>) -> Vec<String> {
        let mut values = Values::new(7);
        let template = Template::parse(text.as_bytes(), &mut values).unwrap();
        let render = |number| {
            let mut out = Vec::new();
            template.render(&values, number, &mut out);
            String::from_utf8(out).unwrap()
        };
        numbers.map(render).collect()
    }

    #[test]
    fn a_counter_counts_and_json_needs_no_escapes() {
        let seen = rendered(r#"{"a":{"id":{counter}}, "b":{}, "{{c}": { }}"#, 9..11);
        let expected = |n| format!(r#"{{"a":{{"id":{n}}}, "b":{{}}, "{{c}}": {{ }}}}"#);
        assert_eq!(seen, [expected(9), expected(10)]);
    }

    #[test]
    fn random_numbers_reach_both_ends_and_nothing_else() {
        let seen: std::collections::BTreeSet<String> =
            rendered("{random:3..7}", 0..500).into_iter().collect();
        assert_eq!(seen.into_iter().collect::<String>(), "34567");
    }

    #[test]
    fn choices_are_all_made() {
        let seen: std::collections::BTreeSet<String> =
            rendered("{choice:a|b|c}", 0..200).into_iter().collect();
        assert_eq!(seen.into_iter().collect::<String>(), "abc");
    }

    #[test]
    fn a_placeholder_means_one_value_in_a_request_unless_it_has_a_name() {
        let texts = rendered("{random:1..1000000}={random:1..1000000}", 0..50);
        for text in texts {
            let (first, second) = text.split_once('=').unwrap();
            assert_eq!(first, second);
        }
        let texts = rendered("{x=random:1..1000000} {y=random:1..1000000} {x}", 0..50);
        for text in &texts {
            let words: Vec<&str> = text.split(' ').collect();
            assert_eq!(words[0], words[2]);
            assert_ne!(words[0], words[1], "{text}");
        }
        assert_ne!(texts[0], texts[1]);
    }

    #[test]
    fn the_seed_decides_the_values() {
        let text = b"{random:1..1000000000}";
        let first = |seed| {
            let mut values = Values::new(seed);
            let template = Template::parse(text, &mut values).unwrap();
            let mut out = Vec::new();
            template.render(&values, 0, &mut out);
            out
        };
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
    }

    #[test]
    fn a_wrong_placeholder_is_named() {
        for text in ["{rnadom:1..2}", "{random:5..2}", "{random:a..b}", "{counter", "{x}"] {
            let error = Template::parse(text.as_bytes(), &mut Values::new(0)).unwrap_err();
            assert!(error.to_string().contains(&text[..2]), "{error}");
        }
        let twice = b"{x=counter} {x=random:1..2}";
        assert!(Template::parse(twice, &mut Values::new(0)).is_err());
    }

    #[test]
    fn decimals_are_written_whole() {
        for number in [0, 9, 10, 12345, u64::MAX] {
            let mut out = Vec::new();
            write_decimal(number, &mut out);
            assert_eq!(out, number.to_string().into_bytes());
        }
    }
}
