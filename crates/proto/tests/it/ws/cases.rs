//! The table cases: `cases/ws/*.txt`.
//!
//! `send` contains frames in the notation of `notation.rs`; `way` contains options of the endpoint:
//! `client`, `compresses`, `closes`; `limits` may set some limits; each `expect` is the next event,
//! in the format of `play.rs`. Every case ends with the peer's end, and `end` may be omitted if it
//! is `error(connectionlost)` or `close`.

use super::notation;
use super::play::{Way, play};
use crate::script::{Case, escape, parse, unescape};
use peregrine_proto::ws::{Limits, WebSocketError};
use proptest::prelude::*;
use std::path::Path;

pub(crate) fn all() -> Vec<(String, Case)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases/ws");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut cases = Vec::new();
    for path in files {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let file = std::fs::read_to_string(&path).unwrap();
        cases.extend(parse(&file).into_iter().map(|case| (name.clone(), case)));
    }
    cases
}

pub(crate) fn limits(case: &Case) -> Limits {
    let mut limits = Limits::DEFAULT;
    for pair in case.texts("limits").flat_map(str::split_whitespace) {
        let (name, value) = pair.split_once('=').expect("a limit has a value");
        let number: u32 = value.parse().expect("a limit is a number");
        match name {
            "message_bytes_max" => limits.message_bytes_max = u64::from(number),
            "frame_bytes_max" => limits.frame_bytes_max = u64::from(number),
            "pending_control_frames_max" => {
                limits.pending_pongs_max = u16::try_from(number).unwrap()
            }
            "abuse_budget_max" => limits.abuse_budget_max = number,
            _ => panic!("no such limit: {name}"),
        }
    }
    limits
}

pub(crate) fn way(case: &Case) -> Way {
    let mut way = Way::default();
    for word in case.texts("way").flat_map(str::split_whitespace) {
        match word {
            "client" => way.is_client = true,
            "compresses" => way.compresses = true,
            "closes" => way.closes = true,
            _ => panic!("no such way: {word}"),
        }
    }
    way
}

fn sent(case: &Case) -> Vec<u8> {
    notation::bytes(case.texts("send"), !way(case).is_client)
}

fn check(case: &Case, happened: &[String]) -> Result<(), String> {
    let written_out = |line| escape(&unescape(line));
    let expected: Vec<_> = case.texts("expect").map(written_out).collect();
    let mut expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    let happened: Vec<&str> = happened.iter().map(String::as_str).collect();
    if let Some(last @ (&"error(connectionlost)" | &"close" | &"awaitend")) = happened.last()
        && expected.last() != Some(last)
    {
        expected.push(last);
    }
    if expected == happened {
        return Ok(());
    }
    Err(format!("expected {expected:#?}\nhappened {happened:#?}"))
}

#[test]
fn every_case_goes_as_it_says_whole_and_byte_by_byte_and_in_pieces() {
    let mut failures = Vec::new();
    for (file, case) in all() {
        let (limits, bytes) = (limits(&case), sent(&case));
        let single: Vec<usize> = (0..bytes.len()).collect();
        for (name, cuts, in_pieces) in [
            ("whole", &[][..], false),
            ("byte by byte", &single, false),
            ("in pieces", &[], true),
            ("byte by byte in pieces", &single, true),
        ] {
            let happened = play(&limits, Way { in_pieces, ..way(&case) }, &bytes, cuts);
            if let Err(difference) = check(&case, &happened) {
                let case = case.text("case").unwrap();
                failures.push(format!("{file}: {case} ({name})\n{difference}"));
                break;
            }
        }
    }
    assert!(failures.is_empty(), "{} failed\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn there_are_60_cases_each_with_a_name_of_its_own_and_a_section() {
    let cases = all();
    assert!(cases.len() >= 60, "only {} cases", cases.len());
    let mut names: Vec<_> = cases.iter().map(|(_, case)| case.text("case").unwrap()).collect();
    names.sort_unstable();
    for pair in names.windows(2) {
        assert_ne!(pair[0], pair[1], "two cases have the same name");
    }
    for (file, case) in &cases {
        let section = case.text("section").unwrap_or_default();
        assert!(section.starts_with("RFC "), "{file}: {:?} has no section", case.text("case"));
    }
}

#[test]
fn every_reject_is_the_outcome_of_a_case() {
    let cases = all();
    let expected: Vec<_> = cases.iter().flat_map(|(_, case)| case.texts("expect")).collect();
    for reject in WebSocketError::ALL {
        let name = format!("{reject:?}");
        let is_there = expected
            .iter()
            .any(|line| line.split([' ', '(', ')']).any(|word| word.eq_ignore_ascii_case(&name)));
        assert!(is_there, "no case for {name}");
    }
}

#[test]
fn every_reject_can_be_told_to_the_peer() {
    for reject in WebSocketError::ALL {
        assert!(reject.rule().len() <= 123, "{reject:?} is too long for a reason");
        let is_told = *reject != WebSocketError::ConnectionLost;
        assert_eq!(reject.code().is_sendable(), is_told, "{reject:?}");
    }
}

#[test]
fn every_cut_in_two_of_every_case_gives_the_same_events() {
    for (file, case) in all() {
        let (limits, bytes, way) = (limits(&case), sent(&case), way(&case));
        if bytes.len() > 1000 {
            continue;
        }
        let whole = play(&limits, way, &bytes, &[]);
        for cut in 0..=bytes.len() {
            for in_pieces in [false, true] {
                let name = case.text("case").unwrap();
                let in_two = play(&limits, Way { in_pieces, ..way }, &bytes, &[cut]);
                assert_eq!(in_two, whole, "{file}: {name}, cut at {cut}");
            }
        }
    }
}

/// The frames of several cases in a row, some of their bytes changed.
fn streams_of_frames() -> impl Strategy<Value = (Vec<u8>, bool)> {
    let cases = |is_client| {
        let cases = all().into_iter().map(|(_, case)| case);
        let cases = cases.filter(|case| way(case).is_client == is_client).map(|case| sent(&case));
        cases.filter(|bytes| bytes.len() < 1000).collect::<Vec<_>>()
    };
    let (to_server, to_client) = (cases(false), cases(true));
    let parts = proptest::collection::vec(any::<prop::sample::Index>(), 1..5);
    let change = (any::<prop::sample::Index>(), 0..3_u8, any::<u8>());
    let changes = proptest::collection::vec(change, 0..4);
    (parts, changes, any::<bool>()).prop_map(move |(parts, changes, is_client)| {
        let cases = if is_client { &to_client } else { &to_server };
        let mut bytes: Vec<u8> =
            parts.iter().flat_map(|at| cases[at.index(cases.len())].clone()).collect();
        for (at, kind, byte) in changes {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        (bytes, is_client)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn any_cut_gives_the_same_events(
        (bytes, is_client) in streams_of_frames(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        compresses: bool,
        closes: bool,
        is_small: bool,
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let small = Limits { message_bytes_max: 20, frame_bytes_max: 15, ..Limits::DEFAULT };
        let limits = if is_small { small } else { Limits::DEFAULT };
        let way = Way { is_client, compresses, closes, in_pieces: false };
        let whole = play(&limits, way, &bytes, &[]);
        prop_assert_eq!(&play(&limits, way, &bytes, &cuts), &whole);
        let single: Vec<usize> = (0..bytes.len()).collect();
        prop_assert_eq!(&play(&limits, way, &bytes, &single), &whole);
        let way = Way { in_pieces: true, ..way };
        prop_assert_eq!(&play(&limits, way, &bytes, &cuts), &whole);
    }
}
