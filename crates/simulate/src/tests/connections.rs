//! Raw connections, for clients of other protocols.

use super::*;

/// Sends `bytes` and receives until the received bytes are complete.
async fn exchange(
    connection: &SimConnection,
    bytes: &[u8],
    is_complete: impl Fn(&[u8]) -> bool,
) -> Vec<u8> {
    connection.send(bytes).await.expect("nothing is lost");
    let mut received = Vec::new();
    while !is_complete(&received) {
        let bytes = connection.recv().await.expect("nothing is lost");
        assert!(!bytes.is_empty(), "the server closed the connection after {received:?}");
        received.extend(bytes);
    }
    received
}

#[test]
fn a_raw_connection_can_speak_http2() {
    let mut request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    request.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    // HEADERS with END_HEADERS and END_STREAM: GET, http, /hello, a.
    let block = [&[0x82, 0x86, 0x04, 6][..], b"/hello", &[0x01, 1], b"a"].concat();
    request.extend([0, 0, u8::try_from(block.len()).expect("below 256"), 1, 5, 0, 0, 0, 1]);
    request.extend(block);
    seeds(0..10, async |sim| {
        let connection = sim.serve(app).connect();
        let is_complete = |received: &[u8]| received.ends_with(b"hello");
        let response = exchange(&connection, &request, is_complete).await;
        let data = [0, 0, 5, 0, 1, 0, 0, 0, 1];
        assert!(response.windows(9).any(|frame| frame == data), "{response:?}");
    });
}

#[test]
fn a_raw_connection_can_speak_websocket() {
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
        let request =
            b"GET /room HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        let head = exchange(&connection, request, |received| received.ends_with(b"\r\n\r\n")).await;
        assert!(head.starts_with(b"HTTP/1.1 101"), "{head:?}");
        // A text message with a masking key of zeros.
        let message = [&[0x81, 0x85, 0, 0, 0, 0][..], b"hello"].concat();
        let echo = exchange(&connection, &message, |received| received.ends_with(b"hello")).await;
        assert_eq!(echo, [&[0x81, 5][..], b"hello"].concat());
    });
}

#[test]
fn a_connection_implements_the_io_traits_of_tokio() {
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
    seeds(0..10, async |sim| {
        let mut stream = std::pin::pin!(sim.serve(app).connect());
        let request =
            b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc";
        let mut unsent = &request[..];
        while !unsent.is_empty() {
            let sent = std::future::poll_fn(|cx| stream.as_mut().poll_write(cx, unsent));
            unsent = &unsent[sent.await.expect("nothing is lost")..];
        }
        std::future::poll_fn(|cx| stream.as_mut().poll_flush(cx))
            .await
            .expect("the connection is open");
        let mut received = Vec::new();
        loop {
            let (mut buffer, length_before) = ([0; 7], received.len());
            let mut buffer = ReadBuf::new(&mut buffer);
            let read = std::future::poll_fn(|cx| stream.as_mut().poll_read(cx, &mut buffer));
            read.await.expect("nothing is lost");
            received.extend_from_slice(buffer.filled());
            if received.len() == length_before {
                break;
            }
        }
        assert!(
            received.starts_with(b"HTTP/1.1 200") && received.ends_with(b"\r\nabc"),
            "{received:?}"
        );
    });
}
