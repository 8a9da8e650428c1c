//! A complete application: the API of the [RealWorld](https://github.com/realworld-apps/realworld)
//! specification ("Conduit"), with a database, users, uploads, live updates and pages.
//!
//! [`Conduit`] holds what all workers share and builds each worker's application. Each module has
//! the routes of one subject and its SQL; `errors.rs` formats every problem as the specification
//! requires. Start with [`Conduit::app`], then `users.rs` and `articles/`.
#![forbid(unsafe_code)]

mod articles;
mod auth;
mod comments;
mod db;
mod errors;
mod live;
mod pages;
mod passwords;
mod profiles;
mod rules;
mod settings;
mod start;
mod tags;
mod timestamp;
mod uploads;
mod users;

pub use settings::Settings;
pub use start::StartError;

use auth::Tokens;
use db::OpenError;
use errors::Errors;
use live::Live;
use passwords::Passwords;
use peregrine::openapi::{ApiScope, DescribeExt, OpenApi, api_scope};
use peregrine::prelude::*;
use peregrine::rate_limit::RateLimit;
use sqlx::SqlitePool;
use std::time::Duration;
use uploads::Uploads;
use users::Logins;

/// The time limit of an API request.
const API_TIMEOUT: Duration = Duration::from_secs(30);

/// The state that all workers share. A clone refers to the same state.
#[derive(Clone)]
pub struct Conduit {
    pool: SqlitePool,
    passwords: Passwords,
    tokens: Tokens,
    live: Live,
    uploads: Uploads,
    logins: Logins,
}

impl Conduit {
    /// Opens the database and the folder of uploads. Must be called in a Tokio runtime that
    /// outlives the server.
    ///
    /// # Errors
    /// A setting is invalid, or the database or the folder cannot be opened.
    pub async fn open(settings: &Settings) -> Result<Self, StartError> {
        let Settings { database, uploads, wait_max, .. } = settings;
        let secret = settings.secret.expose_secret().as_bytes();
        let tokens = Tokens::new(secret, settings.token_lifetime).map_err(StartError::Secret)?;
        let passwords = Passwords::new(*wait_max).map_err(StartError::Passwords)?;
        let failed = |error| StartError::Uploads(uploads.clone(), error);
        let uploads = Uploads::open(uploads, settings.upload_bytes_max).map_err(failed)?;
        let failed = |error| match error {
            OpenError::Failed(error) => StartError::Database(database.clone(), error),
            OpenError::Newer(steps) => StartError::DatabaseNewer(database.clone(), steps),
        };
        let connections_max = settings.database_connections;
        let pool = db::open(database, connections_max, *wait_max).await.map_err(failed)?;
        let logins = Logins(RateLimit::per_minute(settings.logins_per_minute).name("logins"));
        Ok(Self { pool, passwords, tokens, live: Live::default(), uploads, logins })
    }

    /// The application of one worker.
    #[must_use]
    pub fn app(&self) -> App {
        let uploads = self.uploads.clone();
        App::new()
            .state(self.pool.clone())
            .state(self.passwords.clone())
            .state(self.tokens.clone())
            .state(self.live.clone())
            .state(self.uploads.clone())
            .state(self.logins.clone())
            .on_problem(errors::render)
            .wrap(SetRequestId::new())
            .wrap(CatchPanic::new())
            // Any origin is safe, because tokens are not cookies: a browser does not send them by
            // itself.
            .scope("/api", |scope| {
                scope.wrap(Cors::new().allow_any_origin()).register(api_scope(|api| self.api(api)))
            })
            .scope("/uploads", |scope| uploads.serve(scope))
            .scope("", pages::routes)
            .get("/healthz", (|| "well").never_shed().hidden())
            .register(self.document())
    }

    /// The API of the specification, and two additions: pictures and live updates.
    fn api(&self, api: ApiScope) -> ApiScope {
        api.wrap(Timeout::new(API_TIMEOUT))
            .wrap(self.uploads.limits())
            .scope("", users::routes)
            .scope("/profiles", profiles::routes)
            .scope("/articles", articles::routes)
            .scope("/articles/{slug}/comments", comments::routes)
            .scope("/tags", tags::routes)
            .scope("/live", live::routes)
    }

    fn document(&self) -> OpenApi {
        let (name, scheme) = users::security();
        OpenApi::new("Conduit", env!("CARGO_PKG_VERSION"))
            .description("The API of the RealWorld specification, with pictures and live updates.")
            .security_scheme(name, scheme)
            .problem_schema::<Errors>("application/json")
    }

    /// Closes the database, after the server has stopped.
    pub async fn close(self) {
        self.pool.close().await;
    }
}
