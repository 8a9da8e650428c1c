//! Who else has a listening socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether others have a listening socket too, and go on with it after this server: a service manager,
/// or the process that takes over from this one. A drain leaves such a socket as it is, with those who
/// wait in its queue; any other is closed to new connections first, and its queue is answered.
///
/// It may change while the server runs. Clones change together.
#[derive(Clone, Debug, Default)]
pub struct Shared(Arc<AtomicBool>);

impl Shared {
    /// Do others have the socket?
    #[must_use]
    pub fn is_so(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Others have the socket from now on, or nobody else any more.
    pub fn set(&self, is_so: bool) {
        self.0.store(is_so, Ordering::SeqCst);
    }
}

impl From<bool> for Shared {
    fn from(is_so: bool) -> Self {
        Self(Arc::new(AtomicBool::new(is_so)))
    }
}
