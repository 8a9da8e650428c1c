//! Sends the state of a server to the service manager (sd_notify).

use peregrine_web::panic::catch_log_panic;
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
    /// The manager named by the environment, if any.
    pub(crate) fn from_environment() -> Option<Self> {
        let name = env::var_os(ENV_VAR).filter(|name| !name.is_empty())?;
        match Self::from_address(&name) {
            Ok(manager) => Some(manager),
            Err(error) => {
                catch_log_panic(|| {
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
    pub(crate) fn ready(&self, status: &str) {
        self.notify("READY=1", status);
    }

    /// Reports the start of a reload or an upgrade.
    pub(crate) fn reloading(&self, status: &str) {
        let now = clock_gettime(ClockId::Monotonic);
        let microseconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.notify(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}"), status);
    }

    /// Reports that another process is the service from now on, and serves.
    pub(crate) fn main_pid(&self, process: u32, status: &str) {
        self.notify(&format!("MAINPID={process}\nREADY=1"), status);
    }

    /// Reports that the server is stopping.
    pub(crate) fn stopping(&self, status: &str) {
        self.notify("STOPPING=1", status);
    }

    /// Reports to the watchdog that all workers respond.
    pub(crate) fn watchdog(&self) {
        self.send("WATCHDOG=1");
    }

    fn notify(&self, what: &str, status: &str) {
        self.send(&format!("{what}\nSTATUS={}", status.replace('\n', " ")));
    }

    /// Sends a message. If the manager is gone or does not read, this is logged, and the server
    /// continues.
    fn send(&self, text: &str) {
        if let Err(error) = self.socket.send_to_addr(text.as_bytes(), &self.address) {
            catch_log_panic(
                || tracing::warn!(target: "peregrine", %error, text, "cannot notify the service manager"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message that a manager at `address` receives while `notify` runs.
    fn heard(address: &SocketAddr, name: &OsStr, told: impl FnOnce(&ServiceManager)) -> String {
        let socket = UnixDatagram::bind_addr(address).expect("a new name");
        told(&ServiceManager::from_address(name).expect("a name"));
        let mut text = [0; 1024];
        let length = socket.recv(&mut text).expect("a message");
        String::from_utf8_lossy(&text[..length]).into_owned()
    }

    #[test]
    fn a_manager_is_told_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let address = SocketAddr::from_pathname(&path).expect("a short path");
        let text = heard(&address, path.as_os_str(), |manager| manager.ready("a\nb"));
        assert_eq!(text, "READY=1\nSTATUS=a b");
        let name = format!("peregrine-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a short name");
        let name = format!("@{name}");
        let text = heard(&address, name.as_ref(), |manager| manager.main_pid(7, "c"));
        assert_eq!(text, "MAINPID=7\nREADY=1\nSTATUS=c");
    }

    #[test]
    fn a_reload_says_when_it_began() {
        let name = format!("peregrine-reload-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a short name");
        let name = format!("@{name}");
        let now = || clock_gettime(ClockId::Monotonic).tv_sec;
        let before = now();
        let text = heard(&address, name.as_ref(), |manager| manager.reloading("x"));
        let time = text.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
        let seconds = time.expect("a timestamp").parse::<i64>().expect("a number") / 1_000_000;
        assert!((before..=now()).contains(&seconds), "{text}");
        assert!(text.starts_with("RELOADING=1\n"), "{text}");
    }

    #[test]
    fn a_manager_that_is_gone_is_no_error_and_what_is_no_name_is_none() {
        ServiceManager::from_address("@peregrine-nobody".as_ref()).expect("a name").stopping("x");
        for name in ["relative", "vsock:2:1234"] {
            assert!(ServiceManager::from_address(name.as_ref()).is_err(), "{name}");
        }
    }
}
