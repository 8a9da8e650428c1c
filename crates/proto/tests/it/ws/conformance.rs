//! The requirements of sections 1 to 7, 9, 10, 12 and 13 of the Autobahn test suite that concern
//! the codec. Each test names its section; the endpoint echoes messages, as in that suite.

use super::inflater::Inflater;
use super::notation::{self, MASK, lines};
use peregrine_proto::ws::{Connection, Event, Limits, MessagePayload, NextAction, Role};

/// Limits that allow the longest messages of the suite.
const LIMITS: Limits =
    Limits { message_bytes_max: 64 << 20, frame_bytes_max: 64 << 20, ..Limits::DEFAULT };

/// Feeds frames to an echoing endpoint, `step` bytes at a time. Returns its output as lines.
fn echo(frames: &[&str], is_client: bool, step: usize) -> Vec<String> {
    let role = if is_client { Role::Client(|| MASK) } else { Role::Server };
    let mut connection: Connection = Connection::new(&LIMITS, role, None);
    let mut bytes = notation::bytes(frames.iter(), !is_client);
    let (mut used, mut out) = (0, Vec::new());
    let length = bytes.len();
    for end in (0..length).step_by(step).skip(1).chain([length]) {
        loop {
            let (count, event) = connection.receive(&LIMITS, &mut bytes[used..end], &mut out);
            used += count;
            let result = match event {
                Event::NeedInput | Event::Closed => break,
                Event::Text(text) => {
                    connection.send(&LIMITS, MessagePayload::Text(&text), &mut out)
                }
                Event::Binary(bytes) => {
                    connection.send(&LIMITS, MessagePayload::Binary(&bytes), &mut out)
                }
                _ => Ok(()),
            };
            result.expect("messages precede the end");
            connection.output_flushed();
        }
    }
    let mut lines = lines(&out, is_client);
    if connection.next_action() == NextAction::Receive {
        lines.push("open".to_owned());
    }
    lines
}

/// Asserts the output of both roles, for several step sizes. Close reasons are omitted.
fn assert_echo(frames: &[&str], expected: &[&str]) {
    let short = frames.iter().map(|frame| frame.len()).sum::<usize>() < 500;
    for is_client in [false, true] {
        for step in [usize::MAX, 1500, 7, if short { 1 } else { 997 }] {
            let echoed = echo(frames, is_client, step);
            let echoed: Vec<_> = echoed
                .iter()
                .map(|line| match line.strip_prefix("close ") {
                    Some(rest) => format!("close {}", rest.split(' ').next().unwrap_or_default()),
                    None => line.clone(),
                })
                .collect();
            assert_eq!(echoed, expected, "{frames:?}, a client: {is_client}, step {step}");
        }
    }
}

#[test]
fn section_1_messages_of_each_length_are_echoed() {
    for kind in ["text", "binary"] {
        assert_echo(&[kind], &[kind, "open"]);
        let line = format!("{kind} {}", "*".repeat(125));
        assert_echo(&[&line], &[&line, "open"]);
        for length in [126, 127, 128, 65_535, 65_536] {
            let frame = format!("{kind} \\{{**{length}}}");
            assert_echo(&[&frame], &[&format!("{kind} ({length} bytes)"), "open"]);
        }
    }
}

#[test]
fn section_2_pings_get_a_pong_and_pongs_are_ignored() {
    assert_echo(&["ping"], &["pong", "open"]);
    assert_echo(&["ping Hello"], &["pong Hello", "open"]);
    assert_echo(&["ping \\x00\\xff\\xfe"], &["pong \\x00\\xff\\xfe", "open"]);
    let long = "a".repeat(125);
    assert_echo(&[&format!("ping {long}")], &[&format!("pong {long}"), "open"]);
    assert_echo(&[&format!("ping {long}a")], &["close 1002"]);
    assert_echo(&["pong"], &["open"]);
    assert_echo(&["pong unsolicited", "ping a"], &["pong a", "open"]);
    let pings: Vec<_> = (0..10).map(|number| format!("ping {number}")).collect();
    let pings: Vec<_> = pings.iter().map(String::as_str).collect();
    let pongs: Vec<_> = (0..10).map(|number| format!("pong {number}")).collect();
    let pongs: Vec<_> = pongs.iter().map(String::as_str).chain(["open"]).collect();
    assert_echo(&pings, &pongs);
}

#[test]
fn section_3_reserved_bits_fail_the_connection() {
    for bits in 1..=7 {
        for kind in ["text", "binary", "ping", "close"] {
            let frame = format!("{kind} +rsv={bits}");
            assert_echo(&["text Hello", &frame, "ping"], &["text Hello", "close 1002"]);
        }
    }
}

#[test]
fn section_4_reserved_opcodes_fail_the_connection() {
    for opcode in (3..=7).chain(11..=15) {
        for content in ["", " ab"] {
            let frame = format!("frame {opcode}{content}");
            assert_echo(&["text Hello", &frame, "ping"], &["text Hello", "close 1002"]);
        }
    }
}

#[test]
fn section_5_messages_are_reassembled_and_fragmented_control_frames_rejected() {
    assert_echo(&["ping +more a", "continue b"], &["close 1002"]);
    assert_echo(&["pong +more a", "continue b"], &["close 1002"]);
    assert_echo(&["text +more a", "continue b"], &["text ab", "open"]);
    assert_echo(&["text +more a", "ping p", "continue b"], &["pong p", "text ab", "open"]);
    assert_echo(&["continue a", "text b"], &["close 1002"]);
    assert_echo(&["continue +more a", "text b"], &["close 1002"]);
    assert_echo(&["text +more a", "text b"], &["close 1002"]);
    assert_echo(&["text +more a", "continue b", "continue c"], &["text ab", "close 1002"]);
    assert_echo(
        &["text +more a", "ping 1", "continue +more b", "ping 2", "continue c", "text d"],
        &["pong 1", "pong 2", "text abc", "text d", "open"],
    );
}

#[test]
fn section_6_text_is_validated_as_it_arrives() {
    for (text, is_valid) in [
        (
            "Hello-\\xc2\\xb5@\\xc3\\x9f\\xc3\\xb6\\xc3\\xa4\\xc3\\xbc\\xc3\\xa0\\xc3\\xa1-UTF-8!!",
            true,
        ),
        ("\\xce\\xba\\xe1\\xbd\\xb9\\xcf\\x83\\xce\\xbc\\xce\\xb5", true),
        ("\\x00", true),
        ("\\xc2\\x80", true),
        ("\\xe0\\xa0\\x80", true),
        ("\\xf0\\x90\\x80\\x80", true),
        ("\\x7f", true),
        ("\\xdf\\xbf", true),
        ("\\xef\\xbf\\xbf", true),
        ("\\xf4\\x8f\\xbf\\xbf", true),
        ("\\xed\\x9f\\xbf", true),
        ("\\xee\\x80\\x80", true),
        ("\\xef\\xbf\\xbe", true),
        ("\\xce", false),
        ("\\xce\\xba\\xe1", false),
        ("\\xf8\\x88\\x80\\x80\\x80", false),
        ("\\xfc\\x84\\x80\\x80\\x80\\x80", false),
        ("\\xf7\\xbf\\xbf\\xbf", false),
        ("\\xf4\\x90\\x80\\x80", false),
        ("\\x80", false),
        ("\\xbf", false),
        ("\\x80\\xbf\\x80", false),
        ("\\xc0\\x20\\xc1\\x20", false),
        ("\\xe0\\x20", false),
        ("\\xf0\\x20", false),
        ("\\xfe", false),
        ("\\xff", false),
        ("\\xc0\\xaf", false),
        ("\\xe0\\x80\\xaf", false),
        ("\\xf0\\x80\\x80\\xaf", false),
        ("\\xc1\\xbf", false),
        ("\\xe0\\x9f\\xbf", false),
        ("\\xf0\\x8f\\xbf\\xbf", false),
        ("\\xed\\xa0\\x80", false),
        ("\\xed\\xaf\\xbf", false),
        ("\\xed\\xbf\\xbf", false),
        ("\\xed\\xa0\\x80\\xed\\xb0\\x80", false),
    ] {
        let bytes = crate::script::unescape(text);
        let echoed = format!("text {}", crate::script::escape(&bytes));
        let expected: &[&str] = if is_valid { &[&echoed, "open"] } else { &["close 1007"] };
        assert_echo(&[&format!("text {text}")], expected);
        // In frames of one byte, the error is detected before the message ends.
        let singles = bytes.iter().map(|byte| format!("continue +more \\x{byte:02x}"));
        let mut frames = vec!["text +more".to_owned()];
        frames.extend(singles);
        frames.push("continue".to_owned());
        assert_echo(&frames.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    }
    // 6.4: an error in an incomplete message fails at once.
    assert_echo(&["text +more \\xce\\xba\\xf4\\x90"], &["close 1007"]);
    assert_echo(&["text +more \\xce\\xba\\xf4", "continue +more \\x90"], &["close 1007"]);
    assert_echo(&["text +more \\xce\\xba\\xf4"], &["open"]);
}

#[test]
fn section_7_close_frames_get_the_correct_reply() {
    assert_echo(&["text a", "close 1000"], &["text a", "close 1000"]);
    assert_echo(&["close 1000", "close 1000"], &["close 1000"]);
    assert_echo(&["close 1000", "ping"], &["close 1000"]);
    assert_echo(&["close 1000", "text a"], &["close 1000"]);
    assert_echo(&["text +more a", "close 1000", "continue b"], &["close 1000"]);
    assert_echo(&["close"], &["close"]);
    assert_echo(&["frame 8 a"], &["close 1002"]);
    assert_echo(&["close 1000 Hello"], &["close 1000"]);
    assert_echo(&[&format!("close 1000 {}", "a".repeat(123))], &["close 1000"]);
    assert_echo(&[&format!("close 1000 {}", "a".repeat(124))], &["close 1002"]);
    assert_echo(&["close 1000 \\xce\\xba\\xed\\xa0\\x80"], &["close 1007"]);
    for code in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999] {
        assert_echo(&[&format!("close {code}")], &[&format!("close {code}")]);
    }
    for code in [0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999, 5000, 65_535] {
        assert_echo(&[&format!("close {code}")], &["close 1002"]);
    }
}

#[test]
fn section_9_long_messages_are_echoed_in_one_frame_and_in_many() {
    for kind in ["text", "binary"] {
        let whole = format!("{kind} \\{{**4194304}}");
        let frames = [
            format!("{kind} +more \\{{**64}}"),
            "continue +more \\{**64} x16382".to_owned(),
            "continue \\{**64}".to_owned(),
        ];
        let frames: Vec<_> = frames.iter().map(String::as_str).collect();
        for (step, is_client) in [(usize::MAX, false), (65_536, true), (1300, false)] {
            let echoed = echo(&[&whole], is_client, step);
            assert_eq!(echoed, [&format!("{kind} (4194304 bytes)"), "open"]);
            let echoed = echo(&frames, is_client, step);
            assert_eq!(echoed, [&format!("{kind} (1048576 bytes)"), "open"]);
        }
    }
}

#[test]
fn section_10_a_message_in_frames_of_1300_bytes_is_reassembled() {
    let frames = ["text +more \\{**1300}", "continue +more \\{**1300} x49", "continue \\{**536}"];
    assert_echo(&frames, &["text (65536 bytes)", "open"]);
}

/// Messages like those of the suite: text with many and with fewer repetitions.
fn document(length: usize, seed: usize) -> String {
    let words =
        ["\"name\": ", "{", "}, ", "Heizölrückstoßabdämpfung ", "[1, 2, 3] ", "lorem ipsum "];
    let mut text = String::new();
    let mut state = seed;
    while text.len() < length {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text += words[(state >> 33) % words.len()];
        text += &((state >> 40) % 1000).to_string();
    }
    text.truncate(text.floor_char_boundary(length));
    text
}

#[test]
fn sections_12_and_13_compressed_messages_are_echoed_under_all_parameters() {
    let limits = Limits { compress_bytes_min: 0, ..LIMITS };
    for (server_resets, client_resets) in
        [(false, false), (false, true), (true, false), (true, true)]
    {
        let inflater = Inflater::new(server_resets, client_resets);
        let mut server = Connection::new(&limits, Role::Server, Some(inflater));
        let inflater = Inflater::new(client_resets, server_resets);
        let mut client = Connection::new(&limits, Role::Client(|| MASK), Some(inflater));
        for (round, length) in [16, 64, 256, 1024, 4096, 8192, 16_384, 32_768, 65_536, 131_072]
            .into_iter()
            .cycle()
            .take(30)
            .enumerate()
        {
            let (text, mut to_server, mut to_client) =
                (document(length, round), Vec::new(), Vec::new());
            // In one frame, or in one frame per 1000 bytes, as 12.x and 13.x do.
            let fragments = if round % 3 == 0 { 1 } else { 1 + length / 1000 };
            let mut rest = text.as_str();
            for number in 1..=fragments {
                let end =
                    if number == fragments { rest.len() } else { rest.floor_char_boundary(1000) };
                let (fragment, remaining) = rest.split_at(end);
                let last = number == fragments;
                client
                    .send_fragment(MessagePayload::Text(fragment), last, &mut to_server)
                    .expect("open");
                rest = remaining;
            }
            assert!(length < 256 || to_server.len() < length, "the message is compressed");
            let (mut at, mut is_echoed) = (0, false);
            while at < to_server.len() {
                let end = to_server.len().min(at + 1400);
                let (used, event) =
                    server.receive(&limits, &mut to_server[at..end], &mut to_client);
                at += used;
                if let Event::Text(text) = event {
                    server
                        .send(&limits, MessagePayload::Text(&text), &mut to_client)
                        .expect("open");
                    is_echoed = true;
                }
            }
            assert!(is_echoed);
            let (used, event) = client.receive(&limits, &mut to_client, &mut to_server);
            assert!(matches!(event, Event::Text(other) if other == text), "round {round}");
            assert_eq!(used, to_client.len());
        }
    }
}
