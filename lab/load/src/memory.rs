//! What an idle connection costs a server in memory of its own.

use std::io;
use std::time::Duration;

use serde::Serialize;

use crate::client::fault::Faults;
use crate::client::{Client, Stop};
use crate::slices::Runner;

/// How many connections are open at the first reading, so that what a server allocates
/// once, for its pools and its allocator, is not counted per connection.
const WARMUP_CONNECTIONS: usize = 256;

/// How many connections are opened and asked at a time. All at once would measure what the
/// allocator keeps from the burst, too.
const STEP_CONNECTIONS: usize = 16;

/// How long a server may rest before each reading.
const REST_TIME: Duration = Duration::from_millis(500);

/// The memory of one contender.
#[derive(Debug, Clone, Serialize)]
pub struct Memory {
    /// How many connections were to be open at the second reading.
    pub wanted: usize,
    /// How many connections were open and idle at the second reading.
    pub connections: usize,
    /// Anonymous memory before the first counted connection, in bytes.
    pub before_bytes: u64,
    /// Anonymous memory with all connections open, each after one request, in bytes.
    pub after_bytes: u64,
    /// Everything that was wrong, by kind.
    pub faults: Faults,
}

impl Memory {
    /// Bytes of anonymous user memory per idle connection. Negative if the server gave memory
    /// back meanwhile; not a number if any connection is missing, because what the server kept of
    /// it cannot be told from what the others need.
    #[must_use]
    pub fn bytes_per_connection(&self) -> f64 {
        if self.connections == 0 || self.connections < self.wanted {
            return f64::NAN;
        }
        (self.after_bytes as f64 - self.before_bytes as f64) / self.connections as f64
    }
}

/// Warms the server up, reads its memory, opens `connections` a few at a time with one request on
/// each, lets them rest, and reads again. The connections stay open until the client is dropped.
///
/// # Errors
///
/// The kernel's, if the client cannot go on or the server has ended.
pub fn measure(client: &mut Client, runner: &Runner, connections: usize) -> io::Result<Memory> {
    // These stay open: memory that they gave back would serve the first of those that are counted.
    let warm_up = client.group_like(runner.group, WARMUP_CONNECTIONS);
    let mut faults = client.run(warm_up, Stop::Once)?.faults;
    client.resize(runner.group, 0);
    client.idle(REST_TIME)?;
    let before_bytes = runner.process.anonymous_bytes()?;
    let mut groups = Vec::with_capacity(connections / STEP_CONNECTIONS + 1);
    let mut wanted = connections;
    while wanted > 0 {
        let step = wanted.min(STEP_CONNECTIONS);
        wanted -= step;
        let group = client.group_like(runner.group, step);
        faults.add(&client.run(group, Stop::Once)?.faults);
        groups.push(group);
    }
    client.idle(REST_TIME)?;
    let after_bytes = runner.process.anonymous_bytes()?;
    let open = groups.iter().map(|&group| client.open(group)).sum();
    Ok(Memory { wanted: connections, connections: open, before_bytes, after_bytes, faults })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_connections_void_the_figure() {
        let memory = |connections| Memory {
            wanted: 100,
            connections,
            before_bytes: 50_000,
            after_bytes: 250_000,
            faults: Faults::default(),
        };
        assert!((memory(100).bytes_per_connection() - 2000.0).abs() < 1e-9);
        assert!(memory(99).bytes_per_connection().is_nan());
        assert!(memory(0).bytes_per_connection().is_nan());
    }
}
