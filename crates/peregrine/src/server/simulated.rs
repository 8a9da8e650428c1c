//! The settings of a server that apply in a simulation.

use super::Server;
use crate::error::Error;
use crate::listen::listener::{Listener, Settings};
use peregrine_server::{Limits, MemoryMax, OverloadLimits, Traces};
use std::num::NonZeroUsize;

/// The default number of workers, on any machine. With two, a test notices that workers do not
/// share state.
const WORKERS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1);

/// The memory limit per worker in place of `auto`, which depends on the machine.
const MEMORY_BYTES_MAX: u64 = 1 << 30;

/// The settings of a simulated server.
pub struct Simulated {
    /// The number of workers.
    pub workers: usize,
    /// The limits of each worker.
    pub limits: Limits,
    /// Which requests are sampled.
    pub traces: Option<Traces>,
    /// At least one.
    pub listeners: Vec<Settings>,
}

impl Server {
    /// Extracts the settings that apply in a simulation.
    ///
    /// # Errors
    /// A setting is invalid.
    #[doc(hidden)]
    pub fn simulated(mut self) -> Result<Simulated, Error> {
        if self.listeners.is_empty() {
            self.listeners.push(Listener::at("simulated"));
        }
        self.check()?;
        let proxies = self.proxies.as_ref();
        let settings = |listener: Listener| Ok(listener.parts(proxies)?.1);
        let listeners = self.listeners.into_iter().map(settings).collect::<Result<_, Error>>()?;
        let memory_max = match self.limits.overload.memory_max {
            MemoryMax::Auto => MemoryMax::Bytes(MEMORY_BYTES_MAX),
            told => told,
        };
        let overload = OverloadLimits { memory_max, ..self.limits.overload };
        let limits = Limits { overload, ..self.limits };
        let workers = self.workers.unwrap_or(WORKERS).get();
        Ok(Simulated { workers, limits, traces: self.traces, listeners })
    }
}
