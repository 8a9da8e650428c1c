//! A digest of all events, which makes two runs comparable.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Duration;

use crate::random::mix;

/// The number of events stored for failure messages.
const RECENT_MAX: usize = 24;

/// A digest of all events, in order, and the last few of them.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    digest: u64,
    recent: VecDeque<(Duration, &'static str, [u64; 3])>,
    /// The last events without internal ones, and messages of the network's user.
    event_log: VecDeque<(Duration, LogEntry)>,
    /// Whether recording has stopped.
    is_frozen: bool,
}

#[derive(Debug)]
enum LogEntry {
    Event(&'static str, [u64; 3]),
    Message(String),
}

/// Why a run got stuck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFailure {
    /// Which limit was reached: `deadlock`, `time is over` or `too many steps`.
    pub cause: &'static str,
    /// The number of unfinished tasks, excluding `main`.
    pub tasks: usize,
    /// The number of unfinished tasks of tokio.
    pub tokio_tasks: usize,
    /// When the last event happened.
    pub idle_since: Duration,
    /// Which tasks waited for which events, as far as the network knows.
    pub waiting: String,
}

impl Trace {
    /// Adds an event. The meaning of `args` depends on the event.
    pub(crate) fn record(&mut self, now: Duration, event: &'static str, args: [u64; 3]) {
        if self.is_frozen {
            return;
        }
        // Virtual time is far below the 584 years that 64 bits of nanoseconds can represent.
        let time = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        for byte in event.bytes() {
            self.digest = mix(self.digest ^ u64::from(byte)).wrapping_add(1);
        }
        for value in [time].into_iter().chain(args) {
            self.digest = mix(self.digest ^ value).wrapping_add(1);
        }
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back((now, event, args));
        if describe(event, args).is_some() {
            self.push_log(now, LogEntry::Event(event, args));
        }
    }

    /// Adds a message from the user of the network.
    pub(crate) fn log(&mut self, now: Duration, text: String) {
        let digest =
            text.bytes().fold(0, |digest, byte| mix(digest ^ u64::from(byte)).wrapping_add(1));
        self.record(now, "note", [digest, 0, 0]);
        if !self.is_frozen {
            self.push_log(now, LogEntry::Message(text));
        }
    }

    /// Stops recording.
    pub(crate) fn stop_recording(&mut self) {
        self.is_frozen = true;
    }

    pub(crate) fn is_recording_stopped(&self) -> bool {
        self.is_frozen
    }

    fn push_log(&mut self, now: Duration, entry: LogEntry) {
        if self.event_log.len() == RECENT_MAX {
            self.event_log.pop_front();
        }
        self.event_log.push_back((now, entry));
    }

    /// The last relevant events as text.
    pub(crate) fn event_log(&self) -> Vec<(Duration, String)> {
        let to_text = |entry: &LogEntry| match entry {
            LogEntry::Event(event, args) => describe(event, *args).unwrap_or_default(),
            LogEntry::Message(text) => text.clone(),
        };
        self.event_log.iter().map(|(now, entry)| (*now, to_text(entry))).collect()
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// The last events, one per line.
    pub(crate) fn recent(&self) -> String {
        let mut lines = String::new();
        for (now, event, [a, b, c]) in &self.recent {
            writeln!(lines, "  {now:?} {event} {a} {b} {c}")
                .expect("writing to a string does not fail");
        }
        lines
    }
}

/// The name of an end.
fn side_name(index: u64) -> &'static str {
    if index == 0 { "client" } else { "server" }
}

/// Describes an event for users of the network. Returns `None` for internal events.
fn describe(event: &str, [a, b, _]: [u64; 3]) -> Option<String> {
    Some(match event {
        "connect" => format!("connection {b}: a client connects"),
        "accept" => format!("connection {b}: accepted"),
        "refuse" => "an attempt to accept fails: out of descriptors".to_owned(),
        "turn away" => format!("connection {a}: refused"),
        "lose" => format!("connection {a}: the network loses {b} bytes, and breaks it"),
        "reset" => format!("connection {a}: the {} resets it", side_name(b)),
        "close" => format!("connection {a}: the {} closes it", side_name(b)),
        "block" => "a task blocks the thread".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_logged_and_change_the_digest_and_routine_events_are_not_logged() {
        let digest_of = |text: &str| {
            let mut trace = Trace::default();
            trace.record(Duration::ZERO, "poll", [1, 0, 0]);
            trace.log(Duration::from_secs(1), text.to_owned());
            assert_eq!(trace.event_log(), [(Duration::from_secs(1), text.to_owned())]);
            trace.digest()
        };
        assert_eq!(digest_of("bought"), digest_of("bought"));
        assert_ne!(digest_of("bought"), digest_of("sold"));
    }

    #[test]
    fn only_the_latest_events_are_kept() {
        let mut trace = Trace::default();
        for number in 0..100 {
            trace.record(Duration::ZERO, "close", [number, 0, 0]);
        }
        let event_log = trace.event_log();
        assert_eq!(event_log.len(), RECENT_MAX);
        assert!(
            event_log.last().is_some_and(|(_, text)| text.starts_with("connection 99: the client")),
            "{event_log:?}"
        );
    }
}
