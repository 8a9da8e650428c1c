//! How upgraded connections of mounted services end. The services use hyper's `OnUpgrade`.

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, StatusCode};
use hyper::rt::{Read, ReadBuf, Write};
use peregrine_mount::tower;
use peregrine_web::App;
use peregrine_web::pipe::{DEFAULT_PIPE_BYTES_MAX, PipeWriter, pipe};
use peregrine_web::upgrade::{SendBuffer, UpgradeHandler, Upgraded};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// Runs `test` on a runtime with no other tasks, so that `yield_now` polls all tasks of the test.
fn in_runtime(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime starts").block_on(test);
}

async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

type Theirs = hyper::upgrade::Upgraded;
type Protocol = Pin<Box<dyn Future<Output = ()>>>;

/// The upgrade to `protocol` of a mounted service, which runs it in a tokio task.
async fn promised<F>(
    protocol: impl FnOnce(Theirs) -> F + Clone + Send + Sync + 'static,
) -> UpgradeHandler
where
    F: Future<Output = ()> + Send + 'static,
{
    let upgrade = |request: Request<Body>| {
        let upgraded = hyper::upgrade::on(request);
        tokio::spawn(async move {
            if let Ok(io) = upgraded.await {
                protocol(io).await;
            }
        });
        std::future::ready((StatusCode::SWITCHING_PROTOCOLS, [("upgrade", "raw")]))
    };
    let client = App::new().subtree("/", tower(Router::new().route("/", get(upgrade)))).test();
    let asked = client.get("/").header("connection", "upgrade").header("upgrade", "raw");
    let mut response = asked.send().await.into_response();
    assert_eq!(response.status, StatusCode::SWITCHING_PROTOCOLS);
    response.take_upgrade().expect("the service accepted the upgrade")
}

/// The server's side of an upgraded connection.
struct Connection {
    protocol: Protocol,
    incoming: PipeWriter,
    outgoing: SendBuffer,
}

impl Connection {
    fn begin(upgrade: UpgradeHandler) -> Self {
        let (incoming, reader) = pipe(DEFAULT_PIPE_BYTES_MAX, None);
        let outgoing = SendBuffer::default();
        let protocol = upgrade.run(Upgraded::new(reader, outgoing.clone()));
        Self { protocol, incoming, outgoing }
    }

    /// Polls the protocol until it makes no more progress. Returns whether it ended, and the bytes
    /// sent.
    async fn go_on(&mut self) -> (bool, Vec<u8>) {
        let mut is_over = false;
        for _ in 0..20 {
            poll_fn(|cx| {
                is_over = is_over || self.protocol.as_mut().poll(cx).is_ready();
                Poll::Ready(())
            })
            .await;
            tokio::task::yield_now().await;
        }
        let mut sent = Vec::new();
        let _ = self.outgoing.poll_drain(&mut Context::from_waker(Waker::noop()), &mut sent);
        (is_over, sent)
    }
}

async fn write(io: &mut Theirs, bytes: &[u8]) -> io::Result<usize> {
    poll_fn(|cx| Pin::new(&mut *io).poll_write(cx, bytes)).await
}

/// Reads once. Returns no bytes at the end of the stream.
async fn read(io: &mut Theirs) -> io::Result<Bytes> {
    let mut space = [0; 1000];
    let mut buffer = ReadBuf::new(&mut space);
    poll_fn(|cx| Pin::new(&mut *io).poll_read(cx, buffer.unfilled())).await?;
    Ok(Bytes::copy_from_slice(buffer.filled()))
}

async fn writes_for_ever(mut io: Theirs) {
    while write(&mut io, &[7; 1000]).await.is_ok() {}
}

async fn reads_for_ever(mut io: Theirs) {
    while read(&mut io).await.is_ok_and(|bytes| !bytes.is_empty()) {}
}

async fn reads_and_writes_for_ever(io: Theirs) {
    let io = Arc::new(Mutex::new(io));
    let reads = poll_fn(|cx| {
        let mut space = [0; 1000];
        let mut buffer = ReadBuf::new(&mut space);
        let mut io = io.lock().expect("no test panics here");
        Pin::new(&mut *io).poll_read(cx, buffer.unfilled())
    });
    let writes = async {
        let write = |cx: &mut Context<'_>| {
            let mut io = io.lock().expect("no test panics here");
            Pin::new(&mut *io).poll_write(cx, &[7; 1000])
        };
        while poll_fn(write).await.is_ok() {}
    };
    let (read, ()) = tokio::join!(reads, writes);
    read.expect_err("the connection is dropped");
}

#[test]
fn whoever_reads_or_writes_hears_that_the_connection_was_dropped() {
    in_runtime(async {
        for drop_at in ["before it begins", "when it has begun", "when it waits"] {
            let mut all = Vec::new();
            for upgrade in [
                promised(writes_for_ever).await,
                promised(reads_for_ever).await,
                promised(reads_and_writes_for_ever).await,
            ] {
                if drop_at == "before it begins" {
                    continue;
                }
                let mut connection = Connection::begin(upgrade);
                if drop_at == "when it waits" {
                    assert!(!connection.go_on().await.0);
                }
                all.push(connection);
            }
            settle().await;
            assert_eq!(tasks(), all.len(), "each task waits: {drop_at}");
            drop(all);
            settle().await;
            assert_eq!(tasks(), 0, "dropped {drop_at}");
        }
    });
}

#[test]
fn what_was_received_before_the_end_is_read_before_the_error() {
    let heard = Arc::<Mutex<Vec<String>>>::default();
    let tells = Arc::clone(&heard);
    let reads_late = async move |mut io: Theirs| {
        for _ in 0..3 {
            settle().await;
        }
        for _ in 0..2 {
            let read = read(&mut io).await.map_err(|error| error.kind());
            tells.lock().expect("nothing panics here").push(format!("{read:?}"));
        }
        let written = write(&mut io, b"late").await.map_err(|error| error.kind());
        tells.lock().expect("nothing panics here").push(format!("{written:?}"));
    };
    in_runtime(async move {
        let mut connection = Connection::begin(promised(reads_late).await);
        connection.incoming.send(Bytes::from_static(b"last words"));
        connection.go_on().await;
        drop(connection);
        for _ in 0..5 {
            settle().await;
        }
        let heard = heard.lock().expect("nothing panics here");
        assert_eq!(*heard, [r#"Ok(b"last words")"#, "Err(ConnectionReset)", "Err(BrokenPipe)"]);
    });
}

#[test]
fn a_protocol_that_shuts_its_side_and_reads_on_comes_to_an_end() {
    async fn shuts(mut io: Theirs) {
        write(&mut io, b"bye").await.expect("a write");
        poll_fn(|cx| Pin::new(&mut io).poll_shutdown(cx)).await.expect("a shutdown");
        reads_for_ever(io).await;
    }
    in_runtime(async {
        let mut connection = Connection::begin(promised(shuts).await);
        assert_eq!(connection.go_on().await, (true, b"bye".to_vec()));
        drop(connection);
        settle().await;
        assert_eq!(tasks(), 0);
    });
}
