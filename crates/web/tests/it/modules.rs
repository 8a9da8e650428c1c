//! `App` and `Scope` have no type parameters, so functions can take and return them.

use peregrine_web::extract::StateRef;
use peregrine_web::middleware::Next;
use peregrine_web::{App, Request, Response, Scope};
use std::cell::RefCell;
use std::rc::Rc;

type Seen = Rc<RefCell<Vec<&'static str>>>;

/// Adds a middleware that records that it ran.
fn wrap_recorder(app: App, seen: &Seen, name: &'static str) -> App {
    let seen = Rc::clone(seen);
    app.wrap(async move |request: Request, next: Next<'_>| -> Response {
        seen.borrow_mut().push(name);
        next.run(request).await
    })
}

fn show(scope: Scope) -> Scope {
    scope.get("/", |text: StateRef<String>| text.as_str().to_owned())
}

fn guarded(scope: Scope) -> Scope {
    scope.wrap(async |request: Request, next: Next<'_>| next.run(request).await).scope("/in", show)
}

#[test]
fn middleware_states_and_merges_work_in_any_order() {
    let seen = Seen::default();
    let other =
        wrap_recorder(App::new().state(String::from("other")), &seen, "other").scope("/x", show);
    let app =
        wrap_recorder(App::new(), &seen, "first").scope("/a", show).state(String::from("own"));
    let app = wrap_recorder(app.merge(other), &seen, "second").scope("/b", guarded);
    // Both branches have the type `App`.
    let app = if seen.borrow().is_empty() { wrap_recorder(app, &seen, "third") } else { app };
    let client = app.scope("/c", show).test();
    for (path, text, expected) in [
        ("/a", "own", vec!["first"]),
        ("/x", "other", vec!["first", "other"]),
        ("/b/in", "own", vec!["first", "second"]),
        ("/c", "own", vec!["first", "second", "third"]),
    ] {
        seen.borrow_mut().clear();
        assert_eq!(client.get(path).send_blocking().text(), text, "{path}");
        assert_eq!(*seen.borrow(), expected, "{path}");
    }
}
