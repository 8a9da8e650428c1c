//! The deadlines of a busy connection: one for each kind of event that it may wait for.
//!
//! [`Probes`] schedules one of them: while the server does not receive, it checks the socket from
//! time to time to see whether the peer is still connected.

use std::time::Duration;

/// The events that a busy connection waits for. Each may have a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Wait {
    /// Bytes in either direction on an upgraded connection or in a conversation. This is the first
    /// variant, so that its deadline is next to `set` in memory.
    Traffic,
    /// The end of the TLS handshake.
    Handshake,
    /// The rest of a head.
    Head,
    /// Content of a request, at the minimum rate.
    Receive,
    /// Receiving of the output by the peer, at the minimum rate.
    Send,
    /// The handler, within the timeout of its route.
    Handler,
    /// The end of the whole exchange.
    Exchange,
    /// The next check whether the peer is still connected. Used after the peer has ended its
    /// sending side, and while the server does not receive.
    Probe,
    /// More bytes from the peer while the connection lingers.
    Silence,
    /// The end of lingering, even if the peer keeps sending.
    Linger,
    /// Reading of available content by the task that continues to read after the response.
    Reading,
    /// Any bytes from an HTTP/2 client, or its answer to a PING.
    Ping,
    /// The earliest deadline of all HTTP/2 streams.
    Streams,
}

/// All variants, in order.
const ALL: [Wait; 13] = [
    Wait::Traffic,
    Wait::Handshake,
    Wait::Head,
    Wait::Receive,
    Wait::Send,
    Wait::Handler,
    Wait::Exchange,
    Wait::Probe,
    Wait::Silence,
    Wait::Linger,
    Wait::Reading,
    Wait::Ping,
    Wait::Streams,
];

/// The deadlines of a busy connection, on the driver's clock.
///
/// Usually few are set, and the memory of the others is not read. With thousands of connections,
/// that memory is rarely in the processor's cache.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Deadlines {
    /// Which deadlines are set: one bit for each [`Wait`].
    set: u16,
    at: [Duration; ALL.len()],
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { set: 0, at: [Duration::MAX; ALL.len()] }
    }
}

impl Deadlines {
    /// Sets a deadline; [`Duration::MAX`] clears it.
    pub(crate) fn set(&mut self, wait: Wait, at: Duration) {
        if at == Duration::MAX {
            return self.clear(wait);
        }
        self.set |= bit(wait);
        self.at[wait as usize] = at;
    }

    /// Sets a deadline, unless the wait already has one.
    pub(crate) fn begin(&mut self, wait: Wait, at: Duration) {
        if self.set & bit(wait) == 0 {
            self.set(wait, at);
        }
    }

    /// Sets a deadline, unless the wait has an earlier one.
    pub(crate) fn hasten(&mut self, wait: Wait, at: Duration) {
        if self.of(wait).is_none_or(|earlier| at < earlier) {
            self.set(wait, at);
        }
    }

    /// The deadline of a wait; `None` if it has none.
    pub(crate) fn of(&self, wait: Wait) -> Option<Duration> {
        (self.set & bit(wait) != 0).then(|| self.at[wait as usize])
    }

    pub(crate) fn clear(&mut self, wait: Wait) {
        self.set &= !bit(wait);
    }

    pub(crate) fn clear_all(&mut self) {
        self.set = 0;
    }

    /// The earliest deadline.
    pub(crate) fn first(&self) -> Option<Duration> {
        self.waits().map(|wait| self.at[wait as usize]).min()
    }

    /// Returns a wait whose deadline has passed, and clears that deadline.
    pub(crate) fn take_passed(&mut self, now: Duration) -> Option<Wait> {
        let passed = self.waits().find(|wait| self.at[*wait as usize] <= now)?;
        self.clear(passed);
        Some(passed)
    }

    /// The waits with a deadline, in order.
    fn waits(&self) -> impl Iterator<Item = Wait> {
        let mut left = self.set;
        std::iter::from_fn(move || {
            let first = ALL.get(left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(*first)
        })
    }
}

fn bit(wait: Wait) -> u16 {
    1 << wait as usize
}

/// The pause before the first probe. It doubles after each probe, up to the maximum.
const PROBE_PAUSE_MIN: Duration = Duration::from_millis(200);
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Schedules checks whether the peer has reset the connection. A connection that receives learns of
/// a reset by receiving. A connection that does not receive, because nothing consumes the data,
/// must check its socket from time to time.
#[derive(Debug)]
pub(crate) struct Probes {
    pause: Duration,
}

impl Default for Probes {
    fn default() -> Self {
        Self { pause: PROBE_PAUSE_MIN }
    }
}

impl Probes {
    /// Schedules the next probe, unless one is scheduled.
    pub(crate) fn begin(&mut self, now: impl FnOnce() -> Duration, deadlines: &mut Deadlines) {
        if deadlines.of(Wait::Probe).is_none() {
            self.set(now(), deadlines);
        }
    }

    /// Schedules the next probe.
    pub(crate) fn set(&mut self, now: Duration, deadlines: &mut Deadlines) {
        deadlines.set(Wait::Probe, now.saturating_add(self.pause));
        self.pause = (self.pause * 2).min(PROBE_PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_wait_stands_at_its_place() {
        assert!(ALL.iter().enumerate().all(|(place, wait)| place == *wait as usize));
    }

    #[test]
    fn never_is_no_time() {
        let mut deadlines = Deadlines::default();
        deadlines.set(Wait::Streams, SECOND);
        deadlines.set(Wait::Streams, Duration::MAX);
        deadlines.hasten(Wait::Exchange, Duration::MAX);
        assert_eq!((deadlines.first(), deadlines.of(Wait::Streams)), (None, None));
        assert_eq!(deadlines.take_passed(Duration::MAX), None);
        deadlines.hasten(Wait::Exchange, SECOND * 2);
        deadlines.hasten(Wait::Exchange, SECOND * 3);
        assert_eq!(deadlines.of(Wait::Exchange), Some(SECOND * 2));
    }

    #[test]
    fn each_wait_has_its_time_and_the_first_counts() {
        let mut deadlines = Deadlines::default();
        assert_eq!(deadlines.first(), None);
        deadlines.set(Wait::Traffic, SECOND * 3);
        deadlines.begin(Wait::Head, SECOND);
        deadlines.begin(Wait::Head, SECOND * 2);
        assert_eq!(deadlines.first(), Some(SECOND));
        assert_eq!(deadlines.take_passed(SECOND / 2), None);
        assert_eq!(deadlines.take_passed(SECOND * 5), Some(Wait::Traffic));
        assert_eq!(deadlines.take_passed(SECOND * 5), Some(Wait::Head));
        assert_eq!(deadlines.take_passed(SECOND * 5), None);
        deadlines.set(Wait::Send, SECOND);
        deadlines.clear(Wait::Send);
        assert_eq!(deadlines.first(), None);
    }
}
