//! Sockets that a service manager created and passed to this process at startup.

use listenfd::ListenFd;
use peregrine_driver::Socket;
use std::env;
use std::error::Error;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// The name that sd_listen_fds_with_names(3) gives to sockets without a name.
const UNNAMED: &str = "unknown";

/// The sockets passed to this process. Each can be taken once.
struct ActivatedSockets {
    /// Each socket with its name: `None` once it was taken, an error if it cannot be used.
    sockets: Vec<(String, Option<Result<Socket, String>>)>,
    /// The reason to report if no sockets were passed.
    reason: &'static str,
}

static ACTIVATED: Mutex<Option<ActivatedSockets>> = Mutex::new(None);

/// Takes the sockets named `name` that the service manager passed to this process. Returns an empty
/// list if the manager passed no sockets at all and `has_other`: the listener then uses its other
/// address instead.
///
/// # Errors
/// There is no socket with that name.
pub fn activated(name: &str, has_other: bool) -> Result<Vec<Socket>, ActivationError> {
    match take_by_name(name) {
        Ok(sockets) => Ok(sockets),
        Err(ActivationErrorKind::NoSockets(_)) if has_other => Ok(Vec::new()),
        Err(kind) => Err(ActivationError { name: name.to_owned(), kind }),
    }
}

/// The service manager passed no socket with this name.
#[derive(Debug)]
pub struct ActivationError {
    name: String,
    kind: ActivationErrorKind,
}

impl fmt::Display for ActivationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, kind } = self;
        write!(f, "the service manager passed no socket `{name}`: {kind}")
    }
}

impl Error for ActivationError {}

/// Why a name has no socket.
#[derive(Debug, PartialEq, Eq)]
enum ActivationErrorKind {
    /// No sockets at all were passed to this process.
    NoSockets(&'static str),
    /// No available socket has the name, or the socket cannot be used. Contains the message.
    UnknownName(String),
}

impl fmt::Display for ActivationErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSockets(reason) => f.write_str(reason),
            Self::UnknownName(text) => f.write_str(text),
        }
    }
}

/// Takes all sockets with this name.
fn take_by_name(name: &str) -> Result<Vec<Socket>, ActivationErrorKind> {
    let mut activated = ACTIVATED.lock().unwrap_or_else(PoisonError::into_inner);
    activated.get_or_insert_with(ActivatedSockets::from_environment).take_by_name(name)
}

impl ActivatedSockets {
    fn from_environment() -> Self {
        let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
        let is_unset = env::var_os("LISTEN_FDS").is_none();
        // Also removes the variables, so that child processes do not use them.
        let mut listen_fds = ListenFd::from_env();
        let reason = if is_unset {
            "none was passed to this process (LISTEN_FDS is not set): start it by its socket unit"
        } else {
            "the sockets are for another process (LISTEN_PID): a script that starts the program \
             must `exec` it"
        };
        let names = name_sockets(&names, listen_fds.len()).into_iter().enumerate();
        let sockets = names.map(|(index, name)| {
            let socket = match listen_fds.take_unix_listener(index) {
                Ok(listener) => Ok(listener.map(Socket::Unix)),
                Err(_) => {
                    listen_fds.take_tcp_listener(index).map(|listener| listener.map(Socket::Tcp))
                }
            };
            (name, socket.map_err(|error| error.to_string()).transpose())
        });
        Self { sockets: sockets.collect(), reason }
    }

    fn take_by_name(&mut self, name: &str) -> Result<Vec<Socket>, ActivationErrorKind> {
        if self.sockets.is_empty() {
            return Err(ActivationErrorKind::NoSockets(self.reason));
        }
        // A single unnamed socket must be for the caller. Several unnamed ones are ambiguous.
        if let [(socket_name, Some(_))] = &mut *self.sockets
            && is_unnamed(socket_name)
        {
            name.clone_into(socket_name);
        }
        let has_name = |(socket_name, _): &&mut (String, _)| socket_name == name;
        let taken =
            self.sockets.iter_mut().filter(has_name).filter_map(|(_, socket)| socket.take());
        let taken: Result<Vec<_>, _> = taken.collect();
        match taken {
            Ok(sockets) if sockets.is_empty() => {
                Err(ActivationErrorKind::UnknownName(self.describe_names(name)))
            }
            Ok(sockets) => Ok(sockets),
            Err(error) => Err(ActivationErrorKind::UnknownName(format!(
                "the socket is not a listening stream socket ({error}): set ListenStream= and \
                 Accept=no in the socket unit"
            ))),
        }
    }

    fn describe_names(&self, requested: &str) -> String {
        if self.sockets.iter().any(|(name, _)| name == requested) {
            return "another listener has taken it: use each name once".to_owned();
        }
        let names: Vec<_> = self.sockets.iter().map(|(name, _)| format!("`{name}`")).collect();
        let names = names.join(", ");
        format!(
            "the sockets passed are {names}: set FileDescriptorName={requested} in the socket \
             unit, or list a name for each in LISTEN_FDNAMES, separated by colons"
        )
    }
}

/// Whether this is the name of an unnamed socket. systemd uses the name of the unit for those.
fn is_unnamed(name: &str) -> bool {
    name.is_empty() || name == UNNAMED || name.ends_with(".socket")
}

/// Returns a name for each of `count` sockets. Those without a name get the one that
/// sd_listen_fds_with_names(3) uses.
fn name_sockets(names: &str, count: usize) -> Vec<String> {
    let listed = names.split(':').filter(|_| !names.is_empty());
    let padded = listed.map(str::to_owned).chain(std::iter::repeat(UNNAMED.to_owned()));
    padded.take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn socket() -> Socket {
        Socket::Tcp(TcpListener::bind("127.0.0.1:0").expect("port 0 binds to a free port"))
    }

    #[test]
    fn sockets_without_a_name_are_named_unknown() {
        for (names, count, expected) in [
            ("", 0, vec![]),
            ("", 2, vec!["unknown", "unknown"]),
            ("web:admin", 2, vec!["web", "admin"]),
            ("web", 2, vec!["web", "unknown"]),
            ("web:web", 1, vec!["web"]),
        ] {
            assert_eq!(name_sockets(names, count), expected, "{names:?} for {count}");
        }
    }

    #[test]
    fn all_sockets_of_a_name_are_taken_at_once_and_errors_list_the_names() {
        let names = ["web", "admin", "web"];
        let sockets = names.map(|name| (name.to_owned(), Some(Ok(socket()))));
        let mut activated = ActivatedSockets { sockets: sockets.into(), reason: "" };
        let text = activated.take_by_name("wbe").expect_err("the name is unknown").to_string();
        assert!(text.contains("`web`, `admin`"), "{text}");
        assert!(text.contains("FileDescriptorName=wbe"), "{text}");
        assert_eq!(activated.take_by_name("web").expect("the sockets are available").len(), 2);
        let text = activated.take_by_name("web").expect_err("the sockets were taken").to_string();
        assert!(text.contains("has taken it"), "{text}");
        assert_eq!(activated.take_by_name("admin").expect("the socket is available").len(), 1);
    }

    #[test]
    fn a_single_unnamed_socket_gets_the_first_requested_name() {
        for name in ["", "unknown", "app.socket"] {
            let mut activated = ActivatedSockets {
                sockets: vec![(name.to_owned(), Some(Ok(socket())))],
                reason: "",
            };
            assert_eq!(
                activated.take_by_name("web").expect("the socket is available").len(),
                1,
                "{name:?}"
            );
            let text =
                activated.take_by_name("admin").expect_err("the sockets were taken").to_string();
            assert!(text.contains("are `web`: ") && text.contains("=admin"), "{text}");
            let text =
                activated.take_by_name("web").expect_err("the sockets were taken").to_string();
            assert!(text.contains("has taken it"), "{text}");
        }
        for names in [vec!["http"], vec!["unknown", "unknown"], vec!["http", "unknown"]] {
            let sockets = names.iter().map(|name| ((*name).to_owned(), Some(Ok(socket()))));
            let mut activated = ActivatedSockets { sockets: sockets.collect(), reason: "" };
            let text =
                activated.take_by_name("web").expect_err("the name is ambiguous").to_string();
            assert!(text.contains("LISTEN_FDNAMES"), "{text}");
        }
    }

    #[test]
    fn an_unusable_socket_and_a_missing_socket_are_different_errors() {
        let broken = ("web".to_owned(), Some(Err("fd 3 is not a valid tcp socket".to_owned())));
        let mut activated = ActivatedSockets { sockets: vec![broken], reason: "" };
        let text = activated.take_by_name("web").expect_err("the socket is unusable").to_string();
        assert!(text.contains("fd 3") && text.contains("ListenStream="), "{text}");
        let mut empty = ActivatedSockets { sockets: Vec::new(), reason: "none" };
        assert!(matches!(empty.take_by_name("web"), Err(ActivationErrorKind::NoSockets("none"))));
    }
}
