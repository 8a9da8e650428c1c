//! Sessions through the test client, over a third-party store and in cookies.

mod concurrent;

use crate::clock::{TEST_OFFSET, now};
use crate::{Flash, Session, SessionManager};
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::cookies::{CookieKeys, SameSite};
use peregrine_web::extract::Path;
use peregrine_web::testing::{TestClient, TestResponse};
use peregrine_web::{App, Middleware, Problem, Request, Response, Service, TrustedProxies};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use time::OffsetDateTime;
use tower_sessions_core::session::{Id, Record};
use tower_sessions_core::{SessionStore, session_store};
use tower_sessions_memory_store::MemoryStore;

/// A store that counts its calls and fails on demand.
#[derive(Clone, Debug, Default)]
struct Store(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    records: Mutex<HashMap<Id, Record>>,
    loads: AtomicUsize,
    writes: AtomicUsize,
    is_broken: AtomicBool,
    /// Whether `load` hides expired sessions, as other stores do.
    hides_expired: AtomicBool,
}

impl Store {
    fn check(&self) -> session_store::Result<()> {
        match self.0.is_broken.load(Relaxed) {
            true => Err(session_store::Error::Backend("secret: it is broken".to_owned())),
            false => Ok(()),
        }
    }

    fn ids(&self) -> Vec<Id> {
        self.0.records.lock().expect("no panic while locked").keys().copied().collect()
    }

    /// The numbers of loads and saves since the last call.
    fn uses(&self) -> (usize, usize) {
        (self.0.loads.swap(0, Relaxed), self.0.writes.swap(0, Relaxed))
    }
}

#[async_trait::async_trait]
impl SessionStore for Store {
    async fn create(&self, record: &mut Record) -> session_store::Result<()> {
        self.save(record).await
    }

    async fn save(&self, record: &Record) -> session_store::Result<()> {
        self.check()?;
        self.0.writes.fetch_add(1, Relaxed);
        self.0.records.lock().expect("no panic while locked").insert(record.id, record.clone());
        Ok(())
    }

    async fn load(&self, id: &Id) -> session_store::Result<Option<Record>> {
        self.check()?;
        self.0.loads.fetch_add(1, Relaxed);
        // By default it returns expired sessions: the middleware must not rely on the store.
        let hides_expired = self.0.hides_expired.load(Relaxed);
        let record = self.0.records.lock().expect("no panic while locked").get(id).cloned();
        Ok(record.filter(|record| !hides_expired || record.expiry_date > now()))
    }

    async fn delete(&self, id: &Id) -> session_store::Result<()> {
        self.check()?;
        self.0.records.lock().expect("no panic while locked").remove(id);
        Ok(())
    }
}

fn keys() -> CookieKeys {
    CookieKeys::new(&[1; 32])
}

fn app(sessions: SessionManager) -> TestClient {
    App::new()
        .wrap(sessions)
        .get("/none", || "no session used")
        .get("/look", |session: Session| session.get::<u32>("visits").unwrap_or(0).to_string())
        .get("/visit", |session: Session| -> Result<String, Problem> {
            let visits = session.get::<u32>("visits").unwrap_or(0) + 1;
            session.insert("visits", visits)?;
            Ok(visits.to_string())
        })
        .get("/login", |session: Session| -> Result<&str, Problem> {
            session.regenerate();
            session.insert("user", 7)?;
            Ok("in")
        })
        .get("/logout", |session: Session| session.destroy())
        .get("/switch", |session: Session| {
            session.destroy();
            session.insert("visits", 100)
        })
        .get("/forget", |session: Session| session.remove("visits").to_string())
        .get("/say/{text}", |session: Session, Path(text): Path<String>| {
            session.flash("note", text)
        })
        .get("/hear", |session: Session| {
            let all: Vec<_> = session
                .take_flashes()
                .into_iter()
                .map(|Flash { level, message }| level + ":" + &message)
                .collect();
            all.join(" ")
        })
        .get("/grow/{bytes}", |session: Session, Path(bytes): Path<usize>| {
            session.insert("big", "x".repeat(bytes))
        })
        .test()
}

/// A browser that keeps one cookie.
struct Browser(TestClient, Option<String>);

impl Browser {
    fn get(&mut self, path: &str) -> TestResponse {
        let request = self.0.get(path);
        let request = self
            .1
            .iter()
            .fold(request, |request, cookie| request.header("cookie", format!("a=b; {cookie}")));
        let response = request.send_blocking();
        if let Some(line) = response.header("set-cookie") {
            let pair = line.split(';').next().expect("a pair").to_owned();
            self.1 = Some(pair).filter(|_| !line.contains("Max-Age=0"));
        }
        response
    }

    fn text(&mut self, path: &str) -> String {
        self.get(path).text()
    }
}

/// Runs a test with two stores and with cookies.
fn for_each_backend(test: impl Fn(SessionManager, &mut dyn FnMut(SessionManager) -> Browser)) {
    let mut browser = |sessions: SessionManager| Browser(app(sessions), None);
    TEST_OFFSET.set(time::Duration::ZERO);
    for sessions in [
        SessionManager::new(MemoryStore::default()),
        SessionManager::new(Store::default()),
        SessionManager::cookie_store(keys()),
    ] {
        test(sessions, &mut browser);
        TEST_OFFSET.set(time::Duration::ZERO);
    }
}

fn advance(duration: Duration) {
    TEST_OFFSET.set(TEST_OFFSET.get() + duration);
}

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn each_browser_has_a_separate_session() {
    for_each_backend(|sessions, browser| {
        let (mut one, mut other) = (browser(sessions.clone()), browser(sessions));
        assert_eq!(
            [one.text("/visit"), one.text("/visit"), other.text("/visit"), one.text("/look")],
            ["1", "2", "1", "2"]
        );
        assert_ne!(one.1, other.1);
    });
}

#[test]
fn an_empty_session_has_no_cookie_and_does_not_access_the_store() {
    let store = Store::default();
    let mut browser = Browser(app(SessionManager::new(store.clone())), None);
    let response = browser.get("/look");
    assert_eq!(
        (response.header("set-cookie"), response.header("cache-control")),
        (None, Some("private"))
    );
    assert_eq!(response.header("vary"), Some("cookie"));
    assert_eq!(store.uses(), (0, 0));
    browser.get("/visit");
    assert_eq!(store.uses(), (0, 1));
    let response = browser.get("/none");
    assert_eq!(
        (response.header("cache-control"), response.header("vary"), store.uses()),
        (None, None, (0, 0))
    );
    let response = browser.get("/look");
    assert_eq!(
        (response.header("set-cookie"), store.uses()),
        (None, (1, 0)),
        "the session is unchanged"
    );
}

#[test]
fn an_unknown_session_id_is_never_adopted() {
    let store = Store::default();
    let forged = Id::default();
    for cookie in
        [forged.to_string(), "x".to_owned(), String::new(), "A".repeat(5000), "%00".to_owned()]
    {
        let mut browser =
            Browser(app(SessionManager::new(store.clone())), Some(format!("session={cookie}")));
        assert_eq!(browser.text("/visit"), "1");
        assert_eq!(browser.text("/visit"), "2", "the session has a new ID");
    }
    assert!(!store.ids().contains(&forged));
    let sealed = SessionManager::cookie_store(CookieKeys::new(&[2; 32]));
    let mut foreign = Browser(app(sealed), None);
    foreign.get("/visit");
    let mut browser = Browser(app(SessionManager::cookie_store(keys())), foreign.1);
    assert_eq!(browser.text("/visit"), "1", "the cookie was sealed with another key");
    let cookie = browser.1.clone().expect("a cookie");
    for position in ["session=".len(), cookie.len() / 2, cookie.len() - 3] {
        let mut changed = cookie.clone().into_bytes();
        changed[position] = if changed[position] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).expect("ASCII");
        assert_eq!(
            Browser(app(SessionManager::cookie_store(keys())), Some(changed)).text("/look"),
            "0"
        );
    }
}

#[test]
fn regenerate_changes_the_id_and_invalidates_the_old_one() {
    let store = Store::default();
    let mut browser = Browser(app(SessionManager::new(store.clone())), None);
    browser.get("/visit");
    let before = browser.1.clone();
    assert_eq!(browser.text("/login"), "in");
    assert_ne!(browser.1, before);
    assert_eq!((browser.text("/look"), store.ids().len()), ("1".to_owned(), 1), "the data is kept");
    assert_eq!(Browser(browser.0.clone(), before).text("/look"), "0");
    for_each_backend(|sessions, browser| {
        let mut browser = browser(sessions);
        assert_eq!(
            [browser.text("/login"), browser.text("/visit")],
            ["in", "1"],
            "the session may begin with a login"
        );
    });
}

#[test]
fn destroy_deletes_the_session_in_the_store_and_the_browser() {
    let store = Store::default();
    let mut browser = Browser(app(SessionManager::new(store.clone())), None);
    browser.get("/visit");
    let before = browser.1.clone();
    let line =
        browser.get("/logout").header("set-cookie").expect("the cookie is removed").to_owned();
    assert!(
        line.starts_with("session=; ") && line.contains("Max-Age=0") && line.contains("Path=/"),
        "{line}"
    );
    assert!(store.ids().is_empty());
    assert_eq!(Browser(browser.0.clone(), before).text("/look"), "0");
    assert_eq!(browser.get("/logout").header("set-cookie"), None, "there is nothing to remove");
    for_each_backend(|sessions, browser| {
        let mut browser = browser(sessions);
        browser.get("/visit");
        let before = browser.1.clone();
        browser.get("/switch");
        assert_eq!(browser.text("/look"), "100");
        assert_ne!(browser.1, before, "a new session begins at once");
        browser.get("/forget");
        assert_eq!(browser.1, None, "an empty session ends");
    });
}

#[test]
fn flash_messages_are_shown_once_and_limited_in_number() {
    for_each_backend(|sessions, browser| {
        let mut browser = browser(sessions);
        browser.get("/say/saved");
        browser.get("/say/twice");
        assert_eq!([browser.text("/hear"), browser.text("/hear")], ["note:saved note:twice", ""]);
        assert_eq!(browser.1, None, "the session is empty again");
        for number in 0..20 {
            browser.get(&format!("/say/{number}"));
        }
        let shown = browser.text("/hear");
        assert!(shown.starts_with("note:4 ") && shown.ends_with(" note:19"), "{shown}");
    });
}

#[test]
fn a_session_ends_after_the_idle_or_the_absolute_timeout() {
    for_each_backend(|sessions, browser| {
        let sessions = sessions.idle_timeout(10 * HOUR).absolute_timeout(24 * HOUR);
        let mut browser = browser(sessions);
        browser.get("/visit");
        // The session begins at a whole second.
        let second = Duration::from_secs(1);
        for (time, visits, sets_cookie) in [
            (9 * HOUR, "1", true),
            (9 * HOUR, "1", true),
            (5 * HOUR, "1", false),
            (HOUR + second, "0", false),
        ] {
            // A third-party store uses its own clock.
            advance(time);
            let response = browser.get("/look");
            assert_eq!(
                (response.text().as_str(), response.header("set-cookie").is_some()),
                (visits, sets_cookie),
                "{time:?}"
            );
        }
        TEST_OFFSET.set(time::Duration::ZERO);
        assert_eq!(browser.text("/visit"), "2");
        advance(11 * HOUR);
        assert_eq!(browser.text("/look"), "0", "the session was not used in time");
    });
}

#[test]
fn use_is_saved_after_a_tenth_of_the_idle_timeout() {
    let store = Store::default();
    let mut browser =
        Browser(app(SessionManager::new(store.clone()).idle_timeout(10 * HOUR)), None);
    TEST_OFFSET.set(time::Duration::ZERO);
    browser.get("/visit");
    store.uses();
    let mut writes = Vec::new();
    for _ in 0..5 {
        advance(HOUR / 2 + Duration::from_secs(1));
        let sets_cookie = browser.get("/look").header("set-cookie").is_some();
        let (_, writes_of_request) = store.uses();
        assert_eq!(sets_cookie, writes_of_request == 1);
        writes.push(writes_of_request);
    }
    assert_eq!(writes, [0, 1, 0, 1, 0]);
    TEST_OFFSET.set(time::Duration::ZERO);
}

#[test]
fn the_cookie_has_the_configured_attributes() {
    let line = |sessions: SessionManager,
                connection: ConnectionInfo,
                proto: &str,
                is_proxied: bool| {
        let client = app(sessions).with_connection(connection);
        let client =
            if is_proxied { client.with_trusted_proxies(TrustedProxies::hops(1)) } else { client };
        let response = client.get("/visit").header("x-forwarded-proto", proto).send_blocking();
        let line = response.header("set-cookie").expect("a cookie").to_owned();
        line.split_once("; ").expect("attributes").1.to_owned()
    };
    let plain = ConnectionInfo::default;
    let tls = || ConnectionInfo { tls: Some(Arc::default()), ..ConnectionInfo::default() };
    let new = || SessionManager::new(MemoryStore::default());
    let (base, secure) = (
        "HttpOnly; SameSite=Lax; Path=/; Max-Age=103",
        "HttpOnly; SameSite=Lax; Secure; Path=/; Max-Age=103",
    );
    assert!(
        line(new(), plain(), "https", false).starts_with(base),
        "{}",
        line(new(), plain(), "https", false)
    );
    assert!(line(new(), tls(), "http", false).starts_with(secure));
    assert!(line(new(), plain(), "https", true).starts_with(secure));
    assert!(line(new().always_secure(), plain(), "http", false).starts_with(secure));
    let all = new()
        .cookie_path("/shop")
        .cookie_domain("a.test")
        .same_site(SameSite::Strict)
        .expire_on_browser_close();
    assert_eq!(
        line(all, plain(), "", false),
        "HttpOnly; SameSite=Strict; Path=/shop; Domain=a.test"
    );
    for (sessions, word) in [
        (new().cookie_name("a b"), "is not a cookie name"),
        (new().cookie_name("__Host-id"), "__Host-"),
        (new().cookie_name("__Host-id").always_secure().cookie_domain("a.test"), "__Host-"),
        (new().cookie_name("__Secure-id"), "__Secure-"),
        (new().same_site(SameSite::None), "same_site(SameSite::None)"),
        (new().cookie_path("x"), "path("),
        (new().cookie_path("/; x"), "path("),
        (new().cookie_domain(""), "domain(..)"),
        (new().idle_timeout(Duration::ZERO), "more than zero"),
    ] {
        let error =
            App::new().wrap(sessions).get("/", || "").build().expect_err("refused").to_string();
        assert!(error.contains("SessionManager: ") && error.contains(word), "{error}");
    }
    let host = new().cookie_name("__Host-id").always_secure();
    assert!(App::new().wrap(host).get("/", || "").build().is_ok());
}

#[test]
fn a_session_that_is_too_large_is_rejected() {
    let store = Store::default();
    let mut browser = Browser(app(SessionManager::new(store.clone())), None);
    assert_eq!(browser.get("/grow/60000").status(), 200);
    let response = browser.get("/grow/66000");
    assert_eq!(response.status(), 500);
    assert!(response.text().contains("/problems/session-too-large"));
    assert_eq!(
        Browser(app(SessionManager::new(Store::default()).bytes_max(100)), None)
            .get("/grow/200")
            .status(),
        500
    );
    let mut browser = Browser(app(SessionManager::cookie_store(keys())), None);
    assert_eq!(browser.get("/grow/2500").status(), 200);
    assert!(browser.1.as_ref().expect("a cookie").len() < 4096);
    let response = browser.get("/grow/4000");
    assert_eq!((response.status().as_u16(), response.header("set-cookie")), (500, None));
}

#[test]
fn a_failing_store_is_a_problem_without_secrets() {
    let store = Store::default();
    let mut browser = Browser(app(SessionManager::new(store.clone())), None);
    browser.get("/visit");
    store.0.is_broken.store(true, Relaxed);
    let mut new = Browser(browser.0.clone(), None);
    for response in [browser.get("/look"), new.get("/visit")] {
        assert_eq!((response.status().as_u16(), response.header("set-cookie")), (500, None));
        let text = response.text();
        assert!(text.contains("/problems/session-store") && !text.contains("secret"), "{text}");
    }
    assert_eq!(browser.text("/none"), "no session used");
    store.0.is_broken.store(false, Relaxed);
    assert_eq!(browser.text("/visit"), "2");
}

#[test]
fn middleware_and_handler_share_the_session_and_without_a_manager_there_is_none() {
    struct MarksSeen;
    impl Middleware for MarksSeen {
        async fn run<S: Service>(&self, mut request: Request, next: &S) -> Response {
            use peregrine_web::extract::FromRequestParts;
            let session = Session::from_request_parts(&mut request.parts)
                .await
                .expect("the middleware is present");
            session.insert("seen", true).expect("the value is JSON");
            next.call(request).await
        }
    }
    let look = |session: Option<Session>| {
        format!("{:?}", session.map(|session| session.get::<bool>("seen")))
    };
    let app = |with: bool| {
        let app = App::new();
        let app = if with {
            app.wrap(SessionManager::new(MemoryStore::default())).wrap(MarksSeen)
        } else {
            app
        };
        app.get("/", look).get("/must", |session: Session| session.is_empty().to_string()).test()
    };
    assert_eq!(app(true).get("/").send_blocking().text(), "Some(Some(true))");
    assert_eq!(app(false).get("/").send_blocking().text(), "None");
    assert_eq!(app(false).get("/must").send_blocking().status(), 500);
}

#[test]
fn values_that_cannot_be_stored_or_read_are_reported() {
    let handler = |session: Session| -> Result<String, Problem> {
        session.insert("number", 7)?;
        assert_eq!(session.get::<String>("number"), None);
        assert_eq!(session.get::<u8>("number"), Some(7));
        assert!(!session.remove("_peregrine.begun"));
        let unwritable = HashMap::from([((1, 2), 3)]);
        assert_eq!(session.insert("map", unwritable).expect_err("no JSON").status, 500);
        session.insert("_peregrine.begun", OffsetDateTime::UNIX_EPOCH.unix_timestamp())?;
        Ok(String::new())
    };
    let response = App::new()
        .wrap(SessionManager::new(MemoryStore::default()))
        .get("/", handler)
        .test()
        .get("/")
        .send_blocking();
    assert_eq!(response.status(), 500);
    assert!(response.text().contains("/problems/session-value"));
}
