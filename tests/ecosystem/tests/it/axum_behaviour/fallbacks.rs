//! Responses where no route matches.

use crate::axum_behaviour::cases;
use crate::axum_behaviour::compare::Case;
use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::routing::{any, get, get_service};

cases! {
    a_fallback_answers_for_paths_without_a_route,
    a_fallback_does_not_answer_for_wrong_methods,
    a_fallback_is_answered_with_any_method,
    a_nested_router_without_a_fallback_has_that_of_the_outer_one,
    a_nested_router_with_a_fallback_uses_it,
    a_nested_fallback_sees_the_path_without_the_prefix,
    a_merged_fallback_is_that_of_all,
    a_fallback_may_be_a_service,
    a_fallback_has_the_state,
    a_fallback_for_wrong_methods_answers_all_of_them,
    a_path_s_own_fallback_counts_more_than_that_for_wrong_methods,
    a_fallback_for_wrong_methods_has_the_state,
    a_wildcard_counts_more_than_a_fallback,
    a_fallback_that_is_reset_is_a_404,
    a_fallback_of_methods_counts_by_method,
}

fn a_fallback_answers_for_paths_without_a_route(case: &mut Case) {
    let fallback = async |uri: Uri| (StatusCode::NOT_FOUND, format!("nothing at {uri}"));
    case.serve(Router::new().route("/", get("root")).fallback(fallback));
    case.get("/").is(200, "root");
    case.get("/x?y").is(404, "nothing at /x?y");
}

fn a_fallback_does_not_answer_for_wrong_methods(case: &mut Case) {
    case.serve(Router::new().route("/", get("root")).fallback(async || "fallback"));
    case.post("/", "").is(405, "").has("allow", "GET,HEAD");
}

fn a_fallback_is_answered_with_any_method(case: &mut Case) {
    case.serve(Router::new().fallback(async |method: Method| method.to_string()));
    for method in ["GET", "POST", "OPTIONS", "OWN"] {
        case.ask(method, "/x").is(200, method);
    }
}

fn a_nested_router_without_a_fallback_has_that_of_the_outer_one(case: &mut Case) {
    let inner = Router::new().route("/bar", get("bar"));
    let fallback = async |uri: Uri| format!("outer {uri}");
    case.serve(Router::new().nest("/foo", inner).fallback(fallback));
    case.get("/foo/bar").is(200, "bar");
    case.get("/foo/baz").is(200, "outer /foo/baz");
    case.get("/bar").is(200, "outer /bar");
}

fn a_nested_router_with_a_fallback_uses_it(case: &mut Case) {
    let inner = Router::new().route("/bar", get("bar")).fallback(async || "inner");
    case.serve(Router::new().nest("/foo", inner).fallback(async || "outer"));
    case.get("/foo/bar").is(200, "bar");
    case.get("/foo/baz").is(200, "inner");
    case.get("/foo").is(200, "inner");
    // The router itself treats this path as not beginning with the prefix.
    case.get("/foo/").is(200, "outer");
    case.get("/x").is(200, "outer");
}

fn a_nested_fallback_sees_the_path_without_the_prefix(case: &mut Case) {
    let inner = Router::new().fallback(async |uri: Uri| uri.to_string());
    case.serve(Router::new().nest("/foo", inner));
    case.get("/foo/x/y").is(200, "/x/y");
    case.get("/x").is(404, "");
}

fn a_merged_fallback_is_that_of_all(case: &mut Case) {
    let one = Router::new().route("/one", get("one"));
    let two = Router::new().route("/two", get("two")).fallback(async || "fallback");
    case.serve(one.merge(two));
    case.get("/one").is(200, "one");
    case.get("/three").is(200, "fallback");
}

fn a_fallback_may_be_a_service(case: &mut Case) {
    let service = Router::new().route("/hidden", get("hidden"));
    case.serve(Router::new().route("/", get("root")).fallback_service(service));
    case.get("/").is(200, "root");
    case.get("/hidden").is(200, "hidden");
    case.get("/x").is(404, "");
}

fn a_fallback_has_the_state(case: &mut Case) {
    let fallback = async |State(state): State<&'static str>| state;
    case.serve(Router::new().fallback(fallback).with_state("the state"));
    case.get("/x").is(200, "the state");
}

fn a_fallback_for_wrong_methods_answers_all_of_them(case: &mut Case) {
    let router = Router::new().route("/a", get("a")).route("/b", any("b"));
    case.serve(router.method_not_allowed_fallback(async || (StatusCode::NOT_FOUND, "not so")));
    case.get("/a").is(200, "a");
    case.post("/a", "").is(404, "not so");
    case.post("/b", "").is(200, "b");
    case.get("/c").is(404, "");
}

fn a_path_s_own_fallback_counts_more_than_that_for_wrong_methods(case: &mut Case) {
    let own = get("a").fallback(async || "own");
    let router = Router::new().route("/a", own).route("/b", get("b"));
    case.serve(router.method_not_allowed_fallback(async || "of all"));
    case.post("/a", "").is(200, "own");
    case.post("/b", "").is(200, "of all");
}

fn a_fallback_for_wrong_methods_has_the_state(case: &mut Case) {
    let fallback = async |State(state): State<&'static str>| state;
    let router = Router::new().route("/", get("")).method_not_allowed_fallback(fallback);
    case.serve(router.with_state("the state"));
    case.post("/", "").is(200, "the state");
}

fn a_wildcard_counts_more_than_a_fallback(case: &mut Case) {
    let wild = get(async |Path(rest): Path<String>| rest);
    case.serve(Router::new().route("/{*rest}", wild).fallback(async || "fallback"));
    case.get("/").is(200, "fallback");
    case.get("/x").is(200, "x");
    case.post("/x", "").is(405, "").has("allow", "GET,HEAD");
}

fn a_fallback_that_is_reset_is_a_404(case: &mut Case) {
    case.serve(Router::new().fallback(async || "fallback").reset_fallback());
    case.get("/").is(404, "");
}

fn a_fallback_of_methods_counts_by_method(case: &mut Case) {
    let fallback = get_service(tower::service_fn(async |_: Request| {
        Ok::<_, std::convert::Infallible>("by get".to_owned())
    }));
    case.serve(Router::new().fallback_service(fallback));
    case.get("/x").is(200, "by get");
    case.post("/x", "").is(405, "").has("allow", "GET,HEAD");
}
