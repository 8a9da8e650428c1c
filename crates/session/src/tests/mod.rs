//! Sessions through the test client, over a third-party store and in cookies.

mod meanwhile;

use crate::clock::{LATER, now};
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
    /// Whether expired sessions are gone, as in other stores.
    forgets: AtomicBool,
}

impl Store {
    fn checked(&self) -> session_store::Result<()> {
        match self.0.is_broken.load(Relaxed) {
            true => Err(session_store::Error::Backend("secret: it is broken".to_owned())),
            false => Ok(()),
        }
    }

    fn ids(&self) -> Vec<Id> {
        self.0.records.lock().expect("whole").keys().copied().collect()
    }

    /// The numbers of loads and writes since the last call.
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
        self.checked()?;
        self.0.writes.fetch_add(1, Relaxed);
        self.0.records.lock().expect("whole").insert(record.id, record.clone());
        Ok(())
    }

    async fn load(&self, id: &Id) -> session_store::Result<Option<Record>> {
        self.checked()?;
        self.0.loads.fetch_add(1, Relaxed);
        // By default it returns expired sessions: the middleware must not rely on the store.
        let forgets = self.0.forgets.load(Relaxed);
        let record = self.0.records.lock().expect("whole").get(id).cloned();
        Ok(record.filter(|record| !forgets || record.expiry_date > now()))
    }

    async fn delete(&self, id: &Id) -> session_store::Result<()> {
        self.checked()?;
        self.0.records.lock().expect("whole").remove(id);
        Ok(())
    }
}

fn keys() -> CookieKeys {
    CookieKeys::new(&[1; 32])
}

fn app(sessions: SessionManager) -> TestClient {
    App::new()
        .wrap(sessions)
        .get("/none", || "nobody asked")
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
                .map(|Flash { level: kind, message: text }| kind + ":" + &text)
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

/// Runs a test over a store and over cookies.
fn everywhere(test: impl Fn(SessionManager, &mut dyn FnMut(SessionManager) -> Browser)) {
    let mut browser = |sessions: SessionManager| Browser(app(sessions), None);
    LATER.set(time::Duration::ZERO);
    for sessions in [
        SessionManager::new(MemoryStore::default()),
        SessionManager::new(Store::default()),
        SessionManager::cookie_store(keys()),
    ] {
        test(sessions, &mut browser);
        LATER.set(time::Duration::ZERO);
    }
}

fn later(duration: Duration) {
    LATER.set(LATER.get() + duration);
}

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn a_visitor_is_remembered_and_another_is_another() {
    everywhere(|sessions, browser| {
        let (mut one, mut other) = (browser(sessions.clone()), browser(sessions));
        assert_eq!(
            [one.text("/visit"), one.text("/visit"), other.text("/visit"), one.text("/look")],
            ["1", "2", "1", "2"]
        );
        assert_ne!(one.1, other.1);
    });
}

#[test]
fn who_is_not_remembered_has_no_cookie_and_costs_the_store_nothing() {
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
fn an_id_that_the_store_does_not_have_is_never_taken_over() {
    let store = Store::default();
    let planted = Id::default();
    for cookie in
        [planted.to_string(), "x".to_owned(), String::new(), "A".repeat(5000), "%00".to_owned()]
    {
        let mut browser =
            Browser(app(SessionManager::new(store.clone())), Some(format!("session={cookie}")));
        assert_eq!(browser.text("/visit"), "1");
        assert_eq!(browser.text("/visit"), "2", "the session has a new ID");
    }
    assert!(!store.ids().contains(&planted));
    let sealed = SessionManager::cookie_store(CookieKeys::new(&[2; 32]));
    let mut foreign = Browser(app(sealed), None);
    foreign.get("/visit");
    let mut browser = Browser(app(SessionManager::cookie_store(keys())), foreign.1);
    assert_eq!(browser.text("/visit"), "1", "the cookie was sealed with another key");
    let cookie = browser.1.clone().expect("a cookie");
    for at in ["session=".len(), cookie.len() / 2, cookie.len() - 3] {
        let mut changed = cookie.clone().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).expect("ASCII");
        assert_eq!(
            Browser(app(SessionManager::cookie_store(keys())), Some(changed)).text("/look"),
            "0"
        );
    }
}

#[test]
fn a_login_changes_the_id_and_the_old_one_is_worth_nothing() {
    let store = Store::default();
    let mut browser = Browser(app(SessionManager::new(store.clone())), None);
    browser.get("/visit");
    let before = browser.1.clone();
    assert_eq!(browser.text("/login"), "in");
    assert_ne!(browser.1, before);
    assert_eq!((browser.text("/look"), store.ids().len()), ("1".to_owned(), 1), "the data is kept");
    assert_eq!(Browser(browser.0.clone(), before).text("/look"), "0");
    everywhere(|sessions, browser| {
        let mut browser = browser(sessions);
        assert_eq!(
            [browser.text("/login"), browser.text("/visit")],
            ["in", "1"],
            "the session may begin with a login"
        );
    });
}

#[test]
fn a_logout_forgets_everything_everywhere() {
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
    everywhere(|sessions, browser| {
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
fn messages_are_shown_once_and_are_few() {
    everywhere(|sessions, browser| {
        let mut browser = browser(sessions);
        browser.get("/say/saved");
        browser.get("/say/twice");
        assert_eq!([browser.text("/hear"), browser.text("/hear")], ["note:saved note:twice", ""]);
        assert_eq!(browser.1, None, "the session is empty again");
        for number in 0..20 {
            browser.get(&format!("/say/{number}"));
        }
        let heard = browser.text("/hear");
        assert!(heard.starts_with("note:4 ") && heard.ends_with(" note:19"), "{heard}");
    });
}

#[test]
fn it_ends_when_it_is_not_used_and_in_any_case_in_the_end() {
    everywhere(|sessions, browser| {
        let sessions = sessions.idle_timeout(10 * HOUR).absolute_timeout(24 * HOUR);
        let mut browser = browser(sessions);
        browser.get("/visit");
        // The session begins at a whole second.
        let second = Duration::from_secs(1);
        for (time, visits, is_told) in [
            (9 * HOUR, "1", true),
            (9 * HOUR, "1", true),
            (5 * HOUR, "1", false),
            (HOUR + second, "0", false),
        ] {
            // A third-party store uses its own clock.
            later(time);
            let response = browser.get("/look");
            assert_eq!(
                (response.text().as_str(), response.header("set-cookie").is_some()),
                (visits, is_told),
                "{time:?}"
            );
        }
        LATER.set(time::Duration::ZERO);
        assert_eq!(browser.text("/visit"), "2");
        later(11 * HOUR);
        assert_eq!(browser.text("/look"), "0", "the session was not used in time");
    });
}

#[test]
fn use_is_written_down_when_a_tenth_of_the_time_is_over() {
    let store = Store::default();
    let mut browser =
        Browser(app(SessionManager::new(store.clone()).idle_timeout(10 * HOUR)), None);
    LATER.set(time::Duration::ZERO);
    browser.get("/visit");
    store.uses();
    let mut writes = Vec::new();
    for _ in 0..5 {
        later(HOUR / 2 + Duration::from_secs(1));
        let is_told = browser.get("/look").header("set-cookie").is_some();
        let (_, written) = store.uses();
        assert_eq!(is_told, written == 1);
        writes.push(written);
    }
    assert_eq!(writes, [0, 1, 0, 1, 0]);
    LATER.set(time::Duration::ZERO);
}

#[test]
fn the_cookie_has_what_protects_it() {
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
fn what_is_too_large_is_not_kept_and_said() {
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
fn a_store_that_fails_is_a_problem_and_tells_no_secrets() {
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
    assert_eq!(browser.text("/none"), "nobody asked");
    store.0.is_broken.store(false, Relaxed);
    assert_eq!(browser.text("/visit"), "2");
}

#[test]
fn middleware_and_handler_have_the_same_session_and_without_sessions_there_is_none() {
    struct Counts;
    impl Middleware for Counts {
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
            app.wrap(SessionManager::new(MemoryStore::default())).wrap(Counts)
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
fn values_that_cannot_be_kept_or_read_are_said_and_do_no_harm() {
    let odd = |session: Session| -> Result<String, Problem> {
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
        .get("/", odd)
        .test()
        .get("/")
        .send_blocking();
    assert_eq!(response.status(), 500);
    assert!(response.text().contains("/problems/session-value"));
}
