//! Sessions that change or end while a request uses them.

use super::{Browser, HOUR, Store, advance, keys};
use crate::backend::{Data, started_at};
use crate::clock::{TEST_OFFSET, now};
use crate::{Session, SessionManager};
use peregrine_web::App;
use std::sync::atomic::Ordering::Relaxed;

/// A browser with a session, and the route `/long`, during which `meanwhile` runs.
fn browser_with_long_request(
    sessions: SessionManager,
    meanwhile: impl Fn() + Clone + 'static,
    then: impl Fn(&Session) + Clone + 'static,
) -> Browser {
    let long = move |session: Session| {
        meanwhile();
        then(&session);
    };
    let client = App::new()
        .wrap(sessions)
        .get("/visit", |session: Session| session.insert("visits", 1))
        .get("/look", |session: Session| session.get::<u32>("visits").unwrap_or(0).to_string())
        .get("/long", long)
        .test();
    TEST_OFFSET.set(time::Duration::ZERO);
    let mut browser = Browser(client, None);
    browser.get("/visit");
    browser
}

fn modify(session: &Session) {
    session.insert("visits", 2).expect("the value is JSON");
}

/// The name of a case, what the request does, and whether that begins a new session.
type Case = (&'static str, fn(&Session), bool);

#[test]
fn a_session_that_ends_during_a_request_stays_ended() {
    let regenerate = |session: &Session| session.regenerate();
    let regenerate_and_modify = |session: &Session| {
        session.regenerate();
        modify(session);
    };
    let replace = |session: &Session| {
        session.destroy();
        modify(session);
    };
    let cases: [Case; 4] = [
        ("a change", modify, false),
        ("another id", regenerate, false),
        ("another id and a change", regenerate_and_modify, false),
        ("a new one", replace, true),
    ];
    for (case, then, is_new) in cases {
        let store = Store::default();
        let other_handle = store.clone();
        // A logout by another request of the same browser.
        let log_out = move || other_handle.0.records.lock().expect("no panic while locked").clear();
        let mut browser =
            browser_with_long_request(SessionManager::new(store.clone()), log_out, then);
        assert_eq!(store.ids().len(), 1);
        let response = browser.get("/long");
        assert_eq!(response.status(), if is_new { 200 } else { 409 }, "{case}");
        assert_eq!(response.header("set-cookie").is_some(), is_new, "{case}");
        assert_eq!(store.ids().len(), usize::from(is_new), "{case}: the session came back");
    }
}

#[test]
fn emptying_an_ended_session_leaves_the_cookie_alone() {
    let store = Store::default();
    let other_handle = store.clone();
    let log_out = move || other_handle.0.records.lock().expect("no panic while locked").clear();
    let empty = |session: &Session| assert!(session.remove("visits"));
    let mut browser = browser_with_long_request(SessionManager::new(store), log_out, empty);
    let response = browser.get("/long");
    assert_eq!((response.status().as_u16(), response.header("set-cookie")), (200, None));
}

#[test]
fn a_reading_request_does_not_undo_a_concurrent_change() {
    let store = Store::default();
    let other_handle = store.clone();
    let modify_elsewhere = move || {
        for record in other_handle.0.records.lock().expect("no panic while locked").values_mut() {
            record.data.insert("visits".to_owned(), 7.into());
        }
    };
    let mut browser = browser_with_long_request(
        SessionManager::new(store).idle_timeout(10 * HOUR),
        modify_elsewhere,
        |_| {},
    );
    advance(2 * HOUR);
    let response = browser.get("/long");
    assert!(response.header("set-cookie").is_some(), "the expiry was extended");
    assert_eq!(browser.text("/look"), "7");
    TEST_OFFSET.set(time::Duration::ZERO);
}

#[test]
fn a_long_request_extends_its_session_when_it_starts() {
    let store = Store::default();
    store.0.hides_expired.store(true, Relaxed);
    for sessions in [SessionManager::new(store), SessionManager::cookie_store(keys())] {
        assert_extended_at_start(&sessions.idle_timeout(10 * HOUR));
    }
}

fn assert_extended_at_start(sessions: &SessionManager) {
    let mut browser = browser_with_long_request(sessions.clone(), || advance(2 * HOUR), |_| {});
    advance(9 * HOUR);
    assert_eq!(browser.get("/long").status(), 200);
    assert_eq!(browser.text("/look"), "1", "the session was used in time");
    // The request takes longer than the session lives, so the client must be notified that the
    // change is lost.
    let mut browser = browser_with_long_request(sessions.clone(), || advance(11 * HOUR), modify);
    let response = browser.get("/long");
    assert_eq!((response.status().as_u16(), response.header("set-cookie")), (409, None));
    assert!(response.text().contains("/problems/session-ended"), "{}", response.text());
    let mut browser = browser_with_long_request(sessions.clone(), || advance(11 * HOUR), |_| {});
    assert_eq!(browser.get("/long").status(), 200, "no change is lost");
    assert_eq!(browser.text("/look"), "0");
    TEST_OFFSET.set(time::Duration::ZERO);
}

#[test]
fn the_recorded_start_is_rounded_up_to_a_second() {
    TEST_OFFSET.set(time::Duration::ZERO);
    let (before, mut data) = (now(), Data::new());
    SessionManager::new(Store::default()).settings().record_start(&mut data);
    let started = started_at(&data).expect("the start is recorded");
    assert!(
        started >= before && started - before < time::Duration::seconds(2),
        "{started} {before}"
    );
    let first_data = data.clone();
    SessionManager::new(Store::default()).settings().record_start(&mut data);
    assert_eq!(data, first_data, "the start does not change");
}

#[test]
fn a_shorter_idle_timeout_applies_to_existing_sessions() {
    let store = Store::default();
    let mut browser = browser_with_long_request(
        SessionManager::new(store.clone()).idle_timeout(1000 * HOUR),
        || {},
        |_| {},
    );
    let cookie = browser.1.take();
    let mut browser = browser_with_long_request(
        SessionManager::new(store.clone()).idle_timeout(10 * HOUR),
        || {},
        |_| {},
    );
    browser.1 = cookie;
    advance(HOUR);
    assert_eq!(browser.text("/look"), "1");
    advance(11 * HOUR);
    assert_eq!(browser.text("/look"), "0");
    TEST_OFFSET.set(time::Duration::ZERO);
}

#[test]
fn a_session_above_a_lowered_size_limit_can_still_be_read() {
    let store = Store::default();
    let cookie = browser_with_long_request(
        SessionManager::new(store.clone()).idle_timeout(10 * HOUR),
        || {},
        |_| {},
    )
    .1;
    let small = SessionManager::new(store).idle_timeout(10 * HOUR).bytes_max(10);
    let look = |session: Session| session.get::<u32>("visits").unwrap_or(0).to_string();
    let client = App::new().wrap(small).get("/look", look).test();
    advance(5 * HOUR);
    let response = Browser(client, cookie).get("/look");
    assert_eq!((response.status().as_u16(), response.text().as_str()), (200, "1"));
    TEST_OFFSET.set(time::Duration::ZERO);
}
