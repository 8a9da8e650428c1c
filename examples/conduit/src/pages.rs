//! HTML pages, for people and search engines: the latest articles, one article, one author.
//!
//! Templates escape all values. Scripts and styles come from [`Assets`], so the content security
//! policy allows nothing else.

use crate::articles::{self, Article, Filter, Page, Summaries, Summary};
use crate::comments::{self, Comment};
use crate::errors::Error;
use crate::profiles::{self, Profile};
use crate::tags;
use askama::Template;
use peregrine::files::Files;
use peregrine::middleware::security_headers::Csp;
use peregrine::prelude::*;
use peregrine::web::RoutePath;
use serde::Deserialize;
use sqlx::SqlitePool;

/// The number of articles on a page.
const ARTICLES_PER_PAGE: u32 = 10;
/// The number of tags on the front page.
const FRONT_PAGE_TAGS: u32 = 20;

const ARTICLE: RoutePath<String> = RoutePath::new("/articles/{slug}");
const AUTHOR: RoutePath<String> = RoutePath::new("/authors/{username}");
const TAG: RoutePath<String> = RoutePath::new("/tags/{tag}");
const LIVE_COMMENTS: RoutePath<String> = RoutePath::new("/api/live/articles/{slug}/comments");

/// The style sheet and the script, embedded in the program.
#[derive(rust_embed::Embed)]
#[folder = "assets"]
struct Assets;

pub(crate) fn routes(scope: Scope) -> Scope {
    let csp = Csp::new()
        .default_src(["'none'"])
        .script_src(["'self'"])
        .style_src(["'self'"])
        .connect_src(["'self'"])
        // Users may link to pictures anywhere.
        .img_src(["'self'", "https:", "http:"])
        .base_uri(["'none'"])
        .form_action(["'none'"]);
    scope
        .wrap(SecurityHeaders::new().csp(csp))
        .get("/", front)
        .get(TAG.pattern(), of_tag)
        .get(ARTICLE.pattern(), article)
        .get(AUTHOR.pattern(), author)
        .subtree("/assets", Files::embedded::<Assets>().no_index())
}

/// The query string of a list's page.
#[derive(Deserialize)]
struct PageQuery {
    /// The number of the page, from 1.
    #[serde(default = "first_page")]
    page: u32,
}

fn first_page() -> u32 {
    1
}

impl PageQuery {
    fn to_page(&self) -> Page {
        Page {
            limit: ARTICLES_PER_PAGE,
            offset: self.page.saturating_sub(1).saturating_mul(ARTICLES_PER_PAGE),
        }
    }
}

/// An article in a list, with its links.
struct Entry {
    article: Summary,
    link: String,
    author: String,
    tags: Vec<Link>,
}

struct Link {
    name: String,
    link: String,
}

impl Link {
    fn to_tag(name: String) -> Self {
        Self { link: to(TAG, &name), name }
    }
}

/// The path of a route, or `/` for a value that a path cannot contain.
fn to(path: RoutePath<String>, value: &str) -> String {
    path.path(&value.to_owned()).unwrap_or_else(|_| "/".to_owned())
}

/// A page of a list, with the numbers of its neighbours.
struct List {
    entries: Vec<Entry>,
    newer: Option<u32>,
    older: Option<u32>,
}

impl List {
    fn new(Summaries { articles, articles_count }: Summaries, page: u32) -> Self {
        let page = page.max(1);
        let has_older = i64::from(page) * i64::from(ARTICLES_PER_PAGE) < articles_count;
        let entries = articles.into_iter().map(|article| Entry {
            link: to(ARTICLE, &article.slug),
            author: to(AUTHOR, &article.author.username),
            tags: article.tag_list.iter().cloned().map(Link::to_tag).collect(),
            article,
        });
        Self {
            entries: entries.collect(),
            newer: (page > 1).then(|| page - 1),
            older: has_older.then(|| page + 1),
        }
    }
}

#[derive(Template)]
#[template(path = "front.html")]
struct Front {
    tag: Option<String>,
    tags: Vec<Link>,
    list: List,
}

#[derive(Template)]
#[template(path = "article.html")]
struct OneArticle {
    article: Article,
    author: String,
    tags: Vec<Link>,
    comments: Vec<Comment>,
    live: String,
}

#[derive(Template)]
#[template(path = "author.html")]
struct OneAuthor {
    profile: Profile,
    list: List,
}

#[derive(Template)]
#[template(path = "problem.html")]
struct OfProblem<'p> {
    status: u16,
    detail: &'p str,
}

async fn front(
    pool: StateRef<SqlitePool>,
    Query(query): Query<PageQuery>,
) -> Result<Html<String>, Error> {
    render_list(&pool, None, &query).await
}

async fn of_tag(
    pool: StateRef<SqlitePool>,
    Path(tag): Path<String>,
    Query(query): Query<PageQuery>,
) -> Result<Html<String>, Error> {
    render_list(&pool, Some(tag), &query).await
}

async fn render_list(
    pool: &SqlitePool,
    tag: Option<String>,
    query: &PageQuery,
) -> Result<Html<String>, Error> {
    let filter = Filter { tag: tag.clone(), ..Filter::default() };
    let list = List::new(articles::list(pool, None, &filter, query.to_page()).await?, query.page);
    let tags =
        tags::most_used(pool, FRONT_PAGE_TAGS).await?.into_iter().map(Link::to_tag).collect();
    Ok(Html(Front { tag, tags, list }.render()?))
}

async fn article(
    pool: StateRef<SqlitePool>,
    Path(slug): Path<String>,
) -> Result<Html<String>, Error> {
    let (id, article) = articles::find(&pool, None, &slug).await?;
    let comments = comments::of_article(&pool, None, id).await?;
    let author = to(AUTHOR, &article.summary.author.username);
    let tags = article.summary.tag_list.iter().cloned().map(Link::to_tag).collect();
    let live = to(LIVE_COMMENTS, &slug);
    Ok(Html(OneArticle { article, author, tags, comments, live }.render()?))
}

async fn author(
    pool: StateRef<SqlitePool>,
    Path(username): Path<String>,
    Query(query): Query<PageQuery>,
) -> Result<Html<String>, Error> {
    let profile = profiles::find(&pool, None, &username).await?;
    let filter = Filter { author: Some(username), ..Filter::default() };
    let list = List::new(articles::list(&pool, None, &filter, query.to_page()).await?, query.page);
    Ok(Html(OneAuthor { profile, list }.render()?))
}

/// The error page.
pub(crate) fn of_problem(problem: &Problem) -> Response {
    let page = OfProblem { status: problem.status.as_u16(), detail: &problem.detail };
    match page.render() {
        Ok(page) => (problem.status, Html(page)).into_response(),
        Err(_) => problem.clone().into_response(),
    }
}
