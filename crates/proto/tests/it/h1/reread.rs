//! Written responses are parsed back by a simple reader that shares no code with the writer.

use super::reader::{Field, read};
use peregrine_proto::h1::{BodyFraming, Connection, Event, ResponseLength};
use peregrine_proto::{Date, HeadIndex, Limits};
use proptest::prelude::*;

fn borrow_fields(fields: &[Field]) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice()))
}

fn fields() -> impl Strategy<Value = Vec<Field>> {
    let name = prop_oneof![
        prop::sample::select(vec![
            "Content-Length",
            "transfer-encoding",
            "connection",
            "date",
            "etag",
            "Set-Cookie"
        ])
        .prop_map(|name| name.as_bytes().to_vec()),
        "[a-z-]{1,12}".prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..8),
    ];
    let value = prop_oneof![
        "[ -~]{0,20}".prop_map(String::into_bytes),
        "[0-9]{1,4}".prop_map(String::into_bytes),
        prop::sample::select(vec!["close", "chunked", "upgrade, close"])
            .prop_map(|value| value.as_bytes().to_vec()),
        proptest::collection::vec(any::<u8>(), 0..20),
    ];
    proptest::collection::vec((name, value), 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn written_responses_are_parsed_back(
        request in prop::sample::select(vec![
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.0\r\n\r\n",
            "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        ]),
        status in prop_oneof![4 => prop::sample::select(vec![200_u16, 204, 205, 304]), 1 => any::<u16>()],
        fields in fields(),
        trailers in fields(),
        parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..5),
        known_length: bool,
    ) {
        let limits = Limits::DEFAULT;
        let (mut connection, mut head) = (Connection::new(&limits), HeadIndex::new());
        let (_, event) = connection.receive(&limits, request.as_bytes(), &mut head);
        prop_assert!(matches!(event, Event::Head(_)));
        let content = parts.concat();
        let length = match known_length {
            true => ResponseLength::Exact(content.len() as u64),
            false => ResponseLength::Unknown,
        };
        let (mut out, date) = (Vec::new(), Date::from_unix_seconds(0));
        let borrowed = borrow_fields(&fields);
        let framing = connection.send_response(status, borrowed, length, &date, &mut out);
        for part in &parts {
            connection.send_data(part, &mut out);
        }
        connection.finish(borrow_fields(&trailers), &mut out);
        connection.assert_invariants();

        let response = read(&out, request.starts_with("HEAD")).expect("the response is complete");
        prop_assert_eq!(response.length, out.len(), "no bytes follow the response");
        let expected = if (200..1000).contains(&status) { status } else { 500 };
        prop_assert_eq!(response.status, expected);
        prop_assert_eq!(response.values("date").len(), 1);
        match framing {
            BodyFraming::None => prop_assert!(response.content.is_empty()),
            BodyFraming::Exact(bytes) => prop_assert_eq!(response.content.len() as u64, bytes),
            BodyFraming::Chunked | BodyFraming::CloseDelimited => {
                prop_assert_eq!(response.content, content)
            }
        }
    }
}
