//! When a service manager is told that the server reloads, and that it is ready again.
//!
//! Reloads and an upgrade may be under way at once. Each tells when it begins, since the manager waits for a beginning after
//! its own order (`Type=notify-reload`); that the server is ready is told when the last of them is over. A process that has a
//! successor, or ends, says nothing more: it would speak for another one.

use crate::restart::{Restart, lock};
use std::sync::Arc;

/// What the manager was told.
#[derive(Debug, Default)]
pub(crate) struct Telling {
    stage: Stage,
    /// Reloads and upgrades whose beginning was told, and not their end.
    under_way: usize,
    /// What the server says of itself when nothing is under way.
    status: String,
    /// The same, if an upgrade has failed meanwhile.
    failed: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Beginning,
    Serving,
    Over,
}

/// A reload that is under way until this is dropped.
#[derive(Debug)]
#[must_use = "it is over when this is dropped"]
pub struct Reloading {
    /// Is to know of the end.
    restart: Option<Arc<Restart>>,
    failed: Option<String>,
    /// Others that are over with this one.
    _others: Vec<Self>,
}

impl Reloading {
    /// Has the other one be over when this one is.
    pub fn join(&mut self, other: Self) {
        self._others.push(other);
    }

    /// It has failed, for a reason that people are to see.
    pub fn fails(&mut self, text: String) {
        self.failed = Some(text);
    }
}

impl Drop for Reloading {
    fn drop(&mut self) {
        if let Some(restart) = &self.restart {
            restart.is_over(self.failed.take());
        }
    }
}

impl Restart {
    /// A reload begins.
    pub fn reloading(this: &Arc<Self>) -> Reloading {
        let is_told = this.begins("reads its settings again");
        let restart = is_told.then(|| Arc::clone(this));
        Reloading { restart, failed: None, _others: Vec::new() }
    }

    /// Something begins. Says whether its end is to be told.
    pub(crate) fn begins(&self, status: &str) -> bool {
        let Some(manager) = self.manager() else { return false };
        // Held while it is told, so that it is told in the order in which it happens.
        let mut telling = lock(&self.telling);
        let is_serving = telling.stage == Stage::Serving;
        if is_serving {
            telling.under_way += 1;
            manager.reloading(status);
        }
        is_serving
    }

    /// Something whose beginning was told is over, and has `failed` for a reason that people are to see.
    pub(crate) fn is_over(&self, failed: Option<String>) {
        let Some(manager) = self.manager() else { return };
        let mut telling = lock(&self.telling);
        telling.under_way = telling.under_way.saturating_sub(1);
        telling.failed = failed.or(telling.failed.take());
        if telling.stage == Stage::Serving && telling.under_way == 0 {
            let status = telling.failed.take().unwrap_or_else(|| telling.status.clone());
            manager.ready(&status);
        }
    }

    /// The server serves.
    pub(crate) fn is_ready(&self, status: &str) {
        let Some(manager) = self.manager() else { return };
        let mut telling = lock(&self.telling);
        if telling.stage == Stage::Beginning {
            telling.stage = Stage::Serving;
            status.clone_into(&mut telling.status);
            manager.ready(status);
        }
    }

    /// Another process is the service from now on.
    pub(crate) fn is_succeeded_by(&self, process: u32) {
        let mut telling = lock(&self.telling);
        telling.stage = Stage::Over;
        if let Some(manager) = self.manager() {
            manager.succeeded_by(process, "serves");
        }
    }

    /// The server ends; the manager is told unless it knows of a successor, or never heard of this one.
    pub(crate) fn is_ending(&self, is_told: bool) {
        let mut telling = lock(&self.telling);
        let before = std::mem::replace(&mut telling.stage, Stage::Over);
        if let (true, Some(manager)) = (is_told && before != Stage::Over, self.manager()) {
            manager.stopping("ends, when the requests in progress are answered");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service_manager::Manager;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    /// A server with a manager that hears it.
    fn managed(name: &str) -> (Arc<Restart>, UnixDatagram) {
        let name = format!("peregrine-telling-{name}-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a short name");
        let socket = UnixDatagram::bind_addr(&address).expect("a new name");
        socket.set_nonblocking(true).expect("it can be");
        let restart = Restart::default();
        let manager = Manager::at(format!("@{name}").as_ref()).expect("a name");
        restart.manager.set(Some(manager)).expect("it has none");
        (Arc::new(restart), socket)
    }

    /// What was told since, without the time.
    fn told(socket: &UnixDatagram) -> Vec<String> {
        let (mut all, mut bytes) = (Vec::new(), [0; 1024]);
        while let Ok(length) = socket.recv(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            let lines = text.lines().filter(|line| !line.starts_with("MONOTONIC_USEC="));
            all.push(lines.collect::<Vec<_>>().join(" "));
        }
        all
    }

    const BEGINS: &str = "RELOADING=1 STATUS=reads its settings again";

    #[test]
    fn a_reload_tells_its_beginning_and_its_end_and_nothing_before_the_server_serves() {
        let (restart, socket) = managed("reload");
        drop(Restart::reloading(&restart));
        assert!(told(&socket).is_empty(), "that would say that the start is over");
        restart.is_ready("whole");
        assert_eq!(told(&socket), ["READY=1 STATUS=whole"]);
        let one = Restart::reloading(&restart);
        assert_eq!(told(&socket), [BEGINS]);
        drop(one);
        assert_eq!(told(&socket), ["READY=1 STATUS=whole"]);
        let mut one = Restart::reloading(&restart);
        one.fails("as it was".to_owned());
        drop(one);
        assert_eq!(told(&socket), [BEGINS, "READY=1 STATUS=as it was"]);
    }

    #[test]
    fn a_server_is_ready_when_the_last_of_what_is_under_way_is_over() {
        let (restart, socket) = managed("both");
        restart.is_ready("whole");
        assert!(restart.begins("starts its successor"));
        let reloads = [Restart::reloading(&restart), Restart::reloading(&restart)];
        assert_eq!(told(&socket).len(), 4);
        drop(reloads);
        assert!(told(&socket).is_empty(), "the upgrade is not over");
        let mut late = Restart::reloading(&restart);
        late.join(Restart::reloading(&restart));
        restart.is_over(Some("it failed".to_owned()));
        assert_eq!(told(&socket), [BEGINS, BEGINS], "the reloads are not over");
        drop(late);
        assert_eq!(told(&socket), ["READY=1 STATUS=it failed"], "what went wrong is not lost");
        drop(Restart::reloading(&restart));
        assert_eq!(told(&socket), [BEGINS, "READY=1 STATUS=whole"], "nor said for ever");
    }

    #[test]
    fn who_has_a_successor_or_ends_says_nothing_more() {
        let (restart, socket) = managed("successor");
        restart.is_ready("whole");
        assert!(restart.begins("starts its successor"));
        let reload = Restart::reloading(&restart);
        restart.is_succeeded_by(7);
        told(&socket);
        drop(reload);
        drop(Restart::reloading(&restart));
        restart.is_ending(false);
        assert!(told(&socket).is_empty());

        let (restart, socket) = managed("end");
        restart.is_ready("whole");
        let reload = Restart::reloading(&restart);
        restart.is_ending(true);
        drop(reload);
        let told = told(&socket);
        assert!(told.len() == 3 && told[2].starts_with("STOPPING=1 "), "{told:?}");
    }
}
