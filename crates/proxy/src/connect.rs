//! Opens connections to upstreams.

use crate::pool::UpstreamConnection;
use crate::upstreams::Upstream;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::future::poll_fn;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// hyper's limits on the bytes of an incomplete head and of its fields.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The maximum number of header fields of a response over HTTP/1.1.
const HEADERS_MAX: usize = 256;

/// Opens a connection. The connection's task ends when its last sender and the responses in
/// progress are dropped. An upgrade gets an HTTP/1.1 connection.
pub(crate) async fn connect(
    upstream: &Upstream,
    is_upgrade: bool,
) -> io::Result<UpstreamConnection> {
    let stream = TcpStream::connect((upstream.host.as_str(), upstream.port)).await?;
    stream.set_nodelay(true)?;
    #[cfg(feature = "tls")]
    if let Some(tls) = &upstream.tls {
        let stream = tls.connect(stream, is_upgrade).await?;
        return match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => http2::handshake(stream).await,
            _ => handshake_http1(stream).await,
        };
    }
    #[cfg(feature = "tls")]
    if upstream.http2_prior_knowledge && !is_upgrade {
        return http2::handshake(stream).await;
    }
    // Unused without the feature `tls`.
    let _ = is_upgrade;
    handshake_http1(stream).await
}

async fn handshake_http1<T>(stream: T) -> io::Result<UpstreamConnection>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let handshake = http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(io::Error::other)?;
    drop(tokio::task::spawn_local(async move {
        // The request that waits for a response gets the error.
        let _ = connection.with_upgrades().await;
    }));
    poll_fn(|cx| sender.poll_ready(cx)).await.map_err(io::Error::other)?;
    Ok(UpstreamConnection::Http1(sender))
}

#[cfg(feature = "tls")]
mod http2 {
    use super::HEAD_BYTES_MAX;
    use crate::body::UNREAD_BYTES_MAX;
    use crate::pool::{STREAMS_PER_CONNECTION_MAX, UpstreamConnection};
    use crate::settings_sniffer::{SettingsSniffer, SettingsWatcher};
    use hyper::client::conn::http2;
    use hyper::rt::Executor;
    use hyper_util::rt::{TokioIo, TokioTimer};
    use std::io;
    use std::rc::Rc;
    use std::time::Duration;
    use tokio::io::{AsyncRead, AsyncWrite};

    /// A connection that is silent for this long while requests wait gets a PING.
    const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
    const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
    /// The initial flow-control window of a stream. hyper extends it as the client reads.
    const STREAM_WINDOW: u32 = UNREAD_BYTES_MAX;
    /// Enough for all requests that share a connection, so that a client that does not read cannot
    /// block the others.
    const CONNECTION_WINDOW: u32 = STREAM_WINDOW * (STREAMS_PER_CONNECTION_MAX + 1);

    pub(super) async fn handshake<T>(stream: T) -> io::Result<UpstreamConnection>
    where
        T: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let mut builder = http2::Builder::new(LocalExecutor);
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
            .keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(false);
        let watcher = SettingsWatcher::new();
        let stream = TokioIo::new(SettingsSniffer::new(stream, &watcher));
        let (sender, connection) = builder.handshake(stream).await.map_err(io::Error::other)?;
        let closed_watcher = Rc::clone(&watcher);
        drop(tokio::task::spawn_local(async move {
            let _ = connection.await;
            closed_watcher.close();
        }));
        Ok(UpstreamConnection::new_http2(sender, watcher.max_concurrent_streams().await?))
    }

    /// Spawns hyper's tasks on this thread, because bodies are not `Send`.
    #[derive(Clone, Copy)]
    struct LocalExecutor;

    impl<F: Future<Output: 'static> + 'static> Executor<F> for LocalExecutor {
        fn execute(&self, future: F) {
            drop(tokio::task::spawn_local(future));
        }
    }
}
