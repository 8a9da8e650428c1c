//! Data formats besides JSON, and bodies as streams.

use bytes::Bytes;
use futures_core::Stream;
use peregrine_web::extract::{Accept, Cbor, Form, Json, MessagePack, NdJson, Protobuf, SimdJson};
use peregrine_web::testing::{TestClient, TestResponse, block_on};
use peregrine_web::{App, Body, HandlerExt, Next, Request, Response};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Bird {
    name: String,
    tags: Vec<String>,
    weight: Option<f64>,
    count: u8,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Seen {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, boxed, tag = "2")]
    inner: Option<Box<Seen>>,
}

fn client() -> TestClient {
    App::new()
        .post("/pack", async |MessagePack(bird): MessagePack<Bird>| MessagePack(bird))
        .post("/cbor", async |Cbor(bird): Cbor<Bird>| Cbor(bird))
        .post("/proto", async |Protobuf(seen): Protobuf<Seen>| Protobuf(seen))
        .post("/fast", async |SimdJson(bird): SimdJson<Bird>| SimdJson(bird))
        .post("/json", async |Json(bird): Json<Bird>| Json(bird))
        .post("/short", (async |Cbor(bird): Cbor<Bird>| Cbor(bird)).body_limit(10))
        .post("/perhaps", async |pack: Option<MessagePack<u8>>| format!("{pack:?}"))
        .post("/deep", async |pack: MessagePack<Deep>| format!("{}", pack.0.0.len()))
        .post("/deep-cbor", async |cbor: Cbor<Deep>| format!("{}", cbor.0.0.len()))
        .post("/nested", async |pack: MessagePack<Nested>| format!("{:?}", pack.0))
        .post("/nested-cbor", async |cbor: Cbor<Nested>| format!("{:?}", cbor.0))
        .post("/nested-json", async |json: SimdJson<Nested>| format!("{:?}", json.0))
        .post("/keys", async || Json(BTreeMap::from([((1, 2), 3)])))
        .get("/data", async |accept: Accept| accept.serialize(&bird()))
        .test()
}

#[derive(Debug, Deserialize)]
struct Deep(Vec<Deep>);

/// Each level is a map of one pair, which is how formats encode a variant with a value.
#[derive(Debug, Deserialize)]
enum Nested {
    N(#[expect(dead_code, reason = "only its Debug output is compared")] Box<Nested>),
    End,
}

fn bird() -> Bird {
    let tags = vec!["gr\u{fc}n".into(), "\"".into()];
    Bird { name: "kestrel".into(), tags, weight: Some(0.25), count: 7 }
}

fn post(path: &str, media_type: &str, body: impl Into<Bytes>) -> TestResponse {
    client().post(path).header("content-type", media_type).body(body).send_blocking()
}

#[test]
fn values_round_trip() {
    let packed = rmp_serde::to_vec_named(&bird()).expect("serializing succeeds");
    let mut cbor = Vec::new();
    ciborium::into_writer(&bird(), &mut cbor).expect("serializing succeeds");
    let json = serde_json::to_vec(&bird()).expect("serializing succeeds");
    let seen = Seen { name: "hobby".into(), inner: Some(Box::default()) };
    let proto = prost::Message::encode_to_vec(&seen);
    for (path, request_type, response_type, body) in [
        ("/pack", "application/msgpack", "application/vnd.msgpack", &packed),
        ("/pack", "Application/Vnd.msgpack; v=1", "application/vnd.msgpack", &packed),
        ("/pack", "application/birds+msgpack", "application/vnd.msgpack", &packed),
        ("/cbor", "application/cbor", "application/cbor", &cbor),
        ("/cbor", "application/senml+cbor", "application/cbor", &cbor),
        ("/proto", "application/x-protobuf", "application/protobuf", &proto),
        ("/fast", "application/json", "application/json", &json),
        ("/fast", "application/birds+json", "application/json", &json),
    ] {
        let response = post(path, request_type, body.clone());
        assert_eq!(
            response.header("content-type"),
            Some(response_type),
            "{path} {}",
            response.text()
        );
        assert_eq!(response.bytes(), *body, "{path}");
    }
    // Other libraries write structs as arrays.
    let packed = rmp_serde::to_vec(&bird()).expect("serializing succeeds");
    assert_eq!(post("/pack", "application/msgpack", packed).status(), 200);
}

#[test]
fn rejects_invalid_bodies_with_the_problems_of_json() {
    let packed = rmp_serde::to_vec_named(&bird()).expect("serializing succeeds");
    let mut cbor = Vec::new();
    ciborium::into_writer(&bird(), &mut cbor).expect("serializing succeeds");
    let without_end = |bytes: &[u8]| bytes[..bytes.len() - 1].to_vec();
    let with_more = |bytes: &[u8]| [bytes, b"\x01"].concat();
    for (path, media_type, body, status, kind) in [
        ("/pack", "application/msgpack", without_end(&packed), 400, "invalid-message-pack"),
        ("/pack", "application/msgpack", with_more(&packed), 400, "invalid-message-pack"),
        ("/pack", "application/msgpack", vec![0xc1], 422, "unexpected-value"),
        (
            "/pack",
            "application/msgpack",
            vec![0xdd, 255, 255, 255, 255],
            400,
            "invalid-message-pack",
        ),
        ("/pack", "application/msgpack", vec![0x07], 422, "unexpected-value"),
        ("/pack", "application/msgpack", vec![], 400, "empty-body"),
        ("/pack", "application/json", packed.clone(), 415, "unsupported-media-type"),
        ("/cbor", "application/cbor", without_end(&cbor), 400, "invalid-cbor"),
        ("/cbor", "application/cbor", with_more(&cbor), 400, "invalid-cbor"),
        ("/cbor", "application/cbor", vec![0xff], 422, "unexpected-value"),
        ("/cbor", "application/cbor", vec![0x07], 422, "unexpected-value"),
        (
            "/cbor",
            "application/cbor",
            vec![0x9b, 255, 255, 255, 255, 255, 255, 255, 255],
            422,
            "unexpected-value",
        ),
        ("/cbor", "application/msgpack", cbor.clone(), 415, "unsupported-media-type"),
        ("/short", "application/cbor", cbor.clone(), 413, "body-too-large"),
        ("/proto", "application/protobuf", vec![0x0a, 9], 400, "invalid-protobuf"),
        ("/proto", "application/json", vec![], 415, "unsupported-media-type"),
        ("/fast", "application/json", b"{\"name\":".to_vec(), 400, "invalid-json"),
        ("/fast", "application/json", b"{\"name\":\"a\"}".to_vec(), 422, "unexpected-value"),
        ("/fast", "application/json", b"{\"name\":\"\xff\"}".to_vec(), 400, "invalid-json"),
    ] {
        let response = post(path, media_type, body.clone());
        let text = response.text();
        assert_eq!(response.status(), status, "{path} {body:?} {text}");
        assert!(text.contains(&format!("/problems/{kind}\"")), "{path} {body:?} {text}");
        assert!(!text.contains("Bird"), "the response names a Rust type: {text}");
    }
    let none = client().post("/perhaps").send_blocking().text();
    assert_eq!(none, "None");
    assert_eq!(post("/perhaps", "application/msgpack", vec![5]).text(), "Some(MessagePack(5))");
}

#[test]
fn an_optional_body_may_be_absent_but_not_invalid() {
    async fn is_some<T>(value: Option<T>) -> String {
        value.is_some().to_string()
    }
    let client = App::new()
        .post("/json", is_some::<Json<u8>>)
        .post("/fast", is_some::<SimdJson<u8>>)
        .post("/form", is_some::<Form<BTreeMap<String, u8>>>)
        .post("/pack", is_some::<MessagePack<u8>>)
        .post("/cbor", is_some::<Cbor<u8>>)
        .post("/proto", is_some::<Protobuf<Seen>>)
        .post("/lines", is_some::<NdJson<u8>>)
        .post("/text", is_some::<String>)
        .post("/bytes", is_some::<Bytes>)
        .post("/vec", is_some::<Vec<u8>>)
        .test()
        .body_limit(10);
    let send = |path: &str, media_type: &str, body: &[u8]| {
        client.post(path).header("content-type", media_type).body(body.to_vec()).send_blocking()
    };
    for (path, media_type, valid) in [
        ("/json", "application/json", &b"7"[..]),
        ("/fast", "application/json", &b"7"[..]),
        ("/form", "application/x-www-form-urlencoded", &b"a=7"[..]),
        ("/pack", "application/msgpack", &b"\x07"[..]),
        ("/cbor", "application/cbor", &b"\x07"[..]),
        ("/proto", "application/protobuf", &b""[..]),
        ("/lines", "application/x-ndjson", &b"7\n"[..]),
        ("/text", "text/plain", &b""[..]),
        ("/bytes", "text/plain", &b""[..]),
        ("/vec", "text/plain", &b""[..]),
    ] {
        assert_eq!(client.post(path).send_blocking().text(), "false", "{path}");
        assert_eq!(send(path, media_type, valid).text(), "true", "{path}");
        let has_media_type = media_type != "text/plain";
        let expected = if has_media_type { 415 } else { 200 };
        assert_eq!(send(path, "application/x-other", valid).status(), expected, "{path}");
        // An extractor of lines has returned before it reads the body.
        let expected = if path == "/lines" { 200 } else { 413 };
        assert_eq!(send(path, media_type, &[b' '; 11]).status(), expected, "{path}");
    }
    for (path, media_type, invalid, expected) in [
        ("/json", "application/json", &b"x"[..], 400),
        ("/json", "application/json", &b""[..], 400),
        ("/fast", "application/json", &b"x"[..], 400),
        ("/form", "application/x-www-form-urlencoded", &b"a=x"[..], 422),
        ("/pack", "application/msgpack", &b"\x07\x01"[..], 400),
        ("/cbor", "application/cbor", &b"\x07\x01"[..], 400),
        ("/proto", "application/protobuf", &b"\x0a\x09"[..], 400),
        ("/text", "text/plain", &b"\xff"[..], 400),
    ] {
        assert_eq!(send(path, media_type, invalid).status(), expected, "{path} {invalid:?}");
    }
}

#[test]
fn rejects_deeply_nested_bodies() {
    for (path, media_type, open, end) in [
        ("/deep", "application/msgpack", 0x91, 0x90),
        ("/deep-cbor", "application/cbor", 0x81, 0x80),
    ] {
        let nested = |depth: usize| [vec![open; depth], vec![end]].concat();
        assert_eq!(post(path, media_type, nested(20)).text(), "1", "{path}");
        let rejected = post(path, media_type, nested(1_000_000));
        assert_eq!(rejected.status(), 400, "{path}");
        assert!(rejected.text().contains("too deeply"), "{}", rejected.text());
    }
    let mut message = Seen::default();
    for _ in 0..200 {
        message = Seen { inner: Some(Box::new(message)), ..Seen::default() };
    }
    let bytes = prost::Message::encode_to_vec(&message);
    assert_eq!(post("/proto", "application/protobuf", bytes).status(), 400);
}

#[test]
fn simd_json_and_json_respond_alike() {
    for body in [
        r#"{"name":"a","tags":[],"weight":null,"count":255}"#,
        r#"{"name":"a","tags":[],"weight":1e400,"count":1}"#,
        r#"{"name":"a","tags":[],"count":256}"#,
        r#"{"name":"a","name":"b","tags":[],"count":1}"#,
        r#"{"name":"\ud800","tags":[],"count":1}"#,
        r#"{"name":"a","tags":[],"count":01}"#,
        r#"{"name":"a","tags":[],"count":1,}"#,
        r#"{"name":"a","tags":["x"],"count":1} x"#,
        "{\"name\":\"a\nb\",\"tags\":[],\"count\":1}",
        "\u{feff}{}",
        "[",
        "nul",
        "",
        " ",
    ] {
        let (fast, plain) =
            (post("/fast", "application/json", body), post("/json", "application/json", body));
        assert_eq!((fast.status(), fast.text()), (plain.status(), plain.text()), "{body}");
    }
}

#[test]
fn accept_serializes_in_the_preferred_format() {
    for (accept, media_type) in [
        ("*/*", "application/json"),
        ("application/cbor, application/json;q=0.5", "application/cbor"),
        ("application/msgpack", "application/msgpack"),
        ("application/vnd.msgpack", "application/vnd.msgpack"),
    ] {
        let response = client().get("/data").header("accept", accept).send_blocking();
        assert_eq!(response.header("content-type"), Some(media_type));
        assert_eq!(response.header("vary"), Some("accept"));
        assert_eq!(response.header_values("content-type").count(), 1);
        let value = match media_type {
            "application/json" => serde_json::from_slice(&response.bytes()).expect("JSON"),
            "application/cbor" => ciborium::from_reader(&response.bytes()[..]).expect("CBOR"),
            _ => rmp_serde::from_slice(&response.bytes()).expect("MessagePack"),
        };
        let value: Bird = value;
        assert_eq!(value, bird());
    }
    let rejected = client().get("/data").header("accept", "text/html").send_blocking();
    assert_eq!(rejected.status(), 406);
    assert!(rejected.text().contains("application/cbor"), "{}", rejected.text());
}

#[test]
fn a_body_can_become_a_stream_and_a_body_again() {
    let mut body = Body::from_stream(Body::from_stream(Body::from("hello")));
    let next = |body: &mut Body| {
        let poll = poll_fn(|cx| Stream::poll_next(Pin::new(&mut *body), cx));
        block_on(poll).map(|chunk| chunk.expect("no error"))
    };
    assert_eq!(next(&mut body).as_deref(), Some(&b"hello"[..]));
    assert_eq!(next(&mut body), None);
}

#[test]
fn a_body_error_passes_through_a_stream() {
    async fn through(request: Request, next: Next<'_>) -> Response {
        let (parts, body) = request.into_parts();
        next.run(Request::from_parts(parts, Body::from_stream(body))).await
    }
    let app = App::new().wrap(through).post("/", (async |text: String| text).body_limit(3));
    let client = app.test();
    for (body, status) in [("abc", 200), ("abcd", 413)] {
        assert_eq!(client.post("/").chunks([body]).send_blocking().status(), status, "{body}");
    }
}

#[test]
fn rejects_deeply_nested_variants() {
    for (path, media_type, start, end) in [
        ("/nested", "application/msgpack", &b"\x81\xa1N"[..], &b"\xa3End"[..]),
        ("/nested-cbor", "application/cbor", b"\xa1\x61N", b"\x63End"),
        ("/nested-json", "application/json", b"{\"N\":", b"\"End\"}}"),
    ] {
        let nested = |depth: usize| [start.repeat(depth), end.to_vec()].concat();
        let response = post(path, media_type, nested(2));
        assert_eq!(response.text(), "N(N(End))", "{path}");
        let response = post(path, media_type, nested(300_000));
        assert_eq!(response.status(), 400, "{path} {}", response.text());
    }
}
