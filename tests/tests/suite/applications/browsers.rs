//! Browser-related features through a server on every driver: cookies, CORS, CSRF and security
//! headers.

use peregrine::middleware::security_headers::Csp;
use peregrine::prelude::*;
use peregrine::{DriverChoice, RunningServer, TrustedProxies};
use peregrine_tests::client::{connect, started};
use peregrine_tests::on_both_drivers;
use std::io::{Read, Write};
use std::num::NonZeroUsize;
use std::time::Duration;

on_both_drivers! {
    pages_of_other_origins_are_answered,
    who_waits_beside_another_has_a_nonce_of_its_own,
    forms_of_other_sites_are_refused_and_the_connection_goes_on,
}

fn start(choice: DriverChoice, app: fn() -> App) -> Option<RunningServer> {
    let server = Server::bind("127.0.0.1:0").driver(choice).workers(NonZeroUsize::MIN).quiet();
    started(server.trusted_proxies(TrustedProxies::hops(1)).start(app))
}

/// Sends requests, the last of which closes the connection, and returns all responses.
fn said(running: &RunningServer, requests: &str) -> String {
    let mut peer = connect(running);
    peer.write_all(requests.as_bytes()).expect("connected");
    let mut text = String::new();
    peer.read_to_string(&mut text).expect("text, and an end");
    text
}

fn fields<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    lines
        .filter(|(present, _)| present.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
        .collect()
}

fn pages_of_other_origins_are_answered(choice: DriverChoice) {
    let app = || {
        let cors = Cors::new().allow_origin("https://app.test").allow_credentials();
        App::new()
            .wrap(cors)
            .wrap(CatchPanic::new())
            .get("/", || "here")
            .put("/falls", async || -> &'static str { panic!("on purpose") })
    };
    let Some(running) = start(choice, app) else { return };
    let text = said(
        &running,
        "OPTIONS /falls HTTP/1.1\r\nHost: a\r\nOrigin: https://app.test\r\nAccess-Control-Request-Method: PUT\r\n\r\n\
         PUT /falls HTTP/1.1\r\nHost: a\r\nOrigin: https://app.test\r\nContent-Length: 0\r\n\r\n\
         DELETE / HTTP/1.1\r\nHost: a\r\nOrigin: https://app.test\r\n\r\n\
         GET /nowhere HTTP/1.1\r\nHost: a\r\nOrigin: https://app.test\r\n\r\n\
         GET / HTTP/1.1\r\nHost: a\r\nOrigin: https://evil.test\r\nConnection: close\r\n\r\n",
    );
    let statuses: Vec<_> = text.split("HTTP/1.1 ").skip(1).map(|part| &part[..3]).collect();
    assert_eq!(statuses, ["204", "500", "405", "404", "200"], "{text}");
    assert_eq!(fields(&text, "access-control-allow-origin"), ["https://app.test"; 4]);
    assert_eq!(fields(&text, "access-control-allow-credentials"), ["true"; 4]);
    assert_eq!(fields(&text, "vary").iter().filter(|value| **value == "origin").count(), 5);
}

fn who_waits_beside_another_has_a_nonce_of_its_own(choice: DriverChoice) {
    async fn page(nonce: CspNonce) -> Html<String> {
        tokio::time::sleep(Duration::from_millis(5)).await;
        Html(format!("<script nonce={nonce}>"))
    }
    let app = || App::new().wrap(SecurityHeaders::new().csp(Csp::strict())).get("/", page);
    let Some(running) = start(choice, app) else { return };
    let mut peers: Vec<_> = (0..20).map(|_| connect(&running)).collect();
    for peer in &mut peers {
        let request = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: https\r\nX-Forwarded-For: 192.0.2.1\r\nConnection: close\r\n\r\n";
        peer.write_all(request.as_bytes()).expect("connected");
    }
    let mut seen = std::collections::HashSet::new();
    for mut peer in peers {
        let mut text = String::new();
        peer.read_to_string(&mut text).expect("text");
        let policy = fields(&text, "content-security-policy");
        let nonce = policy[0]
            .split("'nonce-")
            .nth(1)
            .and_then(|rest| rest.split('\'').next())
            .expect("a nonce");
        assert!(text.ends_with(&format!("<script nonce={nonce}>")), "{text}");
        assert_eq!(fields(&text, "strict-transport-security"), ["max-age=31536000"]);
        assert!(seen.insert(nonce.to_owned()));
    }
}

fn forms_of_other_sites_are_refused_and_the_connection_goes_on(choice: DriverChoice) {
    let app = || {
        let csrf = Csrf::new().tokens(CsrfKey::new(&[7; 32]));
        App::new()
            .wrap(csrf)
            .get("/", |token: CsrfToken| token.to_string())
            .post("/", |text: String| text)
    };
    let Some(running) = start(choice, app) else { return };
    let page = said(&running, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let cookie = fields(&page, "set-cookie")[0].split(';').next().expect("a pair").to_owned();
    let token = page.rsplit("\r\n").next().expect("the page");
    let body = format!("name=Ada&csrf_token={token}");
    let length = body.len();
    let form = "Content-Type: application/x-www-form-urlencoded";
    // The refused body is skipped, and the next request is parsed from its beginning.
    let text = said(
        &running,
        &format!(
            "POST / HTTP/1.1\r\nHost: a\r\nSec-Fetch-Site: cross-site\r\n{form}\r\nContent-Length: {length}\r\n\r\n{body}\
             POST / HTTP/1.1\r\nHost: a\r\nOrigin: http://a\r\n{form}\r\nContent-Length: {length}\r\n\r\n{body}\
             POST / HTTP/1.1\r\nHost: a\r\n{form}\r\nContent-Length: {length}\r\n\r\n{body}\
             POST / HTTP/1.1\r\nHost: a\r\nCookie: {cookie}\r\n{form}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n\
             {length:x}\r\n{body}\r\n0\r\n\r\n"
        ),
    );
    let statuses: Vec<_> = text.split("HTTP/1.1 ").skip(1).map(|part| &part[..3]).collect();
    assert_eq!(statuses, ["403", "200", "403", "200"], "{text}");
    assert!(text.ends_with(&body), "the handler reads the form as it was sent: {text}");
}
