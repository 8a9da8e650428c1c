//! The types of the `http` crate accept every target and host that the parser accepts, so handlers
//! and mounted services see the same request.

use http::uri::Authority;
use peregrine_proto::h1::{Connection, Event};
use peregrine_proto::{Limits, RequestLine, Scheme, TargetForm, Version};
use peregrine_web::RequestHead;
use proptest::prelude::*;

fn parse(bytes: &[u8]) -> Option<RequestHead> {
    let limits = Limits::DEFAULT;
    let mut head = RequestHead::from_pool();
    match Connection::new(&limits).receive(&limits, bytes, head.index_mut()) {
        (consumed, Event::Head(_)) => head.set_bytes(&bytes[..consumed]),
        _ => return None,
    }
    Some(head)
}

/// Asserts that the types of the `http` crate describe the same request as `head`.
fn assert_same(head: &RequestHead) {
    let authority = head.authority();
    // HTTP/2 requests may send only a Host field, and HTTP/1.0 requests need no host.
    assert!(authority.is_empty() || Authority::try_from(authority).is_ok(), "{authority}");
    let (uri, request) = (head.uri(), head.to_http(()));
    assert_eq!(&uri, request.uri());
    assert_eq!(uri.query(), head.query());
    assert_eq!(uri.path(), head.path());
    if head.index().target_form == TargetForm::Absolute {
        assert_eq!(uri.authority().map(Authority::as_str), Some(authority));
        assert_eq!(uri.scheme_str(), head.index().scheme.map(Scheme::name));
    }
    assert_eq!(request.headers().len(), head.index().fields.len());
}

fn text(bytes: &'static [u8], length: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop::sample::select(bytes), 0..length)
}

fn authority() -> impl Strategy<Value = Vec<u8>> {
    let parts = prop::sample::select(
        &[
            "a",
            "A.example",
            "a%41",
            "%41",
            "[::1]",
            "[1:2:3:4:5:6:7:8]",
            "[::2:3:4:5:6:7:8]",
            "[v1.a:b]",
            "[v1.:::::::::]",
            "[v1.::::::::]",
            "[fe80::1%25eth0]",
            "u@a",
            "127.0.0.1",
            "~",
            "!$&'()*+,;=",
            ":",
            ":80",
            ":00080",
            ":65536",
            "[",
            "]",
            "@",
            "_",
            "-",
            ".",
            "\"",
            "\\",
            "|",
            "^",
            "`",
            "{",
        ][..],
    );
    let parts =
        proptest::collection::vec(parts, 1..4).prop_map(|parts| parts.concat().into_bytes());
    prop_oneof![
        3 => parts,
        1 => text(b"aZ09-._~!$&'()*+,;=:[]@%|^`{}\"\\", 12),
        1 => proptest::collection::vec(0x21..0x7f_u8, 1..8),
    ]
}

fn path_and_query() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        text(b"aZ09-._~!$&'()*+,;=:@/%[]{}|^?", 12),
        proptest::collection::vec(0x21..0xff_u8, 0..8),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn an_accepted_target_is_the_same_uri(
        scheme in prop::sample::select(&["http", "https", "HTTP", "hTTps"][..]),
        authority in authority(),
        rest in path_and_query(),
    ) {
        let rest = [&b"/"[..], &rest].concat();
        for rest in [&b""[..], &rest, &rest[1..]] {
            let target = [scheme.as_bytes(), b"://", &authority, rest].concat();
            let bytes = [b"GET ", &target[..], b" HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
            if let Some(head) = parse(&bytes) {
                assert_same(&head);
            }
        }
        let bytes = [b"GET ", &rest[..], b" HTTP/1.1\r\nHost: ", &authority, b"\r\n\r\n"].concat();
        if let Some(head) = parse(&bytes) {
            assert_same(&head);
        }
        let line = RequestLine {
            method: b"GET",
            scheme: Some(Scheme::Https),
            authority: &authority,
            target: &rest,
            version: Version::Http2,
        };
        if let Ok(head) = RequestHead::build(&Limits::DEFAULT, &line, [(&b"accept"[..], &b"*/*"[..])]) {
            assert_same(&head);
            assert_eq!(head.version(), http::Version::HTTP_2);
        }
    }
}

#[test]
fn rejects_a_host_that_the_http_crate_rejects() {
    for host in
        ["a%41", "a%41:80", "%41", "[fe80::1%25eth0]", "[v1.:::::::::]", "u@a", "a:b", "a:1:2"]
    {
        let target = format!("GET http://{host}/x HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(parse(target.as_bytes()).is_none(), "{host}");
        let field = format!("GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert!(parse(field.as_bytes()).is_none(), "{host}");
    }
}

#[test]
fn the_longest_target_is_a_uri() {
    let limits = Limits {
        head_bytes_max: usize::MAX,
        request_line_bytes_max: usize::MAX,
        ..Limits::DEFAULT
    };
    let target = [&b"/"[..], &vec![b'a'; 65_519]].concat();
    let line = RequestLine {
        method: b"A",
        scheme: None,
        authority: b"",
        target: &target,
        version: Version::Http11,
    };
    let head = RequestHead::build(&limits, &line, []).expect("a head of the maximum size");
    assert_eq!(head.as_bytes().len(), 65_535);
    assert_eq!(head.uri().path().as_bytes(), target);
}
