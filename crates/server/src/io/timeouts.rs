//! The timeouts of an active connection, as a small set of named deadlines.
//!
//! One of them is for [`Probes`]: when to ask the kernel whether a peer is still there, from which
//! nothing is received.

use std::time::Duration;

/// What a busy connection waits for. Each may have a time of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Wait {
    /// Bytes either way on an upgraded connection, or in a conversation. It is first, and so beside the set.
    Traffic,
    /// The TLS handshake.
    Handshake,
    /// The rest of a head.
    Head,
    /// Content of a request, as fast as the least rate.
    Receive,
    /// The peer, to take what is written, as fast as the least rate.
    Send,
    /// The handler, as long as its route allows.
    Handler,
    /// The whole exchange.
    Exchange,
    /// The next look whether a peer is there that ended its side, or of whom nothing is received.
    Probe,
    /// The next bytes of a peer that was answered for the last time.
    Silence,
    /// The end of lingering, however the peer sends.
    Linger,
    /// Whoever reads a request's content after the response, to take what is there.
    Reading,
    /// Anything from a client of HTTP/2, or its answer to a PING.
    Ping,
    /// The first of all waits of the streams of HTTP/2.
    Streams,
}

/// All of them, in order.
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

/// The times at which waits end, on the driver's clock.
///
/// Few are set at a time. What is not set is not looked at: thousands of connections wait in turn, and
/// what is read of each has left the processor's cache.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Deadlines {
    /// Which are set, a bit for each.
    set: u16,
    at: [Duration; ALL.len()],
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { set: 0, at: [Duration::MAX; ALL.len()] }
    }
}

impl Deadlines {
    /// Sets a time, or clears it by [`Duration::MAX`].
    pub(crate) fn set(&mut self, wait: Wait, at: Duration) {
        if at == Duration::MAX {
            return self.clear(wait);
        }
        self.set |= bit(wait);
        self.at[wait as usize] = at;
    }

    /// Sets a time unless the wait has one.
    pub(crate) fn begin(&mut self, wait: Wait, at: Duration) {
        if self.set & bit(wait) == 0 {
            self.set(wait, at);
        }
    }

    /// Sets a time unless the wait has an earlier one.
    pub(crate) fn hasten(&mut self, wait: Wait, at: Duration) {
        if self.of(wait).is_none_or(|earlier| at < earlier) {
            self.set(wait, at);
        }
    }

    /// The time of a wait; `None` if it has none.
    pub(crate) fn of(&self, wait: Wait) -> Option<Duration> {
        (self.set & bit(wait) != 0).then(|| self.at[wait as usize])
    }

    pub(crate) fn clear(&mut self, wait: Wait) {
        self.set &= !bit(wait);
    }

    pub(crate) fn clear_all(&mut self) {
        self.set = 0;
    }

    /// The first of all times.
    pub(crate) fn first(&self) -> Option<Duration> {
        self.waits().map(|wait| self.at[wait as usize]).min()
    }

    /// A wait whose time has come. It is cleared.
    pub(crate) fn take_passed(&mut self, now: Duration) -> Option<Wait> {
        let passed = self.waits().find(|wait| self.at[*wait as usize] <= now)?;
        self.clear(passed);
        Some(passed)
    }

    /// Those that are set, in order.
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

/// The first pause between two probes, doubled each time up to the last.
const PROBE_PAUSE_MIN: Duration = Duration::from_millis(200);
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Whoever receives learns that the peer broke the connection off. Who does not, because nobody takes what
/// came, asks now and then: these are the pauses between two such looks.
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
    /// Sets the time of the next probe, unless there is one.
    pub(crate) fn begin(&mut self, now: impl FnOnce() -> Duration, deadlines: &mut Deadlines) {
        if deadlines.of(Wait::Probe).is_none() {
            self.set(now(), deadlines);
        }
    }

    /// Sets the time of the next probe.
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
