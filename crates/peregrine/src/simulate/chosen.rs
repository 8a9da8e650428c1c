//! Which seeds a test is run with.

use std::ops::{Range, RangeInclusive};

/// The variable that says which seeds to run.
pub(super) const VARIABLE: &str = "PEREGRINE_SEEDS";

/// Seeds to run a test with: a range (`0..200`), or those of a list (`[3, 17]`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Range(Range<u64>),
    List(Vec<u64>),
}

impl Seeds {
    /// Those that the environment names, or these.
    pub(super) fn or_told(&self) -> Result<Self, String> {
        match std::env::var(VARIABLE) {
            Ok(text) => parse(&text),
            Err(_) => Ok(self.clone()),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        let (range, list) = match &self.0 {
            Kind::Range(range) => (range.clone(), &[][..]),
            Kind::List(list) => (0..0, &list[..]),
        };
        range.chain(list.iter().copied())
    }
}

impl From<Range<u64>> for Seeds {
    fn from(range: Range<u64>) -> Self {
        Self(Kind::Range(range))
    }
}

impl From<RangeInclusive<u64>> for Seeds {
    fn from(range: RangeInclusive<u64>) -> Self {
        let (from, to) = range.into_inner();
        Self(Kind::Range(from..to.saturating_add(1)))
    }
}

impl<const N: usize> From<[u64; N]> for Seeds {
    fn from(seeds: [u64; N]) -> Self {
        Self(Kind::List(seeds.into()))
    }
}

impl From<Vec<u64>> for Seeds {
    fn from(seeds: Vec<u64>) -> Self {
        Self(Kind::List(seeds))
    }
}

/// The seeds that the environment names: one, or a range.
fn parse(text: &str) -> Result<Seeds, String> {
    let number = |text: &str| text.trim().replace('_', "").parse::<u64>();
    let range = match text.split_once("..") {
        None => number(text).map(|seed| seed..seed.saturating_add(1)),
        Some((from, to)) => number(from).and_then(|from| Ok(from..number(to)?)),
    };
    match range {
        Ok(range) if !range.is_empty() => Ok(range.into()),
        _ => Err(format!(
            "{VARIABLE} is {text:?}, which names no seed: write one, as `17`, or a range, as `0..1000`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_one_seed_or_a_range() {
        assert_eq!(parse("17"), Ok((17..18).into()));
        assert_eq!(parse(" 3..5 "), Ok((3..=4).into()));
        assert_eq!(parse("1_000"), Ok((1_000..1_001).into()));
        // No list of them is made.
        assert!(parse("0..18446744073709551615").is_ok_and(|seeds| seeds.iter().next() == Some(0)));
        for wrong in ["", "all", "5..3", "1..", "..2", "-1"] {
            assert!(parse(wrong).is_err_and(|text| text.contains("0..1000")), "{wrong}");
        }
    }

    #[test]
    fn a_list_is_run_in_its_order() {
        assert_eq!(Seeds::from([7, 3]).iter().collect::<Vec<_>>(), [7, 3]);
        assert_eq!(Seeds::from(vec![1]).iter().collect::<Vec<_>>(), [1]);
        assert_eq!(Seeds::from(2..4).iter().collect::<Vec<_>>(), [2, 3]);
    }
}
