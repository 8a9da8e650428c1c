//! Forms in handlers: fields, files, limits, and malformed input.

use peregrine_multipart::{Multipart, MultipartForm, MultipartLimits, UploadedFile};
use peregrine_web::testing::{TestClient, TestResponse};
use peregrine_web::{App, HandlerExt, Problem};
use serde::Deserialize;
use serde_json::Value;
use std::cell::RefCell;
use std::io::Read;
use std::rc::Rc;

const TYPE: &str = "multipart/form-data; boundary=b";

/// A form of these fields, each given as the parameters after `form-data; ` and its content.
fn form(fields: &[(&str, &str)]) -> String {
    let field = |(parameters, content): &(&str, &str)| {
        format!("--b\r\nContent-Disposition: form-data; {parameters}\r\n\r\n{content}\r\n")
    };
    fields.iter().map(field).collect::<String>() + "--b--\r\n"
}

fn post(client: &TestClient, form: impl Into<String>) -> TestResponse {
    client.post("/").header("content-type", TYPE).body(form.into()).send_blocking()
}

fn post_in_pieces(client: &TestClient, form: &str, size: usize) -> TestResponse {
    let pieces: Vec<Vec<u8>> = form.as_bytes().chunks(size).map(<[u8]>::to_vec).collect();
    client.post("/").header("content-type", TYPE).chunks(pieces).send_blocking()
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct All {
    bird_name: String,
    count: Option<u32>,
    #[serde(default)]
    wild: bool,
    #[serde(default, rename = "tag")]
    tags: Vec<String>,
    kind: Option<Kind>,
    photo: UploadedFile,
    #[serde(default)]
    more: Vec<UploadedFile>,
    notes: Option<UploadedFile>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Falcon,
    Kite,
}

async fn all(MultipartForm(all): MultipartForm<All>) -> String {
    let more: Vec<_> = all.more.iter().map(|more| more.len()).collect();
    format!(
        "{} {:?} {} {:?} {:?} {}:{} {more:?} {:?}",
        all.bird_name,
        all.count,
        all.wild,
        all.tags,
        all.kind,
        all.photo.file_name().unwrap_or_default(),
        all.photo.len(),
        all.notes.map(|notes| notes.len()),
    )
}

const PHOTO: (&str, &str) = ("name=photo; filename=\"../p.jpg\"", "12345");

#[test]
fn deserializes_text_numbers_options_lists_and_files() {
    let client = App::new().post("/", all).test();
    let full = form(&[
        ("name=birdName", "lanner"),
        ("name=count", " 3 "),
        ("name=wild", "on"),
        ("name=tag", "a"),
        PHOTO,
        ("name=tag", ""),
        ("name=kind", "kite"),
        ("name=more; filename=a", "1"),
        ("name=more; filename=b", "22"),
        ("name=notes; filename=n", ""),
        ("name=unknown", "x"),
        ("name=unknown; filename=u", "x"),
    ]);
    let expected = "lanner Some(3) true [\"a\", \"\"] Some(Kite) ../p.jpg:5 [1, 2] Some(0)";
    assert_eq!(post(&client, &*full).text(), expected);
    for size in [1, 7, 64] {
        assert_eq!(post_in_pieces(&client, &full, size).text(), expected);
    }
    // Browsers send this for fields left empty.
    let empty = form(&[
        ("name=birdName", ""),
        ("name=count", ""),
        ("name=kind", ""),
        PHOTO,
        ("name=more; filename=\"\"", ""),
        ("name=notes; filename=\"\"", ""),
    ]);
    assert_eq!(post(&client, empty).text(), " None false [] None ../p.jpg:5 [] None");
}

#[test]
fn a_mismatch_names_the_field() {
    let client = App::new().post("/", all).test();
    let name = ("name=birdName", "x");
    for (fields, path, reason) in [
        (&[PHOTO][..], "birdName", "missing field"),
        (&[name], "photo", "missing field"),
        (&[name, name, PHOTO], "birdName", "sent 2 times, expected once"),
        (&[name, ("name=count", "-1"), PHOTO], "count", "invalid digit found in string"),
        (&[name, ("name=wild", "yes"), PHOTO], "wild", "expected `true`, `false` or `on`"),
        (&[name, ("name=photo", "text")], "photo", "text, expected a file"),
        (&[name, ("name=photo; filename=\"\"", "")], "photo", "no file was chosen"),
        (&[("name=birdName; filename=x", "x"), PHOTO], "birdName", "a file, expected text"),
        (&[name, ("name=tag; filename=x", "x"), PHOTO], "tag", "a file, expected text"),
        (&[name, ("name=more", "x"), PHOTO], "more", "text, expected a file"),
    ] {
        let response = post(&client, form(fields));
        let problem: Value = response.json();
        assert_eq!((response.status().as_u16(), &problem["path"]), (422, &path.into()), "{path}");
        assert_eq!(problem["detail"], format!("{path}: {reason}"));
    }
    let kind = form(&[name, ("name=kind", "duck"), PHOTO]);
    let problem: Value = post(&client, kind).json();
    assert_eq!(problem["path"], "kind");
    assert!(problem["detail"].as_str().expect("text").contains("`falcon` or `kite`"));
}

#[test]
fn files_work_in_flattened_structs_and_maps() {
    #[derive(Deserialize)]
    struct Outer {
        a: String,
        #[serde(flatten)]
        inner: Inner,
    }
    #[derive(Deserialize)]
    struct Inner {
        text: String,
        file: UploadedFile,
    }
    async fn flat(MultipartForm(form): MultipartForm<Outer>) -> String {
        let Outer { a, inner: Inner { text, file } } = form;
        format!("{a} {text} {:?}", file.as_slice().map(String::from_utf8_lossy))
    }
    type Map = std::collections::BTreeMap<String, UploadedFile>;
    async fn map(MultipartForm(form): MultipartForm<Map>) -> String {
        form.iter().map(|(name, file)| format!("{name}:{} ", file.len())).collect()
    }
    let client = App::new().post("/", flat).test();
    let fields = [("name=file; filename=f", "123"), ("name=a", "x"), ("name=text", "y")];
    assert_eq!(post(&client, form(&fields)).text(), "x y Some(\"123\")");
    // Text from a client is never taken for a file.
    let response = post(&client, form(&[("name=file", "0"), fields[1], fields[2]]));
    assert_eq!(response.status(), 422);
    let client = App::new().post("/", map).test();
    let files = [("name=z; filename=f", "1"), ("name=y; filename=f", "12")];
    assert_eq!(post(&client, form(&files)).text(), "y:2 z:1 ");
}

async fn sizes(mut form: Multipart) -> Result<String, Problem> {
    let mut text = String::new();
    while let Some(mut field) = form.next_field().await? {
        let mut bytes = 0;
        while let Some(piece) = field.chunk().await? {
            bytes += piece.len();
        }
        text += &format!("{}={bytes} ", field.name());
    }
    Ok(text)
}

fn assert_rejected(
    client: &TestClient,
    body: &str,
    status: u16,
    kind: &str,
    detail: &str,
) -> Value {
    let mut problems = [post(client, body), post_in_pieces(client, body, 5)].map(|response| {
        assert_eq!(response.header("content-type"), Some("application/problem+json"));
        assert_eq!(response.status(), status, "{}", response.text());
        response.json::<Value>()
    });
    let [whole, pieces] = &mut problems;
    assert_eq!(whole, pieces, "whole bodies and streams give the same problem");
    assert_eq!(whole["type"], format!("/problems/{kind}"), "{whole}");
    assert!(whole["detail"].as_str().expect("text").contains(detail), "{whole}");
    whole.take()
}

#[test]
fn rejects_invalid_forms() {
    let client = App::new().post("/", sizes).test();
    let whole = form(&[("name=a", "1")]);
    assert_eq!(post(&client, &*whole).text(), "a=1 ");
    for (content_type, status, kind) in [
        ("application/json", 415, "unsupported-media-type"),
        ("multipart/mixed; boundary=b", 415, "unsupported-media-type"),
        ("multipart/form-data", 400, "invalid-multipart"),
        ("multipart/form-data; boundary=", 400, "invalid-multipart"),
        ("multipart/form-data; boundary=b; boundary=c", 400, "invalid-multipart"),
        ("multipart/form-data; boundary=\"b", 400, "invalid-multipart"),
        ("multipart/form-data; boundary=a@b", 400, "invalid-multipart"),
    ] {
        let request = client.post("/").header("content-type", content_type).body(whole.clone());
        let response = request.send_blocking();
        assert_eq!(response.status(), status, "{content_type}: {}", response.text());
        assert_eq!(response.json::<Value>()["type"], format!("/problems/{kind}"));
    }
    assert_eq!(client.post("/").body(whole.clone()).send_blocking().status(), 415);
    let quoted = "Multipart/Form-Data; charset=utf-8; BOUNDARY=\"b\"";
    let request = client.post("/").header("content-type", quoted).body(whole.clone());
    assert_eq!(request.send_blocking().text(), "a=1 ");

    assert_rejected(&client, "", 400, "incomplete-multipart", "ended before");
    assert_rejected(
        &client,
        &whole[..whole.len() - 4],
        400,
        "incomplete-multipart",
        "ended before",
    );
    let two = form(&[("name=a", "1"), ("nam=b", "2")]);
    assert_rejected(&client, &two, 400, "invalid-multipart", "`name`");
    let encoded = form(&[("name=a\r\nContent-Transfer-Encoding: quoted-printable", "=20")]);
    assert_rejected(&client, &encoded, 415, "unsupported-encoding", "Content-Transfer-Encoding");
}

#[test]
fn an_exceeded_limit_is_named_with_the_field() {
    let limits = MultipartLimits { fields_max: 2, field_bytes_max: 3, ..MultipartLimits::DEFAULT };
    let client = App::new().wrap(limits).post("/", sizes).test();
    let large = form(&[("name=a", "123"), ("name=b", "1234")]);
    let problem = assert_rejected(&client, &large, 413, "multipart-too-large", "3 bytes");
    assert_eq!((&problem["limit"], &problem["field"]), (&3.into(), &"b".into()));
    let many = form(&[("name=a", ""), ("name=a", ""), ("name=a", "")]);
    let problem = assert_rejected(&client, &many, 413, "multipart-too-large", "2 fields");
    assert_eq!(problem["limit"], 2);
    // The limit of the body is a different one.
    let client = App::new().post("/", sizes.body_limit(100)).test();
    assert_rejected(
        &client,
        &form(&[("name=a", &"x".repeat(99))]),
        413,
        "body-too-large",
        "100 bytes",
    );
}

#[test]
fn a_handler_can_set_limits_and_observe_progress() {
    async fn watched(form: Multipart) -> Result<String, Problem> {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let sink = Rc::clone(&seen);
        let limits = MultipartLimits { field_bytes_max: 8, ..MultipartLimits::DEFAULT };
        let mut form = form.with_limits(limits).on_progress(move |progress| {
            sink.borrow_mut().push(progress);
        });
        while form.next_field().await?.is_some() {}
        let seen = seen.borrow();
        assert!(seen.is_sorted_by_key(|progress| progress.received));
        let last = seen.last().expect("some progress was reported");
        assert_eq!(*last, form.progress());
        Ok(format!("{:?} {} {}", last.expected, last.received, seen.len()))
    }
    let client = App::new().post("/", watched).test();
    let body = form(&[("name=a", "12345678")]);
    let bytes = body.len();
    assert_eq!(post(&client, &*body).text(), format!("Some({bytes}) {bytes} 1"));
    let pieces = bytes.div_ceil(10);
    assert_eq!(post_in_pieces(&client, &body, 10).text(), format!("None {bytes} {pieces}"));
    assert_eq!(post(&client, form(&[("name=a", "123456789")])).status(), 413);
}

#[test]
fn unread_fields_are_skipped_and_an_absent_form_is_none() {
    async fn names(form: Option<Multipart>) -> Result<String, Problem> {
        let Some(mut form) = form else { return Ok("none".to_owned()) };
        let mut names = String::new();
        while let Some(mut field) = form.next_field().await? {
            names += field.name();
            field.chunk().await?;
        }
        assert!(form.next_field().await?.is_none());
        Ok(names)
    }
    let client = App::new().post("/", names).test();
    let body = form(&[("name=a", &"x".repeat(100)), ("name=b", ""), ("name=c; filename=c", "1")]);
    assert_eq!(post_in_pieces(&client, &body, 9).text(), "abc");
    assert_eq!(client.post("/").send_blocking().text(), "none");
}

#[test]
fn text_must_be_utf8_and_not_declare_another_charset() {
    async fn texts(mut form: Multipart) -> Result<String, Problem> {
        let field = form.next_field().await?.expect("a field");
        field.text().await
    }
    let client = App::new().post("/", texts).test();
    let typed =
        |content_type: &str| form(&[(&*format!("name=a\r\nContent-Type: {content_type}"), "grün")]);
    assert_eq!(post(&client, typed("text/plain; charset=\"UTF-8\"")).text(), "grün");
    assert_eq!(post(&client, typed("text/plain")).text(), "grün");
    let problem: Value = post(&client, typed("text/plain; charset=latin1")).json();
    assert_eq!((&problem["status"], &problem["field"]), (&415.into(), &"a".into()));
    let mut invalid = form(&[("name=a", "?")]).into_bytes();
    *invalid.iter_mut().find(|byte| **byte == b'?').expect("the body has a question mark") = 0xff;
    let response = client.post("/").header("content-type", TYPE).body(invalid).send_blocking();
    assert_eq!(response.status(), 400);
}

/// Non-repeating content.
fn content(bytes: usize) -> String {
    (0..bytes.div_ceil(8)).map(|number| format!("{number:08}")).collect()
}

#[test]
fn a_large_file_is_stored_on_disk_and_has_independent_readers() {
    async fn check(
        MultipartForm(all): MultipartForm<std::collections::BTreeMap<String, UploadedFile>>,
    ) {
        let (large, small) = (&all["large"], &all["small"]);
        assert!(small.is_in_memory() && !large.is_in_memory());
        assert_eq!(large.bytes().await.expect("the file can be read"), content(1_000_000));
        let folder = tempfile::tempdir().expect("a directory");
        let name = large.sanitized_file_name().expect("the file has a name");
        assert_eq!(name, "x");
        let path = folder.path().join(&name);
        for upload in [large, small] {
            upload.save(&path).await.expect("the disk has space");
            assert_eq!(std::fs::metadata(&path).expect("a file").len(), upload.len());
            let again = upload.save(&path).await.expect_err("the file exists already");
            assert_eq!(again.0.kind(), std::io::ErrorKind::AlreadyExists);
            std::fs::remove_file(&path).expect("the test owns the file");
        }
        // Two readers at once, each with its own position.
        let (mut first, mut second) = (large.reader(), large.reader());
        let (mut head, mut all) = ([0; 16], Vec::new());
        first.read_exact(&mut head).expect("the file is long enough");
        second.read_to_end(&mut all).expect("the file can be read");
        assert_eq!((&head[..], all.len()), (&content(16).into_bytes()[..], 1_000_000));
    }
    let client = App::new().post("/", check.body_limit(2 << 20)).test().body_limit(u64::MAX);
    let large = content(1_000_000);
    let body = form(&[("name=large; filename=\"/y/x\"", &large), ("name=small; filename=s", "1")]);
    assert_eq!(post(&client, &*body).status(), 200);
    // With a runtime, other threads do the work.
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let pieces: Vec<Vec<u8>> = body.as_bytes().chunks(4093).map(<[u8]>::to_vec).collect();
    let request = client.post("/").header("content-type", TYPE).chunks(pieces);
    assert_eq!(runtime.block_on(request.send()).status(), 200);
}

/// Each field is small, but their total exceeds the worker's memory limit.
#[test]
fn a_form_over_the_memory_limit_is_rejected() {
    use peregrine_web::memory::{reserved, set_limit};

    #[derive(Deserialize)]
    struct Texts {
        #[serde(rename = "text")]
        texts: Vec<String>,
        #[serde(default, rename = "file")]
        files: Vec<UploadedFile>,
    }
    let count = async |MultipartForm(form): MultipartForm<Texts>| {
        format!("{} and {}", form.texts.len(), form.files.len())
    };
    let client = App::new().post("/", count).test();
    let content = "x".repeat(9_000);
    let texts = vec![("name=\"text\"", &*content); 20];
    let mut files = vec![("name=\"file\"; filename=\"a\"", &*content); 20];
    files.push(("name=\"text\"", "a"));
    let before = reserved();
    for (fields, expected) in [(texts, "20 and 0"), (files, "1 and 20")] {
        for pieces in [100, 5_000, 1_000_000] {
            assert_eq!(post_in_pieces(&client, &form(&fields), pieces).text(), expected);
            set_limit(Some(before + 100_000));
            let rejected = post_in_pieces(&client, &form(&fields), pieces);
            set_limit(None);
            assert_eq!(rejected.status(), 503, "{expected} in pieces of {pieces}");
            assert_eq!(reserved(), before);
        }
    }
}
