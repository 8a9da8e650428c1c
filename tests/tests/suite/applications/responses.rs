//! Entity tags, cached responses, idempotency keys and early hints through a server on every
//! driver, whose workers share the stores.

use peregrine::auth::{ApiKey, ApiKeyLocation, Authenticate, User};
use peregrine::cache::{Cache, CacheStore, Etag, Idempotency, MemoryIdempotencyStore};
use peregrine::compression::Compression;
use peregrine::prelude::*;
use peregrine::{DriverChoice, RunningServer};
use peregrine_tests::client::{field, receive, send, started, wait_for};
use peregrine_tests::on_both_drivers;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

on_both_drivers! {
    a_page_that_is_known_is_not_sent_again_in_any_coding,
    one_request_is_worked_on_for_all_that_come_together_on_all_workers,
    a_leader_that_leaves_brings_those_that_wait_their_response,
    an_order_of_a_client_that_left_is_carried_out_once,
    a_handler_that_panics_is_called_once,
    hints_come_before_a_response_that_takes_its_time,
    what_is_stale_and_good_still_is_not_made_again,
    users_do_not_receive_each_others_cached_pages,
}

/// Long enough for other requests to arrive meanwhile, even on a busy machine.
const A_WHILE: Duration = Duration::from_millis(400);

/// How often handlers started and ended, on all workers.
#[derive(Clone, Default)]
struct Counts(Arc<[AtomicU32; 2]>);

impl Counts {
    fn begin(&self) -> u32 {
        self.0[0].fetch_add(1, Ordering::SeqCst) + 1
    }

    fn end(&self) {
        self.0[1].fetch_add(1, Ordering::SeqCst);
    }

    fn all(&self) -> (u32, u32) {
        (self.0[0].load(Ordering::SeqCst), self.0[1].load(Ordering::SeqCst))
    }
}

fn start(choice: DriverChoice) -> Option<(RunningServer, Counts)> {
    let (kept, outcomes, counts) =
        (CacheStore::new(), MemoryIdempotencyStore::new(), Counts::default());
    let shared = counts.clone();
    let app = move || {
        let (one, two, three) = (shared.clone(), shared.clone(), shared.clone());
        let report = async move |Path(_): Path<u32>| {
            let number = one.begin();
            tokio::time::sleep(A_WHILE).await;
            one.end();
            ([("cache-control", "max-age=600")], format!("report {number}"))
        };
        let order = async move |body: String| {
            let number = two.begin();
            tokio::time::sleep(A_WHILE).await;
            two.end();
            (StatusCode::CREATED, format!("order {number}: {body}"))
        };
        let broken = move |_: String| -> String {
            let number = three.begin();
            panic!("broken {number}");
        };
        let page = async |interim: Interim| {
            let _ = interim.early_hints(["</style.css>; rel=preload; as=style"]);
            tokio::time::sleep(Duration::from_millis(1)).await;
            Html("<link rel=stylesheet href=/style.css>")
        };
        App::new()
            .scope("/pages", |scope| {
                scope
                    .wrap(Compression::new())
                    .wrap(Etag::new())
                    .get("/words", || "words, ".repeat(2000))
            })
            .scope("/reports", |scope| scope.wrap(Cache::new(kept.clone())).get("/{id}", report))
            .scope("/orders", |scope| {
                let once = Idempotency::new(outcomes.clone()).required();
                scope.wrap(once).post("/", order).post("/broken", broken)
            })
            .get("/hinted", page)
    };
    serve(choice, app).map(|running| (running, counts))
}

fn serve(
    choice: DriverChoice,
    app: impl Fn() -> App + Clone + Send + 'static,
) -> Option<RunningServer> {
    let workers = NonZeroUsize::new(2).expect("the value is not zero");
    started(Server::bind("127.0.0.1:0").driver(choice).workers(workers).quiet().start(app))
}

fn get(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n")
}

fn post(path: &str, key: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nIdempotency-Key: \"{key}\"\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

fn a_page_that_is_known_is_not_sent_again_in_any_coding(choice: DriverChoice) {
    let Some((running, _)) = start(choice) else { return };
    let ask = |fields: &str| receive(send(&running, get("/pages/words", fields)));
    let packed = ask("Accept-Encoding: gzip\r\n");
    let tag = field(&packed, "etag").expect("a tag");
    assert!(tag.starts_with("W/\"") && field(&packed, "content-encoding") == Some("gzip"), "{tag}");
    for coding in ["Accept-Encoding: gzip\r\n", "Accept-Encoding: br\r\n", ""] {
        let known = ask(&format!("{coding}If-None-Match: {tag}\r\n"));
        assert!(known.starts_with("HTTP/1.1 304 ") && known.ends_with("\r\n\r\n"), "{known}");
        assert_eq!(field(&known, "vary"), Some("accept-encoding"));
    }
    let head = get("/pages/words", "").replacen("GET", "HEAD", 1);
    let head = receive(send(&running, &head));
    assert_eq!(field(&head, "etag"), tag.strip_prefix("W/"), "{head}");
    assert!(ask("If-Match: \"other\"\r\n").starts_with("HTTP/1.1 412 "));
}

fn one_request_is_worked_on_for_all_that_come_together_on_all_workers(choice: DriverChoice) {
    let Some((running, counts)) = start(choice) else { return };
    let peers: Vec<_> = (0..40).map(|_| send(&running, get("/reports/1", ""))).collect();
    for peer in peers {
        let answer = receive(peer);
        assert!(answer.ends_with("report 1"), "{answer}");
    }
    assert_eq!(counts.all(), (1, 1));
    let kept = receive(send(&running, get("/reports/1", "")));
    assert!(kept.ends_with("report 1") && field(&kept, "age").is_some(), "{kept}");
    let head = receive(send(&running, get("/reports/1", "").replacen("GET", "HEAD", 1)));
    assert_eq!((field(&head, "content-length"), counts.all()), (Some("8"), (1, 1)), "{head}");
}

fn a_leader_that_leaves_brings_those_that_wait_their_response(choice: DriverChoice) {
    let Some((running, counts)) = start(choice) else { return };
    let leader = send(&running, get("/reports/2", ""));
    wait_for(|| counts.all().0 == 1);
    let waiting: Vec<_> = (0..10).map(|_| send(&running, get("/reports/2", ""))).collect();
    sleep(A_WHILE / 4);
    drop(leader);
    for peer in waiting {
        assert!(receive(peer).ends_with("report 1"));
    }
    assert_eq!(counts.all(), (1, 1));
}

fn an_order_of_a_client_that_left_is_carried_out_once(choice: DriverChoice) {
    let Some((running, counts)) = start(choice) else { return };
    let request = post("/orders", "a", "falcon");
    let leaver = send(&running, &request);
    wait_for(|| counts.all().0 == 1);
    let meanwhile = receive(send(&running, &request));
    assert!(meanwhile.starts_with("HTTP/1.1 409 "), "{meanwhile}");
    drop(leaver);
    wait_for(|| counts.all().1 == 1);
    // The response is stored a moment after the handler has ended.
    let mut again = String::new();
    wait_for(|| !receive(send(&running, &request)).starts_with("HTTP/1.1 409 "));
    for _ in 0..10 {
        again = receive(send(&running, &request));
        assert!(
            again.starts_with("HTTP/1.1 201 ") && again.ends_with("order 1: falcon"),
            "{again}"
        );
    }
    assert_eq!((field(&again, "idempotent-replayed"), counts.all()), (Some("true"), (1, 1)));
    let other = receive(send(&running, post("/orders", "a", "kestrel")));
    assert!(other.starts_with("HTTP/1.1 422 "), "{other}");
    let missing = post("/orders", "a", "falcon").replace("Idempotency-Key: \"a\"\r\n", "");
    assert!(receive(send(&running, &missing)).starts_with("HTTP/1.1 400 "));
}

fn a_handler_that_panics_is_called_once(choice: DriverChoice) {
    let Some((running, counts)) = start(choice) else { return };
    for _ in 0..3 {
        let answer = receive(send(&running, post("/orders/broken", "b", "x")));
        assert!(
            answer.starts_with("HTTP/1.1 500 ") && answer.contains("internal-error"),
            "{answer}"
        );
    }
    assert_eq!(counts.all().0, 1);
}

fn hints_come_before_a_response_that_takes_its_time(choice: DriverChoice) {
    let Some((running, _)) = start(choice) else { return };
    let answer = receive(send(&running, get("/hinted", "")));
    let (hints, rest) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(hints.starts_with("HTTP/1.1 103 ") && hints.contains("</style.css>"), "{answer}");
    assert!(rest.starts_with("HTTP/1.1 200 "), "{answer}");
}

fn what_is_stale_and_good_still_is_not_made_again(choice: DriverChoice) {
    let (store, counts) = (CacheStore::new(), Counts::default());
    let (kept, shared) = (store.clone(), counts.clone());
    let app = move || {
        let counts = shared.clone();
        let page = move |request: Request| {
            let fields = [("cache-control", "max-age=1"), ("etag", "\"1\"")];
            if request.header("if-none-match") == Some("\"1\"") {
                counts.end();
                return (StatusCode::NOT_MODIFIED, fields).into_response();
            }
            counts.begin();
            (fields, "a page").into_response()
        };
        App::new().wrap(Cache::new(kept.clone())).get("/", page)
    };
    let Some(running) = serve(choice, app) else { return };
    wait_for(|| {
        let answer = receive(send(&running, get("/", "")));
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("a page"), "{answer}");
        let known = receive(send(&running, get("/", "If-None-Match: \"1\"\r\n")));
        assert!(known.starts_with("HTTP/1.1 304 "), "{known}");
        counts.all().1 >= 2
    });
    let (made, validated) = counts.all();
    assert_eq!((made, u64::from(validated)), (1, store.stats().revalidated));
}

fn users_do_not_receive_each_others_cached_pages(choice: DriverChoice) {
    let store = CacheStore::new();
    let app = move || {
        let verify = async |ApiKey(key): ApiKey| Some(key);
        let keys = Authenticate::api_key(ApiKeyLocation::header("X-Key"), verify);
        let cache = Cache::new(store.clone()).default_ttl(Duration::from_secs(600));
        let mine = |User(name): User<String>| format!("page of {name}");
        App::new().scope("/mine", |scope| scope.wrap(keys).wrap(cache).get("/", mine))
    };
    let Some(running) = serve(choice, app) else { return };
    for round in 0..3 {
        for name in ["ali", "eve"] {
            let answer = receive(send(&running, get("/mine", &format!("X-Key: {name}\r\n"))));
            assert!(answer.ends_with(&format!("page of {name}")), "{round}: {answer}");
            assert_eq!(field(&answer, "cache-control"), Some("private"));
        }
    }
}
