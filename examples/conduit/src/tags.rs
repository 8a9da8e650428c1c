//! Tags of articles.

use crate::errors::Error;
use peregrine::openapi::{ApiScope, DescribeExt};
use peregrine::prelude::*;
use schemars::JsonSchema;
use serde::Serialize;
use sqlx::SqlitePool;

/// Only the most used tags are returned.
const TAGS_MAX: u32 = 1000;

pub(crate) fn routes(api: ApiScope) -> ApiScope {
    api.tag("tags")
        .get("/", index.named("tags").describe(|it| it.summary("Tags, the most used first")))
}

#[derive(Serialize, JsonSchema)]
struct TagsBody {
    tags: Vec<String>,
}

/// The most used tags.
pub(crate) async fn most_used(pool: &SqlitePool, limit: u32) -> Result<Vec<String>, Error> {
    let tags = "SELECT name FROM article_tags GROUP BY name ORDER BY count(*) DESC, name LIMIT ?";
    Ok(sqlx::query_scalar(tags).bind(limit).fetch_all(pool).await?)
}

async fn index(pool: StateRef<SqlitePool>) -> Result<Json<TagsBody>, Error> {
    let tags = most_used(&pool, TAGS_MAX).await?;
    Ok(Json(TagsBody { tags }))
}
