//! The table cases: `cases/h2/*.txt`.
//!
//! `send` contains frames in the notation of `wire.rs`; `limits` may set some limits; `answer` is
//! `early` or `never`, by default after the request; each `expect` is the next event, in the format
//! of `play.rs`. After `send`, the peer closes its direction; that event may be omitted if it is
//! `closed`. Events that occur at the beginning of every connection, `settings` and its
//! acknowledgement after `hello`, are omitted.

use super::play::{ResponseTiming, play};
use super::wire;
use crate::script::{Case, parse};
use peregrine_proto::h2::{Http2Error, Limits};
use proptest::prelude::*;
use std::path::Path;

pub(crate) fn load_cases() -> Vec<(String, Case)> {
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

pub(crate) fn timing(case: &Case) -> ResponseTiming {
    match case.text("answer") {
        Some("early") => ResponseTiming::Early,
        Some("never") => ResponseTiming::Never,
        Some(other) => panic!("no such answer: {other}"),
        None => ResponseTiming::RequestComplete,
    }
}

fn check(case: &Case, actual: &[String]) -> Result<(), String> {
    let mut expected: Vec<&str> = case.texts("expect").collect();
    let mut actual: Vec<&str> = actual.iter().map(String::as_str).collect();
    let sends_hello = case.text("send").is_some_and(|line| line == "hello");
    if sends_hello && actual.starts_with(&["> settings-ack", "settings"]) {
        actual.drain(..2);
    }
    if actual.last() == Some(&"closed") && expected.last() != Some(&"closed") {
        expected.push("closed");
    }
    if actual.last() == Some(&"close") && expected.last() != Some(&"close") {
        expected.push("close");
    }
    if expected == actual {
        return Ok(());
    }
    Err(format!("expected {expected:#?}\nactual {actual:#?}"))
}

#[test]
fn cases_pass_at_once_and_byte_by_byte() {
    let mut failures = Vec::new();
    for (file, case) in load_cases() {
        let (limits, bytes) = (limits(&case), wire::bytes(case.texts("send")));
        let single: Vec<usize> = (0..bytes.len()).collect();
        for (splitting, cuts) in [("whole", &[][..]), ("byte by byte", &single)] {
            if bytes.len() > 50_000 && !cuts.is_empty() {
                continue;
            }
            let actual = play(&limits, &bytes, cuts, timing(&case));
            if let Err(difference) = check(&case, &actual) {
                let name = case.text("case").unwrap();
                failures.push(format!("{file}: {name} ({splitting})\n{difference}"));
                break;
            }
        }
    }
    assert!(failures.is_empty(), "{} failed\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn cases_have_unique_names_and_cite_a_section() {
    let cases = load_cases();
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
fn every_error_has_a_case() {
    let cases = load_cases();
    let expected: Vec<_> = cases.iter().flat_map(|(_, case)| case.texts("expect")).collect();
    for error in Http2Error::ALL {
        let name = format!("{error:?}");
        let has_case = expected
            .iter()
            .any(|line| line.split([' ', '(', ')']).any(|word| word.eq_ignore_ascii_case(&name)));
        assert!(has_case, "no case for {name}");
    }
}

#[test]
fn splitting_a_case_anywhere_gives_the_same_events() {
    for (file, case) in load_cases() {
        let (limits, bytes) = (limits(&case), wire::bytes(case.texts("send")));
        if bytes.len() > 1000 {
            continue;
        }
        for timing in
            [ResponseTiming::RequestComplete, ResponseTiming::Early, ResponseTiming::Never]
        {
            let expected = play(&limits, &bytes, &[], timing);
            for cut in 0..=bytes.len() {
                let name = case.text("case").unwrap();
                let events = play(&limits, &bytes, &[cut], timing);
                assert_eq!(events, expected, "{file}: {name}, cut at {cut}");
            }
        }
    }
}

/// The frames of several cases in a row, some of their bytes changed.
fn streams_of_frames() -> impl Strategy<Value = Vec<u8>> {
    let cases: Vec<Vec<u8>> = load_cases()
        .iter()
        .map(|(_, case)| wire::bytes(case.texts("send")))
        .filter(|bytes| bytes.len() < 1000)
        .collect();
    let hello = wire::bytes(["hello"].iter());
    let skip = hello.len();
    let frames = (0..cases.len()).prop_map(move |at| {
        let case = &cases[at];
        case.get(skip..).unwrap_or_default().to_vec()
    });
    let mutation = (any::<prop::sample::Index>(), 0..3_u8, any::<u8>());
    let mutations = proptest::collection::vec(mutation, 0..4);
    (proptest::collection::vec(frames, 1..5), mutations).prop_map(move |(parts, mutations)| {
        let mut bytes = [hello.clone(), parts.concat()].concat();
        for (at, kind, byte) in mutations {
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
    fn events_do_not_depend_on_how_bytes_are_split(
        bytes in streams_of_frames(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        timing in prop_oneof![
            Just(ResponseTiming::RequestComplete),
            Just(ResponseTiming::Early),
            Just(ResponseTiming::Never),
        ],
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let limits = Limits::DEFAULT;
        let expected = play(&limits, &bytes, &[], timing);
        prop_assert_eq!(&play(&limits, &bytes, &cuts, timing), &expected);
        let single: Vec<usize> = (0..bytes.len()).collect();
        prop_assert_eq!(&play(&limits, &bytes, &single, timing), &expected);
    }
}
