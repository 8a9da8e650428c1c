//! The signals that ask a server to end.

use std::io;
use tokio::runtime::{Builder, Runtime};
#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and Ctrl-C. From the moment at which this exists they no longer end the process, and none
/// of them is lost.
pub(crate) struct Signals {
    runtime: Runtime,
    #[cfg(unix)]
    terminate: Signal,
    #[cfg(unix)]
    interrupt: Signal,
}

impl Signals {
    /// # Errors
    /// The process is out of descriptors, or the system does not tell signals.
    pub(crate) fn listen() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        #[cfg(unix)]
        let (terminate, interrupt) = {
            let _entered = runtime.enter();
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
        };
        Ok(Self {
            runtime,
            #[cfg(unix)]
            terminate,
            #[cfg(unix)]
            interrupt,
        })
    }

    /// Blocks the thread until the next signal.
    #[cfg(unix)]
    pub(crate) fn wait(&mut self) {
        use std::future::poll_fn;
        use std::task::Poll;
        let Self { runtime, terminate, interrupt } = self;
        runtime.block_on(poll_fn(|context| {
            let came =
                terminate.poll_recv(context).is_ready() || interrupt.poll_recv(context).is_ready();
            if came { Poll::Ready(()) } else { Poll::Pending }
        }));
    }

    /// Blocks the thread until the next signal.
    #[cfg(not(unix))]
    pub(crate) fn wait(&mut self) {
        // Where the system does not tell, only a `Handle` can end the server.
        if self.runtime.block_on(tokio::signal::ctrl_c()).is_err() {
            self.runtime.block_on(std::future::pending::<()>());
        }
    }
}
