//! The table cases of requests: `cases/*.txt` except the responses.
//!
//! `send` contains the bytes; `limits` may set some limits; each `expect` is the next event: `head`
//! with some of its words, or `data`, `end`, `trailer`, `reject`, `close`, `closed` in full; `close
//! unsaid` is a close after a response without `connection: close`. `answer: early` responds as
//! soon as a head is complete, and `answer: unwanted` also discards the content. `connection:
//! plain` is one without TLS. After `send`, the peer closes its direction; that event may be
//! omitted if it is `closed`.

use super::play::{ResponseTiming, Server, play};
use crate::script::{Case, parse, unescape};
use peregrine_proto::Limits;
use std::path::Path;

/// All cases of requests, each with its file's name.
pub(crate) fn requests() -> Vec<(String, Case)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.is_file());
    files.sort();
    let mut cases = Vec::new();
    for path in files {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name != "responses.txt" {
            let file = std::fs::read_to_string(&path).unwrap();
            cases.extend(parse(&file).into_iter().map(|case| (name.clone(), case)));
        }
    }
    cases
}

/// The limits of a case.
pub(crate) fn limits(case: &Case) -> Limits {
    let mut limits = Limits::DEFAULT;
    for pair in case.texts("limits").flat_map(str::split_whitespace) {
        let (name, value) = pair.split_once('=').expect("a limit has a value");
        let number: u64 = value.parse().expect("a limit is a number");
        let size = usize::try_from(number).unwrap();
        match name {
            "head_bytes_max" => limits.head_bytes_max = size,
            "request_line_bytes_max" => limits.request_line_bytes_max = size,
            "field_bytes_max" => limits.field_bytes_max = size,
            "fields_max" => limits.fields_max = size,
            "body_bytes_max" => limits.body_bytes_max = number,
            "chunk_extension_bytes_max" => {
                limits.chunk_extension_bytes_max = u16::try_from(number).unwrap();
            }
            "trailer_bytes_max" => limits.trailer_bytes_max = size,
            "drain_bytes_max" => limits.drain_bytes_max = u32::try_from(number).unwrap(),
            _ => panic!("no such limit: {name}"),
        }
    }
    limits
}

/// The server of a case.
pub(crate) fn server(case: &Case) -> Server {
    let timing = match case.text("answer") {
        Some("early") => ResponseTiming::Early,
        Some("unwanted") => ResponseTiming::EarlyDiscardingBody,
        Some(other) => panic!("no such answer: {other}"),
        None => ResponseTiming::RequestComplete,
    };
    let is_secure = match case.text("connection") {
        Some("plain") => false,
        Some(other) => panic!("no such connection: {other}"),
        None => true,
    };
    Server { timing, is_secure }
}

/// Returns whether an event matches an expected line.
fn matches_line(expected: &str, actual: &str) -> bool {
    if let (Some(expected), Some(actual)) =
        (expected.strip_prefix("data "), actual.strip_prefix("data "))
    {
        return unescape(expected) == unescape(actual);
    }
    if !expected.starts_with("head ") {
        return expected == actual;
    }
    expected.split(' ').all(|word| actual.split(' ').any(|other| other == word))
}

fn check(case: &Case, actual: &[String]) -> Result<(), String> {
    let mut expected: Vec<&str> = case.texts("expect").collect();
    if actual.last().is_some_and(|last| last == "closed") && expected.last() != Some(&"closed") {
        expected.push("closed");
    }
    let is_same = expected.len() == actual.len()
        && expected.iter().zip(actual).all(|(expected, actual)| matches_line(expected, actual));
    if is_same { Ok(()) } else { Err(format!("expected {expected:#?}\nactual {actual:#?}")) }
}

#[test]
fn cases_pass_at_once_and_byte_by_byte() {
    let mut failures = Vec::new();
    for (file, case) in requests() {
        let (limits, bytes) = (limits(&case), case.bytes("send"));
        let single: Vec<usize> = (0..bytes.len()).collect();
        for (splitting, cuts) in [("whole", &[][..]), ("byte by byte", &single)] {
            let actual = play(&limits, &bytes, cuts, server(&case));
            if let Err(difference) = check(&case, &actual) {
                let name = case.text("case").unwrap();
                failures.push(format!("{file}: {name} ({splitting})\n{difference}"));
            }
        }
    }
    assert!(failures.is_empty(), "{} failed\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn cases_have_unique_names_and_cite_a_section() {
    let cases = requests();
    assert!(cases.len() >= 200, "only {} cases", cases.len());
    let mut names: Vec<_> = cases.iter().map(|(_, case)| case.text("case").unwrap()).collect();
    names.sort_unstable();
    for pair in names.windows(2) {
        assert_ne!(pair[0], pair[1], "two cases have the same name");
    }
    for (file, case) in &cases {
        let section = case.text("section").unwrap_or_default();
        assert!(section.starts_with("RFC "), "{file}: {:?} has no section", case.text("case"));
        assert!(case.texts("expect").count() > 0, "{file}: {:?} expects", case.text("case"));
    }
}

#[test]
fn every_error_has_a_case() {
    let cases = requests();
    let expected: Vec<_> = cases.iter().flat_map(|(_, case)| case.texts("expect")).collect();
    for error in peregrine_proto::RequestError::ALL {
        let line = format!("reject {error:?} {}", error.status());
        assert!(expected.contains(&line.as_str()), "no case for {line}");
    }
}
