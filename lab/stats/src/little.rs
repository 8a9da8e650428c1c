//! Little's law: the requests in flight are their rate times their mean time.
//!
//! It holds for any server and any arrangement, so it catches figures that cannot be true. A
//! closed loop with C connections and one request each never has more than C in flight. Printed
//! figures are rounded, so everything here is done with the interval that a figure may stand for.

use crate::intervals::Interval;

/// The share of the connections that has to be in flight for a closed loop to count as full: the
/// rest is the client's own time between a reply and the next request.
pub const FULL_SHARE_MIN: f64 = 0.9;

/// What published figures say about the requests in flight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Flight {
    /// More are in flight than there can be: the figures do not belong together.
    Impossible {
        /// By how much at least, as a factor above 1.
        factor: f64,
    },
    /// As many are in flight as there are connections, or nearly, as a closed loop should have.
    Full,
    /// Fewer are in flight than a closed loop should have: the client was the limit, the load was
    /// not closed, or the mean is not that of all requests.
    Partial {
        /// The largest share of the connections that may have been busy.
        share: f64,
    },
    /// The figures are not numbers, or are negative.
    Unknown,
}

/// The requests in flight: `rate_per_s` times `mean_s`, at least and at most.
#[must_use]
pub fn in_flight(rate_per_s: Interval, mean_s: Interval) -> Interval {
    Interval { low: rate_per_s.low * mean_s.low, high: rate_per_s.high * mean_s.high }
}

/// Checks requests in flight against `slots`: connections, times the depth of pipelining. Only
/// what no rounding can explain is called impossible.
#[must_use]
pub fn check(in_flight: Interval, slots: usize) -> Flight {
    let slots = slots as f64;
    let is_known = 0.0 <= in_flight.low && in_flight.low <= in_flight.high;
    if !is_known || slots == 0.0 {
        Flight::Unknown
    } else if in_flight.low > slots {
        Flight::Impossible { factor: in_flight.low / slots }
    } else if in_flight.high < FULL_SHARE_MIN * slots {
        Flight::Partial { share: in_flight.high / slots }
    } else {
        Flight::Full
    }
}

/// The values that a printed decimal figure may stand for, half a unit of its last digit to either
/// side: `4.99` stands for 4.985 to 4.995. Commas and underscores between digits are skipped.
/// `None` for what is not a plain decimal number without a sign.
#[must_use]
pub fn printed(figure: &str) -> Option<Interval> {
    let digits: String = figure.chars().filter(|letter| !matches!(letter, ',' | '_')).collect();
    let is_plain = digits.chars().all(|letter| letter.is_ascii_digit() || letter == '.');
    if !is_plain || !digits.starts_with(|letter: char| letter.is_ascii_digit()) {
        return None;
    }
    let value: f64 = digits.parse().ok()?;
    let places = digits.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let half_unit = 0.5 * 10_f64.powi(-i32::try_from(places).ok()?);
    Some(rounded(value, half_unit))
}

/// The values that `value` may stand for if it was rounded to multiples of 2 `half_unit`; none of
/// them is negative.
#[must_use]
pub fn rounded(value: f64, half_unit: f64) -> Interval {
    Interval { low: (value - half_unit).max(0.0), high: value + half_unit }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn milliseconds(figure: &str) -> Interval {
        printed(figure).unwrap().map(|value| value / 1e3)
    }

    #[test]
    fn a_printed_figure_stands_for_all_that_round_to_it() {
        let close = |interval: Interval, low: f64, high: f64| {
            assert!((interval.low - low).abs() < 1e-9 && (interval.high - high).abs() < 1e-9);
        };
        close(printed("4.99").unwrap(), 4.985, 4.995);
        close(printed("144,342").unwrap(), 144_341.5, 144_342.5);
        close(printed("0.0").unwrap(), 0.0, 0.05);
        for wrong in ["", "-1", "1e3", ".5", "1.2.3", "4.99ms", "NaN"] {
            assert_eq!(printed(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn more_in_flight_than_connections_is_impossible() {
        // 144,342 a second at 4.99 ms are 720 in flight, on 500 connections.
        let found = check(in_flight(printed("144342").unwrap(), milliseconds("4.99")), 500);
        let Flight::Impossible { factor } = found else { panic!("{found:?}") };
        assert!((factor - 1.439).abs() < 1e-3, "{factor}");
    }

    #[test]
    fn rounding_is_given_the_benefit_of_the_doubt() {
        // 100,000 a second at 0.6 ms are 60, but at 0.55 ms 55: possible on 55 connections.
        let rate = printed("100000").unwrap();
        assert_eq!(check(in_flight(rate, milliseconds("0.6")), 55), Flight::Full);
        let exact = check(in_flight(rate, milliseconds("0.600")), 55);
        assert!(matches!(exact, Flight::Impossible { .. }), "{exact:?}");
    }

    #[test]
    fn one_request_in_flight_is_not_a_load_of_sixty_four() {
        // 20,000 a second at 0.05 ms are one in flight.
        let found = check(in_flight(printed("20000").unwrap(), milliseconds("0.050")), 64);
        let Flight::Partial { share } = found else { panic!("{found:?}") };
        assert!((share - 1.01 / 64.0).abs() < 1e-4, "{share}");
    }

    #[test]
    fn nonsense_is_not_judged() {
        assert_eq!(check(Interval::UNKNOWN, 5), Flight::Unknown);
        assert_eq!(check(Interval { low: 1.0, high: 2.0 }, 0), Flight::Unknown);
        assert_eq!(check(Interval { low: -1.0, high: 2.0 }, 5), Flight::Unknown);
    }
}
