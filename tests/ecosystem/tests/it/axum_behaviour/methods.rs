//! The methods of a path, and the response to the others.

use crate::axum_behaviour::cases;
use crate::axum_behaviour::compare::Case;
use axum::Router;
use axum::http::{Method, StatusCode, header::ALLOW};
use axum::response::IntoResponse;
use axum::routing::{any, connect, delete, get, head, options, patch, post, put, trace};

cases! {
    a_method_without_a_handler_is_a_405_that_names_the_others,
    the_names_come_in_the_order_of_the_handlers,
    head_is_answered_by_get_without_the_body,
    a_handler_of_head_counts_more_than_that_of_get,
    head_keeps_the_length_that_get_would_have,
    head_of_an_unknown_path_has_no_body,
    head_of_a_fallback_keeps_its_length,
    head_of_a_stream_says_no_length,
    every_method_has_a_router_of_its_own,
    any_answers_every_method_and_unknown_ones,
    a_fallback_of_a_path_is_given_the_names_too,
    a_fallback_of_a_path_may_set_the_names_itself,
    routers_of_methods_may_be_merged,
    names_of_methods_are_compared_byte_by_byte,
    a_method_of_one_path_may_be_unknown_to_another,
    options_of_a_path_is_a_method_like_others,
}

fn a_method_without_a_handler_is_a_405_that_names_the_others(case: &mut Case) {
    let router = Router::new().route("/", get("").post("")).route("/foo", patch("patched"));
    case.serve(router);
    case.ask("PATCH", "/").is(405, "").has("allow", "GET,HEAD,POST").has("content-length", "0");
    case.ask("PATCH", "/foo").is(200, "patched");
    case.post("/foo", "x").is(405, "").has("allow", "PATCH");
    case.get("/bar").is(404, "").lacks("allow");
}

fn the_names_come_in_the_order_of_the_handlers(case: &mut Case) {
    case.serve(Router::new().route("/", put("").patch("").get("")).route("/d", delete("")));
    case.post("/", "").has("allow", "PUT,PATCH,GET,HEAD");
    case.get("/d").has("allow", "DELETE");
}

fn head_is_answered_by_get_without_the_body(case: &mut Case) {
    let answer = ([("x-some", "value")], "Hello");
    case.serve(Router::new().route("/", get(answer)));
    case.head("/").is(200, "").has("x-some", "value").has("content-length", "5");
    case.get("/").is(200, "Hello").has("x-some", "value");
}

fn a_handler_of_head_counts_more_than_that_of_get(case: &mut Case) {
    let router = Router::new().route("/", head((StatusCode::CREATED, [("x-by", "head")])).get("g"));
    case.serve(router);
    case.head("/").is(201, "").has("x-by", "head");
    case.get("/").is(200, "g").lacks("x-by");
}

fn head_keeps_the_length_that_get_would_have(case: &mut Case) {
    let json = get(async || axum::Json([1, 2, 3]));
    case.serve(Router::new().route("/json", json).route("/none", get(StatusCode::NO_CONTENT)));
    case.head("/json").is(200, "").has("content-length", "7");
    case.differs("content-length 0 is (none)");
    case.head("/none").is(204, "");
}

fn head_of_an_unknown_path_has_no_body(case: &mut Case) {
    case.serve(Router::new());
    case.head("/").is(404, "");
}

fn head_of_a_fallback_keeps_its_length(case: &mut Case) {
    case.serve(Router::new().fallback(async || "foo"));
    case.head("/").is(200, "").has("content-length", "3");
}

fn head_of_a_stream_says_no_length(case: &mut Case) {
    let stream = get(async || crate::axum_behaviour::streams::body(["a", "b"]));
    case.serve(Router::new().route("/", stream));
    case.get("/").is(200, "ab").has("transfer-encoding", "chunked").lacks("content-length");
    case.head("/").is(200, "").lacks("content-length");
}

fn every_method_has_a_router_of_its_own(case: &mut Case) {
    let router = Router::new()
        .route("/connect", connect("connect"))
        .route("/delete", delete("delete"))
        .route("/get", get("get"))
        .route("/options", options("options"))
        .route("/patch", patch("patch"))
        .route("/post", post("post"))
        .route("/put", put("put"))
        .route("/trace", trace("trace"));
    case.serve(router);
    for method in ["delete", "get", "options", "patch", "post", "put", "trace"] {
        let upper = method.to_ascii_uppercase();
        case.ask(&upper, &format!("/{method}")).is(200, method);
        let other = if method == "get" { "/post" } else { "/get" };
        case.ask(&upper, other).is(405, "");
    }
}

fn any_answers_every_method_and_unknown_ones(case: &mut Case) {
    case.serve(Router::new().route("/", any(async |method: Method| method.to_string())));
    for method in ["GET", "POST", "PROPFIND", "X-OWN", "TRACE"] {
        case.ask(method, "/").is(200, method);
    }
    case.head("/").is(200, "");
}

fn a_fallback_of_a_path_is_given_the_names_too(case: &mut Case) {
    let fallback = async |method: Method| (StatusCode::IM_A_TEAPOT, format!("no {method}"));
    case.serve(Router::new().route("/", get("").fallback(fallback)));
    case.post("/", "").is(418, "no POST").has("allow", "GET,HEAD");
}

fn a_fallback_of_a_path_may_set_the_names_itself(case: &mut Case) {
    let fallback =
        async || (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET,POST")], "no").into_response();
    case.serve(Router::new().route("/", get("").fallback(fallback)));
    case.ask("DELETE", "/").is(405, "no").has("allow", "GET,POST");
}

fn routers_of_methods_may_be_merged(case: &mut Case) {
    case.serve(Router::new().route("/", get("get").merge(post("post")).merge(put("put"))));
    case.get("/").is(200, "get");
    case.post("/", "").is(200, "post");
    case.ask("DELETE", "/").is(405, "").has("allow", "GET,HEAD,POST,PUT");
}

fn names_of_methods_are_compared_byte_by_byte(case: &mut Case) {
    case.serve(Router::new().route("/", get("get")));
    case.ask("get", "/").is(405, "").has("allow", "GET,HEAD");
}

fn a_method_of_one_path_may_be_unknown_to_another(case: &mut Case) {
    let router = Router::new().route("/users/new", post("new")).route("/users/{id}", get("one"));
    case.serve(router);
    case.post("/users/new", "").is(200, "new");
    // The first path is the better match, whatever its methods.
    case.get("/users/new").is(405, "").has("allow", "POST");
    case.get("/users/7").is(200, "one");
}

fn options_of_a_path_is_a_method_like_others(case: &mut Case) {
    case.serve(Router::new().route("/", get("get")).route("/o", options("asked")));
    case.ask("OPTIONS", "/").is(405, "").has("allow", "GET,HEAD");
    case.ask("OPTIONS", "/o").is(200, "asked");
}
