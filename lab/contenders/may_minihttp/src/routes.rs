//! The routes, by hand.

use std::io;

use may_minihttp::{Request, Response};

use crate::handlers;
use crate::model::{RESOURCES, VERSIONS};

pub fn answer(request: Request, response: &mut Response) -> io::Result<()> {
    // The body is reached by giving up the request, so that all else is copied first. It must be
    // read or dropped: what is left of it would be taken for the next request.
    let target = request.path().to_owned();
    let method = request.method().to_owned();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    match (method.as_str(), segments.as_slice()) {
        ("POST", ["json-sort"]) => return handlers::json_sort(request, response),
        ("POST", ["json-complex"]) => return handlers::json_complex(request, response),
        ("POST", ["projects", project, "events"]) => {
            return handlers::events(project, query, request, response);
        }
        ("POST", ["upload"]) => return handlers::upload(request, response),
        _ => drop(request.body()),
    }
    match (method.as_str(), segments.as_slice()) {
        ("GET", [""]) => handlers::text(response, "Hello, World!"),
        ("GET", ["hello"]) => handlers::text(response, "Hello, World"),
        ("GET", ["json"]) => handlers::json(response),
        ("GET", ["api", "v1", "health"]) => handlers::health(response),
        ("GET", ["example"]) => handlers::example(response),
        ("GET", ["large"]) => handlers::large(response),
        ("GET", ["sleep", ms]) => handlers::sleep(ms, response),
        ("GET" | "POST" | "PUT" | "DELETE", [version, resource, item @ ..])
            if VERSIONS.contains(version) && RESOURCES.contains(resource) && item.len() <= 1 =>
        {
            handlers::resource(&method, version, resource, item.first().copied(), response);
        }
        _ => handlers::refuse(response, 404, "Not Found"),
    }
    Ok(())
}
