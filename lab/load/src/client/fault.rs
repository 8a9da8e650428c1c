//! What can be wrong with an answer, counted by kind.

use std::fmt;

use serde::Serialize;

/// One way in which a server failed the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// A connection could not be made.
    Connect,
    /// The TLS handshake or a TLS record failed.
    Tls,
    /// WebSocket: the server did not switch the connection to the protocol as RFC 6455 asks.
    Upgrade,
    /// The connection was reset before the head of an awaited reply was whole.
    Reset,
    /// The connection was reset within the body of a reply.
    ResetInBody,
    /// The connection ended before the head of an awaited reply was whole.
    Closed,
    /// The connection ended within the body of a reply.
    ShortBody,
    /// The bytes are no reply: a bad head, bad framing, or bytes that nobody asked for.
    Malformed,
    /// Another status than the workload expects.
    WrongStatus,
    /// A header field that the workload expects is missing or different.
    WrongHeader,
    /// A body of another length than the one expected.
    WrongLength,
    /// Another body than the workload expects.
    WrongBody,
    /// A trailer field that the workload expects is missing or different.
    WrongTrailer,
    /// The right reply to another request of the same connection: replies came out of order.
    Reordered,
    /// HTTP/2: the server reset the stream instead of answering.
    StreamReset,
    /// HTTP/2: the server said GOAWAY, with an error or without having answered.
    GoneAway,
    /// No whole reply within the time allowed.
    Timeout,
}

impl Fault {
    /// Every kind, in the order of the report.
    pub const ALL: [Fault; 17] = [
        Fault::Connect,
        Fault::Tls,
        Fault::Upgrade,
        Fault::Reset,
        Fault::ResetInBody,
        Fault::Closed,
        Fault::ShortBody,
        Fault::Malformed,
        Fault::WrongStatus,
        Fault::WrongHeader,
        Fault::WrongLength,
        Fault::WrongBody,
        Fault::WrongTrailer,
        Fault::Reordered,
        Fault::StreamReset,
        Fault::GoneAway,
        Fault::Timeout,
    ];

    /// The kind in the words of a report.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Fault::Connect => "connect",
            Fault::Tls => "tls",
            Fault::Upgrade => "upgrade",
            Fault::Reset => "reset",
            Fault::ResetInBody => "reset in body",
            Fault::Closed => "closed",
            Fault::ShortBody => "short body",
            Fault::Malformed => "malformed",
            Fault::WrongStatus => "wrong status",
            Fault::WrongHeader => "wrong header",
            Fault::WrongLength => "wrong length",
            Fault::WrongBody => "wrong body",
            Fault::WrongTrailer => "wrong trailer",
            Fault::Reordered => "reordered",
            Fault::StreamReset => "stream reset",
            Fault::GoneAway => "goaway",
            Fault::Timeout => "timeout",
        }
    }
}

/// How many faults of each kind were seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    counts: [u64; Fault::ALL.len()],
}

impl Faults {
    /// Counts one fault.
    pub fn record(&mut self, fault: Fault) {
        self.record_many(fault, 1);
    }

    /// Counts several faults of one kind, such as all the requests that a broken connection lost.
    pub fn record_many(&mut self, fault: Fault, count: u64) {
        self.counts[fault as usize] += count;
    }

    /// Adds the counts of another slice.
    pub fn add(&mut self, other: &Faults) {
        for (count, other) in self.counts.iter_mut().zip(other.counts) {
            *count += other;
        }
    }

    /// How many faults of this kind were seen.
    #[must_use]
    pub fn count(&self, fault: Fault) -> u64 {
        self.counts[fault as usize]
    }

    /// How many faults were seen in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The kinds that were seen, with their counts.
    pub fn seen(&self) -> impl Iterator<Item = (Fault, u64)> + '_ {
        Fault::ALL.into_iter().map(|fault| (fault, self.count(fault))).filter(|(_, n)| *n > 0)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.total() == 0 {
            return formatter.write_str("0");
        }
        for (index, (fault, count)) in self.seen().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(formatter, "{comma}{count} {}", fault.words())?;
        }
        Ok(())
    }
}

impl Serialize for Faults {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.seen())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_place_and_its_own_words() {
        let mut faults = Faults::default();
        for (place, fault) in Fault::ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, place);
            faults.record(fault);
        }
        assert!(faults.seen().all(|(_, count)| count == 1));
        let words: std::collections::BTreeSet<_> = Fault::ALL.map(Fault::words).into();
        assert_eq!(words.len(), Fault::ALL.len());
    }
}
