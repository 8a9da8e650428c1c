//! The table cases: `cases/h2/*.txt`.
//!
//! `send` contains frames in the notation of `wire.rs`; `limits` may set some limits; `answer` is
//! `early` or `never`, default late; each `expect` is the next event, in the format of `play.rs`.
//! Every case ends with the peer's end, whose event may be omitted if it is `closed`. Events that
//! occur at the beginning of every connection, `settings` and its acknowledgement after `hello`,
//! are omitted.

use super::play::{Answer, play};
use super::wire;
use crate::script::{Case, parse};
use peregrine_proto::h2::{Http2Error, Limits};
use proptest::prelude::*;
use std::path::Path;

pub(crate) fn all() -> Vec<(String, Case)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases/h2");
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
        let size = number as usize;
        match name {
            "head_bytes_max" => limits.request.head_bytes_max = size,
            "request_line_bytes_max" => limits.request.request_line_bytes_max = size,
            "field_bytes_max" => limits.request.field_bytes_max = size,
            "fields_max" => limits.request.fields_max = size,
            "body_bytes_max" => limits.request.body_bytes_max = u64::from(number),
            "trailer_bytes_max" => limits.request.trailer_bytes_max = size,
            "concurrent_streams_max" => limits.concurrent_streams_max = number,
            "initial_stream_window" => limits.initial_stream_window = number,
            "initial_connection_window" => limits.initial_connection_window = number,
            "hpack_decoder_table_bytes_max" => limits.hpack_decoder_table_bytes_max = number,
            "header_block_bytes_max" => limits.header_block_bytes_max = number,
            "continuation_frames_max" => {
                limits.continuation_frames_max = u16::try_from(number).unwrap()
            }
            "pending_control_frames_max" => {
                limits.pending_control_frames_max = u16::try_from(number).unwrap()
            }
            "abuse_budget_max" => limits.abuse_budget_max = number,
            "enable_connect_protocol" => limits.enable_connect_protocol = number == 1,
            _ => panic!("no such limit: {name}"),
        }
    }
    limits
}

pub(crate) fn answer(case: &Case) -> Answer {
    match case.text("answer") {
        Some("early") => Answer::Early,
        Some("never") => Answer::Never,
        Some(other) => panic!("no such answer: {other}"),
        None => Answer::Late,
    }
}

fn check(case: &Case, happened: &[String]) -> Result<(), String> {
    let mut expected: Vec<&str> = case.texts("expect").collect();
    let mut happened: Vec<&str> = happened.iter().map(String::as_str).collect();
    let says_hello = case.text("send").is_some_and(|line| line == "hello");
    if says_hello && happened.starts_with(&["> settings-ack", "settings"]) {
        happened.drain(..2);
    }
    if happened.last() == Some(&"closed") && expected.last() != Some(&"closed") {
        expected.push("closed");
    }
    if happened.last() == Some(&"close") && expected.last() != Some(&"close") {
        expected.push("close");
    }
    if expected == happened {
        return Ok(());
    }
    Err(format!("expected {expected:#?}\nhappened {happened:#?}"))
}

#[test]
fn every_case_goes_as_it_says_whole_and_byte_by_byte() {
    let mut failures = Vec::new();
    for (file, case) in all() {
        let (limits, bytes) = (limits(&case), wire::bytes(case.texts("send")));
        let single: Vec<usize> = (0..bytes.len()).collect();
        for (way, cuts) in [("whole", &[][..]), ("byte by byte", &single)] {
            if bytes.len() > 50_000 && !cuts.is_empty() {
                continue;
            }
            let happened = play(&limits, &bytes, cuts, answer(&case));
            if let Err(difference) = check(&case, &happened) {
                let name = case.text("case").unwrap();
                failures.push(format!("{file}: {name} ({way})\n{difference}"));
                break;
            }
        }
    }
    assert!(failures.is_empty(), "{} failed\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn there_are_100_cases_each_with_a_name_of_its_own_and_a_section() {
    let cases = all();
    assert!(cases.len() >= 100, "only {} cases", cases.len());
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
    for reject in Http2Error::ALL {
        let name = format!("{reject:?}");
        let is_there = expected
            .iter()
            .any(|line| line.split([' ', '(', ')']).any(|word| word.eq_ignore_ascii_case(&name)));
        assert!(is_there, "no case for {name}");
    }
}

#[test]
fn every_cut_in_two_of_every_case_gives_the_same_events() {
    for (file, case) in all() {
        let (limits, bytes) = (limits(&case), wire::bytes(case.texts("send")));
        if bytes.len() > 1000 {
            continue;
        }
        for answer in [Answer::Late, Answer::Early, Answer::Never] {
            let whole = play(&limits, &bytes, &[], answer);
            for cut in 0..=bytes.len() {
                let name = case.text("case").unwrap();
                let in_two = play(&limits, &bytes, &[cut], answer);
                assert_eq!(in_two, whole, "{file}: {name}, cut at {cut}");
            }
        }
    }
}

/// The frames of several cases in a row, some of their bytes changed.
fn streams_of_frames() -> impl Strategy<Value = Vec<u8>> {
    let cases: Vec<Vec<u8>> = all()
        .iter()
        .map(|(_, case)| wire::bytes(case.texts("send")))
        .filter(|bytes| bytes.len() < 1000)
        .collect();
    let hello = wire::bytes(["hello"].iter());
    let skip = hello.len();
    let one = (0..cases.len()).prop_map(move |at| {
        let case = &cases[at];
        case.get(skip..).unwrap_or_default().to_vec()
    });
    let change = (any::<prop::sample::Index>(), 0..3_u8, any::<u8>());
    let changes = proptest::collection::vec(change, 0..4);
    (proptest::collection::vec(one, 1..5), changes).prop_map(move |(parts, changes)| {
        let mut bytes = [hello.clone(), parts.concat()].concat();
        for (at, kind, byte) in changes {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn any_cut_gives_the_same_events(
        bytes in streams_of_frames(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        answer in prop_oneof![Just(Answer::Late), Just(Answer::Early), Just(Answer::Never)],
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let limits = Limits::DEFAULT;
        let whole = play(&limits, &bytes, &[], answer);
        prop_assert_eq!(&play(&limits, &bytes, &cuts, answer), &whole);
        let single: Vec<usize> = (0..bytes.len()).collect();
        prop_assert_eq!(&play(&limits, &bytes, &single, answer), &whole);
    }
}
