use super::{noise, pack, text};
use crate::{ContentCoding, Decompression};
use http_body::Body as _;
use peregrine_web::memory::{reserved, set_limit};
use peregrine_web::testing::{TestClient, TestRequest, TestResponse};
use peregrine_web::{App, Body, HandlerExt, Next, Request};
use std::collections::HashMap;
use std::pin::Pin;

fn client() -> TestClient {
    let lengths = async |mut body: Body| {
        let mut total = 0;
        while let Some(piece) = body.next().await {
            total += piece?.len();
        }
        Ok::<_, peregrine_web::BodyError>(total.to_string())
    };
    App::new()
        .wrap(Decompression::new())
        .post("/", |text: String| text)
        .post("/small", (|text: String| text).body_limit(100))
        .post("/large", lengths.body_limit(1 << 30))
        .post("/head", |request: Request| {
            let names: Vec<_> = request
                .headers()
                .map(|(name, _)| String::from_utf8_lossy(name).to_lowercase())
                .collect();
            names.join(" ")
        })
        .test()
}

fn send(client: &TestClient, path: &str, codings: &[&str], body: Vec<u8>) -> TestResponse {
    let request = codings
        .iter()
        .fold(client.post(path), |request, coding| request.header("content-encoding", *coding));
    request.body(body).send_blocking()
}

fn kind(response: &TestResponse) -> String {
    match response.status().as_u16() {
        200 => "200".to_owned(),
        status => {
            let problem: HashMap<String, serde_json::Value> = response.json();
            format!(
                "{status} {}",
                problem["type"].as_str().expect("text").trim_start_matches("/problems/")
            )
        }
    }
}

#[test]
fn bodies_are_decoded_however_they_are_split() {
    let client = client();
    let content = text(10_000);
    for coding in ContentCoding::ALL.iter().copied() {
        let packed = pack(coding, content.as_bytes());
        assert_eq!(
            send(&client, "/", &[coding.name()], packed.clone()).text(),
            content,
            "{coding}"
        );
        for size in [1, 7, 1000] {
            let pieces: Vec<_> = packed.chunks(size).map(<[u8]>::to_vec).collect();
            let request: TestRequest = client.post("/").header("content-encoding", coding.name());
            assert_eq!(request.chunks(pieces).send_blocking().text(), content, "{coding} {size}");
        }
        let empty = pack(coding, b"");
        assert_eq!(send(&client, "/", &[coding.name()], empty).text(), "");
    }
    assert_eq!(send(&client, "/", &["X-GZip"], pack(ContentCoding::Gzip, b"x")).text(), "x");
    assert_eq!(send(&client, "/", &[], b"plain".to_vec()).text(), "plain");
    assert_eq!(send(&client, "/", &["identity", ""], b"plain".to_vec()).text(), "plain");
    assert_eq!(
        send(&client, "/", &["gzip"], Vec::new()).text(),
        "",
        "some clients send empty bodies so"
    );
}

#[test]
fn fields_that_describe_the_encoded_body_are_removed() {
    let response = send(&client(), "/head", &["gzip"], pack(ContentCoding::Gzip, b"x"));
    assert_eq!(response.text(), "host");
    let visible_fields = |coding: &str, body: Vec<u8>| {
        let request = client().post("/head").header("content-encoding", coding);
        let digests = ["content-digest", "repr-digest", "content-md5", "want-content-digest"];
        let request = digests.iter().fold(request, |request, name| request.header(*name, "x"));
        request.body(body).send_blocking().text()
    };
    assert_eq!(visible_fields("gzip", pack(ContentCoding::Gzip, b"x")), "host want-content-digest");
    let all_fields = "host content-digest repr-digest content-md5 want-content-digest";
    assert_eq!(visible_fields("identity", b"x".to_vec()), all_fields, "the body is unchanged");
}

#[test]
fn codings_are_decoded_in_reverse_order_and_limited_in_number() {
    let client = client();
    let twice = pack(ContentCoding::Br, &pack(ContentCoding::Gzip, b"content"));
    for codings in [&["gzip, br"][..], &["gzip", "br"], &["identity, gzip ,, BR"]] {
        assert_eq!(send(&client, "/", codings, twice.clone()).text(), "content");
    }
    assert_eq!(
        kind(&send(&client, "/", &["br, gzip"], twice.clone())),
        "400 invalid-content-coding"
    );
    for codings in [
        &["gzip, gzip, gzip"][..],
        &["compress"],
        &["gzip, lzma"],
        &["gzip;q=1"],
        &["\u{e9}"],
        &["*"],
    ] {
        let response = send(&client, "/", codings, twice.clone());
        assert_eq!(kind(&response), "415 unsupported-content-coding", "{codings:?}");
        assert_eq!(response.field("accept-encoding"), Some("zstd, br, gzip, deflate"));
    }
    let long_name = "x".repeat(3000);
    assert!(send(&client, "/", &[&long_name], Vec::new()).text().len() < 400);
}

#[test]
fn a_decompression_bomb_exceeds_the_ratio_or_the_body_limit() {
    let client = client();
    let zeros = vec![0; 20 << 20];
    for coding in ContentCoding::ALL.iter().copied() {
        let bomb = pack(coding, &zeros);
        assert!(bomb.len() < 40_000, "{coding}");
        let before = reserved();
        let response = send(&client, "/large", &[coding.name()], bomb.clone());
        assert_eq!(kind(&response), "413 body-decompressed-too-large", "{coding}");
        assert_eq!(
            kind(&send(&client, "/small", &[coding.name()], bomb)),
            "413 body-too-large",
            "{coding}"
        );
        assert_eq!(reserved(), before);
        let twice = pack(coding, &pack(coding, &zeros));
        let codings = format!("{coding}, {coding}");
        assert_eq!(
            kind(&send(&client, "/large", &[&codings], twice)),
            "413 body-decompressed-too-large",
            "{coding}"
        );
        // Less dense content is checked by its length.
        let dense = pack(coding, text(3 << 20).as_bytes());
        assert_eq!(
            kind(&send(&client, "/", &[coding.name()], dense.clone())),
            "413 body-too-large",
            "{coding}"
        );
        assert_eq!(send(&client, "/large", &[coding.name()], dense).text(), (3 << 20).to_string());
        assert_eq!(
            send(&client, "/small", &[coding.name()], pack(coding, &[b'a'; 100])).status(),
            200
        );
        assert_eq!(
            kind(&send(&client, "/small", &[coding.name()], pack(coding, &[b'a'; 101]))),
            "413 body-too-large"
        );
    }
}

#[test]
fn a_nonstandard_window_is_rejected_before_it_is_allocated() {
    let mut packed = Vec::new();
    let params = brotli::enc::BrotliEncoderParams {
        large_window: true,
        lgwin: 28,
        ..brotli::enc::BrotliEncoderParams::default()
    };
    brotli::BrotliCompress(&mut &b"text"[..], &mut packed, &params).expect("brotli");
    assert_eq!(packed[0] & 0x7f, 0x11, "a large window");
    assert_eq!(kind(&send(&client(), "/", &["br"], packed)), "400 invalid-content-coding");
}

#[test]
fn decoding_yields_even_without_output() {
    let members = pack(ContentCoding::Gzip, b"").repeat(10_000);
    let pieces = members.len() / (16 * 1024);
    let client = App::new()
        .wrap(async move |mut request: Request, next: Next<'_>| {
            request.body = Body::from(members.clone());
            next.run(request).await
        })
        .wrap(Decompression::new())
        .post("/", async |mut body: Body| {
            let mut pauses = 0;
            std::future::poll_fn(|cx| {
                let polled = Pin::new(&mut body).poll_frame(cx);
                pauses += usize::from(polled.is_pending());
                polled.map(|last| assert!(last.is_none(), "the body is empty"))
            })
            .await;
            pauses.to_string()
        })
        .test();
    let pauses: usize = send(&client, "/", &["gzip"], Vec::new()).text().parse().expect("a number");
    assert!(pauses >= pieces, "{pauses} of {pieces}");
}

#[test]
fn the_encoded_body_is_limited_too() {
    let noise = noise(5000);
    let client = client().body_limit(1000);
    assert_eq!(
        kind(&send(&client, "/large", &["gzip"], pack(ContentCoding::Gzip, &noise))),
        "200",
        "the route's limit is the outermost"
    );
    assert_eq!(
        kind(&send(&client, "/", &["gzip"], pack(ContentCoding::Gzip, &noise))),
        "413 body-too-large"
    );
}

#[test]
fn truncated_or_corrupt_bodies_never_panic() {
    let client = client();
    let content = text(600);
    for coding in ContentCoding::ALL.iter().copied() {
        let packed = pack(coding, content.as_bytes());
        let kind_of = |body: Vec<u8>| kind(&send(&client, "/", &[coding.name()], body));
        for end in 1..packed.len() {
            assert_eq!(
                kind_of(packed[..end].to_vec()),
                "400 invalid-content-coding",
                "{coding} cut at {end}"
            );
        }
        for index in 0..packed.len() {
            for change in [1, 0x80, 0xff] {
                let mut corrupt = packed.clone();
                corrupt[index] ^= change;
                let response = send(&client, "/", &[coding.name()], corrupt);
                // Not every coding has a checksum, and invalid UTF-8 gives another problem.
                assert!(
                    matches!(response.status().as_u16(), 200 | 400 | 413),
                    "{coding} {index}: {}",
                    response.text()
                );
            }
        }
        assert_eq!(
            kind_of([&packed[..], b"garbage behind"].concat()),
            "400 invalid-content-coding",
            "{coding}"
        );
        assert_eq!(kind_of(b"no coding at all".to_vec()), "400 invalid-content-coding", "{coding}");
        assert_eq!(kind_of(vec![0xff; 5000]), "400 invalid-content-coding", "{coding}");
    }
}

#[test]
fn nothing_is_decoded_without_memory() {
    let before = reserved();
    set_limit(Some(before + 100));
    let _reservation = peregrine_web::memory::MemoryReservation::new(99);
    let response = send(&client(), "/", &["gzip"], pack(ContentCoding::Gzip, b"x"));
    set_limit(None);
    assert_eq!(kind(&response), "503 overloaded");
}

#[test]
fn a_zero_ratio_is_reported_at_build() {
    let app = App::new().wrap(Decompression::new().ratio_max(0)).post("/", || "");
    assert!(app.build().expect_err("no body").to_string().contains("ratio_max(0)"));
}
