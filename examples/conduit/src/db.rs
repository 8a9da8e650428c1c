//! The data base: how it is opened, and brought to the form that this version expects.

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Connection, SqliteConnection, SqlitePool};
use std::path::Path;
use std::time::Duration;

/// How long a start waits for another process that writes, such as one that applies the steps.
const START_MAX: Duration = Duration::from_secs(60);
/// What begins a transaction that writes. One that began by reading could find, when it wants to write, that somebody else
/// did, and would have to begin anew.
pub(crate) const WRITE: &str = "BEGIN IMMEDIATE";

/// The steps from nothing to the present form, in the program. What was applied somewhere is never changed: the next step
/// is another file.
const STEPS: [&str; 3] = [
    include_str!("../migrations/0001_users.sql"),
    include_str!("../migrations/0002_articles.sql"),
    include_str!("../migrations/0003_comments.sql"),
];

/// Why there is no data base.
#[derive(Debug)]
pub(crate) enum OpenError {
    Failed(sqlx::Error),
    /// A later version of the program has been here: so many steps were applied.
    Newer(i64),
}

impl From<sqlx::Error> for OpenError {
    fn from(error: sqlx::Error) -> Self {
        Self::Failed(error)
    }
}

/// Opens the file, makes it if there is none, and applies the steps that it lacks. Requests wait for `wait_max` at most: for a
/// connection, and for another statement that writes.
///
/// # Errors
/// The file cannot be opened, a step fails, or a later version of the program has been here.
pub(crate) async fn open(
    file: &Path,
    connections_max: u32,
    wait_max: Duration,
) -> Result<SqlitePool, OpenError> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .foreign_keys(true)
        // Who reads does not wait for who writes.
        .journal_mode(SqliteJournalMode::Wal)
        // With a log ahead of the data, a crash of the machine may cost the last commits, and never the data base.
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(wait_max);
    // Not by the pool, which would give up where a slow disk takes longer than a request may wait.
    let patient = options.clone().busy_timeout(START_MAX);
    let mut connection = SqliteConnection::connect_with(&patient).await?;
    migrate(&mut connection).await?;
    let pool = SqlitePoolOptions::new().max_connections(connections_max).acquire_timeout(wait_max);
    let pool = pool.connect_lazy_with(options);
    // Its first connection is there before the last one here goes: closing that would fold the log into the data.
    drop(pool.acquire().await?);
    connection.close().await?;
    Ok(pool)
}

/// All steps that are missing, or none. Of two processes that start together, one waits for the other.
async fn migrate(connection: &mut SqliteConnection) -> Result<(), OpenError> {
    let mut transaction = connection.begin_with(WRITE).await?;
    let applied = sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut *transaction).await?;
    for (number, step) in (1_i64..).zip(STEPS).filter(|(number, _)| *number > applied) {
        sqlx::raw_sql(step).execute(&mut *transaction).await?;
        let number = format!("PRAGMA user_version = {number}");
        sqlx::raw_sql(&number).execute(&mut *transaction).await?;
    }
    if usize::try_from(applied).is_ok_and(|applied| applied > STEPS.len()) {
        return Err(OpenError::Newer(applied));
    }
    transaction.commit().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT_MAX: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn steps_are_applied_once_and_a_later_version_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("conduit.db");
        for _ in 0..2 {
            let pool = open(&file, 2, WAIT_MAX).await.expect("it opens");
            let version: i64 =
                sqlx::query_scalar("PRAGMA user_version").fetch_one(&pool).await.expect("a number");
            assert_eq!(version, 3);
            pool.close().await;
        }
        let pool = open(&file, 1, WAIT_MAX).await.expect("it opens");
        sqlx::raw_sql("PRAGMA user_version = 9").execute(&pool).await.expect("it is set");
        pool.close().await;
        assert!(matches!(open(&file, 1, WAIT_MAX).await, Err(OpenError::Newer(9))));
    }
}
