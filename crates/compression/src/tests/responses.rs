use super::{noise, text, unpack, unpack_so_far};
use crate::{Compression, CompressionLevel, ContentCoding, NoCompression};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::{Body as HttpBody, Frame};
use peregrine_web::extract::Path;
use peregrine_web::memory::{MemoryReservation, reserved, set_limit};
use peregrine_web::testing::{TestClient, TestResponse};
use peregrine_web::{App, Body, BodyError, Problem, Response, Service};
use std::cell::Cell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

const TYPE: (&str, &str) = ("content-type", "text/plain");

fn client(compression: Compression, handler: impl Fn() -> Response + 'static) -> TestClient {
    App::new().wrap(compression).get("/", handler).test()
}

fn with_fields(body: impl Into<Body>, fields: &[(&'static str, &'static str)]) -> Response {
    let mut response = Response::new(StatusCode::OK).with_body(body);
    for (name, value) in fields {
        response
            .headers
            .append(http::HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

fn send(client: &TestClient, accepted: &str) -> TestResponse {
    client.get("/").header("accept-encoding", accepted).send_blocking()
}

/// A body in steps: a piece, a pause (`None`), and trailers at the end.
struct Steps(VecDeque<Option<Result<Bytes, &'static str>>>, Option<HeaderMap>);

impl HttpBody for Steps {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.0.pop_front() {
            Some(Some(Ok(bytes))) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Some(Some(Err(text))) => Poll::Ready(Some(Err(BodyError::Stream(text.into())))),
            Some(None) => Poll::Pending,
            None => Poll::Ready(self.1.take().map(|trailers| Ok(Frame::trailers(trailers)))),
        }
    }
}

fn steps(pieces: impl IntoIterator<Item = Option<&'static str>>) -> Body {
    let pieces =
        pieces.into_iter().map(|piece| piece.map(|text| Ok(Bytes::from_static(text.as_bytes()))));
    Body::new(Steps(pieces.collect(), None))
}

fn poll(body: &mut Body) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
    Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn content_round_trips_in_every_coding_level_and_length() {
    for coding in ContentCoding::ALL {
        for level in [CompressionLevel::Fastest, CompressionLevel::Default, CompressionLevel::Best]
        {
            for length in [1024, 5000, 32 * 1024, 32 * 1024 + 1, 700_000] {
                let compression = Compression::new().codings([*coding]).level(level);
                let client = client(compression, move || with_fields(text(length), &[TYPE]));
                let response = send(&client, coding.name());
                assert_eq!(response.field("content-encoding"), Some(coding.name()));
                let packed = response.bytes();
                assert!(packed.len() < length, "{coding} {level:?} {length}: {}", packed.len());
                assert!(
                    unpack(coding.name(), &packed) == text(length).as_bytes(),
                    "{coding} {level:?} {length}"
                );
            }
        }
    }
}

#[test]
fn pooled_compressors_are_reset() {
    let client = client(Compression::new(), || with_fields(text(3000), &[TYPE]));
    let first = send(&client, "gzip").bytes();
    for _ in 0..5 {
        assert_eq!(send(&client, "gzip").bytes(), first);
    }
    // A compressor that was dropped halfway also goes back to the stock.
    let stream = App::new()
        .wrap(Compression::new())
        .get("/", || with_fields(steps([Some("begun "), None]), &[TYPE]))
        .test();
    let mut body = send(&stream, "gzip").into_response().body;
    assert!(poll(&mut body).is_ready());
    drop(body);
    assert_eq!(send(&client, "gzip").bytes(), first);
}

#[test]
fn ineligible_responses_are_left_unchanged() {
    const VARY: Option<&str> = Some("accept-encoding");
    let long = || Body::from(text(2000));
    for (status, fields, body, coding, vary) in [
        (200, &[TYPE][..], long(), Some("gzip"), VARY),
        (404, &[TYPE], long(), Some("gzip"), VARY),
        (200, &[("content-type", "TEXT/html; charset=utf-8")], long(), Some("gzip"), VARY),
        (200, &[("content-type", "application/problem+json")], long(), Some("gzip"), VARY),
        (200, &[("content-type", "image/svg+xml")], long(), Some("gzip"), VARY),
        (
            200,
            &[TYPE, ("vary", "Accept-Encoding, origin")],
            long(),
            Some("gzip"),
            Some("Accept-Encoding, origin"),
        ),
        (200, &[TYPE, ("cache-control", "no-cache, private")], long(), Some("gzip"), VARY),
        (200, &[("content-type", "image/png")], long(), None, None),
        (200, &[("content-type", "application/grpc+proto")], long(), None, None),
        (200, &[("content-type", "text")], long(), None, None),
        (200, &[("content-type", "")], long(), None, None),
        (200, &[], long(), None, None),
        (200, &[TYPE], Body::from(text(1023)), None, None),
        (200, &[TYPE], Body::empty(), None, None),
        (204, &[TYPE], Body::empty(), None, None),
        (304, &[TYPE], Body::empty(), None, VARY),
        (206, &[TYPE, ("content-range", "bytes 0-1999/5000")], long(), None, VARY),
        (206, &[("content-type", "image/png")], long(), None, None),
        (416, &[TYPE, ("content-range", "bytes */5000")], long(), None, None),
        (200, &[TYPE, ("content-encoding", "br")], long(), Some("br"), None),
        (200, &[TYPE, ("cache-control", "max-age=1, No-Transform")], long(), None, None),
    ] {
        let response_cell = Cell::new(Some(with_fields(body, fields)));
        let handler = move || {
            let mut response = response_cell.take().expect("the handler is called once");
            response.status = StatusCode::from_u16(status).expect("a status");
            response
        };
        let response = send(&client(Compression::new(), handler), "gzip");
        assert_eq!(
            (response.field("content-encoding"), response.field("vary")),
            (coding, vary),
            "{status} {fields:?}"
        );
        if coding == Some("gzip") {
            assert_eq!(unpack("gzip", &response.bytes()), text(2000).as_bytes());
        }
    }
}

#[test]
fn incompressible_content_is_sent_unencoded() {
    let noise = noise(2000);
    let expected = noise.clone();
    let client = client(Compression::new(), move || with_fields(noise.clone(), &[TYPE]));
    let response = send(&client, "gzip");
    assert_eq!(
        (response.field("content-encoding"), response.field("vary")),
        (None, Some("accept-encoding"))
    );
    assert_eq!(response.bytes(), expected);
}

#[test]
fn fields_are_adjusted_to_the_encoded_content() {
    let fields = &[
        TYPE,
        ("etag", "\"x\""),
        ("accept-ranges", "bytes"),
        ("content-length", "2000"),
        ("content-digest", "sha-256=:x:"),
        ("repr-digest", "sha-256=:x:"),
        ("content-md5", "x"),
    ];
    let client = client(Compression::new(), || with_fields(text(2000), fields));
    let names =
        ["etag", "accept-ranges", "content-length", "content-digest", "repr-digest", "content-md5"];
    let fields_for = |accepted: &str| {
        let response = send(&client, accepted);
        names.map(|name| response.field(name).map(str::to_owned))
    };
    assert_eq!(fields_for("gzip"), [Some("W/\"x\"".to_owned()), None, None, None, None, None]);
    let plain = ["\"x\"", "bytes", "2000", "sha-256=:x:", "sha-256=:x:", "x"]
        .map(|value| Some(value.to_owned()));
    assert_eq!(fields_for("identity"), plain);
    let weak = super::responses::client(Compression::new(), || {
        with_fields(text(2000), &[TYPE, ("etag", "W/\"x\"")])
    });
    assert_eq!(send(&weak, "gzip").field("etag"), Some("W/\"x\""));
    // A 304 has the tag of the response that it stands for, and no length.
    let not_modified = super::responses::client(Compression::new(), || {
        let mut response =
            with_fields(Body::empty(), &[("etag", "\"x\""), ("content-length", "2000")]);
        response.status = StatusCode::NOT_MODIFIED;
        response
    });
    assert_eq!(send(&not_modified, "gzip").field("etag"), Some("W/\"x\""));
    assert_eq!(send(&not_modified, "identity").field("etag"), Some("\"x\""));
    let length = |coding| send(&not_modified, coding).field("content-length").map(str::to_owned);
    assert_eq!((length("gzip"), length("identity")), (None, Some("2000".to_owned())));
}

#[test]
fn head_has_the_fields_of_get_without_compression() {
    let client = client(Compression::new(), || with_fields(text(2000), &[TYPE, ("etag", "\"x\"")]));
    let head = client.head("/").header("accept-encoding", "gzip").send_blocking();
    let get = send(&client, "gzip");
    for name in ["content-encoding", "vary", "etag", "content-type"] {
        assert_eq!(head.field(name), get.field(name), "{name}");
    }
    assert!(head.bytes().is_empty());
}

#[test]
fn no_acceptable_coding_is_a_406_before_the_handler_runs() {
    let calls = Rc::new(Cell::new(0));
    let counter = Rc::clone(&calls);
    let client = client(Compression::new().codings([ContentCoding::Gzip]), move || {
        counter.set(counter.get() + 1);
        with_fields("short", &[])
    });
    for accepted in ["identity;q=0", "*;q=0", "br, identity;q=0"] {
        let response = send(&client, accepted);
        assert_eq!(
            (response.status().as_u16(), response.field("accept-encoding"), calls.get()),
            (406, Some("gzip"), 0)
        );
        assert_eq!(response.field("vary"), Some("accept-encoding"));
        assert!(response.text().contains("/problems/no-acceptable-coding"));
    }
    // If no coding is rejected, even short content without a type gets one.
    let response = send(&client, "gzip, identity;q=0");
    assert_eq!(
        (response.field("content-encoding"), unpack("gzip", &response.bytes())),
        (Some("gzip"), b"short".to_vec())
    );
    assert_eq!(send(&client, "gzip").text(), "short");
}

#[test]
fn a_stream_is_flushed_whenever_it_pauses() {
    for coding in ContentCoding::ALL.iter().map(|coding| coding.name()) {
        let client = client(Compression::new(), || {
            let pieces = [
                Some("data: one\n\n"),
                None,
                None,
                Some("data: "),
                Some("two\n\n"),
                None,
                Some("end"),
            ];
            with_fields(steps(pieces), &[("content-type", "text/event-stream")])
        });
        let mut body = send(&client, coding).into_response().body;
        let (mut packed, mut decoded) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            match poll(&mut body) {
                Poll::Ready(Some(Ok(frame))) => {
                    packed.extend_from_slice(frame.data_ref().expect("data"));
                    decoded.push(String::from_utf8(unpack_so_far(coding, &packed)).expect("text"));
                }
                Poll::Ready(Some(Err(error))) => panic!("{error}"),
                Poll::Ready(None) => break,
                Poll::Pending => {}
            }
        }
        assert_eq!(
            decoded,
            ["data: one\n\n", "data: one\n\ndata: two\n\n", "data: one\n\ndata: two\n\nend"],
            "{coding}"
        );
        assert_eq!(unpack(coding, &packed), decoded[2].as_bytes());
    }
}

#[test]
fn trailers_and_errors_pass_through() {
    let trailers: HeaderMap =
        [(http::header::ETAG, HeaderValue::from_static("1"))].into_iter().collect();
    let sent_trailers = trailers.clone();
    let compressing_client = client(Compression::new(), move || {
        with_fields(
            Body::new(Steps(
                [Some(Ok(Bytes::from_static(b"text")))].into(),
                Some(sent_trailers.clone()),
            )),
            &[TYPE],
        )
    });
    let mut body = send(&compressing_client, "gzip").into_response().body;
    let Poll::Ready(Some(Ok(data))) = poll(&mut body) else { panic!("data first") };
    assert_eq!(unpack("gzip", data.data_ref().expect("data")), b"text");
    let Poll::Ready(Some(Ok(last))) = poll(&mut body) else { panic!("then trailers") };
    assert_eq!(last.into_trailers().ok(), Some(trailers));
    assert!(matches!(poll(&mut body), Poll::Ready(None)));

    let compressing_client = client(Compression::new(), || {
        with_fields(
            Body::new(Steps(
                [Some(Ok(Bytes::from_static(b"text"))), Some(Err("broken"))].into(),
                None,
            )),
            &[TYPE],
        )
    });
    let mut body = send(&compressing_client, "gzip").into_response().body;
    assert!(matches!(poll(&mut body), Poll::Ready(Some(Err(BodyError::Stream(_))))));
    assert!(matches!(poll(&mut body), Poll::Ready(None)), "the body ends without looking complete");
}

#[test]
fn compression_of_large_content_yields() {
    for coding in ContentCoding::ALL.iter().map(|coding| coding.name()) {
        let client = client(Compression::new(), || with_fields(text(1 << 20), &[TYPE]));
        let mut body = send(&client, coding).into_response().body;
        let (mut packed, mut pauses) = (Vec::new(), 0);
        loop {
            match poll(&mut body) {
                Poll::Ready(Some(frame)) => packed.extend_from_slice(
                    frame.expect("the body continues").data_ref().expect("data"),
                ),
                Poll::Ready(None) => break,
                Poll::Pending => pauses += 1,
            }
        }
        assert!(pauses >= 60, "{coding}: {pauses} pauses in 1 MiB");
        assert!(unpack(coding, &packed) == text(1 << 20).as_bytes());
    }
}

#[test]
fn memory_is_reserved_and_low_memory_disables_compression() {
    let before = reserved();
    let client = client(Compression::new(), || with_fields(steps([Some("text"), None]), &[TYPE]));
    for coding in ContentCoding::ALL.iter().map(|coding| coding.name()) {
        let mut body = send(&client, coding).into_response().body;
        assert!(poll(&mut body).is_ready());
        let now = reserved() - before;
        assert!((100 << 10..4 << 20).contains(&now), "{coding}: {now}");
        drop(body);
        assert_eq!(reserved(), before);
    }
    set_limit(Some(before + 1000));
    let reservation = MemoryReservation::new(900);
    let response = send(&client, "gzip");
    assert_eq!(
        (response.field("content-encoding"), response.field("vary")),
        (None, Some("accept-encoding"))
    );
    drop(reservation);
    set_limit(None);
    assert_eq!(send(&client, "gzip").field("content-encoding"), Some("gzip"));
}

#[test]
fn responses_are_excluded_by_marker_and_by_request() {
    let app = App::new()
        .wrap(Compression::new().except(|head| head.path().starts_with("/secret/")))
        .get("/secret/{x}", |Path(_): Path<String>| text(2000))
        .get("/open", || text(2000))
        .get("/marked", || (NoCompression, text(2000)));
    let client = app.test();
    for (path, coding) in [("/secret/1", None), ("/open", Some("gzip")), ("/marked", None)] {
        let response = client.get(path).header("accept-encoding", "gzip").send_blocking();
        assert_eq!(response.field("content-encoding"), coding, "{path}");
    }
}

#[test]
fn problems_are_compressed_as_the_application_renders_them() {
    let fails = || Err::<(), _>(Problem::new(StatusCode::CONFLICT, "taken", text(2000)));
    for is_custom in [false, true] {
        let app = App::new().wrap(Compression::new()).get("/", fails);
        let app =
            if is_custom { app.on_problem(|problem, _| (problem.status, text(3000))) } else { app };
        let response = send(&app.test(), "gzip");
        assert_eq!(
            (response.status().as_u16(), response.field("content-encoding")),
            (409, Some("gzip"))
        );
        let content = String::from_utf8(unpack("gzip", &response.bytes())).expect("text");
        assert!(if is_custom {
            content == text(3000)
        } else {
            content.contains("/problems/taken")
        });
    }
}

#[test]
fn a_rendered_problem_keeps_its_no_compression_marker() {
    let fails = || {
        let problem = Problem::new(StatusCode::CONFLICT, "taken", text(2000));
        let mut response = peregrine_web::response::IntoResponse::into_response(problem);
        response.extensions_mut().insert(NoCompression);
        response
    };
    for is_custom in [false, true] {
        let app = App::new().wrap(Compression::new()).get("/", fails);
        let app =
            if is_custom { app.on_problem(|problem, _| (problem.status, text(3000))) } else { app };
        assert_eq!(send(&app.test(), "gzip").field("content-encoding"), None);
    }
}

#[test]
fn settings_are_checked_and_types_can_be_chosen() {
    let none = App::new().wrap(Compression::new().codings([])).get("/", || "").build();
    assert!(none.expect_err("no coding").to_string().contains("Compression has no coding"));
    let compression =
        Compression::new().content_types(|essence| essence == "image/png").bytes_min(10);
    let client =
        client(compression, || with_fields("p".repeat(50), &[("content-type", "image/PNG; x=y")]));
    assert_eq!(send(&client, "gzip").field("content-encoding"), Some("gzip"));
}

#[test]
fn nested_compression_encodes_once() {
    struct Twice;
    impl peregrine_web::Middleware for Twice {
        async fn run<S: Service>(&self, request: peregrine_web::Request, next: &S) -> Response {
            Compression::new().run(request, next).await
        }
    }
    let client = App::new().wrap(Compression::new()).wrap(Twice).get("/", || text(2000)).test();
    let response = send(&client, "gzip");
    assert_eq!(response.header_values("content-encoding").collect::<Vec<_>>(), ["gzip"]);
    assert_eq!(unpack("gzip", &response.bytes()), text(2000).as_bytes());
}

#[test]
fn memory_is_reserved_for_content_waiting_to_be_compressed() {
    const SIZE: usize = 1 << 20;
    let before = reserved();
    for coding in ContentCoding::ALL.iter().map(|coding| coding.name()) {
        // Content that only this response holds, whole and in one large piece.
        let whole = || Body::from(Bytes::from(noise(SIZE)));
        let piece = || Body::new(Steps([Some(Ok(Bytes::from(noise(SIZE))))].into(), None));
        let bodies: [fn() -> Body; 2] = [whole, piece];
        for new_body in bodies {
            let client = client(Compression::new(), move || with_fields(new_body(), &[TYPE]));
            let mut body = send(&client, coding).into_response().body;
            // It yields between pieces.
            while poll(&mut body).is_pending() {}
            assert!(reserved() - before >= SIZE, "{coding}: {}", reserved() - before);
            while !matches!(poll(&mut body), Poll::Ready(None)) {}
            drop(body);
            assert_eq!(reserved(), before, "{coding}");
        }
    }
}

/// A part that the client has may be encoded, and a date does not tell.
#[test]
fn a_resumption_by_date_is_a_full_response_if_that_would_be_encoded() {
    let echo = |fields: HeaderMap| match fields.get("range") {
        Some(range) => range.to_str().expect("the test sends ASCII").to_owned(),
        None => text(5_000),
    };
    let client = App::new().wrap(Compression::new()).get("/", echo).test();
    let date = "Tue, 14 Nov 2023 22:13:20 GMT";
    let rows = [
        ("gzip", date, "full"),
        ("identity", date, "bytes=9-"),
        ("gzip", "\"tag\"", "bytes=9-"),
        ("gzip", "W/\"tag\"", "bytes=9-"),
    ];
    for (accepted, condition, expected) in rows {
        let request = client.get("/").header("accept-encoding", accepted);
        let request = request.header("range", "bytes=9-").header("if-range", condition);
        let response = request.send_blocking();
        let is_encoded = response.header("content-encoding").is_some();
        let seen = if is_encoded { "full".to_owned() } else { response.text() };
        assert_eq!(seen, expected, "{accepted} {condition}");
    }
}
