//! Content that waits for windows: whole pieces, fragments, and clients that acknowledge every
//! frame. A piece is a part of the content that becomes available at once.

use super::wire;
use peregrine_proto::h1::ResponseLength;
use peregrine_proto::h2::frame::{self, FrameHeader, FrameType, HEADER_BYTES};
use peregrine_proto::h2::{Connection, Event, Http2Error, Limits, MoreData, StreamKey};
use peregrine_proto::{Date, HeadIndex};
use std::collections::VecDeque;

/// A server whose responses never end; the next piece of each is always available.
struct Server {
    limits: Limits,
    connection: Connection,
    out: Vec<u8>,
    /// The streams, each with the size of its pieces and the remaining bytes of the current one.
    streams: Vec<(StreamKey, usize, usize)>,
    /// DATA frames that the client has not acknowledged: their stream and length.
    unread: VecDeque<(u32, u32)>,
    frames: u32,
    bytes: u64,
    error: Option<Http2Error>,
}

impl Server {
    fn new(initial_window: u32) -> Self {
        let (limits, mut out) = (Limits::DEFAULT, Vec::new());
        let connection = Connection::new(&limits, &mut out);
        let mut this = Self {
            limits,
            connection,
            out,
            streams: Vec::new(),
            unread: VecDeque::new(),
            frames: 0,
            bytes: 0,
            error: None,
        };
        this.connection.refill_budget(&this.limits, 1000);
        this.feed(&["hello", "settings-ack", &format!("settings 4={initial_window}")]);
        this
    }

    fn feed(&mut self, lines: &[&str]) {
        self.feed_bytes(&wire::bytes(lines.iter()));
    }

    fn feed_bytes(&mut self, bytes: &[u8]) {
        let (mut at, mut head_bytes, mut head) = (0, Vec::new(), HeadIndex::new());
        loop {
            let (limits, out) = (&self.limits, &mut self.out);
            let (used, event) =
                self.connection.receive(limits, &bytes[at..], &mut head_bytes, &mut head, out);
            at += used;
            match event {
                Event::NeedInput | Event::Closed => break,
                Event::Request(request) => self.streams.push((request.stream, 0, 0)),
                Event::ConnectionError(error) => self.error = Some(error),
                _ => {}
            }
        }
        self.connection.assert_invariants();
        self.connection.output_flushed();
        self.out.clear();
    }

    /// Starts a response whose pieces have this size.
    fn start_stream(&mut self, id: u32, piece_size: usize, fields: &str) -> StreamKey {
        let get = "+end :method=GET :scheme=http :path=/ :authority=a";
        self.feed(&[format!("headers {id} {get} {fields}").trim_end()]);
        let (stream, size, remaining) = self.streams.last_mut().unwrap();
        (*size, *remaining) = (piece_size, piece_size);
        let (date, length) = (Date::from_unix_seconds(0), ResponseLength::Unknown);
        self.connection.send_response(&self.limits, *stream, 200, [], length, &date, &mut self.out);
        self.connection.mark_ready(*stream);
        self.out.clear();
        *stream
    }

    /// Sends from ready streams, and returns the stream and the length of each DATA frame.
    fn send(&mut self) -> Vec<(u32, u32)> {
        let mut sent = Vec::new();
        while let Some(ready) = self.connection.next_ready(&self.limits) {
            let entry = self.streams.iter_mut().find(|(stream, ..)| *stream == ready.stream);
            let (stream, size, remaining) = entry.unwrap();
            let data = vec![b'x'; *remaining];
            let out = &mut self.out;
            let written =
                self.connection.send_data(&self.limits, *stream, &data, MoreData::Pending, out);
            *remaining -= written;
            if *remaining == 0 {
                *remaining = *size;
            }
            self.connection.mark_ready(*stream);
            self.connection.assert_invariants();
            while let Some(header) = FrameHeader::parse(&self.out) {
                assert_eq!(header.frame_type, FrameType::Data);
                sent.push((header.stream_id, header.length));
                self.bytes += u64::from(header.length);
                self.out.drain(..HEADER_BYTES + header.length as usize);
            }
        }
        self.frames += u32::try_from(sent.len()).unwrap();
        self.unread.extend(&sent);
        sent
    }

    /// Acknowledges the oldest frame, for its stream and for the connection.
    fn acknowledge(&mut self) {
        let (stream, length) = self.unread.pop_front().unwrap();
        let mut bytes = Vec::new();
        frame::write_window_update(stream, length, &mut bytes);
        frame::write_window_update(0, length, &mut bytes);
        self.feed_bytes(&bytes);
    }

    fn tick(&mut self, now_ms: u64) {
        self.connection.refill_budget(&self.limits, now_ms);
        self.connection.assert_invariants();
    }

    /// Sends content that fills the stream's window, except for `room` bytes.
    fn fill_window(&mut self, window: usize, room: usize) {
        let (_, size, remaining) = self.streams.last_mut().unwrap();
        (*size, *remaining) = (window - room, window - room);
        let stream = self.streams.last().unwrap().0;
        let mut unsent = window - room;
        while unsent > 0 {
            let data = vec![b'x'; unsent];
            let out = &mut self.out;
            unsent -=
                self.connection.send_data(&self.limits, stream, &data, MoreData::Pending, out);
        }
        self.out.clear();
    }
}

const NOW_MS: u64 = 1000;

#[test]
fn a_client_may_acknowledge_every_frame_for_any_piece_size() {
    for window in [512, 4096, 65_535, 1 << 20] {
        for piece_size in [1, 12, 20, 100, 300, 1000, 5000, 20_000] {
            let mut server = Server::new(window);
            server.start_stream(1, piece_size, "");
            for _ in 0..20_000 {
                server.send();
                server.acknowledge();
                assert_eq!(server.error, None, "{piece_size} of {window} after {}", server.bytes);
            }
            let expected_mean = piece_size.min(1024).min(window as usize / 2) as u64;
            let mean = server.bytes / u64::from(server.frames);
            assert!(
                mean * 100 >= expected_mean * 95,
                "{piece_size} of {window}: {mean} bytes a frame"
            );
            assert_eq!(server.connection.budget_left(), Limits::DEFAULT.abuse_budget_max);
        }
    }
}

#[test]
fn all_streams_that_share_the_connection_window_make_progress() {
    let mut server = Server::new(1 << 20);
    server.start_stream(1, 20, "");
    // The small pieces have filled the window of the connection before the large ones are sent.
    server.send();
    server.start_stream(3, 20_000, "");
    server.start_stream(5, 300, "");
    let mut bytes = [0; 3];
    for _ in 0..100_000 {
        for (stream, length) in server.send() {
            bytes[stream as usize / 2] += u64::from(length);
        }
        server.acknowledge();
        assert_eq!(server.error, None);
    }
    let total: u64 = bytes.iter().sum();
    assert!(bytes[1] * 2 > total && bytes[0] > 100_000 && bytes[2] > 100_000, "{bytes:?}");
}

#[test]
fn a_piece_that_fits_into_the_window_is_never_held_back() {
    for room in [1, 20, 100, 1023] {
        let mut server = Server::new(65_535);
        let stream = server.start_stream(1, 1, "");
        server.fill_window(65_535, room);
        let (limits, out) = (&server.limits, &mut server.out);
        assert_eq!(server.connection.send_capacity(limits, stream), room);
        let data = vec![b'x'; room];
        assert_eq!(
            server.connection.send_data(limits, stream, &data, MoreData::Pending, out),
            room
        );
        assert_eq!(server.connection.next_release_at(), None);
    }
    // If nothing is left to acknowledge, waiting cannot open the window further.
    let mut server = Server::new(700);
    server.start_stream(1, 5000, "");
    assert_eq!(server.send(), [(1, 700)]);
    // A large fragment is worth a frame.
    let mut server = Server::new(65_535);
    server.start_stream(1, 4700, "");
    assert_eq!(server.send().last(), Some(&(1, 65_535 % 4700)));
}

#[test]
fn a_small_fragment_is_held_back_for_at_most_50_ms() {
    let mut server = Server::new(65_535);
    let stream = server.start_stream(1, 100, "");
    server.fill_window(65_535, 35);
    let (_, size, remaining) = server.streams.last_mut().unwrap();
    (*size, *remaining) = (100, 100);
    server.connection.mark_ready(stream);
    assert_eq!(server.send(), []);
    assert!(
        server.connection.is_connection_window_exhausted()
            || server.connection.is_stream_window_exhausted(stream)
    );
    assert_eq!(server.connection.next_release_at(), Some(NOW_MS + 50));
    // Insufficient room, and time that is too short, change nothing.
    server.tick(NOW_MS + 40);
    server.feed(&["window 1 1", "window 0 1"]);
    assert_eq!(server.send(), []);
    server.tick(NOW_MS + 49);
    assert_eq!(server.send(), []);
    assert_eq!(server.connection.next_release_at(), Some(NOW_MS + 50));
    server.tick(NOW_MS + 50);
    assert_eq!(server.send(), [(1, 36)]);
    assert_eq!(server.connection.next_release_at(), None);
    // Enough room ends the wait at once.
    server.feed(&["window 1 10", "window 0 10"]);
    assert_eq!(server.send(), []);
    server.feed(&["window 1 60", "window 0 60"]);
    assert_eq!(server.send(), [(1, 64)]);
    // A stream that ends stops waiting.
    assert!(server.connection.next_release_at().is_some());
    server.feed(&["reset 1 8"]);
    assert_eq!(server.connection.next_release_at(), None);
    assert_eq!(server.send(), []);
}

#[test]
fn a_stream_that_is_held_back_does_not_block_others() {
    // By its own window: streams of the same urgency continue.
    let mut server = Server::new(4096);
    server.feed(&["window 0 1000000"]);
    let stream = server.start_stream(1, 1, "");
    server.fill_window(4096, 35);
    server.streams.last_mut().unwrap().2 = 100;
    server.connection.mark_ready(stream);
    assert_eq!(server.send(), []);
    let other = server.start_stream(3, 500, "");
    assert_eq!(server.connection.send_capacity(&server.limits, other), 4096);
    assert_eq!(server.send().len(), 8);
    // By the window of the connection: more urgent ones continue.
    let mut server = Server::new(1 << 20);
    let stream = server.start_stream(1, 1, "");
    server.fill_window(65_535, 35);
    server.streams.last_mut().unwrap().2 = 100;
    server.connection.mark_ready(stream);
    assert_eq!(server.send(), []);
    server.start_stream(3, 30, "priority=u=0");
    assert_eq!(server.send(), [(3, 30)]);
}

#[test]
fn a_window_opened_byte_by_byte_causes_few_fragments_and_is_charged() {
    let mut server = Server::new(65_535);
    server.feed(&["window 0 10000000"]);
    server.start_stream(1, 5000, "");
    server.send();
    let (frames_before, mut now_ms) = (server.frames, NOW_MS);
    while server.error.is_none() {
        server.feed(&["window 1 1"]);
        now_ms += 1;
        server.tick(now_ms);
        server.send();
        assert!(now_ms < NOW_MS + 10_000, "the wait must end");
    }
    let fragments = u64::from(server.frames - frames_before);
    assert!(fragments <= (now_ms - NOW_MS) / 50 + 1, "{fragments} in {} ms", now_ms - NOW_MS);
    assert_eq!(server.error, Some(Http2Error::AbuseBudgetExhausted));
}
