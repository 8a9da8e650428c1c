//! A small application over a database, in two forms: our handlers, and an axum router. It is
//! compiled once for each database, which the surrounding module selects.

use super::Database;
use http::StatusCode;
use peregrine::tower::{IntoTowerHandler, TowerHandler};
use peregrine::web::App;
use peregrine::{DriverChoice, RunningServer};
use peregrine_ecosystem_tests::{base_url, client, end, in_runtime, start};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::{Executor, Row};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

pub(crate) type Pool = sqlx::Pool<Database>;

/// State shared by the handlers on all workers.
#[derive(Clone)]
pub(crate) struct Users {
    pub(crate) pool: Pool,
    /// Notified when a transaction has started whose request waits.
    begun: Arc<Notify>,
}

#[derive(Serialize)]
pub(crate) struct User {
    id: i64,
    name: String,
    balance: i64,
}

#[derive(Deserialize)]
pub(crate) struct NewUser {
    name: String,
    #[serde(default)]
    balance: i64,
}

#[derive(Deserialize)]
pub(crate) struct Transfer {
    from: i64,
    to: i64,
    amount: i64,
}

/// An error of the application.
#[derive(Debug)]
pub(crate) enum Refusal {
    Unknown,
    Taken,
    Poor,
    Broken(#[expect(dead_code, reason = "the debug output is printed")] sqlx::Error),
}

impl From<sqlx::Error> for Refusal {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::RowNotFound => Self::Unknown,
            sqlx::Error::Database(cause) if cause.is_unique_violation() => Self::Taken,
            sqlx::Error::Database(cause) if cause.is_check_violation() => Self::Poor,
            _ => Self::Broken(error),
        }
    }
}

impl Refusal {
    fn parts(&self) -> (StatusCode, String) {
        let status = match self {
            Self::Unknown => StatusCode::NOT_FOUND,
            Self::Taken => StatusCode::CONFLICT,
            Self::Poor => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Broken(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, format!("{self:?}"))
    }
}

impl axum::response::IntoResponse for Refusal {
    fn into_response(self) -> axum::response::Response {
        self.parts().into_response()
    }
}

impl peregrine::web::IntoResponse for Refusal {
    fn into_response(self) -> peregrine::web::Response {
        self.parts().into_response()
    }
}

type Answer<T> = Result<T, Refusal>;

impl Users {
    /// Creates the table.
    pub(crate) async fn new(pool: Pool, table: &str) -> Self {
        pool.execute(table).await.expect("the table is new");
        Self { pool, begun: Arc::default() }
    }

    async fn all(&self) -> Answer<Vec<User>> {
        let rows = sqlx::query("SELECT id, name, balance FROM users ORDER BY id");
        Ok(rows.fetch_all(&self.pool).await?.iter().map(user).collect())
    }

    async fn one(&self, id: i64) -> Answer<User> {
        let row = sqlx::query("SELECT id, name, balance FROM users WHERE id = $1").bind(id);
        Ok(user(&row.fetch_one(&self.pool).await?))
    }

    async fn create(&self, new: NewUser) -> Answer<User> {
        let statement =
            "INSERT INTO users (name, balance) VALUES ($1, $2) RETURNING id, name, balance";
        let row = sqlx::query(statement).bind(new.name).bind(new.balance);
        Ok(user(&row.fetch_one(&self.pool).await?))
    }

    async fn delete(&self, id: i64) -> Answer<()> {
        let deleted = sqlx::query("DELETE FROM users WHERE id = $1").bind(id);
        let deleted = deleted.execute(&self.pool).await?.rows_affected();
        if deleted == 1 { Ok(()) } else { Err(Refusal::Unknown) }
    }

    /// The receiver is credited first, so that only a rollback keeps the balances right.
    async fn transfer(&self, transfer: Transfer) -> Answer<()> {
        let mut transaction = self.pool.begin().await?;
        for (id, amount) in [(transfer.to, transfer.amount), (transfer.from, -transfer.amount)] {
            let moved = sqlx::query("UPDATE users SET balance = balance + $1 WHERE id = $2");
            let moved = moved.bind(amount).bind(id).execute(&mut *transaction).await?;
            if moved.rows_affected() == 0 {
                return Err(Refusal::Unknown);
            }
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Holds a connection while it does other work.
    async fn slow(&self) -> Answer<String> {
        let mut connection = self.pool.acquire().await?;
        let before = count(&mut connection).await?;
        tokio::time::sleep(Duration::from_millis(2)).await;
        let after = count(&mut connection).await?;
        Ok(format!("{before} {after}"))
    }

    /// Starts a transaction that never ends by itself.
    async fn stuck(&self) -> Answer<()> {
        let mut transaction = self.pool.begin().await?;
        let insert = sqlx::query("INSERT INTO users (name, balance) VALUES ('nobody', 1)");
        insert.execute(&mut *transaction).await?;
        self.begun.notify_one();
        std::future::pending().await
    }
}

async fn count(connection: &mut <Database as sqlx::Database>::Connection) -> sqlx::Result<i64> {
    sqlx::query("SELECT COUNT(*) FROM users").fetch_one(connection).await?.try_get(0)
}

fn user(row: &<Database as sqlx::Database>::Row) -> User {
    User { id: row.get(0), name: row.get(1), balance: row.get(2) }
}

/// The application as a Peregrine application.
mod native {
    use super::*;
    use peregrine::web::prelude::*;

    pub(super) fn app(users: Users) -> App {
        App::new()
            .state(users)
            .get("/users", async |State(users): State<Users>| users.all().await.map(Json))
            .post("/users", create)
            .get("/users/{id}", one)
            .delete("/users/{id}", delete)
            .post("/transfers", transfer)
            .get("/slow", async |State(users): State<Users>| users.slow().await)
            .post("/stuck", stuck)
    }

    async fn create(
        State(users): State<Users>,
        Json(new): Json<NewUser>,
    ) -> Answer<(StatusCode, Json<User>)> {
        Ok((StatusCode::CREATED, Json(users.create(new).await?)))
    }

    async fn one(State(users): State<Users>, Path(id): Path<i64>) -> Answer<Json<User>> {
        users.one(id).await.map(Json)
    }

    async fn delete(State(users): State<Users>, Path(id): Path<i64>) -> Answer<StatusCode> {
        users.delete(id).await.map(|()| StatusCode::NO_CONTENT)
    }

    async fn transfer(
        State(users): State<Users>,
        Json(transfer): Json<Transfer>,
    ) -> Answer<StatusCode> {
        users.transfer(transfer).await.map(|()| StatusCode::NO_CONTENT)
    }

    async fn stuck(State(users): State<Users>) -> Answer<StatusCode> {
        users.stuck().await.map(|()| StatusCode::NO_CONTENT)
    }
}

/// The application as an axum router.
mod mounted {
    use super::*;
    use axum::extract::{Path, State};
    use axum::routing::{get, post};
    use axum::{Json, Router};

    pub(super) fn router(users: Users) -> Router {
        Router::new()
            .route(
                "/users",
                get(async |State(users): State<Users>| users.all().await.map(Json)).post(create),
            )
            .route("/users/{id}", get(one).delete(delete))
            .route("/transfers", post(transfer))
            .route("/slow", get(async |State(users): State<Users>| users.slow().await))
            .route("/stuck", post(stuck))
            .with_state(users)
    }

    async fn create(
        State(users): State<Users>,
        Json(new): Json<NewUser>,
    ) -> Answer<(StatusCode, Json<User>)> {
        Ok((StatusCode::CREATED, Json(users.create(new).await?)))
    }

    async fn one(State(users): State<Users>, Path(id): Path<i64>) -> Answer<Json<User>> {
        users.one(id).await.map(Json)
    }

    async fn delete(State(users): State<Users>, Path(id): Path<i64>) -> Answer<StatusCode> {
        users.delete(id).await.map(|()| StatusCode::NO_CONTENT)
    }

    async fn transfer(
        State(users): State<Users>,
        Json(transfer): Json<Transfer>,
    ) -> Answer<StatusCode> {
        users.transfer(transfer).await.map(|()| StatusCode::NO_CONTENT)
    }

    async fn stuck(State(users): State<Users>) -> Answer<StatusCode> {
        users.stuck().await.map(|()| StatusCode::NO_CONTENT)
    }
}

/// The two forms of the application.
const FORMS: [&str; 2] = ["ours", "axum"];

/// Starts a form on this many workers, which share the pool.
fn serve(form: &str, choice: DriverChoice, workers: usize, users: &Users) -> Option<RunningServer> {
    let users = users.clone();
    if form == "ours" {
        start(choice, workers, move || native::app(users.clone()))
    } else {
        start(choice, workers, move || tower_of(users.clone()))
    }
}

fn tower_of(users: Users) -> TowerHandler<impl peregrine::tower::Dispatch> {
    mounted::router(users).into_tower_handler()
}

/// Sends requests one after the other; returns the status and the body of each response.
struct Session {
    client: reqwest::Client,
    base: String,
}

impl Session {
    async fn ask(&self, method: &str, path: &str, body: Option<Value>) -> (u16, String) {
        let method = method.parse().expect("the method is valid");
        let mut request = self.client.request(method, format!("{}{path}", self.base));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.expect("the server responds");
        let status = response.status().as_u16();
        (status, response.text().await.expect("the body is complete"))
    }

    async fn balances(&self) -> Vec<(String, i64)> {
        let (status, text) = self.ask("GET", "/users", None).await;
        assert_eq!(status, 200, "{text}");
        let users: Vec<Value> = serde_json::from_str(&text).expect("the JSON is a list");
        let user = |user: &Value| {
            (
                user["name"].as_str().expect("a name").to_owned(),
                user["balance"].as_i64().expect("the balance is a number"),
            )
        };
        users.iter().map(user).collect()
    }

    async fn clear(&self) {
        let (_, text) = self.ask("GET", "/users", None).await;
        let users: Vec<Value> = serde_json::from_str(&text).expect("the JSON is a list");
        for user in users {
            let (status, text) = self.ask("DELETE", &format!("/users/{}", user["id"]), None).await;
            assert_eq!(status, 204, "{text}");
        }
    }
}

fn id(text: &str) -> i64 {
    let user: Value = serde_json::from_str(text).expect("the JSON is a user");
    user["id"].as_i64().expect("users have ids")
}

/// `users` creates a pool for each form: connections end with the runtime that created them, and
/// most are created by the workers.
///
/// Creates, reads, changes and deletes, with several concurrent clients.
pub(crate) fn an_application_with_a_shared_pool(
    choice: DriverChoice,
    users: impl AsyncFn() -> Users,
) {
    in_runtime(async {
        for form in FORMS {
            let users = users().await;
            let Some(running) = serve(form, choice, 2, &users) else { return };
            let session = Session { client: client(None), base: base_url(&running) };
            session.clear().await;
            let (status, ada) =
                session.ask("POST", "/users", Some(json!({"name": "Ada", "balance": 10}))).await;
            assert_eq!(status, 201, "{form}: {ada}");
            let path = format!("/users/{}", id(&ada));
            assert_eq!(session.ask("GET", &path, None).await, (200, ada.clone()), "{form}");
            let again = session.ask("POST", "/users", Some(json!({"name": "Ada"}))).await;
            assert_eq!(again, (409, "Taken".to_owned()), "{form}");
            let tasks: Vec<_> = (0..20)
                .map(|number| {
                    let session = Session { client: client(None), base: base_url(&running) };
                    tokio::spawn(async move {
                        let new = json!({"name": format!("user {number}")});
                        let (status, text) = session.ask("POST", "/users", Some(new)).await;
                        assert_eq!(status, 201, "{text}");
                        let path = format!("/users/{}", id(&text));
                        assert_eq!(session.ask("GET", &path, None).await, (200, text));
                        assert_eq!(session.ask("DELETE", &path, None).await.0, 204);
                        assert_eq!(session.ask("GET", &path, None).await.0, 404);
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("the client does not panic");
            }
            assert_eq!(session.balances().await, [("Ada".to_owned(), 10)], "{form}");
            end(running);
            users.pool.close().await;
        }
    });
}

pub(crate) fn a_transaction(choice: DriverChoice, users: impl AsyncFn() -> Users) {
    in_runtime(async {
        for form in FORMS {
            let users = users().await;
            let Some(running) = serve(form, choice, 2, &users) else { return };
            let session = Session { client: client(None), base: base_url(&running) };
            session.clear().await;
            let mut ids = Vec::new();
            for name in ["Ada", "Bob"] {
                let new = json!({"name": name, "balance": 100});
                ids.push(id(&session.ask("POST", "/users", Some(new)).await.1));
            }
            let transfer = |amount| json!({"from": ids[0], "to": ids[1], "amount": amount});
            let (status, text) = session.ask("POST", "/transfers", Some(transfer(70))).await;
            assert_eq!(status, 204, "{form}: {text}");
            let (status, text) = session.ask("POST", "/transfers", Some(transfer(70))).await;
            assert_eq!((status, text.as_str()), (422, "Poor"), "{form}");
            let unknown = json!({"from": -1, "to": ids[1], "amount": 1});
            assert_eq!(session.ask("POST", "/transfers", Some(unknown)).await.0, 404, "{form}");
            let expected = [("Ada".to_owned(), 30), ("Bob".to_owned(), 170)];
            assert_eq!(session.balances().await, expected, "{form}");
            end(running);
            users.pool.close().await;
        }
    });
}

/// `users` has a pool of one connection, so that nothing works until it is returned.
pub(crate) fn a_dropped_request(choice: DriverChoice, users: impl AsyncFn() -> Users) {
    in_runtime(async {
        for form in FORMS {
            let users = users().await;
            let Some(running) = serve(form, choice, 2, &users) else { return };
            let session = Session { client: client(None), base: base_url(&running) };
            session.clear().await;
            for _ in 0..3 {
                let request = client(None).post(format!("{}/stuck", base_url(&running)));
                let request = tokio::spawn(request.send());
                users.begun.notified().await;
                let other = users.pool.try_acquire();
                assert!(other.is_none(), "{form}: the request has the connection");
                request.abort();
                assert!(request.await.is_err_and(|error| error.is_cancelled()), "{form}");
                assert_eq!(session.balances().await, [], "{form}: it was rolled back");
            }
            drop(users.pool.acquire().await.expect("the connection returns to the pool"));
            assert_eq!(users.pool.size(), 1, "{form}: the connection was kept");
            end(running);
            users.pool.close().await;
        }
    });
}

/// `users` has a pool of two connections.
pub(crate) fn four_workers_share_two_connections(
    choice: DriverChoice,
    users: impl AsyncFn() -> Users,
) {
    const REQUESTS: u64 = 200;
    in_runtime(async {
        for form in FORMS {
            let users = users().await;
            let Some(running) = serve(form, choice, 4, &users) else { return };
            let base = base_url(&running);
            let tasks: Vec<_> = (0..REQUESTS)
                .map(|_| {
                    // Each client has its own connection, so that all workers get some.
                    let session = Session { client: client(None), base: base.clone() };
                    tokio::spawn(async move { session.ask("GET", "/slow", None).await })
                })
                .collect();
            for task in tasks {
                let answer = task.await.expect("the client does not panic");
                assert_eq!(answer, (200, "0 0".to_owned()), "{form}");
            }
            assert!(users.pool.size() <= 2, "{form}");
            let stopped = end(running);
            assert_eq!(stopped.requests(), REQUESTS, "{form}");
            let idle = stopped.workers.iter().flatten().filter(|worker| worker.requests == 0);
            assert!(idle.count() < 3, "{form}: several workers answered: {stopped:?}");
            users.pool.close().await;
        }
    });
}
