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
    /// The flags that mark the taken sockets as shared with the predecessor. They are cleared when
    /// this process has taken over.
    taken: Vec<SocketSharing>,
}

/// The sockets of one of the predecessor's listeners.
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

/// The result of the first search for a predecessor; `None` before it. The sockets stay here until
/// a server takes them, which leaves `Some(None)`.
static INHERITED: Mutex<Option<Option<InheritedListeners>>> = Mutex::new(None);

/// Returns the value of [`ENV_VAR`] for a process with this standard input.
pub(crate) fn env_value(input: &UnixStream) -> io::Result<String> {
    Ok(format!("{PROTOCOL_VERSION}:{}", socket_inode(input.as_fd().try_clone_to_owned()?)?))
}

fn socket_inode(fd: OwnedFd) -> io::Result<u64> {
    File::from(fd).metadata().map(|metadata| metadata.ino())
}

impl InheritedListeners {
    /// Returns the sockets from the predecessor, if there is a predecessor and no other server of
    /// this process has taken them.
    ///
    /// # Errors
    /// There is a predecessor, but it does not pass on its sockets.
    pub fn from_env() -> Result<Option<Self>, HandoverError> {
        let mut inherited = INHERITED.lock().unwrap_or_else(PoisonError::into_inner);
        if inherited.is_none() {
            *inherited = Some(Self::receive().map_err(HandoverError)?);
        }
        Ok(inherited.as_mut().and_then(Option::take))
    }

    /// Puts the sockets back for another server of this process, because this server uses none.
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
        let Some((version, expected_inode)) = value.split_once(':') else { return Ok(None) };
        if expected_inode.parse().ok() != socket_inode(input.try_clone()?).ok() {
            return Ok(None);
        }
        if version != PROTOCOL_VERSION {
            let text =
                format!("protocol version {version}, expected {PROTOCOL_VERSION}: restart instead");
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let mut listeners = Self { link: input.into(), inherited: Vec::new(), taken: Vec::new() };
        loop {
            let message = fd_message::receive(&listeners.link, HANDOVER_TIMEOUT)?
                .ok_or(io::ErrorKind::TimedOut)?;
            let FdMessage { name, bytes, mut fds } = message;
            match &*name {
                handover_message::END => return Ok(Some(listeners)),
                // Restores the standard input, which the link had replaced.
                handover_message::INPUT => {
                    fds.pop().map_or(Ok(()), rustix::stdio::dup2_stdin)?;
                }
                name => {
                    if let Some(key) = name.strip_prefix(handover_message::LISTENER) {
                        listeners.inherited.extend(ReceivedListener::parse(key, &bytes, fds)?);
                    }
                }
            }
        }
    }

    /// Takes the sockets of the listener with this key. If there is none, takes those of a listener
    /// whose address is one that `address` resolves to.
    pub fn take(&mut self, key: &str, address: Option<&str>) -> Vec<InheritedListener> {
        let mut taken: Vec<_> =
            self.inherited.extract_if(.., |listener| listener.key == key).collect();
        if let (Some(address), true) = (address, taken.is_empty()) {
            let position =
                self.inherited.iter().position(|listener| resolves_to(address, &listener.address));
            taken.extend(position.map(|position| self.inherited.remove(position)));
        }
        // An address that is listed twice, such as port 0, matches one listener each time.
        if address.is_some() && taken.len() > 1 {
            self.inherited.extend(taken.drain(1..));
        }
        taken.into_iter().map(|listener| self.share_until_take_over(listener)).collect()
    }

    /// Makes the sockets available, marked as shared with the predecessor until `take_over`.
    fn share_until_take_over(&mut self, listener: ReceivedListener) -> InheritedListener {
        let ReceivedListener { sockets, is_external, file_id, ticket_secrets, .. } = listener;
        let sharing = SocketSharing::from(true);
        // An external socket always stays shared, so `take_over` must not clear its flag. The flag
        // added here instead is unused, but makes `is_used` return true.
        self.taken.push(if is_external { SocketSharing::default() } else { sharing.clone() });
        InheritedListener { sockets, file_id, sharing, is_external, ticket_secrets }
    }

    /// Starts serving when the predecessor permits it, and waits until the predecessor has released
    /// the sockets. If a shutdown is requested first, returns without serving. `check` reports
    /// failed workers.
    ///
    /// # Errors
    /// The predecessor or a worker ended before serving started.
    pub fn take_over<E: From<HandoverError>>(
        &mut self,
        host: &dyn UpgradeHost,
        mut check: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        if host.lifecycle() > Lifecycle::Serving {
            // A shutdown was requested, so not all workers are ready.
            return Ok(());
        }
        for listener in &self.inherited {
            fd_message::send(&self.link, handover_message::UNUSED, listener.key.as_bytes(), &[])
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
        // From here on, this process serves, even if the predecessor fails.
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
        self.taken.iter().for_each(|sharing| sharing.set(false));
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
    /// Parses a message that `upgrade::encode_listener` wrote. Returns `None` if `fds` is empty.
    fn parse(key: &str, encoded: &[u8], fds: Vec<OwnedFd>) -> io::Result<Option<Self>> {
        let encoded = String::from_utf8_lossy(encoded);
        let mut words = encoded.split(' ');
        let (mut is_external, mut file_id, mut ticket_secrets) =
            (false, None, TicketSecrets::default());
        while let Some(word) = words.next() {
            match word {
                "foreign" => is_external = words.next() == Some("1"),
                "file" => file_id = parse_file_id(words.by_ref().take(4)),
                "secret" => ticket_secrets.0.extend(words.next().and_then(parse_secret)),
                _ => {}
            }
        }
        let sockets: io::Result<Vec<_>> = fds.into_iter().map(socket_from_fd).collect();
        let sockets = sockets?;
        let Some(first) = sockets.first() else { return Ok(None) };
        let address = local_addr_of(first)?;
        Ok(Some(Self {
            key: key.to_owned(),
            address,
            sockets,
            is_external,
            file_id,
            ticket_secrets,
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
    for (index, byte) in secret.iter_mut().enumerate() {
        *byte = u8::from_str_radix(word.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(secret)
}

fn socket_from_fd(fd: OwnedFd) -> io::Result<Socket> {
    Ok(match socket_domain(&fd)? {
        AddressFamily::UNIX => Socket::Unix(UnixListener::from(fd)),
        _ => Socket::Tcp(TcpListener::from(fd)),
    })
}

fn local_addr_of(socket: &Socket) -> io::Result<InheritedAddr> {
    Ok(match socket {
        Socket::Tcp(listener) => InheritedAddr::Tcp(listener.local_addr()?),
        Socket::Unix(listener) => {
            InheritedAddr::Unix(listener.local_addr()?.as_pathname().map(Path::to_path_buf))
        }
    })
}

/// Whether an address, as written in the configuration, resolves to `listen_addr`.
fn resolves_to(address: &str, listen_addr: &InheritedAddr) -> bool {
    match (address.strip_prefix("unix:"), listen_addr) {
        (Some(path), InheritedAddr::Unix(Some(listen_path))) => Path::new(path) == listen_path,
        (None, InheritedAddr::Tcp(tcp_addr)) => address
            .to_socket_addrs()
            .is_ok_and(|mut addresses| addresses.any(|resolved| resolved == *tcp_addr)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inherit_keys(keys: &[&str]) -> (InheritedListeners, Vec<InheritedAddr>) {
        let inherited = keys.iter().map(|key| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("port 0 binds to a free port");
            let listener = ReceivedListener::parse(key, b"foreign 0", vec![listener.into()]);
            listener.expect("the encoding is valid").expect("there is a socket")
        });
        let (link, _) = UnixStream::pair().expect("there are free descriptors");
        let inherited: Vec<_> = inherited.collect();
        let addresses = inherited.iter().map(|listener| listener.address.clone()).collect();
        (InheritedListeners { link, inherited, taken: Vec::new() }, addresses)
    }

    fn take_addresses(
        listeners: &mut InheritedListeners,
        key: &str,
        address: Option<&str>,
    ) -> Vec<InheritedAddr> {
        let local_addr = |listener: InheritedListener| {
            local_addr_of(&listener.sockets[0]).expect("the socket is bound")
        };
        listeners.take(key, address).into_iter().map(local_addr).collect()
    }

    fn address_text(address: &InheritedAddr) -> String {
        let InheritedAddr::Tcp(tcp_addr) = address else {
            panic!("{address:?} is not a TCP address")
        };
        tcp_addr.to_string()
    }

    #[test]
    fn take_matches_the_key_first_and_then_the_resolved_address() {
        let (mut listeners, addresses) =
            inherit_keys(&["address localhost:1", "address 127.0.0.1:0"]);
        let address = "127.0.0.1:0";
        assert_eq!(
            take_addresses(&mut listeners, "address 127.0.0.1:0", Some(address)),
            addresses[1..]
        );
        assert!(take_addresses(&mut listeners, "address 127.0.0.1:0", Some(address)).is_empty());
        let other = address_text(&addresses[0]);
        assert_eq!(
            take_addresses(&mut listeners, &format!("address {other}"), Some(&other)),
            addresses[..1]
        );
    }

    #[test]
    fn take_returns_one_listener_per_call_for_a_repeated_address() {
        let (mut listeners, addresses) = inherit_keys(&["address 127.0.0.1:0"; 2]);
        let mut taken = take_addresses(&mut listeners, "address 127.0.0.1:0", Some("127.0.0.1:0"));
        assert_eq!(taken.len(), 1);
        taken.extend(take_addresses(&mut listeners, "address 127.0.0.1:0", Some("127.0.0.1:0")));
        assert_eq!(taken, addresses);
    }

    #[test]
    fn take_returns_all_activated_sockets_of_a_name() {
        let (mut listeners, addresses) =
            inherit_keys(&["activated web", "activated admin", "activated web"]);
        let expected = [addresses[0].clone(), addresses[2].clone()];
        assert_eq!(take_addresses(&mut listeners, "activated web", None), expected);
        assert!(listeners.is_used());
    }

    #[test]
    fn a_unix_socket_keeps_its_file_id_and_is_shared_until_take_over() {
        let dir = tempfile::tempdir().expect("the temporary directory is writable");
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).expect("the path is unused");
        let encoded = b"foreign 0 file 1 2 3 4";
        let parsed = ReceivedListener::parse("address unix:s", encoded, vec![listener.into()]);
        let (mut listeners, _) = inherit_keys(&[]);
        listeners.inherited.extend(parsed.expect("the encoding is valid"));
        let taken = listeners.take("address", Some(&format!("unix:{}", path.display())));
        let [taken] = &taken[..] else { panic!("{taken:?} is not one listener") };
        assert_eq!(taken.file_id, Some((1, 2, 3, 4)));
        assert!(taken.sharing.is_shared());
        listeners.taken.iter().for_each(|sharing| sharing.set(false));
        assert!(!taken.sharing.is_shared());
    }

    #[test]
    fn parse_ignores_unknown_properties_of_a_newer_predecessor() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("port 0 binds to a free port");
        let parsed = ReceivedListener::parse("k", b"new 5 foreign 1 more", vec![listener.into()]);
        let parsed = parsed.expect("the encoding is valid").expect("there is a socket");
        assert!(parsed.is_external && parsed.file_id.is_none());
        assert_eq!(parsed.ticket_secrets, TicketSecrets::default());
        assert!(
            ReceivedListener::parse("k", b"", Vec::new()).expect("the encoding is valid").is_none()
        );
    }
}
