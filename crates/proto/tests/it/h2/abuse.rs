//! Attacks are stopped or bounded; honest clients are served, however active they are.

use super::wire;
use peregrine_proto::h1::ResponseLength;
use peregrine_proto::h2::frame;
use peregrine_proto::h2::{
    Connection, ErrorCode, Event, Http2Error, Limits, MoreData, NextAction, StreamKey,
};
use peregrine_proto::{Date, HeadIndex};

/// A server that responds to each complete request at once with two bytes, and consumes all
/// content.
struct Server {
    limits: Limits,
    connection: Connection,
    bytes: Vec<u8>,
    head: HeadIndex,
    out: Vec<u8>,
    requests: usize,
    content: usize,
    responds: bool,
    last_stream: Option<StreamKey>,
    error: Option<Http2Error>,
}

impl Server {
    fn new(limits: Limits) -> Self {
        let mut out = Vec::new();
        let connection = Connection::new(&limits, &mut out);
        let mut this = Self {
            limits,
            connection,
            bytes: Vec::new(),
            head: HeadIndex::new(),
            out,
            requests: 0,
            content: 0,
            responds: true,
            last_stream: None,
            error: None,
        };
        this.feed(&wire::bytes(["hello", "settings-ack"].iter()));
        this
    }

    fn feed(&mut self, bytes: &[u8]) {
        let mut at = 0;
        loop {
            let (used, event) = self.connection.receive(
                &self.limits,
                &bytes[at..],
                &mut self.bytes,
                &mut self.head,
                &mut self.out,
            );
            let start = at;
            at += used;
            match event {
                Event::NeedInput | Event::Closed => break,
                Event::Request(request) => {
                    self.requests += 1;
                    self.last_stream = Some(request.stream);
                    let has_text =
                        |field: &[u8]| self.bytes.windows(field.len()).any(|bytes| bytes == field);
                    let (is_slow, is_streaming) = (has_text(b"x-late"), has_text(b"x-stream"));
                    if has_text(b"x-large") {
                        self.start_response(request.stream, 20 * 1024);
                    } else if is_streaming {
                        self.start_response(request.stream, 5);
                    } else if request.body == peregrine_proto::BodyLength::None && !is_slow {
                        self.respond(request.stream, 200);
                    }
                }
                Event::Data { stream, range } => {
                    assert!(start + range.end == at);
                    self.content += range.len();
                    self.connection.release_capacity(stream, range.len(), &mut self.out);
                }
                Event::End { stream } => self.respond(stream, 200),
                Event::RequestError { stream, error } => self.respond(stream, error.status()),
                Event::ConnectionError(error) => self.error = Some(error),
                _ => {}
            }
        }
        self.connection.reset_unfinished(&mut self.out, |_| {});
        self.connection.assert_invariants();
    }

    fn respond(&mut self, stream: StreamKey, status: u16) {
        if !self.responds {
            return;
        }
        let (date, length) = (Date::from_unix_seconds(0), ResponseLength::Exact(2));
        let (limits, out) = (&self.limits, &mut self.out);
        self.connection.send_response(limits, stream, status, [], length, &date, out);
        self.connection.send_data(limits, stream, b"ok", MoreData::End, out);
    }

    /// Starts a response that does not end, and sends `bytes` bytes of it.
    fn start_response(&mut self, stream: StreamKey, bytes: usize) {
        let (date, length) = (Date::from_unix_seconds(0), ResponseLength::Unknown);
        let (limits, out, data) = (&self.limits, &mut self.out, vec![b'x'; bytes]);
        self.connection.send_response(limits, stream, 200, [], length, &date, out);
        let mut sent = 0;
        while sent < bytes {
            let written =
                self.connection.send_data(limits, stream, &data[sent..], MoreData::Pending, out);
            assert!(written > 0, "the windows are open");
            sent += written;
        }
    }

    /// Feeds the lines of each round until the connection closes, at most `times` rounds. Returns
    /// the number of rounds.
    fn flood(&mut self, times: u32, lines: impl Fn(u32) -> Vec<String>) -> u32 {
        for round in 0..times {
            self.feed(&wire::bytes(lines(round).iter()));
            assert!(self.connection.memory_bytes().0 <= 16 * 1024, "the tables are bounded");
            assert!(self.connection.memory_bytes().1 <= 160 * 1024, "all else is bounded");
            if self.connection.next_action() == NextAction::Close {
                return round;
            }
            // The peer reads, and time does not advance.
            self.out.clear();
            self.connection.output_flushed();
        }
        times
    }
}

const GET: &str = "+end :method=GET :scheme=http :path=/ :authority=a";
const POST: &str = ":method=POST :scheme=http :path=/ :authority=a";

type Lines = Box<dyn Fn(u32) -> Vec<String>>;

fn repeat_line(line: &str) -> Lines {
    let line = line.to_owned();
    Box::new(move |_| vec![line.clone()])
}

/// Starts an upload, then repeats a line.
fn within_upload(line: &str) -> Lines {
    let line = line.to_owned();
    Box::new(move |round| match round {
        0 => vec![format!("headers 1 {POST}"), line.clone()],
        _ => vec![line.clone()],
    })
}

/// Lines with the identifier of a new stream in place of each `#`.
fn each_stream(lines: &[&str]) -> Lines {
    let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    Box::new(move |round| {
        let id = (2 * round + 1).to_string();
        lines.iter().map(|line| line.replace('#', &id)).collect()
    })
}

#[expect(clippy::too_many_lines, reason = "one table with a row for each attack")]
#[test]
fn every_attack_ends_with_enhance_your_calm() {
    let get = format!("headers # {GET}");
    let post = format!("headers # {POST}");
    let settings = "settings 1=0 1=4096".to_owned();
    let long_field = format!("headers # {GET} a={}", "x".repeat(16_000));
    let huge_block =
        format!("headers # {GET} block:\\x40\\x01a\\x7f\\x81\\x1e\\{{x*3968}}\\{{\\xbe*12}}");
    let attacks: Vec<(&str, bool, Lines)> = vec![
        ("rapid reset", false, each_stream(&[&get, "reset # 8"])),
        ("rapid reset of uploads", false, each_stream(&[&post, "reset # 8"])),
        ("resets that the server must send: window", false, each_stream(&[&get, "window # 0"])),
        (
            "resets that the server must send: overflow",
            false,
            each_stream(&[&get, "window # 2147483647"]),
        ),
        ("resets that the server must send: data", false, each_stream(&[&get, "data # a"])),
        (
            "resets that the server must send: priority",
            false,
            each_stream(&[&get, "frame 2 0 # abcd"]),
        ),
        ("malformed requests", true, each_stream(&["headers # +end a=b"])),
        ("refused requests", true, each_stream(&[&format!("headers # {GET} expect=x")])),
        ("streams above the limit", false, each_stream(&[&post])),
        (
            "frames on streams that were reset",
            false,
            Box::new(move |round| match round {
                0 => vec![format!("headers 1 {POST}"), "reset 1 8".to_owned()],
                _ => vec!["data 1 a".to_owned()],
            }),
        ),
        ("empty data", true, within_upload("data 1")),
        ("padding", true, within_upload("data 1 +pad=255")),
        ("padded bytes", true, within_upload("data 1 +pad=255 a")),
        ("empty headers", true, each_stream(&["headers # +end +more", "continuation # +end a=b"])),
        (
            "continuations",
            true,
            Box::new(|round| match round {
                0 => vec!["headers 1 +end +more a=b".to_owned()],
                _ => vec!["continuation 1 +more a=b".to_owned()],
            }),
        ),
        (
            "empty continuations",
            true,
            Box::new(|round| match round {
                0 => vec!["headers 1 +end +more".to_owned()],
                _ => vec!["continuation 1 +more".to_owned()],
            }),
        ),
        ("settings", true, repeat_line(&settings)),
        ("settings of many", true, repeat_line(&format!("settings{}", " 77=1".repeat(2000)))),
        ("pings", true, repeat_line("ping 12345678")),
        ("unsolicited ping acknowledgements", true, repeat_line("ping-ack 12345678")),
        (
            "unsolicited acknowledgements of the server's pings: measure",
            true,
            repeat_line("ping-ack measure?"),
        ),
        (
            "unsolicited acknowledgements of the server's pings: leave",
            true,
            repeat_line("ping-ack answered"),
        ),
        (
            "unsolicited acknowledgements of the server's pings: go away",
            true,
            repeat_line("ping-ack go away?"),
        ),
        (
            "unsolicited acknowledgements of the server's pings: present",
            true,
            repeat_line("ping-ack present?"),
        ),
        ("unsolicited settings acknowledgements", true, repeat_line("settings-ack")),
        ("priorities", true, repeat_line("priority 1")),
        (
            "priorities that depend on themselves",
            true,
            repeat_line("frame 2 0 1 \\0\\0\\0\\x01\\0"),
        ),
        ("priority updates", true, repeat_line("priority-update 1 u=1")),
        ("window updates", true, repeat_line("window 0 1")),
        ("window updates of streams", true, within_upload("window 1 1")),
        ("unknown frames", true, repeat_line("frame 99 0 0")),
        (
            "go-aways",
            false,
            Box::new(|round| match round {
                0 => vec![format!("headers 1 {POST}")],
                _ => vec!["go-away 0 0".to_owned()],
            }),
        ),
        ("huge header lists", false, each_stream(&[&long_field, "reset # 8"])),
        ("a bomb", false, each_stream(&[&huge_block, "reset # 8"])),
        (
            "a thrashed table",
            false,
            each_stream(&[
                &format!("headers # {GET} block:\\x40\\x01a\\x7f\\x81\\x1e\\{{x*3968}}"),
                "reset # 8",
            ]),
        ),
        (
            "table sizes",
            false,
            each_stream(&["headers # +end block:\\{\\x20\\x3f\\xe1\\x1f*100}", "reset # 8"]),
        ),
        (
            "late frames",
            true,
            Box::new(move |round| match round {
                0 => vec![format!("headers 1 {GET}")],
                _ => vec!["reset 1 8".to_owned(), "window 1 1".to_owned()],
            }),
        ),
    ];
    for (name, responds, lines) in attacks {
        let mut server = Server::new(Limits::DEFAULT);
        server.responds = responds;
        let rounds = server.flood(5000, lines);
        let code = server.error.map(Http2Error::code);
        assert_eq!(
            code,
            Some(ErrorCode::ENHANCE_YOUR_CALM),
            "{name}: {:?} after {rounds}",
            server.error
        );
    }
}

#[test]
fn pending_control_frames_are_limited() {
    let mut server = Server::new(Limits { pending_control_frames_max: 100, ..Limits::DEFAULT });
    server.feed(&wire::bytes(["ping 12345678 x200"].iter()));
    assert_eq!(server.error, Some(Http2Error::PendingControlFramesExceeded));
    assert!(server.out.len() < 3000);
}

#[test]
fn the_budget_is_refilled_with_time_up_to_its_maximum() {
    let limits = Limits::DEFAULT;
    let mut server = Server::new(limits);
    server.connection.refill_budget(&limits, 1000);
    let initial = server.connection.budget_left();
    server.feed(&wire::bytes(["ping 12345678 x100"].iter()));
    assert_eq!(server.connection.budget_left(), initial - 200);
    // The same in small steps and in large ones.
    for now in 1000..2000 {
        server.connection.refill_budget(&limits, now);
    }
    assert!(server.connection.budget_left().abs_diff(initial - 150) <= 1);
    server.connection.refill_budget(&limits, 1_000_000);
    assert_eq!(server.connection.budget_left(), limits.abuse_budget_max);
}

#[test]
fn a_million_requests_on_one_connection_are_served() {
    let mut server = Server::new(Limits::DEFAULT);
    let template = wire::bytes([format!("headers 1 {GET}")].iter());
    let (mut id, mut bytes) = (1_u32, Vec::new());
    for _ in 0..10_000 {
        bytes.clear();
        for _ in 0..100 {
            let start = bytes.len();
            bytes.extend_from_slice(&template);
            bytes[start + 5..start + 9].copy_from_slice(&id.to_be_bytes());
            id += 2;
        }
        // A client that acknowledges each response with a window update.
        for _ in 0..100 {
            peregrine_proto::h2::frame::write_window_update(0, 2, &mut bytes);
        }
        server.feed(&bytes);
        server.out.clear();
        server.connection.output_flushed();
        assert_eq!(server.error, None);
    }
    assert_eq!(server.requests, 1_000_000);
    // Only the cost of the last turn's updates was spent.
    assert!(server.connection.budget_left() >= Limits::DEFAULT.abuse_budget_max - 100);
}

#[test]
fn two_window_updates_per_sent_frame_are_free() {
    // The client acknowledges while the stream is open, or after its end.
    for last in [MoreData::Pending, MoreData::End] {
        let mut server = Server::new(Limits::DEFAULT);
        server.responds = false;
        server.feed(&wire::bytes([format!("headers 1 {GET}")].iter()));
        let stream = server.last_stream.expect("the request arrived");
        let date = Date::from_unix_seconds(0);
        let (limits, out) = (&server.limits, &mut server.out);
        server.connection.send_response(
            limits,
            stream,
            200,
            [],
            ResponseLength::Unknown,
            &date,
            out,
        );
        // An event stream's initial data, in small frames.
        let frames = 5_000;
        for number in 0..frames {
            let last = if number + 1 == frames { last } else { MoreData::Pending };
            assert_eq!(server.connection.send_data(limits, stream, b"event", last, out), 5);
        }
        let mut updates = Vec::new();
        for _ in 0..frames {
            peregrine_proto::h2::frame::write_window_update(0, 5, &mut updates);
            peregrine_proto::h2::frame::write_window_update(1, 5, &mut updates);
        }
        server.feed(&updates);
        assert_eq!(server.error, None);
        assert_eq!(server.connection.budget_left(), Limits::DEFAULT.abuse_budget_max);
        // One more update acknowledges nothing.
        server.feed(&wire::bytes(["window 0 1"].iter()));
        assert_eq!(server.connection.budget_left(), Limits::DEFAULT.abuse_budget_max - 1);
    }
}

#[test]
fn repeated_batches_of_a_hundred_streams_are_served() {
    let mut server = Server::new(Limits::DEFAULT);
    for round in 0..100 {
        let ids = || (0..100).map(move |at| round * 200 + at * 2 + 1);
        let mut lines: Vec<_> = ids().map(|id| format!("headers {id} {POST} cookie=a=b")).collect();
        lines.extend(ids().map(|id| format!("data {id} hello")));
        // A tenth of them is cancelled.
        lines.extend(ids().map(|id| match id % 20 {
            1 => format!("reset {id} 8"),
            _ => format!("data {id} +end"),
        }));
        server.feed(&wire::bytes(lines.iter()));
        server.out.clear();
        server.connection.output_flushed();
        assert_eq!(server.error, None, "round {round}");
    }
    assert_eq!(server.requests, 10_000);
}

#[test]
fn large_uploads_and_small_messages_are_served() {
    let limits = Limits {
        request: peregrine_proto::Limits { body_bytes_max: u64::MAX, ..Default::default() },
        ..Limits::DEFAULT
    };
    let mut server = Server::new(limits);
    server.feed(&wire::bytes([format!("headers 1 {POST}"), format!("headers 3 {POST}")].iter()));
    let content = vec![b'x'; 16_000];
    let mut frames = Vec::new();
    peregrine_proto::h2::frame::write_frame(
        peregrine_proto::h2::frame::FrameType::Data,
        0,
        1,
        &content,
        &mut frames,
    );
    for _ in 0..20 {
        peregrine_proto::h2::frame::write_frame(
            peregrine_proto::h2::frame::FrameType::Data,
            0,
            3,
            b"msg",
            &mut frames,
        );
    }
    for _ in 0..5000 {
        server.feed(&frames);
        server.out.clear();
        server.connection.output_flushed();
        assert_eq!(server.error, None);
    }
    assert_eq!(server.content, 5000 * (16_000 + 60));
}

/// Content in transit when the server resets a stream is not charged: a client on a slow machine
/// may have sent everything that the windows allow.
#[test]
fn only_content_in_transit_on_reset_streams_is_free() {
    let mut server = Server::new(Limits::DEFAULT);
    let budget = server.connection.budget_left();
    let window = Limits::DEFAULT.initial_stream_window as usize;
    // Small messages count by their content, as they do against the window.
    for bytes in [5, 20, 1_000, 16_384] {
        for round in 0..200 {
            let id = server.last_stream.map_or(1, |stream| stream.id() + 2);
            // The client has started to send when the response arrives.
            server.feed(&wire::bytes(
                [format!("headers {id} {POST}"), format!("data {id} a")].iter(),
            ));
            let stream = server.last_stream.expect("the request arrived");
            server.respond(stream, 413);
            // At the end of the turn, the server checks by PING whether the client has seen the
            // response.
            server.feed(&[]);
            server.feed(&wire::bytes(["ping-ack answered"].iter()));
            let frames = (window - 1) / bytes;
            server.feed(&wire::bytes([format!("data {id} \\{{x*{bytes}}} x{frames}")].iter()));
            assert_eq!(server.error, None, "round {round} of {bytes} bytes");
            assert_eq!(server.connection.budget_left(), budget, "round {round} of {bytes} bytes");
            server.out.clear();
            server.connection.output_flushed();
        }
    }
    // There is a limit to further frames: both to empty and to small ones.
    let id = server.last_stream.expect("requests arrived").id();
    for (line, free_frames) in [
        (format!("data {id} +end"), 0),
        (format!("data {id} a"), Limits::DEFAULT.initial_connection_window),
    ] {
        let mut server = Server::new(Limits::DEFAULT);
        server.feed(&wire::bytes([format!("headers {id} {POST}"), format!("data {id} a")].iter()));
        let stream = server.last_stream.expect("the request arrived");
        server.respond(stream, 413);
        server.feed(&[]);
        server.feed(&wire::bytes(["ping-ack answered"].iter()));
        let rounds = server.flood(u32::MAX, |_| vec![line.clone()]);
        assert_eq!(server.error, Some(Http2Error::AbuseBudgetExhausted));
        assert!(rounds < free_frames + Limits::DEFAULT.abuse_budget_max + 1, "{rounds}");
    }
}

/// A stream that is reset for a malformed head or malformed trailers has content in transit as
/// well.
#[test]
fn content_in_transit_on_malformed_streams_is_free() {
    let window = Limits::DEFAULT.initial_stream_window as usize;
    let small_data_lines = |id: u32| format!("data {id} \\{{x*20}} x{}", (window - 1) / 20);
    let malformed: [&[&str]; 2] = [&["headers # UPPER=a"], &["headers #", "headers # x=a"]];
    for lines in malformed {
        let mut server = Server::new(Limits::DEFAULT);
        for round in 0..20 {
            let id = 2 * round + 1;
            for line in lines {
                let line = line.replace('#', &id.to_string());
                let line =
                    line.replacen(&format!("headers {id}"), &format!("headers {id} {POST}"), 1);
                server.feed(&wire::bytes([line].iter()));
            }
            server.feed(&wire::bytes([small_data_lines(id)].iter()));
            assert_eq!(server.error, None, "{lines:?}, round {round}");
            server.feed(&[]);
            server.out.clear();
            server.connection.output_flushed();
        }
    }
}

/// Padding counts against the windows like content, but no handler consumes it.
#[test]
fn padding_alone_does_not_exhaust_a_window() {
    let limits = Limits { abuse_budget_max: u32::MAX, ..Limits::DEFAULT };
    let mut server = Server::new(limits);
    server.feed(&wire::bytes([format!("headers 1 {POST}")].iter()));
    let stream = server.last_stream.expect("the request arrived");
    for round in 0..3 * limits.initial_stream_window / 255 {
        server.feed(&wire::bytes(["data 1 +pad=254"].iter()));
        assert_eq!(server.error, None, "round {round}");
        assert!(server.connection.can_receive_data(stream), "round {round}");
    }
    server.feed(&wire::bytes(["data 1 +end +pad=3 text"].iter()));
    assert_eq!((server.requests, server.content), (1, 4));
}

/// The server may wait for the content of a frame that has begun, even if the frame exhausts the
/// window.
#[test]
fn can_receive_data_within_a_frame_that_exhausts_the_window() {
    let window = 16_384;
    let mut server = Server::new(Limits { initial_stream_window: window, ..Limits::DEFAULT });
    server.feed(&wire::bytes([format!("headers 1 {POST}")].iter()));
    let stream = server.last_stream.expect("the request arrived");
    let frame = wire::bytes([format!("data 1 \\{{x*{window}}}")].iter());
    let (frame_header, payload) = frame.split_at(9);
    let (limits, mut bytes, mut head_index) = (server.limits, Vec::new(), HeadIndex::new());
    let mut receive = |server: &mut Server, unread: &[u8]| {
        let out = &mut server.out;
        server.connection.receive(&limits, unread, &mut bytes, &mut head_index, out)
    };
    assert!(matches!(receive(&mut server, frame_header), (9, Event::NeedInput)));
    assert!(server.connection.can_receive_data(stream), "the content of the frame is missing");
    let (used, event) = receive(&mut server, payload);
    assert!(used == payload.len() && matches!(event, Event::Data { .. }));
    assert!(!server.connection.can_receive_data(stream), "the handler has not consumed any of it");
    server.connection.release_capacity(stream, used, &mut server.out);
    assert!(server.connection.can_receive_data(stream));
}

/// A client may use the larger default window before it receives the server's smaller setting (RFC
/// 9113 §6.9.3). Its window is then negative, and it continues once enough content was consumed.
#[test]
fn an_upload_continues_after_the_initial_window_shrinks() {
    let limits = Limits { initial_stream_window: 16_384, ..Limits::DEFAULT };
    let mut out = Vec::new();
    let connection = Connection::new(&limits, &mut out);
    let mut server = Server { connection, out, ..Server::new(limits) };
    server.feed(&wire::bytes(["hello", &format!("headers 1 {POST}")].iter()));
    let stream = server.last_stream.expect("the request arrived");
    let mut window = 65_535_i64;
    let mut sent = 0;
    let mut send_all = |server: &mut Server, window: &mut i64| {
        while *window > 0 {
            let len = (*window).min(16_384);
            server.feed(&wire::bytes([format!("data 1 \\{{x*{len}}}")].iter()));
            (sent, *window) = (sent + len, *window - len);
            assert_eq!(server.error, None);
        }
        sent
    };
    send_all(&mut server, &mut window);
    // Only now does the client receive the settings, and the frames with them.
    let apply_window_updates = |server: &mut Server, window: &mut i64| {
        let mut at = 0;
        while let Some(header) = frame::FrameHeader::parse(&server.out[at..]) {
            let payload = &server.out[at + 9..][..header.length as usize];
            if header.frame_type == frame::FrameType::WindowUpdate && header.stream_id == 1 {
                *window += i64::from(u32::from_be_bytes(payload.try_into().expect("four bytes")));
            }
            at += 9 + payload.len();
        }
        server.out.clear();
        server.connection.output_flushed();
    };
    window -= 65_535 - 16_384;
    server.feed(&wire::bytes(["settings-ack"].iter()));
    for _ in 0..20 {
        apply_window_updates(&mut server, &mut window);
        assert!(
            window > 0 && server.connection.can_receive_data(stream),
            "the client may continue: {window}"
        );
        send_all(&mut server, &mut window);
    }
    assert!(server.content > 200_000, "{}", server.content);

    // The end without content needs no window, even if that is negative: the content is not
    // consumed.
    let mut server = Server::new(limits);
    server.connection = Connection::new(&limits, &mut server.out);
    let start_lines =
        ["hello".to_owned(), format!("headers 1 {POST}"), "data 1 \\{x*16000} x4".to_owned()];
    let end_lines = ["settings-ack".to_owned(), "data 1 +end".to_owned()];
    let (mut bytes, mut head, mut end_events) = (Vec::new(), HeadIndex::new(), 0);
    let unread = wire::bytes(start_lines.iter().chain(&end_lines));
    let mut at = 0;
    loop {
        let out = &mut server.out;
        let (used, event) =
            server.connection.receive(&limits, &unread[at..], &mut bytes, &mut head, out);
        at += used;
        match event {
            Event::NeedInput => break,
            Event::End { .. } => end_events += 1,
            Event::Reset { cause, .. } => panic!("{cause:?}"),
            _ => {}
        }
    }
    assert_eq!((end_events, at), (1, unread.len()));
}

#[test]
fn a_large_download_with_a_window_update_per_frame_is_served() {
    let mut server = Server::new(Limits::DEFAULT);
    server.responds = false;
    server.feed(&wire::bytes([format!("headers 1 {GET}")].iter()));
    let stream = {
        let limits = &server.limits;
        let mut bytes = Vec::new();
        let mut head = HeadIndex::new();
        let request_bytes = wire::bytes([format!("headers 3 {GET}")].iter());
        let event = server
            .connection
            .receive(limits, &request_bytes, &mut bytes, &mut head, &mut server.out)
            .1;
        let Event::Request(request) = event else { panic!("{event:?}") };
        request.stream
    };
    let date = Date::from_unix_seconds(0);
    let (limits, length) = (server.limits, ResponseLength::Unknown);
    server.connection.send_response(&limits, stream, 200, [], length, &date, &mut server.out);
    let update = wire::bytes(["window 0 512", "window 3 512"].iter());
    for _ in 0..100_000 {
        let data = [b'x'; 512];
        let written = server.connection.send_data(
            &limits,
            stream,
            &data,
            MoreData::Buffered,
            &mut server.out,
        );
        assert_eq!(written, 512);
        server.feed(&update);
        server.out.clear();
        assert_eq!(server.error, None);
    }
}

#[test]
fn a_client_that_opens_its_window_byte_by_byte_is_rejected() {
    let mut server = Server::new(Limits::DEFAULT);
    server.responds = false;
    let (limits, date, length) =
        (server.limits, Date::from_unix_seconds(0), ResponseLength::Exact(1_000_000));
    let (mut bytes, mut head) = (Vec::new(), HeadIndex::new());
    server.feed(&wire::bytes(["settings 4=1"].iter()));
    let request = wire::bytes([format!("headers 1 {GET}")].iter());
    let event =
        server.connection.receive(&limits, &request, &mut bytes, &mut head, &mut server.out).1;
    let Event::Request(request) = event else { panic!("{event:?}") };
    let (stream, out) = (request.stream, &mut server.out);
    server.connection.send_response(&limits, stream, 200, [], length, &date, out);
    server.connection.mark_ready(stream);
    let update = wire::bytes(["window 1 1"].iter());
    let mut frames = 0;
    while server.error.is_none() {
        while let Some(ready) = server.connection.next_ready(&limits) {
            let data = vec![b'x'; 1000];
            assert_eq!(ready.bytes_max, 1);
            let (connection, out) = (&mut server.connection, &mut server.out);
            connection.send_data(&limits, stream, &data, MoreData::Buffered, out);
            frames += 1;
        }
        server.feed(&update);
        server.connection.output_flushed();
        assert!(frames < 5000, "the number of frames is unlimited");
    }
    assert_eq!(server.error, Some(Http2Error::AbuseBudgetExhausted));
}

/// Requests with immediate responses do not pay for resets, whichever side ends the stream.
#[test]
fn cheap_requests_do_not_pay_for_resets() {
    let reset_causes: [(&str, &[&str]); 7] = [
        ("by the client", &["reset # 8"]),
        ("by the client, of an upload", &["data # some", "reset # 8"]),
        ("by a window of zero", &["window # 0"]),
        ("by a window that is too large", &["window # 2147483647"]),
        ("by content after the end", &["data # a"]),
        ("by a short priority", &["frame 2 0 # abcd"]),
        ("by a length that was wrong", &["data # +end longer"]),
    ];
    let credit_lines: [&[&str]; 4] = [
        &[],
        &["ping 12345678"],
        // Content that the client sends, and frames that it acknowledges.
        &["data @ \\{x*2000}", "data @ +end"],
        &["window 0 2", "settings-ack"],
    ];
    for (name, reset_lines) in reset_causes {
        for credit in credit_lines {
            let is_open = reset_lines.iter().any(|line| line.starts_with("data"))
                && name != "by content after the end";
            let mut server = Server::new(Limits::DEFAULT);
            let pairs = server.flood(1000, |round| {
                let (credited_id, reset_id) = (4 * round + 1, 4 * round + 3);
                let is_upload = credit.iter().any(|line| line.starts_with("data"));
                let head = if is_upload { POST } else { GET };
                let mut lines = vec![format!("headers {credited_id} {head}")];
                lines.extend(credit.iter().map(|line| line.replace('@', &credited_id.to_string())));
                let fields = match name {
                    "by a length that was wrong" => format!("{POST} content-length=2"),
                    _ if is_open => POST.to_owned(),
                    _ => format!("{GET} x-late=1"),
                };
                lines.push(format!("headers {reset_id} {fields}"));
                lines.extend(
                    reset_lines.iter().map(|line| line.replace('#', &reset_id.to_string())),
                );
                lines
            });
            assert_eq!(
                server.error,
                Some(Http2Error::AbuseBudgetExhausted),
                "{name}, {credit:?}: {pairs}"
            );
        }
    }
}

/// A client that cancels some of its many requests is served indefinitely, even if no time passes.
#[test]
fn a_client_that_cancels_a_few_percent_of_its_requests_is_served() {
    // How many of a hundred are cancelled before the response, and during it.
    for (before_response, during_response) in [(1, 0), (5, 0), (15, 0), (0, 25), (8, 10)] {
        let mut server = Server::new(Limits::DEFAULT);
        let requests = server.flood(50_000, |round| {
            let (id, percentile) = (2 * round + 1, round * 37 % 100);
            if percentile < before_response {
                vec![format!("headers {id} {GET} x-late=1"), format!("reset {id} 8")]
            } else if percentile < before_response + during_response {
                vec![
                    format!("headers {id} {GET} x-stream=1"),
                    "window 0 5".to_owned(),
                    format!("reset {id} 8"),
                ]
            } else {
                vec![format!("headers {id} {GET}"), "window 0 2".to_owned()]
            }
        });
        assert_eq!(
            (requests, server.error),
            (50_000, None),
            "{before_response} and {during_response} of 100"
        );
    }
    // A user leaves a page, and cancels downloads half-way.
    let mut server = Server::new(Limits::DEFAULT);
    let each = |line: &str| {
        let ids = (0..100).map(|at| (2 * at + 1).to_string());
        wire::bytes(ids.map(|id| line.replace('#', &id)))
    };
    server.feed(&each(&format!("headers # {GET} x-late=1")));
    server.feed(&each("reset # 8"));
    assert_eq!(server.error, None);
    let downloads = server.flood(20_000, |round| {
        let id = 2 * round + 1001;
        let window = format!("window 0 {}", 20 * 1024);
        vec![format!("headers {id} {GET} x-large=1"), window, format!("reset {id} 8")]
    });
    assert_eq!((downloads, server.error), (20_000, None));
}
