//! [`Seeds`]: the seeds that a test runs with.

use std::ops::{Range, RangeInclusive};

/// The environment variable that overrides the seeds.
pub(super) const ENV_VAR: &str = "PEREGRINE_SEEDS";

/// An empty range of seeds.
#[expect(clippy::reversed_empty_ranges, reason = "an empty range is intended")]
const NONE: RangeInclusive<u64> = 1..=0;

/// Seeds to run a test with: a range (`0..200`) or a list (`[3, 17]`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(SeedList);

#[derive(Clone, Debug, PartialEq, Eq)]
enum SeedList {
    Range(RangeInclusive<u64>),
    List(Vec<u64>),
}

impl Seeds {
    /// Returns the seeds from the environment variable, or else these.
    pub(super) fn or_from_env(&self) -> Result<Self, String> {
        match std::env::var(ENV_VAR) {
            Ok(text) => parse(&text),
            Err(_) => Ok(self.clone()),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        let (range, list) = match &self.0 {
            SeedList::Range(range) => (range.clone(), &[][..]),
            SeedList::List(list) => (NONE, &list[..]),
        };
        range.chain(list.iter().copied())
    }
}

impl From<Range<u64>> for Seeds {
    fn from(range: Range<u64>) -> Self {
        let last = range.end.checked_sub(1).filter(|_| !range.is_empty());
        Self(SeedList::Range(last.map_or(NONE, |last| range.start..=last)))
    }
}

impl From<RangeInclusive<u64>> for Seeds {
    fn from(range: RangeInclusive<u64>) -> Self {
        Self(SeedList::Range(range))
    }
}

impl<const N: usize> From<[u64; N]> for Seeds {
    fn from(seeds: [u64; N]) -> Self {
        Self(SeedList::List(seeds.into()))
    }
}

impl From<Vec<u64>> for Seeds {
    fn from(seeds: Vec<u64>) -> Self {
        Self(SeedList::List(seeds))
    }
}

/// Parses the environment variable: one seed or a range.
fn parse(text: &str) -> Result<Seeds, String> {
    let parse_seed = |text: &str| text.trim().replace('_', "").parse::<u64>();
    let range = match text.split_once("..") {
        None => parse_seed(text).map(|seed| Seeds::from(seed..=seed)),
        Some((start, end)) => {
            parse_seed(start).and_then(|start| Ok(Seeds::from(start..parse_seed(end)?)))
        }
    };
    match range {
        Ok(seeds) if seeds.iter().next().is_some() => Ok(seeds),
        _ => Err(format!(
            "{ENV_VAR} is {text:?}, which is not a seed: use one, such as `17`, or a range, such \
             as `0..1000`"
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
        assert_eq!(parse("18446744073709551615"), Ok((u64::MAX..=u64::MAX).into()));
        // The range is not expanded to a list.
        assert!(parse("0..18446744073709551615").is_ok_and(|seeds| seeds.iter().next() == Some(0)));
        for invalid in ["", "all", "5..3", "1..", "..2", "-1"] {
            assert!(parse(invalid).is_err_and(|text| text.contains("0..1000")), "{invalid}");
        }
    }

    #[test]
    fn a_list_is_run_in_its_order() {
        assert_eq!(Seeds::from([7, 3]).iter().collect::<Vec<_>>(), [7, 3]);
        assert_eq!(Seeds::from(vec![1]).iter().collect::<Vec<_>>(), [1]);
        assert_eq!(Seeds::from(2..4).iter().collect::<Vec<_>>(), [2, 3]);
        assert_eq!(Seeds::from(u64::MAX..=u64::MAX).iter().collect::<Vec<_>>(), [u64::MAX]);
        assert_eq!(Seeds::from(0..0).iter().count(), 0);
    }
}
