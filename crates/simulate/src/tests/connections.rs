//! Raw connections, for clients of other protocols.

use super::*;

/// Sends `bytes` and receives until `satisfies`.
async fn talk(
    connection: &SimConnection,
    bytes: &[u8],
    is_enough: impl Fn(&[u8]) -> bool,
) -> Vec<u8> {
    connection.send(bytes).await.expect("nothing is lost");
    let mut all = Vec::new();
    while !is_enough(&all) {
        let bytes = connection.recv().await.expect("nothing is lost");
        assert!(!bytes.is_empty(), "the server closed the connection after {all:?}");
        all.extend(bytes);
    }
    all
}

#[test]
fn a_connection_of_bytes_speaks_http2() {
    let mut ask = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    ask.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    // HEADERS with END_HEADERS and END_STREAM: GET, http, /hello, a.
    let block = [&[0x82, 0x86, 0x04, 6][..], b"/hello", &[0x01, 1], b"a"].concat();
    ask.extend([0, 0, u8::try_from(block.len()).expect("short"), 1, 5, 0, 0, 0, 1]);
    ask.extend(block);
    seeds(0..10, async |sim| {
        let connection = sim.serve(app).connect();
        let ends = |all: &[u8]| all.ends_with(b"hello");
        let answer = talk(&connection, &ask, ends).await;
        let data = [0, 0, 5, 0, 1, 0, 0, 0, 1];
        assert!(answer.windows(9).any(|frame| frame == data), "{answer:?}");
    });
}

#[test]
fn a_connection_of_bytes_speaks_websocket() {
    use peregrine::websocket::WebSocketUpgrade;
    async fn join(upgrade: WebSocketUpgrade) -> Response {
        upgrade.on_upgrade(async |mut socket| {
            while let Some(Ok(message)) = socket.recv().await {
                if socket.send(message).await.is_err() {
                    return;
                }
            }
        })
    }
    seeds(0..10, async |sim| {
        let connection = sim.serve(|| App::new().get("/room", join)).connect();
        let ask = b"GET /room HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        let head = talk(&connection, ask, |all| all.ends_with(b"\r\n\r\n")).await;
        assert!(head.starts_with(b"HTTP/1.1 101"), "{head:?}");
        // A text message with a masking key of zeros.
        let message = [&[0x81, 0x85, 0, 0, 0, 0][..], b"hello"].concat();
        let echo = talk(&connection, &message, |all| all.ends_with(b"hello")).await;
        assert_eq!(echo, [&[0x81, 5][..], b"hello"].concat());
    });
}

#[test]
fn other_clients_run_on_the_stream_of_tokio() {
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
    seeds(0..10, async |sim| {
        let mut stream = std::pin::pin!(sim.serve(app).connect());
        let ask =
            b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc";
        let mut rest = &ask[..];
        while !rest.is_empty() {
            let sent = std::future::poll_fn(|cx| stream.as_mut().poll_write(cx, rest));
            rest = &rest[sent.await.expect("nothing is lost")..];
        }
        std::future::poll_fn(|cx| stream.as_mut().poll_flush(cx)).await.expect("flushed");
        let mut all = Vec::new();
        loop {
            let (mut room, before) = ([0; 7], all.len());
            let mut room = ReadBuf::new(&mut room);
            let read = std::future::poll_fn(|cx| stream.as_mut().poll_read(cx, &mut room));
            read.await.expect("nothing is lost");
            all.extend_from_slice(room.filled());
            if all.len() == before {
                break;
            }
        }
        assert!(all.starts_with(b"HTTP/1.1 200") && all.ends_with(b"\r\nabc"), "{all:?}");
    });
}
