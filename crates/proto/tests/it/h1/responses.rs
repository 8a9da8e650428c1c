//! The table cases of responses, `cases/responses.txt`.
//!
//! `send` contains the bytes of requests. The lines after it are executed in order: `receive` reads
//! one event and compares it; `respond: STATUS LENGTH` (or `chunked` for an unknown length), with
//! the `field` lines before it; `interim: STATUS`; `switch:`; `data`; `trailer`, then `finish:`;
//! `drain:`; `keep:` and `discard:` of the request's content; `end:` is the end of the peer's
//! stream. `wire` contains all output, `next` is the final result of `next_action`.

use crate::script::{Case, escape, parse, unescape};
use peregrine_proto::h1::{Connection, Event, ResponseLength};
use peregrine_proto::{Date, HeadIndex, Limits};

type Field = (Vec<u8>, Vec<u8>);

fn parse_field(text: &str) -> Field {
    let (name, value) = text.split_once(": ").expect("a field has a value");
    (unescape(name), unescape(value))
}

fn borrow_fields(fields: &[Field]) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice()))
}

/// Executes a case. Returns the output and the next step.
fn run(case: &Case) -> (Vec<u8>, String) {
    let limits = Limits::DEFAULT;
    let date = Date::from_unix_seconds(784_111_777);
    let (mut connection, mut head) = (Connection::new(&limits), HeadIndex::new());
    let (unread, mut used, mut out) = (case.bytes("send"), 0, Vec::new());
    let (mut fields, mut trailers) = (Vec::new(), Vec::new());
    for (key, text) in &case.lines {
        match key.as_str() {
            "receive" => {
                let (count, event) = connection.receive(&limits, &unread[used..], &mut head);
                used += count;
                let event = match event {
                    Event::Head(_) => "Head".to_owned(),
                    event => format!("{event:?}"),
                };
                assert_eq!(event, *text, "the event of {:?}", case.text("case"));
            }
            "field" => fields.push(parse_field(text)),
            "trailer" => trailers.push(parse_field(text)),
            "respond" => {
                let (status, length) = text.split_once(' ').expect("a status and a length");
                let length = match length {
                    "chunked" => ResponseLength::Unknown,
                    number => ResponseLength::Exact(number.parse().unwrap()),
                };
                let status = status.parse().unwrap();
                connection.send_response(status, borrow_fields(&fields), length, &date, &mut out);
                fields.clear();
            }
            "interim" => {
                connection.send_interim(text.parse().unwrap(), borrow_fields(&fields), &mut out);
                fields.clear();
            }
            "switch" => {
                let switched = connection.switch_protocols(borrow_fields(&fields), &mut out);
                assert_eq!(switched.to_string(), *text, "the switch of {:?}", case.text("case"));
            }
            "data" => drop(connection.send_data(&unescape(text), &mut out)),
            "finish" => connection.finish(borrow_fields(&trailers), &mut out),
            "drain" => connection.stop_after_response(),
            "keep" => connection.keep_reading_body(),
            "discard" => connection.discard_body(),
            "end" => assert_eq!(format!("{:?}", connection.receive_eof()), *text),
            "case" | "section" | "send" | "wire" | "next" => {}
            _ => panic!("no such line: {key}"),
        }
        connection.assert_invariants();
    }
    (out, format!("{:?}", connection.next_action()))
}

#[test]
fn cases_of_responses_pass() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/cases/responses.txt");
    let cases = parse(&std::fs::read_to_string(path).unwrap());
    assert!(cases.len() >= 40, "only {} cases", cases.len());
    let mut failures = Vec::new();
    for case in cases {
        let name = case.text("case").unwrap();
        assert!(case.text("section").is_some_and(|section| section.starts_with("RFC ")), "{name}");
        let (out, next) = run(&case);
        let (expected, expected_next) = (case.bytes("wire"), case.text("next").unwrap());
        if out != expected || next != expected_next {
            failures.push(format!(
                "{name}\nexpected {expected_next} {}\nhappened {next} {}",
                escape(&expected),
                escape(&out)
            ));
        }
    }
    assert!(failures.is_empty(), "{} failed\n{}", failures.len(), failures.join("\n\n"));
}
