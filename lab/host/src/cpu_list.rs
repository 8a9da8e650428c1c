//! Sets of CPUs as the kernel and the command line write them: `0,2-5`.

use std::collections::BTreeSet;
use std::fmt;

/// The largest CPU number that is believed. It bounds the memory that a list can ask for.
pub const CPU_NUMBER_MAX: usize = 8191;

/// CPU numbers, in order.
pub type Cpus = BTreeSet<usize>;

/// Why a text is not a list of CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListError {
    /// There is nothing between two commas, or nothing at all.
    Empty,
    /// Something is neither a number nor a range.
    NotANumber(String),
    /// A range whose end comes before its start.
    Backwards(usize, usize),
    /// A number above [`CPU_NUMBER_MAX`].
    TooLarge(usize),
}

impl fmt::Display for ListError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListError::Empty => {
                write!(formatter, "a CPU number is missing; a list looks like 0,2-5")
            }
            ListError::NotANumber(text) => {
                write!(formatter, "{text:?} is no CPU number and no range; a list looks like 0,2-5")
            }
            ListError::Backwards(first, last) => {
                write!(formatter, "the range {first}-{last} runs backwards; write {last}-{first}")
            }
            ListError::TooLarge(number) => {
                write!(formatter, "CPU {number} is above the largest believable, {CPU_NUMBER_MAX}")
            }
        }
    }
}

impl std::error::Error for ListError {}

/// Reads `0,2-5`.
///
/// # Errors
///
/// A [`ListError`] that names the part that is wrong.
pub fn parse(text: &str) -> Result<Cpus, ListError> {
    let mut cpus = Cpus::new();
    for part in text.trim().split(',').map(str::trim) {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first, part)?, number(last, part)?),
            None => (number(part, part)?, number(part, part)?),
        };
        if first > last {
            return Err(ListError::Backwards(first, last));
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

/// Writes CPUs as a list with ranges, the inverse of [`parse`]. Nothing gives an empty text.
#[must_use]
pub fn format(cpus: &Cpus) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let text = |&(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

fn number(text: &str, part: &str) -> Result<usize, ListError> {
    let text = text.trim();
    if text.is_empty() && part.is_empty() {
        return Err(ListError::Empty);
    }
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ListError::NotANumber(part.to_owned()));
    }
    let number = text.parse().map_err(|_| ListError::NotANumber(part.to_owned()))?;
    if number > CPU_NUMBER_MAX { Err(ListError::TooLarge(number)) } else { Ok(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_back_in_their_shortest_form() {
        for (text, shortest) in
            [("0,2-5", "0,2-5"), ("3", "3"), (" 0-1, 2 ,9\n", "0-2,9"), ("7,5,6,5", "5-7")]
        {
            assert_eq!(format(&parse(text).unwrap()), shortest, "{text:?}");
        }
        assert_eq!(format(&Cpus::new()), "");
    }

    #[test]
    fn a_wrong_list_is_refused_with_the_part_that_is_wrong() {
        for (text, wrong) in [
            ("", ListError::Empty),
            ("0,,2", ListError::Empty),
            ("0,x", ListError::NotANumber("x".into())),
            ("-3", ListError::NotANumber("-3".into())),
            ("1-2-3", ListError::NotANumber("1-2-3".into())),
            ("+1", ListError::NotANumber("+1".into())),
            ("5-2", ListError::Backwards(5, 2)),
            ("0-99999", ListError::TooLarge(99_999)),
        ] {
            assert_eq!(parse(text), Err(wrong), "{text:?}");
        }
    }
}
