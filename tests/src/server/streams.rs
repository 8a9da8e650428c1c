//! An HTTP/2 client built on the frames and the HPACK of the protocol core.

use crate::server::bench::{Got, PATIENCE, Wire};
use peregrine_proto::KnownField;
use peregrine_proto::h2::frame::{self, FrameHeader, FrameType, flags, setting_id};
use peregrine_proto::h2::hpack::{Decoder, Encoder, Field, FieldSink};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A client on a wire.
pub struct Streams<W> {
    wire: W,
    received: Vec<u8>,
    decoder: Decoder,
    encoder: Encoder,
    responses: BTreeMap<u32, Answer>,
    next: u32,
    /// How much the server allows the client to send, in total and per stream.
    window: i64,
    windows: BTreeMap<u32, i64>,
    /// How much it allows on a new stream.
    first_window: i64,
    /// Whether received data opens the windows.
    opens_windows: bool,
    answers_pings: bool,
    /// Received bytes for which the windows were not opened.
    unacknowledged: BTreeMap<u32, usize>,
    /// The DATA frames with that data: their stream and length.
    unacknowledged_frames: VecDeque<(u32, usize)>,
    /// The scheme of requests.
    pub scheme: &'static str,
    /// The host of requests.
    pub authority: String,
    /// Every GOAWAY: its last stream and its code.
    pub go_away: Vec<(u32, u32)>,
    last: Option<Got>,
}

/// Everything received on a stream.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The heads of interim responses, the final head and the trailers.
    pub heads: Vec<Vec<(String, String)>>,
    /// The content.
    pub body: Vec<u8>,
    /// Whether the response is complete.
    pub is_complete: bool,
    /// The code of RST_STREAM, if one arrived.
    pub reset: Option<u32>,
}

impl Answer {
    /// The final status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.statuses().into_iter().find(|status| *status >= 200).unwrap_or(0)
    }

    /// All statuses.
    #[must_use]
    pub fn statuses(&self) -> Vec<u16> {
        let all = self.heads.iter().flatten().filter(|(name, _)| name == ":status");
        all.map(|(_, value)| value.parse().unwrap_or(0)).collect()
    }

    /// The content as text.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap_or("(no text)")
    }

    /// A field of the trailers.
    #[must_use]
    pub fn trailer(&self, name: &str) -> Option<&str> {
        let trailers =
            self.heads.last().filter(|fields| fields.iter().all(|field| field.0 != ":status"));
        trailers?.iter().find(|field| field.0 == name).map(|(_, value)| value.as_str())
    }

    /// A field of any head or of the trailers.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut all = self.heads.iter().flatten();
        all.find(|field| field.0 == name).map(|(_, value)| value.as_str())
    }
}

#[derive(Default)]
struct Fields(Vec<(String, String)>);

impl FieldSink for Fields {
    fn field(&mut self, field: Field<'_>) -> bool {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.0.push((text(field.name), text(field.value)));
        true
    }
}

impl<W: Wire> Streams<W> {
    /// A client that has sent its preface.
    #[must_use]
    pub fn new(wire: W) -> Self {
        Self::with_settings(wire, &[])
    }

    /// A client that has sent its preface with these settings.
    #[must_use]
    pub fn with_settings(wire: W, settings: &[(u16, u32)]) -> Self {
        let mut bytes = frame::PREFACE.to_vec();
        frame::write_settings(settings.iter().copied(), &mut bytes);
        let mut client = Self::silent(wire);
        client.send(&bytes);
        client
    }

    /// A client that has sent nothing.
    #[must_use]
    pub fn silent(wire: W) -> Self {
        Self {
            wire,
            received: Vec::new(),
            decoder: Decoder::new(),
            encoder: Encoder::new(4096),
            responses: BTreeMap::new(),
            next: 1,
            window: 65_535,
            first_window: 65_535,
            windows: BTreeMap::new(),
            opens_windows: true,
            answers_pings: true,
            unacknowledged: BTreeMap::new(),
            unacknowledged_frames: VecDeque::new(),
            scheme: "http",
            authority: "localhost".to_owned(),
            go_away: Vec::new(),
            last: None,
        }
    }

    /// The wire below.
    pub fn wire(&mut self) -> &mut W {
        &mut self.wire
    }

    /// Opens the connection's window by 64 KiB.
    pub fn open_window(&mut self) {
        let mut bytes = Vec::new();
        frame::write_window_update(0, 65_536, &mut bytes);
        self.send(&bytes);
    }

    /// Stops opening windows.
    pub fn keep_windows_shut(&mut self) {
        self.opens_windows = false;
    }

    /// Stops answering PING.
    pub fn answer_no_pings(&mut self) {
        self.answers_pings = false;
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.wire.send(bytes);
    }

    /// Sends one frame.
    pub fn frame(&mut self, kind: FrameType, flags: u8, stream: u32, payload: &[u8]) {
        let mut bytes = Vec::new();
        frame::write_frame(kind, flags, stream, payload, &mut bytes);
        self.send(&bytes);
    }

    /// The header block of a request.
    pub fn block(&mut self, method: &str, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        self.encoder.begin_block(&mut block);
        let authority = &*self.authority;
        let line = [(":method", method), (":scheme", self.scheme), (":authority", authority)];
        let path = (!path.is_empty()).then_some((":path", path));
        // CONNECT has neither scheme nor path.
        let line = line.into_iter().filter(|field| path.is_some() || field.0 != ":scheme");
        for (name, value) in line.chain(path).chain(fields.iter().copied()) {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            self.encoder.field(KnownField::Other, name, value, &mut block);
        }
        block
    }

    /// Opens a stream. `is_complete`: nothing follows its head.
    pub fn open(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        is_complete: bool,
    ) -> u32 {
        let block = self.block(method, path, fields);
        let id = self.next;
        self.next += 2;
        let end = if is_complete { flags::END_STREAM } else { 0 };
        let mut pieces = block.chunks(16_384).peekable();
        let (mut kind, mut flags) = (FrameType::Headers, end);
        while let Some(piece) = pieces.next() {
            flags |= if pieces.peek().is_none() { flags::END_HEADERS } else { 0 };
            self.frame(kind, flags, id, piece);
            (kind, flags) = (FrameType::Continuation, 0);
        }
        id
    }

    /// Opens a stream with a block supplied by the case.
    pub fn open_block(&mut self, block: &[u8], flags: u8) -> u32 {
        let id = self.next;
        self.next += 2;
        self.frame(FrameType::Headers, flags, id, block);
        id
    }

    /// Sends a GET request.
    pub fn get(&mut self, path: &str) -> u32 {
        self.open("GET", path, &[], true)
    }

    /// Sends content, ignoring the windows.
    pub fn data(&mut self, stream: u32, data: &[u8], is_last: bool) {
        let end = if is_last { flags::END_STREAM } else { 0 };
        self.frame(FrameType::Data, end, stream, data);
    }

    /// Sends content as the windows allow, and the end.
    ///
    /// # Panics
    /// If the windows stay closed.
    pub async fn upload(&mut self, stream: u32, data: &[u8]) {
        self.upload_part(stream, data, true).await;
    }

    /// Sends part of the content as the windows allow; `is_last` ends the stream.
    ///
    /// # Panics
    /// If the windows stay closed.
    pub async fn upload_part(&mut self, stream: u32, mut data: &[u8], is_last: bool) {
        while !data.is_empty() {
            let count = self.data_that_fits(stream, data, is_last);
            if count == 0 {
                assert!(self.fill(PATIENCE).await, "the windows stay closed: {:?}", self.last);
            }
            data = &data[count..];
        }
    }

    /// Sends part of the content as the windows allow, but stops once the server has responded or
    /// ended the connection, which it may do at any time.
    ///
    /// # Panics
    /// If the windows stay closed and the connection is open.
    pub async fn upload_unless_answered(&mut self, stream: u32, mut data: &[u8]) {
        while !data.is_empty() && self.last.is_none() && self.so_far(stream).status() == 0 {
            let count = self.data_that_fits(stream, data, false);
            if count == 0 && !self.fill(PATIENCE).await {
                assert!(self.last.is_some(), "the windows stay closed");
            }
            data = &data[count..];
        }
    }

    /// Sends one frame of content, as much as the windows allow. Returns how much that is.
    pub fn data_that_fits(&mut self, stream: u32, data: &[u8], is_last: bool) -> usize {
        let window =
            self.windows.get(&stream).copied().unwrap_or(self.first_window).min(self.window);
        let count = data.len().min(16_384).min(usize::try_from(window).unwrap_or(0));
        if count > 0 {
            let sent_bytes = i64::try_from(count).expect("the value is small");
            self.window -= sent_bytes;
            *self.windows.entry(stream).or_insert(self.first_window) -= sent_bytes;
            self.data(stream, &data[..count], is_last && count == data.len());
        }
        count
    }

    /// Opens all windows for the received data that was not acknowledged yet.
    pub fn pay(&mut self) {
        for (stream, bytes) in std::mem::take(&mut self.unacknowledged) {
            if bytes > 0 {
                self.open_window_by(stream, bytes);
            }
        }
    }

    /// Opens the windows for the oldest unacknowledged DATA frame, if there is one.
    pub fn acknowledge_frame(&mut self) {
        if let Some((stream, bytes)) = self.unacknowledged_frames.pop_front() {
            self.open_window_by(0, bytes);
            self.open_window_by(stream, bytes);
        }
    }

    /// Opens the window of a stream, or of the connection if `stream` is 0.
    pub fn open_window_by(&mut self, stream: u32, bytes: usize) {
        let mut out = Vec::new();
        frame::write_window_update(
            stream,
            u32::try_from(bytes).expect("the value is small"),
            &mut out,
        );
        self.send(&out);
    }

    /// Sends GOAWAY: this client accepts no streams and is about to disconnect.
    pub fn go_away(&mut self) {
        let mut out = Vec::new();
        frame::write_go_away(0, frame::ErrorCode::NO_ERROR, &mut out);
        self.send(&out);
    }

    /// Ends the content with trailers.
    pub fn trailers(&mut self, stream: u32, fields: &[(&str, &str)]) {
        let mut block = Vec::new();
        self.encoder.begin_block(&mut block);
        for (name, value) in fields {
            self.encoder.field(KnownField::Other, name.as_bytes(), value.as_bytes(), &mut block);
        }
        self.frame(FrameType::Headers, flags::END_HEADERS | flags::END_STREAM, stream, &block);
    }

    /// Sends an incomplete head of a request.
    pub fn half_a_head(&mut self) -> u32 {
        let id = self.next;
        self.next += 2;
        self.send(&[0, 0, 10, 1, 5, 0, 0, 0]);
        id
    }

    /// Resets a stream.
    pub fn reset(&mut self, stream: u32) {
        let mut bytes = Vec::new();
        frame::write_rst_stream(stream, frame::ErrorCode::CANCEL, &mut bytes);
        self.unacknowledged.remove(&stream);
        self.send(&bytes);
    }

    /// Ends the sending side.
    pub fn half_close(&mut self) {
        self.wire.half_close();
    }

    /// Resets the connection.
    pub fn break_off(self) {
        self.wire.reset();
    }

    /// Waits until a stream is complete, and takes everything received on it.
    ///
    /// # Panics
    /// If it does not complete.
    pub async fn answer(&mut self, stream: u32) -> Answer {
        loop {
            let response = self.responses.entry(stream).or_default();
            if response.is_complete || response.reset.is_some() {
                return response.clone();
            }
            let so_far = response.clone();
            let is_new = self.fill(PATIENCE).await;
            assert!(is_new, "{stream} is not complete ({:?}): {so_far:?}", self.last);
        }
    }

    /// Waits for the head of a response.
    ///
    /// # Panics
    /// If it does not arrive.
    pub async fn expect_head(&mut self, stream: u32) {
        while self.responses.entry(stream).or_default().heads.is_empty() {
            assert!(self.fill(PATIENCE).await, "no head on {stream}: {:?}", self.last);
        }
    }

    /// Waits for this many bytes of content on a stream.
    ///
    /// # Panics
    /// If they do not arrive.
    pub async fn expect(&mut self, stream: u32, bytes: usize) {
        while self.responses.entry(stream).or_default().body.len() < bytes {
            assert!(self.fill(PATIENCE).await, "no content on {stream}: {:?}", self.last);
        }
    }

    /// Everything received on a stream so far.
    pub fn so_far(&mut self, stream: u32) -> Answer {
        self.responses.entry(stream).or_default().clone()
    }

    /// Sends a PING and waits for its acknowledgement: the server has then processed everything
    /// sent before.
    ///
    /// # Panics
    /// If it is not acknowledged.
    pub async fn round_trip(&mut self) {
        self.frame(FrameType::Ping, 0, 0, b"are you?");
        self.responses.remove(&0);
        while self.responses.entry(0).or_default().body != b"are you?" {
            assert!(self.fill(PATIENCE).await, "a PING is not acknowledged: {:?}", self.last);
        }
    }

    /// Waits for the end of the connection.
    ///
    /// # Panics
    /// If it does not end.
    pub async fn ended(&mut self) -> Got {
        while self.fill(PATIENCE).await {}
        self.last.clone().expect("the connection does not end")
    }

    /// The content of a stream from `from` on, as soon as there is any, and whether the stream has
    /// ended, or the code it was reset with. The end of the connection counts as a reset with code
    /// 0.
    pub async fn more(
        &mut self,
        stream: u32,
        from: usize,
        timeout: Duration,
    ) -> (Vec<u8>, bool, Option<u32>) {
        loop {
            let response = self.responses.entry(stream).or_default();
            let bytes = response.body[from..].to_vec();
            let (is_complete, reset) = (response.is_complete, response.reset);
            if !bytes.is_empty() || is_complete || reset.is_some() {
                return (bytes, is_complete, reset);
            }
            if !self.fill(timeout).await {
                return (bytes, false, self.last.as_ref().map(|_| 0));
            }
        }
    }

    /// Receives for `timeout`.
    pub async fn listen(&mut self, timeout: Duration) {
        while self.fill(timeout).await {}
    }

    /// How the connection ended, if it has.
    #[must_use]
    pub fn last(&self) -> Option<&Got> {
        self.last.as_ref()
    }

    /// Receives more. Returns false if nothing arrived or nothing more can arrive.
    pub async fn fill(&mut self, timeout: Duration) -> bool {
        self.fill_at_most(usize::MAX, timeout).await
    }

    /// Receives at most `bytes_max` more bytes. Returns false as [`fill`](Self::fill) does.
    pub async fn fill_at_most(&mut self, bytes_max: usize, timeout: Duration) -> bool {
        if self.last.is_some() {
            return false;
        }
        match self.wire.recv_at_most(bytes_max, timeout).await {
            Got::Bytes(bytes) => {
                self.received.extend(bytes);
                while self.take_frame() {}
                true
            }
            Got::Nothing => false,
            end => {
                self.last = Some(end);
                false
            }
        }
    }

    fn take_frame(&mut self) -> bool {
        let Some(header) = FrameHeader::parse(&self.received) else { return false };
        let end = frame::HEADER_BYTES + header.length as usize;
        if self.received.len() < end {
            return false;
        }
        let payload = self.received[frame::HEADER_BYTES..end].to_vec();
        self.received.drain(..end);
        self.handle_frame(header, &payload);
        true
    }

    fn handle_frame(&mut self, header: FrameHeader, payload: &[u8]) {
        let number =
            |from: usize| frame::read_u32(&payload[from..]).expect("the field has four bytes");
        match header.frame_type {
            FrameType::Headers => {
                assert!(header.has_flags(flags::END_HEADERS), "heads fit in one frame");
                let mut fields = Fields::default();
                self.decoder.decode(payload, 1 << 20, &mut fields).expect("the block is valid");
                let response = self.responses.entry(header.stream_id).or_default();
                response.heads.push(fields.0);
                response.is_complete |= header.has_flags(flags::END_STREAM);
            }
            FrameType::Data => {
                let response = self.responses.entry(header.stream_id).or_default();
                response.body.extend_from_slice(payload);
                response.is_complete |= header.has_flags(flags::END_STREAM);
                let is_complete = response.is_complete || response.reset.is_some();
                if !self.opens_windows {
                    *self.unacknowledged.entry(0).or_default() += payload.len();
                    *self.unacknowledged.entry(header.stream_id).or_default() += payload.len();
                    if !payload.is_empty() {
                        self.unacknowledged_frames.push_back((header.stream_id, payload.len()));
                    }
                    if is_complete {
                        self.unacknowledged.remove(&header.stream_id);
                    }
                } else if header.length > 0 {
                    let mut bytes = Vec::new();
                    frame::write_window_update(0, header.length, &mut bytes);
                    if !is_complete {
                        frame::write_window_update(header.stream_id, header.length, &mut bytes);
                    }
                    self.send(&bytes);
                }
            }
            FrameType::RstStream => {
                self.responses.entry(header.stream_id).or_default().reset = Some(number(0));
            }
            FrameType::Settings if !header.has_flags(flags::ACK) => {
                for (id, value) in frame::parse_settings(payload) {
                    match id {
                        setting_id::INITIAL_WINDOW_SIZE => {
                            assert!(self.windows.is_empty(), "SETTINGS is the first frame");
                            self.first_window = i64::from(value);
                        }
                        setting_id::HEADER_TABLE_SIZE => self.encoder.set_peer_size_limit(value),
                        _ => {}
                    }
                }
                self.frame(FrameType::Settings, flags::ACK, 0, &[]);
            }
            FrameType::Ping if header.has_flags(flags::ACK) => {
                self.responses.entry(0).or_default().body = payload.to_vec();
            }
            FrameType::Ping if !self.answers_pings => {}
            FrameType::Ping => self.frame(FrameType::Ping, flags::ACK, 0, payload),
            FrameType::GoAway => self.go_away.push((number(0), number(4))),
            FrameType::WindowUpdate if header.stream_id == 0 => self.window += i64::from(number(0)),
            FrameType::WindowUpdate => {
                *self.windows.entry(header.stream_id).or_insert(self.first_window) +=
                    i64::from(number(0));
            }
            _ => {}
        }
    }
}
