//! Redis through deadpool-redis, with a server started for these tests.

use deadpool_redis::redis::AsyncCommands;
use deadpool_redis::{Config, Pool, Runtime};
use futures_core::Stream;
use peregrine::DriverChoice;
use peregrine::rate_limit::{RateLimit, RedisStore};
use peregrine::tower::tower;
use peregrine::web::App;
use peregrine::web::prelude::*;
use peregrine_ecosystem_tests::{
    Program, base_url, client, end, find_program, in_runtime, on_both_drivers, pause, start,
};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long the server may take to start.
const START_MAX: Duration = Duration::from_secs(30);

on_both_drivers! {
    ignored = "needs redis-server";
    values_are_set_and_got,
    two_connections_shared_by_four_workers_count_two_hundred_requests,
    a_handler_waits_for_what_another_one_pushes,
    what_is_published_is_a_stream_of_events,
    rate_limits_of_two_servers_count_together,
    a_rate_limit_asks_redis_once_and_comes_back_to_it,
    limits_without_a_name_do_not_pay_each_others_debts,
}

struct Redis {
    _program: Program,
    socket: PathBuf,
    _folder: TempDir,
}

impl Redis {
    /// A server for this case alone.
    fn start() -> Self {
        let program = find_program("redis-server", &[]).expect("redis-server is installed");
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let socket = folder.path().join("socket");
        let place = socket.display().to_string();
        let arguments = ["--port", "0", "--unixsocket", &place, "--save", "", "--appendonly", "no"];
        let log = folder.path().join("log");
        let mut program =
            Program::start(&program, &arguments, None, &log).expect("the server starts");
        let begun = Instant::now();
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            let has_ended = program.has_ended().expect("the system reports it");
            let is_late = begun.elapsed() > START_MAX;
            let log = || std::fs::read_to_string(&log).unwrap_or_default();
            assert!(!has_ended && !is_late, "redis-server does not start: {}", log());
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { _program: program, socket, _folder: folder }
    }

    fn url(&self) -> String {
        format!("redis+unix://{}", self.socket.display())
    }

    fn pool(&self, connections: usize) -> Pool {
        let builder = Config::from_url(self.url()).builder().expect("the URL is valid");
        let builder = builder.max_size(connections).runtime(Runtime::Tokio1);
        builder.build().expect("the runtime is named")
    }
}

/// The text of a response, which must succeed.
async fn ask(method: &str, url: String) -> String {
    let method = method.parse().expect("the method is valid");
    let response = client(None).request(method, url).send().await.expect("the server responds");
    let (status, text) = (response.status(), response.text().await.expect("a complete body"));
    assert_eq!(status, 200, "{text}");
    text
}

async fn set(
    State(pool): State<Pool>,
    Path((key, value)): Path<(String, String)>,
) -> Result<(), String> {
    let mut connection = pool.get().await.map_err(|error| error.to_string())?;
    connection.set(key, value).await.map_err(|error| error.to_string())
}

async fn get(State(pool): State<Pool>, Path(key): Path<String>) -> Result<String, String> {
    let mut connection = pool.get().await.map_err(|error| error.to_string())?;
    let value: Option<String> = connection.get(key).await.map_err(|error| error.to_string())?;
    Ok(value.unwrap_or_else(|| "(none)".to_owned()))
}

async fn increase(pool: Pool) -> Result<String, String> {
    let mut connection = pool.get().await.map_err(|error| error.to_string())?;
    let count: i64 = connection.incr("count", 1).await.map_err(|error| error.to_string())?;
    // The connection is held for a moment, so that other requests must wait for it.
    tokio::time::sleep(Duration::from_millis(1)).await;
    Ok(count.to_string())
}

fn values_are_set_and_got(choice: DriverChoice) {
    let redis = Redis::start();
    let pool = redis.pool(2);
    let make = move || {
        let app = App::new().state(pool.clone());
        app.post("/{key}/{value}", set).get("/{key}", get)
    };
    let Some(running) = start(choice, 2, make) else { return };
    in_runtime(async {
        let base = base_url(&running);
        assert_eq!(ask("GET", format!("{base}/a")).await, "(none)");
        for value in ["1", "two", "%C3%A9"] {
            ask("POST", format!("{base}/a/{value}")).await;
            let expected = if value.starts_with('%') { "é" } else { value };
            assert_eq!(ask("GET", format!("{base}/a")).await, expected);
        }
    });
    end(running);
}

fn two_connections_shared_by_four_workers_count_two_hundred_requests(choice: DriverChoice) {
    const REQUESTS: usize = 200;
    let redis = Redis::start();
    // The same pool first for our handlers, and, once those workers are gone, for axum's.
    let pool = redis.pool(2);
    for form in ["ours", "axum"] {
        let pool = pool.clone();
        let running = if form == "ours" {
            let count = async |State(pool): State<Pool>| increase(pool).await;
            start(choice, 4, move || App::new().state(pool.clone()).post("/count", count))
        } else {
            use axum::extract::State;
            let count = async |State(pool): State<Pool>| increase(pool).await;
            let router = axum::Router::new().route("/count", axum::routing::post(count));
            let router = router.with_state(pool);
            start(choice, 4, move || tower(router.clone()))
        };
        let Some(running) = running else { return };
        in_runtime(async {
            let url = format!("{}/count", base_url(&running));
            let tasks = (0..REQUESTS).map(|_| tokio::spawn(ask("POST", url.clone())));
            let mut counts = Vec::new();
            for task in tasks.collect::<Vec<_>>() {
                let text = task.await.expect("each client gets a response");
                counts.push(text.parse::<usize>().expect("the text is a number"));
            }
            counts.sort_unstable();
            let before = if form == "ours" { 0 } else { REQUESTS };
            assert!(counts.into_iter().eq(before + 1..=before + REQUESTS), "{form}");
        });
        end(running);
    }
}

fn a_handler_waits_for_what_another_one_pushes(choice: DriverChoice) {
    async fn pop(State(pool): State<Pool>) -> Result<String, String> {
        let mut connection = pool.get().await.map_err(|error| error.to_string())?;
        let popped = connection.blpop::<_, (String, String)>("jobs", 30.0).await;
        popped.map(|(_, value)| value).map_err(|error| error.to_string())
    }
    async fn push(State(pool): State<Pool>, Path(value): Path<String>) -> Result<(), String> {
        let mut connection = pool.get().await.map_err(|error| error.to_string())?;
        connection.rpush("jobs", value).await.map_err(|error| error.to_string())
    }
    let redis = Redis::start();
    let pool = redis.pool(4);
    let shared = pool.clone();
    let make = move || {
        let app = App::new().state(shared.clone());
        app.get("/pop", pop).post("/push/{value}", push)
    };
    let Some(running) = start(choice, 2, make) else { return };
    in_runtime(async {
        let base = base_url(&running);
        let waiting: Vec<_> =
            (0..3).map(|_| tokio::spawn(ask("GET", format!("{base}/pop")))).collect();
        while pool.status().size < 3 || pool.status().available > 0 {
            pause().await;
        }
        for value in ["a", "b", "c"] {
            ask("POST", format!("{base}/push/{value}")).await;
        }
        let mut values = Vec::new();
        for waiting in waiting {
            values.push(waiting.await.expect("each request gets a response"));
        }
        values.sort();
        assert_eq!(values, ["a", "b", "c"]);
    });
    end(running);
}

/// Messages as server-sent events.
struct Events<S>(S);

impl<S: Stream<Item = deadpool_redis::redis::Msg> + Unpin> Stream for Events<S> {
    type Item = Result<String, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = Pin::new(&mut self.0).poll_next(cx);
        polled.map(|next| {
            next.map(|message| {
                let text: String = message.get_payload().expect("the bytes are UTF-8");
                Ok(format!("data: {text}\n\n"))
            })
        })
    }
}

fn what_is_published_is_a_stream_of_events(choice: DriverChoice) {
    async fn events(State(url): State<String>) -> Result<impl IntoResponse, String> {
        let client = deadpool_redis::redis::Client::open(url).map_err(|error| error.to_string())?;
        let mut messages = client.get_async_pubsub().await.map_err(|error| error.to_string())?;
        messages.subscribe("news").await.map_err(|error| error.to_string())?;
        let body = Body::from_stream(Events(messages.into_on_message()));
        Ok(([("content-type", "text/event-stream")], body))
    }
    async fn publish(State(pool): State<Pool>, Path(text): Path<String>) -> Result<String, String> {
        let mut connection = pool.get().await.map_err(|error| error.to_string())?;
        let seen: usize =
            connection.publish("news", text).await.map_err(|error| error.to_string())?;
        Ok(seen.to_string())
    }
    let redis = Redis::start();
    let (pool, url) = (redis.pool(1), redis.url());
    let make = move || {
        let app = App::new().state(pool.clone()).state(url.clone());
        app.get("/events", events).post("/publish/{text}", publish)
    };
    let Some(running) = start(choice, 2, make) else { return };
    in_runtime(async {
        let base = base_url(&running);
        let events = client(None).get(format!("{base}/events")).send().await;
        let mut events = events.expect("the server responds");
        for text in ["one", "two"] {
            assert_eq!(ask("POST", format!("{base}/publish/{text}")).await, "1");
            let piece = events
                .chunk()
                .await
                .expect("the stream is still open")
                .expect("the stream does not end");
            assert_eq!(piece, format!("data: {text}\n\n"));
        }
        // The subscription ends with its listener.
        drop(events);
        while ask("POST", format!("{base}/publish/three")).await != "0" {
            pause().await;
        }
    });
    end(running);
}

/// Status, `RateLimit` and `Retry-After` of a response.
async fn limited(url: &str) -> (u16, String, Option<u64>) {
    let response = client(None).get(url).send().await.expect("the server responds");
    let field = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    let retry = field("retry-after").and_then(|value| value.parse().ok());
    (response.status().as_u16(), field("ratelimit").unwrap_or_default().to_owned(), retry)
}

fn rate_limits_of_two_servers_count_together(choice: DriverChoice) {
    const REQUESTS: usize = 60;
    const BURST: usize = 25;
    let redis = Redis::start();
    let pool = redis.pool(1);
    let machine = || {
        // A long timeout, because the worker counts locally when Redis does not respond in time.
        let store = RedisStore::from_url(&redis.url()).timeout(START_MAX);
        let limit = RateLimit::per_hour(BURST as u32).redis_store(store);
        let limit = limit.and(RateLimit::per_day(1_000).name("daily").global());
        start(choice, 2, move || App::new().wrap(limit.clone()).get("/", || "hello"))
    };
    let (Some(one), Some(other)) = (machine(), machine()) else { return };
    in_runtime(async {
        let urls = [&one, &other].map(|running| format!("{}/", base_url(running)));
        let tasks = (0..REQUESTS).map(|number| {
            let url = urls[number % 2].clone();
            tokio::spawn(async move { limited(&url).await })
        });
        let mut let_in = 0;
        for task in tasks.collect::<Vec<_>>() {
            let (status, _, retry) = task.await.expect("each client gets a response");
            let_in += usize::from(status == 200);
            assert_eq!(retry.is_some(), status == 429);
        }
        assert_eq!(let_in, BURST);

        let mut connection = pool.get().await.expect("Redis responds");
        let keys: Vec<String> = connection.keys("*").await.expect("Redis responds");
        assert_eq!(keys.len(), 2, "{keys:?}");
        for key in keys {
            assert!(key.starts_with("peregrine:limit:") && !key.contains("127.0.0.1"), "{key}");
            let ends_in: i64 = connection.pttl(&key).await.expect("Redis responds");
            assert!(ends_in > 0, "{key} expires");
            // As if it had been written before the clock was set back by a century.
            let (seconds, _): (u64, u64) = deadpool_redis::redis::cmd("TIME")
                .query_async(&mut connection)
                .await
                .expect("a time");
            let far = (seconds + 100 * 365 * 86_400) * 1_000_000;
            connection.set::<_, _, ()>(key, far).await.expect("Redis responds");
        }
        let (status, _, retry) = limited(&urls[0]).await;
        assert_eq!(status, 429);
        assert!(retry.is_some_and(|seconds| seconds <= 3_600 / BURST as u64), "{retry:?}");
    });
    end(one);
    end(other);
}

fn a_rate_limit_asks_redis_once_and_comes_back_to_it(choice: DriverChoice) {
    let redis = Redis::start();
    let pool = redis.pool(1);
    let seconds = Arc::new(AtomicU64::new(1));
    let clock = {
        let seconds = Arc::clone(&seconds);
        move || Duration::from_secs(seconds.load(Relaxed))
    };
    let store = RedisStore::from_url(&redis.url()).timeout(START_MAX).key_prefix("mine:");
    let limit = RateLimit::per_hour(10).redis_store(store).clock(clock);
    let limit = limit.and(RateLimit::per_day(100).name("daily"));
    let counted = limit.clone();
    let make = move || App::new().wrap(limit.clone()).get("/", || "hello");
    let Some(running) = start(choice, 1, make) else { return };
    in_runtime(async {
        let url = format!("{}/", base_url(&running));
        let remaining = async || {
            let (status, limit, _) = limited(&url).await;
            assert_eq!(status, 200);
            limit
        };
        for left in (5..10).rev() {
            let limit = remaining().await;
            assert!(limit.starts_with(&format!("\"default\";r={left};t=")), "{limit}");
        }
        let mut connection = pool.get().await.expect("Redis responds");
        let stats: String = deadpool_redis::redis::cmd("INFO")
            .arg("commandstats")
            .query_async(&mut connection)
            .await
            .expect("Redis responds");
        // The first call finds that Redis does not have the script yet.
        assert!(stats.contains("cmdstat_evalsha:calls=6,"), "{stats}");
        let keys: Vec<String> = connection.keys("mine:*").await.expect("Redis responds");
        assert_eq!(keys.len(), 2);

        // The worker loses its connection: it counts locally, and retries a second later.
        deadpool_redis::redis::cmd("CLIENT")
            .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
            .query_async::<i64>(&mut connection)
            .await
            .expect("Redis responds");
        for left in [9, 8] {
            let limit = remaining().await;
            assert!(limit.starts_with(&format!("\"default\";r={left};t=")), "{limit}");
        }
        assert_eq!(counted.stats().store_errors, 2);
        seconds.fetch_add(1, Relaxed);
        let limit = remaining().await;
        assert!(limit.starts_with("\"default\";r=4;t="), "{limit}");
        assert_eq!(counted.stats().store_errors, 2);
    });
    end(running);
}

fn limits_without_a_name_do_not_pay_each_others_debts(choice: DriverChoice) {
    let redis = Redis::start();
    let store = RedisStore::from_url(&redis.url()).timeout(START_MAX);
    let general = RateLimit::per_second(1_000).redis_store(store.clone());
    let logins = RateLimit::per_hour(3).redis_store(store);
    let make = move || {
        let app = App::new().wrap(general.clone()).get("/", || "hello");
        app.scope("/login", |scope| scope.wrap(logins.clone()).get("/", || "in"))
    };
    let Some(running) = start(choice, 1, make) else { return };
    in_runtime(async {
        let base = base_url(&running);
        let mut statuses = Vec::new();
        for _ in 0..5 {
            statuses.push(limited(&format!("{base}/login")).await.0);
            assert_eq!(limited(&format!("{base}/")).await.0, 200);
        }
        assert_eq!(statuses, [200, 200, 200, 429, 429]);
    });
    end(running);
}
