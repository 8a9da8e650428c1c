//! The deadlines of a busy connection: one for each kind of event that it may wait for.
//!
//! [`ProbeSchedule`] sets one of them, [`TimeoutKind::Probe`]: while the server does not receive,
//! it checks from time to time whether the peer is still connected.

use std::time::Duration;

/// The events that a busy connection may wait for until a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum TimeoutKind {
    /// Any bytes, in either direction, on an upgraded connection or a bidirectional stream: the end
    /// of the silence. This is the first variant, so that in [`Deadlines`] its deadline is next to
    /// `set_kinds` in memory.
    Silence,
    /// The rest of a PROXY header, or the end of the TLS handshake.
    Handshake,
    /// The rest of a head.
    Head,
    /// Request content from the peer, at the minimum rate.
    Receive,
    /// Progress of the output: the peer must receive it at the minimum rate.
    Send,
    /// The handler's response, within the timeout of its route.
    Handler,
    /// The end of the whole exchange.
    Exchange,
    /// The next check of whether the peer is still connected. Used after the peer has ended its
    /// sending side, and while the server does not receive.
    Probe,
    /// More bytes from the peer while the connection lingers.
    LingerIdle,
    /// The end of lingering, even if the peer keeps sending.
    LingerMax,
    /// A read by the application's task that still reads the request's body after the response. Set
    /// only while the task does not read and no more content can be buffered for it.
    BodyReader,
    /// Any bytes from an HTTP/2 client, for example its acknowledgement of a PING.
    Ping,
    /// The earliest deadline of all HTTP/2 streams.
    NextStream,
}

/// All variants, in order.
const TIMEOUTS: [TimeoutKind; 13] = [
    TimeoutKind::Silence,
    TimeoutKind::Handshake,
    TimeoutKind::Head,
    TimeoutKind::Receive,
    TimeoutKind::Send,
    TimeoutKind::Handler,
    TimeoutKind::Exchange,
    TimeoutKind::Probe,
    TimeoutKind::LingerIdle,
    TimeoutKind::LingerMax,
    TimeoutKind::BodyReader,
    TimeoutKind::Ping,
    TimeoutKind::NextStream,
];

/// The deadlines of a busy connection, on the driver's clock.
///
/// Usually few are set, and the memory of the others is not read. With thousands of connections,
/// that memory is rarely in the processor's cache.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Deadlines {
    /// Which deadlines are set: one bit for each [`TimeoutKind`].
    set_kinds: u16,
    deadlines: [Duration; TIMEOUTS.len()],
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { set_kinds: 0, deadlines: [Duration::MAX; TIMEOUTS.len()] }
    }
}

impl Deadlines {
    /// Sets a deadline; [`Duration::MAX`] clears it.
    pub(crate) fn set(&mut self, kind: TimeoutKind, deadline: Duration) {
        if deadline == Duration::MAX {
            return self.clear(kind);
        }
        self.set_kinds |= bit(kind);
        self.deadlines[kind as usize] = deadline;
    }

    /// Sets a deadline, unless one of this kind is set.
    pub(crate) fn set_if_unset(&mut self, kind: TimeoutKind, deadline: Duration) {
        if self.set_kinds & bit(kind) == 0 {
            self.set(kind, deadline);
        }
    }

    /// Sets a deadline, unless an earlier one of this kind is set.
    pub(crate) fn set_if_earlier(&mut self, kind: TimeoutKind, deadline: Duration) {
        if self.get(kind).is_none_or(|current| deadline < current) {
            self.set(kind, deadline);
        }
    }

    /// The deadline of this kind; `None` if it is not set.
    pub(crate) fn get(&self, kind: TimeoutKind) -> Option<Duration> {
        (self.set_kinds & bit(kind) != 0).then(|| self.deadlines[kind as usize])
    }

    pub(crate) fn clear(&mut self, kind: TimeoutKind) {
        self.set_kinds &= !bit(kind);
    }

    pub(crate) fn clear_all(&mut self) {
        self.set_kinds = 0;
    }

    /// The earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.iter().map(|kind| self.deadlines[kind as usize]).min()
    }

    /// Clears an expired deadline and returns its kind; `None` if none has expired.
    pub(crate) fn pop_expired(&mut self, now: Duration) -> Option<TimeoutKind> {
        let expired = self.iter().find(|kind| self.deadlines[*kind as usize] <= now)?;
        self.clear(expired);
        Some(expired)
    }

    /// The kinds whose deadline is set, in order.
    fn iter(&self) -> impl Iterator<Item = TimeoutKind> {
        let mut remaining = self.set_kinds;
        std::iter::from_fn(move || {
            let first = TIMEOUTS.get(remaining.trailing_zeros() as usize)?;
            remaining &= remaining - 1;
            Some(*first)
        })
    }
}

fn bit(kind: TimeoutKind) -> u16 {
    1 << kind as usize
}

/// The pause before the first probe. It doubles after each probe, up to the maximum.
const PROBE_INTERVAL_MIN: Duration = Duration::from_millis(200);
const PROBE_INTERVAL_MAX: Duration = Duration::from_secs(10);

/// Schedules checks of whether the peer has reset the connection. A connection that receives
/// detects a reset by receiving. A connection that does not receive, because nothing consumes the
/// data, must check its socket from time to time.
#[derive(Debug)]
pub(crate) struct ProbeSchedule {
    interval: Duration,
}

impl Default for ProbeSchedule {
    fn default() -> Self {
        Self { interval: PROBE_INTERVAL_MIN }
    }
}

impl ProbeSchedule {
    /// Schedules the next probe, unless one is scheduled.
    pub(crate) fn schedule_if_unset(
        &mut self,
        now: impl FnOnce() -> Duration,
        deadlines: &mut Deadlines,
    ) {
        if deadlines.get(TimeoutKind::Probe).is_none() {
            self.schedule(now(), deadlines);
        }
    }

    /// Schedules the next probe.
    pub(crate) fn schedule(&mut self, now: Duration, deadlines: &mut Deadlines) {
        deadlines.set(TimeoutKind::Probe, now.saturating_add(self.interval));
        self.interval = (self.interval * 2).min(PROBE_INTERVAL_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn timeouts_are_in_the_order_of_their_discriminants() {
        assert!(TIMEOUTS.iter().enumerate().all(|(index, kind)| index == *kind as usize));
    }

    #[test]
    fn duration_max_means_no_deadline() {
        let mut deadlines = Deadlines::default();
        deadlines.set(TimeoutKind::NextStream, SECOND);
        deadlines.set(TimeoutKind::NextStream, Duration::MAX);
        deadlines.set_if_earlier(TimeoutKind::Exchange, Duration::MAX);
        assert_eq!(
            (deadlines.next_deadline(), deadlines.get(TimeoutKind::NextStream)),
            (None, None)
        );
        assert_eq!(deadlines.pop_expired(Duration::MAX), None);
        deadlines.set_if_earlier(TimeoutKind::Exchange, SECOND * 2);
        deadlines.set_if_earlier(TimeoutKind::Exchange, SECOND * 3);
        assert_eq!(deadlines.get(TimeoutKind::Exchange), Some(SECOND * 2));
    }

    #[test]
    fn next_deadline_is_the_earliest() {
        let mut deadlines = Deadlines::default();
        assert_eq!(deadlines.next_deadline(), None);
        deadlines.set(TimeoutKind::Silence, SECOND * 3);
        deadlines.set_if_unset(TimeoutKind::Head, SECOND);
        deadlines.set_if_unset(TimeoutKind::Head, SECOND * 2);
        assert_eq!(deadlines.next_deadline(), Some(SECOND));
        assert_eq!(deadlines.pop_expired(SECOND / 2), None);
        assert_eq!(deadlines.pop_expired(SECOND * 5), Some(TimeoutKind::Silence));
        assert_eq!(deadlines.pop_expired(SECOND * 5), Some(TimeoutKind::Head));
        assert_eq!(deadlines.pop_expired(SECOND * 5), None);
        deadlines.set(TimeoutKind::Send, SECOND);
        deadlines.clear(TimeoutKind::Send);
        assert_eq!(deadlines.next_deadline(), None);
    }
}
