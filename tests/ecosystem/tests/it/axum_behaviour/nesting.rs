//! Nested routers, and the path that they see.

use crate::axum_behaviour::cases;
use crate::axum_behaviour::compare::Case;
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::NestedPathRejection;
use axum::extract::{MatchedPath, NestedPath, OriginalUri, Path, Request};
use axum::http::Uri;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use std::collections::HashMap;
use std::convert::Infallible;

cases! {
    a_nested_router_answers_below_its_prefix,
    a_prefix_may_have_parameters,
    a_nested_route_of_the_root_answers_without_a_slash,
    a_nested_service_answers_with_and_without_a_slash,
    a_nested_router_knows_its_wrong_methods,
    what_is_nested_sees_the_path_without_the_prefix,
    the_original_path_is_there_at_every_level,
    a_nested_service_sees_the_path_without_the_prefix,
    layers_outside_see_the_whole_path,
    the_matched_path_is_that_of_the_whole_router,
    the_nested_path_is_the_prefix,
    merged_routers_answer_side_by_side,
    merged_methods_of_one_path_answer_side_by_side,
    merging_and_nesting_may_be_mixed,
    the_query_stays_with_what_is_nested,
    a_target_with_a_host_loses_its_prefix_too,
}

fn a_nested_router_answers_below_its_prefix(case: &mut Case) {
    let api = Router::new().route("/users", get("users")).route("/teams", get("teams"));
    case.serve(Router::new().route("/", get("root")).nest("/api", api));
    case.get("/").is(200, "root");
    case.get("/api/users").is(200, "users");
    case.get("/api/teams").is(200, "teams");
    case.get("/api").is(404, "");
    case.get("/users").is(404, "");
}

fn a_prefix_may_have_parameters(case: &mut Case) {
    async fn show(Path(all): Path<HashMap<String, String>>) -> String {
        format!("{}: {}", all["version"], all["id"])
    }
    let api = Router::new().route("/users/{id}", get(show));
    case.serve(Router::new().nest("/{version}/api", api));
    case.get("/v0/api/users/123").is(200, "v0: 123");
    case.get("/v0/users/123").is(404, "");
}

fn a_nested_route_of_the_root_answers_without_a_slash(case: &mut Case) {
    let inner = || Router::new().route("/", get("inner"));
    case.serve(Router::new().nest("/router", inner()).nest("/slash/", inner()));
    case.get("/router").is(200, "inner");
    case.get("/router/").is(404, "");
    case.get("/slash/").is(200, "inner");
    case.get("/slash").is(404, "");
}

fn a_nested_service_answers_with_and_without_a_slash(case: &mut Case) {
    let inner = Router::new().route("/", get("root")).route("/x", get("x"));
    case.serve(Router::new().nest_service("/service", inner));
    case.get("/service").is(200, "root");
    case.get("/service/").is(200, "root");
    case.get("/service/x").is(200, "x");
    case.get("/service/y").is(404, "");
    case.get("/servicex").is(404, "");
}

fn a_nested_router_knows_its_wrong_methods(case: &mut Case) {
    case.serve(Router::new().nest("/foo", Router::new().route("/", get("get"))));
    case.get("/foo").is(200, "get");
    case.post("/foo", "").is(405, "").has("allow", "GET,HEAD");
    case.ask("PATCH", "/foo/bar").is(404, "");
}

fn what_is_nested_sees_the_path_without_the_prefix(case: &mut Case) {
    let show = || get(async |uri: Uri, request: Request| format!("{uri} {}", request.uri()));
    let inner = Router::new().route("/baz", show()).route("/", show());
    case.serve(Router::new().nest("/foo", Router::new().nest("/bar", inner)));
    case.get("/foo/bar/baz").is(200, "/baz /baz");
    case.get("/foo/bar").is(200, "/ /");
}

fn the_original_path_is_there_at_every_level(case: &mut Case) {
    let show = || get(async |OriginalUri(uri): OriginalUri| uri.to_string());
    let inner = Router::new().route("/baz", show());
    let router = Router::new().route("/top", show());
    case.serve(router.nest("/foo", Router::new().nest("/bar", inner)));
    case.get("/foo/bar/baz?q").is(200, "/foo/bar/baz?q");
    case.get("/top").is(200, "/top");
}

fn a_nested_service_sees_the_path_without_the_prefix(case: &mut Case) {
    let service = tower::service_fn(async |request: axum::http::Request<Body>| {
        let text = request.uri().to_string();
        Ok::<_, Infallible>(Response::new(Body::from(text)))
    });
    let router = Router::new().nest_service("/a", service);
    case.serve(router.nest("/b", Router::new().nest_service("/{c}", service)));
    case.get("/a/x/y?z").is(200, "/x/y?z");
    case.get("/a").is(200, "/");
    case.get("/b/1/x").is(200, "/x");
}

fn layers_outside_see_the_whole_path(case: &mut Case) {
    let layer = from_fn(async |request: Request, next: Next| {
        let seen = request.uri().to_string().parse().expect("a path is a value");
        let mut response = next.run(request).await;
        response.headers_mut().insert("x-seen", seen);
        response
    });
    let inner = Router::new().route("/two", get("two"));
    case.serve(Router::new().nest("/one", inner).fallback(async || "none").layer(layer));
    case.get("/one/two").is(200, "two").has("x-seen", "/one/two");
    case.get("/elsewhere").is(200, "none").has("x-seen", "/elsewhere");
}

fn the_matched_path_is_that_of_the_whole_router(case: &mut Case) {
    let show = || get(async |path: MatchedPath| path.as_str().to_owned());
    let inner = Router::new().route("/{b}/c", show()).nest("/d", Router::new().route("/", show()));
    let router = Router::new().route("/users/{id}", show()).nest("/{a}", inner);
    let without = async |path: Option<MatchedPath>| format!("{}", path.is_some());
    case.serve(router.fallback(without));
    case.get("/users/7").is(200, "/users/{id}");
    case.get("/x/y/c").is(200, "/{a}/{b}/c");
    case.get("/x/d").is(200, "/{a}/d");
    case.get("/x").is(200, "false");
}

fn the_nested_path_is_the_prefix(case: &mut Case) {
    let show = || get(async |path: NestedPath| path.as_str().to_owned());
    let inner = Router::new().route("/x", show()).nest("/b", Router::new().route("/x", show()));
    let without =
        get(async |path: Result<NestedPath, NestedPathRejection>| path.is_ok().to_string());
    case.serve(Router::new().route("/", without).nest("/a", inner));
    case.get("/a/x").is(200, "/a");
    case.get("/a/b/x").is(200, "/a/b");
    case.get("/").is(200, "false");
}

fn merged_routers_answer_side_by_side(case: &mut Case) {
    let one = Router::new().route("/one", get("one"));
    let two = Router::new().route("/two", get("two"));
    case.serve(one.merge(two).route("/three", get("three")));
    for name in ["one", "two", "three"] {
        case.get(&format!("/{name}")).is(200, name);
    }
    case.get("/four").is(404, "");
}

fn merged_methods_of_one_path_answer_side_by_side(case: &mut Case) {
    let one = Router::new().route("/", get("GET"));
    case.serve(one.merge(Router::new().route("/", axum::routing::post("POST"))));
    case.get("/").is(200, "GET");
    case.post("/", "").is(200, "POST");
    case.ask("PUT", "/").is(405, "").has("allow", "GET,HEAD,POST");
}

fn merging_and_nesting_may_be_mixed(case: &mut Case) {
    let show = || get(async |uri: Uri, OriginalUri(whole): OriginalUri| format!("{uri} {whole}"));
    let one =
        Router::new().nest("/foo", Router::new().nest("/bar", Router::new().route("/baz", show())));
    let two = Router::new().nest("/two", Router::new().route("/qux", show()));
    case.serve(one.merge(two).merge(Router::new().route("/foo", show())));
    case.get("/foo/bar/baz").is(200, "/baz /foo/bar/baz");
    case.get("/two/qux").is(200, "/qux /two/qux");
    case.get("/foo").is(200, "/foo /foo");
}

fn the_query_stays_with_what_is_nested(case: &mut Case) {
    let show = get(async |uri: Uri| uri.to_string());
    case.serve(Router::new().nest("/a", Router::new().route("/", show)));
    case.get("/a?x=/y").is(200, "/?x=/y");
}

fn a_target_with_a_host_loses_its_prefix_too(case: &mut Case) {
    let show = get(async |uri: Uri| uri.to_string());
    case.serve(Router::new().nest("/a", Router::new().route("/b", show)));
    case.get("http://a.example:80/a/b?c").is(200, "http://a.example:80/b?c");
}
