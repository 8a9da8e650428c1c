//! An issuer that publishes keys, rotates them and fails.

use super::{Claims, ISSUER, Signer, accepted, claims, jwks_document, rejected, verify};
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
    fetches: Arc<AtomicUsize>,
    seconds: Arc<AtomicU64>,
}

impl Issuer {
    fn new(document: String) -> Self {
        let document = Arc::new(Mutex::new(Ok(document)));
        Self { document, fetches: Arc::default(), seconds: Arc::new(AtomicU64::new(1_000)) }
    }

    fn keys(&self) -> RemoteJwks {
        let (issuer, clock) = (self.clone(), self.clone());
        let fetch = move || {
            issuer.fetches.fetch_add(1, SeqCst);
            let document = issuer.document.lock().expect("the lock is not poisoned").clone();
            async move { document }
        };
        RemoteJwks::new(fetch).clock(move || Duration::from_secs(clock.seconds.load(SeqCst)))
    }

    fn verifier(&self) -> JwtVerifier {
        JwtVerifier::new(JwtKeys::remote(self.keys()), ISSUER, "birds")
    }

    fn publish(&self, document: Result<String, String>) {
        *self.document.lock().expect("the lock is not poisoned") = document;
    }

    fn advance(&self, seconds: u64) {
        self.seconds.fetch_add(seconds, SeqCst);
    }

    /// The number of fetches since the last call.
    fn fetches(&self) -> usize {
        self.fetches.swap(0, SeqCst)
    }
}

#[test]
fn fetches_keys_once_and_again_for_an_unknown_key_id() {
    let (old, new) = (Signer::es256("old"), Signer::ed25519("new"));
    let issuer = Issuer::new(jwks_document(&[&old]));
    let verifier = issuer.verifier();
    let (by_old, by_new) = (old.sign(&claims(json!({}))), new.sign(&claims(json!({}))));
    for _ in 0..5 {
        assert_eq!(verify(&verifier.clone(), &by_old), accepted());
    }
    assert_eq!(issuer.fetches(), 1);

    // An unknown key ID triggers a fetch, but not every time.
    issuer.advance(30);
    for number in 0..50 {
        let mut header = new.header();
        header.kid = Some(number.to_string());
        let token = new.sign_with(&header, &claims(json!({})));
        assert_eq!(verify(&verifier, &token), rejected("No key of the issuer fits the token."));
    }
    assert_eq!(issuer.fetches(), 1);

    issuer.publish(Ok(jwks_document(&[&old, &new])));
    assert_eq!(verify(&verifier, &by_new), rejected("No key of the issuer fits the token."));
    issuer.advance(30);
    assert_eq!(verify(&verifier, &by_new), accepted());
    assert_eq!((verify(&verifier, &by_old), issuer.fetches()), (accepted(), 1));

    // A withdrawn key is accepted until the next fetch.
    issuer.publish(Ok(jwks_document(&[&new])));
    issuer.advance(600);
    assert_eq!((verify(&verifier, &by_old), issuer.fetches()), (accepted(), 0));
    issuer.advance(1);
    assert_eq!((verify(&verifier, &by_new), issuer.fetches()), (accepted(), 1));
    assert_eq!(verify(&verifier, &by_old), rejected("No key of the issuer fits the token."));
}

#[test]
fn stale_keys_are_used_while_the_issuer_is_down() {
    let signer = Signer::es256("1");
    let issuer = Issuer::new(jwks_document(&[&signer]));
    let verifier = issuer.verifier();
    let token = signer.sign(&claims(json!({})));
    assert_eq!(verify(&verifier, &token), accepted());
    for broken in
        [Err("it is down".to_owned()), Ok("<html>".to_owned()), Ok("{\"keys\":[]}".to_owned())]
    {
        issuer.publish(broken);
        issuer.advance(700);
        for _ in 0..5 {
            assert_eq!(verify(&verifier, &token), accepted());
        }
    }
    assert_eq!(issuer.fetches(), 4, "one initial fetch and one per attempt");
    issuer.publish(Ok("x".repeat(600 * 1024)));
    issuer.advance(600 + 3_600);
    let unavailable = Err(503);
    let status = || verify(&verifier, &token).map_err(|(status, _)| status);
    assert_eq!([status(), status()], [unavailable.clone(), unavailable]);
    assert_eq!(issuer.fetches(), 1);
    issuer.publish(Ok(jwks_document(&[&signer])));
    assert_eq!(status(), Err(503), "no fetch before the pause is over");
    issuer.advance(30);
    assert_eq!(verify(&verifier, &token), accepted());
}

#[test]
fn concurrent_requests_share_a_fetch_that_survives_cancellation() {
    let signer = Signer::es256("1");
    let (document, fetches) = (jwks_document(&[&signer]), Arc::new(AtomicUsize::new(0)));
    let (release, wait) = tokio::sync::watch::channel(false);
    let counter = Arc::clone(&fetches);
    let fetch = move || {
        counter.fetch_add(1, SeqCst);
        let (mut wait, document) = (wait.clone(), document.clone());
        async move {
            wait.wait_for(|is_released| *is_released).await.map_err(|error| error.to_string())?;
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
            tokio::select! { biased; _ = polled => panic!("the fetch is not released yet"), () = async {} => {} }
        }
        let spawn_verify = || {
            let (verifier, token) = (verifier.clone(), token.clone());
            tokio::task::spawn_local(async move { verifier.verify::<Claims>(&token).await })
        };
        let handles: Vec<_> = (0..20).map(|_| spawn_verify()).collect();
        tokio::task::yield_now().await;
        release.send_replace(true);
        for task in handles {
            assert_eq!(task.await.expect("joined").expect("valid").sub, "alice");
        }
    });
    assert_eq!(fetches.load(SeqCst), 1);
}

#[test]
fn a_silent_issuer_delays_requests_only_until_the_timeout() {
    let fetch = || pending::<Result<String, String>>();
    let keys = RemoteJwks::new(fetch).fetch_timeout(Duration::from_millis(20));
    let verifier = JwtVerifier::new(JwtKeys::remote(keys), ISSUER, "birds");
    let client = App::new().state(verifier).get("/", |Jwt(claims): Jwt<Claims>| claims.sub).test();
    let token = Signer::es256("1").sign(&claims(json!({})));
    let send =
        || client.get("/").header("authorization", format!("Bearer {token}")).send_blocking();
    for _ in 0..2 {
        let response = send();
        assert_eq!(response.status(), 503);
        assert_eq!(response.header("retry-after"), Some("30"));
        assert!(response.text().contains("/problems/token-keys-unavailable"));
    }
}

#[test]
fn an_abandoned_fetch_is_restarted_after_its_timeout() {
    let signer = Signer::es256("1");
    let issuer = Issuer::new(jwks_document(&[&signer]));
    // Each fetch waits until it is released.
    let (release, wait) = tokio::sync::watch::channel(false);
    let (fetch_issuer, clock) = (issuer.clone(), issuer.clone());
    let fetch = move || {
        fetch_issuer.fetches.fetch_add(1, SeqCst);
        let (mut wait, document) =
            (wait.clone(), fetch_issuer.document.lock().expect("the lock is not poisoned").clone());
        async move {
            wait.wait_for(|is_released| *is_released).await.map_err(|error| error.to_string())?;
            document
        }
    };
    let keys =
        RemoteJwks::new(fetch).clock(move || Duration::from_secs(clock.seconds.load(SeqCst)));
    let verifier = JwtVerifier::new(JwtKeys::remote(keys), ISSUER, "birds");
    let token = signer.sign(&claims(json!({})));
    let abandon = || {
        let mut first = Box::pin(verifier.verify::<Claims>(&token));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(first.as_mut().poll(&mut cx).is_pending());
    };
    abandon();
    assert_eq!(issuer.fetches(), 1);
    issuer.advance(4);
    abandon();
    assert_eq!(issuer.fetches(), 0, "the first fetch is still in progress");
    // The fetch was not polled for longer than its timeout: that is not the issuer's fault.
    issuer.advance(60);
    release.send_replace(true);
    assert_eq!((verify(&verifier, &token), issuer.fetches()), (accepted(), 1));
}
