//! Clients that send requests continuously, as a correct client does: a request that fails on a
//! reused connection without a byte of a response is retried. Every other failure counts as lost.

use crate::restart::PATIENCE;
use crate::restart::program::{Program, say, take_descriptors};
use peregrine_tls::rustls::crypto::aws_lc_rs;
use peregrine_tls::rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

/// The number of concurrent connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// With requests one after the other.
    pub(crate) kept: usize,
    /// With one request each, repeatedly.
    pub(crate) new: usize,
    /// Like `kept`, over TLS.
    pub(crate) tls: usize,
}

/// The ID of the next request, unique in this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Running clients.
pub(crate) struct Load {
    progress: Arc<Progress>,
    size: Size,
    thread: thread::JoinHandle<()>,
}

/// The results of the clients.
#[derive(Default)]
struct Progress {
    is_over: AtomicBool,
    answered: AtomicU64,
    connected: AtomicU64,
    /// Requests that were retried under another ID.
    again: Mutex<HashSet<u64>>,
    lost: Mutex<Vec<String>>,
}

impl Load {
    pub(crate) fn start(program: &Program, size: Size) -> Self {
        take_descriptors();
        let progress = Arc::<Progress>::default();
        let tls = (size.tls > 0).then(|| (program.tls_address(), connector(program)));
        let (address, shared) = (program.address(), Arc::clone(&progress));
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let clients = tokio::task::LocalSet::new();
            let all = clients.run_until(run(address, tls, size, shared));
            runtime.expect("a runtime").block_on(all);
        };
        let load = Self { progress, size, thread: thread::spawn(work) };
        load.goes_on();
        load
    }

    /// Waits until there were some more responses than there are connections.
    pub(crate) fn goes_on(&self) {
        let Size { kept, new, tls } = self.size;
        let enough = self.progress.answered.load(Ordering::Relaxed) + 2 * (kept + new + tls) as u64;
        let end = Instant::now() + PATIENCE;
        while self.progress.answered.load(Ordering::Relaxed) < enough {
            assert!(
                Instant::now() < end,
                "no request is answered any more: {}",
                self.progress.lost()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the clients, none of which may have lost a request.
    pub(crate) fn ends(self, program: &Program) {
        self.progress.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("clients do not panic");
        let progress = &self.progress;
        assert!(
            progress.lost.lock().expect("the mutex is not poisoned").is_empty(),
            "lost: {}",
            progress.lost()
        );
        // A retried request must not have been started the first time.
        let begun =
            fs::read_to_string(program.folder().join("begun")).expect("the file was written");
        let again = progress.again.lock().expect("the mutex is not poisoned");
        let begun = begun.lines().map(|line| line.parse().expect("a number on each line"));
        let twice: Vec<u64> = begun.filter(|number| again.contains(number)).collect();
        assert!(twice.is_empty(), "started, but retried without a response: {twice:?}");
        let (answered, connected) = (&progress.answered, &progress.connected);
        say(&format!("{answered:?} answered on {connected:?} connections, {} again", again.len()));
    }
}

impl Progress {
    fn lost(&self) -> String {
        let lost = self.lost.lock().expect("the mutex is not poisoned");
        format!("{} {:?}", lost.len(), lost.iter().take(20).collect::<Vec<_>>())
    }
}

fn connector(program: &Program) -> TlsConnector {
    TlsConnector::from(Arc::new(client_config(program)))
}

/// A client configuration that trusts the program's certificate.
pub(crate) fn client_config(program: &Program) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    let pem = fs::read(program.folder().join("certificate.pem")).expect("the file was written");
    roots
        .add(CertificateDer::from_pem_slice(&pem).expect("the certificate was generated"))
        .expect("the certificate was generated");
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

async fn run(
    address: SocketAddr,
    tls: Option<(SocketAddr, TlsConnector)>,
    size: Size,
    progress: Arc<Progress>,
) {
    let all = size.kept + size.new + size.tls;
    // Many clients send now and then, and few send continuously.
    let pause = Duration::from_micros(500 * all as u64);
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..size.kept + size.new {
        let (progress, is_kept) = (Arc::clone(&progress), number < size.kept);
        clients.spawn_local(async move {
            client(is_kept, pause, &progress, async || TcpStream::connect(address).await).await;
        });
    }
    for _ in 0..size.tls {
        let (progress, (address, connector)) =
            (Arc::clone(&progress), tls.clone().expect("the load uses TLS"));
        clients.spawn_local(async move {
            let connect = async || {
                let name = ServerName::try_from("localhost").expect("a name");
                connector.connect(name, TcpStream::connect(address).await?).await
            };
            client(true, pause, &progress, connect).await;
        });
    }
    while clients.join_next().await.is_some() {}
}

/// One client, until the load ends.
async fn client<S, C>(is_kept: bool, pause: Duration, progress: &Progress, connect: C)
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: AsyncFn() -> io::Result<S>,
{
    let mut connection: Option<S> = None;
    let lost = |text: String| progress.lost.lock().expect("the mutex is not poisoned").push(text);
    while !progress.is_over.load(Ordering::Relaxed) {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let is_used = connection.is_some();
        let mut stream = match connection.take() {
            Some(stream) => stream,
            None => match timeout(PATIENCE, connect()).await {
                Ok(Ok(stream)) => {
                    progress.connected.fetch_add(1, Ordering::Relaxed);
                    stream
                }
                Ok(Err(error)) => return lost(format!("{number} did not connect: {error}")),
                Err(_) => return lost(format!("{number} did not connect in time")),
            },
        };
        match timeout(PATIENCE, exchange(&mut stream, number, !is_kept)).await {
            Ok(Ok(goes_on)) => {
                progress.answered.fetch_add(1, Ordering::Relaxed);
                connection = goes_on.then_some(stream);
                sleep(pause).await;
            }
            Ok(Err(Failed::Unanswered(_))) if is_used => {
                progress.again.lock().expect("the mutex is not poisoned").insert(number);
            }
            Ok(Err(failed)) => return lost(format!("{number} (used: {is_used}): {failed:?}")),
            Err(_) => return lost(format!("{number} was not answered in time")),
        }
    }
}

#[derive(Debug)]
#[expect(dead_code, reason = "what went wrong is printed")]
enum Failed {
    /// Not a byte of a response arrived.
    Unanswered(io::Error),
    /// The response is incomplete or invalid.
    Broken(String),
}

/// Sends a request, and reads the response. Returns whether the connection may be reused.
async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    number: u64,
    closes: bool,
) -> Result<bool, Failed> {
    let close = if closes { "Connection: close\r\n" } else { "" };
    let head = format!("GET /count/{number} HTTP/1.1\r\nHost: a\r\n{close}\r\n");
    // A response may arrive even if sending failed, such as one sent earlier.
    let sent = stream.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    loop {
        let broken = |answer: &[u8]| Failed::Broken(String::from_utf8_lossy(answer).into_owned());
        match stream.read_buf(&mut answer).await {
            Ok(0) | Err(_) if !answer.is_empty() => return Err(broken(&answer)),
            Ok(0) => {
                let ended = sent.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
                return Err(Failed::Unanswered(ended));
            }
            Err(error) => return Err(Failed::Unanswered(error)),
            Ok(_) => {}
        }
        if answer.ends_with(b"\r\n\r\ncounted") {
            let text = String::from_utf8_lossy(&answer);
            if !text.starts_with("HTTP/1.1 200 ") {
                return Err(broken(&answer));
            }
            return Ok(!closes && !text.to_ascii_lowercase().contains("\r\nconnection: close\r\n"));
        }
    }
}
