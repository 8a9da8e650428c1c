//! Prints the transitions of every state and compares them with `states.txt`, so that every change
//! is visible in review.

use super::chunked::ChunkedState;
use super::{receive, send};
use std::fmt::{Debug, Write};

const RECEIVE_STATES: [receive::State; 7] = [
    receive::State::Head,
    receive::State::Exact,
    receive::State::Chunked,
    receive::State::Done,
    receive::State::Failed,
    receive::State::Upgraded,
    receive::State::Closed,
];

const RECEIVE_TRANSITIONS: [receive::Transition; 8] = [
    receive::Transition::HeadWithoutBody,
    receive::Transition::HeadWithLength,
    receive::Transition::HeadWithChunked,
    receive::Transition::End,
    receive::Transition::NextRequest,
    receive::Transition::Switch,
    receive::Transition::Reject,
    receive::Transition::Close,
];

const SEND_STATES: [send::State; 7] = [
    send::State::Waiting,
    send::State::Empty,
    send::State::Exact,
    send::State::Chunked,
    send::State::CloseDelimited,
    send::State::Done,
    send::State::Upgraded,
];

const SEND_TRANSITIONS: [send::Transition; 7] = [
    send::Transition::BeginEmpty,
    send::Transition::BeginExact,
    send::Transition::BeginChunked,
    send::Transition::BeginCloseDelimited,
    send::Transition::Finish,
    send::Transition::NextRequest,
    send::Transition::Switch,
];

/// The states that process single bytes.
const CHUNKED_STATES: [ChunkedState; 14] = [
    ChunkedState::Start,
    ChunkedState::Size,
    ChunkedState::SizeWs,
    ChunkedState::ExtName,
    ChunkedState::ExtNameMore,
    ChunkedState::ExtNameWs,
    ChunkedState::ExtValue,
    ChunkedState::ExtValueMore,
    ChunkedState::ExtQuoted,
    ChunkedState::ExtQuotedPair,
    ChunkedState::ExtQuotedEnd,
    ChunkedState::SizeLf,
    ChunkedState::DataCr,
    ChunkedState::DataLf,
];

fn write_transition<From: Debug, Transition: Debug, To: Debug>(
    text: &mut String,
    from: From,
    transition: Transition,
    to: Option<To>,
) {
    let to = to.map_or("illegal".to_owned(), |to| format!("{to:?}"));
    writeln!(text, "{from:?} + {transition:?} = {to}").unwrap();
}

fn table() -> String {
    let mut text = String::from("# The receiving machine\n");
    for state in RECEIVE_STATES {
        for transition in RECEIVE_TRANSITIONS {
            write_transition(&mut text, state, transition, state.on(transition));
        }
    }
    text.push_str("\n# The sending machine\n");
    for state in SEND_STATES {
        for transition in SEND_TRANSITIONS {
            write_transition(&mut text, state, transition, state.on(transition));
        }
    }
    text.push_str("\n# The chunked coding: a phase, and bytes from the first to the last\n");
    for state in CHUNKED_STATES {
        let mut first = 0_u8;
        for byte in 0..=255_u8 {
            if byte == 255 || state.next(byte) != state.next(byte + 1) {
                writeln!(text, "{state:?} + {first:02x}..{byte:02x} = {:?}", state.next(byte))
                    .unwrap();
                first = byte.wrapping_add(1);
            }
        }
    }
    text
}

#[test]
fn transitions_match_the_snapshot() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/h1/states.txt");
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    if std::env::var_os("PEREGRINE_SNAPSHOT").is_some() {
        std::fs::write(&path, table()).unwrap();
        return;
    }
    assert!(table() == expected, "run with PEREGRINE_SNAPSHOT=1 and review the difference");
}
