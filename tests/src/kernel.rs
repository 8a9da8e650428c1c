//! A harness for the machine's own sockets. Peers are blocking sockets on threads.

use std::future::Future;
use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
#[cfg(unix)]
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use peregrine_driver::{Driver, Options, Socket};
use tempfile::TempDir;

use crate::harness::{Harness, Peer};

/// A case that runs longer hangs. This is far more than the slowest machine needs.
const CASE_MAX: Duration = Duration::from_secs(120);
/// The most bytes that one receive of a peer returns.
const RECEIVE_BYTES_MAX: usize = 65_536;

/// A driver that uses the machine's sockets.
pub struct Kernel<D> {
    /// The folder of the Unix sockets; `None` for TCP.
    folder: Option<TempDir>,
    driver: PhantomData<D>,
}

/// The address of a listening socket.
#[derive(Clone, Debug)]
pub enum ServerAddress {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix domain socket.
    Unix(PathBuf),
}

impl<D> Kernel<D> {
    /// TCP on the loopback interface.
    #[must_use]
    pub fn tcp() -> Self {
        Self { folder: None, driver: PhantomData }
    }

    /// Over Unix domain sockets.
    ///
    /// # Panics
    /// If no temporary folder can be created.
    #[must_use]
    pub fn unix() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        Self { folder: Some(folder), driver: PhantomData }
    }

    /// A new address and a socket bound to it.
    ///
    /// # Panics
    /// If the machine has no free port.
    #[must_use]
    pub fn socket(&self) -> (Socket, ServerAddress) {
        match &self.folder {
            None => {
                let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
                let address = listener.local_addr().expect("a bound socket has an address");
                (Socket::Tcp(listener), ServerAddress::Tcp(address))
            }
            #[cfg(unix)]
            Some(folder) => {
                let number = folder.path().read_dir().expect("the folder exists").count();
                let path = folder.path().join(number.to_string());
                let listener = UnixListener::bind(&path).expect("the name is new");
                (Socket::Unix(listener), ServerAddress::Unix(path))
            }
            #[cfg(not(unix))]
            Some(_) => panic!("this system has no Unix sockets"),
        }
    }
}

impl<D: Driver<Socket = Socket>> Harness for Kernel<D> {
    type Driver = D;
    type ServerAddress = ServerAddress;
    type Peer = ThreadPeer;

    fn check(&self, case: impl AsyncFn(D)) {
        let (done, watched) = mpsc::channel::<()>();
        let name = thread::current().name().unwrap_or("a case").to_owned();
        let watchdog = thread::spawn(move || {
            if watched.recv_timeout(CASE_MAX) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{name} hangs");
                std::process::abort();
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            D::run(&Options::default(), async |driver: D| {
                // Peers respond from their own threads, which the driver does not know about.
                let _hold = driver.keep_awake();
                case(driver.clone()).await;
            })
            .expect("the driver starts");
        }));
        drop(done);
        watchdog.join().expect("the watchdog does not panic");
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    }

    /// On Linux the two ends of a TCP connection can buffer about 10 MiB by themselves.
    fn large(&self) -> usize {
        32 << 20
    }

    fn bind(&self, _driver: &D) -> (Socket, ServerAddress) {
        self.socket()
    }

    fn connect(&self, _driver: &D, server_address: &ServerAddress) -> ThreadPeer {
        ThreadPeer::connect(server_address)
    }
}

/// A connected blocking socket of either family.
enum Blocking {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Blocking {
    fn connect(server_address: &ServerAddress) -> io::Result<Self> {
        match server_address {
            ServerAddress::Tcp(address) => TcpStream::connect(address).map(Self::Tcp),
            #[cfg(unix)]
            ServerAddress::Unix(path) => UnixStream::connect(path).map(Self::Unix),
            #[cfg(not(unix))]
            ServerAddress::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(socket) => socket.try_clone().map(Self::Tcp),
            #[cfg(unix)]
            Self::Unix(socket) => socket.try_clone().map(Self::Unix),
        }
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.shutdown(how),
            #[cfg(unix)]
            Self::Unix(socket) => socket.shutdown(how),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read(bytes),
            #[cfg(unix)]
            Self::Unix(socket) => socket.read(bytes),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.write_all(bytes),
            #[cfg(unix)]
            Self::Unix(socket) => socket.write_all(bytes),
        }
    }
}

type Command = Box<dyn FnOnce(&mut Blocking) + Send>;

/// A blocking socket with one thread per direction.
pub struct ThreadPeer {
    reader: Side,
    writer: Side,
    /// Used to interrupt the calls that the threads are blocked in.
    control: Blocking,
}

/// The thread of one direction.
struct Side {
    commands: Option<mpsc::Sender<Command>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Side {
    fn new(mut socket: Blocking) -> Self {
        let (commands, inbox) = mpsc::channel::<Command>();
        let thread =
            thread::spawn(move || inbox.into_iter().for_each(|command| command(&mut socket)));
        Self { commands: Some(commands), thread: Some(thread) }
    }

    /// The result of `work`, which the thread runs after all earlier commands.
    fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Blocking) -> T + Send + 'static,
    ) -> CommandResult<T> {
        let slot = Arc::new(Mutex::new((None, None::<Waker>)));
        let output = CommandResult { slot: Arc::clone(&slot) };
        let command: Command = Box::new(move |socket| {
            let result = work(socket);
            let mut slot = slot.lock().expect("the mutex is not poisoned");
            slot.0 = Some(result);
            if let Some(waker) = slot.1.take() {
                waker.wake();
            }
        });
        let commands = self.commands.as_ref().expect("the peer is alive");
        commands.send(command).expect("the thread is alive");
        output
    }

    fn end(&mut self) {
        drop(self.commands.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a peer's thread does not panic");
        }
    }
}

/// A result that a thread will provide.
struct CommandResult<T> {
    slot: Arc<Mutex<(Option<T>, Option<Waker>)>>,
}

impl<T> Future for CommandResult<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.slot.lock().expect("the mutex is not poisoned");
        match slot.0.take() {
            Some(result) => Poll::Ready(result),
            None => {
                slot.1 = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl ThreadPeer {
    /// Connects, and waits until the connection is in the kernel's backlog.
    ///
    /// # Panics
    /// If no socket listens there.
    #[must_use]
    pub fn connect(server_address: &ServerAddress) -> Self {
        let socket = Blocking::connect(server_address).expect("the server accepts connections");
        let clone = || socket.try_clone().expect("a descriptor is free");
        Self { reader: Side::new(clone()), writer: Side::new(clone()), control: socket }
    }
}

impl Peer for ThreadPeer {
    async fn send(&self, bytes: Vec<u8>) -> io::Result<()> {
        self.writer.run(move |socket| socket.write_all(&bytes)).await
    }

    async fn recv(&self) -> io::Result<Vec<u8>> {
        let read = |socket: &mut Blocking| {
            let mut bytes = vec![0; RECEIVE_BYTES_MAX];
            let filled = socket.read(&mut bytes)?;
            bytes.truncate(filled);
            Ok(bytes)
        };
        self.reader.run(read).await
    }

    async fn half_close(&self) -> io::Result<()> {
        self.writer.run(|socket| socket.shutdown(Shutdown::Write)).await
    }

    async fn reset(mut self) -> bool {
        match &self.control {
            Blocking::Tcp(socket) => {
                // Closing the last descriptor then sends RST instead of FIN. No thread may hold a
                // descriptor or be blocked in a call: the case must have no pending operation.
                let linger = socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO));
                linger.expect("SO_LINGER is supported");
                self.reader.end();
                self.writer.end();
                true
            }
            #[cfg(unix)]
            Blocking::Unix(_) => false,
        }
    }
}

impl Drop for ThreadPeer {
    fn drop(&mut self) {
        // A thread may be blocked in a call; shutting down interrupts it. If none is blocked, a
        // plain close gives the peer more information, because the kernel resets a connection with
        // unread data.
        if self.reader.thread.is_some() || self.writer.thread.is_some() {
            // This fails if the peer is gone already.
            let _ = self.control.shutdown(Shutdown::Both);
        }
        self.reader.end();
        self.writer.end();
    }
}
