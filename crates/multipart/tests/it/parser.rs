//! The parser: events from bytes, however they are cut.

use bytes::Bytes;
use peregrine_multipart::fuzz::{fuzz_one, seeds};
use peregrine_multipart::parser::{Event, Parser};
use peregrine_multipart::{MultipartError, MultipartLimits, PartHeaders};
use proptest::prelude::*;

fn parse_within(limits: &MultipartLimits, form: &str) -> Result<Vec<Event>, MultipartError> {
    let mut parser = Parser::new(b"b", limits)?;
    let (mut input, mut events) = (Bytes::from(form.to_owned()), Vec::new());
    while let Some(event) = parser.receive(&mut input)? {
        events.push(event);
    }
    parser.finish().map(|()| events)
}

fn parse(form: &str) -> Result<Vec<Event>, MultipartError> {
    parse_within(&MultipartLimits::DEFAULT, form)
}

/// The name, file name and content of each part.
fn parts(form: &str) -> Vec<(String, Option<String>, String)> {
    let mut parts: Vec<(String, Option<String>, String)> = Vec::new();
    for event in parse(form).unwrap_or_else(|error| panic!("{form:?}: {error}")) {
        match event {
            Event::PartStart(head) => {
                let file_name = head.file_name().map(str::to_owned);
                parts.push((head.name().to_owned(), file_name, String::new()));
            }
            Event::Data(data) => {
                let text = std::str::from_utf8(&data).expect("text");
                parts.last_mut().expect("a part").2.push_str(text);
            }
            Event::PartEnd | Event::End => {}
        }
    }
    parts
}

fn head(disposition: &str) -> Result<PartHeaders, MultipartError> {
    let form = format!("--b\r\nContent-Disposition: {disposition}\r\n\r\n\r\n--b--");
    match parse(&form)?.swap_remove(0) {
        Event::PartStart(head) => Ok(head),
        other => panic!("{other:?}"),
    }
}

const A: &str = "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n";

#[test]
fn content_is_everything_between_delimiters() {
    for (content, expected) in [
        ("1\r\n--b--", "1"),
        ("\r\n--b--\r\n", ""),
        ("\r\n\r\n--b--", "\r\n"),
        ("\r\n--c\r\n--b--", "\r\n--c"),
        ("--b--\r\n--b--", ""),
        ("--c\r\n--b--", "--c"),
        ("\r\n-\r\r\n--\r\n--b--and so on\r\n--b\r\n", "\r\n-\r\r\n--"),
        ("x--b--\r\n--b \t--b--", ""),
        ("x\n--b--\r\n--b--", "x\n--b--"),
    ] {
        let form = format!("{A}{content}");
        if content.contains(" \t--") {
            assert_eq!(parse(&form), Err(MultipartError::InvalidDelimiter));
            continue;
        }
        assert_eq!(parts(&form), [("a".to_owned(), None, expected.to_owned())], "{content:?}");
    }
    let two = format!("before\r\n{A}1\r\n{A}2\r\n--b-- \r\n");
    assert_eq!(parts(&two).len(), 2);
    assert_eq!(parse("--b--"), Ok(vec![Event::End]), "a form may have no fields");
}

#[test]
fn parses_names_as_browsers_and_other_clients_write_them() {
    for (disposition, name, file) in [
        ("form-data; name=a", "a", None),
        ("Form-Data;NAME=\"a b\" ; filename=\"x;y.txt\"", "a b", Some("x;y.txt")),
        ("form-data; name=\"%22q%22\"; filename=\"a%0d%0A\"", "\"q\"", Some("a\r\n")),
        ("form-data; name=\"a\\\"b\"; filename=\"C:\\dir\\\\x\"", "a\"b", Some("C:\\dir\\x")),
        ("form-data; name=\"\"; filename=\"\"", "", Some("")),
        ("form-data; name=\"ü\"; filename=\"100%.txt\"", "ü", Some("100%.txt")),
        ("form-data; name=a; filename=\"?\"; filename*=UTF-8''%c3%bc", "a", Some("ü")),
        ("form-data; name=a;; more=1;", "a", None),
    ] {
        let head = head(disposition).unwrap_or_else(|error| panic!("{disposition}: {error}"));
        assert_eq!((head.name(), head.file_name()), (name, file), "{disposition}");
    }
    let twice = head("form-data; name=a\r\nContent-Type: a/b\r\nContent-Type: c/d")
        .expect("the part is valid");
    assert_eq!(twice.content_type().map(str::as_bytes), twice.header("content-type"));
}

#[test]
fn each_violation_has_its_own_error() {
    for (disposition, error) in [
        ("attachment; name=a", MultipartError::MissingContentDisposition),
        ("form-data", MultipartError::MissingName),
        ("form-data; filename=a", MultipartError::MissingName),
        ("form-data; name=a; name=b", MultipartError::InvalidContentDisposition),
        ("form-data; name=\"a", MultipartError::InvalidContentDisposition),
        ("form-data; name", MultipartError::InvalidContentDisposition),
        ("form-data; name=\"a\"b", MultipartError::InvalidContentDisposition),
        ("form-data; name=a; filename*=latin1''a", MultipartError::InvalidContentDisposition),
        ("form-data; name=a; filename*=utf-8''%ff", MultipartError::InvalidContentDisposition),
        (
            "form-data; name=a; filename*=utf-8''b; filename*=utf-8''c",
            MultipartError::InvalidContentDisposition,
        ),
        ("form-data; name=a\rb", MultipartError::InvalidHeaderLine),
        ("form-data; name=a\0b", MultipartError::InvalidHeader),
        (
            "form-data; name=a\r\nContent-Disposition: form-data; name=b",
            MultipartError::MissingContentDisposition,
        ),
        (
            "form-data; name=a\r\nContent-Transfer-Encoding: base64",
            MultipartError::UnsupportedTransferEncoding,
        ),
        ("form-data; name=a\r\nno header", MultipartError::InvalidHeader),
        ("form-data; name=a\r\n: nothing", MultipartError::InvalidHeader),
        ("form-data; name=a\r\n folded: x", MultipartError::InvalidHeader),
        ("form-data; name=a\nX: y", MultipartError::InvalidHeaderLine),
    ] {
        assert_eq!(head(disposition).map(drop), Err(error), "{disposition:?}");
    }
    let form = format!("{A}1\r\n--b--");
    for end in 0..form.len() {
        assert_eq!(parse(&form[..end]), Err(MultipartError::Incomplete), "{:?}", &form[..end]);
    }
    assert_eq!(parse("--b\r\n\r\n1\r\n--b--"), Err(MultipartError::MissingContentDisposition));
    assert_eq!(parse("--b\r\r\n"), Err(MultipartError::InvalidDelimiter));
    assert_eq!(parse("--b-\r\n"), Err(MultipartError::InvalidDelimiter));
    for boundary in ["", "a ", "a\r", "ü", &"x".repeat(71)] {
        let result = Parser::new(boundary.as_bytes(), &MultipartLimits::DEFAULT).map(drop);
        assert_eq!(result, Err(MultipartError::InvalidBoundary), "{boundary:?}");
    }
}

#[test]
fn limits_may_be_reached_but_not_exceeded() {
    let file = A.replace("name=\"a\"", "name=\"a\"; filename=x");
    let field_twice = format!("{A}123\r\n{A}123\r\n--b--");
    let file_twice = format!("{file}1234\r\n{file}1234\r\n--b--");
    let headers = A.replace("\r\n\r\n", "\r\nX: y\r\n\r\n") + "\r\n--b--";
    let defaults = MultipartLimits::DEFAULT;
    let exact = MultipartLimits {
        fields_max: 2,
        files_max: 2,
        field_bytes_max: 3,
        file_bytes_max: 4,
        total_bytes_max: 8,
        part_headers_max: 2,
        ..defaults
    };
    for form in [&field_twice, &file_twice, &headers] {
        assert!(parse_within(&exact, form).is_ok(), "{form}");
    }
    for (limits, form, error) in [
        (
            MultipartLimits { fields_max: 1, ..defaults },
            &field_twice,
            MultipartError::TooManyFields(1),
        ),
        (
            MultipartLimits { files_max: 1, ..defaults },
            &file_twice,
            MultipartError::TooManyFiles(1),
        ),
        (
            MultipartLimits { field_bytes_max: 2, ..defaults },
            &field_twice,
            MultipartError::FieldTooLarge(2),
        ),
        (
            MultipartLimits { file_bytes_max: 3, ..defaults },
            &file_twice,
            MultipartError::FileTooLarge(3),
        ),
        (
            MultipartLimits { total_bytes_max: 5, ..defaults },
            &field_twice,
            MultipartError::TotalTooLarge(5),
        ),
        (
            MultipartLimits { part_headers_max: 1, ..defaults },
            &headers,
            MultipartError::TooManyPartHeaders(1),
        ),
        (
            MultipartLimits { part_headers_bytes_max: 20, ..defaults },
            &headers,
            MultipartError::PartHeadersTooLarge(20),
        ),
    ] {
        assert_eq!(parse_within(&limits, form), Err(error));
        assert_eq!(error.status(), 413);
    }
    let long = MultipartLimits { part_headers_bytes_max: 60, ..defaults };
    let padding = |count: usize| "x".repeat(count);
    assert!(parse_within(&long, &format!("{}\r\n{A}1\r\n--b--", padding(58))).is_ok());
    for form in [
        format!("{}\r\n{A}1\r\n--b--", padding(61)),
        format!("{A}1\r\n--b--{}", padding(61)),
        format!("--b{}\r\n", " ".repeat(61)),
    ] {
        assert_eq!(parse_within(&long, &form), Err(MultipartError::PartHeadersTooLarge(60)));
    }
}

#[test]
fn fuzz_seeds_give_the_same_events_however_they_are_split() {
    for seed in seeds() {
        for sizes in [[1, 1], [1, 2], [3, 1], [2, 7]] {
            fuzz_one(&[&sizes[..], &seed[2..]].concat());
        }
    }
}

/// Pieces of forms, valid and broken.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => Just(A.to_owned()),
        2 => Just(A.replace("name=\"a\"", "name=\"a\"; filename=x")),
        4 => Just("\r\n".to_owned()),
        3 => Just("\r\n--b".to_owned()),
        2 => Just("--b".to_owned()),
        2 => Just("--".to_owned()),
        2 => Just("\r".to_owned()),
        1 => Just("\r\n--b--".to_owned()),
        4 => "[a\r\n: -]{0,9}",
    ];
    prop::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #[test]
    fn any_cut_of_the_same_bytes_gives_the_same_events(
        form in pieces(), first in any::<u8>(), second in 1..20u8,
    ) {
        fuzz_one(&[&[first, second], &form[..]].concat());
    }
}
