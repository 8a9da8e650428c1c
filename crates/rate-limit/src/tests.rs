//! Limits through the test client, with a test clock.

use crate::{RateLimit, RateLimitKey};
use peregrine_web::connection::{ConnectionAddr, ConnectionInfo};
use peregrine_web::testing::{TestClient, TestResponse, block_on};
use peregrine_web::{App, TrustedProxies};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A clock that tests advance.
#[derive(Clone, Default)]
struct Clock(Arc<AtomicU64>);

impl Clock {
    fn apply_to(&self, limit: RateLimit) -> RateLimit {
        let clock = self.clone();
        limit.clock(move || Duration::from_millis(clock.0.load(Relaxed)))
    }

    fn set(&self, milliseconds: u64) {
        self.0.store(milliseconds, Relaxed);
    }

    fn advance(&self, milliseconds: u64) {
        self.0.fetch_add(milliseconds, Relaxed);
    }
}

fn client(limit: RateLimit) -> TestClient {
    App::new().wrap(limit).get("/", || "hello").test()
}

fn client_from(client: &TestClient, address: &str) -> TestClient {
    let peer = ConnectionAddr::Tcp(address.parse().expect("an address"));
    client.clone().with_connection(ConnectionInfo { peer, ..ConnectionInfo::default() })
}

fn status(client: &TestClient) -> u16 {
    client.get("/").send_blocking().status().as_u16()
}

/// How many requests are allowed before one is rejected.
fn allowed_count(client: &TestClient) -> usize {
    (0..1_000).take_while(|_| status(client) == 200).count()
}

/// The values of `RateLimit-Policy`, `RateLimit` and `Retry-After`.
fn rate_headers(response: &TestResponse) -> (&str, &str, Option<&str>) {
    let field = |name| response.header(name).unwrap_or("");
    (field("ratelimit-policy"), field("ratelimit"), response.header("retry-after"))
}

#[test]
fn a_burst_is_allowed_and_then_the_rate_and_headers_report_the_limit() {
    let clock = Clock::default();
    let client = client(clock.apply_to(RateLimit::per_minute(6).burst(3).name("slow \"one\"")));
    let policy = r#""slow \"one\"";q=3;w=30"#;
    for (status, limit, retry) in [
        (200, r#""slow \"one\"";r=2;t=10"#, None),
        (200, r#""slow \"one\"";r=1;t=20"#, None),
        (200, r#""slow \"one\"";r=0;t=30"#, None),
        (429, r#""slow \"one\"";r=0;t=30"#, Some("10")),
    ] {
        let response = client.get("/").send_blocking();
        assert_eq!(
            (response.status().as_u16(), rate_headers(&response)),
            (status, (policy, limit, retry))
        );
    }
    clock.advance(9_001);
    let response = client.get("/").send_blocking();
    assert_eq!((response.status().as_u16(), rate_headers(&response).2), (429, Some("1")));
    assert_eq!(response.header("content-type"), Some("application/problem+json"));
    let problem: serde_json::Value = serde_json::from_str(&response.text()).expect("JSON");
    assert_eq!(problem["type"], "/problems/rate-limited");
    assert_eq!(problem["violated-policies"], serde_json::json!(["slow \"one\""]));
    clock.advance(999);
    assert_eq!((status(&client), status(&client)), (200, 429));
    clock.advance(60 * 60_000);
    assert_eq!(allowed_count(&client), 3);
}

#[test]
fn clients_are_distinguished_by_ipv4_address_and_ipv6_network() {
    let clock = Clock::default();
    let all = client(clock.apply_to(RateLimit::per_second(2)));
    let one = client_from(&all, "192.0.2.1:1000");
    assert_eq!(allowed_count(&one), 2);
    assert_eq!(
        allowed_count(&client_from(&all, "192.0.2.1:2000")),
        0,
        "another port of the same client"
    );
    assert_eq!(
        allowed_count(&client_from(&all, "[::ffff:192.0.2.1]:1")),
        0,
        "the same address, mapped to IPv6"
    );
    assert_eq!(allowed_count(&client_from(&all, "192.0.2.2:1")), 2);
    assert_eq!(allowed_count(&client_from(&all, "[2001:db8:0:1::1]:1")), 2);
    assert_eq!(allowed_count(&client_from(&all, "[2001:db8:0:1:ffff::2]:1")), 0);
    assert_eq!(allowed_count(&client_from(&all, "[2001:db8:0:2::1]:1")), 2);
    assert_eq!(allowed_count(&all), 2, "clients without an address count together");

    let wide = client(clock.apply_to(RateLimit::per_second(2).ipv6_prefix(48).ipv4_prefix(24)));
    assert_eq!(allowed_count(&client_from(&wide, "[2001:db8:0:1::1]:1")), 2);
    assert_eq!(allowed_count(&client_from(&wide, "[2001:db8:0:2::1]:1")), 0);
    assert_eq!(allowed_count(&client_from(&wide, "192.0.2.1:1")), 2);
    assert_eq!(allowed_count(&client_from(&wide, "192.0.2.2:1")), 0);
}

#[test]
fn behind_trusted_proxies_the_forwarded_address_counts_and_cannot_be_forged() {
    let clock = Clock::default();
    let all = client(clock.apply_to(RateLimit::per_second(2)));
    let allowed = |client: &TestClient, address: &str| {
        let status = || client.get("/").header("x-forwarded-for", address).send_blocking().status();
        (0..10).take_while(|_| status() == 200).count()
    };
    let proxied = client_from(&all, "10.0.0.1:1").with_trusted_proxies(TrustedProxies::hops(1));
    assert_eq!((allowed(&proxied, "192.0.2.1"), allowed(&proxied, "192.0.2.2")), (2, 2));
    assert_eq!(
        allowed(&proxied, "6.6.6.6, 192.0.2.1"),
        0,
        "addresses further left are not trusted"
    );
    let direct = client_from(&all, "192.0.2.9:1");
    assert_eq!((allowed(&direct, "192.0.2.3"), allowed(&direct, "192.0.2.4")), (2, 0));
}

#[test]
fn requests_are_counted_by_header_cookie_function_or_globally() {
    let clock = Clock::default();
    let allowed = |client: &TestClient, name: &str, value: &str| {
        let status = || client.get("/").header(name, value).send_blocking().status();
        (0..10).take_while(|_| status() == 200).count()
    };
    let limit = || clock.apply_to(RateLimit::per_second(2));

    let by_header = client(limit().key_by_header("X-Api-Key"));
    assert_eq!(allowed(&by_header, "x-api-key", "a"), 2);
    assert_eq!(allowed(&by_header, "X-API-KEY", "a"), 0);
    assert_eq!(allowed(&by_header, "x-api-key", "b"), 2);
    assert_eq!(allowed_count(&by_header), 2, "by address if the field is absent");
    assert_eq!(allowed(&client_from(&by_header, "192.0.2.1:1"), "x-other", "a"), 2);

    let by_credentials = client(limit().key_by_header("authorization"));
    assert_eq!(allowed(&by_credentials, "authorization", "Bearer a"), 2);
    for spelling in ["bearer a", "BEARER   a", "Bearer a"] {
        assert_eq!(allowed(&by_credentials, "authorization", spelling), 0, "{spelling}");
    }
    assert_eq!(allowed(&by_credentials, "authorization", "Bearer A"), 2);

    let by_cookie = client(limit().key_by_cookie("session"));
    assert_eq!(allowed(&by_cookie, "cookie", "session=%78yz"), 2);
    assert_eq!(allowed(&by_cookie, "cookie", "session=x%79z"), 0);
    assert_eq!(allowed(&by_cookie, "cookie", "a=1; session=x"), 2);
    assert_eq!(allowed(&by_cookie, "cookie", "session=x; session=y"), 0);
    assert_eq!(
        allowed(&by_cookie, "cookie", "xsession=x"),
        2,
        "by address if the cookie is absent"
    );
    assert_eq!(allowed(&by_cookie, "cookie", "session"), 0);

    let by_function = client(limit().key_by(|parts| match parts.head.header("x-plan") {
        Some("free") => RateLimitKey::global(),
        Some("gold") => RateLimitKey::exempt(),
        Some(plan) => RateLimitKey::from_value(plan),
        None => RateLimitKey::client_ip(),
    }));
    assert_eq!(allowed(&by_function, "x-plan", "free"), 2);
    assert_eq!(allowed(&by_function, "x-plan", "gold"), 10);
    assert_eq!(
        (allowed(&by_function, "x-plan", "a"), allowed(&by_function, "x-plan", "b")),
        (2, 2)
    );
    assert_eq!(allowed_count(&by_function), 2);
    let response = by_function.get("/").header("x-plan", "gold").send_blocking();
    assert_eq!(rate_headers(&response), ("", "", None), "exempt requests get no fields");

    let global = client(limit().global());
    assert_eq!(allowed_count(&client_from(&global, "192.0.2.1:1")), 2);
    assert_eq!(allowed_count(&client_from(&global, "192.0.2.2:1")), 0);

    let exempt = client(limit().exempt_if(|parts| parts.head.path() == "/"));
    assert_eq!(allowed_count(&exempt), 1_000);
}

#[test]
fn all_of_several_limits_apply_and_a_rejected_request_is_not_charged() {
    let clock = Clock::default();
    let limit = RateLimit::per_second(2).name("fast").and(RateLimit::per_hour(3).name("slow"));
    let limit = clock.apply_to(limit);
    let client = client(limit.clone());
    assert_eq!(allowed_count(&client), 2);
    let refused = client.get("/").send_blocking();
    let fields: Vec<_> =
        refused.headers().iter().filter(|(name, _)| *name == "ratelimit").collect();
    let fields: Vec<_> = fields.iter().map(|(_, value)| value.to_str().expect("text")).collect();
    assert_eq!(fields, [r#""fast";r=0;t=1"#, r#""slow";r=1;t=2400"#]);
    assert!(refused.text().contains(r#""violated-policies":["fast"]"#));
    assert_eq!(limit.stats().refused, 2);
    clock.advance(1_000);
    // The slow limit, which has rejected nothing yet, has one request left.
    assert_eq!(allowed_count(&client), 1);
    let refused = client.get("/").send_blocking();
    assert!(refused.text().contains(r#""violated-policies":["slow"]"#));
    assert_eq!(refused.header("retry-after"), Some("1199"));
    let fast = refused.header("ratelimit").expect("a field");
    assert_eq!(fast, r#""fast";r=1;t=1"#, "the fast one was charged once");
}

#[test]
fn clones_share_counters_and_separate_limits_do_not() {
    let clock = Clock::default();
    let (shared, login_limit) =
        (clock.apply_to(RateLimit::per_second(2)), clock.apply_to(RateLimit::per_second(1)));
    let client = App::new()
        .get("/free", || "")
        .scope("/a", |scope| scope.wrap(shared.clone()).get("/1", || "").get("/2", || ""))
        .scope("/b", |scope| scope.wrap(shared.clone()).get("/", || ""))
        .scope("/login", |scope| scope.wrap(login_limit.name("login")).post("/", || "in"))
        .wrap(shared.clone().name("other routes"))
        .get("/", || "")
        .test();
    let status = |path: &str| client.get(path).send_blocking().status().as_u16();
    assert_eq!([status("/a/1"), status("/b"), status("/a/2")], [200, 200, 429]);
    assert_eq!((0..50).filter(|_| status("/free") == 200).count(), 50);
    let login = || client.post("/login").send_blocking().status().as_u16();
    assert_eq!([login(), login()], [200, 429]);
    assert_eq!(
        [status("/"), status("/"), status("/")],
        [200, 200, 429],
        "a changed setting starts new counters"
    );
}

#[test]
fn setting_the_clock_back_delays_clients_by_at_most_a_burst() {
    let clock = Clock::default();
    clock.set(10_000_000);
    let client = client(clock.apply_to(RateLimit::per_second(2)));
    assert_eq!(allowed_count(&client), 2);
    clock.set(5_000);
    assert_eq!(status(&client), 429);
    clock.advance(500);
    assert_eq!((status(&client), status(&client)), (200, 429));
}

#[test]
fn a_flood_of_keys_does_not_free_a_rejected_key_and_is_counted() {
    let clock = Clock::default();
    clock.set(1_000);
    let limit = clock.apply_to(RateLimit::per_second(5).keys_max(64));
    let all = client(limit.clone());
    let abuser = client_from(&all, "192.0.2.1:1");
    assert_eq!(allowed_count(&abuser), 5);
    for number in 0..5_000_u32 {
        let [.., high, low] = number.to_be_bytes();
        status(&client_from(&all, &format!("10.1.{high}.{low}:1")));
        if number % 100 == 0 {
            assert_eq!(status(&abuser), 429);
        }
    }
    assert!(limit.stats().evicted > 1_000, "{:?}", limit.stats());
    // After a flood, the table recovers when the debts are paid.
    clock.advance(1_000);
    assert_eq!(allowed_count(&abuser), 5);
    assert_eq!(allowed_count(&client_from(&all, "192.0.2.77:1")), 5);
}

#[test]
fn concurrent_threads_allow_exactly_as_many_requests_as_the_limit() {
    let clock = Clock::default();
    let slow = RateLimit::per_hour(700).name("slow").global();
    let limit = clock.apply_to(RateLimit::per_hour(1_000).and(slow));
    let count_allowed = |limit: RateLimit| {
        let is_allowed = |number: usize| block_on(limit.check_key([number as u8 % 2])).is_ok();
        (0..1_000).filter(|number| is_allowed(*number)).count()
    };
    let total: usize = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| count_allowed(limit.clone()))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread does not panic")).sum()
    });
    assert_eq!(total, 700);
    assert_eq!(limit.stats().refused, 3_300);
}

#[test]
fn invalid_settings_are_build_errors() {
    let one = RateLimit::per_second(1);
    let many = |limit: RateLimit, number: u32| limit.and(one.clone().name(number.to_string()));
    for (limit, word) in [
        (RateLimit::per_second(0), "at least one"),
        (RateLimit::new(1, Duration::ZERO), "at most one in a nanosecond"),
        (RateLimit::new(1, Duration::MAX), "73 years"),
        (one.clone().burst(0), "burst(0)"),
        (RateLimit::per_day(1).burst(u32::MAX), "146 years"),
        (one.clone().name(""), "not a valid name"),
        (one.clone().name("ö"), "not a valid name"),
        (one.clone().key_by_header("a b"), "\"a b\""),
        (one.clone().key_by_cookie("a;b"), "\"a;b\""),
        (one.clone().ipv6_prefix(129), "128"),
        (one.clone().ipv4_prefix(33), "32"),
        (one.clone().keys_max(0), "keys_max(0)"),
        (one.clone().and(one.clone()), "called \"default\""),
        ((0..8).fold(one.clone(), many), "9 limits"),
    ] {
        let build = App::new().wrap(limit.clone()).get("/", || "").build();
        let error = build.expect_err("the settings are invalid").to_string();
        assert!(error.contains("RateLimit: ") && error.contains(word), "{word}: {error}");
        let problem = block_on(limit.check_key("a")).expect_err("the settings are invalid");
        assert_eq!(problem.status, 500);
    }
    assert!(App::new().wrap((0..7).fold(one.clone(), many)).get("/", || "").build().is_ok());
}

#[test]
fn headers_can_be_disabled_and_are_added_to_those_of_other_limits() {
    let clock = Clock::default();
    let silent = client(clock.apply_to(RateLimit::per_second(1).without_headers()));
    assert_eq!(rate_headers(&silent.get("/").send_blocking()), ("", "", None));
    assert_eq!(rate_headers(&silent.get("/").send_blocking()), ("", "", Some("1")));
    let outer = clock.apply_to(RateLimit::per_second(5).name("outer"));
    let inner = clock.apply_to(RateLimit::per_second(3).name("inner"));
    let both = App::new().wrap(outer).wrap(inner).get("/", || "").test();
    let response = both.get("/").send_blocking();
    let all = response.headers().iter().filter(|(name, _)| *name == "ratelimit").count();
    assert_eq!(all, 2);
}

#[cfg(feature = "redis")]
mod unavailable_redis {
    use super::*;
    use crate::{OnStoreFailure, RedisStore};
    use std::net::TcpListener;

    fn in_runtime<T>(future: impl Future<Output = T>) -> T {
        let builder = tokio::runtime::Builder::new_current_thread().enable_all().build();
        builder.expect("a runtime").block_on(future)
    }

    /// How many of ten requests are allowed, and the status of the others.
    fn check_ten_times(limit: &RateLimit) -> (usize, Option<u16>) {
        in_runtime(async {
            let (mut allowed, mut rejected_status) = (0, None);
            for _ in 0..10 {
                match limit.check_key("a").await {
                    Ok(()) => allowed += 1,
                    Err(problem) => rejected_status = Some(problem.status.as_u16()),
                }
            }
            (allowed, rejected_status)
        })
    }

    #[test]
    fn on_failure_decides_and_requests_do_not_wait_long() {
        // A server that accepts connections but never responds.
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let silent_url = format!("redis://{}", silent.local_addr().expect("the listener is bound"));
        let closed = TcpListener::bind("127.0.0.1:0").expect("a port");
        let closed_url = format!("redis://{}", closed.local_addr().expect("the listener is bound"));
        drop(closed);
        for url in [silent_url, closed_url] {
            let clock = Clock::default();
            for (on_failure, expected) in [
                (OnStoreFailure::Local, (3, Some(429))),
                (OnStoreFailure::Allow, (10, None)),
                (OnStoreFailure::Deny, (0, Some(503))),
            ] {
                let store = RedisStore::from_url(&url).on_failure(on_failure);
                let store = store.timeout(Duration::from_millis(20));
                let limit = clock.apply_to(RateLimit::per_second(3).redis_store(store));
                assert_eq!(check_ten_times(&limit), expected, "{url} {on_failure:?}");
                assert_eq!(limit.stats().store_errors, 10);
            }
        }
        // Of each ten requests, one has tried Redis; the others skipped it.
        silent.set_nonblocking(true).expect("a socket");
        assert_eq!(std::iter::from_fn(|| silent.accept().ok()).count(), 3);
    }

    #[test]
    fn an_invalid_url_is_a_build_error_without_the_password() {
        let store = RedisStore::from_url("http://user:secret@host/");
        let limit = RateLimit::per_second(3).redis_store(store.clone());
        let error =
            App::new().wrap(limit).get("/", || "").build().expect_err("refused").to_string();
        assert!(error.contains("RedisStore::from_url") && !error.contains("secret"), "{error}");
        let debug = format!("{:?}", RedisStore::from_url("redis://user:secret@host/"));
        assert!(!debug.contains("secret"), "{debug}");
    }
}
