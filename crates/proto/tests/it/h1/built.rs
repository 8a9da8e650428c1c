//! Heads built from their parts equal those that the parser finds in the same bytes.

use peregrine_proto::h1::{Connection, Event};
use peregrine_proto::{
    HeadBuilder, HeadIndex, Limits, RequestError, RequestLine, Scheme, TargetForm, Version,
};
use proptest::prelude::*;

type Field = (Vec<u8>, Vec<u8>);

/// Arbitrary parts of a head.
#[derive(Clone, Debug)]
struct Parts {
    method: Vec<u8>,
    scheme: Option<Scheme>,
    authority: Vec<u8>,
    target: Vec<u8>,
    version: Version,
    fields: Vec<Field>,
}

impl Parts {
    fn build(&self, limits: &Limits) -> Result<(Vec<u8>, HeadIndex), RequestError> {
        // Previous contents must not matter.
        let (mut bytes, mut index) = (b"left over".to_vec(), used_index());
        let line = RequestLine {
            method: &self.method,
            scheme: self.scheme,
            authority: &self.authority,
            target: &self.target,
            version: self.version,
        };
        let mut builder = HeadBuilder::new(limits, &line, &mut bytes, &mut index)?;
        for (name, value) in &self.fields {
            builder.field(name, value)?;
        }
        builder.finish()?;
        Ok((bytes, index))
    }

    /// Writes the head without any checks.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = [&self.method[..], b" "].concat();
        if let Some(scheme) = self.scheme.filter(|_| !self.authority.is_empty()) {
            bytes.extend_from_slice(scheme.name().as_bytes());
            bytes.extend_from_slice(b"://");
            bytes.extend_from_slice(&self.authority);
        }
        bytes.extend_from_slice(&self.target);
        let is_http10 = self.version == Version::Http10;
        bytes.extend_from_slice(if is_http10 { b" HTTP/1.0\r\n" } else { b" HTTP/1.1\r\n" });
        for (name, value) in &self.fields {
            bytes.extend_from_slice(&[name, &b": "[..], value, b"\r\n"].concat());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes
    }
}

fn used_index() -> HeadIndex {
    let mut index = HeadIndex::new();
    let bytes = b"PUT http://x/y?z HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n";
    let _ = parse(&Limits::DEFAULT, bytes, &mut index);
    index
}

/// The length of the head that the parser finds.
fn parse(limits: &Limits, bytes: &[u8], index: &mut HeadIndex) -> Result<usize, Event> {
    match Connection::new(limits).receive(limits, bytes, index) {
        (used, Event::Head(framing)) => Ok(used - usize::from(framing.leading_bytes)),
        (_, event) => Err(event),
    }
}

fn parts() -> impl Strategy<Value = Parts> {
    let any_bytes = || proptest::collection::vec(any::<u8>(), 0..6);
    let text = |choices: &'static [&'static str]| {
        prop::sample::select(choices).prop_map(|text| text.as_bytes().to_vec())
    };
    let method = prop_oneof![
        9 => text(&["GET", "POST", "OPTIONS", "get", "A", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"]),
        1 => text(&["", "CONNECT", "GET /", "A:", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "\r\n"]),
        1 => any_bytes(),
    ];
    let authority = prop_oneof![
        5 => text(&["", "", "a", "a.example:80", "[::1]:1", "a:"]),
        1 => text(&["u@a", "a%41", "a:b", "a/", "a?", "[", "*", "a b"]),
        1 => any_bytes(),
    ];
    let target = prop_oneof![
        8 => text(&["/", "/a/b?c=d", "/?", "/%zz[]{}|^", "?x", "", "*"]),
        1 => text(&["a", "/ ", "/#", "//b/c", "http://x/", "/\r\n", "/ HTTP/1.1\r\nA: b"]),
        1 => any_bytes(),
    ];
    let name = prop_oneof![
        6 => text(&["Accept", "x-a", "cookie", "Content-Length", "connection"]),
        2 => text(&["Host"]),
        1 => text(&["", "a:", " a", "a ", "\r\n", "a: b\r\nc"]),
        1 => any_bytes(),
    ];
    let value = prop_oneof![
        6 => text(&["", "a", " a b\t", "1", "b.example", "close"]),
        1 => text(&["\r\nx: y", "\0", "a\rb", "a\n"]),
        1 => any_bytes(),
    ];
    let scheme = prop_oneof![Just(None), Just(Some(Scheme::Http)), Just(Some(Scheme::Https))];
    let version = prop_oneof![Just(Version::Http10), Just(Version::Http11)];
    let fields = proptest::collection::vec((name, value), 0..6);
    (method, scheme, authority, target, version, fields).prop_map(
        |(method, scheme, authority, target, version, fields)| Parts {
            method,
            scheme,
            authority,
            target,
            version,
            fields,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn builder_and_parser_accept_the_same_heads(parts in parts()) {
        let limits = Limits::DEFAULT;
        let (written, mut parsed) = (parts.to_bytes(), HeadIndex::new());
        match parts.build(&limits) {
            Ok((bytes, index)) => {
                prop_assert_eq!(index.fields.len(), parts.fields.len());
                for (field, (name, value)) in index.fields.iter().zip(&parts.fields) {
                    prop_assert_eq!(field.name.slice(&bytes), name);
                    // RFC 9112 §3.2.2: an authority in the target replaces the value of Host.
                    let is_replaced = index.target_form == TargetForm::Absolute
                        && name.eq_ignore_ascii_case(b"host");
                    let value = if is_replaced { &parts.authority } else { value };
                    prop_assert_eq!(field.value.slice(&bytes), peregrine_proto::field::trim_ows(value));
                }
                prop_assert_eq!(index.method_span.slice(&bytes), parts.method);
                match parse(&limits, &bytes, &mut parsed) {
                    Ok(length) => prop_assert_eq!(length, bytes.len()),
                    // Two rules apply only to connections: a Host is required, and the framing is
                    // checked.
                    Err(Event::RequestError(RequestError::HostMissing)) => return Ok(()),
                    Err(Event::RequestError(error)) => {
                        prop_assert!(error.section().starts_with("RFC 9110 §8.6"), "{error:?}");
                        return Ok(());
                    }
                    Err(event) => prop_assert!(false, "{event:?}"),
                }
                if index.target_form == TargetForm::Absolute {
                    prop_assert_eq!(index.scheme, parts.scheme);
                } else {
                    // HTTP/1 has no place for the scheme of the other forms.
                    parsed.scheme = parts.scheme;
                }
                prop_assert_eq!(index, parsed);
            }
            Err(error) => {
                let Ok(length) = parse(&limits, &written, &mut parsed) else { return Ok(()) };
                // The parser may accept another head in the same bytes, but never this one.
                let is_same_head = length == written.len()
                    && parsed.fields.len() == parts.fields.len()
                    && parsed.method_span.slice(&written) == parts.method
                    && parsed.path.slice(&written).len() + parsed.query.map_or(0, |query| query.len() + 1)
                        == parts.target.len()
                    && parsed.fields.iter().zip(&parts.fields).all(|(field, (name, value))| {
                        let value = peregrine_proto::field::trim_ows(value);
                        field.name.slice(&written) == name && field.value.slice(&written) == value
                    });
                let has_no_scheme = parts.scheme.is_none() && !parts.authority.is_empty();
                let text = written.escape_ascii();
                prop_assert!(!is_same_head || has_no_scheme, "{error:?} {text}");
            }
        }
    }

    #[test]
    fn builder_and_parser_enforce_the_same_limits(
        sizes in proptest::collection::vec(0..40_usize, 0..8),
        path in 0..60_usize,
        fields_max in 0..8_usize,
        field_bytes_max in 10..50_usize,
        request_line_bytes_max in 40..80_usize,
        head_bytes_max in 40..300_usize,
    ) {
        let limits = Limits {
            fields_max,
            field_bytes_max,
            request_line_bytes_max,
            head_bytes_max,
            ..Limits::DEFAULT
        };
        let parts = Parts {
            method: b"GET".to_vec(),
            scheme: None,
            authority: Vec::new(),
            target: [&b"/"[..], &vec![b'a'; path]].concat(),
            version: Version::Http10,
            fields: sizes.iter().map(|size| (b"a".to_vec(), vec![b'v'; *size])).collect(),
        };
        let parsed = parse(&limits, &parts.to_bytes(), &mut HeadIndex::new());
        prop_assert_eq!(parts.build(&limits).is_ok(), parsed.is_ok());
    }
}

#[test]
fn without_limits_a_head_has_at_most_65535_bytes() {
    let limits = Limits {
        head_bytes_max: usize::MAX,
        request_line_bytes_max: usize::MAX,
        field_bytes_max: usize::MAX,
        fields_max: usize::MAX,
        ..Limits::DEFAULT
    };
    let parts = |extra: usize| Parts {
        method: b"GET".to_vec(),
        scheme: None,
        authority: Vec::new(),
        target: b"/".to_vec(),
        version: Version::Http2,
        // The request line has 16 bytes, the rest of the field 5, the empty line 2.
        fields: vec![(b"a".to_vec(), vec![b'v'; 65_512 + extra])],
    };
    let (bytes, index) = parts(0).build(&limits).expect("a head of 65,535 bytes");
    assert_eq!((bytes.len(), usize::from(index.fields[0].value.end)), (65_535, 65_535 - 4));
    assert_eq!(parts(1).build(&limits).err(), Some(RequestError::HeadTooLong));
    assert_eq!(parts(1 << 20).build(&limits).err(), Some(RequestError::HeadTooLong));
    let path = Parts { target: vec![b'/'; 1 << 20], ..parts(0) };
    assert_eq!(path.build(&limits).err(), Some(RequestError::RequestLineTooLong));
}
