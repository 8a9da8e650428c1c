//! Prints the moves of every state as text, compared with `states.txt`: a changed move shows in
//! review.

use super::chunked::Phase;
use super::{receive, send};
use std::fmt::{Debug, Write};

const RECEIVE_STATES: [receive::State; 7] = [
    receive::State::Head,
    receive::State::Exact,
    receive::State::Chunked,
    receive::State::Done,
    receive::State::Refused,
    receive::State::Upgraded,
    receive::State::Closed,
];

const RECEIVE_MOVES: [receive::Move; 8] = [
    receive::Move::HeadAlone,
    receive::Move::HeadThenExact,
    receive::Move::HeadThenChunks,
    receive::Move::End,
    receive::Move::Again,
    receive::Move::Switch,
    receive::Move::Refuse,
    receive::Move::Close,
];

const SEND_STATES: [send::State; 7] = [
    send::State::Waiting,
    send::State::Empty,
    send::State::Exact,
    send::State::Chunked,
    send::State::UntilClose,
    send::State::Done,
    send::State::Upgraded,
];

const SEND_MOVES: [send::Move; 7] = [
    send::Move::BeginEmpty,
    send::Move::BeginExact,
    send::Move::BeginChunked,
    send::Move::BeginUntilClose,
    send::Move::Finish,
    send::Move::Again,
    send::Move::Switch,
];

/// The phases that take single bytes.
const PHASES: [Phase; 14] = [
    Phase::Size,
    Phase::SizeMore,
    Phase::BeforeSemicolon,
    Phase::Name,
    Phase::NameMore,
    Phase::AfterName,
    Phase::Value,
    Phase::ValueMore,
    Phase::Quoted,
    Phase::Escaped,
    Phase::AfterQuoted,
    Phase::LineFeed,
    Phase::DataReturn,
    Phase::DataFeed,
];

fn line<From: Debug, Step: Debug, To: Debug>(
    text: &mut String,
    from: From,
    step: Step,
    to: Option<To>,
) {
    let to = to.map_or("illegal".to_owned(), |to| format!("{to:?}"));
    writeln!(text, "{from:?} + {step:?} = {to}").unwrap();
}

fn table() -> String {
    let mut text = String::from("# The receiving machine\n");
    for state in RECEIVE_STATES {
        for step in RECEIVE_MOVES {
            line(&mut text, state, step, state.after(step));
        }
    }
    text.push_str("\n# The sending machine\n");
    for state in SEND_STATES {
        for step in SEND_MOVES {
            line(&mut text, state, step, state.after(step));
        }
    }
    text.push_str("\n# The chunked coding: a phase, and bytes from the first to the last\n");
    for phase in PHASES {
        let mut first = 0_u8;
        for byte in 0..=255_u8 {
            if byte == 255 || phase.after(byte) != phase.after(byte + 1) {
                writeln!(text, "{phase:?} + {first:02x}..{byte:02x} = {:?}", phase.after(byte))
                    .unwrap();
                first = byte.wrapping_add(1);
            }
        }
    }
    text
}

#[test]
fn every_move_in_every_state_is_as_the_snapshot_has_it() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/h1/states.txt");
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    if std::env::var_os("PEREGRINE_SNAPSHOT").is_some() {
        std::fs::write(&path, table()).unwrap();
        return;
    }
    assert!(table() == expected, "run with PEREGRINE_SNAPSHOT=1 and review the difference");
}
