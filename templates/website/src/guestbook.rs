//! A guest book: one subject of the site, with its routes, pages and handlers.

use askama::Template;
use peregrine::prelude::*;
use serde::Deserialize;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A form is refused that has more.
const WORDS_MAX: usize = 500;

/// What visitors wrote, newest last. All workers share it; a data base takes its place.
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

/// A redirect afterwards, so that reloading the page does not send the form again.
async fn sign(Form(entry): Form<Entry>) -> Result<Response, Problem> {
    if entry.name.trim().is_empty() || entry.words.len() > WORDS_MAX {
        let page = page("A name, and at most 500 letters.")?;
        return Ok((StatusCode::UNPROCESSABLE_ENTITY, page).into_response());
    }
    entries().push(entry);
    Ok(Redirect::to("/").into_response())
}

/// Templates escape whatever they insert.
fn page(problem: &'static str) -> Result<Html<String>, Problem> {
    let page = Page {
        entries: entries().clone(),
        problem,
    };
    page.render().map(Html).map_err(|error| {
        tracing::error!(%error, "a page could not be made");
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "no-page",
            "This page could not be made.",
        )
    })
}

fn entries() -> MutexGuard<'static, Vec<Entry>> {
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner)
}
