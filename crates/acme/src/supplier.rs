//! The thread: when it begins, and how it ends.

use crate::shared::Shared;
use crate::work::Work;
use peregrine_tls::{Challenges, Tls};
use std::io;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long the thread may take to end.
const END_MAX: Duration = Duration::from_secs(2);

/// Whoever gets the certificates of a server's TLS, before it begins.
pub struct Supplier {
    shared: Arc<Shared>,
    served: Vec<Tls>,
}

/// The thread at work. It ends when this is dropped, which waits for that.
pub struct Working {
    end: Option<oneshot::Sender<()>>,
    ended: mpsc::Receiver<()>,
}

impl Supplier {
    /// Those of all listeners whose certificates are got by ACME, each once.
    #[must_use]
    pub fn of<'t>(all: impl Iterator<Item = &'t Tls>) -> Vec<Self> {
        let mut suppliers: Vec<Self> = Vec::new();
        for tls in all {
            let Some(shared) = Shared::of(tls) else { continue };
            let known = suppliers.iter_mut().find(|known| Arc::ptr_eq(&known.shared, &shared));
            match known {
                None => suppliers.push(Self { shared, served: vec![tls.clone()] }),
                Some(known) if known.served.iter().any(|other| other.is_same(tls)) => {}
                Some(known) => known.served.push(tls.clone()),
            }
        }
        suppliers
    }

    /// What answers challenges.
    #[must_use]
    pub fn challenges(&self) -> Arc<Challenges> {
        Arc::clone(&self.shared.challenges)
    }

    /// Works from when `begin` completes until `end` does.
    ///
    /// # Errors
    /// The process is out of threads.
    pub fn start(
        self,
        begin: impl Future<Output = ()> + Send + 'static,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<Working> {
        let (sender, dropped) = oneshot::channel::<()>();
        let (tell, ended) = mpsc::channel();
        let body = move || {
            let _end = End(tell);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => {
                    tracing::error!(target: "peregrine", %error, "ACME cannot begin");
                    return;
                }
            };
            runtime.block_on(async {
                let mut end = pin!(async {
                    tokio::select! { () = end => {}, _ = dropped => {} }
                });
                tokio::select! { biased; () = &mut end => return, () = begin => {} }
                let mut work = Work::new(self.shared, self.served);
                // An order that is under way is left: its answers are given no longer, another process may order, and
                // what is stored of it lets that one go on.
                tokio::select! { biased; () = end => {}, () = work.run() => {} }
            });
            // Somebody who looks up an address may take long.
            runtime.shutdown_background();
        };
        thread::Builder::new().name("peregrine-acme".to_owned()).spawn(body)?;
        Ok(Working { end: Some(sender), ended })
    }
}

/// The end of the thread, however it comes.
struct End(#[expect(dead_code, reason = "its drop tells")] mpsc::Sender<()>);

impl Drop for End {
    fn drop(&mut self) {
        if thread::panicking() {
            // What is done there is caught before, so this is not expected.
            tracing::error!(target: "peregrine",
                "the thread that gets certificates has panicked; none will be renewed before a restart");
        }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Err(mpsc::RecvTimeoutError::Timeout) = self.ended.recv_timeout(END_MAX) {
            tracing::debug!(target: "peregrine", "the thread of ACME did not end in time");
        }
    }
}
