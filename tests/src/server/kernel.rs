//! Servers on the machine's own sockets, with blocking clients.

use crate::server::any_bench::{AnyBench, Case};
use crate::server::bench::{Bench, Got, Outcome, PATIENCE, Served, ServerOptions, Wire};
use crate::server::held;
use peregrine::access_log::AccessLogOptions;
use peregrine::{
    DriverChoice, Error, IntoBuiltApp, Limits, ListenAddr, Listener, RunningServer, Server,
    WorkerStats,
};
use peregrine_tls::TlsConfig;
use std::cell::Cell;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Bytes that the kernel accepts from a client at once, whatever the server does.
const SMALL_BYTES_MAX: usize = 32 * 1024;
/// The most bytes that one receive of a client returns.
const RECEIVE_BYTES_MAX: usize = 64 * 1024;

/// Runs each case once, on one of the drivers that use the kernel.
#[derive(Clone, Copy, Debug)]
pub struct KernelBenches {
    choice: DriverChoice,
    is_unix: bool,
}

impl KernelBenches {
    /// TCP on the loopback interface.
    #[must_use]
    pub fn tcp(choice: DriverChoice) -> Self {
        Self { choice, is_unix: false }
    }

    /// Over Unix domain sockets.
    #[must_use]
    pub fn unix(choice: DriverChoice) -> Self {
        Self { choice, is_unix: true }
    }

    /// Runs `case`, if the driver works on this kernel.
    ///
    /// # Panics
    /// If the case fails.
    pub fn check(&self, case: impl AsyncFn(&AnyBench)) {
        self.run(&case, false);
    }

    pub(super) fn run(&self, case: &dyn Case, is_mounted: bool) {
        if let Some(reason) = self.unavailable_reason() {
            eprintln!("skipped: {reason}");
            return;
        }
        let folder =
            self.is_unix.then(|| tempfile::tempdir().expect("a temporary folder can be created"));
        let random_state = Cell::new(0x9e37_79b9);
        let bench =
            KernelBench { choice: self.choice, folder, start: Instant::now(), random_state };
        block_on(case.run(&AnyBench::from_kernel(bench, is_mounted)));
    }

    /// Why the driver cannot run on this machine.
    fn unavailable_reason(&self) -> Option<String> {
        let probe = Server::bind("127.0.0.1:0").driver(self.choice).workers(NonZeroUsize::MIN);
        match probe.quiet().start(peregrine::App::new) {
            Err(error @ Error::Driver { .. }) => Some(error.to_string()),
            _ => None,
        }
    }
}

/// Runs a future that blocks instead of returning `Pending`.
fn block_on<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("on a kernel a case must block: nothing would wake it"),
    }
}

/// The machine's sockets.
pub struct KernelBench {
    choice: DriverChoice,
    /// The folder of the Unix sockets; `None` for TCP.
    folder: Option<TempDir>,
    start: Instant,
    random_state: Cell<u32>,
}

impl Bench for KernelBench {
    type Server = KernelServer;
    type Wire = SocketWire;

    fn start_behind<A, M>(
        &self,
        server_options: ServerOptions,
        limits: Limits,
        tls: Option<TlsConfig>,
        make: M,
    ) -> KernelServer
    where
        A: IntoBuiltApp + 'static,
        M: Fn() -> A + Clone + Send + 'static,
    {
        let with_proxy_protocol = |listener: Listener| match server_options.proxy_protocol.clone() {
            None => listener,
            Some(settings) => listener.proxy_protocol(settings),
        };
        let plain = match &self.folder {
            None => Listener::bind("127.0.0.1:0"),
            Some(folder) => Listener::bind(format!("unix:{}/server.sock", folder.path().display())),
        };
        let plain = match server_options.limits.clone() {
            None => plain,
            Some(limits) => plain.limits(limits),
        };
        let server = Server::bind(with_proxy_protocol(plain));
        let server = match tls {
            None => server,
            Some(tls) => server.listen(with_proxy_protocol(Listener::bind("127.0.0.1:0")).tls(tls)),
        };
        let server = match server_options.proxies {
            None => server,
            Some(proxies) => server.trusted_proxies(proxies),
        };
        let server = match server_options.log {
            None => server,
            Some((form, lines)) => server.access_log(AccessLogOptions::writer(lines).format(form)),
        };
        let server = match server_options.traces {
            None => server,
            Some(traces) => server.traces(traces),
        };
        let server = server.driver(self.choice).workers(NonZeroUsize::MIN).limits(limits).quiet();
        let running = server.start(make).expect("the server starts");
        KernelServer { running }
    }

    async fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn calm(&self) {}

    fn is_calm(&self) -> bool {
        true
    }

    fn is_virtual(&self) -> bool {
        false
    }

    fn has_resets(&self) -> bool {
        self.folder.is_none()
    }

    /// Linux lists all TCP connections with their states.
    fn bytes_of_the_closed(&self, server: &KernelServer) -> Option<usize> {
        let ListenAddr::Tcp(address) = server.running.addresses().next()? else { return None };
        let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
        Some(table.lines().skip(1).filter_map(|line| orphaned_bytes_in(line, address)).sum())
    }

    fn choose(&self, limit: usize) -> usize {
        let next = self.random_state.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.random_state.set(next);
        usize::try_from(next >> 8).expect("the length has 24 bits").checked_rem(limit).unwrap_or(0)
    }
}

/// The unacknowledged bytes, if this line describes a connection from `address` that its program
/// has closed (`FIN_WAIT1`, `LAST_ACK` or `CLOSING`).
fn orphaned_bytes_in(line: &str, address: &SocketAddr) -> Option<usize> {
    let mut columns = line.split_whitespace().skip(1);
    let local = columns.next()?;
    let state = columns.nth(1)?;
    let queue_bytes = columns.next()?;
    let is_ours = local.ends_with(&format!(":{:04X}", address.port()));
    let is_closed = matches!(state, "04" | "09" | "0B");
    let unsent = usize::from_str_radix(queue_bytes.split(':').next()?, 16).ok()?;
    (is_ours && is_closed).then_some(unsent)
}

/// A server on its own threads.
pub struct KernelServer {
    running: RunningServer,
}

impl Served for KernelServer {
    type Wire = SocketWire;

    fn connect(&self) -> SocketWire {
        let address = self.running.addresses().next().expect("the server listens somewhere");
        SocketWire::connect(address)
    }

    fn connect_secure(&self) -> SocketWire {
        let address = self.running.https_address().expect("the server was started with TLS");
        SocketWire::connect(&ListenAddr::Tcp(address))
    }

    fn shut_down(&self) {
        self.running.handle().graceful_shutdown();
    }

    fn cut(&self) {
        self.running.handle().force_close();
    }

    async fn ended(self) -> Outcome {
        let stopped = self.running.wait().expect("the workers shut down cleanly");
        let [Some(snapshot)] = <[Option<WorkerStats>; 1]>::try_from(stopped.workers)
            .expect("the server has one worker")
        else {
            panic!("the worker did not end");
        };
        Outcome { snapshot, cut: stopped.force_closed }
    }
}

/// A connected blocking socket of either family.
#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixStream),
}

impl Socket {
    fn connect(address: &ListenAddr) -> io::Result<Self> {
        match address {
            ListenAddr::Tcp(address) => Self::connect_tcp(address),
            #[cfg(unix)]
            ListenAddr::Unix(path) => std::os::unix::net::UnixStream::connect(path).map(Self::Unix),
            #[cfg(not(unix))]
            ListenAddr::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn connect_tcp(address: &SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        Ok(Self::Tcp(socket))
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

    fn set_read_timeout(&self, time: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.set_read_timeout(Some(time)),
            #[cfg(unix)]
            Self::Unix(socket) => socket.set_read_timeout(Some(time)),
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

/// A command for the writer thread.
enum WriteCommand {
    Send(Vec<u8>),
    HalfClose,
}

/// A client's socket. Data that the kernel does not accept at once is written by a thread.
#[derive(Debug)]
pub struct SocketWire {
    socket: Socket,
    writer: Option<(mpsc::Sender<WriteCommand>, thread::JoinHandle<()>)>,
}

impl SocketWire {
    /// Connects, and waits until the connection is in the kernel's backlog.
    ///
    /// # Panics
    /// If no server listens at `address`.
    #[must_use]
    pub fn connect(address: &ListenAddr) -> Self {
        Self {
            socket: Socket::connect(address).expect("the server accepts connections"),
            writer: None,
        }
    }

    fn queue_write(&mut self, command: WriteCommand) {
        let (commands, _) = self.writer.get_or_insert_with(|| {
            let mut socket = self.socket.try_clone().expect("a descriptor is free");
            let (sender, commands) = mpsc::channel();
            let thread = thread::spawn(move || {
                held::this_is_a_client();
                for command in commands {
                    let result = match command {
                        WriteCommand::Send(bytes) => socket.write_all(&bytes),
                        WriteCommand::HalfClose => socket.shutdown(Shutdown::Write),
                    };
                    // The server may close at any time; what it sent before gives the reason.
                    if result.is_err() {
                        break;
                    }
                }
            });
            (sender, thread)
        });
        let _ = commands.send(command);
    }
}

impl Wire for SocketWire {
    fn send(&mut self, bytes: &[u8]) {
        if self.writer.is_some() || bytes.len() > SMALL_BYTES_MAX {
            self.queue_write(WriteCommand::Send(bytes.to_vec()));
        } else {
            let _ = self.socket.write_all(bytes);
        }
    }

    fn half_close(&mut self) {
        if self.writer.is_some() {
            self.queue_write(WriteCommand::HalfClose);
        } else {
            let _ = self.socket.shutdown(Shutdown::Write);
        }
    }

    async fn recv(&mut self, timeout: Duration) -> Got {
        self.recv_at_most(RECEIVE_BYTES_MAX, timeout).await
    }

    async fn recv_at_most(&mut self, bytes_max: usize, timeout: Duration) -> Got {
        let timeout = timeout.clamp(Duration::from_millis(1), PATIENCE);
        self.socket.set_read_timeout(timeout).expect("the time is not zero");
        let mut bytes = vec![0; bytes_max.min(RECEIVE_BYTES_MAX)];
        // The kernel interrupts calls when a ring of the same process has work for the thread.
        let read = loop {
            match self.socket.read(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        match read {
            Ok(0) => Got::End,
            Ok(filled) => {
                bytes.truncate(filled);
                Got::Bytes(bytes)
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Got::Nothing,
                _ => Got::Broken,
            },
        }
    }

    fn reset(self) {
        match &self.socket {
            Socket::Tcp(socket) => {
                // Closing the last descriptor then sends RST instead of FIN.
                let linger = socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO));
                linger.expect("SO_LINGER is supported");
            }
            // A Unix socket has no reset; shutting down both directions comes closest.
            #[cfg(unix)]
            Socket::Unix(socket) => drop(socket.shutdown(Shutdown::Both)),
        }
    }
}

impl Drop for SocketWire {
    fn drop(&mut self) {
        let Some((commands, thread)) = self.writer.take() else { return };
        drop(commands);
        if !thread.is_finished() {
            // The thread may be blocked in a write that the server will never read.
            let _ = self.socket.shutdown(Shutdown::Both);
        }
        thread.join().expect("the thread that writes does not panic");
    }
}
