//! A client that sends and receives HTTP as raw bytes.

use crate::server::bench::{Bench, Got, PATIENCE, Wire};
use crate::server::reply::{self, Reply};
use std::time::Duration;

/// A client on a wire.
pub struct Peer<W> {
    wire: W,
    /// Bytes that were received and not parsed yet.
    received: Vec<u8>,
    last: Option<Got>,
}

impl<W: Wire> Peer<W> {
    /// A client that has sent nothing yet.
    #[must_use]
    pub fn new(wire: W) -> Self {
        Self { wire, received: Vec::new(), last: None }
    }

    /// Sends bytes in the background.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.wire.send(bytes.as_ref());
    }

    /// Sends a GET request for `path`.
    pub fn get(&mut self, path: &str) {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: example.org\r\n\r\n"));
    }

    /// Sends a POST request with `body`.
    pub fn post(&mut self, path: &str, body: &[u8]) {
        let length = body.len();
        let mut request = format!(
            "POST {path} HTTP/1.1\r\nHost: example.org\r\nContent-Length: {length}\r\n\r\n"
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.send(request);
    }

    /// Ends the sending side.
    pub fn half_close(&mut self) {
        self.wire.half_close();
    }

    /// Resets the connection.
    pub fn reset(self) {
        self.wire.reset();
    }

    /// Receives more. Returns false if nothing more arrives; `last` gives the reason.
    async fn fill(&mut self, timeout: Duration) -> bool {
        if self.last.is_some() {
            return false;
        }
        match self.wire.recv(timeout).await {
            Got::Bytes(bytes) => {
                self.received.extend(bytes);
                true
            }
            Got::Nothing => false,
            end => {
                self.last = Some(end);
                false
            }
        }
    }

    /// The next complete response.
    ///
    /// # Panics
    /// If none arrives, or it is malformed.
    pub async fn reply(&mut self) -> Reply {
        self.next_reply(false).await
    }

    /// The next complete response, to a HEAD request.
    ///
    /// # Panics
    /// If none arrives, or it is malformed.
    pub async fn reply_to_head(&mut self) -> Reply {
        self.next_reply(true).await
    }

    /// The next complete response, of which `piece` bytes are received after each `pause`.
    ///
    /// # Panics
    /// If none arrives, or it is malformed.
    pub async fn reply_slowly<B: Bench>(
        &mut self,
        bench: &B,
        piece: usize,
        pause: Duration,
    ) -> Reply {
        loop {
            if let Some(reply) = self.parse(false) {
                return reply;
            }
            match self.wire.recv_at_most(piece, PATIENCE).await {
                Got::Bytes(bytes) => self.received.extend(bytes),
                other => {
                    panic!("no complete response after {} bytes: {other:?}", self.received.len())
                }
            }
            bench.sleep(pause).await;
        }
    }

    /// Whether anything has arrived.
    pub async fn is_answered(&mut self) -> bool {
        self.fill(Duration::ZERO).await;
        !self.received.is_empty()
    }

    /// Parses one complete response from the received bytes.
    fn parse(&mut self, is_head: bool) -> Option<Reply> {
        let is_ended = self.last == Some(Got::End);
        match reply::parse(&self.received, is_head, is_ended) {
            Ok(Some((reply, used))) => {
                self.received.drain(..used);
                Some(reply)
            }
            Ok(None) => None,
            Err(error) => panic!("{error} in {}", self.context()),
        }
    }

    async fn next_reply(&mut self, is_head: bool) -> Reply {
        loop {
            let is_ended = self.last == Some(Got::End);
            if let Some(reply) = self.parse(is_head) {
                return reply;
            }
            let is_new = self.fill(PATIENCE).await;
            let may_end = !is_ended && self.last == Some(Got::End);
            assert!(
                is_new || may_end,
                "no complete response ({:?}): {}",
                self.last,
                self.context()
            );
        }
    }

    fn context(&self) -> String {
        let count = self.received.len().min(2_000);
        self.received[..count].escape_ascii().to_string()
    }

    /// Waits for `bytes`, and takes everything up to their end.
    ///
    /// # Panics
    /// If they do not arrive.
    pub async fn expect(&mut self, bytes: impl AsRef<[u8]>) -> Vec<u8> {
        let bytes = bytes.as_ref();
        loop {
            let position = self.received.windows(bytes.len()).position(|window| window == bytes);
            if let Some(position) = position {
                return self.received.drain(..position + bytes.len()).collect();
            }
            let is_new = self.fill(PATIENCE).await;
            let missing = bytes.escape_ascii();
            assert!(is_new, "no {missing} ({:?}) in {}", self.last, self.context());
        }
    }

    /// Asserts that nothing has arrived, and nothing arrives for `time`.
    ///
    /// # Panics
    /// If something did.
    pub async fn expect_nothing(&mut self, time: Duration) {
        let is_new = self.fill(time).await;
        assert!(!is_new && self.received.is_empty(), "unexpected data: {}", self.context());
        assert_eq!(self.last, None, "the connection is still open");
    }

    /// Asserts that the server closes cleanly without sending anything first.
    ///
    /// # Panics
    /// If it does not.
    pub async fn expect_end(&mut self) {
        let is_new = self.fill(PATIENCE).await;
        assert!(!is_new && self.received.is_empty(), "unexpected data: {}", self.context());
        assert_eq!(self.last, Some(Got::End), "the connection ends cleanly");
    }

    /// Waits for the end of the connection, clean or not. Returns all bytes not yet parsed.
    ///
    /// # Panics
    /// If it does not end.
    pub async fn rest(&mut self) -> Vec<u8> {
        while self.fill(PATIENCE).await {}
        assert!(self.last.is_some(), "the connection does not end");
        std::mem::take(&mut self.received)
    }

    /// The wire below.
    pub fn wire(&mut self) -> &mut W {
        &mut self.wire
    }

    /// How the connection ended, if it has.
    #[must_use]
    pub fn last(&self) -> Option<&Got> {
        self.last.as_ref()
    }

    /// Data that has arrived, or arrives within `timeout`.
    ///
    /// # Errors
    /// If the connection has ended; the value is whether it ended cleanly.
    pub async fn more(&mut self, timeout: Duration) -> Result<Option<Vec<u8>>, bool> {
        if self.received.is_empty() && !self.fill(timeout).await {
            return match &self.last {
                None => Ok(None),
                Some(last) => Err(*last == Got::End),
            };
        }
        Ok(Some(std::mem::take(&mut self.received)))
    }

    /// Reads for `timeout` and discards the data. Returns how much it was.
    pub async fn swallow(&mut self, timeout: Duration) -> usize {
        let mut count = self.received.len();
        self.received.clear();
        while self.fill(timeout).await {
            count += self.received.len();
            self.received.clear();
        }
        count
    }

    /// Asserts that the connection works by sending another request.
    ///
    /// # Panics
    /// If it gets no response.
    pub async fn expect_alive(&mut self) {
        self.get("/hello");
        let reply = self.reply().await;
        assert_eq!((reply.status, reply.text()), (200, "hello"));
        assert!(!reply.closes(), "the connection stays open: {reply:?}");
    }
}
