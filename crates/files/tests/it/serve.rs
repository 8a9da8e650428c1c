//! Files as responses, without a network.

use peregrine_files::Files;
use peregrine_web::extract::StateRef;
use peregrine_web::testing::{TestClient, TestResponse};
use peregrine_web::{App, Request, Response, TrustedProxies, extract};
use std::fs::{self, File, FileTimes};
use std::path::Path;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// Content of this many bytes in which every position is distinguishable.
fn content(bytes: usize) -> Vec<u8> {
    (0..).flat_map(|number: u32| format!("{number:08} ").into_bytes()).take(bytes).collect()
}

/// Writes a file that was modified a while ago.
fn write(folder: &Path, path: &str, content: impl AsRef<[u8]>) {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().expect("the path has a parent")).expect("the disk has space");
    fs::write(&path, content).expect("the disk has space");
    let file = File::options().write(true).open(&path).expect("the file exists");
    let modified = SystemTime::now() - Duration::from_secs(1000);
    file.set_times(FileTimes::new().set_modified(modified)).expect("times can be set");
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a directory");
    let root = folder.path();
    write(root, "hello.txt", "hello, world");
    write(root, "index.html", "<p>index</p>");
    write(root, "docs/index.html", "<p>docs</p>");
    write(root, "docs/grün & blau.md", "# colours");
    write(root, "empty/sub/x.bin", "x");
    write(root, "large.bin", content(300_000));
    write(root, ".secret", "s");
    write(root, "docs/.git/config", "s");
    folder
}

fn client(files: Files) -> TestClient {
    App::new().subtree("/f", files).get("/f/api", || "api").test()
}

fn get(client: &TestClient, target: &str, headers: &[(&str, &str)]) -> TestResponse {
    let request = client.get(target);
    headers
        .iter()
        .fold(request, |request, (name, value)| request.header(*name, *value))
        .send_blocking()
}

fn status(client: &TestClient, target: &str, headers: &[(&str, &str)]) -> u16 {
    get(client, target, headers).status().as_u16()
}

#[test]
fn serves_files_by_path_and_nothing_else() {
    let folder = folder();
    let client = client(Files::dir(folder.path()));
    let hello = get(&client, "/f/hello.txt", &[]);
    assert_eq!((hello.status().as_u16(), hello.text()), (200, "hello, world".to_owned()));
    assert_eq!(hello.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(hello.header("accept-ranges"), Some("bytes"));
    assert_eq!(hello.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(hello.header("vary"), None);
    assert_eq!(get(&client, "/f/", &[]).text(), "<p>index</p>");
    assert_eq!(get(&client, "/f/docs/", &[]).text(), "<p>docs</p>");
    assert_eq!(get(&client, "/f/docs/gr%C3%BCn%20%26%20blau.md", &[]).text(), "# colours");
    assert_eq!(get(&client, "/f/api", &[]).text(), "api");
    assert_eq!(*get(&client, "/f/large.bin", &[]).bytes(), content(300_000));
    for target in [
        "/f/none",
        "/f/hello.txt/",
        "/f/hello.txt/x",
        "/f/empty/",
        "/f/.secret",
        "/f/docs/.git/config",
        "/f/docs%2findex.html",
        "/f//hello.txt",
        "/f/docs/%00",
        "/f/docs/%ff",
    ] {
        assert_eq!(status(&client, target, &[]), 404, "{target}");
    }
    for target in ["/f/../Cargo.toml", "/f/%2e%2e/Cargo.toml", "/f/docs/..%2f..%2fx"] {
        assert_eq!(status(&client, target, &[]), 400, "{target}");
    }
    for (target, location) in
        [("/f", "/f/"), ("/f/docs", "/f/docs/"), ("/f/docs?a=b", "/f/docs/?a=b")]
    {
        let response = get(&client, target, &[]);
        assert_eq!(
            (response.status().as_u16(), response.header("location")),
            (308, Some(location))
        );
    }
    let post = client.post("/f/hello.txt").send_blocking();
    assert_eq!((post.status().as_u16(), post.header("allow")), (405, Some("GET, HEAD, OPTIONS")));
    for target in ["/f/hello.txt", "/f/none", "/f", "/f/"] {
        let options = client.options(target).send_blocking();
        assert_eq!(
            (options.status().as_u16(), options.header("allow")),
            (204, Some("GET, HEAD, OPTIONS"))
        );
    }
    let long = format!("/f/{}", "x".repeat(5000));
    assert_eq!(status(&client, &long, &[]), 404);
}

#[test]
fn a_redirect_never_leads_to_another_host() {
    let folder = folder();
    let client = App::new().fallback(Files::dir(folder.path())).test();
    assert_eq!(get(&client, "/hello.txt", &[]).text(), "hello, world");
    assert_eq!(get(&client, "/docs", &[]).header("location"), Some("/docs/"));
    for target in ["//docs", "///docs", "/%5cdocs", "//example.org/%2e%2e"] {
        let response = get(&client, target, &[]);
        assert!(
            response.header("location").is_none_or(|location| location == "/docs/"),
            "{target}"
        );
    }
}

#[test]
fn serve_responds_404_for_a_directory() {
    async fn serve(
        files: StateRef<Files>,
        extract::Path(name): extract::Path<String>,
        request: Request,
    ) -> Response {
        files.serve(&request.parts, &name).await
    }
    let folder = folder();
    let files = Files::dir(folder.path()).directory_listing();
    let client = App::new().state(files).get("/reports/{*name}", serve).test();
    assert_eq!(get(&client, "/reports/docs/index.html", &[]).text(), "<p>docs</p>");
    for target in ["/reports/docs", "/reports/docs/", "/reports/empty", "/reports/none"] {
        let response = get(&client, target, &[]);
        assert_eq!(
            (response.status().as_u16(), response.header("location")),
            (404, None),
            "{target}"
        );
    }
}

#[test]
fn a_directory_as_fallback_is_a_404() {
    let folder = folder();
    let client = client(Files::dir(folder.path()).spa_fallback("docs"));
    assert_eq!(status(&client, "/f/none", &[("accept", "text/html")]), 404);
}

#[test]
fn a_redirect_includes_the_prefix_removed_by_a_proxy() {
    let folder = folder();
    let client = App::new().subtree("/f", Files::dir(folder.path())).test();
    let client = client.with_trusted_proxies(TrustedProxies::hops(1).x_forwarded_prefix());
    let response = get(&client, "/f/docs?a", &[("x-forwarded-prefix", "/app")]);
    assert_eq!(response.header("location"), Some("/app/f/docs/?a"));
    assert_eq!(get(&client, "/f/docs", &[]).header("location"), Some("/f/docs/"));
}

#[cfg(unix)]
#[test]
fn links_are_followed_only_if_enabled_and_never_out() {
    use std::os::unix::fs::symlink;
    let (folder, outside) = (folder(), tempfile::tempdir().expect("a directory"));
    write(outside.path(), "secret", "s");
    symlink(outside.path(), folder.path().join("out")).expect("the file system has links");
    symlink("docs", folder.path().join("in")).expect("the file system has links");
    symlink("/etc/hostname", folder.path().join("host")).expect("the file system has links");
    let strict = client(Files::dir(folder.path()));
    let lax = client(Files::dir(folder.path()).follow_symlinks());
    for (target, status_lax) in
        [("/f/in/index.html", 200), ("/f/out/secret", 404), ("/f/host", 404), ("/f/out/", 404)]
    {
        assert_eq!(status(&strict, target, &[]), 404, "{target}");
        assert_eq!(status(&lax, target, &[]), status_lax, "{target}");
    }
    // The directory itself may be a link.
    let link = outside.path().join("current");
    symlink(folder.path(), &link).expect("the file system has links");
    assert_eq!(status(&client(Files::dir(link)), "/f/hello.txt", &[]), 200);
}

#[cfg(unix)]
#[test]
fn special_files_are_not_served() {
    let folder = folder();
    let created = std::process::Command::new("mkfifo").arg(folder.path().join("pipe")).status();
    if created.is_ok_and(|created| created.success()) {
        let client = client(Files::dir(folder.path()));
        assert_eq!(status(&client, "/f/pipe", &[]), 404);
    }
}

#[test]
fn serves_ranges() {
    let folder = folder();
    let client = client(Files::dir(folder.path()));
    for (target, length) in [("/f/hello.txt", 12), ("/f/large.bin", 300_000)] {
        let whole = get(&client, target, &[]).bytes();
        for (range, start, end) in
            [("bytes=1-3", 1, 4), ("bytes=5-", 5, length), ("bytes=-4", length - 4, length)]
        {
            let response = get(&client, target, &[("range", range)]);
            assert_eq!(response.status(), 206, "{range}");
            let expected = format!("bytes {start}-{}/{length}", end - 1);
            assert_eq!(response.header("content-range"), Some(&*expected));
            assert_eq!(response.bytes(), whole[start..end]);
        }
        let response = get(&client, target, &[("range", "bytes=300000-")]);
        let expected = format!("bytes */{length}");
        assert_eq!(response.status(), 416);
        assert_eq!(response.header("content-range"), Some(&*expected));
        assert_eq!(status(&client, target, &[("range", "lines=1-2")]), 200);

        let response = get(&client, target, &[("range", "bytes=0-1,-2")]);
        assert_eq!(response.status(), 206);
        let media_type = response.header("content-type").expect("a type").to_owned();
        let boundary = media_type.strip_prefix("multipart/byteranges; boundary=").expect("parts");
        let inner = get(&client, target, &[]).header("content-type").expect("a type").to_owned();
        let part = |start: usize, end: usize| {
            let head = format!(
                "Content-Type: {inner}\r\nContent-Range: bytes {start}-{}/{length}\r\n\r\n",
                end - 1
            );
            let content = String::from_utf8_lossy(&whole[start..end]).into_owned();
            format!("--{boundary}\r\n{head}{content}\r\n")
        };
        let expected = format!("{}{}--{boundary}--\r\n", part(0, 2), part(length - 2, length));
        assert_eq!(response.text(), expected);
    }
    let head = client.head("/f/large.bin").header("range", "bytes=0-1").send_blocking();
    assert_eq!(head.status(), 200, "RFC 9110 §14.2: HEAD has no ranges");
    write(folder.path(), "nothing", "");
    assert_eq!(status(&client, "/f/nothing", &[]), 200);
    assert_eq!(status(&client, "/f/nothing", &[("range", "bytes=0-")]), 416);
}

#[test]
fn conditions_are_evaluated_in_order_of_precedence() {
    let folder = folder();
    let client = client(Files::dir(folder.path()));
    let response = get(&client, "/f/hello.txt", &[]);
    let tag = response.header("etag").expect("a tag").to_owned();
    let date = response.header("last-modified").expect("a date").to_owned();
    assert!(tag.starts_with('"'), "an old file has a strong tag");
    let (weak, list) = (format!("W/{tag}"), format!("\"a,b\" , W/\"c\",{tag}"));
    let (old, new) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Fri, 31 Dec 2100 23:59:59 GMT");
    let (none, range) = ("\"other\"", ("range", "bytes=0-0"));
    for (fields, expected) in [
        (&[("if-none-match", &*tag)][..], 304),
        (&[("if-none-match", &weak)], 304),
        (&[("if-none-match", &list)], 304),
        (&[("if-none-match", "*")], 304),
        (&[("if-none-match", none)], 200),
        (&[("if-none-match", none), ("if-none-match", &tag)], 304),
        (&[("if-none-match", "no quotes")], 200),
        (&[("if-modified-since", &date)], 304),
        (&[("if-modified-since", new)], 304),
        (&[("if-modified-since", old)], 200),
        (&[("if-modified-since", "yesterday")], 200),
        // If-None-Match takes precedence over the date.
        (&[("if-none-match", none), ("if-modified-since", new)], 200),
        (&[("if-match", &tag)], 200),
        (&[("if-match", "*")], 200),
        (&[("if-match", &weak)], 412),
        (&[("if-match", none)], 412),
        (&[("if-unmodified-since", &date)], 200),
        (&[("if-unmodified-since", old)], 412),
        (&[("if-unmodified-since", "yesterday")], 200),
        // If-Match takes precedence over the date.
        (&[("if-match", &tag), ("if-unmodified-since", old)], 200),
        (&[("if-match", none), ("if-none-match", &tag)], 412),
        (&[("if-match", &tag), ("if-none-match", &tag)], 304),
        (&[range, ("if-range", &tag)], 206),
        (&[range, ("if-range", &date)], 206),
        (&[range, ("if-range", &weak)], 200),
        (&[range, ("if-range", none)], 200),
        (&[range, ("if-range", new)], 200),
        (&[range, ("if-none-match", &tag)], 304),
        (&[("range", "bytes=99-"), ("if-range", none)], 200),
    ] {
        let response = get(&client, "/f/hello.txt", fields);
        assert_eq!(response.status(), expected, "{fields:?}");
        assert_eq!(response.header("etag"), Some(&*tag));
        if expected == 304 {
            assert_eq!(response.header("last-modified"), Some(&*date));
            assert!(response.bytes().is_empty());
        }
    }
    let head = client.head("/f/hello.txt").header("if-none-match", &*tag).send_blocking();
    assert_eq!(head.status(), 304);
}

#[test]
fn a_change_is_noticed_once_the_cached_file_is_stale() {
    let folder = folder();
    let path = folder.path().join("hello.txt");
    let never = client(Files::dir(folder.path()).memory_cache(1 << 20, Duration::ZERO));
    let long = client(Files::dir(folder.path()).memory_cache(1 << 20, Duration::from_secs(3600)));
    let tags = |client| {
        let response = get(client, "/f/hello.txt", &[]);
        (response.header("etag").expect("a tag").to_owned(), response.text())
    };
    let (before, cached) = (tags(&never), tags(&long));
    assert_eq!(before, cached);
    fs::write(&path, "hello, again").expect("the disk has space");
    let after = tags(&never);
    assert!(after.0 != before.0 && after.1 == "hello, again");
    assert!(after.0.starts_with("W/"), "the file may change again within the clock's resolution");
    assert_eq!(tags(&long), cached, "the cached file is fresh for its time");
}

#[test]
fn precompressed_files_are_sent_to_clients_that_accept_them() {
    let folder = folder();
    write(folder.path(), "a.css", "plain");
    write(folder.path(), "a.css.br", "brotli");
    write(folder.path(), "a.css.gz", "gzip");
    write(folder.path(), "b.css", "plain");
    write(folder.path(), "c.png", "picture");
    write(folder.path(), "c.png.br", "no");
    let client = client(Files::dir(folder.path()).serve_precompressed());
    let mut tags = Vec::new();
    for (accept_encoding, text, encoding) in [
        ("gzip, br, zstd", "brotli", Some("br")),
        ("gzip;q=1, br;q=0.5", "gzip", Some("gzip")),
        ("zstd", "plain", None),
        ("", "plain", None),
    ] {
        let response = get(&client, "/f/a.css", &[("accept-encoding", accept_encoding)]);
        assert_eq!(
            (response.text(), response.header("content-encoding")),
            (text.to_owned(), encoding)
        );
        assert_eq!(response.header("vary"), Some("accept-encoding"));
        assert_eq!(response.header("content-type"), Some("text/css; charset=utf-8"));
        tags.push(response.header("etag").expect("a tag").to_owned());
    }
    assert!(tags[0] != tags[1] && tags[1] != tags[2] && tags[2] == tags[3]);
    let part = get(&client, "/f/a.css", &[("accept-encoding", "br"), ("range", "bytes=0-1")]);
    assert_eq!((part.text(), part.header("content-encoding")), ("br".to_owned(), Some("br")));
    let missing = get(&client, "/f/b.css", &[("accept-encoding", "br")]);
    assert_eq!(
        (missing.text(), missing.header("vary")),
        ("plain".to_owned(), Some("accept-encoding"))
    );
    let picture = get(&client, "/f/c.png", &[("accept-encoding", "br")]);
    assert_eq!((picture.text(), picture.header("vary")), ("picture".to_owned(), None));
}

#[test]
fn missing_pages_fall_back_but_missing_assets_do_not() {
    let folder = folder();
    write(folder.path(), "assets/app-3f2a9c1b.js", "js");
    let files = Files::dir(folder.path())
        .spa_fallback("index.html")
        .immutable_hashed_names()
        .cache_control("*.html", "no-cache");
    let client = App::new().get("/api", || "api").fallback(files).test();
    let page = [("accept", "text/html,application/xhtml+xml;q=0.9")];
    for target in ["/", "/users/7", "/users/a.b", "/a//b", "/.hidden"] {
        let response = get(&client, target, &page);
        assert_eq!((response.status().as_u16(), response.text()), (200, "<p>index</p>".to_owned()));
        assert_eq!(response.header("cache-control"), Some("no-cache"), "{target}");
    }
    assert_eq!(status(&client, "/assets/gone-00000000.js", &[("accept", "*/*")]), 404);
    // Caches must not mix up the page and the 404.
    for (target, accept) in [("/gone", "text/html"), ("/gone", "*/*"), ("/a//b", "*/*")] {
        let response = get(&client, target, &[("accept", accept)]);
        assert_eq!(response.header("vary"), Some("accept"), "{target} {accept}");
    }
    assert_eq!(get(&client, "/hello.txt", &page).header("vary"), None);
    let asset = get(&client, "/assets/app-3f2a9c1b.js", &[]);
    let forever = Some("public, max-age=31536000, immutable");
    assert_eq!(asset.header("cache-control"), forever);
    let tag = asset.header("etag").expect("a tag");
    let not_modified = get(&client, "/assets/app-3f2a9c1b.js", &[("if-none-match", tag)]);
    assert_eq!(
        (not_modified.status().as_u16(), not_modified.header("cache-control")),
        (304, forever)
    );
    assert_eq!(get(&client, "/hello.txt", &[]).header("cache-control"), None);
    assert_eq!(get(&client, "/api", &page).text(), "api");
}

#[test]
fn directories_are_listed_only_if_enabled() {
    let folder = folder();
    write(folder.path(), "empty/<b>.txt", "x");
    write(folder.path(), "empty/.hidden", "x");
    let client = client(Files::dir(folder.path()).directory_listing());
    let page = get(&client, "/f/empty/", &[]);
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(page.header("content-security-policy"), Some("default-src 'none'"));
    let text = page.text();
    assert!(text.contains("./sub/") && text.contains("&lt;b&gt;.txt") && !text.contains("hidden"));
    assert_eq!(get(&client, "/f/docs/", &[]).text(), "<p>docs</p>", "an index takes precedence");
    let dots = Files::dir(folder.path()).directory_listing().hidden_files().no_index();
    let dots = self::client(dots);
    assert!(get(&dots, "/f/empty/", &[]).text().contains(".hidden"));
    assert!(get(&dots, "/f/docs/", &[]).text().contains("index.html"));
    assert_eq!(get(&dots, "/f/docs/.git/config", &[]).text(), "s");
}

#[test]
fn a_response_is_unaffected_when_its_file_is_replaced() {
    let folder = folder();
    // Without a cache, so that the next request sees the new file.
    let client = client(Files::dir(folder.path()).memory_cache(0, Duration::ZERO));
    let path = folder.path().join("large.bin");
    let mut request = Some(client.get("/f/large.bin"));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let response =
        runtime.block_on(async { request.take().expect("the request is sent once").send().await });
    let mut body = response.into_response().body;
    let mut whole = Vec::new();
    runtime.block_on(async {
        let first = body.next().await.expect("more data").expect("the file is readable");
        assert!(first.len() < 300_000, "the file is read as the client takes it");
        whole.extend_from_slice(&first);
        let other = folder.path().join("other");
        fs::write(&other, vec![b'x'; 300_000]).expect("the disk has space");
        fs::rename(&other, &path).expect("both are in the same directory");
        while let Some(piece) = body.next().await {
            whole.extend_from_slice(&piece.expect("the file is readable"));
        }
    });
    assert_eq!(whole, content(300_000));
    assert_eq!(get(&client, "/f/large.bin", &[]).bytes()[..10], *b"xxxxxxxxxx");
}

#[test]
fn truncating_a_file_aborts_its_response() {
    let folder = folder();
    let client = client(Files::dir(folder.path()));
    let response = client.get("/f/large.bin").send_blocking();
    let mut body = response.into_response().body;
    peregrine_web::testing::block_on(async {
        let file = File::options().write(true).open(folder.path().join("large.bin"));
        file.expect("the file exists").set_len(10).expect("the file can be truncated");
        let mut bytes = 0;
        let error = loop {
            match body.next().await.expect("the body ends with an error") {
                Ok(piece) => bytes += piece.len(),
                Err(error) => break error,
            }
        };
        assert!(bytes < 300_000, "{error}");
    });
}

#[cfg(feature = "embed")]
#[test]
fn serves_an_embedded_tree() {
    #[derive(rust_embed::RustEmbed)]
    #[folder = "tests/tree"]
    struct Tree;

    let files = Files::embedded::<Tree>().immutable_hashed_names().spa_fallback("index.html");
    let client = client(files);
    let index = get(&client, "/f/", &[]);
    assert_eq!(index.text(), "<p>embedded</p>");
    let tag = index.header("etag").expect("a tag");
    assert_eq!(status(&client, "/f/", &[("if-none-match", tag)]), 304);
    let css = get(&client, "/f/assets/app-3f2a9c1b.css", &[("accept-encoding", "br")]);
    assert_eq!((css.text(), css.header("content-encoding")), ("BR".to_owned(), Some("br")));
    assert!(css.header("cache-control").is_some_and(|value| value.contains("immutable")));
    let part = get(&client, "/f/assets/app-3f2a9c1b.css", &[("range", "bytes=0-3")]);
    assert_eq!((part.status().as_u16(), part.text()), (206, "body".to_owned()));
    assert_eq!(get(&client, "/f/assets", &[]).header("location"), Some("/f/assets/"));
    assert_eq!(status(&client, "/f/none", &[]), 404);
    assert_eq!(get(&client, "/f/none", &[("accept", "text/html")]).text(), "<p>embedded</p>");
    assert_eq!(status(&client, "/f/../Cargo.toml", &[]), 400);
}

#[test]
fn a_large_file_modified_in_place_is_noticed_immediately() {
    let folder = folder();
    let cached = client(Files::dir(folder.path()).memory_cache(1 << 20, Duration::from_secs(3600)));
    let before = get(&cached, "/f/large.bin", &[]);
    let tag = before.header("etag").expect("the response has a tag").to_owned();
    assert_eq!(status(&cached, "/f/large.bin", &[("if-none-match", &tag)]), 304);
    for bytes in [vec![b'Z'; 300_000], vec![b'Y'; 100_000]] {
        write(folder.path(), "large.bin", &bytes);
        let after = get(&cached, "/f/large.bin", &[("if-none-match", &tag)]);
        assert_eq!((after.status().as_u16(), after.bytes().len()), (200, bytes.len()));
        assert!(*after.bytes() == bytes && after.header("etag") != Some(&*tag));
    }
}
