//! A client for both protocols, so that a case can be written once.

use crate::server::bench::{Bench, Got, PATIENCE, Served, Wire};
use crate::server::reply::{self, Framing};
use crate::server::secure::{Secure, client_config};
use crate::server::streams::{Answer, Streams};
use peregrine_tls::rustls::version;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// How a client connects to a server: the protocol, and the transport below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    is_http2: bool,
    is_secure: bool,
}

impl Way {
    /// HTTP/1.1.
    pub const HTTP1: Self = Self { is_http2: false, is_secure: false };
    /// HTTP/1.1 in TLS.
    pub const HTTP1_TLS: Self = Self { is_http2: false, is_secure: true };
    /// HTTP/2 with prior knowledge.
    pub const HTTP2: Self = Self { is_http2: true, is_secure: false };
    /// HTTP/2 over TLS, by ALPN.
    pub const HTTP2_TLS: Self = Self { is_http2: true, is_secure: true };

    /// Whether it uses TLS.
    #[must_use]
    pub fn is_secure(self) -> bool {
        self.is_secure
    }

    /// A value that depends on the protocol: `http1` for HTTP/1.1, `http2` for HTTP/2. The table of
    /// `docs/protocols.md` gives the reason for each use.
    pub fn differs<T>(self, http1: T, http2: T) -> T {
        if self.is_http2 { http2 } else { http1 }
    }

    /// The ALPN name of the protocol.
    #[must_use]
    pub fn name(self) -> &'static str {
        if self.is_http2 { "h2" } else { "http/1.1" }
    }

    /// Connects to `server` and completes the handshake.
    pub async fn connect<S: Served>(self, server: &S) -> Client<S::Wire> {
        self.speak(self.wire(server)).await
    }

    /// A connection on which nothing was sent.
    pub fn wire<S: Served>(self, server: &S) -> S::Wire {
        if self.is_secure { server.connect_secure() } else { server.connect() }
    }

    /// Starts HTTP on a connection, after completing the handshake.
    pub async fn speak<W: Wire>(self, wire: W) -> Client<W> {
        let wire = if self.is_secure {
            let mut config = (*client_config(&version::TLS13)).clone();
            config.alpn_protocols = vec![self.name().into()];
            let mut wire = Secure::new(wire, &Arc::new(config));
            wire.shake_hands(PATIENCE).await;
            Wired::Secure(Box::new(wire))
        } else {
            Wired::Plain(wire)
        };
        let protocol = if self.is_http2 {
            let mut streams = Streams::new(wire);
            streams.scheme = if self.is_secure { "https" } else { "http" };
            Protocol::Http2(Box::new(streams))
        } else {
            Protocol::Http1(Pipeline::new(wire))
        };
        Client { way: self, protocol }
    }
}

/// A wire, with or without TLS.
pub enum Wired<W> {
    /// Without TLS.
    Plain(W),
    /// With TLS.
    Secure(Box<Secure<W>>),
}

impl<W: Wire> Wire for Wired<W> {
    fn send(&mut self, bytes: &[u8]) {
        match self {
            Self::Plain(wire) => wire.send(bytes),
            Self::Secure(wire) => wire.send(bytes),
        }
    }

    fn half_close(&mut self) {
        match self {
            Self::Plain(wire) => wire.half_close(),
            Self::Secure(wire) => wire.half_close(),
        }
    }

    async fn recv(&mut self, timeout: Duration) -> Got {
        match self {
            Self::Plain(wire) => wire.recv(timeout).await,
            Self::Secure(wire) => wire.recv(timeout).await,
        }
    }

    fn reset(self) {
        match self {
            Self::Plain(wire) => wire.reset(),
            Self::Secure(wire) => wire.reset(),
        }
    }
}

/// A client with a connection.
pub struct Client<W> {
    /// How it is connected.
    pub way: Way,
    protocol: Protocol<Wired<W>>,
}

enum Protocol<W> {
    Http1(Pipeline<W>),
    Http2(Box<Streams<W>>),
}

/// An exchange of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id(u32);

/// The declared length of the content that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// No content.
    None,
    /// The length of the content.
    Declared(usize),
    /// Nothing: HTTP/1.1 sends the content in chunks.
    Undeclared,
}

impl<W: Wire> Client<W> {
    /// Sends a GET request.
    pub fn get(&mut self, path: &str) -> Id {
        self.ask("GET", path, &[])
    }

    /// Sends a request without content.
    pub fn ask(&mut self, method: &str, path: &str, fields: &[(&str, &str)]) -> Id {
        self.begin(method, path, fields, Length::None)
    }

    /// Sends a POST request with content of a declared length, as fast as the server accepts it.
    pub async fn post(&mut self, path: &str, content: &[u8]) -> Id {
        let id = self.begin("POST", path, &[], Length::Declared(content.len()));
        self.upload(id, content).await;
        id
    }

    /// Sends the head of a request.
    pub fn begin(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        length: Length,
    ) -> Id {
        match &mut self.protocol {
            Protocol::Http1(pipeline) => Id(pipeline.begin(method, path, fields, length)),
            Protocol::Http2(streams) => {
                let text = if let Length::Declared(length) = length { length } else { 0 };
                let text = text.to_string();
                let mut fields = fields.to_vec();
                if matches!(length, Length::Declared(_)) {
                    fields.push(("content-length", &text));
                }
                Id(streams.open(method, path, &fields, length == Length::None))
            }
        }
    }

    /// Sends part of the content, as fast as the server accepts it.
    pub async fn part(&mut self, id: Id, content: &[u8]) {
        match &mut self.protocol {
            Protocol::Http1(pipeline) => pipeline.content(content),
            Protocol::Http2(streams) => streams.upload_part(id.0, content, false).await,
        }
    }

    /// Sends part of the content, but stops once the server has responded or ended the connection.
    pub async fn part_unless_answered(&mut self, id: Id, content: &[u8]) {
        match &mut self.protocol {
            Protocol::Http1(pipeline) => pipeline.content(content),
            Protocol::Http2(streams) => streams.upload_unless_answered(id.0, content).await,
        }
    }

    /// Sends the last part of the content, as fast as the server accepts it.
    pub async fn upload(&mut self, id: Id, content: &[u8]) {
        self.part(id, content).await;
        self.end(id, &[]);
    }

    /// Ends the content, with trailers if its length was not declared.
    pub fn end(&mut self, id: Id, trailers: &[(&str, &str)]) {
        match &mut self.protocol {
            Protocol::Http1(pipeline) => pipeline.end(trailers),
            Protocol::Http2(streams) if trailers.is_empty() => streams.data(id.0, b"", true),
            Protocol::Http2(streams) => streams.trailers(id.0, trailers),
        }
    }

    /// Sends a CONNECT request.
    pub fn connect_to(&mut self, host: &str) -> Id {
        self.set_host(host);
        let path = self.way.differs(host, "");
        self.ask("CONNECT", path, &[])
    }

    /// Sets the host of later requests.
    pub fn set_host(&mut self, host: &str) {
        let target = match &mut self.protocol {
            Protocol::Http1(pipeline) => &mut pipeline.host,
            Protocol::Http2(streams) => &mut streams.authority,
        };
        host.clone_into(target);
    }

    /// Sends a GET request for a scheme, whatever the transport.
    pub fn get_by(&mut self, scheme: &'static str, path: &str) -> Id {
        match &mut self.protocol {
            Protocol::Http1(_) => self.get(&format!("{scheme}://localhost{path}")),
            Protocol::Http2(streams) => {
                let original_scheme = std::mem::replace(&mut streams.scheme, scheme);
                let id = streams.get(path);
                streams.scheme = original_scheme;
                Id(id)
            }
        }
    }

    /// Sends an incomplete head.
    pub fn half_a_head(&mut self) -> Id {
        Id(match &mut self.protocol {
            Protocol::Http1(pipeline) => pipeline.partial_head(),
            Protocol::Http2(streams) => streams.half_a_head(),
        })
    }

    /// Everything received for an exchange so far.
    pub fn so_far(&mut self, id: Id) -> Answer {
        match &mut self.protocol {
            Protocol::Http1(pipeline) => pipeline.exchanges[id.0 as usize].response.clone(),
            Protocol::Http2(streams) => streams.so_far(id.0),
        }
    }

    /// Receives more. Returns false if nothing arrived or nothing more can arrive.
    pub async fn fill(&mut self, timeout: Duration) -> bool {
        match &mut self.protocol {
            Protocol::Http1(pipeline) => pipeline.fill(timeout).await,
            Protocol::Http2(streams) => streams.fill(timeout).await,
        }
    }

    /// How the connection ended, if it has.
    pub fn last(&self) -> Option<&Got> {
        match &self.protocol {
            Protocol::Http1(pipeline) => pipeline.last.as_ref(),
            Protocol::Http2(streams) => streams.last(),
        }
    }

    async fn receive_until(&mut self, id: Id, condition: impl Fn(&Answer) -> bool) -> Answer {
        loop {
            let response = self.so_far(id);
            if condition(&response) || response.is_complete || response.reset.is_some() {
                return response;
            }
            if self.fill(PATIENCE).await {
                continue;
            }
            let response = self.so_far(id);
            assert!(self.last().is_some(), "{:?} {id:?} is not complete: {response:?}", self.way);
            return response;
        }
    }

    /// Waits until an exchange is complete, and takes its response.
    ///
    /// # Panics
    /// If it does not complete.
    pub async fn answer(&mut self, id: Id) -> Answer {
        self.receive_until(id, |_| false).await
    }

    /// Waits for the final head.
    ///
    /// # Panics
    /// If it does not arrive.
    pub async fn head(&mut self, id: Id) -> Answer {
        self.receive_until(id, |response| response.status() > 0).await
    }

    /// Waits until `bytes` bytes of content have arrived.
    ///
    /// # Panics
    /// If they do not arrive.
    pub async fn expect(&mut self, id: Id, bytes: usize) -> Answer {
        let response = self.receive_until(id, |response| response.body.len() >= bytes).await;
        assert!(response.body.len() >= bytes, "{:?} {:?}", self.way, self.last());
        response
    }

    /// Asserts that nothing arrives for an exchange for `time`.
    ///
    /// # Panics
    /// If something arrives.
    pub async fn expect_nothing(&mut self, id: Id, time: Duration) {
        let earlier = self.so_far(id);
        while self.fill(time).await {}
        let now = self.so_far(id);
        assert_eq!((earlier.heads, earlier.body), (now.heads, now.body), "{:?}", self.way);
        assert_eq!(self.last(), None, "the connection is still open");
    }

    /// Receives until `condition` holds.
    ///
    /// # Panics
    /// If it does not hold in time.
    pub async fn wait_until<B: Bench>(
        &mut self,
        bench: &B,
        description: &str,
        condition: impl Fn() -> bool,
    ) {
        let start = bench.now();
        while !condition() {
            let way = self.way;
            assert!(bench.now() < start + PATIENCE, "{way:?} is still waiting until {description}");
            if !self.fill_a_little().await {
                bench.sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// Cancels an exchange by resetting its stream, or the connection.
    pub fn cancel(&mut self, id: Id) {
        match &mut self.protocol {
            Protocol::Http1(pipeline) => pipeline.reset(),
            Protocol::Http2(streams) => streams.reset(id.0),
        }
    }

    /// Resets the connection.
    pub fn break_off(self) {
        match self.protocol {
            Protocol::Http1(mut pipeline) => pipeline.reset(),
            Protocol::Http2(streams) => streams.break_off(),
        }
    }

    /// Waits for the end of the connection.
    ///
    /// # Panics
    /// If it does not end.
    pub async fn ended(&mut self) -> Got {
        while self.fill(PATIENCE).await {}
        self.last().cloned().expect("the connection does not end")
    }

    /// Whether the server announced that it accepts no more requests: in a response with HTTP/1.1,
    /// by GOAWAY with HTTP/2.
    pub fn is_told_to_go(&self) -> bool {
        match &self.protocol {
            Protocol::Http1(pipeline) => pipeline.exchanges.iter().any(|exchange| {
                let option = exchange.response.field("connection").unwrap_or_default();
                option.split(", ").any(|option| option == "close")
            }),
            Protocol::Http2(streams) => !streams.go_away.is_empty(),
        }
    }

    /// The code of the last GOAWAY; 0 over HTTP/1.1, which has none.
    pub fn go_away_code(&self) -> u32 {
        match &self.protocol {
            Protocol::Http1(_) => 0,
            Protocol::Http2(streams) => streams.go_away.last().map_or(0, |(_, code)| *code),
        }
    }

    /// Stops reading: with HTTP/2 by keeping windows closed, with HTTP/1.1 by not receiving.
    pub fn take_no_more(&mut self) {
        match &mut self.protocol {
            Protocol::Http1(pipeline) => pipeline.has_stopped_reading = true,
            Protocol::Http2(streams) => streams.keep_windows_shut(),
        }
    }

    /// Receives a little, unless the client has stopped reading.
    async fn fill_a_little(&mut self) -> bool {
        match &mut self.protocol {
            Protocol::Http1(pipeline) if pipeline.has_stopped_reading => false,
            _ => self.fill(Duration::from_millis(2)).await,
        }
    }

    /// Sends a request and gets its response on the same connection.
    ///
    /// # Panics
    /// If the connection cannot be used any more.
    pub async fn expect_alive(&mut self) {
        let id = self.get("/hello");
        let response = self.answer(id).await;
        assert_eq!((response.status(), response.text()), (200, "hello"), "{:?}", self.way);
        assert!(!self.is_told_to_go(), "the connection stays open: {:?}", self.way);
    }

    /// Asserts that the connection ends cleanly after announcing it.
    ///
    /// # Panics
    /// If it does not.
    pub async fn expect_goodbye(&mut self) {
        assert_eq!(self.ended().await, Got::End, "{:?}", self.way);
        assert!(self.is_told_to_go(), "{:?}", self.way);
    }

    /// Closes the connection cleanly, once the server has read everything.
    pub async fn close(mut self) {
        if self.last().is_none() {
            self.settle().await;
            match &mut self.protocol {
                Protocol::Http1(pipeline) => pipeline.half_close(),
                Protocol::Http2(streams) => streams.half_close(),
            }
            self.ended().await;
        }
    }

    /// With HTTP/2, waits until the server has processed everything sent.
    pub async fn settle(&mut self) {
        if let Protocol::Http2(streams) = &mut self.protocol {
            streams.round_trip().await;
        }
    }
}

/// An HTTP/1.1 client that pipelines requests and gets the responses in order.
struct Pipeline<W> {
    wire: Option<W>,
    host: String,
    received: Vec<u8>,
    exchanges: Vec<Exchange>,
    /// The number of complete responses.
    completed: usize,
    step: Step,
    is_chunked: bool,
    has_stopped_reading: bool,
    last: Option<Got>,
}

struct Exchange {
    is_head: bool,
    response: Answer,
}

/// The element that the parser expects next.
enum Step {
    Head,
    Length(usize),
    Size,
    Chunk(usize),
    Trailers(Vec<(String, String)>),
    UntilClose,
}

impl<W: Wire> Pipeline<W> {
    fn new(wire: W) -> Self {
        Self {
            wire: Some(wire),
            host: "localhost".to_owned(),
            received: Vec::new(),
            exchanges: Vec::new(),
            completed: 0,
            step: Step::Head,
            is_chunked: false,
            has_stopped_reading: false,
            last: None,
        }
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        if let Some(wire) = &mut self.wire {
            wire.send(bytes.as_ref());
        }
    }

    fn half_close(&mut self) {
        if let Some(wire) = &mut self.wire {
            wire.half_close();
        }
    }

    fn reset(&mut self) {
        if let Some(wire) = self.wire.take() {
            wire.reset();
            self.last = Some(Got::Broken);
        }
    }

    fn begin(&mut self, method: &str, path: &str, fields: &[(&str, &str)], length: Length) -> u32 {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.host);
        for (name, value) in fields {
            write!(head, "{name}: {value}\r\n").expect("writing to a string cannot fail");
        }
        self.is_chunked = length == Length::Undeclared;
        head.push_str(&match length {
            Length::None => String::new(),
            Length::Declared(length) => format!("Content-Length: {length}\r\n"),
            Length::Undeclared => "Transfer-Encoding: chunked\r\n".to_owned(),
        });
        head.push_str("\r\n");
        self.send(head);
        self.exchanges.push(Exchange { is_head: method == "HEAD", response: Answer::default() });
        u32::try_from(self.exchanges.len() - 1).expect("the count is small")
    }

    fn partial_head(&mut self) -> u32 {
        self.send("GET /hello HTTP/1.1\r\nHo");
        self.exchanges.push(Exchange { is_head: false, response: Answer::default() });
        u32::try_from(self.exchanges.len() - 1).expect("the count is small")
    }

    fn content(&mut self, content: &[u8]) {
        if content.is_empty() || !self.is_chunked {
            return self.send(content);
        }
        let mut chunk = format!("{:x}\r\n", content.len()).into_bytes();
        chunk.extend_from_slice(content);
        chunk.extend_from_slice(b"\r\n");
        self.send(chunk);
    }

    fn end(&mut self, trailers: &[(&str, &str)]) {
        if !self.is_chunked {
            assert!(trailers.is_empty(), "content of a declared length has no trailers");
            return;
        }
        let mut end = "0\r\n".to_owned();
        for (name, value) in trailers {
            write!(end, "{name}: {value}\r\n").expect("writing to a string cannot fail");
        }
        self.send(end + "\r\n");
    }

    async fn fill(&mut self, timeout: Duration) -> bool {
        let Some(wire) = self.wire.as_mut().filter(|_| self.last.is_none()) else { return false };
        match wire.recv(timeout).await {
            Got::Bytes(bytes) => {
                self.received.extend(bytes);
                while self.advance() {}
                true
            }
            Got::Nothing => false,
            end => {
                if let (Got::End, Step::UntilClose) = (&end, &self.step) {
                    self.complete();
                }
                self.last = Some(end);
                false
            }
        }
    }

    fn complete(&mut self) {
        self.exchanges[self.completed].response.is_complete = true;
        self.completed += 1;
        self.step = Step::Head;
    }

    fn line(&mut self) -> Option<String> {
        let (text, used) = reply::line(&self.received).expect("the line is complete")?;
        let text = text.to_owned();
        self.received.drain(..used);
        Some(text)
    }

    /// Moves received content to the response. Returns how much is still missing.
    fn take(&mut self, remaining: usize) -> usize {
        let count = remaining.min(self.received.len());
        let response = &mut self.exchanges[self.completed].response;
        response.body.extend(self.received.drain(..count));
        remaining - count
    }

    /// Parses the next part. Returns false if more data is needed first.
    fn advance(&mut self) -> bool {
        match std::mem::replace(&mut self.step, Step::Head) {
            Step::Head => return self.take_head(),
            Step::Length(remaining) => match self.take(remaining) {
                0 => self.complete(),
                remaining => {
                    self.step = Step::Length(remaining);
                    return false;
                }
            },
            Step::Size => {
                let Some(line) = self.line() else {
                    self.step = Step::Size;
                    return false;
                };
                let size = usize::from_str_radix(&line, 16).expect("a chunk has a size");
                self.step = if size == 0 { Step::Trailers(Vec::new()) } else { Step::Chunk(size) };
            }
            Step::Chunk(0) => match self.line() {
                Some(line) => {
                    assert_eq!(line, "", "a chunk has an end");
                    self.step = Step::Size;
                }
                None => {
                    self.step = Step::Chunk(0);
                    return false;
                }
            },
            Step::Chunk(remaining) => {
                let remaining = self.take(remaining);
                self.step = Step::Chunk(remaining);
                return remaining == 0;
            }
            Step::Trailers(mut fields) => match self.line() {
                Some(line) if line.is_empty() => {
                    if !fields.is_empty() {
                        self.exchanges[self.completed].response.heads.push(fields);
                    }
                    self.complete();
                }
                Some(line) => {
                    fields.push(reply::field(&line).expect("the line is a header field"));
                    self.step = Step::Trailers(fields);
                }
                None => {
                    self.step = Step::Trailers(fields);
                    return false;
                }
            },
            Step::UntilClose => {
                self.take(usize::MAX);
                self.step = Step::UntilClose;
                return false;
            }
        }
        true
    }

    fn take_head(&mut self) -> bool {
        if self.received.is_empty() {
            return false;
        }
        // A server may explain why it ends to a client that has sent no request.
        if self.completed == self.exchanges.len() {
            self.exchanges.push(Exchange { is_head: false, response: Answer::default() });
        }
        let Some(head) = reply::parse_head(&self.received).expect("the head is valid") else {
            return false;
        };
        let exchange = &mut self.exchanges[self.completed];
        let is_interim = (100..200).contains(&head.status) && head.status != 101;
        let framing = if is_interim { Ok(Framing::None) } else { head.framing(exchange.is_head) };
        let length = head.field("content-length").map(|length| length.parse());
        let (status, bytes) = (head.status.to_string(), head.bytes);
        let mut fields = vec![(":status".to_owned(), status)];
        fields.extend(head.fields);
        exchange.response.heads.push(fields);
        self.received.drain(..bytes);
        if is_interim {
            return true;
        }
        match framing.expect("the framing is valid") {
            Framing::None => self.complete(),
            Framing::Length => {
                let length = length.expect("the framing says so").expect("the text is a number");
                self.step = Step::Length(length);
            }
            Framing::Chunked => self.step = Step::Size,
            Framing::UntilClose => self.step = Step::UntilClose,
        }
        true
    }
}
