//! The server settings that apply in a simulation.

use super::Server;
use peregrine_runtime::internal::{ListenerSettings, into_settings};
use peregrine_runtime::{Error, Listener};
use peregrine_server::{Limits, MemoryMax, OverloadLimits, TraceConfig};
use std::num::NonZeroUsize;

/// The default number of workers, on any machine. With two, tests fail if the application assumes
/// that workers share state.
const DEFAULT_WORKERS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1);

/// The memory limit per worker in place of `auto`, which depends on the machine.
const DEFAULT_MEMORY_BYTES_MAX: u64 = 1 << 30;

/// The settings of a simulated server.
pub struct SimulatedServer {
    /// The number of workers.
    pub workers: usize,
    /// The limits of each worker.
    pub limits: Limits,
    /// The tracing settings, which select the requests that are sampled.
    pub traces: Option<TraceConfig>,
    /// The settings of each listener. There is at least one.
    pub listeners: Vec<ListenerSettings>,
}

impl Server {
    /// Extracts the settings that apply in a simulation.
    ///
    /// # Errors
    /// A setting is invalid.
    #[doc(hidden)]
    pub fn into_simulated(mut self) -> Result<SimulatedServer, Error> {
        if self.listeners.is_empty() {
            // The address is not used: a simulation has no sockets.
            self.listeners.push(Listener::bind("simulated"));
        }
        self.validate()?;
        let proxies = self.trusted_proxies.as_ref();
        let to_settings = |listener: Listener| into_settings(listener, proxies);
        let listeners =
            self.listeners.into_iter().map(to_settings).collect::<Result<_, Error>>()?;
        let memory_max = match self.limits.overload.memory_max {
            MemoryMax::Auto => MemoryMax::Bytes(DEFAULT_MEMORY_BYTES_MAX),
            explicit => explicit,
        };
        let overload = OverloadLimits { memory_max, ..self.limits.overload };
        let limits = Limits { overload, ..self.limits };
        let workers = self.workers.unwrap_or(DEFAULT_WORKERS).get();
        Ok(SimulatedServer { workers, limits, traces: self.traces, listeners })
    }
}
