//! A client that speaks HTTP as raw bytes.

use crate::server::bench::{Bench, Got, PATIENCE, Wire};
use crate::server::reply::{self, Reply};
use std::time::Duration;

/// A client on a wire.
pub struct Peer<W> {
    wire: W,
    /// Bytes that came and were not looked at yet.
    received: Vec<u8>,
    last: Option<Got>,
}

impl<W: Wire> Peer<W> {
    /// A client that has said nothing yet.
    #[must_use]
    pub fn new(wire: W) -> Self {
        Self { wire, received: Vec::new(), last: None }
    }

    /// Sends bytes, in the background.
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

    /// Breaks the connection off.
    pub fn reset(self) {
        self.wire.reset();
    }

    /// Waits for more. False: nothing more comes, and `last` says why.
    async fn fill(&mut self, patience: Duration) -> bool {
        if self.last.is_some() {
            return false;
        }
        match self.wire.recv(patience).await {
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

    /// The next whole response.
    ///
    /// # Panics
    /// None comes, or it is malformed.
    pub async fn reply(&mut self) -> Reply {
        self.next_reply(false).await
    }

    /// The next whole response, which answers a HEAD request.
    ///
    /// # Panics
    /// None comes, or it is malformed.
    pub async fn reply_to_head(&mut self) -> Reply {
        self.next_reply(true).await
    }

    /// The next whole response, of which `piece` bytes are received after each `pause`.
    ///
    /// # Panics
    /// None comes, or it is malformed.
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
                other => panic!("no whole reply after {} bytes: {other:?}", self.received.len()),
            }
            bench.sleep(pause).await;
        }
    }

    /// Has anything come?
    pub async fn is_answered(&mut self) -> bool {
        self.fill(Duration::ZERO).await;
        !self.received.is_empty()
    }

    /// Takes a whole response off what was received.
    fn parse(&mut self, is_head: bool) -> Option<Reply> {
        let is_ended = self.last == Some(Got::End);
        match reply::parse(&self.received, is_head, is_ended) {
            Ok(Some((reply, used))) => {
                self.received.drain(..used);
                Some(reply)
            }
            Ok(None) => None,
            Err(fault) => panic!("{fault} in {}", self.shown()),
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
            assert!(is_new || may_end, "no whole reply ({:?}): {}", self.last, self.shown());
        }
    }

    fn shown(&self) -> String {
        let most = self.received.len().min(2_000);
        self.received[..most].escape_ascii().to_string()
    }

    /// Waits until `bytes` came, and takes everything up to their end.
    ///
    /// # Panics
    /// They do not come.
    pub async fn expect(&mut self, bytes: impl AsRef<[u8]>) -> Vec<u8> {
        let bytes = bytes.as_ref();
        loop {
            let place = self.received.windows(bytes.len()).position(|window| window == bytes);
            if let Some(place) = place {
                return self.received.drain(..place + bytes.len()).collect();
            }
            let is_new = self.fill(PATIENCE).await;
            let missing = bytes.escape_ascii();
            assert!(is_new, "no {missing} ({:?}) in {}", self.last, self.shown());
        }
    }

    /// Nothing is here, and nothing comes for `time`.
    ///
    /// # Panics
    /// Something came.
    pub async fn expect_nothing(&mut self, time: Duration) {
        let is_new = self.fill(time).await;
        assert!(!is_new && self.received.is_empty(), "something came: {}", self.shown());
        assert_eq!(self.last, None, "the connection is still open");
    }

    /// The server closes in order, and says nothing before.
    ///
    /// # Panics
    /// It does not, or does.
    pub async fn expect_end(&mut self) {
        let is_new = self.fill(PATIENCE).await;
        assert!(!is_new && self.received.is_empty(), "something came: {}", self.shown());
        assert_eq!(self.last, Some(Got::End), "the connection ends in order");
    }

    /// The connection ends, in order or not. Everything that came and was not looked at.
    ///
    /// # Panics
    /// It does not end.
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

    /// What came, or comes within `patience`.
    ///
    /// # Errors
    /// The connection has ended: whether in order.
    pub async fn more(&mut self, patience: Duration) -> Result<Option<Vec<u8>>, bool> {
        if self.received.is_empty() && !self.fill(patience).await {
            return match &self.last {
                None => Ok(None),
                Some(last) => Err(*last == Got::End),
            };
        }
        Ok(Some(std::mem::take(&mut self.received)))
    }

    /// Reads for `time` and throws away what comes. How much it was.
    pub async fn swallow(&mut self, patience: Duration) -> usize {
        let mut count = self.received.len();
        self.received.clear();
        while self.fill(patience).await {
            count += self.received.len();
            self.received.clear();
        }
        count
    }

    /// Proves that the connection lives: another request on it is answered.
    ///
    /// # Panics
    /// It is not.
    pub async fn expect_alive(&mut self) {
        self.get("/hello");
        let reply = self.reply().await;
        assert_eq!((reply.status, reply.text()), (200, "hello"));
        assert!(!reply.closes(), "the connection stays: {reply:?}");
    }
}
