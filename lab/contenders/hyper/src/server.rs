//! Listening, accepting and stopping: a current-thread runtime per worker.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hyper::rt::{Executor, Read, Write};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;

use crate::answer;
use crate::settings::{Settings, Tls};

/// How long requests in progress may take after SIGTERM, as in hyper's guide.
const SHUTDOWN_SECONDS_MAX: u64 = 10;

/// Serves until SIGTERM.
pub fn run(settings: Settings) {
    let settings = Arc::new(settings);
    let workers: Vec<_> = (0..settings.workers)
        .map(|_| {
            let settings = settings.clone();
            thread::spawn(move || work(&settings))
        })
        .collect();
    for worker in workers {
        worker.join().expect("a worker does not panic").expect("the ports are free");
    }
}

fn work(settings: &Settings) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let mut terminate = signal(SignalKind::terminate())?;
        let graceful = GracefulShutdown::new();
        // Leaving this drops the listeners: nothing more is accepted.
        tokio::select! {
            result = accept_plain(settings.port, &graceful) => result?,
            result = accept_tls(settings.tls.as_ref(), &graceful) => result?,
            _ = terminate.recv() => {}
        }
        let limit = Duration::from_secs(SHUTDOWN_SECONDS_MAX);
        let _ = tokio::time::timeout(limit, graceful.shutdown()).await;
        Ok(())
    })
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    socket.listen(4096)?;
    TcpListener::from_std(socket.into())
}

async fn accept_plain(port: u16, graceful: &GracefulShutdown) -> io::Result<()> {
    let listener = listen(port)?;
    loop {
        if let Some(stream) = accept(&listener).await {
            tokio::task::spawn_local(serve(stream, graceful.watcher()));
        }
    }
}

async fn accept_tls(tls: Option<&Tls>, graceful: &GracefulShutdown) -> io::Result<()> {
    let Some(tls) = tls else { return std::future::pending().await };
    let listener = listen(tls.port)?;
    let acceptor = TlsAcceptor::from(tls.config.clone());
    loop {
        let Some(stream) = accept(&listener).await else { continue };
        let acceptor = acceptor.clone();
        let watcher = graceful.watcher();
        tokio::task::spawn_local(async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                serve(stream, watcher).await;
            }
        });
    }
}

async fn accept(listener: &TcpListener) -> Option<TcpStream> {
    let (stream, _) = listener.accept().await.ok()?;
    stream.set_nodelay(true).ok()?;
    Some(stream)
}

/// Runs the streams of HTTP/2 where their connection runs, as hyper's example for one thread does.
#[derive(Clone, Copy)]
struct ThisThread;

impl<F: Future<Output: 'static> + 'static> Executor<F> for ThisThread {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

async fn serve<S>(stream: S, watcher: Watcher)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static,
    TokioIo<S>: Read + Write,
{
    let mut builder = auto::Builder::new(ThisThread);
    builder.http1().timer(TokioTimer::new()).pipeline_flush(true);
    builder.http2().timer(TokioTimer::new());
    let connection = builder.serve_connection(TokioIo::new(stream), service_fn(answer));
    // A peer that goes away is not this program's error.
    let _ = watcher.watch(connection).await;
}
