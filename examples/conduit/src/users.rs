//! Users: registration, login, and changes to the account.

use crate::auth::{SCHEME, Tokens, Viewer};
use crate::db;
use crate::errors::{self, Error};
use crate::passwords::Passwords;
use crate::rules::{is_email, is_password, is_picture, is_username, not_blank, present};
use crate::uploads::{self, Uploads};
use garde::Validate;
use peregrine::openapi::{ApiScope, DescribeExt, WithStatus};
use peregrine::prelude::*;
use peregrine::rate_limit::RateLimit;
use peregrine::validate::Valid;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row, SqliteConnection, SqlitePool};

/// The limit on login attempts per account.
#[derive(Clone)]
pub(crate) struct Logins(pub(crate) RateLimit);

pub(crate) fn routes(api: ApiScope) -> ApiScope {
    // A request that waits for a hash holds memory, so their number is limited.
    let register = register.requests_max(64).named("register").describe(|it| {
        it.summary("Registers a user").problem(409, "Another user has this name or address.")
    });
    let login = login.requests_max(64).named("login").describe(|it| {
        it.summary("Logs in and returns a token")
            .problem(401, "The address or the password is wrong.")
            .problem(429, "Too many attempts.")
    });
    api.tag("users")
        .post("/users", register)
        .post("/users/login", login)
        .get("/user", current.named("current_user").describe(|it| it.summary("The user")))
        .put(
            "/user",
            update.requests_max(64).named("update_user").describe(|it| {
                it.summary("Changes the user's account")
                    .problem(409, "Another user has this name or address.")
            }),
        )
        .scope("/user/image", uploads::routes)
}

#[derive(Deserialize, Validate, JsonSchema)]
struct NewUserBody {
    #[garde(dive)]
    user: NewUser,
}

/// A missing field is read as empty, so that both give the same error.
#[derive(Deserialize, Validate, JsonSchema)]
struct NewUser {
    #[serde(default)]
    #[schemars(!default)]
    #[garde(custom(is_username), length(chars, max = 64))]
    username: String,
    #[serde(default)]
    #[schemars(!default)]
    #[garde(custom(is_email), length(chars, max = 254))]
    email: String,
    #[serde(default)]
    #[schemars(!default)]
    #[garde(custom(is_password))]
    password: String,
}

#[derive(Deserialize, Validate, JsonSchema)]
struct LoginBody {
    #[garde(dive)]
    user: Login,
}

#[derive(Deserialize, Validate, JsonSchema)]
struct Login {
    #[serde(default)]
    #[schemars(!default)]
    #[garde(custom(not_blank), length(chars, max = 254))]
    email: String,
    #[serde(default)]
    #[schemars(!default)]
    #[garde(custom(not_blank), length(max = 256))]
    password: String,
}

#[derive(Deserialize, Validate, JsonSchema)]
struct ChangeBody {
    #[garde(dive)]
    user: Change,
}

/// Missing fields are not changed.
#[derive(Deserialize, Validate, JsonSchema)]
struct Change {
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "String")]
    #[garde(inner(custom(is_username), length(chars, max = 64)))]
    username: Option<String>,
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "String")]
    #[garde(inner(custom(is_email), length(chars, max = 254)))]
    email: Option<String>,
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "String")]
    #[garde(inner(custom(is_password)))]
    password: Option<String>,
    /// `null` or an empty text removes it.
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "Option<String>")]
    #[garde(inner(inner(length(chars, max = 2000))))]
    bio: Option<Option<String>>,
    /// `null` or an empty text removes it.
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "Option<String>")]
    #[garde(inner(inner(custom(is_picture), length(chars, max = 2000))))]
    image: Option<Option<String>>,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct UserBody {
    user: User,
}

#[derive(Serialize, JsonSchema)]
struct User {
    email: String,
    token: String,
    username: String,
    bio: Option<String>,
    image: Option<String>,
}

/// A user, as stored in the database.
pub(crate) struct Account {
    id: i64,
    username: String,
    email: String,
    password_hash: String,
    bio: Option<String>,
    image: Option<String>,
    token_epoch: i64,
}

impl FromRow<'_, SqliteRow> for Account {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self {
            id: row.try_get("id")?,
            username: row.try_get("username")?,
            email: row.try_get("email")?,
            password_hash: row.try_get("password_hash")?,
            bio: row.try_get("bio")?,
            image: row.try_get("image")?,
            token_epoch: row.try_get("token_epoch")?,
        })
    }
}

impl Account {
    /// The representation for the user, with a new token.
    pub(crate) fn shown(self, tokens: &Tokens) -> Result<Json<UserBody>, Error> {
        let token = tokens.issue(self.id, self.token_epoch)?;
        let Self { email, username, bio, image, .. } = self;
        Ok(Json(UserBody { user: User { email, token, username, bio, image } }))
    }
}

async fn register(
    pool: StateRef<SqlitePool>,
    passwords: StateRef<Passwords>,
    tokens: StateRef<Tokens>,
    Valid(Json(NewUserBody { user })): Valid<Json<NewUserBody>>,
) -> Result<WithStatus<201, Json<UserBody>>, Error> {
    let hash = passwords.hash(user.password).await?;
    let insert = "INSERT INTO users (username, email, password_hash) VALUES (?, ?, ?) RETURNING *";
    let insert =
        sqlx::query_as::<_, Account>(insert).bind(user.username).bind(user.email).bind(hash);
    let account = insert.fetch_one(&*pool).await.map_err(taken)?;
    account.shown(&tokens).map(WithStatus)
}

async fn login(
    pool: StateRef<SqlitePool>,
    passwords: StateRef<Passwords>,
    tokens: StateRef<Tokens>,
    logins: StateRef<Logins>,
    Valid(Json(LoginBody { user })): Valid<Json<LoginBody>>,
) -> Result<Json<UserBody>, Error> {
    // Before the expensive work. The limit per account also stops guessing from many addresses.
    logins.0.check_key(user.email.to_lowercase()).await?;
    let found =
        sqlx::query_as::<_, Account>("SELECT * FROM users WHERE email = ?").bind(&user.email);
    let found = found.fetch_optional(&*pool).await?;
    let hash = found.as_ref().map(|account| account.password_hash.clone());
    let is_right = passwords.is_right(user.password, hash).await?;
    let account = found.filter(|_| is_right);
    let wrong = || Error(errors::about(StatusCode::UNAUTHORIZED, "credentials", "invalid"));
    account.ok_or_else(wrong)?.shown(&tokens)
}

async fn current(
    viewer: Viewer,
    pool: StateRef<SqlitePool>,
    tokens: StateRef<Tokens>,
) -> Result<Json<UserBody>, Error> {
    let account = sqlx::query_as::<_, Account>("SELECT * FROM users WHERE id = ?").bind(viewer.id);
    account.fetch_one(&*pool).await?.shown(&tokens)
}

async fn update(
    viewer: Viewer,
    pool: StateRef<SqlitePool>,
    passwords: StateRef<Passwords>,
    tokens: StateRef<Tokens>,
    uploads: StateRef<Uploads>,
    Valid(Json(ChangeBody { user: change })): Valid<Json<ChangeBody>>,
) -> Result<Json<UserBody>, Error> {
    let Change { username, email, password, bio, image } = change;
    let is_empty = username.is_none() && email.is_none() && password.is_none();
    if is_empty && bio.is_none() && image.is_none() {
        return Err(errors::invalid("user", "has no changes"));
    }
    // The expensive work runs before the transaction, which blocks other writers.
    let hash = match password {
        Some(password) => Some(passwords.hash(password).await?),
        None => None,
    };
    let mut transaction = pool.begin_with(db::WRITE).await?;
    let before = image_of(&mut transaction, viewer.id).await?;
    let account = sqlx::query_as::<_, Account>(
        "UPDATE users SET username = coalesce(?1, username), email = coalesce(?2, email), \
         password_hash = coalesce(?3, password_hash), token_epoch = token_epoch + (?3 IS NOT NULL), \
         bio = CASE WHEN ?4 THEN nullif(?5, '') ELSE bio END, \
         image = CASE WHEN ?6 THEN nullif(?7, '') ELSE image END \
         WHERE id = ?8 RETURNING *",
    );
    let account = account.bind(username).bind(email).bind(hash);
    let account = account.bind(bio.is_some()).bind(bio.flatten());
    let account = account.bind(image.is_some()).bind(image.flatten()).bind(viewer.id);
    let account = account.fetch_one(&mut *transaction).await.map_err(taken)?;
    transaction.commit().await?;
    uploads.clear(&pool, before).await;
    account.shown(&tokens)
}

/// The user's current picture.
pub(crate) async fn image_of(
    connection: &mut SqliteConnection,
    user_id: i64,
) -> Result<Option<String>, sqlx::Error> {
    let image = sqlx::query_scalar("SELECT image FROM users WHERE id = ?").bind(user_id);
    image.fetch_one(connection).await
}

/// Maps the violation of a unique constraint to the error of its field.
fn taken(error: sqlx::Error) -> Error {
    match &error {
        sqlx::Error::Database(cause) if cause.is_unique_violation() => {
            errors::taken(if cause.message().contains("users.email") {
                "email"
            } else {
                "username"
            })
        }
        _ => error.into(),
    }
}

/// The security scheme of the OpenAPI document.
pub(crate) fn security() -> (&'static str, peregrine::openapi::SecurityScheme) {
    let scheme = peregrine::openapi::SecurityScheme::api_key_header("Authorization");
    (SCHEME, scheme.description("`Token`, a space, and the token from the login."))
}
