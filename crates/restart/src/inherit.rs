//! The successor's side of an upgrade.

use crate::fd_message::{self, Parcel, step};
use crate::host::{TakeOverError, UpgradeHost};
use crate::listener::{Identity, Inherited, Secrets};
use peregrine_driver::Socket;
use peregrine_server::{Order, Shared};
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;
use std::env;
use std::fmt;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The environment variable that announces a predecessor to its successor. It contains the version
/// of the protocol between the two, and the inode number of the socket that is the successor's
/// standard input. A process that merely inherited the variable has a different standard input.
pub(crate) const VARIABLE: &str = "PEREGRINE_PREDECESSOR";
const VERSION: &str = "1";

/// The timeout for each of the predecessor's messages, except [`step::GO`].
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait for a message before checking for orders.
const PAUSE: Duration = Duration::from_millis(20);

/// The sockets that the predecessor passed to this process, and the link to it.
#[derive(Debug)]
pub struct Heir {
    link: UnixStream,
    inherited: Vec<Listening>,
    /// The sockets that belong to this process alone once it has taken over.
    own: Vec<Shared>,
}

/// The sockets of one listener.
#[derive(Debug)]
struct Listening {
    key: String,
    place: Place,
    sockets: Vec<Socket>,
    is_foreign: bool,
    file: Option<Identity>,
    secrets: Secrets,
}

/// The address that a socket listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Tcp(SocketAddr),
    /// `None` for abstract names of Linux, which have no path.
    Unix(Option<PathBuf>),
}

/// The result of the first search for a predecessor, until a server takes it.
static FOUND: Mutex<Option<Option<Heir>>> = Mutex::new(None);

/// The value of [`VARIABLE`] for a process with this standard input.
pub(crate) fn variable(input: &UnixStream) -> io::Result<String> {
    Ok(format!("{VERSION}:{}", number(input.as_fd().try_clone_to_owned()?)?))
}

fn number(descriptor: OwnedFd) -> io::Result<u64> {
    File::from(descriptor).metadata().map(|metadata| metadata.ino())
}

impl Heir {
    /// Returns what the predecessor passed on, if there is a predecessor and no other server of
    /// this process has taken it.
    ///
    /// # Errors
    /// There is a predecessor, but it does not pass on its sockets.
    pub fn find() -> Result<Option<Self>, TakeOverError> {
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_none() {
            *found = Some(Self::read().map_err(TakeOverError)?);
        }
        Ok(found.as_mut().and_then(Option::take))
    }

    /// Leaves the sockets to another server of this process, because this server uses none of them.
    pub fn put_back(self) {
        *FOUND.lock().unwrap_or_else(PoisonError::into_inner) = Some(Some(self));
    }

    /// Whether any socket was taken.
    #[must_use]
    pub fn is_used(&self) -> bool {
        !self.own.is_empty()
    }

    fn read() -> io::Result<Option<Self>> {
        let Ok(value) = env::var(VARIABLE) else { return Ok(None) };
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        let Some((version, expected)) = value.split_once(':') else { return Ok(None) };
        if expected.parse().ok() != number(input.try_clone()?).ok() {
            return Ok(None);
        }
        if version != VERSION {
            let text = format!("protocol version {version}, expected {VERSION}: restart instead");
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let mut heir = Self { link: input.into(), inherited: Vec::new(), own: Vec::new() };
        loop {
            let parcel =
                fd_message::receive(&heir.link, PATIENCE)?.ok_or(io::ErrorKind::TimedOut)?;
            let Parcel { name, bytes, mut descriptors } = parcel;
            match &*name {
                step::END => return Ok(Some(heir)),
                // Restores the standard input, which the link had replaced.
                step::INPUT => {
                    descriptors.pop().map_or(Ok(()), rustix::stdio::dup2_stdin)?;
                }
                name => {
                    if let Some(key) = name.strip_prefix(step::LISTENER) {
                        heir.inherited.extend(Listening::from(key, &bytes, descriptors)?);
                    }
                }
            }
        }
    }

    /// Takes the sockets of the listener with this key, or else of one whose address resolves to
    /// the same.
    pub fn take(&mut self, key: &str, address: Option<&str>) -> Vec<Inherited> {
        let mut taken: Vec<_> = self.inherited.extract_if(.., |one| one.key == key).collect();
        if let (Some(address), true) = (address, taken.is_empty()) {
            let position = self.inherited.iter().position(|one| leads_to(address, &one.place));
            taken.extend(position.map(|position| self.inherited.remove(position)));
        }
        // An address that is listed twice, such as port 0, matches one listener each time.
        if address.is_some() && taken.len() > 1 {
            self.inherited.extend(taken.drain(1..));
        }
        taken.into_iter().map(|one| self.inherited(one)).collect()
    }

    fn inherited(&mut self, one: Listening) -> Inherited {
        let Listening { sockets, is_foreign, file, secrets, .. } = one;
        let shared = Shared::from(true);
        // A foreign socket always stays shared. The entry in this list is then an unrelated flag.
        self.own.push(if is_foreign { Shared::default() } else { shared.clone() });
        Inherited { sockets, file, shared, is_foreign, secrets }
    }

    /// Starts serving when the predecessor permits it, and waits until the predecessor has released
    /// the sockets. Does nothing if this process is ordered to stop first. `check` reports failed
    /// workers.
    ///
    /// # Errors
    /// The predecessor or a worker ended before serving started.
    pub fn succeed<E: From<TakeOverError>>(
        &mut self,
        host: &dyn UpgradeHost,
        mut check: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        // Not all workers are ready in this case.
        if host.present() > Order::Serve {
            return Ok(());
        }
        for one in &self.inherited {
            fd_message::send(&self.link, step::UNTAKEN, one.key.as_bytes(), &[])
                .map_err(TakeOverError)?;
        }
        fd_message::send(&self.link, step::READY, &[], &[]).map_err(TakeOverError)?;
        loop {
            if host.present() > Order::Serve {
                return Ok(());
            }
            check()?;
            match fd_message::receive(&self.link, PAUSE).map_err(TakeOverError)? {
                Some(Parcel { name, .. }) if name == step::GO => break,
                _ => {}
            }
        }
        // The predecessor closes the sockets that this process does not use.
        self.inherited.clear();
        host.open();
        // From here on this process serves, even if the predecessor fails.
        let _ = fd_message::send(&self.link, step::SERVING, &[], &[]);
        while let Ok(Some(Parcel { name, .. })) = fd_message::receive(&self.link, PATIENCE) {
            match &*name {
                step::RELOAD => host.read_again(),
                step::YOURS => break,
                _ => {}
            }
        }
        self.own.iter().for_each(|shared| shared.set(false));
        Ok(())
    }

    /// Reports to the predecessor why this process does not take over.
    pub fn fail(&self, error: &dyn fmt::Display) {
        // An error means that the predecessor has ended and needs no report.
        let _ = fd_message::send(&self.link, step::FAILED, error.to_string().as_bytes(), &[]);
    }
}

impl Listening {
    /// Returns `None` if `descriptors` is empty.
    fn from(key: &str, note: &[u8], descriptors: Vec<OwnedFd>) -> io::Result<Option<Self>> {
        let note = String::from_utf8_lossy(note);
        let mut words = note.split(' ');
        let (mut is_foreign, mut file, mut secrets) = (false, None, Secrets::default());
        while let Some(word) = words.next() {
            match word {
                "foreign" => is_foreign = words.next() == Some("1"),
                "file" => file = identity(words.by_ref().take(4)),
                "secret" => secrets.0.extend(words.next().and_then(secret)),
                _ => {}
            }
        }
        let sockets: io::Result<Vec<_>> = descriptors.into_iter().map(socket).collect();
        let sockets = sockets?;
        let Some(first) = sockets.first() else { return Ok(None) };
        let place = place_of(first)?;
        Ok(Some(Self { key: key.to_owned(), place, sockets, is_foreign, file, secrets }))
    }
}

fn identity<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<Identity> {
    Some((
        words.next()?.parse().ok()?,
        words.next()?.parse().ok()?,
        words.next()?.parse().ok()?,
        words.next()?.parse().ok()?,
    ))
}

/// Parses 64 hexadecimal digits.
fn secret(word: &str) -> Option<[u8; 32]> {
    let mut secret = [0; 32];
    if word.len() != 2 * secret.len() {
        return None;
    }
    for (at, byte) in secret.iter_mut().enumerate() {
        *byte = u8::from_str_radix(word.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(secret)
}

fn socket(descriptor: OwnedFd) -> io::Result<Socket> {
    Ok(match socket_domain(&descriptor)? {
        AddressFamily::UNIX => Socket::Unix(UnixListener::from(descriptor)),
        _ => Socket::Tcp(TcpListener::from(descriptor)),
    })
}

fn place_of(socket: &Socket) -> io::Result<Place> {
    Ok(match socket {
        Socket::Tcp(listener) => Place::Tcp(listener.local_addr()?),
        Socket::Unix(listener) => {
            Place::Unix(listener.local_addr()?.as_pathname().map(Path::to_path_buf))
        }
    })
}

/// Whether an address, as written in the configuration, resolves to that place.
fn leads_to(address: &str, place: &Place) -> bool {
    match (address.strip_prefix("unix:"), place) {
        (Some(path), Place::Unix(Some(known))) => Path::new(path) == known,
        (None, Place::Tcp(known)) => {
            address.to_socket_addrs().is_ok_and(|mut all| all.any(|one| one == *known))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heir(keys: &[&str]) -> (Heir, Vec<Place>) {
        let inherited = keys.iter().map(|key| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let one = Listening::from(key, b"foreign 0", vec![listener.into()]);
            one.expect("a listener").expect("one socket")
        });
        let (link, _) = UnixStream::pair().expect("free descriptors");
        let inherited: Vec<_> = inherited.collect();
        let places = inherited.iter().map(|one| one.place.clone()).collect();
        (Heir { link, inherited, own: Vec::new() }, places)
    }

    fn taken(heir: &mut Heir, key: &str, address: Option<&str>) -> Vec<Place> {
        let place = |taken: Inherited| place_of(&taken.sockets[0]).expect("it is bound");
        heir.take(key, address).into_iter().map(place).collect()
    }

    fn text(place: &Place) -> String {
        let Place::Tcp(address) = place else { panic!("{place:?} has no address") };
        address.to_string()
    }

    #[test]
    fn an_address_is_known_by_its_words_and_else_by_where_it_leads() {
        let (mut heir, places) = heir(&["address localhost:1", "address 127.0.0.1:0"]);
        let address = "127.0.0.1:0";
        assert_eq!(taken(&mut heir, "address 127.0.0.1:0", Some(address)), places[1..]);
        assert!(taken(&mut heir, "address 127.0.0.1:0", Some(address)).is_empty());
        let other = text(&places[0]);
        assert_eq!(taken(&mut heir, &format!("address {other}"), Some(&other)), places[..1]);
    }

    #[test]
    fn an_address_that_is_named_twice_leads_to_one_place_each_time() {
        let (mut heir, places) = heir(&["address 127.0.0.1:0"; 2]);
        let mut both = taken(&mut heir, "address 127.0.0.1:0", Some("127.0.0.1:0"));
        assert_eq!(both.len(), 1);
        both.extend(taken(&mut heir, "address 127.0.0.1:0", Some("127.0.0.1:0")));
        assert_eq!(both, places);
    }

    #[test]
    fn sockets_of_a_service_manager_are_known_by_their_name_all_at_once() {
        let (mut heir, places) = heir(&["activated web", "activated admin", "activated web"]);
        let both = [places[0].clone(), places[2].clone()];
        assert_eq!(taken(&mut heir, "activated web", None), both);
        assert!(heir.is_used());
    }

    #[test]
    fn the_file_of_a_unix_socket_comes_with_it_and_is_shared_until_it_is_the_heirs_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).expect("a new path");
        let note = b"foreign 0 file 1 2 3 4";
        let one = Listening::from("address unix:s", note, vec![listener.into()]);
        let (mut heir, _) = heir(&[]);
        heir.inherited.extend(one.expect("a listener"));
        let taken = heir.take("address", Some(&format!("unix:{}", path.display())));
        let [taken] = &taken[..] else { panic!("{taken:?} is not one place") };
        assert_eq!(taken.file, Some((1, 2, 3, 4)));
        assert!(taken.shared.is_so());
        heir.own.iter().for_each(|shared| shared.set(false));
        assert!(!taken.shared.is_so());
    }

    #[test]
    fn a_note_of_a_newer_predecessor_is_understood_as_far_as_it_goes() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let one = Listening::from("k", b"new 5 foreign 1 more", vec![listener.into()]);
        let one = one.expect("a listener").expect("one socket");
        assert!(one.is_foreign && one.file.is_none());
        assert_eq!(one.secrets, Secrets::default());
        assert!(Listening::from("k", b"", Vec::new()).expect("no error").is_none());
    }
}
