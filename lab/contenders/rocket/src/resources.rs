//! The 400 routes, by Rocket's own interface for routes that are made by a program.

use rocket::http::Method;
use rocket::route::{Handler, Outcome, Route};
use rocket::{Data, Request, async_trait};

use crate::model::{RESOURCES, VERSIONS};

#[derive(Clone)]
struct Resource {
    version: &'static str,
    name: &'static str,
}

pub fn routes() -> Vec<Route> {
    let mut routes = Vec::new();
    for version in VERSIONS {
        for name in RESOURCES {
            for method in [Method::Get, Method::Post, Method::Put, Method::Delete] {
                let collection = format!("/{version}/{name}");
                let item = format!("/{version}/{name}/<id>");
                routes.push(Route::new(method, &collection, Resource { version, name }));
                routes.push(Route::new(method, &item, Resource { version, name }));
            }
        }
    }
    routes
}

#[async_trait]
impl Handler for Resource {
    async fn handle<'r>(&self, request: &'r Request<'_>, _: Data<'r>) -> Outcome<'r> {
        let Resource { version, name } = self;
        let method = request.method();
        let text = match request.param::<&str>(2) {
            Some(Ok(id)) => format!("{method} {version} {name} {id}"),
            _ => format!("{method} {version} {name}"),
        };
        Outcome::from(request, text)
    }
}
