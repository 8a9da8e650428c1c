//! The data base: how it is opened, and brought to the form that this version expects.

use sqlx::SqlitePool;
use sqlx::error::BoxDynError;
use sqlx::migrate::{Migration, MigrationSource, MigrationType, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

/// How long a statement waits for another one that writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a request waits for a connection. It is told to come again then.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);
/// What begins a transaction that writes. One that began by reading could find, when it wants to write, that somebody else
/// did, and would have to begin anew.
pub(crate) const WRITE: &str = "BEGIN IMMEDIATE";

/// The steps from nothing to the present form, in the program. What was applied somewhere is never changed: the next step
/// is another file.
const MIGRATIONS: [(i64, &str, &str); 3] = [
    (1, "users", include_str!("../migrations/0001_users.sql")),
    (2, "articles", include_str!("../migrations/0002_articles.sql")),
    (3, "comments", include_str!("../migrations/0003_comments.sql")),
];

/// Opens the file, makes it if there is none, and applies the steps that it lacks.
///
/// # Errors
/// The file cannot be opened, a step fails, or another version of the program applied other steps.
pub(crate) async fn open(file: &Path, connections_max: u32) -> Result<SqlitePool, sqlx::Error> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .foreign_keys(true)
        // Who reads does not wait for who writes.
        .journal_mode(SqliteJournalMode::Wal)
        // With a log ahead of the data, a crash of the machine may cost the last commits, and never the data base.
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(BUSY_TIMEOUT);
    let pool = SqlitePoolOptions::new().max_connections(connections_max);
    let pool = pool.acquire_timeout(ACQUIRE_TIMEOUT).connect_with(options).await?;
    Migrator::new(Embedded).await?.run(&pool).await?;
    Ok(pool)
}

/// The steps above, as sqlx asks for them. Its macro `migrate!` does the same, and brings a compiler of queries along.
#[derive(Debug)]
struct Embedded;

type Steps = Result<Vec<Migration>, BoxDynError>;

impl MigrationSource<'static> for Embedded {
    fn resolve(self) -> Pin<Box<dyn Future<Output = Steps> + Send + 'static>> {
        let steps = MIGRATIONS.map(|(version, name, sql)| {
            Migration::new(version, name.into(), MigrationType::Simple, sql.into(), false)
        });
        Box::pin(std::future::ready(Ok(steps.into())))
    }
}
