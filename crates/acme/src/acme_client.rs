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
    /// One supplier for each distinct ACME configuration among these TLS configurations.
    #[must_use]
    pub fn for_listeners<'t>(all: impl Iterator<Item = &'t TlsConfig>) -> Vec<Self> {
        let mut suppliers: Vec<Self> = Vec::new();
        for tls in all {
            let Some(shared) = AcmeShared::from_tls(tls) else { continue };
            let known = suppliers.iter_mut().find(|known| Arc::ptr_eq(&known.shared, &shared));
            match known {
                None => suppliers.push(Self { shared, configs: vec![tls.clone()] }),
                Some(known) if known.configs.iter().any(|other| other.ptr_eq(tls)) => {}
                Some(known) => known.configs.push(tls.clone()),
            }
        }
        suppliers
    }

    /// The challenges to answer.
    #[must_use]
    pub fn challenge_responses(&self) -> Arc<ChallengeResponses> {
        Arc::clone(&self.shared.challenges)
    }

    /// Works from when `begin` completes until `end` does.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        self,
        begin: impl Future<Output = ()> + Send + 'static,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<AcmeClientThread> {
        let (sender, dropped) = oneshot::channel::<()>();
        let (tell, ended) = mpsc::channel();
        let body = move || {
            let _end = StoppedOnDrop(tell);
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
                    tokio::select! { () = end => {}, _ = dropped => {} }
                });
                tokio::select! { biased; () = &mut end => return, () = begin => {} }
                let mut work = RenewalLoop::new(self.shared, self.configs);
                // An order in progress is abandoned: its responses are withdrawn, the lock is
                // released, and the next process resumes it from the storage.
                tokio::select! { biased; () = end => {}, () = work.run() => {} }
            });
            // A pending DNS lookup may take long.
            runtime.shutdown_background();
        };
        thread::Builder::new().name("peregrine-acme".to_owned()).spawn(body)?;
        Ok(AcmeClientThread { stop: Some(sender), stopped: ended })
    }
}

/// Signals the end of the thread, even by a panic.
struct StoppedOnDrop(#[expect(dead_code, reason = "its drop tells")] mpsc::Sender<()>);

impl Drop for StoppedOnDrop {
    fn drop(&mut self) {
        if thread::panicking() {
            // Not expected, as panics of the work are caught.
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
