//! Frames in a readable notation, and back.
//!
//! A line is the name of a frame and its parts: `headers 1 +end :method=GET x=y`, `data 1 +end
//! text`, `settings 4=100`, `settings-ack`, `ping 12345678`, `ping-ack 12345678`, `window 1 100`,
//! `reset 1 8`, `go-away 1 0`, `priority 1`, `priority-update 1 u=1`, `continuation 1 +more x=y`,
//! `preface`, `hello` (preface and empty settings), `frame TYPE FLAGS STREAM TEXT`, `raw TEXT`.
//! Texts have the escapes of the case files. Fields are literals without indexing; `block:TEXT` is
//! raw bytes of a block. `+more` leaves a block open, `+pad=N` adds padding, `xN` at the end
//! repeats the line; a `#` as a stream identifier counts up from the last one.

use crate::script::{escape, unescape};
use peregrine_proto::h2::frame::{self, ErrorCode, FrameHeader, FrameType, flags};
use peregrine_proto::h2::hpack::{Decoder, Field, FieldSink};

/// Encodes lines to bytes.
pub(crate) fn bytes(lines: impl Iterator<Item = impl AsRef<str>>) -> Vec<u8> {
    let (mut out, mut stream) = (Vec::new(), 1);
    for line in lines {
        let line = line.as_ref();
        let (line, count) = match line.rsplit_once(" x") {
            Some((rest, count)) if count.parse::<u32>().is_ok() => {
                (rest, count.parse().expect("the notation is right"))
            }
            _ => (line, 1),
        };
        for _ in 0..count {
            write(line, &mut stream, &mut out);
        }
    }
    out
}

#[expect(clippy::too_many_lines, reason = "one table with a row for each frame")]
fn write(line: &str, stream: &mut u32, out: &mut Vec<u8>) {
    let mut words = line.split(' ').peekable();
    let name = words.next().expect("the notation is right");
    let mut number = || {
        let word = words.next().unwrap_or_else(|| panic!("a number is missing: {line}"));
        if word == "#" {
            let id = *stream;
            *stream += 2;
            return id;
        }
        let id = word.parse().unwrap_or_else(|_| panic!("no number: {line}"));
        if matches!(name, "headers" | "data") {
            *stream = id;
        }
        id
    };
    match name {
        "preface" => out.extend_from_slice(frame::PREFACE),
        "hello" => {
            out.extend_from_slice(frame::PREFACE);
            frame::write_settings([], out);
        }
        "settings" => {
            let pair = |word: &str| {
                let (identifier, value) = word.split_once('=').expect("the notation is right");
                (
                    identifier.parse().expect("the notation is right"),
                    value.parse().expect("the notation is right"),
                )
            };
            frame::write_settings(words.map(pair), out);
        }
        "settings-ack" => frame::write_frame(FrameType::Settings, flags::ACK, 0, &[], out),
        "window" => frame::write_window_update(number(), number(), out),
        "reset" => frame::write_rst_stream(number(), ErrorCode(number()), out),
        "go-away" => frame::write_go_away(number(), ErrorCode(number()), out),
        "ping" => frame::write_frame(FrameType::Ping, 0, 0, &unescape_words(words), out),
        "ping-ack" => {
            frame::write_frame(FrameType::Ping, flags::ACK, 0, &unescape_words(words), out)
        }
        "priority" => frame::write_frame(FrameType::Priority, 0, number(), &[0, 0, 0, 0, 15], out),
        "priority-update" => {
            let id: u32 = number();
            let payload = [&id.to_be_bytes()[..], &unescape_words(words)].concat();
            frame::write_frame(FrameType::PriorityUpdate, 0, 0, &payload, out);
        }
        "headers" | "continuation" | "data" => {
            let frame_type = match name {
                "headers" => FrameType::Headers,
                "data" => FrameType::Data,
                _ => FrameType::Continuation,
            };
            let id = number();
            let mut flags = if frame_type == FrameType::Data { 0 } else { flags::END_HEADERS };
            let mut padding = None;
            while let Some(word) = words.next_if(|word| word.starts_with('+')) {
                match word {
                    "+end" => flags |= flags::END_STREAM,
                    "+more" => flags &= !flags::END_HEADERS,
                    "+priority" => flags |= flags::PRIORITY,
                    word => {
                        padding = Some(
                            word.strip_prefix("+pad=")
                                .expect("the notation is right")
                                .parse::<u8>()
                                .expect("the notation is right"),
                        );
                        flags |= flags::PADDED;
                    }
                }
            }
            let mut payload: Vec<u8> = padding.into_iter().collect();
            if flags & flags::PRIORITY != 0 && frame_type == FrameType::Headers {
                payload.extend([0, 0, 0, 0, 15]);
            }
            match frame_type {
                FrameType::Data => payload.extend(unescape_words(words)),
                _ => words.for_each(|word| write_field(word, &mut payload)),
            }
            payload.extend(std::iter::repeat_n(0, usize::from(padding.unwrap_or(0))));
            frame::write_frame(frame_type, flags, id, &payload, out);
        }
        "frame" => {
            let (frame_type, flags, id) = (number(), number(), number());
            let byte = |number: u32| u8::try_from(number).expect("the notation is right");
            frame::write_frame(
                FrameType::from_u8(byte(frame_type)),
                byte(flags),
                id,
                &unescape_words(words),
                out,
            );
        }
        "raw" => out.extend(unescape_words(words)),
        _ => panic!("no such frame: {line}"),
    }
}

fn unescape_words<'a>(words: impl Iterator<Item = &'a str>) -> Vec<u8> {
    unescape(&words.collect::<Vec<_>>().join(" "))
}

/// A literal field that is not indexed.
fn write_field(word: &str, out: &mut Vec<u8>) {
    if let Some(block) = word.strip_prefix("block:") {
        return out.extend(unescape(block));
    }
    let split = word[1..].find('=').unwrap_or_else(|| panic!("no field: {word}")) + 1;
    out.push(0);
    for text in [&word[..split], &word[split + 1..]] {
        let text = unescape(text);
        write_length(text.len(), out);
        out.extend(text);
    }
}

fn write_length(length: usize, out: &mut Vec<u8>) {
    let Some(mut remaining) = length.checked_sub(0x7f) else {
        return out.push(u8::try_from(length).expect("the notation is right"));
    };
    out.push(0x7f);
    while remaining >= 0x80 {
        out.push(u8::try_from(remaining % 0x80).expect("the notation is right") | 0x80);
        remaining /= 0x80;
    }
    out.push(u8::try_from(remaining).expect("the notation is right"));
}

/// Reads the server's output.
pub(crate) struct Reader {
    decoder: Decoder,
}

struct FieldText(String);

impl FieldSink for FieldText {
    fn field(&mut self, field: Field<'_>) -> bool {
        self.0 += &format!(" {}={}", escape(field.name), escape(field.value));
        true
    }
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self { decoder: Decoder::new() }
    }

    /// The lines of whole frames.
    pub(crate) fn lines(&mut self, mut bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(header) = FrameHeader::parse(bytes) {
            let length = header.length as usize;
            lines.push(self.describe(header, &bytes[frame::HEADER_BYTES..][..length]));
            bytes = &bytes[frame::HEADER_BYTES + length..];
        }
        assert!(bytes.is_empty(), "whole frames are written");
        lines
    }

    fn describe(&mut self, header: FrameHeader, payload: &[u8]) -> String {
        let id = header.stream_id;
        let end = if header.has_flags(flags::END_STREAM) { " +end" } else { "" };
        let number = |at: usize| frame::read_u32(&payload[at..]).expect("the notation is right");
        match header.frame_type {
            FrameType::Data => format!("data {id}{end} {}", escape(payload)).trim_end().to_owned(),
            FrameType::Headers => {
                assert!(header.has_flags(flags::END_HEADERS), "tests have short responses");
                let mut words = FieldText(format!("headers {id}{end}"));
                self.decoder.decode(payload, 1 << 20, &mut words).expect("the notation is right");
                words.0
            }
            FrameType::RstStream => format!("reset {id} {:?}", ErrorCode(number(0))),
            FrameType::Settings if header.has_flags(flags::ACK) => "settings-ack".to_owned(),
            FrameType::Settings => {
                let settings =
                    frame::parse_settings(payload).map(|(id, value)| format!(" {id}={value}"));
                format!("settings{}", settings.collect::<String>())
            }
            FrameType::Ping if header.has_flags(flags::ACK) => {
                format!("ping-ack {}", escape(payload))
            }
            FrameType::Ping => format!("ping {}", escape(payload)),
            FrameType::GoAway => format!("go-away {} {:?}", number(0), ErrorCode(number(4))),
            FrameType::WindowUpdate => format!("window {id} {}", number(0)),
            kind => panic!("a server does not write {kind:?}"),
        }
    }
}
