//! Sessions that change or end while a request uses them.

use super::{Browser, HOUR, Store, keys, later};
use crate::backend::{Data, started_at};
use crate::clock::{LATER, now};
use crate::{Session, SessionManager};
use peregrine_web::App;
use std::sync::atomic::Ordering::Relaxed;

/// A browser with a session, and the route `/long`, during which `meanwhile` runs.
fn long(
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
    LATER.set(time::Duration::ZERO);
    let mut browser = Browser(client, None);
    browser.get("/visit");
    browser
}

fn changes(session: &Session) {
    session.insert("visits", 2).expect("the value is JSON");
}

/// The name of a case, what the request does, and whether that begins a new session.
type Case = (&'static str, fn(&Session), bool);

#[test]
fn a_session_that_ends_during_a_request_stays_ended() {
    let renews = |session: &Session| session.regenerate();
    let both = |session: &Session| {
        session.regenerate();
        changes(session);
    };
    let begins = |session: &Session| {
        session.destroy();
        changes(session);
    };
    let cases: [Case; 4] = [
        ("a change", changes, false),
        ("another id", renews, false),
        ("another id and a change", both, false),
        ("a new one", begins, true),
    ];
    for (what, then, is_new) in cases {
        let store = Store::default();
        let elsewhere = store.clone();
        // A logout by another request of the same browser.
        let ends = move || elsewhere.0.records.lock().expect("whole").clear();
        let mut browser = long(SessionManager::new(store.clone()), ends, then);
        assert_eq!(store.ids().len(), 1);
        let response = browser.get("/long");
        assert_eq!(response.status(), if is_new { 200 } else { 409 }, "{what}");
        assert_eq!(response.header("set-cookie").is_some(), is_new, "{what}");
        assert_eq!(store.ids().len(), usize::from(is_new), "{what}: the session came back");
    }
}

#[test]
fn who_empties_a_session_says_nothing_to_a_browser_that_has_another() {
    let store = Store::default();
    let elsewhere = store.clone();
    let ends = move || elsewhere.0.records.lock().expect("whole").clear();
    let empties = |session: &Session| assert!(session.remove("visits"));
    let mut browser = long(SessionManager::new(store), ends, empties);
    let response = browser.get("/long");
    assert_eq!((response.status().as_u16(), response.header("set-cookie")), (200, None));
}

#[test]
fn who_only_looks_undoes_nothing_that_another_request_does() {
    let store = Store::default();
    let elsewhere = store.clone();
    let sets = move || {
        for record in elsewhere.0.records.lock().expect("whole").values_mut() {
            record.data.insert("visits".to_owned(), 7.into());
        }
    };
    let mut browser = long(SessionManager::new(store).idle_timeout(10 * HOUR), sets, |_| {});
    later(2 * HOUR);
    let response = browser.get("/long");
    assert!(response.header("set-cookie").is_some(), "the expiry was extended");
    assert_eq!(browser.text("/look"), "7");
    LATER.set(time::Duration::ZERO);
}

#[test]
fn a_request_that_takes_long_uses_its_session_from_its_beginning() {
    let store = Store::default();
    store.0.forgets.store(true, Relaxed);
    for sessions in [SessionManager::new(store), SessionManager::cookie_store(keys())] {
        is_used_from_its_beginning(&sessions.idle_timeout(10 * HOUR));
    }
}

fn is_used_from_its_beginning(sessions: &SessionManager) {
    let mut browser = long(sessions.clone(), || later(2 * HOUR), |_| {});
    later(9 * HOUR);
    assert_eq!(browser.get("/long").status(), 200);
    assert_eq!(browser.text("/look"), "1", "the session was used in time");
    // The request takes longer than the session lives, so the client must learn that the change is
    // lost.
    let mut browser = long(sessions.clone(), || later(11 * HOUR), changes);
    let response = browser.get("/long");
    assert_eq!((response.status().as_u16(), response.header("set-cookie")), (409, None));
    assert!(response.text().contains("/problems/session-ended"), "{}", response.text());
    let mut browser = long(sessions.clone(), || later(11 * HOUR), |_| {});
    assert_eq!(browser.get("/long").status(), 200, "no change is lost");
    assert_eq!(browser.text("/look"), "0");
    LATER.set(time::Duration::ZERO);
}

#[test]
fn a_session_begins_no_second_too_early() {
    LATER.set(time::Duration::ZERO);
    let (before, mut data) = (now(), Data::new());
    SessionManager::new(Store::default()).settings().record_start(&mut data);
    let told = started_at(&data).expect("the begin is recorded");
    assert!(told >= before && told - before < time::Duration::seconds(2), "{told} {before}");
    let kept = data.clone();
    SessionManager::new(Store::default()).settings().record_start(&mut data);
    assert_eq!(data, kept, "the begin does not change");
}

#[test]
fn less_time_counts_for_sessions_that_were_there_before() {
    let store = Store::default();
    let mut browser =
        long(SessionManager::new(store.clone()).idle_timeout(1000 * HOUR), || {}, |_| {});
    let cookie = browser.1.take();
    let mut browser =
        long(SessionManager::new(store.clone()).idle_timeout(10 * HOUR), || {}, |_| {});
    browser.1 = cookie;
    later(HOUR);
    assert_eq!(browser.text("/look"), "1");
    later(11 * HOUR);
    assert_eq!(browser.text("/look"), "0");
    LATER.set(time::Duration::ZERO);
}

#[test]
fn one_that_is_larger_than_it_may_be_by_now_can_be_read() {
    let store = Store::default();
    let cookie = long(SessionManager::new(store.clone()).idle_timeout(10 * HOUR), || {}, |_| {}).1;
    let small = SessionManager::new(store).idle_timeout(10 * HOUR).bytes_max(10);
    let look = |session: Session| session.get::<u32>("visits").unwrap_or(0).to_string();
    let client = App::new().wrap(small).get("/look", look).test();
    later(5 * HOUR);
    let response = Browser(client, cookie).get("/look");
    assert_eq!((response.status().as_u16(), response.text().as_str()), (200, "1"));
    LATER.set(time::Duration::ZERO);
}
