//! Handlers with attributes may have any name.

use peregrine::macros::{get, on};
use peregrine::prelude::*;
use peregrine::web::guard;

/// Has the same name as a variable in the code that the attribute generates.
#[get("/scope")]
async fn scope() -> &'static str {
    "scope"
}

#[on(Method::PUT, "/{handler}", name = "handler", guard = guard::has_query("a"), guard = guard::has_query("b"))]
fn handler(Path(name): Path<String>) -> String {
    name
}

#[test]
fn a_handler_can_have_any_name() {
    let client = App::new().register((scope, handler)).test();
    assert_eq!(client.get("/scope").send_blocking().text(), "scope");
    assert_eq!(client.put("/x?a&b").send_blocking().text(), "x");
    assert_eq!(client.put("/x?a").send_blocking().status(), 404);
}

#[test]
fn a_handler_name_does_not_clash_with_local_names() {
    struct Handler {
        handler: u8,
    }
    let scope = 1;
    let Handler { handler } = Handler { handler: 2 };
    let sum = |scope: u8, handler: u8| scope + handler;
    assert_eq!(sum(scope, handler), 3);
}
