//! An application in five modules. Each defines its routes, and this file combines them. The
//! functions take and return plain `App` and `Scope`, whatever middleware and state they contain.
#![forbid(unsafe_code)]

mod admin;
mod auth;
mod birds;
mod sightings;
mod store;

use peregrine::prelude::*;
use store::Store;

/// The whole application; `store` is shared by all workers.
fn app(store: Store) -> App {
    App::new()
        .wrap(SetRequestId::new())
        .wrap(CatchPanic::new())
        .scope("/birds", birds::routes)
        .scope("/birds/{bird}/sightings", sightings::routes)
        .scope("/admin", |scope| scope.merge(admin::app()))
        .state(store)
}

const ABOUT: &str = "An application in five modules.

Try: curl -d '{\"place\":\"cliff\"}' -H 'content-type: application/json' localhost:8080/birds/kestrel/sightings";

fn main() -> peregrine::Result<()> {
    let address = peregrine_examples::address(ABOUT);
    let store = Store::default();
    Server::bind(address).serve(move || app(store.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_module_answers_inside_the_middleware_of_the_whole() {
        let client = app(Store::default()).test();
        let sighting = json!({"place": "cliff"});
        let made = client.post("/birds/kestrel/sightings").json(&sighting).send_blocking();
        assert_eq!(made.status(), 201);
        assert!(made.header("x-request-id").is_some());
        assert_eq!(client.get("/birds").send_blocking().text(), r#"["kestrel"]"#);
        assert_eq!(client.get("/birds/kestrel").send_blocking().text(), r#"{"sightings":1}"#);
        assert_eq!(client.get("/birds/kestrel/sightings").send_blocking().text(), r#"["cliff"]"#);
        assert_eq!(client.get("/birds/dodo").send_blocking().status(), 404);
    }

    #[test]
    fn only_the_module_that_asks_for_it_is_guarded() {
        let client = app(Store::default()).test();
        assert_eq!(client.delete("/admin/birds").send_blocking().status(), 401);
        let clear = client.delete("/admin/birds").header("x-role", "keeper");
        assert_eq!(clear.send_blocking().status(), 204);
        assert_eq!(client.get("/birds").send_blocking().status(), 200);
    }
}
