//! The table cases: `cases/ws/*.txt`.
//!
//! `send` contains frames in the notation of `notation.rs`; `way` contains options of the endpoint:
//! `client`, `compresses`, `closes`; `limits` may set some limits; each `expect` is the next event,
//! in the format of `play.rs`. After `send`, the peer closes its direction; that event may be
//! omitted if it is `error(connectionlost)` or `close`.

use super::notation;
use super::play::{EndpointOptions, play};
use crate::script::{Case, escape, parse, unescape};
use peregrine_proto::ws::{Limits, WebSocketError};
use proptest::prelude::*;
use std::path::Path;

pub(crate) fn load_cases() -> Vec<(String, Case)> {
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

pub(crate) fn endpoint_options(case: &Case) -> EndpointOptions {
    let mut options = EndpointOptions::default();
    for word in case.texts("way").flat_map(str::split_whitespace) {
        match word {
            "client" => options.is_client = true,
            "compresses" => options.has_compression = true,
            "closes" => options.sent_close = true,
            _ => panic!("no such way: {word}"),
        }
    }
    options
}

fn bytes_to_receive(case: &Case) -> Vec<u8> {
    notation::bytes(case.texts("send"), !endpoint_options(case).is_client)
}

fn check(case: &Case, actual: &[String]) -> Result<(), String> {
    let normalize = |line| escape(&unescape(line));
    let expected: Vec<_> = case.texts("expect").map(normalize).collect();
    let mut expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    let actual: Vec<&str> = actual.iter().map(String::as_str).collect();
    if let Some(last @ (&"error(connectionlost)" | &"close" | &"awaitend")) = actual.last()
        && expected.last() != Some(last)
    {
        expected.push(last);
    }
    if expected == actual {
        return Ok(());
    }
    Err(format!("expected {expected:#?}\nactual {actual:#?}"))
}

#[test]
fn cases_pass_at_once_byte_by_byte_and_in_chunks() {
    let mut failures = Vec::new();
    for (file, case) in load_cases() {
        let (limits, bytes) = (limits(&case), bytes_to_receive(&case));
        let single: Vec<usize> = (0..bytes.len()).collect();
        for (name, cuts, is_streaming) in [
            ("whole", &[][..], false),
            ("byte by byte", &single, false),
            ("in pieces", &[], true),
            ("byte by byte in pieces", &single, true),
        ] {
            let actual = play(
                &limits,
                EndpointOptions { is_streaming, ..endpoint_options(&case) },
                &bytes,
                cuts,
            );
            if let Err(difference) = check(&case, &actual) {
                let case = case.text("case").unwrap();
                failures.push(format!("{file}: {case} ({name})\n{difference}"));
                break;
            }
        }
    }
    assert!(failures.is_empty(), "{} failed\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn cases_have_unique_names_and_cite_a_section() {
    let cases = load_cases();
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
fn every_error_has_a_case() {
    let cases = load_cases();
    let expected: Vec<_> = cases.iter().flat_map(|(_, case)| case.texts("expect")).collect();
    for error in WebSocketError::ALL {
        let name = format!("{error:?}");
        let has_case = expected
            .iter()
            .any(|line| line.split([' ', '(', ')']).any(|word| word.eq_ignore_ascii_case(&name)));
        assert!(has_case, "no case for {name}");
    }
}

#[test]
fn every_error_fits_into_a_close_frame() {
    for error in WebSocketError::ALL {
        assert!(error.rule().len() <= 123, "{error:?} is too long for a reason");
        let is_sendable = *error != WebSocketError::ConnectionLost;
        assert_eq!(error.code().is_sendable(), is_sendable, "{error:?}");
    }
}

#[test]
fn splitting_a_case_anywhere_gives_the_same_events() {
    for (file, case) in load_cases() {
        let (limits, bytes, options) =
            (limits(&case), bytes_to_receive(&case), endpoint_options(&case));
        if bytes.len() > 1000 {
            continue;
        }
        let expected = play(&limits, options, &bytes, &[]);
        for cut in 0..=bytes.len() {
            for is_streaming in [false, true] {
                let name = case.text("case").unwrap();
                let events =
                    play(&limits, EndpointOptions { is_streaming, ..options }, &bytes, &[cut]);
                assert_eq!(events, expected, "{file}: {name}, cut at {cut}");
            }
        }
    }
}

/// The frames of several cases in a row, some of their bytes changed.
fn streams_of_frames() -> impl Strategy<Value = (Vec<u8>, bool)> {
    let cases = |is_client| {
        let cases = load_cases().into_iter().map(|(_, case)| case);
        let cases = cases
            .filter(|case| endpoint_options(case).is_client == is_client)
            .map(|case| bytes_to_receive(&case));
        cases.filter(|bytes| bytes.len() < 1000).collect::<Vec<_>>()
    };
    let (to_server, to_client) = (cases(false), cases(true));
    let parts = proptest::collection::vec(any::<prop::sample::Index>(), 1..5);
    let mutation = (any::<prop::sample::Index>(), 0..3_u8, any::<u8>());
    let mutations = proptest::collection::vec(mutation, 0..4);
    (parts, mutations, any::<bool>()).prop_map(move |(parts, mutations, is_client)| {
        let cases = if is_client { &to_client } else { &to_server };
        let mut bytes: Vec<u8> =
            parts.iter().flat_map(|at| cases[at.index(cases.len())].clone()).collect();
        for (at, kind, byte) in mutations {
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
    fn events_do_not_depend_on_how_bytes_are_split(
        (bytes, is_client) in streams_of_frames(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        has_compression: bool,
        sent_close: bool,
        is_small: bool,
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let small = Limits { message_bytes_max: 20, frame_bytes_max: 15, ..Limits::DEFAULT };
        let limits = if is_small { small } else { Limits::DEFAULT };
        let options =
            EndpointOptions { is_client, has_compression, sent_close, is_streaming: false };
        let expected = play(&limits, options, &bytes, &[]);
        prop_assert_eq!(&play(&limits, options, &bytes, &cuts), &expected);
        let single: Vec<usize> = (0..bytes.len()).collect();
        prop_assert_eq!(&play(&limits, options, &bytes, &single), &expected);
        let options = EndpointOptions { is_streaming: true, ..options };
        prop_assert_eq!(&play(&limits, options, &bytes, &cuts), &expected);
    }
}
