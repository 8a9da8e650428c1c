//! What time it is.

use time::OffsetDateTime;

#[cfg(test)]
thread_local! {
    /// How much later it is in a test.
    pub(crate) static LATER: std::cell::Cell<time::Duration> = const { std::cell::Cell::new(time::Duration::ZERO) };
}

pub(crate) fn now() -> OffsetDateTime {
    let now = OffsetDateTime::now_utc();
    #[cfg(test)]
    let now = now.saturating_add(LATER.get());
    now
}

/// Whole seconds since 1970, rounded up: a session that has begun a second lives to its end. Cut off, it would end before its time, or
/// never live. There is no second after the last one that can be told.
pub(crate) fn seconds(time: OffsetDateTime) -> i64 {
    time.saturating_add(time::Duration::nanoseconds(999_999_999)).unix_timestamp()
}
