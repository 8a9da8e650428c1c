//! Ranks in which equal values share the mean of their places, doubled so that they are whole.

/// The ranks of `values`, from 1, doubled; and the sum of t^3 - t over all groups of t equal
/// values, by which ties make the variance of a rank sum smaller.
pub(crate) fn doubled(values: &[f64]) -> (Vec<usize>, f64) {
    let mut places: Vec<usize> = (0..values.len()).collect();
    places.sort_unstable_by(|&left, &right| values[left].total_cmp(&values[right]));
    let mut ranks = vec![0; values.len()];
    let mut ties = 0.0;
    let mut first = 0;
    for group in places.chunk_by(|&left, &right| values[left] == values[right]) {
        // Places first + 1 to first + length have the mean first + (length + 1) / 2.
        let rank = 2 * first + group.len() + 1;
        group.iter().for_each(|&place| ranks[place] = rank);
        let length = group.len() as f64;
        ties += length * length * length - length;
        first += group.len();
    }
    (ranks, ties)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_share_the_mean_of_their_places() {
        let (ranks, ties) = doubled(&[5.0, 1.0, 5.0, 2.0, 5.0]);
        assert_eq!(ranks, [8, 2, 8, 4, 8]);
        assert_eq!(ties, 24.0);
    }

    #[test]
    fn both_zeros_are_the_same_value() {
        assert_eq!(doubled(&[0.0, -0.0]).0, [3, 3]);
    }
}
