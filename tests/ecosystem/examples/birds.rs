//! A service with a database: SQLite through sqlx, HTTP and HTTPS, problems, request IDs in the
//! access log, a graceful shutdown, and tests.
//!
//! Run `cargo run -p peregrine-ecosystem-tests --example birds`, then `curl -d '{"name":"kestrel"}'
//! -H 'content-type: application/json' localhost:8080/birds` and `curl -k
//! https://localhost:8443/birds`. `DATABASE` is the URL of the database (default
//! `sqlite:birds.db`).
#![forbid(unsafe_code)]

use peregrine::prelude::*;
use serde::{Deserialize, Serialize};
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteRow};
use std::error::Error;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Bird {
    id: i64,
    name: String,
}

#[derive(Serialize, Deserialize)]
struct NewBird {
    name: String,
}

fn bird(row: &SqliteRow) -> Bird {
    Bird { id: row.get("id"), name: row.get("name") }
}

/// A database error, so that handlers can use `?`.
struct Broken(sqlx::Error);

impl From<sqlx::Error> for Broken {
    fn from(error: sqlx::Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Broken {
    fn into_response(self) -> Response {
        let known = match self.0 {
            sqlx::Error::RowNotFound => {
                Some((StatusCode::NOT_FOUND, "unknown-bird", "There is no such bird."))
            }
            sqlx::Error::Database(cause) if cause.is_unique_violation() => {
                Some((StatusCode::CONFLICT, "known-bird", "This name is taken."))
            }
            _ => None,
        };
        // Details of other errors are not exposed to clients.
        let unknown =
            (StatusCode::INTERNAL_SERVER_ERROR, "broken", "The database did not respond.");
        let (status, kind, detail) = known.unwrap_or(unknown);
        Problem::new(status, kind, detail).into_response()
    }
}

async fn list(pool: StateRef<SqlitePool>) -> Result<Json<Vec<Bird>>, Broken> {
    let rows = sqlx::query("SELECT id, name FROM birds ORDER BY id").fetch_all(&*pool).await?;
    Ok(Json(rows.iter().map(bird).collect()))
}

async fn find(Path(id): Path<i64>, pool: StateRef<SqlitePool>) -> Result<Json<Bird>, Broken> {
    let found = sqlx::query("SELECT id, name FROM birds WHERE id = ?").bind(id);
    Ok(Json(bird(&found.fetch_one(&*pool).await?)))
}

async fn add(
    pool: StateRef<SqlitePool>,
    Json(new): Json<NewBird>,
) -> Result<(StatusCode, Json<Bird>), Broken> {
    let added =
        sqlx::query("INSERT INTO birds (name) VALUES (?) RETURNING id, name").bind(new.name);
    Ok((StatusCode::CREATED, Json(bird(&added.fetch_one(&*pool).await?))))
}

async fn open(url: &str) -> Result<SqlitePool, sqlx::Error> {
    let options: SqliteConnectOptions = url.parse()?;
    // An in-memory database belongs to its connection.
    let connections = if url.contains(":memory:") { 1 } else { 4 };
    let pool = SqlitePoolOptions::new().max_connections(connections);
    let pool = pool.connect_with(options.create_if_missing(true)).await?;
    let table =
        "CREATE TABLE IF NOT EXISTS birds (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)";
    sqlx::query(table).execute(&pool).await?;
    Ok(pool)
}

fn app(pool: SqlitePool) -> App {
    App::new()
        .state(pool)
        .wrap(SetRequestId::new())
        .scope("/birds", |birds| birds.get("/", list).post("/", add).get("/{id}", find))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("DATABASE").unwrap_or_else(|_| "sqlite:birds.db".to_owned());
    let pool = open(&url).await?;
    // In production, use `TlsConfig::from_pem_files`.
    let tls = TlsConfig::self_signed(&["localhost"])?.tls;
    let server = Server::bind("127.0.0.1:8080").listen_tls("127.0.0.1:8443", tls);
    let shared = pool.clone();
    // SIGTERM and Ctrl-C shut the server down gracefully; then the pool is closed.
    tokio::task::block_in_place(|| server.serve(move || app(shared.clone())))?;
    pool.close().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn birds_are_kept() {
        let client = app(open("sqlite::memory:").await.expect("an in-memory database")).test();
        let kestrel = || client.post("/birds").json(&NewBird { name: "kestrel".to_owned() });
        assert_eq!(kestrel().send().await.status(), 201);
        assert_eq!(kestrel().send().await.status(), 409);
        let expected = Bird { id: 1, name: "kestrel".to_owned() };
        assert_eq!(client.get("/birds/1").send().await.json::<Bird>(), expected);
        assert_eq!(client.get("/birds").send().await.json::<Vec<Bird>>(), [expected]);
        let missing = client.get("/birds/7").send().await;
        assert_eq!(
            (missing.status().as_u16(), missing.header("content-type")),
            (404, Some("application/problem+json"))
        );
    }
}
