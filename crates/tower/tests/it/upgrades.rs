//! How upgraded connections of mounted services end. The services use hyper's `OnUpgrade`.

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, StatusCode};
use hyper::rt::{Read, ReadBuf, Write};
use peregrine_tower::tower;
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

/// Yields until all tasks wait.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

fn task_count() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

type HyperUpgraded = hyper::upgrade::Upgraded;
type Protocol = Pin<Box<dyn Future<Output = ()>>>;

/// Requests an upgrade from a mounted service that runs `protocol` in a tokio task.
async fn accepted_upgrade<F>(
    protocol: impl FnOnce(HyperUpgraded) -> F + Clone + Send + Sync + 'static,
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
    let request = client.get("/").header("connection", "upgrade").header("upgrade", "raw");
    let mut response = request.send().await.into_response();
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
    fn new(upgrade: UpgradeHandler) -> Self {
        let (incoming, reader) = pipe(DEFAULT_PIPE_BYTES_MAX, None);
        let outgoing = SendBuffer::default();
        let protocol = upgrade.run(Upgraded::new(reader, outgoing.clone()));
        Self { protocol, incoming, outgoing }
    }

    /// Polls the protocol until it makes no more progress. Returns whether it ended, and the bytes
    /// sent.
    async fn poll_until_idle(&mut self) -> (bool, Vec<u8>) {
        let mut has_ended = false;
        for _ in 0..20 {
            poll_fn(|cx| {
                has_ended = has_ended || self.protocol.as_mut().poll(cx).is_ready();
                Poll::Ready(())
            })
            .await;
            tokio::task::yield_now().await;
        }
        let mut sent = Vec::new();
        let _ = self.outgoing.poll_take(&mut Context::from_waker(Waker::noop()), &mut sent);
        (has_ended, sent)
    }
}

async fn write(io: &mut HyperUpgraded, bytes: &[u8]) -> io::Result<usize> {
    poll_fn(|cx| Pin::new(&mut *io).poll_write(cx, bytes)).await
}

/// Reads once. Returns no bytes at the end of the stream.
async fn read(io: &mut HyperUpgraded) -> io::Result<Bytes> {
    let mut space = [0; 1000];
    let mut buffer = ReadBuf::new(&mut space);
    poll_fn(|cx| Pin::new(&mut *io).poll_read(cx, buffer.unfilled())).await?;
    Ok(Bytes::copy_from_slice(buffer.filled()))
}

async fn write_forever(mut io: HyperUpgraded) {
    while write(&mut io, &[7; 1000]).await.is_ok() {}
}

async fn read_forever(mut io: HyperUpgraded) {
    while read(&mut io).await.is_ok_and(|bytes| !bytes.is_empty()) {}
}

async fn read_and_write_forever(io: HyperUpgraded) {
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
fn reads_and_writes_fail_when_the_connection_is_dropped() {
    in_runtime(async {
        for drop_at in ["before the start", "after the start", "while waiting"] {
            let mut connections = Vec::new();
            for upgrade in [
                accepted_upgrade(write_forever).await,
                accepted_upgrade(read_forever).await,
                accepted_upgrade(read_and_write_forever).await,
            ] {
                if drop_at == "before the start" {
                    continue;
                }
                let mut connection = Connection::new(upgrade);
                if drop_at == "while waiting" {
                    assert!(!connection.poll_until_idle().await.0);
                }
                connections.push(connection);
            }
            settle().await;
            assert_eq!(task_count(), connections.len(), "each task waits: {drop_at}");
            drop(connections);
            settle().await;
            assert_eq!(task_count(), 0, "dropped {drop_at}");
        }
    });
}

#[test]
fn bytes_received_before_the_end_are_read_before_the_error() {
    let results = Arc::<Mutex<Vec<String>>>::default();
    let task_results = Arc::clone(&results);
    let read_late = async move |mut io: HyperUpgraded| {
        for _ in 0..3 {
            settle().await;
        }
        for _ in 0..2 {
            let read = read(&mut io).await.map_err(|error| error.kind());
            task_results.lock().expect("nothing panics here").push(format!("{read:?}"));
        }
        let written = write(&mut io, b"late").await.map_err(|error| error.kind());
        task_results.lock().expect("nothing panics here").push(format!("{written:?}"));
    };
    in_runtime(async move {
        let mut connection = Connection::new(accepted_upgrade(read_late).await);
        connection.incoming.send(Bytes::from_static(b"last words"));
        connection.poll_until_idle().await;
        drop(connection);
        for _ in 0..5 {
            settle().await;
        }
        let results = results.lock().expect("nothing panics here");
        assert_eq!(*results, [r#"Ok(b"last words")"#, "Err(ConnectionReset)", "Err(BrokenPipe)"]);
    });
}

#[test]
fn a_protocol_that_shuts_down_its_side_and_keeps_reading_ends() {
    async fn shut_down_and_read(mut io: HyperUpgraded) {
        write(&mut io, b"bye").await.expect("a write");
        poll_fn(|cx| Pin::new(&mut io).poll_shutdown(cx)).await.expect("a shutdown");
        read_forever(io).await;
    }
    in_runtime(async {
        let mut connection = Connection::new(accepted_upgrade(shut_down_and_read).await);
        assert_eq!(connection.poll_until_idle().await, (true, b"bye".to_vec()));
        drop(connection);
        settle().await;
        assert_eq!(task_count(), 0);
    });
}
