use super::*;
use crate::extract::test_support::get;
use crate::http::connection::{ClientIdentity, ProxyProtocolTls, TlsInfo};
use crate::http::request::Request;
use crate::{App, Body};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

fn parts() -> Parts {
    get("/").parts
}

fn has_marks(parts: &Parts) -> bool {
    parts.head.identity_reads().bits() > 0
}

#[test]
fn all_watches_see_a_mark_on_any_copy_of_the_head() {
    let parts = parts();
    let (first, copy) = (PrivateResponse::watch(&parts), parts.head.share());
    let second = PrivateResponse::watch(&parts);
    assert!(!PrivateResponse::is_marked(&parts));
    PrivateResponse::mark_source(&copy, IdentitySource::Other);
    assert!(first.sources().has(IdentitySource::Other) && first.sources() == second.sources());
    assert!(PrivateResponse::is_marked(&parts));
}

#[test]
fn marking_credentials_marks_the_response_without_another_source() {
    let parts = parts();
    PrivateResponse::mark_credentials(&parts);
    let sources = PrivateResponse::watch(&parts).sources();
    assert!(PrivateResponse::is_marked(&parts) && !sources.has(IdentitySource::Other));
}

#[test]
fn a_recycled_head_has_no_marks_of_the_previous_request() {
    for keeps_watch in [false, true] {
        let first =
            Request::new(RequestHead::from_pool(), Body::empty(), Rc::default(), Rc::default());
        PrivateResponse::mark(&first.parts);
        let watch = keeps_watch.then(|| PrivateResponse::watch(&first.parts));
        drop(first);
        assert!(!has_marks(
            &Request::new(RequestHead::from_pool(), Body::empty(), Rc::default(), Rc::default())
                .parts
        ));
        drop(watch);
    }
}

/// Reads an identity from a request.
type Read = fn(&Parts);

#[test]
fn every_accessor_of_an_identity_marks_its_source() {
    let reads: [(&str, IdentitySource, Read); 9] = [
        ("header_bytes cookie", IdentitySource::Cookie, |parts| {
            let _ = parts.head.header_bytes("Cookie");
        }),
        ("header_bytes authorization", IdentitySource::Credentials, |parts| {
            let _ = parts.head.header_bytes("authorization");
        }),
        ("header", IdentitySource::Cookie, |parts| {
            let _ = parts.head.header("cookie");
        }),
        ("header_values", IdentitySource::Cookie, |parts| {
            let _ = parts.head.header_values("cookie").next();
        }),
        ("headers", IdentitySource::Cookie, |parts| {
            let _ = parts.head.headers().next();
        }),
        ("to_header_map", IdentitySource::Credentials, |parts| drop(parts.head.to_header_map())),
        ("connection", IdentitySource::Connection, |parts| drop(Rc::clone(parts.connection()))),
        ("mark_forwarded", IdentitySource::Connection, PrivateResponse::mark_forwarded),
        ("mark_delegated", IdentitySource::Cookie, PrivateResponse::mark_delegated),
    ];
    for (name, source, read) in reads {
        let request = parts();
        read(&request);
        let sources = PrivateResponse::watch(&request).sources();
        assert!(sources.has(source), "{name}: {sources:?}");
        assert!(!PrivateResponse::is_marked(&request), "{name}: the request has no identity");
    }
    let other = parts();
    let _ = (
        other.head.header_bytes("accept"),
        other.head.header_bytes_untracked("cookie"),
        other.connection_untracked(),
    );
    let _ = (
        other.head.headers_untracked().next(),
        other.head.header_values_untracked("cookie").next(),
    );
    assert!(!has_marks(&other));
}

fn with_certificate() -> ConnectionInfo {
    let client = ClientIdentity { subject: "CN=alice".to_owned(), ..ClientIdentity::default() };
    let tls = TlsInfo { client_identity: Some(Arc::new(client)), ..TlsInfo::default() };
    ConnectionInfo { tls: Some(Arc::new(tls)), ..ConnectionInfo::default() }
}

#[test]
fn a_certificate_reported_by_a_proxy_identifies_the_client() {
    let tls =
        ProxyProtocolTls { common_name: Some("alice".to_owned()), ..ProxyProtocolTls::default() };
    let proxied = crate::http::connection::ProxyProtocolInfo { tls: Some(tls), ..<_>::default() };
    let proxied =
        ConnectionInfo { proxy_protocol: Some(Arc::new(proxied)), ..ConnectionInfo::default() };
    assert!(identifies_client(&proxied) && identifies_client(&with_certificate()));
    assert!(!identifies_client(&ConnectionInfo::default()));
}

#[test]
fn sends_private_unless_the_handler_sets_a_directive_about_storage() {
    let page = |request: Request| {
        let control = request.parts.head.query().unwrap_or_default().replace('&', ", ");
        let _user = request.header("cookie");
        let mut response = Response::new(http::StatusCode::OK);
        if !control.is_empty() {
            let control = HeaderValue::try_from(control).expect("ASCII");
            response.headers.append(CACHE_CONTROL, control);
        }
        response
    };
    let client = App::new().get("/", page).get("/plain", || "for all").test();
    for (directives, expected) in [
        ("", &["private"][..]),
        ("max-age=60", &["max-age=60", "private"]),
        ("no-cache", &["no-cache", "private"]),
        ("private=%22x-a%22&max-age=5", &["private=%22x-a%22, max-age=5"]),
        ("no-store", &["no-store"]),
        ("max-age=60&PUBLIC", &["max-age=60, PUBLIC"]),
        ("s-maxage=5", &["s-maxage=5"]),
    ] {
        let response = client.get(&format!("/?{directives}")).send_blocking();
        let fields = response.headers().iter().filter(|(name, _)| **name == CACHE_CONTROL);
        let all: Vec<_> = fields.map(|(_, value)| value.to_str().expect("ASCII")).collect();
        assert_eq!(all, expected, "{directives}");
    }
    assert_eq!(
        client.get("/plain").header("cookie", "a=b").send_blocking().header("cache-control"),
        None
    );
}

/// The functions that read an identity without marking the request, and the files that may call
/// them. In those files no response depends on the value, or the caller sets the mark itself.
const UNMARKED: [(&str, &[&str]); 5] = [
    (
        "header_bytes_untracked(",
        // The keys of the cache and of idempotency include these values; rate limits only count
        // them.
        &["cache/src/cache/requester.rs", "cache/src/idempotency/mod.rs", "rate-limit/src/key.rs"],
    ),
    (
        "header_values_untracked(",
        &[
            "cache/src/cache/requester.rs",
            "cache/src/idempotency/key.rs",
            "cache/src/idempotency/mod.rs",
            "web/src/http/head/cookies.rs",
        ],
    ),
    ("cookie_untracked(", &["rate-limit/src/key.rs"]),
    // Mounts and the proxy mark the requests that they forward.
    (
        "headers_untracked(",
        &["tower/src/restore.rs", "proxy/src/headers.rs", "web/src/http/client/forwarded.rs"],
    ),
    (
        "connection_untracked(",
        &[
            "cache/src/cache/mod.rs",
            "cache/src/cache/requester.rs",
            "cache/src/cache/fetch.rs",
            "cache/src/idempotency/mod.rs",
            "cache/src/idempotency/key.rs",
            "middleware/src/access_log.rs",
            "tower/src/extensions.rs",
            "tower/src/layer.rs",
            "tower/src/restore.rs",
            "tower/src/handler.rs",
            "proxy/src/headers.rs",
            "proxy/src/proxy/mod.rs",
            "server/src/observe/span.rs",
            "web/src/app/built/mod.rs",
            "web/src/app/default_responses.rs",
            "web/src/extract/connection.rs",
            "web/src/http/in_flight.rs",
            "websocket/src/upgrade.rs",
        ],
    ),
];

fn collect_source_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the workspace") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect_source_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

#[test]
fn only_the_listed_files_read_identities_without_a_mark() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    // In a published crate the other crates of the workspace are missing.
    if !crates.join("cache/src").exists() {
        return;
    }
    let crates = crates.canonicalize().expect("the folder exists");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&crates).expect("the crates").flatten() {
        let folder = entry.path().join("src");
        if folder.exists() {
            collect_source_files(&folder, &mut files);
        }
    }
    let exempt_files = [
        "web/src/http/private_response/mod.rs",
        "web/src/http/private_response/tests.rs",
        "web/src/http/head/mod.rs",
        "web/src/http/request.rs",
    ];
    // All heads are read through `RequestHead`: reading the index directly would bypass the marks.
    let identity_fields =
        ["KnownField::Cookie", "KnownField::Authorization", "KnownField::ProxyAuthorization"];
    for path in files {
        let name = path
            .strip_prefix(&crates)
            .expect("the file is in one of the crates")
            .to_str()
            .expect("UTF-8")
            .replace('\\', "/");
        if exempt_files.contains(&&*name) || name.starts_with("proto/") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source file");
        for (function, callers) in UNMARKED {
            let is_called = text.contains(&format!(".{function}"));
            assert!(
                !is_called || callers.contains(&&*name),
                "{name} calls {function}..): use the function that marks the response"
            );
        }
        for field in identity_fields {
            assert!(
                !text.contains(field),
                "{name} reads {field} by its index: use RequestHead::header_bytes"
            );
        }
    }
}
