//! The current time, which tests can shift.

use time::OffsetDateTime;

#[cfg(test)]
thread_local! {
    /// How far tests have advanced the clock.
    pub(crate) static TEST_OFFSET: std::cell::Cell<time::Duration> = const { std::cell::Cell::new(time::Duration::ZERO) };
}

/// Returns the current time, shifted by the offset that a test has set.
pub(crate) fn now() -> OffsetDateTime {
    let now = OffsetDateTime::now_utc();
    #[cfg(test)]
    let now = now.saturating_add(TEST_OFFSET.get());
    now
}

/// Whole seconds since 1970, rounded up so that a session lives until its end: rounded down, it
/// would end early, perhaps immediately. The result saturates at the last representable second.
pub(crate) fn seconds(time: OffsetDateTime) -> i64 {
    time.saturating_add(time::Duration::nanoseconds(999_999_999)).unix_timestamp()
}
