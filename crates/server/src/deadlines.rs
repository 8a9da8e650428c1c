//! Until when a connection waits, and for what: a small set of named times.

use std::time::Duration;

/// What a busy connection waits for. Each may have a time of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Wait {
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
    /// The next look whether a peer that ended its side is there.
    Probe,
    /// The next bytes of a peer that was answered for the last time.
    Silence,
    /// The end of lingering, however the peer sends.
    Linger,
    /// Bytes either way on an upgraded connection, or in a conversation.
    Traffic,
    /// Whoever reads a request's content after the response, to take what is there.
    Reading,
    /// Anything from a client of HTTP/2, or its answer to a PING.
    Ping,
    /// The first of all waits of the streams of HTTP/2.
    Streams,
}

const WAITS: usize = Wait::Streams as usize + 1;

/// The times at which waits end, on the driver's clock.
#[derive(Debug)]
pub(crate) struct Deadlines([Duration; WAITS]);

impl Default for Deadlines {
    fn default() -> Self {
        Self([Duration::MAX; WAITS])
    }
}

impl Deadlines {
    pub(crate) fn set(&mut self, wait: Wait, at: Duration) {
        self.0[wait as usize] = at;
    }

    /// Sets a time unless the wait has one.
    pub(crate) fn begin(&mut self, wait: Wait, at: Duration) {
        if self.0[wait as usize] == Duration::MAX {
            self.set(wait, at);
        }
    }

    /// Sets a time unless the wait has an earlier one.
    pub(crate) fn hasten(&mut self, wait: Wait, at: Duration) {
        self.0[wait as usize] = self.0[wait as usize].min(at);
    }

    /// The time of a wait; `None` if it has none.
    pub(crate) fn of(&self, wait: Wait) -> Option<Duration> {
        Some(self.0[wait as usize]).filter(|at| *at != Duration::MAX)
    }

    pub(crate) fn clear(&mut self, wait: Wait) {
        self.set(wait, Duration::MAX);
    }

    pub(crate) fn clear_all(&mut self) {
        *self = Self::default();
    }

    /// The first of all times.
    pub(crate) fn first(&self) -> Option<Duration> {
        self.0.iter().min().copied().filter(|at| *at != Duration::MAX)
    }

    /// A wait whose time has come. It is cleared.
    pub(crate) fn take_passed(&mut self, now: Duration) -> Option<Wait> {
        const ALL: [Wait; WAITS] = [
            Wait::Handshake,
            Wait::Head,
            Wait::Receive,
            Wait::Send,
            Wait::Handler,
            Wait::Exchange,
            Wait::Probe,
            Wait::Silence,
            Wait::Linger,
            Wait::Traffic,
            Wait::Reading,
            Wait::Ping,
            Wait::Streams,
        ];
        let passed = ALL.into_iter().find(|wait| self.0[*wait as usize] <= now)?;
        self.clear(passed);
        Some(passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_wait_has_its_time_and_the_first_counts() {
        let mut deadlines = Deadlines::default();
        assert_eq!(deadlines.first(), None);
        deadlines.set(Wait::Traffic, SECOND * 3);
        deadlines.begin(Wait::Head, SECOND);
        deadlines.begin(Wait::Head, SECOND * 2);
        assert_eq!(deadlines.first(), Some(SECOND));
        assert_eq!(deadlines.take_passed(SECOND / 2), None);
        assert_eq!(deadlines.take_passed(SECOND * 5), Some(Wait::Head));
        assert_eq!(deadlines.take_passed(SECOND * 5), Some(Wait::Traffic));
        assert_eq!(deadlines.take_passed(SECOND * 5), None);
        deadlines.set(Wait::Send, SECOND);
        deadlines.clear(Wait::Send);
        assert_eq!(deadlines.first(), None);
    }
}
