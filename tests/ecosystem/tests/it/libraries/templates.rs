//! Third-party templates in our handlers: askama's, compiled into the program, and minijinja's,
//! parsed at start-up.

use askama::Template;
use minijinja::{Environment, context};
use peregrine::DriverChoice;
use peregrine::prelude::*;
use peregrine_ecosystem_tests::{base_url, client, end, in_runtime, on_both_drivers, start};
use std::fmt;

on_both_drivers! {
    what_visitors_say_is_escaped,
    a_template_that_fails_is_an_error_of_the_servers,
}

const BIRDS: [&str; 2] = ["kestrel", "<hobby>"];

/// A value that can be displayed only if it is present.
struct Shown(Option<&'static str>);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.ok_or(fmt::Error)?)
    }
}

#[derive(Template)]
#[template(
    source = "<h1>{{ name }} {{ shown }}</h1>{% for bird in birds %}<li>{{ bird }}{% endfor %}",
    ext = "html"
)]
struct Page<'p> {
    name: &'p str,
    shown: Shown,
    birds: &'p [&'p str],
}

fn broken(error: impl fmt::Display) -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "page", format!("no page: {error}"))
}

fn compiled(name: &str, shown: Shown) -> Result<Html<String>, Problem> {
    Page { name, shown, birds: &BIRDS }.render().map(Html).map_err(broken)
}

fn read(
    name: &str,
    template: &str,
    templates: &Environment<'static>,
) -> Result<Html<String>, Problem> {
    let template = templates.get_template(template).map_err(broken)?;
    template.render(context! { name, birds => BIRDS }).map(Html).map_err(broken)
}

/// Each worker has its own environment, which handlers borrow.
fn app() -> App {
    let mut templates = Environment::new();
    let page = "<h1>{{ name }} here</h1>{% for bird in birds %}<li>{{ bird }}{% endfor %}";
    for (name, text) in [("page.html", page), ("wrong.html", "{{ nothing.at.all }}")] {
        templates.add_template(name, text).expect("the template is valid");
    }
    type Templates = StateRef<Environment<'static>>;
    App::new()
        .state(templates)
        .get("/askama/{name}", async |Path(name): Path<String>| {
            compiled(&name, Shown(Some("here")))
        })
        .get("/askama-wrong", async || compiled("a", Shown(None)))
        .get("/minijinja/{name}", async |Path(name): Path<String>, templates: Templates| {
            read(&name, "page.html", &templates)
        })
        .get("/minijinja-wrong", async |templates: Templates| read("a", "wrong.html", &templates))
}

fn what_visitors_say_is_escaped(choice: DriverChoice) {
    let Some(running) = start(choice, 2, app) else { return };
    in_runtime(async {
        for (path, less, more) in [("askama", "&#60;", "&#62;"), ("minijinja", "&lt;", "&gt;")] {
            let url = format!("{}/{path}/%3Cb%3E", base_url(&running));
            let page = client(None).get(url).send().await.expect("the server responds");
            assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8", "{path}");
            let expected = format!("<h1>{less}b{more} here</h1><li>kestrel<li>{less}hobby{more}");
            assert_eq!(page.text().await.expect("a body"), expected, "{path}");
        }
    });
    end(running);
}

fn a_template_that_fails_is_an_error_of_the_servers(choice: DriverChoice) {
    let Some(running) = start(choice, 1, app) else { return };
    in_runtime(async {
        for path in ["askama-wrong", "minijinja-wrong"] {
            let url = format!("{}/{path}", base_url(&running));
            let page = client(None).get(url).send().await.expect("the server responds");
            assert_eq!(page.status(), 500, "{path}");
            assert_eq!(page.headers()["content-type"], "application/problem+json", "{path}");
            assert!(page.text().await.expect("a body").contains("no page"), "{path}");
        }
    });
    end(running);
}
