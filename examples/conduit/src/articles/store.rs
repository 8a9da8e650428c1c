//! Articles in the database.

use super::slug;
use super::{Article, Change, NewArticle, Summaries, Summary};
use crate::auth::Viewer;
use crate::db;
use crate::errors::{Error, forbidden, internal, not_found};
use crate::profiles::Profile;
use crate::timestamp::Timestamp;
use garde::Validate;
use schemars::JsonSchema;
use serde::Deserialize;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row, SqliteConnection, SqlitePool};

/// The maximum number of articles per page, even if a client requests more.
const LIMIT_MAX: u32 = 100;

/// Selects articles.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct Filter {
    /// Articles with this tag.
    pub(crate) tag: Option<String>,
    /// Articles by the user with this name.
    pub(crate) author: Option<String>,
    /// Favourites of the user with this name.
    pub(crate) favorited: Option<String>,
}

/// Selects a part of a list.
#[derive(Clone, Copy, Debug, Deserialize, Validate, JsonSchema)]
#[serde(default)]
pub(crate) struct Page {
    /// The number of articles, at most 100.
    #[garde(range(min = 1))]
    pub(crate) limit: u32,
    /// The number of articles to skip.
    #[garde(skip)]
    pub(crate) offset: u32,
}

impl Default for Page {
    fn default() -> Self {
        Self { limit: 20, offset: 0 }
    }
}

/// A row of the query below.
struct Found {
    id: i64,
    summary: Summary,
}

impl FromRow<'_, SqliteRow> for Found {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        let tags: String = row.try_get("tags")?;
        let tag_list =
            serde_json::from_str(&tags).map_err(|error| sqlx::Error::Decode(error.into()))?;
        let summary = Summary {
            slug: row.try_get("slug")?,
            title: row.try_get("title")?,
            description: row.try_get("description")?,
            tag_list,
            created_at: Timestamp(row.try_get("created_at")?),
            updated_at: Timestamp(row.try_get("updated_at")?),
            favorited: row.try_get("favorited")?,
            favorites_count: row.try_get("favorites_count")?,
            author: Profile::from_row(row)?,
        };
        Ok(Self { id: row.try_get("id")?, summary })
    }
}

/// A query of articles as the user `?1` sees them, with `$columns` beside those of a [`Summary`].
macro_rules! select {
    ($columns:literal, $($rest:expr),+) => {
        concat!(
            "SELECT a.id, a.slug, a.title, a.description, a.created_at, a.updated_at, a.favorites_count, ",
            $columns,
            "u.username, u.bio, u.image, \
             EXISTS (SELECT 1 FROM follows WHERE follower_id = ?1 AND followed_id = u.id) AS following, \
             EXISTS (SELECT 1 FROM favorites WHERE user_id = ?1 AND article_id = a.id) AS favorited, \
             (SELECT json_group_array(name ORDER BY name) FROM article_tags WHERE article_id = a.id) AS tags \
             FROM articles a JOIN users u ON u.id = a.author_id ",
            $($rest),+
        )
    };
}

/// The condition for a [`Filter`].
macro_rules! filtered {
    () => {
        "(?2 IS NULL OR EXISTS (SELECT 1 FROM article_tags WHERE article_id = a.id AND name = ?2)) \
         AND (?3 IS NULL OR a.author_id = (SELECT id FROM users WHERE username = ?3)) \
         AND (?4 IS NULL OR EXISTS (SELECT 1 FROM favorites f JOIN users fan ON fan.id = f.user_id \
             WHERE f.article_id = a.id AND fan.username = ?4)) "
    };
}

/// The viewer's id as a query parameter; `None` is an anonymous user.
fn id(viewer: Option<Viewer>) -> Option<i64> {
    viewer.map(|viewer| viewer.id)
}

/// One page of the articles that match the filter, the latest first.
pub(crate) async fn list(
    pool: &SqlitePool,
    viewer: Option<Viewer>,
    filter: &Filter,
    page: Page,
) -> Result<Summaries, Error> {
    const LIST: &str = select!("", "WHERE ", filtered!(), "ORDER BY a.id DESC LIMIT ?5 OFFSET ?6");
    const COUNT: &str = concat!("SELECT count(*), ?1 FROM articles a WHERE ", filtered!());
    // In one transaction, so that both queries see the same articles.
    let mut transaction = pool.begin().await?;
    let Filter { tag, author, favorited } = filter;
    let list =
        sqlx::query_as::<_, Found>(LIST).bind(id(viewer)).bind(tag).bind(author).bind(favorited);
    let list = list.bind(page.limit.min(LIMIT_MAX)).bind(page.offset);
    let found = list.fetch_all(&mut *transaction).await?;
    let total = sqlx::query_scalar(COUNT).bind(id(viewer)).bind(tag).bind(author).bind(favorited);
    let articles_count = total.fetch_one(&mut *transaction).await?;
    Ok(Summaries {
        articles: found.into_iter().map(|found| found.summary).collect(),
        articles_count,
    })
}

/// One page of the articles by users that the viewer follows, the latest first.
pub(super) async fn feed(
    pool: &SqlitePool,
    viewer: Viewer,
    page: Page,
) -> Result<Summaries, Error> {
    const LIST: &str = select!(
        "",
        "JOIN follows f ON f.followed_id = a.author_id WHERE f.follower_id = ?1 ORDER BY a.id DESC LIMIT ?2 OFFSET ?3"
    );
    const COUNT: &str = "SELECT count(*) FROM articles a JOIN follows f ON f.followed_id = a.author_id WHERE f.follower_id = ?1";
    let mut transaction = pool.begin().await?;
    let list = sqlx::query_as::<_, Found>(LIST).bind(viewer.id);
    let list = list.bind(page.limit.min(LIMIT_MAX)).bind(page.offset);
    let found = list.fetch_all(&mut *transaction).await?;
    let articles_count =
        sqlx::query_scalar(COUNT).bind(viewer.id).fetch_one(&mut *transaction).await?;
    Ok(Summaries {
        articles: found.into_iter().map(|found| found.summary).collect(),
        articles_count,
    })
}

/// An article and its id.
pub(crate) async fn find(
    pool: &SqlitePool,
    viewer: Option<Viewer>,
    slug: &str,
) -> Result<(i64, Article), Error> {
    let row = sqlx::query(select!("a.body, ", "WHERE a.slug = ?2")).bind(id(viewer)).bind(slug);
    let row = row.fetch_optional(pool).await?.ok_or_else(|| not_found("article"))?;
    let (Found { id, summary }, body) = (Found::from_row(&row)?, row.try_get("body")?);
    Ok((id, Article { summary, body }))
}

/// The article's id.
pub(crate) async fn id_of(pool: &SqlitePool, slug: &str) -> Result<i64, Error> {
    let id = sqlx::query_scalar("SELECT id FROM articles WHERE slug = ?").bind(slug);
    id.fetch_optional(pool).await?.ok_or_else(|| not_found("article"))
}

/// Articles after this one, the oldest first, as an anonymous user sees them.
pub(crate) async fn newer_than(
    pool: &SqlitePool,
    last: i64,
    limit: u32,
) -> Result<Vec<(i64, Summary)>, Error> {
    const NEWER: &str = select!("", "WHERE a.id > ?2 ORDER BY a.id LIMIT ?3");
    let found = sqlx::query_as::<_, Found>(NEWER).bind(None::<i64>).bind(last).bind(limit);
    let found = found.fetch_all(pool).await?;
    Ok(found.into_iter().map(|found| (found.id, found.summary)).collect())
}

/// The id of an article that the viewer may change.
async fn owned(
    connection: &mut SqliteConnection,
    viewer: Viewer,
    slug: &str,
) -> Result<i64, Error> {
    let found = sqlx::query_as("SELECT id, author_id FROM articles WHERE slug = ?").bind(slug);
    let found: Option<(i64, i64)> = found.fetch_optional(connection).await?;
    let (id, author_id) = found.ok_or_else(|| not_found("article"))?;
    if author_id == viewer.id { Ok(id) } else { Err(forbidden("article")) }
}

/// Stores a new article and its tags, atomically, and returns its slug.
pub(super) async fn create(
    pool: &SqlitePool,
    viewer: Viewer,
    new: &NewArticle,
) -> Result<String, Error> {
    let mut transaction = pool.begin_with(db::WRITE).await?;
    let slug = free_slug(&mut transaction, &new.title).await?;
    let insert = sqlx::query_scalar(
        "INSERT INTO articles (author_id, slug, title, description, body, created_at, updated_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6) RETURNING id",
    );
    let insert = insert.bind(viewer.id).bind(&slug).bind(&new.title).bind(&new.description);
    let insert = insert.bind(&new.body).bind(Timestamp::now().0);
    let id = insert.fetch_one(&mut *transaction).await?;
    set_tags(&mut transaction, id, &new.tag_list).await?;
    transaction.commit().await?;
    Ok(slug)
}

/// Changes an article and returns its slug, which changes with the title.
pub(super) async fn update(
    pool: &SqlitePool,
    viewer: Viewer,
    slug: String,
    change: &Change,
) -> Result<String, Error> {
    let mut transaction = pool.begin_with(db::WRITE).await?;
    let id = owned(&mut transaction, viewer, &slug).await?;
    let slug = match &change.title {
        Some(title) if !slug::is_of_title(&slug, title) => {
            free_slug(&mut transaction, title).await?
        }
        _ => slug,
    };
    // `updated_at` always increases, so clients can tell a later state from an earlier one.
    let update = sqlx::query(
        "UPDATE articles SET slug = ?2, title = coalesce(?3, title), description = coalesce(?4, description), \
         body = coalesce(?5, body), updated_at = max(?6, updated_at + 1) WHERE id = ?1",
    );
    let update = update.bind(id).bind(&slug).bind(&change.title).bind(&change.description);
    let update = update.bind(&change.body).bind(Timestamp::now().0);
    update.execute(&mut *transaction).await?;
    if let Some(tags) = &change.tag_list {
        set_tags(&mut transaction, id, tags).await?;
    }
    transaction.commit().await?;
    Ok(slug)
}

/// Deletes an article with its tags, favourites and comments.
pub(super) async fn remove(pool: &SqlitePool, viewer: Viewer, slug: &str) -> Result<(), Error> {
    let mut transaction = pool.begin_with(db::WRITE).await?;
    let id = owned(&mut transaction, viewer, slug).await?;
    sqlx::query("DELETE FROM articles WHERE id = ?").bind(id).execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(())
}

/// Adds an article to the viewer's favourites or removes it, together with the count, atomically.
pub(super) async fn favorite(
    pool: &SqlitePool,
    viewer: Viewer,
    slug: &str,
    is_favorite: bool,
) -> Result<(), Error> {
    let id = id_of(pool, slug).await?;
    let (edit, delta) = match is_favorite {
        true => {
            ("INSERT INTO favorites (user_id, article_id) VALUES (?, ?) ON CONFLICT DO NOTHING", 1)
        }
        false => ("DELETE FROM favorites WHERE user_id = ? AND article_id = ?", -1),
    };
    let mut transaction = pool.begin_with(db::WRITE).await?;
    let changed = sqlx::query(edit).bind(viewer.id).bind(id).execute(&mut *transaction).await;
    let changed = changed.map_err(|error| match error {
        // The article was deleted meanwhile.
        sqlx::Error::Database(cause) if cause.is_foreign_key_violation() => not_found("article"),
        error => error.into(),
    })?;
    // Repeating the request changes nothing.
    if changed.rows_affected() > 0 {
        let update = "UPDATE articles SET favorites_count = favorites_count + ? WHERE id = ?";
        sqlx::query(update).bind(delta).bind(id).execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    Ok(())
}

async fn set_tags(
    connection: &mut SqliteConnection,
    id: i64,
    tags: &[String],
) -> Result<(), sqlx::Error> {
    let remove = sqlx::query("DELETE FROM article_tags WHERE article_id = ?").bind(id);
    remove.execute(&mut *connection).await?;
    for tag in tags {
        let insert =
            "INSERT INTO article_tags (article_id, name) VALUES (?, ?) ON CONFLICT DO NOTHING";
        sqlx::query(insert).bind(id).bind(tag.trim()).execute(&mut *connection).await?;
    }
    Ok(())
}

/// An unused slug for the title. The transaction excludes other writers, so the slug stays unused.
async fn free_slug(connection: &mut SqliteConnection, title: &str) -> Result<String, Error> {
    let mut slug = slug::of_title(title);
    let plain = slug.clone();
    loop {
        let is_taken = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM articles WHERE slug = ?)");
        if !is_taken.bind(&slug).fetch_one(&mut *connection).await? {
            return Ok(slug);
        }
        let mut suffix = [0; 4];
        getrandom::fill(&mut suffix)
            .map_err(|error| internal("the system provides no random numbers", &error))?;
        slug = slug::with_suffix(&plain, u32::from_le_bytes(suffix));
    }
}
