//! The ACME thread: start and shutdown.

use crate::renewal_loop::RenewalLoop;
use crate::shared::AcmeShared;
use peregrine_tls::{ChallengeResponses, TlsConfig};
use std::io;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long shutdown waits for the thread.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// The ACME work of a server, before its thread starts.
pub struct AcmeClient {
    shared: Arc<AcmeShared>,
    configs: Vec<TlsConfig>,
}

/// The running thread. Dropping this ends it and waits for it.
pub struct AcmeClientThread {
    stop: Option<oneshot::Sender<()>>,
    stopped: mpsc::Receiver<()>,
}

impl AcmeClient {
    /// Creates one client for each distinct ACME configuration among these TLS configurations.
    #[must_use]
    pub fn for_listeners<'t>(configs: impl Iterator<Item = &'t TlsConfig>) -> Vec<Self> {
        let mut clients: Vec<Self> = Vec::new();
        for tls in configs {
            let Some(shared) = AcmeShared::from_tls(tls) else { continue };
            let client = clients.iter_mut().find(|client| Arc::ptr_eq(&client.shared, &shared));
            match client {
                None => clients.push(Self { shared, configs: vec![tls.clone()] }),
                Some(client) if client.configs.iter().any(|other| other.ptr_eq(tls)) => {}
                Some(client) => client.configs.push(tls.clone()),
            }
        }
        clients
    }

    /// Returns the responses to the pending challenges.
    #[must_use]
    pub fn challenge_responses(&self) -> Arc<ChallengeResponses> {
        Arc::clone(&self.shared.challenges)
    }

    /// Starts the thread, which runs from when `begin` completes until `end` completes.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        self,
        begin: impl Future<Output = ()> + Send + 'static,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<AcmeClientThread> {
        let (stop_sender, stop_receiver) = oneshot::channel::<()>();
        let (stopped_sender, stopped) = mpsc::channel();
        let thread_body = move || {
            let _stopped = StoppedOnDrop(stopped_sender);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => {
                    tracing::error!(target: "peregrine", %error, "ACME cannot start");
                    return;
                }
            };
            runtime.block_on(async {
                let mut end = pin!(async {
                    tokio::select! { () = end => {}, _ = stop_receiver => {} }
                });
                tokio::select! { biased; () = &mut end => return, () = begin => {} }
                let mut renewal_loop = RenewalLoop::new(self.shared, self.configs);
                // An order in progress is abandoned: its responses are removed, the lock is
                // released, and the next process resumes it from the storage.
                tokio::select! { biased; () = end => {}, () = renewal_loop.run() => {} }
            });
            // A pending DNS lookup can take long.
            runtime.shutdown_background();
        };
        thread::Builder::new().name("peregrine-acme".to_owned()).spawn(thread_body)?;
        Ok(AcmeClientThread { stop: Some(stop_sender), stopped })
    }
}

/// Signals the end of the thread, even if it ends by a panic.
struct StoppedOnDrop(#[expect(dead_code, reason = "its drop signals the end")] mpsc::Sender<()>);

impl Drop for StoppedOnDrop {
    fn drop(&mut self) {
        if thread::panicking() {
            // Not expected, because panics of the renewal loop are caught.
            tracing::error!(target: "peregrine",
                "the ACME thread has panicked; no certificate will be renewed before a restart");
        }
    }
}

impl Drop for AcmeClientThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Err(mpsc::RecvTimeoutError::Timeout) = self.stopped.recv_timeout(STOP_TIMEOUT) {
            tracing::debug!(target: "peregrine", "the ACME thread did not end in time");
        }
    }
}
