//! Articles: publishing, changing, listing, and favourites. This file has the routes; `store.rs`
//! has the database queries.

mod slug;
mod store;

pub(crate) use store::{Filter, Page, find, id_of, list, newer_than};

use crate::auth::Viewer;
use crate::errors::Error;
use crate::live::Live;
use crate::profiles::Profile;
use crate::rules::{not_blank, present};
use crate::timestamp::Timestamp;
use garde::Validate;
use peregrine::openapi::{ApiScope, DescribeExt, WithStatus};
use peregrine::prelude::*;
use peregrine::validate::Valid;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;

pub(crate) fn routes(api: ApiScope) -> ApiScope {
    const UNKNOWN: &str = "There is no such article.";
    // `run_to_completion`: a stored article is announced even if its author disconnects.
    const ANOTHERS: &str = "The article belongs to another user.";
    api.tag("articles")
        .get("/", index.named("articles").describe(|it| it.summary("Articles, the latest first")))
        .get(
            "/feed",
            feed.named("feed").describe(|it| it.summary("Articles by users that the user follows")),
        )
        .post(
            "/",
            create
                .run_to_completion()
                .named("create_article")
                .describe(|it| it.summary("Publishes an article")),
        )
        .get(
            "/{slug}",
            show.named("article").describe(|it| it.summary("One article").problem(404, UNKNOWN)),
        )
        .put(
            "/{slug}",
            update.named("update_article").describe(|it| {
                it.summary("Changes an article").problem(403, ANOTHERS).problem(404, UNKNOWN)
            }),
        )
        .delete(
            "/{slug}",
            remove.named("remove_article").describe(|it| {
                it.summary("Deletes an article with its comments")
                    .problem(403, ANOTHERS)
                    .problem(404, UNKNOWN)
            }),
        )
        .post(
            "/{slug}/favorite",
            favorite
                .named("favorite")
                .describe(|it| it.summary("Adds a favourite").problem(404, UNKNOWN)),
        )
        .delete(
            "/{slug}/favorite",
            unfavorite
                .named("unfavorite")
                .describe(|it| it.summary("Removes a favourite").problem(404, UNKNOWN)),
        )
}

#[derive(Deserialize, Validate, JsonSchema)]
struct NewArticleBody {
    #[garde(dive)]
    article: NewArticle,
}

/// A missing field is read as empty, so that both give the same error.
#[derive(Deserialize, Validate, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct NewArticle {
    #[serde(default)]
    #[schemars(!default)]
    #[garde(custom(not_blank), length(chars, max = 200))]
    title: String,
    #[serde(default)]
    #[schemars(!default)]
    #[garde(custom(not_blank), length(chars, max = 1000))]
    description: String,
    #[serde(default)]
    #[schemars(!default)]
    #[garde(custom(not_blank), length(chars, max = 100_000))]
    body: String,
    #[serde(default)]
    #[garde(length(max = 20), inner(custom(not_blank), length(chars, max = 50)))]
    tag_list: Vec<String>,
}

#[derive(Deserialize, Validate, JsonSchema)]
struct ChangeBody {
    #[garde(dive)]
    article: Change,
}

/// Missing fields are not changed.
#[derive(Deserialize, Validate, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Change {
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "String")]
    #[garde(inner(custom(not_blank), length(chars, max = 200)))]
    title: Option<String>,
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "String")]
    #[garde(inner(custom(not_blank), length(chars, max = 1000)))]
    description: Option<String>,
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "String")]
    #[garde(inner(custom(not_blank), length(chars, max = 100_000)))]
    body: Option<String>,
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "Vec<String>")]
    #[garde(inner(length(max = 20), inner(custom(not_blank), length(chars, max = 50))))]
    tag_list: Option<Vec<String>>,
}

#[derive(Serialize, JsonSchema)]
struct ArticleBody {
    article: Article,
}

/// An article with its text.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Article {
    #[serde(flatten)]
    pub(crate) summary: Summary,
    pub(crate) body: String,
}

/// An article in a list.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    pub(crate) slug: String,
    pub(crate) title: String,
    pub(crate) description: String,
    pub(crate) tag_list: Vec<String>,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    /// Whether it is a favourite of the user of the request.
    pub(crate) favorited: bool,
    pub(crate) favorites_count: i64,
    pub(crate) author: Profile,
}

/// One page of a list.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summaries {
    pub(crate) articles: Vec<Summary>,
    /// The number of articles on all pages.
    pub(crate) articles_count: i64,
}

async fn index(
    viewer: Option<Viewer>,
    pool: StateRef<SqlitePool>,
    Query(filter): Query<Filter>,
    Valid(Query(page)): Valid<Query<Page>>,
) -> Result<Json<Summaries>, Error> {
    store::list(&pool, viewer, &filter, page).await.map(Json)
}

async fn feed(
    viewer: Viewer,
    pool: StateRef<SqlitePool>,
    Valid(Query(page)): Valid<Query<Page>>,
) -> Result<Json<Summaries>, Error> {
    store::feed(&pool, viewer, page).await.map(Json)
}

async fn show(
    viewer: Option<Viewer>,
    pool: StateRef<SqlitePool>,
    Path(slug): Path<String>,
) -> Result<Json<ArticleBody>, Error> {
    let (_, article) = store::find(&pool, viewer, &slug).await?;
    Ok(Json(ArticleBody { article }))
}

async fn create(
    viewer: Viewer,
    pool: StateRef<SqlitePool>,
    live: StateRef<Live>,
    Valid(Json(NewArticleBody { article })): Valid<Json<NewArticleBody>>,
) -> Result<WithStatus<201, Json<ArticleBody>>, Error> {
    let slug = store::create(&pool, viewer, &article).await?;
    // The event shows the article as an anonymous user sees it.
    let (id, published) = store::find(&pool, None, &slug).await?;
    live.publish_article(id, &published.summary);
    show(Some(viewer), pool, Path(slug)).await.map(WithStatus)
}

async fn update(
    viewer: Viewer,
    pool: StateRef<SqlitePool>,
    Path(slug): Path<String>,
    Valid(Json(ChangeBody { article })): Valid<Json<ChangeBody>>,
) -> Result<Json<ArticleBody>, Error> {
    let slug = store::update(&pool, viewer, slug, &article).await?;
    show(Some(viewer), pool, Path(slug)).await
}

async fn remove(
    viewer: Viewer,
    pool: StateRef<SqlitePool>,
    Path(slug): Path<String>,
) -> Result<WithStatus<204, ()>, Error> {
    store::remove(&pool, viewer, &slug).await.map(WithStatus)
}

async fn favorite(
    viewer: Viewer,
    pool: StateRef<SqlitePool>,
    Path(slug): Path<String>,
) -> Result<Json<ArticleBody>, Error> {
    store::favorite(&pool, viewer, &slug, true).await?;
    show(Some(viewer), pool, Path(slug)).await
}

async fn unfavorite(
    viewer: Viewer,
    pool: StateRef<SqlitePool>,
    Path(slug): Path<String>,
) -> Result<Json<ArticleBody>, Error> {
    store::favorite(&pool, viewer, &slug, false).await?;
    show(Some(viewer), pool, Path(slug)).await
}
