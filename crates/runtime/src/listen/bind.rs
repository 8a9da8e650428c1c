//! Binds listen addresses, and distributes their sockets among the workers.

use crate::error::Error;
use crate::listen::socket_file::SocketFilePermissions;
use peregrine_driver::{Socket, SocketOptions};
#[cfg(unix)]
use peregrine_restart::internal::FileId;
use peregrine_restart::internal::{InheritedListener, TicketSecrets};
use peregrine_server::SocketSharing;
use socket2::{Domain, Protocol, SockAddr, Type};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};

/// Whether the kernel distributes connections evenly among sockets with `SO_REUSEPORT`. On macOS
/// and the BSDs the last socket gets all connections, and Windows has no such option. On these
/// systems, all workers accept from one queue.
const REUSEPORT_BALANCES: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// The address that a server listens on.
#[doc(alias = "SocketAddr")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddr {
    /// A TCP socket with this address.
    Tcp(SocketAddr),
    /// A Unix domain socket at this path.
    Unix(PathBuf),
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The sockets of one listen address. Each has its own accept queue in the kernel. There may be
/// more or fewer sockets than workers.
#[derive(Debug)]
pub(crate) struct BoundSockets {
    pub(crate) address: ListenAddr,
    pub(crate) sockets: Vec<Socket>,
    /// The file of a Unix domain socket, removed when this value is dropped.
    pub(crate) socket_file: Option<UnixSocketFile>,
    /// Whether another process also has the sockets.
    pub(crate) sharing: SocketSharing,
    /// Whether the application or a service manager created the sockets and may keep them open.
    pub(crate) is_external: bool,
    /// The secrets with which the previous process encrypted session tickets.
    pub(crate) ticket_secrets: TicketSecrets,
}

impl BoundSockets {
    /// Wraps sockets that this server has bound, and that no other process has yet.
    fn owned(address: ListenAddr, sockets: Vec<Socket>) -> Self {
        Self {
            address,
            sockets,
            socket_file: None,
            sharing: SocketSharing::default(),
            is_external: false,
            ticket_secrets: TicketSecrets::default(),
        }
    }

    /// Wraps the sockets that the previous process passed on.
    pub(crate) fn inherited(listener: InheritedListener) -> io::Result<Self> {
        let first = listener.sockets.first().ok_or(io::ErrorKind::NotFound)?;
        let address = local_addr(first)?;
        #[cfg(unix)]
        let socket_file = match (&address, listener.file_id) {
            (ListenAddr::Unix(path), Some(file_id)) => Some(UnixSocketFile {
                path: path.clone(),
                file_id,
                sharing: listener.sharing.clone(),
            }),
            _ => None,
        };
        #[cfg(not(unix))]
        let socket_file = None;
        let InheritedListener { sockets, sharing, is_external, ticket_secrets, .. } = listener;
        Ok(Self { address, sockets, socket_file, sharing, is_external, ticket_secrets })
    }

    /// Duplicates the sockets and distributes them among the workers. Returns one list for each
    /// worker. Each list has at least one socket, and each socket is in at least one list.
    pub(crate) fn distribute(&self, workers: usize) -> io::Result<Vec<Vec<Socket>>> {
        // Each socket has one queue. If the queues cannot be distributed evenly, all workers accept
        // from all of them.
        let divides_evenly = self.sockets.len().is_multiple_of(workers);
        let is_assigned = |worker, queue: usize| !divides_evenly || queue % workers == worker;
        let clones_for = |worker| {
            let queues = self.sockets.iter().enumerate();
            let assigned = queues.filter(move |(queue, _)| is_assigned(worker, *queue));
            assigned.map(|(_, socket)| try_clone(socket)).collect()
        };
        (0..workers).map(clones_for).collect()
    }
}

/// The file of a Unix domain socket. Dropping this value removes the file, unless another file has
/// replaced it or another process also has the socket.
#[derive(Debug)]
pub(crate) struct UnixSocketFile {
    #[cfg(unix)]
    pub(crate) path: PathBuf,
    #[cfg(unix)]
    pub(crate) file_id: FileId,
    #[cfg(unix)]
    pub(crate) sharing: SocketSharing,
}

/// The files of Unix domain sockets, which are removed when this value is dropped.
pub(crate) type UnixSocketFiles = Vec<UnixSocketFile>;

#[cfg(unix)]
impl UnixSocketFile {
    /// Identifies the file of the socket that was just bound to `path`.
    fn new(path: &Path, sharing: SocketSharing) -> io::Result<Self> {
        let file_id = file_id(&std::fs::symlink_metadata(path)?);
        Ok(Self { path: path.to_path_buf(), file_id, sharing })
    }
}

#[cfg(unix)]
fn file_id(metadata: &std::fs::Metadata) -> FileId {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
}

impl Drop for UnixSocketFile {
    fn drop(&mut self) {
        #[cfg(unix)]
        if !self.sharing.is_shared()
            && std::fs::symlink_metadata(&self.path)
                .is_ok_and(|metadata| file_id(&metadata) == self.file_id)
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens at `address`, with one socket per worker where that is possible.
pub(crate) fn bind(
    address: &str,
    permissions: &SocketFilePermissions,
    workers: usize,
    options: &SocketOptions,
) -> Result<BoundSockets, Error> {
    let bind_error = |cause| Error::Bind { address: address.to_owned(), cause };
    if let Some(path) = address.strip_prefix("unix:") {
        return bind_unix(Path::new(path), permissions, options);
    }
    let candidates = address
        .to_socket_addrs()
        .map_err(|cause| Error::InvalidAddress { address: address.to_owned(), cause })?;
    let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in candidates {
        match bind_tcp(candidate, workers, options) {
            Ok(bound) => return Ok(bound),
            Err(error) => last_error = error,
        }
    }
    Err(bind_error(last_error))
}

fn bind_tcp(
    address: SocketAddr,
    workers: usize,
    options: &SocketOptions,
) -> io::Result<BoundSockets> {
    // All workers share one socket where the kernel does not balance several, or if the options
    // request it.
    let socket_count = if REUSEPORT_BALANCES && !options.shared_accept_queue { workers } else { 1 };
    // A socket with SO_REUSEPORT can be bound to a port on which another process of this user
    // already listens with that option, and would silently take half of its connections. So a first
    // socket is bound without the option, which fails if the port is in use. It is closed before
    // the actual sockets are bound. If the kernel chooses the port, the port is free. The first
    // socket then has the option and stays open, so that no other process can take the port before
    // the other sockets are bound.
    let is_any_port = address.port() == 0;
    let first = bind_socket(address, is_any_port && socket_count > 1, options)?;
    let address = first.local_addr()?;
    if socket_count == 1 {
        return Ok(BoundSockets::owned(ListenAddr::Tcp(address), vec![Socket::Tcp(first)]));
    }
    let mut sockets = Vec::with_capacity(socket_count);
    if is_any_port {
        sockets.push(Socket::Tcp(first));
    } else {
        drop(first);
    }
    while sockets.len() < socket_count {
        sockets.push(Socket::Tcp(bind_socket(address, true, options)?));
    }
    Ok(BoundSockets::owned(ListenAddr::Tcp(address), sockets))
}

fn bind_socket(
    address: SocketAddr,
    reuse_port: bool,
    options: &SocketOptions,
) -> io::Result<TcpListener> {
    let kind = Type::STREAM;
    let socket = socket2::Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    if reuse_port {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        socket.set_reuse_port(true)?;
    }
    if address.is_ipv6() {
        // By default `[::]` also accepts IPv4 connections, as in other servers.
        socket.set_only_v6(options.ipv6_only)?;
    }
    set_buffers(&socket, options)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(backlog(options))?;
    // A worker accepts until the queue is empty, and the last attempt must not block.
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Sets the buffer sizes, which connections inherit from their listening socket. They must be set
/// before `listen`, because the kernel announces the TCP window scale during the handshake.
fn set_buffers(socket: &socket2::Socket, options: &SocketOptions) -> io::Result<()> {
    if let Some(bytes) = options.receive_buffer_bytes {
        socket.set_recv_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.send_buffer_bytes {
        socket.set_send_buffer_size(bytes)?;
    }
    Ok(())
}

fn backlog(options: &SocketOptions) -> i32 {
    i32::try_from(options.backlog).unwrap_or(i32::MAX)
}

/// Binds one socket, which all workers share because Unix domain sockets do not support
/// SO_REUSEPORT.
#[cfg(unix)]
fn bind_unix(
    path: &Path,
    permissions: &SocketFilePermissions,
    options: &SocketOptions,
) -> Result<BoundSockets, Error> {
    use std::os::unix::net::UnixListener;
    let bind_error = |cause| Error::Bind { address: format!("unix:{}", path.display()), cause };
    let permissions = permissions.resolve(path)?;
    remove_stale_socket(path).map_err(bind_error)?;
    // No buffer sizes are set: connections of Unix domain sockets do not inherit them.
    let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None).map_err(bind_error)?;
    let address = SockAddr::unix(path).map_err(bind_error)?;
    socket.bind(&address).map_err(bind_error)?;
    let sharing = SocketSharing::default();
    // From here on, dropping `file` on an error removes the file.
    let file = UnixSocketFile::new(path, sharing.clone()).map_err(bind_error)?;
    // This must precede `listen`, or a peer could connect before the file's mode excludes it.
    permissions.apply(path)?;
    socket.listen(backlog(options)).map_err(bind_error)?;
    socket.set_nonblocking(true).map_err(bind_error)?;
    let sockets = vec![Socket::Unix(UnixListener::from(socket))];
    let bound = BoundSockets::owned(ListenAddr::Unix(path.to_path_buf()), sockets);
    Ok(BoundSockets { socket_file: Some(file), sharing, ..bound })
}

/// Removes the socket file that a killed server may have left at `path`. Fails if the file is in
/// use or is not a socket.
#[cfg(unix)]
fn remove_stale_socket(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        // A connection to a file of another type is also refused, so the type is checked first:
        // only sockets may be removed.
        let is_stale = metadata.file_type().is_socket() && is_stale(path)?;
        if !is_stale {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// Whether no process listens at `path`. Does not block if a process listens but does not accept.
#[cfg(unix)]
fn is_stale(path: &Path) -> io::Result<bool> {
    let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    let connected = socket.connect(&SockAddr::unix(path)?);
    Ok(connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused))
}

#[cfg(not(unix))]
fn bind_unix(
    path: &Path,
    _: &SocketFilePermissions,
    _: &SocketOptions,
) -> Result<BoundSockets, Error> {
    let cause = io::Error::new(io::ErrorKind::Unsupported, "this system has no Unix sockets");
    Err(Error::Bind { address: format!("unix:{}", path.display()), cause })
}

/// Wraps a listener that was bound outside of this server, and may remain in use there.
pub(crate) fn from_socket(listener: Socket) -> Result<BoundSockets, Error> {
    let bind_error =
        |cause| Error::Bind { address: "(a listener bound elsewhere)".to_owned(), cause };
    // On a blocking socket, a driver may accept connections before the server requests them. Such a
    // connection would be lost when the server stops listening.
    set_nonblocking(&listener).map_err(bind_error)?;
    let address = local_addr(&listener).map_err(bind_error)?;
    let is_shared = true;
    let sharing = SocketSharing::from(is_shared);
    Ok(BoundSockets { sharing, is_external: true, ..BoundSockets::owned(address, vec![listener]) })
}

fn set_nonblocking(listener: &Socket) -> io::Result<()> {
    match listener {
        Socket::Tcp(listener) => listener.set_nonblocking(true),
        #[cfg(unix)]
        Socket::Unix(listener) => listener.set_nonblocking(true),
    }
}

pub(crate) fn local_addr(listener: &Socket) -> io::Result<ListenAddr> {
    Ok(match listener {
        Socket::Tcp(listener) => ListenAddr::Tcp(listener.local_addr()?),
        #[cfg(unix)]
        Socket::Unix(listener) => {
            let path = listener.local_addr()?.as_pathname().map(Path::to_path_buf);
            // Sockets in Linux's abstract namespace have no path.
            ListenAddr::Unix(path.unwrap_or_else(|| PathBuf::from("(unnamed)")))
        }
    })
}

pub(crate) fn try_clone(listener: &Socket) -> io::Result<Socket> {
    match listener {
        Socket::Tcp(listener) => listener.try_clone().map(Socket::Tcp),
        #[cfg(unix)]
        Socket::Unix(listener) => listener.try_clone().map(Socket::Unix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(address: &str, workers: usize) -> Result<BoundSockets, Error> {
        super::bind(address, &SocketFilePermissions::default(), workers, &SocketOptions::default())
    }

    #[test]
    fn concurrent_binds_find_free_ports() {
        let bind_many = || (0..200).try_for_each(|_| bind("127.0.0.1:0", 3).map(drop));
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(bind_many)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("binding does not panic"))
                .collect::<Vec<_>>()
        });
        for result in results {
            assert!(result.is_ok(), "{}", result.expect_err("an error"));
        }
    }

    #[test]
    fn binding_a_port_in_use_fails_although_workers_share_ports() {
        let taken = bind("127.0.0.1:0", 2).expect("any free port");
        let error = bind(&taken.address.to_string(), 2).expect_err("the port is taken");
        let text = error.to_string();
        assert!(text.contains("another process listens there"), "{text}");
    }

    #[test]
    fn all_workers_listen_on_the_port_of_the_first_socket() {
        let bound = bind("127.0.0.1:0", 3).expect("any free port");
        for socket in &bound.sockets {
            assert_eq!(local_addr(socket).expect("bound"), bound.address);
        }
    }

    #[test]
    fn all_workers_share_a_single_accept_queue() {
        let options = SocketOptions { shared_accept_queue: true, ..SocketOptions::default() };
        let bound = super::bind("127.0.0.1:0", &SocketFilePermissions::default(), 3, &options)
            .expect("any free port");
        assert_eq!(bound.sockets.len(), 1);
        let distributed = bound.distribute(3).expect("descriptors are available");
        assert!(distributed.iter().all(|sockets| sockets.len() == 1), "{distributed:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn sockets_have_the_requested_options() {
        let options = SocketOptions {
            receive_buffer_bytes: Some(20_000),
            send_buffer_bytes: Some(30_000),
            ipv6_only: true,
            ..SocketOptions::default()
        };
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(bound) = super::bind(address, &SocketFilePermissions::default(), 2, &options)
            else {
                // This machine may not have IPv6.
                assert_eq!(address, "[::1]:0");
                continue;
            };
            for socket in &bound.sockets {
                let Socket::Tcp(listener) = socket else { panic!("{socket:?} is not TCP") };
                let socket = socket2::SockRef::from(listener);
                // Linux doubles the requested sizes.
                assert_eq!(socket.recv_buffer_size().expect("a socket"), 40_000, "{address}");
                assert_eq!(socket.send_buffer_size().expect("a socket"), 60_000, "{address}");
                if address.starts_with('[') {
                    assert!(socket.only_v6().expect("an IPv6 socket"));
                }
            }
        }
    }

    #[test]
    fn an_invalid_address_is_rejected_with_an_example() {
        let text = bind("no port", 1).expect_err("not an address").to_string();
        assert!(text.contains("`no port`") && text.contains("127.0.0.1:8080"), "{text}");
    }

    #[test]
    fn every_queue_has_a_worker_and_every_worker_has_a_queue() {
        for (queues, workers, expected) in [
            (1, 1, vec![vec![0]]),
            (3, 3, vec![vec![0], vec![1], vec![2]]),
            (1, 3, vec![vec![0]; 3]),
            (2, 3, vec![vec![0, 1]; 3]),
            (4, 2, vec![vec![0, 2], vec![1, 3]]),
            (3, 2, vec![vec![0, 1, 2]; 2]),
            (3, 1, vec![vec![0, 1, 2]]),
        ] {
            let socket = |_| Socket::Tcp(TcpListener::bind("127.0.0.1:0").expect("a free port"));
            let sockets: Vec<_> = (0..queues).map(socket).collect();
            let addresses: Vec<_> =
                sockets.iter().map(|socket| local_addr(socket).expect("bound")).collect();
            let bound = BoundSockets::owned(addresses[0].clone(), sockets);
            let queue_index = |socket| {
                let address = local_addr(&socket).expect("bound");
                addresses
                    .iter()
                    .position(|candidate| *candidate == address)
                    .expect("a known address")
            };
            let distributed =
                bound.distribute(workers).expect("descriptors are available").into_iter();
            let distributed =
                distributed.map(|sockets| sockets.into_iter().map(queue_index).collect::<Vec<_>>());
            assert_eq!(distributed.collect::<Vec<_>>(), expected, "{queues} for {workers}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_stale_unix_socket_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let address = format!("unix:{}", directory.path().join("s").display());
        let live = bind(&address, 1).expect("free");
        assert!(bind(&address, 1).is_err());
        let stale = BoundSockets { socket_file: None, ..live };
        drop(stale.sockets);
        bind(&address, 1).expect("the previous listener is closed");
    }

    #[cfg(unix)]
    #[test]
    fn a_unix_socket_with_a_full_backlog_is_in_use() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("s");
        let address = SockAddr::unix(&path).expect("a short path");
        let socket = || {
            let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
            socket.set_nonblocking(true).expect("any socket can be non-blocking");
            socket
        };
        let listener = socket();
        listener.bind(&address).expect("a new path");
        listener.listen(1).expect("a bound socket");
        let pending: Vec<_> = std::iter::repeat_with(socket)
            .take_while(|socket| socket.connect(&address).is_ok())
            .take(1000)
            .collect();
        assert!(pending.len() < 1000, "the backlog is full");
        let (sender, result) = std::sync::mpsc::channel();
        let address = format!("unix:{}", path.display());
        std::thread::spawn(move || sender.send(bind(&address, 1).is_err()));
        let timeout = std::time::Duration::from_secs(20);
        assert_eq!(result.recv_timeout(timeout), Ok(true), "fails without blocking");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_is_not_a_socket_is_never_removed() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("precious");
        std::fs::write(&path, "data").expect("a new file");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("a new link");
        for path in [&path, &link, &directory.path().to_path_buf()] {
            let error = bind(&format!("unix:{}", path.display()), 2).expect_err("path is taken");
            assert!(error.to_string().contains("is not a socket"), "{error}");
        }
        assert_eq!(std::fs::read_to_string(&link).expect("the file is unchanged"), "data");
    }

    #[cfg(unix)]
    #[test]
    fn the_socket_file_of_a_successor_is_not_removed() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("s");
        let address = format!("unix:{}", path.display());
        let mut old = bind(&address, 1).expect("free");
        old.sockets.clear();
        // Longer than the resolution of file times.
        std::thread::sleep(std::time::Duration::from_millis(30));
        let successor = bind(&address, 1).expect("the previous listener is closed");
        drop(old);
        assert!(path.exists());
        drop(successor);
        assert!(!path.exists());
    }

    #[cfg(unix)]
    #[test]
    fn the_file_of_an_inherited_socket_remains_while_the_predecessor_has_it() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("s");
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("a new path");
        let file_id = file_id(&std::fs::symlink_metadata(&path).expect("the file exists"));
        for is_exclusive in [false, true] {
            let socket = Socket::Unix(listener.try_clone().expect("free descriptors"));
            let sharing = SocketSharing::from(!is_exclusive);
            let (sockets, ticket_secrets) = (vec![socket], TicketSecrets::default());
            let inherited = InheritedListener {
                sockets,
                file_id: Some(file_id),
                sharing,
                is_external: false,
                ticket_secrets,
            };
            drop(BoundSockets::inherited(inherited).expect("a bound socket"));
            assert_eq!(path.exists(), !is_exclusive);
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_socket_file_has_the_requested_mode_owner_and_group() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("s");
        let address = format!("unix:{}", path.display());
        let bind = |permissions: SocketFilePermissions| {
            super::bind(&address, &permissions, 1, &SocketOptions::default())
        };
        let directory_metadata = std::fs::metadata(directory.path()).expect("a directory");
        let is_root = directory_metadata.uid() == 0;
        // Only root can change the owner of a file.
        let (user, group) = if is_root {
            (12_345, 54_321)
        } else {
            (directory_metadata.uid(), directory_metadata.gid())
        };
        for mode in [0o600, 0o660, 0o777, 0] {
            let permissions = SocketFilePermissions {
                mode: Some(mode),
                user: Some(user.to_string()),
                group: Some(group.to_string()),
            };
            let _bound = bind(permissions).expect("permitted");
            let metadata = std::fs::symlink_metadata(&path).expect("a socket file");
            assert_eq!(metadata.permissions().mode() & 0o7777, mode);
            assert_eq!((metadata.uid(), metadata.gid()), (user, group));
        }
        for (user, group, expected) in [
            (Some("no-such-user"), None, "has no user `no-such-user`"),
            (None, Some("no-such-group"), "has no group `no-such-group`"),
        ] {
            let (user, group) = (user.map(str::to_owned), group.map(str::to_owned));
            let error =
                bind(SocketFilePermissions { mode: None, user, group }).expect_err("no such name");
            let text = error.to_string();
            assert!(text.contains(expected) && text.contains(&address), "{text}");
            assert!(!path.exists(), "an error leaves nothing behind");
        }
        if is_root {
            let permissions = SocketFilePermissions {
                user: Some("root".to_owned()),
                ..SocketFilePermissions::default()
            };
            let _bound = bind(permissions).expect("permitted");
            assert_eq!(std::fs::metadata(&path).expect("a file").uid(), 0);
        }
    }
}
