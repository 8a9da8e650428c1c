//! Sockets that a service manager made and handed to this process when it was started.

use listenfd::ListenFd;
use peregrine_driver::Socket;
use std::env;
use std::error::Error;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// A socket without a name, in the words of sd_listen_fds_with_names(3).
const UNNAMED: &str = "unknown";

/// What was handed over. It can be taken once.
struct Given {
    sockets: Vec<(String, Option<Result<Socket, String>>)>,
    /// Why there is nothing.
    reason: &'static str,
}

static GIVEN: Mutex<Option<Given>> = Mutex::new(None);

/// What is called `name` among the sockets that a service manager made; nothing if it made none at all
/// and there is something `or` else to do.
///
/// # Errors
/// There is no socket of that name.
pub fn activated(name: &str, has_other: bool) -> Result<Vec<Socket>, ActivationError> {
    match take(name) {
        Ok(sockets) => Ok(sockets),
        Err(Missing::All(_)) if has_other => Ok(Vec::new()),
        Err(missing) => Err(ActivationError { name: name.to_owned(), missing }),
    }
}

/// There is no socket of this name.
#[derive(Debug)]
pub struct ActivationError {
    name: String,
    missing: Missing,
}

impl fmt::Display for ActivationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, missing } = self;
        write!(f, "there is no socket `{name}` of the service manager: {missing}")
    }
}

impl Error for ActivationError {}

/// Why there is no socket of a name.
#[derive(Debug, PartialEq, Eq)]
enum Missing {
    /// No sockets at all were handed to this process.
    All(&'static str),
    /// Others were: these names. Or what has the name does not do.
    Name(String),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(reason) => f.write_str(reason),
            Self::Name(text) => f.write_str(text),
        }
    }
}

/// All sockets of that name.
fn take(name: &str) -> Result<Vec<Socket>, Missing> {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    given.get_or_insert_with(Given::from_environment).take(name)
}

impl Given {
    fn from_environment() -> Self {
        let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
        let is_none = env::var_os("LISTEN_FDS").is_none();
        // This forgets the variables, so that no child believes that they are for it.
        let mut all = ListenFd::from_env();
        let reason = if is_none {
            "none was handed to this process (LISTEN_FDS is not set): start it by its socket unit"
        } else {
            "those that were handed over are for another process (LISTEN_PID): a script that starts \
             the program must `exec` it"
        };
        let named = name_all(&names, all.len()).into_iter().enumerate();
        let sockets = named.map(|(index, name)| {
            let socket = match all.take_unix_listener(index) {
                Ok(listener) => Ok(listener.map(Socket::Unix)),
                Err(_) => all.take_tcp_listener(index).map(|listener| listener.map(Socket::Tcp)),
            };
            (name, socket.map_err(|error| error.to_string()).transpose())
        });
        Self { sockets: sockets.collect(), reason }
    }

    fn take(&mut self, name: &str) -> Result<Vec<Socket>, Missing> {
        if self.sockets.is_empty() {
            return Err(Missing::All(self.reason));
        }
        // One alone that nobody named can only be meant for who asks. Among several there is no telling.
        if let [(known, Some(_))] = &mut *self.sockets
            && is_of_nobody(known)
        {
            name.clone_into(known);
        }
        let called = |(known, _): &&mut (String, _)| known == name;
        let taken = self.sockets.iter_mut().filter(called).filter_map(|(_, socket)| socket.take());
        let taken: Result<Vec<_>, _> = taken.collect();
        match taken {
            Ok(sockets) if sockets.is_empty() => Err(Missing::Name(self.names(name))),
            Ok(sockets) => Ok(sockets),
            Err(error) => Err(Missing::Name(format!(
                "what was handed over is no listening stream socket ({error}): write ListenStream= \
                 in the socket unit, and Accept=no"
            ))),
        }
    }

    fn names(&self, asked: &str) -> String {
        if self.sockets.iter().any(|(name, _)| name == asked) {
            return "it was taken already: name it once".to_owned();
        }
        let names: Vec<_> = self.sockets.iter().map(|(name, _)| format!("`{name}`")).collect();
        let names = names.join(", ");
        format!(
            "handed over were {names}: write FileDescriptorName={asked} in the socket unit, or have \
             LISTEN_FDNAMES name each one, with colons between them"
        )
    }
}

/// Is that what a socket is called to which nobody gave a name? systemd calls it as its unit then.
fn is_of_nobody(name: &str) -> bool {
    name.is_empty() || name == UNNAMED || name.ends_with(".socket")
}

/// A name for each of `count` sockets. Who has none is called as sd_listen_fds_with_names(3) does it.
fn name_all(names: &str, count: usize) -> Vec<String> {
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
            assert_eq!(name_all(names, count), expected, "{names:?} for {count}");
        }
    }

    #[test]
    fn all_sockets_of_a_name_are_taken_at_once_and_others_are_named_where_there_is_none() {
        let names = ["web", "admin", "web"];
        let sockets = names.map(|name| (name.to_owned(), Some(Ok(socket()))));
        let mut given = Given { sockets: sockets.into(), reason: "" };
        let text = given.take("wbe").expect_err("no such name").to_string();
        assert!(text.contains("`web`, `admin`"), "{text}");
        assert!(text.contains("FileDescriptorName=wbe"), "{text}");
        assert_eq!(given.take("web").expect("there are two").len(), 2);
        let text = given.take("web").expect_err("they are taken").to_string();
        assert!(text.contains("taken already"), "{text}");
        assert_eq!(given.take("admin").expect("there is one").len(), 1);
    }

    #[test]
    fn one_socket_alone_that_nobody_named_is_for_who_asks_first() {
        for name in ["", "unknown", "app.socket"] {
            let mut given =
                Given { sockets: vec![(name.to_owned(), Some(Ok(socket())))], reason: "" };
            assert_eq!(given.take("web").expect("it is meant").len(), 1, "{name:?}");
            let text = given.take("admin").expect_err("it is taken").to_string();
            assert!(text.contains("were `web`: ") && text.contains("=admin"), "{text}");
            let text = given.take("web").expect_err("it is taken").to_string();
            assert!(text.contains("taken already"), "{text}");
        }
        for names in [vec!["http"], vec!["unknown", "unknown"], vec!["http", "unknown"]] {
            let sockets = names.iter().map(|name| ((*name).to_owned(), Some(Ok(socket()))));
            let mut given = Given { sockets: sockets.collect(), reason: "" };
            let text = given.take("web").expect_err("it may be meant or not").to_string();
            assert!(text.contains("LISTEN_FDNAMES"), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_listened_on_is_told_and_nothing_is_something_else() {
        let broken = ("web".to_owned(), Some(Err("fd 3 is not a valid tcp socket".to_owned())));
        let mut given = Given { sockets: vec![broken], reason: "" };
        let text = given.take("web").expect_err("it is none").to_string();
        assert!(text.contains("fd 3") && text.contains("ListenStream="), "{text}");
        let mut nothing = Given { sockets: Vec::new(), reason: "none" };
        assert!(matches!(nothing.take("web"), Err(Missing::All("none"))));
    }
}
