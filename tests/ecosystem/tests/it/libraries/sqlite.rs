//! SQLite through sqlx, in a temporary file.

use peregrine::DriverChoice;
use peregrine::http::StatusCode;
use peregrine::web::App;
use peregrine::web::prelude::*;
use peregrine_ecosystem_tests::{base_url, client, end, in_runtime, on_both_drivers, start};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{Row, SqlitePool};
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

use sqlx::Sqlite as Database;
#[path = "users.rs"]
mod users;
use users::Users;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS users (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, \
    balance BIGINT NOT NULL CHECK (balance >= 0))";

on_both_drivers! {
    an_application_keeps_its_users_in_a_file,
    a_transaction_is_whole_or_not_at_all,
    a_request_dropped_in_mid_transaction_is_rolled_back_and_gives_its_connection_back,
    two_connections_shared_by_four_workers_answer_two_hundred_requests,
    a_pool_of_each_worker_is_made_with_its_application,
}

const WAIT_MAX: Duration = Duration::from_secs(120);

async fn pool(file: &FilePath, connections: u32) -> SqlitePool {
    let (pool, options) = options(file, connections);
    pool.connect_with(options).await.expect("the folder can be written to")
}

fn options(file: &FilePath, connections: u32) -> (SqlitePoolOptions, SqliteConnectOptions) {
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
    // On a slow disk, neither waiting for a connection nor waiting for a writer times out.
    let options = options.journal_mode(SqliteJournalMode::Wal).busy_timeout(WAIT_MAX);
    let pool = SqlitePoolOptions::new().max_connections(connections).acquire_timeout(WAIT_MAX);
    (pool, options)
}

fn file() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let file = folder.path().join("users.db");
    (folder, file)
}

/// Runs a case over a pool of this many connections, shared by all workers.
macro_rules! over {
    ($connections:expr, $choice:expr, $case:path) => {{
        let (_folder, file) = file();
        $case($choice, async || Users::new(pool(&file, $connections).await, TABLE).await);
    }};
}

fn an_application_keeps_its_users_in_a_file(choice: DriverChoice) {
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

/// The function that creates an application runs inside its worker's runtime but cannot wait: a
/// per-worker pool connects when it is first used.
fn a_pool_of_each_worker_is_made_with_its_application(choice: DriverChoice) {
    let (_folder, file) = file();
    in_runtime(async {
        let first = pool(&file, 1).await;
        sqlx::query("CREATE TABLE hits (n INTEGER)")
            .execute(&first)
            .await
            .expect("the table does not exist yet");
        first.close().await;
    });
    fn failed(error: sqlx::Error) -> (StatusCode, String) {
        (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }
    async fn hit(State(pool): State<SqlitePool>) -> Result<String, (StatusCode, String)> {
        let insert = sqlx::query("INSERT INTO hits VALUES (1)").execute(&pool).await;
        insert.map_err(failed)?;
        let row = sqlx::query("SELECT COUNT(*) FROM hits").fetch_one(&pool).await;
        row.map(|row| row.get::<i64, _>(0).to_string()).map_err(failed)
    }
    let path = file.clone();
    let make = move || {
        let (pool, options) = options(&path, 1);
        App::new().state(pool.connect_lazy_with(options)).post("/hit", hit)
    };
    let Some(running) = start(choice, 3, make) else { return };
    in_runtime(async {
        let url = format!("{}/hit", base_url(&running));
        let tasks: Vec<_> = (0..40).map(|_| tokio::spawn(client(None).post(&url).send())).collect();
        for task in tasks {
            let response =
                task.await.expect("the task does not panic").expect("the server responds");
            let (status, text) = (response.status(), response.text().await);
            assert_eq!(status, 200, "{text:?}");
        }
    });
    end(running);
    in_runtime(async {
        let row = sqlx::query("SELECT COUNT(*) FROM hits").fetch_one(&pool(&file, 1).await).await;
        assert_eq!(row.expect("the table exists").get::<i64, _>(0), 40);
    });
}
