//! The successor's side of an upgrade.

use crate::fd_message::{self, FdMessage, handover_message};
use crate::host::{HandoverError, UpgradeHost};
use crate::listener::{FileId, InheritedListener, TicketSecrets};
use peregrine_driver::Socket;
use peregrine_server::{Lifecycle, SocketSharing};
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
pub(crate) const ENV_VAR: &str = "PEREGRINE_PREDECESSOR";
const PROTOCOL_VERSION: &str = "1";

/// The timeout for each of the predecessor's messages, except [`handover_message::GO`].
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait for a message before checking for a shutdown.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The sockets that the predecessor passed to this process, and the link to it.
#[derive(Debug)]
pub struct InheritedListeners {
    link: UnixStream,
    inherited: Vec<ReceivedListener>,
    /// The sockets that belong to this process alone once it has taken over.
    taken: Vec<SocketSharing>,
}

/// The sockets of one listener.
#[derive(Debug)]
struct ReceivedListener {
    key: String,
    address: InheritedAddr,
    sockets: Vec<Socket>,
    is_external: bool,
    file_id: Option<FileId>,
    ticket_secrets: TicketSecrets,
}

/// The address that a socket listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum InheritedAddr {
    Tcp(SocketAddr),
    /// `None` for abstract names of Linux, which have no path.
    Unix(Option<PathBuf>),
}

/// The result of the first search for a predecessor, until a server takes it.
static INHERITED: Mutex<Option<Option<InheritedListeners>>> = Mutex::new(None);

/// The value of [`ENV_VAR`] for a process with this standard input.
pub(crate) fn env_value(input: &UnixStream) -> io::Result<String> {
    Ok(format!("{PROTOCOL_VERSION}:{}", socket_inode(input.as_fd().try_clone_to_owned()?)?))
}

fn socket_inode(descriptor: OwnedFd) -> io::Result<u64> {
    File::from(descriptor).metadata().map(|metadata| metadata.ino())
}

impl InheritedListeners {
    /// Returns what the predecessor passed on, if there is a predecessor and no other server of
    /// this process has taken it.
    ///
    /// # Errors
    /// There is a predecessor, but it does not pass on its sockets.
    pub fn from_env() -> Result<Option<Self>, HandoverError> {
        let mut found = INHERITED.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_none() {
            *found = Some(Self::receive().map_err(HandoverError)?);
        }
        Ok(found.as_mut().and_then(Option::take))
    }

    /// Leaves the sockets to another server of this process, because this server uses none of them.
    pub fn put_back(self) {
        *INHERITED.lock().unwrap_or_else(PoisonError::into_inner) = Some(Some(self));
    }

    /// Whether any socket was taken.
    #[must_use]
    pub fn is_used(&self) -> bool {
        !self.taken.is_empty()
    }

    fn receive() -> io::Result<Option<Self>> {
        let Ok(value) = env::var(ENV_VAR) else { return Ok(None) };
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        let Some((version, expected)) = value.split_once(':') else { return Ok(None) };
        if expected.parse().ok() != socket_inode(input.try_clone()?).ok() {
            return Ok(None);
        }
        if version != PROTOCOL_VERSION {
            let text =
                format!("protocol version {version}, expected {PROTOCOL_VERSION}: restart instead");
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let mut heir = Self { link: input.into(), inherited: Vec::new(), taken: Vec::new() };
        loop {
            let parcel = fd_message::receive(&heir.link, HANDOVER_TIMEOUT)?
                .ok_or(io::ErrorKind::TimedOut)?;
            let FdMessage { name, bytes, fds: mut descriptors } = parcel;
            match &*name {
                handover_message::END => return Ok(Some(heir)),
                // Restores the standard input, which the link had replaced.
                handover_message::INPUT => {
                    descriptors.pop().map_or(Ok(()), rustix::stdio::dup2_stdin)?;
                }
                name => {
                    if let Some(key) = name.strip_prefix(handover_message::LISTENER) {
                        heir.inherited.extend(ReceivedListener::parse(key, &bytes, descriptors)?);
                    }
                }
            }
        }
    }

    /// Takes the sockets of the listener with this key, or else of one whose address resolves to
    /// the same.
    pub fn take(&mut self, key: &str, address: Option<&str>) -> Vec<InheritedListener> {
        let mut taken: Vec<_> = self.inherited.extract_if(.., |one| one.key == key).collect();
        if let (Some(address), true) = (address, taken.is_empty()) {
            let position = self.inherited.iter().position(|one| resolves_to(address, &one.address));
            taken.extend(position.map(|position| self.inherited.remove(position)));
        }
        // An address that is listed twice, such as port 0, matches one listener each time.
        if address.is_some() && taken.len() > 1 {
            self.inherited.extend(taken.drain(1..));
        }
        taken.into_iter().map(|listener| self.hand_over(listener)).collect()
    }

    fn hand_over(&mut self, listener: ReceivedListener) -> InheritedListener {
        let ReceivedListener { sockets, is_external, file_id, ticket_secrets, .. } = listener;
        let sharing = SocketSharing::from(true);
        // An external socket always stays shared. The entry in this list is then an unrelated flag.
        self.taken.push(if is_external { SocketSharing::default() } else { sharing.clone() });
        InheritedListener { sockets, file_id, sharing, is_external, ticket_secrets }
    }

    /// Starts serving when the predecessor permits it, and waits until the predecessor has released
    /// the sockets. Does nothing if a shutdown is requested first. `check` reports failed
    /// workers.
    ///
    /// # Errors
    /// The predecessor or a worker ended before serving started.
    pub fn take_over<E: From<HandoverError>>(
        &mut self,
        host: &dyn UpgradeHost,
        mut check: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        // Not all workers are ready in this case.
        if host.lifecycle() > Lifecycle::Serving {
            return Ok(());
        }
        for one in &self.inherited {
            fd_message::send(&self.link, handover_message::UNUSED, one.key.as_bytes(), &[])
                .map_err(HandoverError)?;
        }
        fd_message::send(&self.link, handover_message::READY, &[], &[]).map_err(HandoverError)?;
        loop {
            if host.lifecycle() > Lifecycle::Serving {
                return Ok(());
            }
            check()?;
            match fd_message::receive(&self.link, POLL_INTERVAL).map_err(HandoverError)? {
                Some(FdMessage { name, .. }) if name == handover_message::GO => break,
                _ => {}
            }
        }
        // The predecessor closes the sockets that this process does not use.
        self.inherited.clear();
        host.start_serving();
        // From here on this process serves, even if the predecessor fails.
        let _ = fd_message::send(&self.link, handover_message::SERVING, &[], &[]);
        while let Ok(Some(FdMessage { name, .. })) =
            fd_message::receive(&self.link, HANDOVER_TIMEOUT)
        {
            match &*name {
                handover_message::RELOAD => host.run_reload(),
                handover_message::RELEASED => break,
                _ => {}
            }
        }
        self.taken.iter().for_each(|shared| shared.set(false));
        Ok(())
    }

    /// Reports to the predecessor why this process does not take over.
    pub fn report_failure(&self, error: &dyn fmt::Display) {
        // An error means that the predecessor has ended and needs no report.
        let _ = fd_message::send(
            &self.link,
            handover_message::FAILED,
            error.to_string().as_bytes(),
            &[],
        );
    }
}

impl ReceivedListener {
    /// Returns `None` if `descriptors` is empty.
    fn parse(key: &str, note: &[u8], descriptors: Vec<OwnedFd>) -> io::Result<Option<Self>> {
        let note = String::from_utf8_lossy(note);
        let mut words = note.split(' ');
        let (mut is_foreign, mut file, mut secrets) = (false, None, TicketSecrets::default());
        while let Some(word) = words.next() {
            match word {
                "foreign" => is_foreign = words.next() == Some("1"),
                "file" => file = parse_file_id(words.by_ref().take(4)),
                "secret" => secrets.0.extend(words.next().and_then(parse_secret)),
                _ => {}
            }
        }
        let sockets: io::Result<Vec<_>> = descriptors.into_iter().map(socket_from_fd).collect();
        let sockets = sockets?;
        let Some(first) = sockets.first() else { return Ok(None) };
        let place = place_of(first)?;
        Ok(Some(Self {
            key: key.to_owned(),
            address: place,
            sockets,
            is_external: is_foreign,
            file_id: file,
            ticket_secrets: secrets,
        }))
    }
}

fn parse_file_id<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<FileId> {
    Some((
        words.next()?.parse().ok()?,
        words.next()?.parse().ok()?,
        words.next()?.parse().ok()?,
        words.next()?.parse().ok()?,
    ))
}

/// Parses 64 hexadecimal digits.
fn parse_secret(word: &str) -> Option<[u8; 32]> {
    let mut secret = [0; 32];
    if word.len() != 2 * secret.len() {
        return None;
    }
    for (at, byte) in secret.iter_mut().enumerate() {
        *byte = u8::from_str_radix(word.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(secret)
}

fn socket_from_fd(descriptor: OwnedFd) -> io::Result<Socket> {
    Ok(match socket_domain(&descriptor)? {
        AddressFamily::UNIX => Socket::Unix(UnixListener::from(descriptor)),
        _ => Socket::Tcp(TcpListener::from(descriptor)),
    })
}

fn place_of(socket: &Socket) -> io::Result<InheritedAddr> {
    Ok(match socket {
        Socket::Tcp(listener) => InheritedAddr::Tcp(listener.local_addr()?),
        Socket::Unix(listener) => {
            InheritedAddr::Unix(listener.local_addr()?.as_pathname().map(Path::to_path_buf))
        }
    })
}

/// Whether an address, as written in the configuration, resolves to that place.
fn resolves_to(address: &str, place: &InheritedAddr) -> bool {
    match (address.strip_prefix("unix:"), place) {
        (Some(path), InheritedAddr::Unix(Some(known))) => Path::new(path) == known,
        (None, InheritedAddr::Tcp(known)) => {
            address.to_socket_addrs().is_ok_and(|mut all| all.any(|one| one == *known))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heir(keys: &[&str]) -> (InheritedListeners, Vec<InheritedAddr>) {
        let inherited = keys.iter().map(|key| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let one = ReceivedListener::parse(key, b"foreign 0", vec![listener.into()]);
            one.expect("a listener").expect("one socket")
        });
        let (link, _) = UnixStream::pair().expect("free descriptors");
        let inherited: Vec<_> = inherited.collect();
        let places = inherited.iter().map(|one| one.address.clone()).collect();
        (InheritedListeners { link, inherited, taken: Vec::new() }, places)
    }

    fn taken(
        heir: &mut InheritedListeners,
        key: &str,
        address: Option<&str>,
    ) -> Vec<InheritedAddr> {
        let place = |taken: InheritedListener| place_of(&taken.sockets[0]).expect("it is bound");
        heir.take(key, address).into_iter().map(place).collect()
    }

    fn text(place: &InheritedAddr) -> String {
        let InheritedAddr::Tcp(address) = place else { panic!("{place:?} has no address") };
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
        let one = ReceivedListener::parse("address unix:s", note, vec![listener.into()]);
        let (mut heir, _) = heir(&[]);
        heir.inherited.extend(one.expect("a listener"));
        let taken = heir.take("address", Some(&format!("unix:{}", path.display())));
        let [taken] = &taken[..] else { panic!("{taken:?} is not one place") };
        assert_eq!(taken.file_id, Some((1, 2, 3, 4)));
        assert!(taken.sharing.is_shared());
        heir.taken.iter().for_each(|shared| shared.set(false));
        assert!(!taken.sharing.is_shared());
    }

    #[test]
    fn a_note_of_a_newer_predecessor_is_understood_as_far_as_it_goes() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let one = ReceivedListener::parse("k", b"new 5 foreign 1 more", vec![listener.into()]);
        let one = one.expect("a listener").expect("one socket");
        assert!(one.is_external && one.file_id.is_none());
        assert_eq!(one.ticket_secrets, TicketSecrets::default());
        assert!(ReceivedListener::parse("k", b"", Vec::new()).expect("no error").is_none());
    }
}
