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
