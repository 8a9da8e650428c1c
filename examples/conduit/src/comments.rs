//! Comments of articles.

use crate::articles;
use crate::auth::Viewer;
use crate::errors::{Error, forbidden, not_found};
use crate::live::Live;
use crate::profiles::Profile;
use crate::rules::not_blank;
use crate::timestamp::Timestamp;
use garde::Validate;
use peregrine::openapi::{ApiScope, DescribeExt, WithStatus};
use peregrine::prelude::*;
use peregrine::validate::Valid;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row, SqlitePool};

/// The specification does not paginate comments. Only the latest of them are returned.
const COMMENTS_MAX: u32 = 1000;

pub(crate) fn routes(api: ApiScope) -> ApiScope {
    const UNKNOWN: &str = "The article does not exist, or it does not have this comment.";
    api.tag("comments")
        .get(
            "/",
            index.named("comments").describe(|it| {
                it.summary("Comments of an article, the latest first").problem(404, UNKNOWN)
            }),
        )
        .post(
            "/",
            create
                .run_to_completion()
                .named("create_comment")
                .describe(|it| it.summary("Adds a comment").problem(404, UNKNOWN)),
        )
        .delete(
            "/{id}",
            remove.named("remove_comment").describe(|it| {
                it.summary("Deletes a comment")
                    .problem(403, "The comment belongs to another user.")
                    .problem(404, UNKNOWN)
            }),
        )
}

#[derive(Deserialize, Validate, JsonSchema)]
struct NewCommentBody {
    #[garde(dive)]
    comment: NewComment,
}

#[derive(Deserialize, Validate, JsonSchema)]
struct NewComment {
    #[serde(default)]
    #[schemars(!default)]
    #[garde(custom(not_blank), length(chars, max = 10_000))]
    body: String,
}

#[derive(Serialize, JsonSchema)]
struct CommentBody {
    comment: Comment,
}

#[derive(Serialize, JsonSchema)]
struct CommentsBody {
    comments: Vec<Comment>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Comment {
    pub(crate) id: i64,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    pub(crate) body: String,
    pub(crate) author: Profile,
}

impl FromRow<'_, SqliteRow> for Comment {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        // Comments cannot be changed.
        let created_at = Timestamp(row.try_get("created_at")?);
        let (id, body, author) =
            (row.try_get("id")?, row.try_get("body")?, Profile::from_row(row)?);
        Ok(Self { id, created_at, updated_at: created_at, body, author })
    }
}

/// A query of comments as the user `?1` sees them.
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT c.id, c.created_at, c.body, u.username, u.bio, u.image, \
             EXISTS (SELECT 1 FROM follows WHERE follower_id = ?1 AND followed_id = u.id) AS following \
             FROM comments c JOIN users u ON u.id = c.author_id ",
            $rest
        )
    };
}

/// The comments of an article, the latest first.
pub(crate) async fn of_article(
    pool: &SqlitePool,
    viewer: Option<Viewer>,
    article_id: i64,
) -> Result<Vec<Comment>, Error> {
    let comments = sqlx::query_as(select!("WHERE c.article_id = ?2 ORDER BY c.id DESC LIMIT ?3"));
    let comments =
        comments.bind(viewer.map(|viewer| viewer.id)).bind(article_id).bind(COMMENTS_MAX);
    Ok(comments.fetch_all(pool).await?)
}

/// Comments of an article after this one, the oldest first, as an anonymous user sees them.
pub(crate) async fn newer_than(
    pool: &SqlitePool,
    article_id: i64,
    last: i64,
    limit: u32,
) -> Result<Vec<Comment>, Error> {
    let comments =
        sqlx::query_as(select!("WHERE c.article_id = ?2 AND c.id > ?3 ORDER BY c.id LIMIT ?4"));
    let comments = comments.bind(None::<i64>).bind(article_id).bind(last).bind(limit);
    Ok(comments.fetch_all(pool).await?)
}

/// One comment of an article.
async fn find(pool: &SqlitePool, viewer: Option<Viewer>, id: i64) -> Result<Comment, Error> {
    let comment = sqlx::query_as(select!("WHERE c.id = ?2")).bind(viewer.map(|viewer| viewer.id));
    comment.bind(id).fetch_optional(pool).await?.ok_or_else(|| not_found("comment"))
}

async fn index(
    viewer: Option<Viewer>,
    pool: StateRef<SqlitePool>,
    Path(slug): Path<String>,
) -> Result<Json<CommentsBody>, Error> {
    let article_id = articles::id_of(&pool, &slug).await?;
    let comments = of_article(&pool, viewer, article_id).await?;
    Ok(Json(CommentsBody { comments }))
}

async fn create(
    viewer: Viewer,
    pool: StateRef<SqlitePool>,
    live: StateRef<Live>,
    Path(slug): Path<String>,
    Valid(Json(NewCommentBody { comment })): Valid<Json<NewCommentBody>>,
) -> Result<WithStatus<201, Json<CommentBody>>, Error> {
    // A single statement, so the article cannot be deleted in between.
    let insert = sqlx::query_as(
        "INSERT INTO comments (article_id, author_id, body, created_at) \
         SELECT id, ?2, ?3, ?4 FROM articles WHERE slug = ?1 RETURNING id, article_id",
    );
    let insert = insert.bind(slug).bind(viewer.id).bind(comment.body).bind(Timestamp::now().0);
    let inserted: Option<(i64, i64)> = insert.fetch_optional(&*pool).await?;
    let (id, article_id) = inserted.ok_or_else(|| not_found("article"))?;
    let comment = find(&pool, Some(viewer), id).await?;
    live.publish_comment(article_id, &find(&pool, None, id).await?);
    Ok(WithStatus(Json(CommentBody { comment })))
}

async fn remove(
    viewer: Viewer,
    pool: StateRef<SqlitePool>,
    Path((slug, id)): Path<(String, i64)>,
) -> Result<WithStatus<204, ()>, Error> {
    let article_id = articles::id_of(&pool, &slug).await?;
    let author =
        sqlx::query_scalar("SELECT author_id FROM comments WHERE id = ? AND article_id = ?");
    let author: Option<i64> = author.bind(id).bind(article_id).fetch_optional(&*pool).await?;
    if author.ok_or_else(|| not_found("comment"))? != viewer.id {
        return Err(forbidden("comment"));
    }
    sqlx::query("DELETE FROM comments WHERE id = ?").bind(id).execute(&*pool).await?;
    Ok(WithStatus(()))
}
