//! Which route matches a path.

use crate::axum_behaviour::cases;
use crate::axum_behaviour::compare::Case;
use axum::extract::{OriginalUri, Path};
use axum::http::{Request, Uri};
use axum::routing::{MethodFilter, any_service, get, get_service, on, post};
use axum::{Router, body::Body};
use std::convert::Infallible;

cases! {
    the_root_is_a_path_like_others,
    a_path_without_a_route_is_a_404_without_a_body,
    a_parameter_takes_one_segment,
    what_stands_in_the_route_counts_more_than_a_parameter,
    a_slash_at_the_end_makes_another_path,
    a_route_with_a_slash_at_its_end_does_not_answer_without,
    two_routes_may_differ_by_the_slash_at_the_end,
    a_wildcard_takes_the_rest_of_the_path,
    a_wildcard_takes_at_least_one_byte,
    the_longer_wildcard_counts_more,
    methods_of_one_path_may_be_added_one_by_one,
    one_handler_may_answer_several_methods,
    services_stand_in_the_place_of_handlers,
    the_query_takes_no_part_in_routing,
    routes_are_compared_byte_by_byte,
    a_path_with_escaped_bytes_is_routed_as_it_is_written,
    an_empty_segment_may_be_a_parameter,
    dots_in_a_path_are_not_resolved,
    a_long_path_is_routed,
    a_value_may_stand_in_the_place_of_a_handler,
    a_target_with_scheme_and_host_is_routed_by_its_path,
}

fn the_root_is_a_path_like_others(case: &mut Case) {
    case.serve(Router::new().route("/", get("root")).route("/a", get("a")));
    case.get("/").is(200, "root").has("content-length", "4");
    case.get("/a").is(200, "a").has("content-type", "text/plain; charset=utf-8");
}

fn a_path_without_a_route_is_a_404_without_a_body(case: &mut Case) {
    case.serve(Router::new().route("/a", get("a")));
    case.get("/b").is(404, "").has("content-length", "0").lacks("content-type");
    case.get("/").is(404, "");
    case.ask("DELETE", "/b").is(404, "").lacks("allow");
}

fn a_parameter_takes_one_segment(case: &mut Case) {
    let router = Router::new()
        .route("/users", get("all"))
        .route("/users/{id}", get(async |Path(id): Path<String>| id))
        .route("/users/{id}/posts", get(async |Path(id): Path<u32>| format!("posts of {id}")));
    case.serve(router);
    case.get("/users").is(200, "all");
    case.get("/users/7").is(200, "7");
    case.get("/users/7/posts").is(200, "posts of 7");
    case.get("/users/7/photos").is(404, "");
    case.get("/users/").is(404, "");
}

fn what_stands_in_the_route_counts_more_than_a_parameter(case: &mut Case) {
    let any = get(async |Path(name): Path<String>| format!("any: {name}"));
    case.serve(Router::new().route("/{name}", any).route("/me", get("me")));
    case.get("/me").is(200, "me");
    case.get("/you").is(200, "any: you");
    case.get("/mee").is(200, "any: mee");
}

fn a_slash_at_the_end_makes_another_path(case: &mut Case) {
    case.serve(Router::new().route("/a", get("a")));
    case.get("/a").is(200, "a");
    case.get("/a/").is(404, "").lacks("location");
}

fn a_route_with_a_slash_at_its_end_does_not_answer_without(case: &mut Case) {
    case.serve(Router::new().route("/a/", get("a")));
    case.get("/a/").is(200, "a");
    case.get("/a").is(404, "");
}

fn two_routes_may_differ_by_the_slash_at_the_end(case: &mut Case) {
    case.serve(Router::new().route("/a", get("without")).route("/a/", get("with")));
    case.get("/a").is(200, "without");
    case.get("/a/").is(200, "with");
}

fn a_wildcard_takes_the_rest_of_the_path(case: &mut Case) {
    let rest = get(async |Path(rest): Path<String>, uri: Uri| format!("{rest} of {uri}"));
    case.serve(Router::new().route("/files/{*rest}", rest));
    case.get("/files/a").is(200, "a of /files/a");
    case.get("/files/a/b/c.txt?x=1").is(200, "a/b/c.txt of /files/a/b/c.txt?x=1");
    case.get("/files/a/").is(200, "a/ of /files/a/");
}

fn a_wildcard_takes_at_least_one_byte(case: &mut Case) {
    case.serve(Router::new().route("/files/{*rest}", get("a file")));
    case.get("/files").is(404, "");
    case.get("/files/").is(404, "");
    case.get("/files//").is(200, "a file");
}

fn the_longer_wildcard_counts_more(case: &mut Case) {
    let router = Router::new().route("/{*all}", get("all")).route("/x/{*rest}", get("x"));
    case.serve(router.fallback(async || "nothing"));
    for (path, expected) in [
        ("/", "nothing"),
        ("/a", "all"),
        ("/a/b/", "all"),
        ("/x", "all"),
        ("/x/", "all"),
        ("/x/a", "x"),
        ("/x/a/b/", "x"),
    ] {
        case.get(path).is(200, expected);
    }
}

fn methods_of_one_path_may_be_added_one_by_one(case: &mut Case) {
    case.serve(Router::new().route("/", get("got")).route("/", post("posted")));
    case.get("/").is(200, "got");
    case.post("/", "").is(200, "posted");
    case.ask("PUT", "/").is(405, "").has("allow", "GET,HEAD,POST");
}

fn one_handler_may_answer_several_methods(case: &mut Case) {
    let filter = MethodFilter::GET.or(MethodFilter::DELETE);
    case.serve(Router::new().route("/", on(filter, async || "either")));
    case.get("/").is(200, "either");
    case.ask("DELETE", "/").is(200, "either");
    case.post("/", "").is(405, "").has("allow", "GET,HEAD,DELETE");
}

fn services_stand_in_the_place_of_handlers(case: &mut Case) {
    let service = tower::service_fn(async |request: Request<Body>| {
        Ok::<_, Infallible>(axum::response::Response::new(Body::from(format!(
            "{} {}",
            request.method(),
            request.uri()
        ))))
    });
    let router = Router::new()
        .route("/get", get_service(service))
        .route("/any", any_service(service))
        .route_service("/whole", service);
    case.serve(router);
    case.get("/get").is(200, "GET /get").lacks("content-type");
    case.post("/get", "").is(405, "").has("allow", "GET,HEAD");
    case.ask("PATCH", "/any?x").is(200, "PATCH /any?x");
    case.ask("PURGE", "/whole").is(200, "PURGE /whole");
}

fn the_query_takes_no_part_in_routing(case: &mut Case) {
    case.serve(Router::new().route("/a", get(async |uri: Uri| uri.to_string())));
    case.get("/a?b=/c/d?e").is(200, "/a?b=/c/d?e");
    case.get("/a?").is(200, "/a?");
}

fn routes_are_compared_byte_by_byte(case: &mut Case) {
    case.serve(Router::new().route("/Abc", get("found")));
    case.get("/Abc").is(200, "found");
    case.get("/abc").is(404, "");
}

fn a_path_with_escaped_bytes_is_routed_as_it_is_written(case: &mut Case) {
    let name = async |Path(name): Path<String>, uri: Uri| format!("{name} {uri}");
    case.serve(Router::new().route("/a b", get("never")).route("/{name}", get(name)));
    case.get("/a%20b").is(200, "a b /a%20b");
    case.get("/a%2Fb").is(200, "a/b /a%2Fb");
    case.get("/%C3%A9").is(200, "é /%C3%A9");
}

fn an_empty_segment_may_be_a_parameter(case: &mut Case) {
    case.serve(Router::new().route("/a/b", get("one")).route("/a/{x}/b", get("two")));
    case.get("/a/b").is(200, "one");
    case.get("/a//b").is(200, "two");
    case.get("//a/b").is(404, "");
}

fn dots_in_a_path_are_not_resolved(case: &mut Case) {
    case.serve(Router::new().route("/a", get("a")).route("/{*rest}", get("rest")));
    case.get("/x/../a").is(200, "rest");
    case.get("/./a").is(200, "rest");
}

fn a_long_path_is_routed(case: &mut Case) {
    let rest = async |Path(rest): Path<String>| rest.len().to_string();
    case.serve(Router::new().route("/{*rest}", get(rest)));
    case.get(&format!("/{}", "a/".repeat(2000))).is(200, "4000");
}

fn a_value_may_stand_in_the_place_of_a_handler(case: &mut Case) {
    let created = (axum::http::StatusCode::CREATED, [("x-made", "yes")], "made");
    case.serve(Router::new().route("/things", post(created)));
    case.post("/things", "").is(201, "made").has("x-made", "yes");
}

fn a_target_with_scheme_and_host_is_routed_by_its_path(case: &mut Case) {
    let handler = async |OriginalUri(uri): OriginalUri| uri.to_string();
    case.serve(Router::new().route("/a", get(handler)));
    case.get("http://a.example/a?b").is(200, "http://a.example/a?b");
}
