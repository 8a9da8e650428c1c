//! PostgreSQL through sqlx, started for these tests from the installed programs.

use peregrine::DriverChoice;
use peregrine_ecosystem_tests::{
    Program, base_url, client, end, find_program, in_runtime, on_both_drivers, pause, start,
    user_id,
};
use sqlx::postgres::{PgConnectOptions, PgListener, PgNotification, PgPoolOptions};
use sqlx::{ConnectOptions, Executor, PgPool};
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tempfile::TempDir;

use sqlx::Postgres as Database;
#[path = "users.rs"]
mod users;
use users::Users;

const TABLE: &str = "CREATE TABLE users (id BIGSERIAL PRIMARY KEY, name TEXT NOT NULL UNIQUE, \
    balance BIGINT NOT NULL CHECK (balance >= 0))";

/// How long the database may take to start.
const START_MAX: Duration = Duration::from_secs(30);

on_both_drivers! {
    ignored = "needs PostgreSQL";
    an_application_keeps_its_users_in_a_database,
    a_transaction_is_whole_or_not_at_all,
    a_request_dropped_in_mid_transaction_is_rolled_back_and_gives_its_connection_back,
    two_connections_shared_by_four_workers_answer_two_hundred_requests,
    a_query_that_nobody_waits_for_any_more_does_not_harm_the_next,
    notifications_are_events_of_a_stream,
}

/// A database server, kept while a test uses it.
struct Postgres {
    folder: TempDir,
    _program: Program,
}

impl Postgres {
    /// The running server, or a new one.
    fn shared() -> Arc<Self> {
        static RUNNING: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = running.upgrade() {
            return shared;
        }
        let folders = installed_folders();
        let find = |name| {
            let found = find_program(name, &folders);
            found.unwrap_or_else(|| panic!("PostgreSQL's {name} is installed"))
        };
        let (initdb, postgres) = (find("initdb"), find("postgres"));
        let begun = Self::begin(&initdb, &postgres);
        let begun = Arc::new(begun.unwrap_or_else(|reason| panic!("{reason}")));
        *running = Arc::downgrade(&begun);
        begun
    }

    fn begin(initdb: &Path, postgres: &Path) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let owner = fs::metadata(folder.path()).map_err(|error| error.to_string())?.uid();
        // PostgreSQL refuses to run as root.
        let user = if owner == 0 {
            let (user, group) =
                user_id("postgres").ok_or("root has no user `postgres` to run it")?;
            chown(folder.path(), Some(user), Some(group)).map_err(|error| error.to_string())?;
            Some((user, group))
        } else {
            None
        };
        let data = folder.path().join("data").display().to_string();
        let mut command = Command::new(initdb);
        command.args(["--auth=trust", "--username=tests", "--encoding=UTF8", "--locale=C"]);
        command.args(["--no-sync", "--pgdata", &data]).current_dir(folder.path());
        if let Some((user, group)) = user {
            command.uid(user).gid(group);
        }
        let output = command.output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(format!("initdb: {}", String::from_utf8_lossy(&output.stderr)));
        }
        let sockets = folder.path().display().to_string();
        let arguments = ["-D", &data, "-k", &sockets, "-c", "listen_addresses=", "-c", "fsync=off"];
        let log = folder.path().join("log");
        let mut program =
            Program::start(postgres, &arguments, user, &log).map_err(|error| error.to_string())?;
        let begun = Instant::now();
        while !folder.path().join(".s.PGSQL.5432").exists() || !answers(&sockets) {
            if program.has_ended().unwrap_or(true) || begun.elapsed() > START_MAX {
                let log = fs::read_to_string(&log).unwrap_or_default();
                return Err(format!("PostgreSQL does not start: {log}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { folder, _program: program })
    }

    fn options(&self) -> PgConnectOptions {
        options(&self.folder.path().display().to_string())
    }

    /// A pool of `connections` connections, in a separate schema. Its first connection
    /// belongs to the caller's runtime, as in a program that creates the pool in `main`.
    async fn pool(&self, connections: u32) -> PgPool {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let schema = format!("part_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let options = self.options().options([("search_path", &schema)]);
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(120))
            .connect_with(options);
        let pool = pool.await.expect("the database responds");
        let statement = format!("CREATE SCHEMA {schema}");
        pool.execute(statement.as_str()).await.expect("the schema name is unused");
        pool
    }
}

fn options(sockets: &str) -> PgConnectOptions {
    PgConnectOptions::new().socket(sockets).username("tests").database("postgres")
}

fn answers(sockets: &str) -> bool {
    in_runtime(async { options(sockets).connect().await.is_ok() })
}

/// The folders where Debian puts such programs, newest version first.
fn installed_folders() -> Vec<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<_> = versions.map(|version| version.path().join("bin")).collect();
    folders.sort();
    folders.reverse();
    folders
}

/// Runs a case over a pool of this many connections, shared by all workers.
macro_rules! over {
    ($connections:expr, $choice:expr, $case:path) => {{
        let postgres = Postgres::shared();
        $case($choice, async || Users::new(postgres.pool($connections).await, TABLE).await);
    }};
}

fn an_application_keeps_its_users_in_a_database(choice: DriverChoice) {
    over!(4, choice, users::an_application_with_a_shared_pool);
}

fn a_transaction_is_whole_or_not_at_all(choice: DriverChoice) {
    over!(2, choice, users::a_transaction);
}

fn a_request_dropped_in_mid_transaction_is_rolled_back_and_gives_its_connection_back(
    choice: DriverChoice,
) {
    over!(1, choice, users::a_dropped_request);
}

fn two_connections_shared_by_four_workers_answer_two_hundred_requests(choice: DriverChoice) {
    over!(2, choice, users::four_workers_share_two_connections);
}

/// The only connection is in the middle of a response when its request is dropped.
fn a_query_that_nobody_waits_for_any_more_does_not_harm_the_next(choice: DriverChoice) {
    use peregrine::web::App;
    use peregrine::web::prelude::*;
    async fn sleep(State(pool): State<PgPool>, Path(milliseconds): Path<u32>) -> String {
        let sleep = sqlx::query("SELECT pg_sleep($1)").bind(f64::from(milliseconds) / 1000.0);
        let slept = sleep.execute(&pool).await;
        slept.map_or_else(|error| error.to_string(), |_| "slept".to_owned())
    }
    let postgres = Postgres::shared();
    in_runtime(async {
        let pool = postgres.pool(1).await;
        let shared = pool.clone();
        let make = move || App::new().state(shared.clone()).get("/sleep/{milliseconds}", sleep);
        let Some(running) = start(choice, 2, make) else { return };
        let url = |milliseconds| format!("{}/sleep/{milliseconds}", base_url(&running));
        let request = tokio::spawn(client(None).get(url(300)).send());
        while pool.num_idle() > 0 {
            pause().await;
        }
        request.abort();
        let response = client(None).get(url(1)).send().await.expect("the server responds");
        assert_eq!(response.text().await.expect("a complete body"), "slept");
        end(running);
        pool.close().await;
    });
}

/// Notifications as server-sent events.
struct Events<S>(S);

impl<S> futures_core::Stream for Events<S>
where
    S: futures_core::Stream<Item = sqlx::Result<PgNotification>> + Unpin,
{
    type Item = sqlx::Result<String>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<sqlx::Result<String>>> {
        let event = |notification: PgNotification| format!("data: {}\n\n", notification.payload());
        let polled = Pin::new(&mut self.0).poll_next(cx);
        polled.map(|next| next.map(|notification| notification.map(event)))
    }
}

fn notifications_are_events_of_a_stream(choice: DriverChoice) {
    use peregrine::web::prelude::*;
    use peregrine::web::{App, Body};

    /// The channel name: all users of one database share its channels.
    fn channel(pool: &PgPool) -> String {
        let options = pool.connect_options();
        options.get_options().unwrap_or_default().replace(|c: char| !c.is_alphanumeric(), "_")
    }
    async fn events(State(pool): State<PgPool>) -> Result<impl IntoResponse, String> {
        let mut listener = PgListener::connect_with(&pool).await.map_err(|e| e.to_string())?;
        listener.listen(&channel(&pool)).await.map_err(|error| error.to_string())?;
        let body = Body::from_stream(Events(listener.into_stream()));
        Ok(([("content-type", "text/event-stream")], body))
    }
    async fn notify(State(pool): State<PgPool>, Path(text): Path<String>) -> Result<(), String> {
        let notify = sqlx::query("SELECT pg_notify($1, $2)").bind(channel(&pool)).bind(text);
        notify.execute(&pool).await.map(drop).map_err(|error| error.to_string())
    }
    let postgres = Postgres::shared();
    in_runtime(async {
        let pool = postgres.pool(3).await;
        let shared = pool.clone();
        let make = move || {
            let app = App::new().state(shared.clone());
            app.get("/events", events).post("/notify/{text}", notify)
        };
        let Some(running) = start(choice, 2, make) else { return };
        let base = base_url(&running);
        let mut listeners = Vec::new();
        for _ in 0..2 {
            let response = client(None).get(format!("{base}/events")).send().await;
            listeners.push(response.expect("the server responds"));
        }
        for text in ["one", "two"] {
            let url = format!("{base}/notify/{text}");
            assert_eq!(client(None).post(url).send().await.expect("a response").status(), 200);
            for listener in &mut listeners {
                let piece = listener
                    .chunk()
                    .await
                    .expect("the stream is still open")
                    .expect("the stream does not end");
                assert_eq!(piece, format!("data: {text}\n\n"));
            }
        }
        // The server notices that the peer of a silent stream has closed only when it sends the
        // next data.
        drop(listeners);
        while pool.num_idle() < pool.size() as usize {
            let url = format!("{base}/notify/three");
            assert_eq!(client(None).post(url).send().await.expect("a response").status(), 200);
            pause().await;
        }
        end(running);
        pool.close().await;
    });
}
