//! Places to listen, and a socket there for each worker.

use crate::error::Error;
use peregrine_driver::Socket;
use socket2::{Domain, Protocol, SockAddr, Type};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};

/// Connections that may wait in the kernel before they are accepted; the kernel may allow fewer.
const BACKLOG: i32 = 4096;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix domain socket at this path.
    Unix(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The sockets of one place, one for each worker.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) place: Place,
    pub(crate) sockets: Vec<Socket>,
    /// Removes the file of a Unix socket when the server has ended.
    pub(crate) file: Option<SocketFile>,
}

/// The file of a Unix socket, removed when this is dropped, unless another file has taken its place.
#[derive(Debug)]
pub(crate) struct SocketFile {
    #[cfg(unix)]
    path: PathBuf,
    #[cfg(unix)]
    identity: Identity,
}

#[cfg(unix)]
impl SocketFile {
    /// The socket that was just bound to `path`.
    fn of(path: &Path) -> io::Result<Self> {
        let identity = identity(&std::fs::symlink_metadata(path)?);
        Ok(Self { path: path.to_path_buf(), identity })
    }
}

/// A file's device, number and time of change: numbers alone are soon reused.
#[cfg(unix)]
type Identity = (u64, u64, i64, i64);

#[cfg(unix)]
fn identity(metadata: &std::fs::Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        #[cfg(unix)]
        if std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| identity(&found) == self.identity)
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens at `address` with a socket for each of `workers`.
pub(crate) fn bind(address: &str, workers: usize) -> Result<Bound, Error> {
    let bind = |cause| Error::Bind { address: address.to_owned(), cause };
    if let Some(path) = address.strip_prefix("unix:") {
        return bind_unix(Path::new(path), workers).map_err(bind);
    }
    let all = address
        .to_socket_addrs()
        .map_err(|cause| Error::Address { address: address.to_owned(), cause })?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in all {
        match bind_tcp(candidate, workers) {
            Ok(bound) => return Ok(bound),
            Err(error) => last = error,
        }
    }
    Err(bind(last))
}

/// Without SO_REUSEPORT, all workers share one socket.
#[cfg(not(unix))]
fn bind_tcp(address: SocketAddr, workers: usize) -> io::Result<Bound> {
    share(Socket::Tcp(listener(address, false)?), workers)
}

#[cfg(unix)]
fn bind_tcp(address: SocketAddr, workers: usize) -> io::Result<Bound> {
    // A socket with SO_REUSEPORT also binds where another process of ours listens, and silently takes
    // half of its connections. So the first socket binds without it, which fails if anybody is there,
    // and makes room for the others by closing. Nobody else is at a port that the kernel chooses, and
    // nobody must get there before the others.
    let is_any_port = address.port() == 0;
    let first = listener(address, is_any_port && workers > 1)?;
    let address = first.local_addr()?;
    if workers == 1 {
        let sockets = vec![Socket::Tcp(first)];
        return Ok(Bound { place: Place::Tcp(address), sockets, file: None });
    }
    let mut sockets = Vec::with_capacity(workers);
    if is_any_port {
        sockets.push(Socket::Tcp(first));
    } else {
        drop(first);
    }
    while sockets.len() < workers {
        sockets.push(Socket::Tcp(listener(address, true)?));
    }
    Ok(Bound { place: Place::Tcp(address), sockets, file: None })
}

fn listener(address: SocketAddr, is_shared: bool) -> io::Result<TcpListener> {
    let kind = Type::STREAM;
    let socket = socket2::Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    if is_shared {
        #[cfg(unix)]
        socket.set_reuse_port(true)?;
    }
    if address.is_ipv6() {
        // `[::]` then means IPv4 too, as users of every other server expect.
        socket.set_only_v6(false)?;
    }
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    // A worker may then take several connections at a time.
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// One socket, shared by all workers: Unix sockets have no SO_REUSEPORT.
#[cfg(unix)]
fn bind_unix(path: &Path, workers: usize) -> io::Result<Bound> {
    use std::os::unix::fs::FileTypeExt;
    use std::os::unix::net::UnixListener;
    if let Ok(found) = std::fs::symlink_metadata(path) {
        // A file that is not a socket is somebody's: connecting to it is refused too, so only its type
        // distinguishes it from what a killed server left behind.
        let is_stale = found.file_type().is_socket() && is_refused(path)?;
        if !is_stale {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        std::fs::remove_file(path)?;
    }
    let first = UnixListener::bind(path)?;
    first.set_nonblocking(true)?;
    let file = Some(SocketFile::of(path)?);
    let mut sockets = Vec::with_capacity(workers);
    for _ in 1..workers {
        sockets.push(Socket::Unix(first.try_clone()?));
    }
    sockets.push(Socket::Unix(first));
    Ok(Bound { place: Place::Unix(path.to_path_buf()), sockets, file })
}

/// Does nobody listen at `path`? An owner that is slow to accept still listens, and is not waited for.
#[cfg(unix)]
fn is_refused(path: &Path) -> io::Result<bool> {
    let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    let connected = socket.connect(&SockAddr::unix(path)?);
    Ok(connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused))
}

#[cfg(not(unix))]
fn bind_unix(_: &Path, _: usize) -> io::Result<Bound> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system has no Unix sockets"))
}

/// The sockets for a listener that the caller bound.
pub(crate) fn adopt(listener: Socket, workers: usize) -> Result<Bound, Error> {
    let failed = |cause| Error::Bind { address: "(a given listener)".to_owned(), cause };
    share(listener, workers).map_err(failed)
}

/// One socket for all workers.
fn share(listener: Socket, workers: usize) -> io::Result<Bound> {
    let place = place_of(&listener)?;
    let mut sockets = Vec::with_capacity(workers);
    for _ in 1..workers {
        sockets.push(duplicate(&listener)?);
    }
    sockets.push(listener);
    Ok(Bound { place, sockets, file: None })
}

fn place_of(listener: &Socket) -> io::Result<Place> {
    Ok(match listener {
        Socket::Tcp(listener) => Place::Tcp(listener.local_addr()?),
        #[cfg(unix)]
        Socket::Unix(listener) => {
            let path = listener.local_addr()?.as_pathname().map(Path::to_path_buf);
            // Linux's abstract names have no path.
            Place::Unix(path.unwrap_or_else(|| PathBuf::from("(unnamed)")))
        }
    })
}

fn duplicate(listener: &Socket) -> io::Result<Socket> {
    match listener {
        Socket::Tcp(listener) => listener.try_clone().map(Socket::Tcp),
        #[cfg(unix)]
        Socket::Unix(listener) => listener.try_clone().map(Socket::Unix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_at_a_time_find_free_ports() {
        let find = || (0..200).try_for_each(|_| bind("127.0.0.1:0", 3).map(drop));
        let found = std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(find)).collect();
            all.into_iter()
                .map(|one| one.join().expect("binding does not panic"))
                .collect::<Vec<_>>()
        });
        for one in found {
            assert!(one.is_ok(), "{}", one.expect_err("it is an error"));
        }
    }

    #[test]
    fn a_port_that_another_socket_has_is_refused_though_ports_are_shared() {
        let taken = bind("127.0.0.1:0", 2).expect("any free port");
        let error = bind(&taken.place.to_string(), 2).expect_err("the port is taken");
        let text = error.to_string();
        assert!(text.contains("another process listens there"), "{text}");
    }

    #[test]
    fn all_workers_listen_on_the_port_that_the_first_was_given() {
        let bound = bind("127.0.0.1:0", 3).expect("any free port");
        for socket in &bound.sockets {
            assert_eq!(place_of(socket).expect("bound"), bound.place);
        }
    }

    #[test]
    fn an_address_that_is_none_says_how_to_write_one() {
        let text = bind("no port", 1).expect_err("not an address").to_string();
        assert!(text.contains("`no port`") && text.contains("127.0.0.1:8080"), "{text}");
    }

    #[cfg(unix)]
    #[test]
    fn a_stale_unix_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let address = format!("unix:{}", folder.path().join("s").display());
        let live = bind(&address, 1).expect("free");
        assert!(bind(&address, 1).is_err());
        let stale = Bound { file: None, ..live };
        drop(stale.sockets);
        bind(&address, 1).expect("nobody listens any more");
    }

    #[cfg(unix)]
    #[test]
    fn a_unix_socket_whose_owner_accepts_nobody_is_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let address = SockAddr::unix(&path).expect("a short path");
        let socket = || {
            let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
            socket.set_nonblocking(true).expect("any socket can be told so");
            socket
        };
        let owner = socket();
        owner.bind(&address).expect("a new path");
        owner.listen(1).expect("it is bound");
        let waiting: Vec<_> = std::iter::repeat_with(socket)
            .take_while(|socket| socket.connect(&address).is_ok())
            .take(1000)
            .collect();
        assert!(waiting.len() < 1000, "the backlog is full");
        let (sender, result) = std::sync::mpsc::channel();
        let address = format!("unix:{}", path.display());
        std::thread::spawn(move || sender.send(bind(&address, 1).is_err()));
        let patience = std::time::Duration::from_secs(20);
        assert_eq!(result.recv_timeout(patience), Ok(true), "it is told, and at once");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_is_no_socket_is_never_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("precious");
        std::fs::write(&path, "data").expect("a new file");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("a new link");
        for place in [&path, &link, &folder.path().to_path_buf()] {
            let error = bind(&format!("unix:{}", place.display()), 2).expect_err("it is taken");
            assert!(error.to_string().contains("is no socket"), "{error}");
        }
        assert_eq!(std::fs::read_to_string(&link).expect("it is still there"), "data");
    }

    #[cfg(unix)]
    #[test]
    fn the_socket_of_a_successor_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let address = format!("unix:{}", path.display());
        let mut old = bind(&address, 1).expect("free");
        old.sockets.clear();
        // Longer than the resolution of a file's times.
        std::thread::sleep(std::time::Duration::from_millis(30));
        let successor = bind(&address, 1).expect("nobody listens any more");
        drop(old);
        assert!(path.exists());
        drop(successor);
        assert!(!path.exists());
    }
}
