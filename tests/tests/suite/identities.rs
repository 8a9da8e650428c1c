//! A response for one client is never sent to another, through a whole server on both drivers.

use axum::routing::get;
use peregrine::cache::{Cache, CacheStore, Idempotency, MemoryStore};
use peregrine::prelude::*;
use peregrine::tower::Mount;
use peregrine::web::cookies::{Cookie, CookieKeys, PrivateCookies};
use peregrine::{DriverChoice, Running};
use peregrine_tests::client::{field, receive, send, started};
use peregrine_tests::on_both_drivers;

on_both_drivers! {
    a_page_behind_a_cache_is_sent_to_its_own_client,
    a_payment_with_the_key_of_another_client_is_not_answered_with_its_receipt,
}

fn serve(driver: DriverChoice) -> Option<Running> {
    let (pages, outcomes) = (CacheStore::new(), MemoryStore::new());
    let name = |cookies: &PrivateCookies| cookies.value("user").unwrap_or("nobody".to_owned());
    let app = move || {
        let below = axum::Router::new().route(
            "/me",
            get(async |fields: HeaderMap| {
                let user = fields.get("cookie").and_then(|value| value.to_str().ok());
                ([("cache-control", "max-age=60")], user.unwrap_or("nobody").to_owned())
            }),
        );
        App::new()
            .state(CookieKeys::new(&[3; 32]))
            .get("/in/{name}", |cookies: PrivateCookies, Path(name): Path<String>| {
                (cookies.add(Cookie::build(("user", name)).path("/")), "in")
            })
            .scope("/cached", |scope| {
                let page = move |cookies: PrivateCookies| {
                    ([("cache-control", "max-age=60")], name(&cookies))
                };
                scope.with(Cache::new(pages.clone())).get("/me", page).mount("/below", below)
            })
            .scope("/once", |scope| {
                let pay = move |cookies: PrivateCookies| format!("{} pays", name(&cookies));
                scope.with(Idempotency::new(outcomes.clone())).post("/pay", pay)
            })
    };
    started(Server::bind("127.0.0.1:0").driver(driver).start(app))
}

fn ask(running: &Running, line: &str, cookie: &str) -> String {
    let key = "Idempotency-Key: \"a\"\r\nContent-Length: 0";
    let cookie = if cookie.is_empty() { String::new() } else { format!("Cookie: {cookie}\r\n") };
    let head = format!("{line} HTTP/1.1\r\nHost: a\r\n{cookie}{key}\r\nConnection: close\r\n\r\n");
    receive(send(running, head))
}

fn cookie(running: &Running, name: &str) -> String {
    let answer = ask(running, &format!("GET /in/{name}"), "");
    let set = field(&answer, "set-cookie").expect("a cookie");
    set.split(';').next().expect("split yields at least one item").to_owned()
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").expect("a head").1
}

fn a_page_behind_a_cache_is_sent_to_its_own_client(driver: DriverChoice) {
    let Some(running) = serve(driver) else { return };
    for path in ["/cached/me", "/cached/below/me"] {
        for name in ["ali", "bob", "", "ali"] {
            let cookie = match (name, path) {
                ("", _) => String::new(),
                (_, "/cached/me") => cookie(&running, name),
                _ => name.to_owned(),
            };
            let answer = ask(&running, &format!("GET {path}"), &cookie);
            let expected = if name.is_empty() { "nobody" } else { name };
            assert_eq!(body(&answer), expected, "{path}");
            assert!(name.is_empty() || answer.contains("private\r\n"), "{answer}");
        }
    }
    running.shut_down().expect("the shutdown succeeds");
}

fn a_payment_with_the_key_of_another_client_is_not_answered_with_its_receipt(driver: DriverChoice) {
    let Some(running) = serve(driver) else { return };
    let (ali, bob) = (cookie(&running, "ali"), cookie(&running, "bob"));
    let pay = |cookie: &str| ask(&running, "POST /once/pay", cookie);
    assert_eq!(body(&pay(&ali)), "ali pays");
    let again = pay(&ali);
    assert_eq!((body(&again), field(&again, "idempotent-replayed")), ("ali pays", Some("true")));
    assert!(pay(&bob).starts_with("HTTP/1.1 409 "));
    running.shut_down().expect("the shutdown succeeds");
}
