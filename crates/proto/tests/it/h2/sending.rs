//! The server's output: responses, their order, windows, and the ends of streams and connections.

use super::wire::{self, Reader};
use peregrine_proto::h1::{BodyFraming, ResponseLength};
use peregrine_proto::h2::{
    Connection, ErrorCode, Event, Limits, MoreData, NextAction, Request, ResetCause, StreamKey,
    WaitingFor,
};
use peregrine_proto::{Date, HeadIndex, KnownField};

/// A connection, and the client's side of it.
struct Pair {
    limits: Limits,
    connection: Connection,
    reader: Reader,
    bytes: Vec<u8>,
    head: HeadIndex,
    out: Vec<u8>,
}

const GET: &str = "+end :method=GET :scheme=http :path=/ :authority=a";
const POST: &str = ":method=POST :scheme=http :path=/ :authority=a";

impl Pair {
    fn new(limits: Limits) -> Self {
        let mut out = Vec::new();
        let connection = Connection::new(&limits, &mut out);
        let (reader, bytes, head) = (Reader::new(), Vec::new(), HeadIndex::new());
        let mut this = Self { limits, connection, reader, bytes, head, out };
        this.take_output();
        this.send(&["hello", "settings-ack"]);
        this.take_output();
        this
    }

    /// Sends lines and returns the events, except for data and settings.
    fn send(&mut self, lines: &[&str]) -> Vec<Event> {
        let bytes = wire::bytes(lines.iter());
        let (mut at, mut events) = (0, Vec::new());
        loop {
            let (used, event) = self.connection.receive(
                &self.limits,
                &bytes[at..],
                &mut self.bytes,
                &mut self.head,
                &mut self.out,
            );
            self.connection.assert_invariants();
            at += used;
            match event {
                Event::NeedInput | Event::Closed => return events,
                Event::Settings | Event::Data { .. } => {}
                event => events.push(event),
            }
        }
    }

    /// Sends a request and returns its stream.
    fn request(&mut self, id: u32, rest: &str) -> StreamKey {
        match self.send(&[&format!("headers {id} {rest}")]).as_slice() {
            [Event::Request(Request { stream, .. })] => *stream,
            events => panic!("{events:?}"),
        }
    }

    fn respond(&mut self, stream: StreamKey, length: ResponseLength) -> BodyFraming {
        let date = Date::from_unix_seconds(0);
        let out = &mut self.out;
        let framing =
            self.connection.send_response(&self.limits, stream, 200, [], length, &date, out);
        self.connection.assert_invariants();
        framing
    }

    /// Responds with this many bytes, all of which are available.
    fn respond_and_mark_ready(&mut self, stream: StreamKey, bytes: u64) {
        self.respond(stream, ResponseLength::Exact(bytes));
        self.connection.mark_ready(stream);
        self.connection.assert_invariants();
    }

    fn send_data(&mut self, stream: StreamKey, data: &[u8], more_data: MoreData) -> usize {
        let written =
            self.connection.send_data(&self.limits, stream, data, more_data, &mut self.out);
        self.connection.assert_invariants();
        written
    }

    fn finish(&mut self, stream: StreamKey, trailers: &[(&[u8], &[u8])]) {
        let trailers = trailers.iter().copied();
        self.connection.finish(&self.limits, stream, trailers, &mut self.out);
        self.connection.assert_invariants();
    }

    /// Sends from ready streams while the windows allow it, 1,000 bytes at a time; returns the
    /// streams in order.
    fn send_ready(&mut self, frames_max: usize) -> Vec<u32> {
        let mut order = Vec::new();
        while let Some(ready) =
            self.connection.next_ready(&self.limits).filter(|_| order.len() < frames_max)
        {
            order.push(ready.stream.id());
            let data = vec![b'x'; ready.bytes_max.min(1000)];
            assert!(
                self.send_data(ready.stream, &data, MoreData::Buffered) > 0,
                "ready streams can send"
            );
        }
        order
    }

    /// The output since the last call, without the Date fields.
    fn take_output(&mut self) -> Vec<String> {
        let lines = self.reader.lines(&std::mem::take(&mut self.out));
        let date_field = " date=Thu, 01 Jan 1970 00:00:00 GMT";
        lines.into_iter().map(|line| line.replace(date_field, "")).collect()
    }
}

#[test]
fn settings_are_written_before_anything_is_received() {
    let mut out = Vec::new();
    let _connection = Connection::new(&Limits::DEFAULT, &mut out);
    assert_eq!(Reader::new().lines(&out), ["settings 3=128 6=32768 8=1 9=1", "window 0 983041"]);
    let limits = Limits {
        initial_stream_window: 1 << 20,
        frame_bytes_max: 1 << 15,
        hpack_decoder_table_bytes_max: 0,
        enable_connect_protocol: false,
        ..Limits::DEFAULT
    };
    out.clear();
    let _connection = Connection::new(&limits, &mut out);
    let settings = "settings 1=0 3=128 4=1048576 5=32768 6=32768 9=1";
    assert_eq!(Reader::new().lines(&out)[0], settings);
}

#[test]
fn a_response_of_known_length_ends_with_its_last_byte() {
    let mut pair = Pair::new(Limits::DEFAULT);
    let stream = pair.request(1, GET);
    assert_eq!(pair.respond(stream, ResponseLength::Exact(2)), BodyFraming::Exact(2));
    assert_eq!(pair.connection.send_capacity(&pair.limits, stream), 16_384);
    assert_eq!(pair.send_data(stream, b"hi and more", MoreData::Buffered), 2);
    assert_eq!(pair.take_output(), ["headers 1 :status=200 content-length=2", "data 1 +end hi"]);
    assert_eq!(pair.connection.open_streams(), 0);
    assert_eq!(pair.connection.waiting_for(), WaitingFor::NextRequest);
    // Calls with the key of a closed stream do nothing.
    assert_eq!(pair.send_data(stream, b"more", MoreData::End), 0);
    pair.finish(stream, &[]);
    pair.connection.reset(stream, ErrorCode::CANCEL, &mut pair.out);
    assert_eq!(pair.respond(stream, ResponseLength::Exact(2)), BodyFraming::None);
    assert!(pair.take_output().is_empty());
}

#[test]
fn content_of_unknown_length_ends_with_data_or_trailers() {
    let mut pair = Pair::new(Limits::DEFAULT);
    let [first, second, third] = [1, 3, 5].map(|id| pair.request(id, GET));
    for stream in [first, second, third] {
        assert_eq!(pair.respond(stream, ResponseLength::Unknown), BodyFraming::Chunked);
    }
    pair.take_output();
    pair.send_data(first, b"a", MoreData::Pending);
    pair.send_data(first, b"b", MoreData::End);
    assert_eq!(pair.take_output(), ["data 1 a", "data 1 +end b"]);
    pair.send_data(second, b"a", MoreData::Pending);
    let trailers = [(&b"grpc-status"[..], &b"0"[..]), (b"content-length", b"1"), (b"a b", b"c")];
    pair.finish(second, &trailers);
    assert_eq!(pair.take_output(), ["data 3 a", "headers 3 +end grpc-status=0"]);
    pair.finish(third, &[]);
    assert_eq!(pair.take_output(), ["data 5 +end"]);
    assert_eq!(pair.connection.open_streams(), 0);
}

#[test]
fn a_response_shorter_than_its_content_length_is_reset() {
    let mut pair = Pair::new(Limits::DEFAULT);
    let [first, second] = [1, 3].map(|id| pair.request(id, GET));
    pair.respond(first, ResponseLength::Exact(5));
    pair.send_data(first, b"abc", MoreData::End);
    pair.finish(second, &[]);
    let expected = [
        "headers 1 :status=200 content-length=5",
        "data 1 abc",
        "reset 1 INTERNAL_ERROR",
        "reset 3 INTERNAL_ERROR",
    ];
    assert_eq!(pair.take_output(), expected);
}

#[test]
fn connection_specific_fields_are_omitted_and_names_are_lower_case() {
    let mut pair = Pair::new(Limits::DEFAULT);
    let stream = pair.request(1, GET);
    let date = Date::from_unix_seconds(0);
    let fields: [(&[u8], &[u8]); 11] = [
        (b"Connection", b"close"),
        (b"transfer-encoding", b"chunked"),
        (b"Keep-Alive", b"5"),
        (b"Proxy-Connection", b"close"),
        (b"upgrade", b"a"),
        (b"content-length", b"7"),
        (b"X-Own", b" a\r\nb "),
        (b"Date", b"now"),
        (b"date", b"then"),
        (b"not a token", b"a"),
        (b":status", b"500"),
    ];
    let (limits, out) = (&pair.limits, &mut pair.out);
    pair.connection.send_response(limits, stream, 42, fields, ResponseLength::Exact(0), &date, out);
    let expected = ["headers 1 +end :status=500 x-own=a  b date=now content-length=0"];
    assert_eq!(pair.take_output(), expected);
}

#[test]
fn responses_without_content_end_with_their_head() {
    let cases = [
        ("GET", 204, ResponseLength::Unknown, "headers 1 +end :status=204"),
        ("GET", 304, ResponseLength::Exact(5), "headers 1 +end :status=304"),
        ("GET", 205, ResponseLength::Exact(5), "headers 1 +end :status=205"),
        ("HEAD", 205, ResponseLength::Exact(5), "headers 1 +end :status=205"),
        ("HEAD", 200, ResponseLength::Exact(5), "headers 1 +end :status=200 content-length=5"),
        ("HEAD", 200, ResponseLength::Unknown, "headers 1 +end :status=200"),
        ("GET", 404, ResponseLength::Exact(0), "headers 1 +end :status=404"),
        ("GET", 418, ResponseLength::Unknown, "headers 1 :status=418"),
    ];
    for (method, status, length, expected) in cases {
        let mut pair = Pair::new(Limits::DEFAULT);
        let stream = pair.request(1, &GET.replace("GET", method));
        let (date, out) = (Date::from_unix_seconds(0), &mut pair.out);
        pair.connection.send_response(&pair.limits, stream, status, [], length, &date, out);
        assert_eq!(pair.take_output(), [expected]);
    }
}

#[test]
fn interim_responses_are_written_only_before_the_final_one() {
    let mut pair = Pair::new(Limits::DEFAULT);
    let first = pair.request(1, &format!("{POST} expect=100-continue"));
    let hint = [(&b"link"[..], &b"</a>"[..])];
    pair.connection.send_interim(first, 103, hint, &mut pair.out);
    pair.connection.send_interim(first, 100, [], &mut pair.out);
    pair.connection.send_interim(first, 100, [], &mut pair.out);
    pair.connection.send_interim(first, 101, [], &mut pair.out);
    assert_eq!(pair.take_output(), ["headers 1 :status=103 link=</a>", "headers 1 :status=100"]);
    pair.respond(first, ResponseLength::Unknown);
    pair.take_output();
    pair.connection.send_interim(first, 103, hint, &mut pair.out);
    let second = pair.request(3, GET);
    pair.connection.send_interim(second, 100, [], &mut pair.out);
    assert!(pair.take_output().is_empty());
}

#[test]
fn a_block_longer_than_a_frame_continues_in_continuation_frames() {
    let mut pair = Pair::new(Limits::DEFAULT);
    let stream = pair.request(1, GET);
    let (date, long) = (Date::from_unix_seconds(0), vec![b'x'; 40_000]);
    let fields = [(&b"x-long"[..], long.as_slice())];
    let (limits, out) = (&pair.limits, &mut pair.out);
    pair.connection.send_response(
        limits,
        stream,
        200,
        fields,
        ResponseLength::Exact(0),
        &date,
        out,
    );
    use peregrine_proto::h2::frame::{FrameHeader, FrameType, HEADER_BYTES, flags};
    let (mut headers, mut block, mut rest) = (Vec::new(), Vec::new(), pair.out.as_slice());
    while let Some(header) = FrameHeader::parse(rest) {
        headers.push((header.frame_type, header.flags));
        let (payload, following) = rest[HEADER_BYTES..].split_at(header.length as usize);
        block.extend_from_slice(payload);
        rest = following;
    }
    let expected = [
        (FrameType::Headers, flags::END_STREAM),
        (FrameType::Continuation, 0),
        (FrameType::Continuation, flags::END_HEADERS),
    ];
    assert_eq!(headers, expected);
    assert!(loona_hpack::Decoder::new().decode(&block).unwrap().iter().any(|f| f.1 == long));
}

#[test]
fn streams_are_sent_by_urgency() {
    let mut pair = Pair::new(Limits::DEFAULT);
    let priorities = ["u=5", "u=1", "u=1", "u=3,i", "u=3,i", "u=0"];
    let streams: Vec<_> = (0..)
        .map(|at| 2 * at + 1)
        .zip(priorities)
        .map(|(id, priority)| pair.request(id, &format!("{GET} priority={priority}")))
        .collect();
    let can_send_at_once = [true, true, false, false, false, true];
    for (stream, can_send_at_once) in streams.iter().zip(can_send_at_once) {
        // An available response does not overtake others of the same urgency.
        assert_eq!(
            pair.connection.send_capacity(&pair.limits, *stream) > 0,
            can_send_at_once,
            "{stream:?}"
        );
        pair.respond_and_mark_ready(*stream, 2000);
    }
    let order = pair.send_ready(usize::MAX);
    assert_eq!(order, [11, 11, 3, 3, 5, 5, 7, 9, 7, 9, 1, 1]);
    assert_eq!(pair.connection.open_streams(), 0);
}

#[test]
fn non_incremental_responses_are_sent_in_request_order() {
    let mut pair = Pair::new(Limits::DEFAULT);
    let streams = [1, 3, 5, 7].map(|id| pair.request(id, &format!("{GET} priority=u=3")));
    for at in [2, 0, 3, 1] {
        pair.respond_and_mark_ready(streams[at], 1000);
    }
    assert_eq!(pair.send_ready(usize::MAX), [1, 3, 5, 7]);
    // Streams without a priority share.
    let streams = [9, 11].map(|id| pair.request(id, GET));
    for stream in streams {
        pair.respond_and_mark_ready(stream, 2000);
    }
    assert_eq!(pair.send_ready(usize::MAX), [9, 11, 9, 11]);
    // Neither kind delays the other.
    let ordered = pair.request(13, &format!("{GET} priority=u=3"));
    let shared = pair.request(15, GET);
    pair.respond_and_mark_ready(ordered, 3000);
    pair.respond_and_mark_ready(shared, 2000);
    assert_eq!(pair.send_ready(usize::MAX), [13, 15, 13, 15, 13]);
}

#[test]
fn priority_updates_apply_before_and_after_the_request() {
    let mut pair = Pair::new(Limits::DEFAULT);
    pair.send(&["priority-update 3 u=7", "priority-update 3 u=0"]);
    let [first, second] = [1, 3].map(|id| pair.request(id, &format!("{GET} priority=u=2")));
    pair.respond_and_mark_ready(first, 2000);
    pair.respond_and_mark_ready(second, 2000);
    assert_eq!(pair.send_ready(1), [3]);
    pair.send(&["priority-update 3 u=6"]);
    assert_eq!(pair.send_ready(usize::MAX), [1, 1, 3]);
}

#[test]
fn stream_and_connection_windows_limit_what_is_sent() {
    let mut pair = Pair::new(Limits::DEFAULT);
    pair.send(&["settings 4=1500"]);
    let [first, second] = [1, 3].map(|id| pair.request(id, GET));
    pair.respond_and_mark_ready(first, 3000);
    pair.respond_and_mark_ready(second, 100_000);
    assert_eq!(pair.send_ready(usize::MAX), [1, 3, 1, 3]);
    assert!(
        pair.connection.is_stream_window_exhausted(first)
            && pair.connection.is_stream_window_exhausted(second)
    );
    assert!(!pair.connection.is_connection_window_exhausted());
    pair.send(&["window 1 500"]);
    assert!(!pair.connection.is_stream_window_exhausted(first));
    assert_eq!(pair.send_ready(usize::MAX), [1]);
    // The initial window changes those of open streams too, and may make them negative.
    pair.send(&["settings 4=1000", "window 1 499"]);
    assert_eq!(pair.send_ready(usize::MAX), []);
    pair.send(&["window 1 2"]);
    assert_eq!(pair.send_ready(usize::MAX), [1]);
    pair.send(&["settings 4=200000"]);
    let connection_window = 65_535 - 1500 - 1500 - 500 - 1;
    let frames = pair.send_ready(usize::MAX).len();
    assert!(frames >= connection_window / 1000);
    assert!(pair.connection.is_connection_window_exhausted(), "the connection's window is used up");
    pair.send(&["window 0 100000"]);
    assert!(!pair.send_ready(usize::MAX).is_empty());
    assert_eq!(pair.connection.open_streams(), 0);
}

#[test]
fn begin_external_data_writes_frame_headers() {
    let mut pair = Pair::new(Limits::DEFAULT);
    let stream = pair.request(1, GET);
    pair.respond_and_mark_ready(stream, 20_000);
    pair.out.clear();
    let (limits, out) = (&pair.limits, &mut pair.out);
    assert_eq!(pair.connection.begin_external_data(limits, stream, 20_000, false, out), 16_384);
    assert_eq!(pair.out, [0, 0x40, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(pair.connection.next_ready(&pair.limits).unwrap().stream, stream);
    let out = &mut pair.out;
    assert_eq!(pair.connection.begin_external_data(&pair.limits, stream, 3616, false, out), 3616);
    assert_eq!(pair.out[9..], [0, 0x0e, 0x20, 0, 1, 0, 0, 0, 1]);
    assert_eq!(pair.connection.open_streams(), 0);
}

#[test]
fn streams_answered_before_the_request_ends_are_closed_with_the_turn() {
    let mut pair = Pair::new(Limits::DEFAULT);
    let [first, second] = [1, 3].map(|id| pair.request(id, POST));
    pair.respond(first, ResponseLength::Exact(0));
    pair.respond(second, ResponseLength::Exact(0));
    pair.take_output();
    // Frames in the same turn still count.
    assert_eq!(pair.send(&["data 1 +end a"]), [Event::End { stream: first }]);
    // If no content arrives, there is nothing to stop.
    pair.connection.reset_unfinished(&mut pair.out, |_| panic!("no content arrived"));
    pair.send(&["data 3 some"]);
    let mut closed = Vec::new();
    pair.connection.reset_unfinished(&mut pair.out, |stream| closed.push(stream));
    pair.connection.reset_unfinished(&mut pair.out, |_| panic!("reported only once"));
    pair.connection.assert_invariants();
    assert_eq!(closed, [second]);
    assert_eq!(pair.take_output(), ["ping answered"]);
    assert_eq!(pair.send(&["data 3 more"]), [], "no more events");
    assert_eq!(pair.connection.open_streams(), 1);
    // If the client has seen the response and continues to send, the stream is reset.
    assert_eq!(pair.send(&["ping-ack answered"]), []);
    assert_eq!(pair.take_output(), ["reset 3 NO_ERROR"]);
    // Frames in transit are ignored.
    assert_eq!(pair.send(&["data 3 late", "headers 3 +end a=b"]), []);
    assert_eq!(pair.connection.next_action(), NextAction::Receive);
    // If the client ends its request, or resets it, the stream is not reset.
    for line in ["data # +end", "reset # 8"] {
        let id = if line == "reset # 8" { 7 } else { 5 };
        let stream = pair.request(id, POST);
        pair.send(&[&format!("data {id} some")]);
        pair.respond(stream, ResponseLength::Exact(0));
        pair.connection.reset_unfinished(&mut pair.out, |_| {});
        assert_eq!(pair.take_output().last().map(String::as_str), Some("ping answered"));
        assert_eq!(pair.send(&[&line.replace('#', &id.to_string()), "ping-ack answered"]), []);
        assert!(pair.take_output().is_empty());
    }
    assert_eq!(pair.connection.open_streams(), 0);
}

#[test]
fn window_updates_are_sent_for_each_consumed_half() {
    let mut pair = Pair::new(Limits::DEFAULT);
    let stream = pair.request(1, POST);
    let piece = format!("data 1 {}", "x".repeat(16_000));
    pair.send(&[&piece, &piece, &piece]);
    assert_eq!(pair.take_output(), ["ping measure?"]);
    pair.connection.release_capacity(stream, 16_000, &mut pair.out);
    pair.connection.release_capacity(stream, 16_000, &mut pair.out);
    assert!(pair.take_output().is_empty());
    pair.connection.release_capacity(stream, 1000, &mut pair.out);
    assert_eq!(pair.take_output(), ["window 1 33000"]);
    // The rest is discarded, so it counts as consumed.
    pair.connection.discard_body(stream, &mut pair.out);
    assert_eq!(pair.send(&[&piece, &piece, "data 1 +end a"]), []);
    pair.connection.assert_invariants();
    assert_eq!(pair.connection.open_streams(), 1);
    pair.respond(stream, ResponseLength::Exact(0));
    assert_eq!(pair.connection.open_streams(), 0);
}

#[test]
fn a_window_filled_within_a_round_trip_grows() {
    let mut pair = Pair::new(Limits::DEFAULT);
    let stream = pair.request(1, POST);
    let piece = format!("data 1 {}", "x".repeat(16_000));
    let mut increments = Vec::new();
    for round in 0..60 {
        pair.send(&[&piece]);
        pair.connection.release_capacity(stream, 16_000, &mut pair.out);
        for line in pair.take_output() {
            if let Some(increment) = line.strip_prefix("window 1 ") {
                increments.push(increment.parse::<u32>().unwrap());
            }
        }
        if round % 10 == 9 {
            pair.send(&["ping-ack measure?"]);
        }
    }
    assert!(increments[0] < 65_535 && *increments.last().unwrap() > 65_535, "{increments:?}");
}

#[test]
fn drain_sends_goaway_and_fixes_the_last_stream_a_round_trip_later() {
    let mut pair = Pair::new(Limits::DEFAULT);
    let first = pair.request(1, GET);
    pair.connection.begin_shutdown(&mut pair.out);
    pair.connection.begin_shutdown(&mut pair.out);
    assert_eq!(pair.take_output(), ["go-away 2147483647 NO_ERROR", "ping go away?"]);
    // The request was in transit.
    let second = pair.request(3, GET);
    pair.send(&["ping-ack go away?"]);
    assert_eq!(pair.take_output(), ["go-away 3 NO_ERROR"]);
    assert_eq!(
        pair.send(&[&format!("headers 5 {GET}"), &format!("headers 7 {POST}"), "data 7 a"]),
        []
    );
    assert!(pair.take_output().is_empty(), "later frames are ignored");
    assert_eq!(pair.connection.next_action(), NextAction::Receive);
    pair.respond(first, ResponseLength::Exact(0));
    pair.respond(second, ResponseLength::Exact(0));
    assert_eq!(pair.connection.next_action(), NextAction::Close);
}

#[test]
fn open_streams_are_served_after_a_goaway_of_the_client() {
    let mut pair = Pair::new(Limits::DEFAULT);
    let stream = pair.request(1, GET);
    assert_eq!(pair.send(&["go-away 0 0"]), [Event::GoAway { code: ErrorCode::NO_ERROR }]);
    assert_eq!(pair.connection.next_action(), NextAction::Receive);
    pair.respond(stream, ResponseLength::Exact(0));
    assert_eq!(pair.connection.next_action(), NextAction::Close);
}

#[test]
fn the_directions_of_a_tunnel_end_independently() {
    let mut pair = Pair::new(Limits::DEFAULT);
    let connect = ":method=CONNECT :protocol=websocket :scheme=https :path=/chat :authority=a";
    let stream = pair.request(1, connect);
    assert!(pair.head.wants_upgrade(&pair.bytes));
    assert_eq!(pair.head.get(KnownField::Upgrade).unwrap().slice(&pair.bytes), b"websocket");
    assert_eq!(pair.head.path.slice(&pair.bytes), b"/chat");
    assert_eq!(pair.respond(stream, ResponseLength::Unknown), BodyFraming::Chunked);
    pair.send_data(stream, b"hello", MoreData::End);
    pair.connection.reset_unfinished(&mut pair.out, |_| panic!("a tunnel stays open"));
    let expected = ["headers 1 :status=200", "data 1 +end hello"];
    assert_eq!(pair.take_output(), expected);
    assert_eq!(pair.send(&["data 1 +end bye"]), [Event::End { stream }]);
    assert_eq!(pair.connection.open_streams(), 0);
}

#[test]
fn a_reset_removes_the_stream_from_the_queue() {
    let mut pair = Pair::new(Limits::DEFAULT);
    let stream = pair.request(1, GET);
    pair.respond_and_mark_ready(stream, 1000);
    let cause = ResetCause::Remote(ErrorCode::CANCEL);
    assert_eq!(pair.send(&["reset 1 8"]), [Event::Reset { stream, cause }]);
    assert_eq!(pair.connection.next_ready(&pair.limits), None);
    let (first, second) = (pair.request(3, GET), pair.request(5, GET));
    pair.respond_and_mark_ready(first, 1000);
    pair.respond_and_mark_ready(second, 1000);
    pair.connection.reset(first, ErrorCode::INTERNAL_ERROR, &mut pair.out);
    pair.connection.assert_invariants();
    assert_eq!(pair.send_ready(usize::MAX), [5]);
}

#[test]
fn waiting_for_reports_what_the_connection_waits_for() {
    let limits = Limits::DEFAULT;
    let (mut out, mut bytes, mut head) = (Vec::new(), Vec::new(), HeadIndex::new());
    let mut connection = Connection::new(&limits, &mut out);
    let mut wait_after = |lines: &[&str], missing: usize| {
        let bytes_sent = wire::bytes(lines.iter());
        let (mut at, end) = (0, bytes_sent.len() - missing);
        loop {
            let (used, event) =
                connection.receive(&limits, &bytes_sent[at..end], &mut bytes, &mut head, &mut out);
            at += used;
            if event == Event::NeedInput {
                return connection.waiting_for();
            }
        }
    };
    let get = format!("headers 1 {GET}");
    assert_eq!(wait_after(&[], 0), WaitingFor::Preface);
    assert_eq!(wait_after(&["preface"], 0), WaitingFor::Preface);
    assert_eq!(wait_after(&["settings"], 0), WaitingFor::NextRequest);
    assert_eq!(wait_after(&[&get], 1), WaitingFor::Head);
    assert_eq!(wait_after(&["ping 12345678"], 1), WaitingFor::Frame);
    assert_eq!(wait_after(&[&get], 0), WaitingFor::Streams);
    assert_eq!(wait_after(&["headers 3 +more +end a=b"], 0), WaitingFor::Head);
    assert_eq!(wait_after(&["continuation 3 a=b"], 0), WaitingFor::Streams);
    connection.close(ErrorCode::NO_ERROR, &mut out);
    assert_eq!(connection.waiting_for(), WaitingFor::Nothing);
    assert_eq!(connection.next_action(), NextAction::Close);
}

#[test]
fn trim_and_shrink_free_the_memory_of_an_idle_connection() {
    let mut pair = Pair::new(Limits::DEFAULT);
    let size = size_of::<Connection>();
    for round in 0..3 {
        for at in 0..100 {
            let id = round * 200 + at * 2 + 1;
            pair.request(id, &format!("{GET} x-a={id} cookie=a cookie=b"));
        }
        for key in 0..100 {
            pair.send(&[&format!("reset {} 8", round * 200 + key * 2 + 1)]);
        }
        pair.connection.refill_budget(&pair.limits, u64::from(round + 1) * 1_000_000);
        pair.connection.output_flushed();
    }
    assert!(pair.connection.memory_bytes().1 > 2048);
    pair.connection.trim();
    assert!(size + pair.connection.memory_bytes().1 <= 2048, "only the tables remain");
    pair.connection.shrink();
    pair.connection.assert_invariants();
    let (table_bytes, other_bytes) = pair.connection.memory_bytes();
    assert!(size + other_bytes <= 1024, "{size} + {other_bytes}");
    assert!(table_bytes <= 4096 + 4096);
    let stream = pair.request(1001, GET);
    pair.respond_and_mark_ready(stream, 10);
    assert_eq!(pair.send_ready(usize::MAX), [1001]);
}
