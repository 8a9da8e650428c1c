//! An HTML form, and the handler for its data.

use axum::Router;
use axum::extract::Form;
use axum::response::Html;
use axum::routing::get;
use serde::Deserialize;

/// The application.
pub fn app() -> Router {
    Router::new().route("/", get(page).post(accept))
}

async fn page() -> Html<&'static str> {
    Html(
        "<!doctype html><form method=post><input name=name><input name=email type=email>\
         <button>Send</button></form>",
    )
}

#[derive(Deserialize)]
struct Visitor {
    name: String,
    email: Option<String>,
}

async fn accept(Form(visitor): Form<Visitor>) -> String {
    let email = visitor.email.as_deref().filter(|email| !email.is_empty());
    format!("{} <{}>", visitor.name, email.unwrap_or("no address"))
}
