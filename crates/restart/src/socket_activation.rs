//! Sockets that a service manager created and passed to this process at startup.

use listenfd::ListenFd;
use peregrine_driver::Socket;
use std::env;
use std::error::Error;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// The name of sockets without a name, as defined by sd_listen_fds_with_names(3).
const UNNAMED: &str = "unknown";

/// The sockets passed to this process. Each can be taken once.
struct ActivatedSockets {
    sockets: Vec<(String, Option<Result<Socket, String>>)>,
    /// Why no sockets were passed.
    reason: &'static str,
}

static ACTIVATED: Mutex<Option<ActivatedSockets>> = Mutex::new(None);

/// The sockets called `name` from a service manager. Empty if there are no such sockets at all and
/// the listener `has_other` address to use instead.
///
/// # Errors
/// There is no socket with that name.
pub fn activated(name: &str, has_other: bool) -> Result<Vec<Socket>, ActivationError> {
    match take_by_name(name) {
        Ok(sockets) => Ok(sockets),
        Err(ActivationErrorKind::NoSockets(_)) if has_other => Ok(Vec::new()),
        Err(missing) => Err(ActivationError { name: name.to_owned(), kind: missing }),
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
        let Self { name, kind: missing } = self;
        write!(f, "the service manager passed no socket `{name}`: {missing}")
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

/// Takes all sockets of that name.
fn take_by_name(name: &str) -> Result<Vec<Socket>, ActivationErrorKind> {
    let mut given = ACTIVATED.lock().unwrap_or_else(PoisonError::into_inner);
    given.get_or_insert_with(ActivatedSockets::from_environment).take_by_name(name)
}

impl ActivatedSockets {
    fn from_environment() -> Self {
        let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
        let is_none = env::var_os("LISTEN_FDS").is_none();
        // Also removes the variables, so that child processes do not use them.
        let mut all = ListenFd::from_env();
        let reason = if is_none {
            "none was passed to this process (LISTEN_FDS is not set): start it by its socket unit"
        } else {
            "the sockets are for another process (LISTEN_PID): a script that starts the program \
             must `exec` it"
        };
        let named = name_sockets(&names, all.len()).into_iter().enumerate();
        let sockets = named.map(|(index, name)| {
            let socket = match all.take_unix_listener(index) {
                Ok(listener) => Ok(listener.map(Socket::Unix)),
                Err(_) => all.take_tcp_listener(index).map(|listener| listener.map(Socket::Tcp)),
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
        if let [(known, Some(_))] = &mut *self.sockets
            && is_unnamed(known)
        {
            name.clone_into(known);
        }
        let called = |(known, _): &&mut (String, _)| known == name;
        let taken = self.sockets.iter_mut().filter(called).filter_map(|(_, socket)| socket.take());
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

    fn describe_names(&self, asked: &str) -> String {
        if self.sockets.iter().any(|(name, _)| name == asked) {
            return "another listener has taken it: use each name once".to_owned();
        }
        let names: Vec<_> = self.sockets.iter().map(|(name, _)| format!("`{name}`")).collect();
        let names = names.join(", ");
        format!(
            "the sockets passed are {names}: set FileDescriptorName={asked} in the socket unit, or \
             list a name for each in LISTEN_FDNAMES, separated by colons"
        )
    }
}

/// Whether this is the name of an unnamed socket. systemd uses the name of the unit for those.
fn is_unnamed(name: &str) -> bool {
    name.is_empty() || name == UNNAMED || name.ends_with(".socket")
}

/// A name for each of `count` sockets. Those without a name get the one that
/// sd_listen_fds_with_names(3) uses.
fn name_sockets(names: &str, count: usize) -> Vec<String> {
    let given = names.split(':').filter(|_| !names.is_empty());
    let all = given.map(str::to_owned).chain(std::iter::repeat(UNNAMED.to_owned()));
    all.take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn socket() -> Socket {
        Socket::Tcp(TcpListener::bind("127.0.0.1:0").expect("a free port"))
    }

    #[test]
    fn sockets_have_names_even_where_the_manager_gave_none() {
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
    fn all_sockets_of_a_name_are_taken_at_once_and_others_are_named_where_there_is_none() {
        let names = ["web", "admin", "web"];
        let sockets = names.map(|name| (name.to_owned(), Some(Ok(socket()))));
        let mut given = ActivatedSockets { sockets: sockets.into(), reason: "" };
        let text = given.take_by_name("wbe").expect_err("no such name").to_string();
        assert!(text.contains("`web`, `admin`"), "{text}");
        assert!(text.contains("FileDescriptorName=wbe"), "{text}");
        assert_eq!(given.take_by_name("web").expect("two sockets").len(), 2);
        let text = given.take_by_name("web").expect_err("already taken").to_string();
        assert!(text.contains("has taken it"), "{text}");
        assert_eq!(given.take_by_name("admin").expect("one socket").len(), 1);
    }

    #[test]
    fn one_socket_alone_that_nobody_named_is_for_who_asks_first() {
        for name in ["", "unknown", "app.socket"] {
            let mut given = ActivatedSockets {
                sockets: vec![(name.to_owned(), Some(Ok(socket())))],
                reason: "",
            };
            assert_eq!(given.take_by_name("web").expect("the only socket").len(), 1, "{name:?}");
            let text = given.take_by_name("admin").expect_err("already taken").to_string();
            assert!(text.contains("are `web`: ") && text.contains("=admin"), "{text}");
            let text = given.take_by_name("web").expect_err("already taken").to_string();
            assert!(text.contains("has taken it"), "{text}");
        }
        for names in [vec!["http"], vec!["unknown", "unknown"], vec!["http", "unknown"]] {
            let sockets = names.iter().map(|name| ((*name).to_owned(), Some(Ok(socket()))));
            let mut given = ActivatedSockets { sockets: sockets.collect(), reason: "" };
            let text = given.take_by_name("web").expect_err("it is ambiguous").to_string();
            assert!(text.contains("LISTEN_FDNAMES"), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_listened_on_is_told_and_nothing_is_something_else() {
        let broken = ("web".to_owned(), Some(Err("fd 3 is not a valid tcp socket".to_owned())));
        let mut given = ActivatedSockets { sockets: vec![broken], reason: "" };
        let text = given.take_by_name("web").expect_err("not a socket").to_string();
        assert!(text.contains("fd 3") && text.contains("ListenStream="), "{text}");
        let mut nothing = ActivatedSockets { sockets: Vec::new(), reason: "none" };
        assert!(matches!(nothing.take_by_name("web"), Err(ActivationErrorKind::NoSockets("none"))));
    }
}
