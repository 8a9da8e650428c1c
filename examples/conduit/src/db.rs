//! Opens the database and migrates it to the schema of this version.

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Connection, SqliteConnection, SqlitePool};
use std::path::Path;
use std::time::Duration;

/// How long start-up waits for another process that writes, such as one that is migrating.
const START_MAX: Duration = Duration::from_secs(60);
/// Starts a transaction that writes. A transaction that starts by reading fails at its first write
/// if another connection has written meanwhile, and has to be restarted.
pub(crate) const WRITE: &str = "BEGIN IMMEDIATE";

/// The migrations, embedded in the program. A migration that was applied anywhere is never changed:
/// add a new file instead.
const MIGRATIONS: [&str; 3] = [
    include_str!("../migrations/0001_users.sql"),
    include_str!("../migrations/0002_articles.sql"),
    include_str!("../migrations/0003_comments.sql"),
];

/// Why the database could not be opened.
#[derive(Debug)]
pub(crate) enum OpenError {
    Failed(sqlx::Error),
    /// A newer version of the program has migrated the database; this many migrations are applied.
    Newer(i64),
}

impl From<sqlx::Error> for OpenError {
    fn from(error: sqlx::Error) -> Self {
        Self::Failed(error)
    }
}

/// Opens or creates the file and applies the missing migrations. `wait_max` limits how long a
/// request waits for a connection, and for another writer.
///
/// # Errors
/// The file cannot be opened, a migration fails, or a newer version has migrated the database.
pub(crate) async fn open(
    file: &Path,
    connections_max: u32,
    wait_max: Duration,
) -> Result<SqlitePool, OpenError> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .foreign_keys(true)
        // Readers do not wait for writers.
        .journal_mode(SqliteJournalMode::Wal)
        // With a write-ahead log, a crash of the machine may lose the last commits but does not
        // corrupt the database.
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(wait_max);
    // Not through the pool, which would give up if a slow disk takes longer than `wait_max`.
    let patient = options.clone().busy_timeout(START_MAX);
    let mut connection = SqliteConnection::connect_with(&patient).await?;
    migrate(&mut connection).await?;
    let pool = SqlitePoolOptions::new().max_connections(connections_max).acquire_timeout(wait_max);
    let pool = pool.connect_lazy_with(options);
    // The pool opens its first connection before this one closes: closing the last connection would
    // checkpoint the log.
    drop(pool.acquire().await?);
    connection.close().await?;
    Ok(pool)
}

/// Applies all missing migrations, or none. If two processes start together, one waits for the
/// other.
async fn migrate(connection: &mut SqliteConnection) -> Result<(), OpenError> {
    let mut transaction = connection.begin_with(WRITE).await?;
    let applied = sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut *transaction).await?;
    for (version, migration) in (1_i64..).zip(MIGRATIONS).filter(|(version, _)| *version > applied)
    {
        sqlx::raw_sql(migration).execute(&mut *transaction).await?;
        let set_version = format!("PRAGMA user_version = {version}");
        sqlx::raw_sql(&set_version).execute(&mut *transaction).await?;
    }
    if usize::try_from(applied).is_ok_and(|applied| applied > MIGRATIONS.len()) {
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
    async fn migrations_are_applied_once_and_a_later_version_is_left_alone() {
        let folder = tempfile::tempdir().expect("the disk is writable");
        let file = folder.path().join("conduit.db");
        for _ in 0..2 {
            let pool = open(&file, 2, WAIT_MAX).await.expect("the database opens");
            let version: i64 =
                sqlx::query_scalar("PRAGMA user_version").fetch_one(&pool).await.expect("a number");
            assert_eq!(version, 3);
            pool.close().await;
        }
        let pool = open(&file, 1, WAIT_MAX).await.expect("the database opens");
        sqlx::raw_sql("PRAGMA user_version = 9").execute(&pool).await.expect("a valid pragma");
        pool.close().await;
        assert!(matches!(open(&file, 1, WAIT_MAX).await, Err(OpenError::Newer(9))));
    }
}
