//! One limit: its rate, key and name.

use crate::gcra::Quota;
use crate::key::{IpPrefixLengths, KeyExtractor};
use std::time::Duration;

/// The default name of a limit.
pub(crate) const DEFAULT_NAME: &str = "default";

const SECOND: u128 = 1_000_000_000;

/// One limit as configured.
#[derive(Clone, Debug)]
pub(crate) struct LimitSpec {
    pub(crate) count: u32,
    pub(crate) period: Duration,
    pub(crate) burst: Option<u32>,
    pub(crate) key: KeyExtractor,
    pub(crate) prefix_lengths: IpPrefixLengths,
    pub(crate) name: String,
}

impl LimitSpec {
    pub(crate) fn new(count: u32, period: Duration) -> Self {
        let prefix_lengths = IpPrefixLengths { v4: 32, v6: 64 };
        Self {
            count,
            period,
            burst: None,
            key: KeyExtractor::ClientIp,
            prefix_lengths,
            name: DEFAULT_NAME.to_owned(),
        }
    }

    /// The quota; `None` if the settings are invalid.
    pub(crate) fn quota(&self) -> Option<Quota> {
        let quota = Quota::new(self.count, self.period)?;
        let quota = Quota { burst: self.burst.unwrap_or(quota.burst), ..quota };
        (quota.burst > 0 && quota.burst_tolerance().is_some()).then_some(quota)
    }

    /// The number of requests and of seconds by which `RateLimit-Policy` expresses the limit. These
    /// are the burst and the time that it takes to refill or, if that is less than a second, the
    /// number of requests in one second.
    pub(crate) fn policy_quota(&self) -> (u64, u64) {
        let (count, period) = (u128::from(self.count.max(1)), self.period.as_nanos());
        let burst = u128::from(self.burst.unwrap_or(self.count));
        let window = (burst * period).div_ceil(count * SECOND);
        let quota = match burst * period < count * SECOND {
            true => burst.max(count * SECOND / period.max(1)),
            false => burst,
        };
        let to_u64 = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        (to_u64(quota), to_u64(window.max(1)))
    }

    /// Describes the invalid settings.
    pub(crate) fn config_errors(&self) -> Vec<String> {
        let mut errors = Vec::new();
        let name = &self.name;
        if Quota::new(self.count, self.period).is_none() {
            errors.push(format!(
                "the limit \"{name}\" allows {} requests per {:?}: it must allow at least one, at most one in a nanosecond, and \
                 the period must be at most 73 years",
                self.count, self.period
            ));
        } else if self.burst == Some(0) {
            errors.push(format!(
                "burst(0) of the limit \"{name}\" rejects every request: use 1 or more"
            ));
        } else if self.quota().is_none() {
            errors.push(format!(
                "burst({}) of the limit \"{name}\" takes more than 146 years to refill: use a smaller one",
                self.burst.unwrap_or(self.count)
            ));
        }
        if name.is_empty() || !name.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            errors.push(format!(
                "name({name:?}) is not a valid name: use letters, digits and hyphens"
            ));
        }
        if self.prefix_lengths.v4 > 32 || self.prefix_lengths.v6 > 128 {
            errors.push("an IPv4 prefix has at most 32 bits, and an IPv6 prefix 128".to_owned());
        }
        if let KeyExtractor::Header(name) | KeyExtractor::Cookie(name) = &self.key
            && http::HeaderName::from_bytes(name.as_bytes()).is_err()
        {
            errors.push(format!("\"{name}\" is not a header or cookie name"));
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_describes_the_rate() {
        let second = Duration::from_secs(1);
        for (count, period, burst, expected) in [
            (10, second, None, (10, 1)),
            (3, second, None, (3, 1)),
            (10, second, Some(20), (20, 2)),
            (10, second, Some(1), (10, 1)),
            (10, second, Some(15), (15, 2)),
            (100, 60 * second, None, (100, 60)),
            (100, 60 * second, Some(10), (10, 6)),
            (1, 60 * second, Some(5), (5, 300)),
            (7, 60 * second, None, (7, 60)),
        ] {
            let spec = LimitSpec { burst, ..LimitSpec::new(count, period) };
            assert_eq!(spec.policy_quota(), expected, "{count} in {period:?}, {burst:?}");
        }
    }
}
