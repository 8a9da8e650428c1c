//! An issuer that publishes keys, rotates them and fails.

use super::{Claims, ISSUER, Signer, claims, good, refused, set, verify};
use crate::jwt::{Jwt, JwtKeys, JwtVerifier, RemoteJwks};
use peregrine_web::App;
use serde_json::json;
use std::future::pending;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// An issuer that counts how often its keys are fetched.
#[derive(Clone)]
struct Issuer {
    document: Arc<Mutex<Result<String, String>>>,
    asked: Arc<AtomicUsize>,
    seconds: Arc<AtomicU64>,
}

impl Issuer {
    fn new(document: String) -> Self {
        let document = Arc::new(Mutex::new(Ok(document)));
        Self { document, asked: Arc::default(), seconds: Arc::new(AtomicU64::new(1_000)) }
    }

    fn keys(&self) -> RemoteJwks {
        let (issuer, clock) = (self.clone(), self.clone());
        let fetch = move || {
            issuer.asked.fetch_add(1, SeqCst);
            let document = issuer.document.lock().expect("whole").clone();
            async move { document }
        };
        RemoteJwks::new(fetch).clock(move || Duration::from_secs(clock.seconds.load(SeqCst)))
    }

    fn verifier(&self) -> JwtVerifier {
        JwtVerifier::new(JwtKeys::remote(self.keys()), ISSUER, "birds")
    }

    fn publish(&self, document: Result<String, String>) {
        *self.document.lock().expect("whole") = document;
    }

    fn later(&self, seconds: u64) {
        self.seconds.fetch_add(seconds, SeqCst);
    }

    /// The number of fetches since the last call.
    fn asked(&self) -> usize {
        self.asked.swap(0, SeqCst)
    }
}

#[test]
fn published_keys_are_asked_for_once_and_again_when_they_change() {
    let (old, new) = (Signer::es256("old"), Signer::ed25519("new"));
    let issuer = Issuer::new(set(&[&old]));
    let verifier = issuer.verifier();
    let (by_old, by_new) = (old.sign(&claims(json!({}))), new.sign(&claims(json!({}))));
    for _ in 0..5 {
        assert_eq!(verify(&verifier.clone(), &by_old), good());
    }
    assert_eq!(issuer.asked(), 1);

    // An unknown key ID triggers a fetch, but not every time.
    issuer.later(30);
    for number in 0..50 {
        let mut header = new.header();
        header.kid = Some(number.to_string());
        let token = new.sign_with(&header, &claims(json!({})));
        assert_eq!(verify(&verifier, &token), refused("No key of the issuer fits the token."));
    }
    assert_eq!(issuer.asked(), 1);

    issuer.publish(Ok(set(&[&old, &new])));
    assert_eq!(verify(&verifier, &by_new), refused("No key of the issuer fits the token."));
    issuer.later(30);
    assert_eq!(verify(&verifier, &by_new), good());
    assert_eq!((verify(&verifier, &by_old), issuer.asked()), (good(), 1));

    // A withdrawn key is accepted until the next fetch.
    issuer.publish(Ok(set(&[&new])));
    issuer.later(600);
    assert_eq!((verify(&verifier, &by_old), issuer.asked()), (good(), 0));
    issuer.later(1);
    assert_eq!((verify(&verifier, &by_new), issuer.asked()), (good(), 1));
    assert_eq!(verify(&verifier, &by_old), refused("No key of the issuer fits the token."));
}

#[test]
fn while_the_issuer_is_down_its_keys_count_for_a_while() {
    let signer = Signer::es256("1");
    let issuer = Issuer::new(set(&[&signer]));
    let verifier = issuer.verifier();
    let token = signer.sign(&claims(json!({})));
    assert_eq!(verify(&verifier, &token), good());
    for broken in
        [Err("it is down".to_owned()), Ok("<html>".to_owned()), Ok("{\"keys\":[]}".to_owned())]
    {
        issuer.publish(broken);
        issuer.later(700);
        for _ in 0..5 {
            assert_eq!(verify(&verifier, &token), good());
        }
    }
    assert_eq!(issuer.asked(), 4, "one initial fetch and one per attempt");
    issuer.publish(Ok("x".repeat(600 * 1024)));
    issuer.later(600 + 3_600);
    let gone = Err(503);
    let status = || verify(&verifier, &token).map_err(|(status, _)| status);
    assert_eq!([status(), status()], [gone.clone(), gone]);
    assert_eq!(issuer.asked(), 1);
    issuer.publish(Ok(set(&[&signer])));
    assert_eq!(status(), Err(503), "no fetch before the pause is over");
    issuer.later(30);
    assert_eq!(verify(&verifier, &token), good());
}

#[test]
fn many_requests_ask_once_and_one_that_is_given_up_loses_nothing() {
    let signer = Signer::es256("1");
    let (document, asked) = (set(&[&signer]), Arc::new(AtomicUsize::new(0)));
    let (begin, wait) = tokio::sync::watch::channel(false);
    let counted = Arc::clone(&asked);
    let fetch = move || {
        counted.fetch_add(1, SeqCst);
        let (mut wait, document) = (wait.clone(), document.clone());
        async move {
            wait.wait_for(|is_begun| *is_begun).await.map_err(|error| error.to_string())?;
            Ok::<_, String>(document)
        }
    };
    let verifier = JwtVerifier::new(JwtKeys::remote(RemoteJwks::new(fetch)), ISSUER, "birds");
    let token = signer.sign(&claims(json!({})));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime.expect("a runtime"), async {
        // The first request is cancelled while it waits, as if its client had disconnected.
        for _ in 0..3 {
            let verifier = verifier.clone();
            let mut first = Box::pin(verifier.verify::<Claims>(&token));
            let polled = std::future::poll_fn(|cx| first.as_mut().poll(cx).map(Some));
            tokio::select! { biased; _ = polled => panic!("not answered"), () = async {} => {} }
        }
        let ask = || {
            let (verifier, token) = (verifier.clone(), token.clone());
            tokio::task::spawn_local(async move { verifier.verify::<Claims>(&token).await })
        };
        let all: Vec<_> = (0..20).map(|_| ask()).collect();
        tokio::task::yield_now().await;
        begin.send_replace(true);
        for task in all {
            assert_eq!(task.await.expect("joined").expect("valid").sub, "alice");
        }
    });
    assert_eq!(asked.load(SeqCst), 1);
}

#[test]
fn an_issuer_that_never_answers_holds_nobody_up_for_longer_than_the_timeout() {
    let fetch = || pending::<Result<String, String>>();
    let keys = RemoteJwks::new(fetch).fetch_timeout(Duration::from_millis(20));
    let verifier = JwtVerifier::new(JwtKeys::remote(keys), ISSUER, "birds");
    let client = App::new().state(verifier).get("/", |Jwt(it): Jwt<Claims>| it.sub).test();
    let token = Signer::es256("1").sign(&claims(json!({})));
    let ask = || client.get("/").header("authorization", format!("Bearer {token}")).send_blocking();
    for _ in 0..2 {
        let response = ask();
        assert_eq!(response.status(), 503);
        assert_eq!(response.header("retry-after"), Some("30"));
        assert!(response.text().contains("/problems/token-keys-unavailable"));
    }
}

#[test]
fn a_question_that_was_left_long_ago_is_asked_again() {
    let signer = Signer::es256("1");
    let issuer = Issuer::new(set(&[&signer]));
    // Each fetch waits until it is released.
    let (begin, wait) = tokio::sync::watch::channel(false);
    let (asked, clock) = (issuer.clone(), issuer.clone());
    let fetch = move || {
        asked.asked.fetch_add(1, SeqCst);
        let (mut wait, document) = (wait.clone(), asked.document.lock().expect("whole").clone());
        async move {
            wait.wait_for(|is_begun| *is_begun).await.map_err(|error| error.to_string())?;
            document
        }
    };
    let keys =
        RemoteJwks::new(fetch).clock(move || Duration::from_secs(clock.seconds.load(SeqCst)));
    let verifier = JwtVerifier::new(JwtKeys::remote(keys), ISSUER, "birds");
    let token = signer.sign(&claims(json!({})));
    let leave = || {
        let mut first = Box::pin(verifier.verify::<Claims>(&token));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(first.as_mut().poll(&mut cx).is_pending());
    };
    leave();
    assert_eq!(issuer.asked(), 1);
    issuer.later(4);
    leave();
    assert_eq!(issuer.asked(), 0, "the first fetch is still in progress");
    // The fetch was not polled for longer than its timeout: that is not the issuer's fault.
    issuer.later(60);
    begin.send_replace(true);
    assert_eq!((verify(&verifier, &token), issuer.asked()), (good(), 1));
}
