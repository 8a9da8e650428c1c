//! Ranks that ties share.

use peregrine_lab_model::verdict::Ratio;

/// A rank for each contender by its ratio to the reference, less being better: one more than the
/// number of contenders that are clearly better. Clearly better is who lies below with the whole
/// interval, by more than the noise `band`. Without a band or a ratio there is no rank.
pub(crate) fn ranks(ratios: &[Option<Ratio>], band: Option<f64>) -> Vec<Option<usize>> {
    let Some(band) = band else { return vec![None; ratios.len()] };
    let is_better = |one: &Ratio, other: &Ratio| one.high * (1.0 + band) < other.low;
    ratios
        .iter()
        .map(|ratio| {
            let ratio = ratio.as_ref()?;
            Some(1 + ratios.iter().flatten().filter(|other| is_better(other, ratio)).count())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(low: f64, high: f64) -> Option<Ratio> {
        Some(Ratio { estimate: f64::midpoint(low, high), low, high })
    }

    #[test]
    fn who_cannot_be_told_apart_shares_a_rank() {
        let ratios = [ratio(1.0, 1.0), ratio(1.20, 1.24), ratio(1.23, 1.27), ratio(1.6, 1.7)];
        assert_eq!(ranks(&ratios, Some(0.01)), [Some(1), Some(2), Some(2), Some(4)]);
    }

    #[test]
    fn nobody_is_ranked_inside_the_band_or_without_one() {
        let ratios = [ratio(1.0, 1.0), ratio(1.02, 1.03), None];
        assert_eq!(ranks(&ratios, Some(0.05)), [Some(1), Some(1), None]);
        assert_eq!(ranks(&ratios, None), [None, None, None]);
    }
}
