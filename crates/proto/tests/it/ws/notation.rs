//! Frames in a readable notation, and back.
//!
//! A line is the name of a frame and its parts: `text hello`, `binary \x00`, `continue more`, `ping
//! x`, `pong x`, `close 1000 bye`, `close`, `frame OPCODE TEXT`, `raw TEXT`. Texts have the escapes
//! of the case files. `+more` clears FIN, `+rsv=N` sets reserved bits (1 to 7), `+len16` and
//! `+len64` write a longer length than needed, `+mask` and `+plain` override the mask, which
//! otherwise depends on the role; `xN` at the end repeats the line.

use crate::script::{escape, unescape};
use peregrine_proto::ws::frame::{self, Opcode, flag};

/// The mask of all masked frames.
pub(crate) const MASK: [u8; 4] = [0x12, 0x34, 0xF6, 0x78];

/// Encodes lines to bytes.
pub(crate) fn bytes(lines: impl Iterator<Item = impl AsRef<str>>, is_masked: bool) -> Vec<u8> {
    let mut out = Vec::new();
    for line in lines {
        let line = line.as_ref();
        let (line, count) = match line.rsplit_once(" x") {
            Some((rest, count)) if count.parse::<u32>().is_ok() => {
                (rest, count.parse().expect("the notation is right"))
            }
            _ => (line, 1),
        };
        for _ in 0..count {
            write(line, is_masked, &mut out);
        }
    }
    out
}

fn write(line: &str, is_masked: bool, out: &mut Vec<u8>) {
    let mut words = line.split(' ').peekable();
    let name = words.next().expect("the notation is right");
    let opcode = match name {
        "raw" => return out.extend(unescape(&words.collect::<Vec<_>>().join(" "))),
        "frame" => words.next().expect("an opcode").parse().expect("a number"),
        "text" => Opcode::Text.as_u8(),
        "binary" => Opcode::Binary.as_u8(),
        "continue" => Opcode::Continuation.as_u8(),
        "ping" => Opcode::Ping.as_u8(),
        "pong" => Opcode::Pong.as_u8(),
        "close" => Opcode::Close.as_u8(),
        _ => panic!("no such frame: {line}"),
    };
    let (mut first_byte, mut has_mask, mut width) = (flag::FIN | opcode, is_masked, 0);
    while let Some(word) = words.next_if(|word| word.starts_with('+')) {
        match word {
            "+more" => first_byte &= !flag::FIN,
            "+mask" => has_mask = true,
            "+plain" => has_mask = false,
            "+len16" => width = 2,
            "+len64" => width = 8,
            word => {
                let bits = word.strip_prefix("+rsv=").unwrap_or_else(|| panic!("no part: {word}"));
                first_byte |= bits.parse::<u8>().expect("a number") << 4;
            }
        }
    }
    let mut payload = Vec::new();
    if let Some(code) = words.next_if(|_| name == "close") {
        payload.extend(code.parse::<u16>().expect("a code is a number").to_be_bytes());
    }
    payload.extend(unescape(&words.collect::<Vec<_>>().join(" ")));
    let mask_bit = if has_mask { 0x80 } else { 0 };
    let length = payload.len() as u64;
    out.push(first_byte);
    let width = match length {
        0..126 => width,
        126..65536 => width.max(2),
        _ => 8,
    };
    out.push(mask_bit | [length as u8, 126, 127][usize::from(width > 0) + usize::from(width > 2)]);
    out.extend_from_slice(&length.to_be_bytes()[8 - width..]);
    if has_mask {
        out.extend(MASK);
        frame::apply_mask(&mut payload, MASK);
    }
    out.extend(payload);
}

/// A frame that was written.
pub(crate) struct Frame {
    pub(crate) first: u8,
    pub(crate) masked: bool,
    pub(crate) payload: Vec<u8>,
}

/// Reads whole frames, byte by byte and without checking rules.
pub(crate) fn frames(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut split_off = |count: usize| {
        let (head, rest) = bytes.split_at(count);
        bytes = rest;
        (head, rest.is_empty())
    };
    let mut is_at_end = split_off(0).1;
    while !is_at_end {
        let [first, second] = *split_off(2).0 else { panic!("frames have two bytes") };
        let length = match second & 0x7F {
            126 => split_off(2).0.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
            127 => split_off(8).0.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
            length => usize::from(length),
        };
        let masked = second & 0x80 != 0;
        let mask = if masked { split_off(4).0.to_vec() } else { vec![0; 4] };
        let (payload, is_last) = split_off(length);
        let payload = payload.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]).collect();
        frames.push(Frame { first, masked, payload });
        is_at_end = is_last;
    }
    frames
}

/// The lines of whole frames. Asserts that they are masked if and only if a client has written
/// them.
pub(crate) fn lines(bytes: &[u8], is_client: bool) -> Vec<String> {
    let line = |frame: Frame| {
        assert_eq!(frame.masked, is_client, "a client masks, and a server does not");
        let opcode = Opcode::from_u8(frame.first & 0x0F).expect("no reserved opcode is sent");
        let mut line = match opcode {
            Opcode::Continuation => "continue".to_owned(),
            other => format!("{other:?}").to_lowercase(),
        };
        if frame.first & flag::FIN == 0 {
            line += " +more";
        }
        if frame.first & flag::RSV_MASK != 0 {
            line += &format!(" +rsv={}", (frame.first & flag::RSV_MASK) >> 4);
        }
        let mut payload = &frame.payload[..];
        if let (Opcode::Close, Some((code, reason))) = (opcode, payload.split_first_chunk()) {
            line += &format!(" {}", u16::from_be_bytes(*code));
            payload = reason;
        }
        match payload.len() {
            0 => line,
            1..=125 => format!("{line} {}", escape(payload)),
            length => format!("{line} ({length} bytes)"),
        }
    };
    frames(bytes).into_iter().map(line).collect()
}
