//! Attacks that are stopped or bounded, and heavy honest use that is served.

use super::wire;
use peregrine_proto::h1::ResponseLength;
use peregrine_proto::h2::frame;
use peregrine_proto::h2::{
    Connection, ErrorCode, Event, Http2Error, Limits, MoreData, NextAction, StreamKey,
};
use peregrine_proto::{Date, HeadIndex};

/// A server that answers each complete request at once with two bytes, and consumes all content.
struct Server {
    limits: Limits,
    connection: Connection,
    bytes: Vec<u8>,
    head: HeadIndex,
    out: Vec<u8>,
    requests: usize,
    content: usize,
    answers: bool,
    last: Option<StreamKey>,
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
            answers: true,
            last: None,
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
                    self.last = Some(request.stream);
                    let says =
                        |field: &[u8]| self.bytes.windows(field.len()).any(|bytes| bytes == field);
                    let (is_late, is_begun) = (says(b"x-late"), says(b"x-stream"));
                    if says(b"x-large") {
                        self.begin(request.stream, 20 * 1024);
                    } else if is_begun {
                        self.begin(request.stream, 5);
                    } else if request.body == peregrine_proto::BodyLength::None && !is_late {
                        self.respond(request.stream, 200);
                    }
                }
                Event::Data { stream, range } => {
                    assert!(start + range.end == at);
                    self.content += range.len();
                    self.connection.release_capacity(stream, range.len(), &mut self.out);
                }
                Event::End { stream } => self.respond(stream, 200),
                Event::RequestError { stream, error: reject } => {
                    self.respond(stream, reject.status())
                }
                Event::ConnectionError(reject) => self.error = Some(reject),
                _ => {}
            }
        }
        self.connection.close_answered_streams(&mut self.out, |_| {});
        self.connection.assert_invariants();
    }

    fn respond(&mut self, stream: StreamKey, status: u16) {
        if !self.answers {
            return;
        }
        let (date, length) = (Date::from_unix_seconds(0), ResponseLength::Exact(2));
        let (limits, out) = (&self.limits, &mut self.out);
        self.connection.send_response(limits, stream, status, [], length, &date, out);
        self.connection.send_data(limits, stream, b"ok", MoreData::End, out);
    }

    /// Starts a response that does not end, and sends `bytes` bytes of it.
    fn begin(&mut self, stream: StreamKey, bytes: usize) {
        let (date, length) = (Date::from_unix_seconds(0), ResponseLength::Unknown);
        let (limits, out, data) = (&self.limits, &mut self.out, vec![b'x'; bytes]);
        self.connection.send_response(limits, stream, 200, [], length, &date, out);
        let mut sent = 0;
        while sent < bytes {
            let taken =
                self.connection.send_data(limits, stream, &data[sent..], MoreData::Pending, out);
            assert!(taken > 0, "the windows are open");
            sent += taken;
        }
    }

    /// Feeds the lines for each number while the connection lives, at most `times` times. Returns
    /// how many were fed.
    fn flood(&mut self, times: u32, lines: impl Fn(u32) -> Vec<String>) -> u32 {
        for time in 0..times {
            self.feed(&wire::bytes(lines(time).iter()));
            assert!(self.connection.memory_bytes().0 <= 16 * 1024, "the tables are bounded");
            assert!(self.connection.memory_bytes().1 <= 160 * 1024, "all else is bounded");
            if self.connection.next_action() == NextAction::Close {
                return time;
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

fn same(line: &str) -> Lines {
    let line = line.to_owned();
    Box::new(move |_| vec![line.clone()])
}

/// Starts an upload, then repeats a line.
fn within_upload(line: &str) -> Lines {
    let line = line.to_owned();
    Box::new(move |time| match time {
        0 => vec![format!("headers 1 {POST}"), line.clone()],
        _ => vec![line.clone()],
    })
}

/// Lines with the identifier of a new stream in place of each `#`.
fn each_stream(lines: &[&str]) -> Lines {
    let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    Box::new(move |time| {
        let id = (2 * time + 1).to_string();
        lines.iter().map(|line| line.replace('#', &id)).collect()
    })
}

#[expect(clippy::too_many_lines, reason = "one table with a row for each attack")]
#[test]
fn every_attack_is_told_to_calm_down_before_its_deeds_are_many() {
    let get = format!("headers # {GET}");
    let post = format!("headers # {POST}");
    let settings = "settings 1=0 1=4096".to_owned();
    let huge = format!("headers # {GET} a={}", "x".repeat(16_000));
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
            Box::new(move |time| match time {
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
            Box::new(|time| match time {
                0 => vec!["headers 1 +end +more a=b".to_owned()],
                _ => vec!["continuation 1 +more a=b".to_owned()],
            }),
        ),
        (
            "empty continuations",
            true,
            Box::new(|time| match time {
                0 => vec!["headers 1 +end +more".to_owned()],
                _ => vec!["continuation 1 +more".to_owned()],
            }),
        ),
        ("settings", true, same(&settings)),
        ("settings of many", true, same(&format!("settings{}", " 77=1".repeat(2000)))),
        ("pings", true, same("ping 12345678")),
        ("answers to no ping", true, same("ping-ack 12345678")),
        ("answers to no ping of the server's: measure", true, same("ping-ack measure?")),
        ("answers to no ping of the server's: leave", true, same("ping-ack answered")),
        ("answers to no ping of the server's: go away", true, same("ping-ack go away?")),
        ("answers to no ping of the server's: present", true, same("ping-ack present?")),
        ("acknowledgements of nothing", true, same("settings-ack")),
        ("priorities", true, same("priority 1")),
        ("priorities that depend on themselves", true, same("frame 2 0 1 \\0\\0\\0\\x01\\0")),
        ("priority updates", true, same("priority-update 1 u=1")),
        ("window updates", true, same("window 0 1")),
        ("window updates of streams", true, within_upload("window 1 1")),
        ("unknown frames", true, same("frame 99 0 0")),
        (
            "go-aways",
            false,
            Box::new(|time| match time {
                0 => vec![format!("headers 1 {POST}")],
                _ => vec!["go-away 0 0".to_owned()],
            }),
        ),
        ("huge header lists", false, each_stream(&[&huge, "reset # 8"])),
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
            Box::new(move |time| match time {
                0 => vec![format!("headers 1 {GET}")],
                _ => vec!["reset 1 8".to_owned(), "window 1 1".to_owned()],
            }),
        ),
    ];
    for (name, answers, lines) in attacks {
        let mut server = Server::new(Limits::DEFAULT);
        server.answers = answers;
        let times = server.flood(5000, lines);
        let code = server.error.map(Http2Error::code);
        assert_eq!(
            code,
            Some(ErrorCode::ENHANCE_YOUR_CALM),
            "{name}: {:?} after {times}",
            server.error
        );
    }
}

#[test]
fn a_client_that_does_not_read_what_it_asks_for_is_told_to_go() {
    let mut server = Server::new(Limits { pending_control_frames_max: 100, ..Limits::DEFAULT });
    server.feed(&wire::bytes(["ping 12345678 x200"].iter()));
    assert_eq!(server.error, Some(Http2Error::PendingControlFramesExceeded));
    assert!(server.out.len() < 3000);
}

#[test]
fn time_gives_back_what_was_spent_and_no_more_than_there_was() {
    let limits = Limits::DEFAULT;
    let mut server = Server::new(limits);
    server.connection.refill_budget(&limits, 1000);
    let before = server.connection.budget_left();
    server.feed(&wire::bytes(["ping 12345678 x100"].iter()));
    assert_eq!(server.connection.budget_left(), before - 200);
    // The same in small steps and in large ones.
    for now in 1000..2000 {
        server.connection.refill_budget(&limits, now);
    }
    assert!(server.connection.budget_left().abs_diff(before - 150) <= 1);
    server.connection.refill_budget(&limits, 1_000_000);
    assert_eq!(server.connection.budget_left(), limits.abuse_budget_max);
}

#[test]
fn a_million_requests_in_a_row_are_served() {
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
        // A client that acknowledges each reply with a window update.
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
fn a_client_may_answer_each_frame_of_a_long_burst_with_two_windows() {
    // It acknowledges while the stream is open, or after its end.
    for after in [MoreData::Pending, MoreData::End] {
        let mut server = Server::new(Limits::DEFAULT);
        server.answers = false;
        server.feed(&wire::bytes([format!("headers 1 {GET}")].iter()));
        let stream = server.last.expect("the request came");
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
            let after = if number + 1 == frames { after } else { MoreData::Pending };
            assert_eq!(server.connection.send_data(limits, stream, b"event", after, out), 5);
        }
        let mut answer = Vec::new();
        for _ in 0..frames {
            peregrine_proto::h2::frame::write_window_update(0, 5, &mut answer);
            peregrine_proto::h2::frame::write_window_update(1, 5, &mut answer);
        }
        server.feed(&answer);
        assert_eq!(server.error, None);
        assert_eq!(server.connection.budget_left(), Limits::DEFAULT.abuse_budget_max);
        // One more update acknowledges nothing.
        server.feed(&wire::bytes(["window 0 1"].iter()));
        assert_eq!(server.connection.budget_left(), Limits::DEFAULT.abuse_budget_max - 1);
    }
}

#[test]
fn a_hundred_streams_at_once_again_and_again_are_served() {
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
    let piece = vec![b'x'; 16_000];
    let mut frames = Vec::new();
    peregrine_proto::h2::frame::write_frame(
        peregrine_proto::h2::frame::FrameType::Data,
        0,
        1,
        &piece,
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

/// Content in transit when the server ended a stream early costs nothing: a client on a slow
/// machine may have sent everything that the windows allow.
#[test]
fn content_under_way_on_streams_that_the_server_ended_is_free_and_what_is_more_is_not() {
    let mut server = Server::new(Limits::DEFAULT);
    let budget = server.connection.budget_left();
    let window = Limits::DEFAULT.initial_stream_window as usize;
    // Small messages count by their content, as they do against the window.
    for bytes in [5, 20, 1_000, 16_384] {
        for round in 0..200 {
            let id = server.last.map_or(1, |stream| stream.id() + 2);
            // It had started to send when the response arrived.
            server.feed(&wire::bytes(
                [format!("headers {id} {POST}"), format!("data {id} a")].iter(),
            ));
            let stream = server.last.expect("the request came");
            server.respond(stream, 413);
            // The turn ends: the server checks by PING whether the client has seen it.
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
    let id = server.last.expect("requests came").id();
    for (line, free) in [
        (format!("data {id} +end"), 0),
        (format!("data {id} a"), Limits::DEFAULT.initial_connection_window),
    ] {
        let mut server = Server::new(Limits::DEFAULT);
        server.feed(&wire::bytes([format!("headers {id} {POST}"), format!("data {id} a")].iter()));
        let stream = server.last.expect("the request came");
        server.respond(stream, 413);
        server.feed(&[]);
        server.feed(&wire::bytes(["ping-ack answered"].iter()));
        let times = server.flood(u32::MAX, |_| vec![line.clone()]);
        assert_eq!(server.error, Some(Http2Error::AbuseBudgetExhausted));
        assert!(times < free + Limits::DEFAULT.abuse_budget_max + 1, "{times}");
    }
}

/// A stream that is reset for a malformed head or malformed trailers has content in transit as
/// well.
#[test]
fn content_under_way_on_malformed_streams_is_free() {
    let window = Limits::DEFAULT.initial_stream_window as usize;
    let small = |id: u32| format!("data {id} \\{{x*20}} x{}", (window - 1) / 20);
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
            server.feed(&wire::bytes([small(id)].iter()));
            assert_eq!(server.error, None, "{lines:?}, round {round}");
            server.feed(&[]);
            server.out.clear();
            server.connection.output_flushed();
        }
    }
}

/// Padding counts against the windows like content, but no handler consumes it.
#[test]
fn padding_alone_closes_no_window() {
    let limits = Limits { abuse_budget_max: u32::MAX, ..Limits::DEFAULT };
    let mut server = Server::new(limits);
    server.feed(&wire::bytes([format!("headers 1 {POST}")].iter()));
    let stream = server.last.expect("the request came");
    for round in 0..3 * limits.initial_stream_window / 255 {
        server.feed(&wire::bytes(["data 1 +pad=254"].iter()));
        assert_eq!(server.error, None, "round {round}");
        assert!(server.connection.can_receive_data(stream), "round {round}");
    }
    server.feed(&wire::bytes(["data 1 +end +pad=3 text"].iter()));
    assert_eq!((server.requests, server.content), (1, 4));
}

/// A client that has announced content may be waited for, even if that takes the whole window.
#[test]
fn content_that_was_announced_may_still_come() {
    let window = 16_384;
    let mut server = Server::new(Limits { initial_stream_window: window, ..Limits::DEFAULT });
    server.feed(&wire::bytes([format!("headers 1 {POST}")].iter()));
    let stream = server.last.expect("the request came");
    let frame = wire::bytes([format!("data 1 \\{{x*{window}}}")].iter());
    let (head, content) = frame.split_at(9);
    let (limits, mut bytes, mut head_index) = (server.limits, Vec::new(), HeadIndex::new());
    let mut receive = |server: &mut Server, unread: &[u8]| {
        let out = &mut server.out;
        server.connection.receive(&limits, unread, &mut bytes, &mut head_index, out)
    };
    assert!(matches!(receive(&mut server, head), (9, Event::NeedInput)));
    assert!(server.connection.can_receive_data(stream), "its content is missing");
    let (used, event) = receive(&mut server, content);
    assert!(used == content.len() && matches!(event, Event::Data { .. }));
    assert!(!server.connection.can_receive_data(stream), "the handler has taken none of it");
    server.connection.release_capacity(stream, used, &mut server.out);
    assert!(server.connection.can_receive_data(stream));
}

/// A client may use the larger window before it has received that the server's is smaller (RFC 9113
/// §6.9.3): its window is then negative, and it continues when as much was consumed.
#[test]
fn an_upload_that_began_by_the_larger_window_goes_on_by_the_smaller_one() {
    let limits = Limits { initial_stream_window: 16_384, ..Limits::DEFAULT };
    let mut out = Vec::new();
    let connection = Connection::new(&limits, &mut out);
    let mut server = Server { connection, out, ..Server::new(limits) };
    server.feed(&wire::bytes(["hello", &format!("headers 1 {POST}")].iter()));
    let stream = server.last.expect("the request came");
    let mut window = 65_535_i64;
    let mut sent = 0;
    let mut send = |server: &mut Server, window: &mut i64| {
        while *window > 0 {
            let piece = (*window).min(16_384);
            server.feed(&wire::bytes([format!("data 1 \\{{x*{piece}}}")].iter()));
            (sent, *window) = (sent + piece, *window - piece);
            assert_eq!(server.error, None);
        }
        sent
    };
    send(&mut server, &mut window);
    // Only now does the client receive the settings, and the frames with them.
    let settled = |server: &mut Server, window: &mut i64| {
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
        settled(&mut server, &mut window);
        assert!(window > 0 && server.connection.can_receive_data(stream), "it may go on: {window}");
        send(&mut server, &mut window);
    }
    assert!(server.content > 200_000, "{}", server.content);

    // The end without content needs no window, even if that is negative: the content is not
    // consumed.
    let mut server = Server::new(limits);
    server.connection = Connection::new(&limits, &mut server.out);
    let begun =
        ["hello".to_owned(), format!("headers 1 {POST}"), "data 1 \\{x*16000} x4".to_owned()];
    let end = ["settings-ack".to_owned(), "data 1 +end".to_owned()];
    let (mut bytes, mut head, mut ends) = (Vec::new(), HeadIndex::new(), 0);
    let unread = wire::bytes(begun.iter().chain(&end));
    let mut at = 0;
    loop {
        let out = &mut server.out;
        let (used, event) =
            server.connection.receive(&limits, &unread[at..], &mut bytes, &mut head, out);
        at += used;
        match event {
            Event::NeedInput => break,
            Event::End { .. } => ends += 1,
            Event::Reset { cause, .. } => panic!("{cause:?}"),
            _ => {}
        }
    }
    assert_eq!((ends, at), (1, unread.len()));
}

#[test]
fn a_large_download_with_a_window_update_for_each_piece_is_served() {
    let mut server = Server::new(Limits::DEFAULT);
    server.answers = false;
    server.feed(&wire::bytes([format!("headers 1 {GET}")].iter()));
    let stream = {
        let limits = &server.limits;
        let mut bytes = Vec::new();
        let mut head = HeadIndex::new();
        let more = wire::bytes([format!("headers 3 {GET}")].iter());
        let event =
            server.connection.receive(limits, &more, &mut bytes, &mut head, &mut server.out).1;
        let Event::Request(request) = event else { panic!("{event:?}") };
        request.stream
    };
    let date = Date::from_unix_seconds(0);
    let (limits, length) = (server.limits, ResponseLength::Unknown);
    server.connection.send_response(&limits, stream, 200, [], length, &date, &mut server.out);
    let update = wire::bytes(["window 0 512", "window 3 512"].iter());
    for _ in 0..100_000 {
        let data = [b'x'; 512];
        let taken = server.connection.send_data(
            &limits,
            stream,
            &data,
            MoreData::Buffered,
            &mut server.out,
        );
        assert_eq!(taken, 512);
        server.feed(&update);
        server.out.clear();
        assert_eq!(server.error, None);
    }
}

#[test]
fn a_client_that_opens_its_window_byte_by_byte_is_told_to_calm_down() {
    let mut server = Server::new(Limits::DEFAULT);
    server.answers = false;
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
    let ways: [(&str, &[&str]); 7] = [
        ("by the client", &["reset # 8"]),
        ("by the client, of an upload", &["data # some", "reset # 8"]),
        ("by a window of zero", &["window # 0"]),
        ("by a window that is too large", &["window # 2147483647"]),
        ("by content after the end", &["data # a"]),
        ("by a short priority", &["frame 2 0 # abcd"]),
        ("by a length that was wrong", &["data # +end longer"]),
    ];
    let pays: [&[&str]; 4] = [
        &[],
        &["ping 12345678"],
        // Content that the client sends, and frames that it acknowledges.
        &["data @ \\{x*2000}", "data @ +end"],
        &["window 0 2", "settings-ack"],
    ];
    for (name, way) in ways {
        for pay in pays {
            let is_open = way.iter().any(|line| line.starts_with("data"))
                && name != "by content after the end";
            let mut server = Server::new(Limits::DEFAULT);
            let pairs = server.flood(1000, |time| {
                let (paid, reset) = (4 * time + 1, 4 * time + 3);
                let is_upload = pay.iter().any(|line| line.starts_with("data"));
                let head = if is_upload { POST } else { GET };
                let mut lines = vec![format!("headers {paid} {head}")];
                lines.extend(pay.iter().map(|line| line.replace('@', &paid.to_string())));
                let rest = match name {
                    "by a length that was wrong" => format!("{POST} content-length=2"),
                    _ if is_open => POST.to_owned(),
                    _ => format!("{GET} x-late=1"),
                };
                lines.push(format!("headers {reset} {rest}"));
                lines.extend(way.iter().map(|line| line.replace('#', &reset.to_string())));
                lines
            });
            assert_eq!(
                server.error,
                Some(Http2Error::AbuseBudgetExhausted),
                "{name}, {pay:?}: {pairs}"
            );
        }
    }
}

/// A client that cancels some of its many requests is served forever, even if no time passes.
#[test]
fn a_client_that_cancels_some_percent_of_its_requests_is_served() {
    // Of a hundred, before the response and during it.
    for (waiting, within) in [(1, 0), (5, 0), (15, 0), (0, 25), (8, 10)] {
        let mut server = Server::new(Limits::DEFAULT);
        let requests = server.flood(50_000, |time| {
            let (id, place) = (2 * time + 1, time * 37 % 100);
            if place < waiting {
                vec![format!("headers {id} {GET} x-late=1"), format!("reset {id} 8")]
            } else if place < waiting + within {
                vec![
                    format!("headers {id} {GET} x-stream=1"),
                    "window 0 5".to_owned(),
                    format!("reset {id} 8"),
                ]
            } else {
                vec![format!("headers {id} {GET}"), "window 0 2".to_owned()]
            }
        });
        assert_eq!((requests, server.error), (50_000, None), "{waiting} and {within} of 100");
    }
    // A page that the user leaves, and downloads that are stopped half-way.
    let mut server = Server::new(Limits::DEFAULT);
    let all = |line: &str| {
        let ids = (0..100).map(|at| (2 * at + 1).to_string());
        wire::bytes(ids.map(|id| line.replace('#', &id)))
    };
    server.feed(&all(&format!("headers # {GET} x-late=1")));
    server.feed(&all("reset # 8"));
    assert_eq!(server.error, None);
    let downloads = server.flood(20_000, |time| {
        let id = 2 * time + 1001;
        let window = format!("window 0 {}", 20 * 1024);
        vec![format!("headers {id} {GET} x-large=1"), window, format!("reset {id} 8")]
    });
    assert_eq!((downloads, server.error), (20_000, None));
}
