//! Sends the state of a server to the service manager (sd_notify).

use peregrine_web::panic::catch_subscriber_panic;
use rustix::time::{ClockId, clock_gettime};
use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

/// The environment variable that names the manager's socket.
const ENV_VAR: &str = "NOTIFY_SOCKET";
/// The maximum time that a manager that does not read can delay the server.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The service manager of this process.
#[derive(Debug)]
pub(crate) struct ServiceManager {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl ServiceManager {
    /// Returns the manager that the environment names, if any.
    pub(crate) fn from_environment() -> Option<Self> {
        let name = env::var_os(ENV_VAR).filter(|name| !name.is_empty())?;
        match Self::from_address(&name) {
            Ok(manager) => Some(manager),
            Err(error) => {
                catch_subscriber_panic(|| {
                    tracing::warn!(target: "peregrine", %error, ?name,
                    "{ENV_VAR} does not name a usable socket")
                });
                None
            }
        }
    }

    pub(crate) fn from_address(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(Path::new(name))?,
            _ => {
                return Err(io::Error::new(io::ErrorKind::Unsupported, "neither a path nor @name"));
            }
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(Self { socket, address })
    }

    /// Reports that all workers serve.
    pub(crate) fn notify_ready(&self, status: &str) {
        self.notify("READY=1", status);
    }

    /// Reports the start of a reload or an upgrade.
    pub(crate) fn notify_reloading(&self, status: &str) {
        let now = clock_gettime(ClockId::Monotonic);
        let microseconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.notify(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}"), status);
    }

    /// Reports that another process is the service from now on, and serves.
    pub(crate) fn notify_main_pid(&self, pid: u32, status: &str) {
        self.notify(&format!("MAINPID={pid}\nREADY=1"), status);
    }

    /// Reports that the server is stopping.
    pub(crate) fn notify_stopping(&self, status: &str) {
        self.notify("STOPPING=1", status);
    }

    /// Reports to the watchdog that all workers respond.
    pub(crate) fn notify_watchdog(&self) {
        self.send("WATCHDOG=1");
    }

    fn notify(&self, state: &str, status: &str) {
        self.send(&format!("{state}\nSTATUS={}", status.replace('\n', " ")));
    }

    /// Sends a message. If the manager is gone or does not read, this is logged, and the server
    /// continues.
    fn send(&self, text: &str) {
        if let Err(error) = self.socket.send_to_addr(text.as_bytes(), &self.address) {
            catch_subscriber_panic(
                || tracing::warn!(target: "peregrine", %error, text, "cannot notify the service manager"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message that a manager at `address` receives while `notify` runs.
    fn received_message(
        address: &SocketAddr,
        name: &OsStr,
        notify: impl FnOnce(&ServiceManager),
    ) -> String {
        let socket = UnixDatagram::bind_addr(address).expect("the name is unused");
        notify(&ServiceManager::from_address(name).expect("the address is valid"));
        let mut text = [0; 1024];
        let length = socket.recv(&mut text).expect("a message was sent");
        String::from_utf8_lossy(&text[..length]).into_owned()
    }

    #[test]
    fn notifies_at_a_path_and_at_an_abstract_name() {
        let dir = tempfile::tempdir().expect("the temporary directory is writable");
        let path = dir.path().join("notify");
        let address = SocketAddr::from_pathname(&path).expect("the path is short enough");
        let text =
            received_message(&address, path.as_os_str(), |manager| manager.notify_ready("a\nb"));
        assert_eq!(text, "READY=1\nSTATUS=a b");
        let name = format!("peregrine-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("the name is short enough");
        let name = format!("@{name}");
        let text =
            received_message(&address, name.as_ref(), |manager| manager.notify_main_pid(7, "c"));
        assert_eq!(text, "MAINPID=7\nREADY=1\nSTATUS=c");
    }

    #[test]
    fn reloading_includes_a_monotonic_timestamp() {
        let name = format!("peregrine-reload-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("the name is short enough");
        let name = format!("@{name}");
        let now = || clock_gettime(ClockId::Monotonic).tv_sec;
        let before = now();
        let text =
            received_message(&address, name.as_ref(), |manager| manager.notify_reloading("x"));
        let time = text.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
        let seconds = time
            .expect("the message has a timestamp")
            .parse::<i64>()
            .expect("the timestamp is a number")
            / 1_000_000;
        assert!((before..=now()).contains(&seconds), "{text}");
        assert!(text.starts_with("RELOADING=1\n"), "{text}");
    }

    #[test]
    fn a_missing_manager_is_ignored_and_an_invalid_address_is_an_error() {
        ServiceManager::from_address("@peregrine-no-manager".as_ref())
            .expect("the address is valid")
            .notify_stopping("x");
        for name in ["relative", "vsock:2:1234"] {
            assert!(ServiceManager::from_address(name.as_ref()).is_err(), "{name}");
        }
    }
}
