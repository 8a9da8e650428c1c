//! Profiles: the public data of users, and who follows them.

use crate::auth::Viewer;
use crate::errors::{Error, not_found};
use peregrine::openapi::{ApiScope, DescribeExt};
use peregrine::prelude::*;
use schemars::JsonSchema;
use serde::Serialize;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row, SqlitePool};

pub(crate) fn routes(api: ApiScope) -> ApiScope {
    const UNKNOWN: &str = "There is no user with this name.";
    let show = show
        .named("profile")
        .describe(|it| it.summary("The profile of a user").problem(404, UNKNOWN));
    let follow =
        follow.named("follow").describe(|it| it.summary("Follows a user").problem(404, UNKNOWN));
    let unfollow = unfollow
        .named("unfollow")
        .describe(|it| it.summary("Unfollows a user").problem(404, UNKNOWN));
    api.tag("profiles")
        .get("/{username}", show)
        .scope("/{username}/follow", |api| api.post("/", follow).delete("/", unfollow))
}

#[derive(Serialize, JsonSchema)]
struct ProfileBody {
    profile: Profile,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Profile {
    pub(crate) username: String,
    pub(crate) bio: Option<String>,
    pub(crate) image: Option<String>,
    /// Whether the user of the request follows this user.
    pub(crate) following: bool,
}

impl FromRow<'_, SqliteRow> for Profile {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self {
            username: row.try_get("username")?,
            bio: row.try_get("bio")?,
            image: row.try_get("image")?,
            following: row.try_get("following")?,
        })
    }
}

/// The profile with this name, as the viewer sees it.
pub(crate) async fn find(
    pool: &SqlitePool,
    viewer: Option<Viewer>,
    username: &str,
) -> Result<Profile, Error> {
    let profile = sqlx::query_as::<_, Profile>(
        "SELECT username, bio, image, EXISTS (SELECT 1 FROM follows WHERE follower_id = ?1 AND followed_id = users.id) AS following \
         FROM users WHERE username = ?2",
    );
    let profile = profile.bind(viewer.map(|viewer| viewer.id)).bind(username);
    profile.fetch_optional(pool).await?.ok_or_else(|| not_found("profile"))
}

async fn show(
    viewer: Option<Viewer>,
    pool: StateRef<SqlitePool>,
    Path(username): Path<String>,
) -> Result<Json<ProfileBody>, Error> {
    find(&pool, viewer, &username).await.map(|profile| Json(ProfileBody { profile }))
}

async fn follow(
    viewer: Viewer,
    pool: StateRef<SqlitePool>,
    Path(username): Path<String>,
) -> Result<Json<ProfileBody>, Error> {
    let follow = "INSERT INTO follows (follower_id, followed_id) SELECT ?1, id FROM users WHERE username = ?2 \
                  ON CONFLICT DO NOTHING";
    sqlx::query(follow).bind(viewer.id).bind(&username).execute(&*pool).await?;
    show(Some(viewer), pool, Path(username)).await
}

async fn unfollow(
    viewer: Viewer,
    pool: StateRef<SqlitePool>,
    Path(username): Path<String>,
) -> Result<Json<ProfileBody>, Error> {
    let unfollow = "DELETE FROM follows WHERE follower_id = ?1 \
                    AND followed_id = (SELECT id FROM users WHERE username = ?2)";
    sqlx::query(unfollow).bind(viewer.id).bind(&username).execute(&*pool).await?;
    show(Some(viewer), pool, Path(username)).await
}
