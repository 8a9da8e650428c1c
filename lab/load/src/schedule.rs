//! When requests are to start: as replies allow, or at times that no reply can move.

use serde::Serialize;

use peregrine_lab_stats::random::Random;

const SECOND_NS: f64 = 1e9;

/// How requests are started.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Schedule {
    /// A closed loop: each connection asks again when it was answered. A slow server is asked less,
    /// so its latency says nothing about what users would see at a given rate.
    Closed,
    /// An open loop with equal distances.
    Constant {
        /// Requests per second.
        rate: f64,
    },
    /// An open loop with exponentially distributed distances, as independent users make them.
    Poisson {
        /// Requests per second, on average.
        rate: f64,
    },
    /// An open loop whose rate rises (or falls) evenly over the run.
    Ramp {
        /// Requests per second at the beginning.
        from: f64,
        /// Requests per second at the end.
        to: f64,
    },
    /// An open loop whose rate changes in equal steps of equal length.
    Step {
        /// Requests per second in the first step.
        from: f64,
        /// Requests per second in the last step.
        to: f64,
        /// How many steps; at least 1.
        steps: u32,
    },
}

impl Schedule {
    /// Whether requests wait for replies.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        *self == Schedule::Closed
    }

    /// What every output calls it.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Schedule::Closed => "closed loop".to_owned(),
            Schedule::Constant { rate } => format!("open loop, constant {rate:.0}/s"),
            Schedule::Poisson { rate } => format!("open loop, Poisson {rate:.0}/s"),
            Schedule::Ramp { from, to } => format!("open loop, ramp {from:.0}/s to {to:.0}/s"),
            Schedule::Step { from, to, steps } => {
                format!("open loop, {steps} steps {from:.0}/s to {to:.0}/s")
            }
        }
    }

    /// The highest rate at any time, in requests per second; none for a closed loop.
    #[must_use]
    pub fn rate_max(&self) -> Option<f64> {
        match *self {
            Schedule::Closed => None,
            Schedule::Constant { rate } | Schedule::Poisson { rate } => Some(rate),
            Schedule::Ramp { from, to } | Schedule::Step { from, to, .. } => Some(from.max(to)),
        }
    }

    /// The share of one thread of `threads`: together they keep the schedule.
    #[must_use]
    pub fn share(&self, threads: usize) -> Schedule {
        let share = |rate: f64| rate / threads as f64;
        match *self {
            Schedule::Closed => Schedule::Closed,
            Schedule::Constant { rate } => Schedule::Constant { rate: share(rate) },
            Schedule::Poisson { rate } => Schedule::Poisson { rate: share(rate) },
            Schedule::Ramp { from, to } => Schedule::Ramp { from: share(from), to: share(to) },
            Schedule::Step { from, to, steps } => {
                Schedule::Step { from: share(from), to: share(to), steps }
            }
        }
    }

    /// The start times of a run of `duration_ns` nanoseconds, in order; empty for a closed loop.
    /// `phase`, from 0 to 1, moves the first start within its distance to the second.
    #[must_use]
    pub fn starts(&self, duration_ns: u64, phase: f64, seed: u64) -> Starts {
        Starts {
            schedule: self.clone(),
            duration_ns: duration_ns as f64,
            number: 0,
            phase,
            at_ns: 0.0,
            random: Random::new(seed),
        }
    }
}

/// Start times in nanoseconds since the beginning, in order, all before the end.
///
/// Each time is computed from the request's number where the rate is known, so rounding does not
/// add up over a long run.
#[derive(Debug, Clone)]
pub struct Starts {
    schedule: Schedule,
    duration_ns: f64,
    number: u64,
    phase: f64,
    at_ns: f64,
    random: Random,
}

impl Starts {
    /// When request `index` (a real number, for the phase) starts at a rate that changes evenly
    /// from `from` to `to` over `duration_ns`: the inverse of the integral of the rate.
    fn on_ramp(index: f64, from: f64, to: f64, duration_ns: f64) -> f64 {
        let (from, slope) = (from / SECOND_NS, (to - from) / SECOND_NS / duration_ns);
        // from * t + slope * t^2 / 2 = index, in the form that stays exact for small slopes.
        let under = from * from + 2.0 * slope * index;
        match () {
            () if index == 0.0 => 0.0,
            () if under <= 0.0 => f64::INFINITY,
            () => 2.0 * index / (from + under.sqrt()),
        }
    }

    fn on_steps(&self, index: f64, from: f64, to: f64, steps: u32) -> f64 {
        let length_ns = self.duration_ns / f64::from(steps);
        let mut before = 0.0;
        for step in 0..steps {
            let part = f64::from(step) / f64::from((steps - 1).max(1));
            let rate = (from + (to - from) * part) / SECOND_NS;
            if index < before + rate * length_ns {
                return f64::from(step) * length_ns + (index - before) / rate;
            }
            before += rate * length_ns;
        }
        f64::INFINITY
    }
}

impl Iterator for Starts {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let index = self.number as f64 + self.phase;
        let at_ns = match self.schedule {
            Schedule::Closed => return None,
            Schedule::Constant { rate } => index * SECOND_NS / rate,
            Schedule::Poisson { rate } => {
                // 53 random bits, never zero.
                let uniform = ((self.random.draw() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
                self.at_ns - uniform.ln() * SECOND_NS / rate
            }
            Schedule::Ramp { from, to } => Starts::on_ramp(index, from, to, self.duration_ns),
            Schedule::Step { from, to, steps } => self.on_steps(index, from, to, steps),
        };
        if at_ns >= self.duration_ns || at_ns.is_nan() {
            return None;
        }
        self.number += 1;
        self.at_ns = at_ns;
        Some(at_ns as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN_SECONDS: u64 = 10_000_000_000;

    fn starts(schedule: &Schedule) -> Vec<u64> {
        schedule.starts(TEN_SECONDS, 0.0, 3).collect()
    }

    #[test]
    fn constant_starts_have_equal_distances_to_the_nanosecond() {
        let seen = starts(&Schedule::Constant { rate: 3000.0 });
        assert_eq!(seen.len(), 30_000);
        assert_eq!(seen[0], 0);
        assert_eq!(seen[3], 1_000_000);
        assert_eq!(seen[29_997], 9_999_000_000);
        assert!(seen.windows(2).all(|two| matches!(two[1] - two[0], 333_333 | 333_334)));
    }

    #[test]
    fn poisson_distances_have_the_mean_and_the_spread_of_an_exponential() {
        let seen = starts(&Schedule::Poisson { rate: 5000.0 });
        let gaps: Vec<f64> = seen.windows(2).map(|two| (two[1] - two[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>();
        let deviation = (variance / gaps.len() as f64).sqrt();
        assert!((mean / 200_000.0 - 1.0).abs() < 0.03, "mean {mean}");
        assert!((deviation / mean - 1.0).abs() < 0.03, "deviation {deviation}");
    }

    #[test]
    fn a_ramp_reaches_its_rates_and_its_total() {
        for (from, to) in [(0.0, 2000.0), (2000.0, 0.0), (500.0, 1500.0), (1000.0, 1000.0)] {
            let seen = starts(&Schedule::Ramp { from, to });
            assert!(seen.len().abs_diff(10_000) <= 1, "{} from {from}", seen.len());
            assert!(seen.is_sorted());
            let in_second = |second: u64| {
                let range = second * 1_000_000_000..(second + 1) * 1_000_000_000;
                seen.iter().filter(|at| range.contains(at)).count() as f64
            };
            let at = |second: f64| from + (to - from) * second / 10.0;
            assert!((in_second(1) - at(1.5)).abs() < 2.0);
            assert!((in_second(8) - at(8.5)).abs() < 2.0);
        }
    }

    #[test]
    fn steps_are_level_and_equally_long() {
        let seen = starts(&Schedule::Step { from: 100.0, to: 400.0, steps: 4 });
        let counts: Vec<usize> = (0..4_u64)
            .map(|step| {
                let range = step * TEN_SECONDS / 4..(step + 1) * TEN_SECONDS / 4;
                seen.iter().filter(|at| range.contains(at)).count()
            })
            .collect();
        assert_eq!(counts, [250, 500, 750, 1000]);
    }

    #[test]
    fn shares_of_threads_add_up_and_do_not_coincide() {
        let whole = Schedule::Constant { rate: 1000.0 };
        let mut all: Vec<u64> = (0..4)
            .flat_map(|thread| whole.share(4).starts(1_000_000_000, f64::from(thread) / 4.0, 1))
            .collect();
        all.sort_unstable();
        let expected: Vec<u64> = (0..1000).map(|number| number * 1_000_000).collect();
        assert_eq!(all, expected);
    }

    #[test]
    fn a_closed_loop_has_no_start_times_and_says_so() {
        assert!(starts(&Schedule::Closed).is_empty());
        assert_eq!(Schedule::Closed.words(), "closed loop");
        assert!(Schedule::Poisson { rate: 5.0 }.words().starts_with("open loop"));
    }
}
