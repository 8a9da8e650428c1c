//! Heads that our parser accepts are also accepted by another one, with the same method, target,
//! version, and fields.

use super::cases::requests;
use peregrine_proto::h1::{Connection, Event};
use peregrine_proto::{HeadIndex, KnownField, Limits, TargetForm, Version};
use proptest::prelude::*;

/// Compares the parsers on the head at the start of `bytes`. Returns whether our parser accepted
/// it.
fn compare(bytes: &[u8]) -> Result<bool, TestCaseError> {
    let limits = Limits { fields_max: 40, ..Limits::DEFAULT };
    let mut head = HeadIndex::new();
    let (used, event) = Connection::new(&limits).receive(&limits, bytes, &mut head);
    let Event::Head(framing) = event else { return Ok(false) };
    let mut bytes = bytes[usize::from(framing.leading_bytes)..used].to_vec();
    // The oracle rejects a minor version above 1; our parser treats it as 1.
    let minor = usize::from(head.target.end) + " HTTP/1.".len();
    bytes[minor] = if head.version == Version::Http10 { b'0' } else { b'1' };
    let bytes = bytes.as_slice();
    let mut fields = [httparse::EMPTY_HEADER; 40];
    let mut reference = httparse::Request::new(&mut fields);
    let status = reference.parse(bytes);
    prop_assert_eq!(status, Ok(httparse::Status::Complete(bytes.len())));
    prop_assert_eq!(reference.method.map(str::as_bytes), Some(head.method_span.slice(bytes)));
    prop_assert_eq!(reference.path.map(str::as_bytes), Some(head.target.slice(bytes)));
    prop_assert_eq!(reference.version, Some(u8::from(head.version == Version::Http11)));
    prop_assert_eq!(reference.headers.len(), head.fields.len());
    for (expected, actual) in reference.headers.iter().zip(&head.fields) {
        prop_assert_eq!(expected.name.as_bytes(), actual.name.slice(bytes));
        // RFC 9112 §3.2.2: an authority in the target replaces the value of the Host field.
        let is_replaced =
            actual.known == KnownField::Host && head.target_form == TargetForm::Absolute;
        let value = if is_replaced { head.authority.slice(bytes) } else { expected.value };
        prop_assert_eq!(value, actual.value.slice(bytes));
    }
    Ok(true)
}

/// A mostly valid head.
fn generated() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![
        prop::sample::select(vec!["Accept", "cookie", "x-a", "User-Agent", "Content-Type", "te"])
            .prop_map(str::to_owned),
        "[!#$%&'*+.^_`|~0-9A-Za-z-]{1,24}",
    ];
    let value = prop_oneof![
        4 => "[ -~\t]{0,40}".prop_map(String::into_bytes),
        1 => proptest::collection::vec(any::<u8>(), 0..6),
    ];
    let space = prop::sample::select(vec!["", " ", "\t", "  "]);
    let field = (name, space.clone(), value, space);
    let line = (
        prop::sample::select(vec!["GET", "POST", "PATCH", "X-Y"]),
        "/[a-z0-9/%.?=&-]{0,60}",
        prop::sample::select(vec!["HTTP/1.1", "HTTP/1.0", "HTTP/1.1", "HTTP/2.0"]),
    );
    (line, proptest::collection::vec(field, 0..12)).prop_map(
        |((method, target, version), fields)| {
            let mut head = format!("{method} {target} {version}\r\nHost: a\r\n").into_bytes();
            for (name, leading, value, trailing) in fields {
                head.extend_from_slice(format!("{name}:{leading}").as_bytes());
                head.extend_from_slice(&value);
                head.extend_from_slice(format!("{trailing}\r\n").as_bytes());
            }
            head.extend_from_slice(b"\r\n");
            head
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn accepted_heads_are_parsed_equally_by_the_oracle(bytes in generated()) {
        compare(&bytes)?;
    }

    #[test]
    fn accepted_mutated_heads_are_parsed_equally_by_the_oracle(
        bytes in generated(),
        at: prop::sample::Index,
        byte: u8,
    ) {
        let mut bytes = bytes;
        let at = at.index(bytes.len());
        bytes[at] = byte;
        compare(&bytes)?;
    }
}

#[test]
fn accepted_cases_are_parsed_equally_by_the_oracle() {
    let mut accepted = 0;
    for (file, case) in requests() {
        let name = case.text("case").unwrap();
        match compare(&case.bytes("send")) {
            Ok(is_accepted) => accepted += usize::from(is_accepted),
            Err(error) => panic!("{file}: {name}: {error}"),
        }
    }
    assert!(accepted > 100, "only {accepted} were accepted");
}
