//! The simulated network as a harness.

use std::env;
use std::io;
use std::ops::Range;
use std::sync::LazyLock;
use std::time::Duration;

use peregrine_driver::Options;
use peregrine_driver_sim::{Client, Faults, Network, Port, Sim, SocketBuffers};

use crate::harness::{Harness, Peer};

/// The most that one direction holds. It is small, so that back-pressure is common.
const PIPE_BYTES_MAX: usize = 4096;

/// A case that runs longer on the virtual clock hangs, waiting in small steps.
const CASE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Repeats each case for every seed of a range, on a network that splits and delays data but loses
/// nothing.
pub struct Simulated {
    seeds: Range<u64>,
}

impl Simulated {
    /// One run per seed.
    #[must_use]
    pub fn seeds(seeds: Range<u64>) -> Self {
        Self { seeds: multiplied(seeds) }
    }
}

/// Multiplies the number of seeds by `PEREGRINE_SEEDS_FACTOR`: 1 by default, more in nightly runs.
///
/// # Panics
/// If the variable is not a whole number.
#[must_use]
pub fn multiplied(seeds: Range<u64>) -> Range<u64> {
    static FACTOR: LazyLock<u64> = LazyLock::new(|| match env::var("PEREGRINE_SEEDS_FACTOR") {
        Ok(factor) => factor.parse().expect("PEREGRINE_SEEDS_FACTOR is a whole number"),
        Err(_) => 1,
    });
    seeds.start..seeds.end * *FACTOR
}

impl Harness for Simulated {
    type Driver = Sim;
    type ServerAddress = u64;
    type Peer = Client;

    fn check(&self, case: impl AsyncFn(Sim)) {
        for seed in self.seeds.clone() {
            // Seed 0 has no faults: a failure there is unrelated to them.
            let faults = if seed == 0 { Faults::none() } else { Faults::harmless() };
            // Half of the seeds use socket buffers of the same total capacity.
            let sockets = (seed % 2 == 1).then(|| SocketBuffers::with_size(PIPE_BYTES_MAX / 2));
            let faults =
                Faults { pipe_bytes_max: PIPE_BYTES_MAX, socket_buffers: sockets, ..faults };
            let network = Network::new(seed, faults);
            network.set_time_max(CASE_MAX);
            network
                .run(&Options::default(), async |driver| case(driver).await)
                .expect("a runtime without I/O starts");
            assert_eq!(network.outstanding_chunks(), 0, "seed {seed}: a buffer is lost");
            assert_eq!(network.connections(), 0, "seed {seed}: a connection is lost");
        }
    }

    fn large(&self) -> usize {
        PIPE_BYTES_MAX + PIPE_BYTES_MAX / 2
    }

    fn bind(&self, driver: &Sim) -> (Port, u64) {
        let port = driver.network().bind();
        let id = port.id();
        (port, id)
    }

    fn connect(&self, driver: &Sim, server_address: &u64) -> Client {
        driver.network().connect_to(*server_address)
    }
}

impl Peer for Client {
    async fn send(&self, bytes: Vec<u8>) -> io::Result<()> {
        Self::send(self, &bytes).await
    }

    async fn recv(&self) -> io::Result<Vec<u8>> {
        Self::recv(self).await
    }

    async fn half_close(&self) -> io::Result<()> {
        Self::half_close(self).await
    }

    async fn reset(self) -> bool {
        Self::reset(&self);
        true
    }
}
