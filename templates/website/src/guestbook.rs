//! A guest book, with its routes, pages and handlers.

use askama::Template;
use peregrine::prelude::*;
use serde::Deserialize;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The maximum length of an entry, in bytes.
const WORDS_MAX: usize = 500;

/// The entries, the latest last. All workers share them. Replace this with a database.
static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

#[derive(Clone, Deserialize)]
struct Entry {
    name: String,
    words: String,
}

#[derive(Template)]
#[template(path = "guestbook.html")]
struct Page {
    entries: Vec<Entry>,
    problem: &'static str,
}

pub(crate) fn routes() -> App {
    App::new().get("/", show).post("/", sign)
}

async fn show() -> Result<Html<String>, Problem> {
    page("")
}

/// Redirects after storing the entry, so that reloading the page does not submit the form again.
async fn sign(Form(entry): Form<Entry>) -> Result<Response, Problem> {
    if entry.name.trim().is_empty() || entry.words.len() > WORDS_MAX {
        let page = page("A name is required, and at most 500 letters are allowed.")?;
        return Ok((StatusCode::UNPROCESSABLE_ENTITY, page).into_response());
    }
    entries().push(entry);
    Ok(Redirect::to("/").into_response())
}

/// Renders the page. Templates escape all values.
fn page(problem: &'static str) -> Result<Html<String>, Problem> {
    let page = Page {
        entries: entries().clone(),
        problem,
    };
    page.render().map(Html).map_err(|error| {
        tracing::error!(%error, "a page could not be rendered");
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "no-page",
            "This page could not be rendered.",
        )
    })
}

fn entries() -> MutexGuard<'static, Vec<Entry>> {
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner)
}
