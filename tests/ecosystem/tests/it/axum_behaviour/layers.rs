//! Middleware around handlers, paths and routers.

use crate::axum_behaviour::cases;
use crate::axum_behaviour::compare::Case;
use crate::axum_behaviour::reply::Ask;
use axum::error_handling::{HandleError, HandleErrorLayer};
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::middleware::{
    Next, from_extractor, from_fn, from_fn_with_state, map_request, map_response,
};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, get_service};
use axum::{BoxError, Extension, Router};
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tower::ServiceBuilder;
use tower::timeout::TimeoutLayer;

cases! {
    the_layer_given_last_runs_first,
    layers_count_for_what_stands_above_them,
    layers_run_for_what_has_no_route,
    a_layer_of_routes_does_not_run_for_what_has_none,
    a_layer_of_routes_runs_for_wrong_methods,
    a_layer_of_a_method_counts_for_that_method,
    a_layer_may_answer_itself,
    a_layer_may_change_the_request,
    a_layer_may_change_the_answer,
    a_layer_may_put_an_extension_in,
    a_layer_with_a_state_has_it,
    an_extractor_may_be_a_layer,
    errors_of_a_layer_are_turned_into_answers,
    errors_of_one_method_are_turned_into_answers,
    errors_of_a_service_are_turned_into_answers,
    an_error_may_be_told_with_what_extractors_give,
    a_time_limit_of_tower_http_is_a_408,
    merged_routers_keep_their_layers,
    a_layer_outside_the_router_may_rewrite_the_path,
}

fn tag(name: &'static str) -> impl Fn(Response) -> std::future::Ready<Response> + Clone {
    move |mut response| {
        response.headers_mut().append("x-tag", HeaderValue::from_static(name));
        std::future::ready(response)
    }
}

fn the_layer_given_last_runs_first(case: &mut Case) {
    async fn note(State(name): State<&'static str>, mut request: Request, next: Next) -> Response {
        let before = request.headers().get("x-way").cloned();
        let before = before.as_ref().map_or("", |value| value.to_str().unwrap_or_default());
        let way = format!("{before}{name}").parse().expect("the header value is valid");
        request.headers_mut().insert("x-way", way);
        next.run(request).await
    }
    let noting = |name| from_fn_with_state(name, note);
    let handler = async |fields: HeaderMap| fields["x-way"].to_str().unwrap_or_default().to_owned();
    let router = Router::new().route("/", get(handler));
    case.serve(router.layer(noting("a")).layer(noting("b")).layer(noting("c")));
    case.get("/").is(200, "cba");
}

fn layers_count_for_what_stands_above_them(case: &mut Case) {
    let router = Router::new().route("/above", get("")).layer(map_response(tag("t")));
    case.serve(router.route("/below", get("")));
    case.get("/above").is(200, "").has("x-tag", "t");
    case.get("/below").is(200, "").lacks("x-tag");
}

fn layers_run_for_what_has_no_route(case: &mut Case) {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = from_fn_with_state(
        count.clone(),
        async |State(count): State<Arc<AtomicUsize>>, request: Request, next: Next| {
            count.fetch_add(1, Ordering::SeqCst);
            next.run(request).await
        },
    );
    case.serve(Router::new().route("/", get("")).layer(counter).layer(map_response(tag("t"))));
    case.get("/").has("x-tag", "t");
    case.get("/x").is(404, "").has("x-tag", "t");
    case.post("/", "").is(405, "").has("x-tag", "t").has("allow", "GET,HEAD");
    assert_eq!(count.load(Ordering::SeqCst), 3 * case.servers());
}

/// Lets requests with the right token through.
async fn guard(request: Request, next: Next) -> Result<Response, StatusCode> {
    match request.headers().get("authorization") {
        Some(word) if word == "Bearer word" => Ok(next.run(request).await),
        _ => Err(StatusCode::UNAUTHORIZED),
    }
}

/// Peregrine keeps responses to identified clients out of shared caches.
const PRIVATE: &str = "cache-control (none) is private";

fn a_layer_of_routes_does_not_run_for_what_has_none(case: &mut Case) {
    case.serve(Router::new().route("/a", get("in")).route_layer(from_fn(guard)));
    case.send(&Ask::new("GET", "/a").field("authorization", "Bearer word")).is(200, "in");
    case.get("/a").is(401, "");
    case.get("/b").is(404, "");
    case.differs(PRIVATE);
}

fn a_layer_of_routes_runs_for_wrong_methods(case: &mut Case) {
    case.serve(Router::new().route("/a", get("in")).route_layer(from_fn(guard)));
    case.post("/a", "").is(401, "").has("allow", "GET,HEAD");
    let ask = Ask::new("POST", "/a").field("authorization", "Bearer word");
    case.send(&ask).is(405, "").has("allow", "GET,HEAD");
    case.differs(PRIVATE);
}

fn a_layer_of_a_method_counts_for_that_method(case: &mut Case) {
    let router = get("get").layer(map_response(tag("t"))).post("post");
    case.serve(Router::new().route("/", router));
    case.get("/").is(200, "get").has("x-tag", "t");
    case.post("/", "").is(200, "post").lacks("x-tag");
    case.ask("PUT", "/").is(405, "").has("allow", "GET,HEAD,POST");
}

fn a_layer_may_answer_itself(case: &mut Case) {
    let refuse = map_request(async |request: Request| {
        if request.uri().path() == "/no" { Err((StatusCode::FORBIDDEN, "no")) } else { Ok(request) }
    });
    case.serve(Router::new().route("/{x}", get("yes")).layer(refuse));
    case.get("/yes").is(200, "yes");
    case.get("/no").is(403, "no");
}

fn a_layer_may_change_the_request(case: &mut Case) {
    let change = map_request(async |mut request: Request| {
        request.headers_mut().insert("x-from", HeaderValue::from_static("a layer"));
        request
    });
    let handler =
        async |fields: HeaderMap| fields["x-from"].to_str().unwrap_or_default().to_owned();
    case.serve(Router::new().route("/", get(handler)).layer(change));
    case.send(&Ask::new("GET", "/").field("x-from", "outside")).is(200, "a layer");
}

fn a_layer_may_change_the_answer(case: &mut Case) {
    let change = map_response(async |response: Response| {
        let status = response.status();
        (StatusCode::IM_A_TEAPOT, [("x-was", status.as_str().to_owned())], response.into_body())
    });
    case.serve(Router::new().route("/", get("body")).layer(change));
    case.get("/").is(418, "body").has("x-was", "200").has("content-length", "4");
    case.get("/x").is(418, "").has("x-was", "404");
}

fn a_layer_may_put_an_extension_in(case: &mut Case) {
    let insert = from_fn(async |mut request: Request, next: Next| {
        let uri = request.uri().clone();
        request.extensions_mut().insert(uri);
        next.run(request).await
    });
    let handler = async |Extension(uri): Extension<Uri>| uri.to_string();
    case.serve(Router::new().route("/a/{b}", get(handler)).layer(insert));
    case.get("/a/b?c").is(200, "/a/b?c");
}

fn a_layer_with_a_state_has_it(case: &mut Case) {
    let layer = from_fn_with_state(
        "the state",
        async |State(state): State<&'static str>, request: Request, next: Next| {
            let mut response = next.run(request).await;
            response.headers_mut().insert("x-state", HeaderValue::from_static(state));
            response
        },
    );
    case.serve(Router::new().route("/", get("x")).layer(layer));
    case.get("/").is(200, "x").has("x-state", "the state");
}

fn an_extractor_may_be_a_layer(case: &mut Case) {
    struct Word;
    impl<S: Sync> axum::extract::FromRequestParts<S> for Word {
        type Rejection = (StatusCode, &'static str);
        async fn from_request_parts(
            parts: &mut axum::http::request::Parts,
            _: &S,
        ) -> Result<Self, Self::Rejection> {
            let is_there = parts.headers.contains_key("x-word");
            if is_there { Ok(Self) } else { Err((StatusCode::UNAUTHORIZED, "which word?")) }
        }
    }
    case.serve(Router::new().route("/", get("in")).route_layer(from_extractor::<Word>()));
    case.get("/").is(401, "which word?");
    case.send(&Ask::new("GET", "/").field("x-word", "1")).is(200, "in");
}

/// A tower timeout, whose errors must be converted to responses.
fn limit() -> TimeoutLayer {
    TimeoutLayer::new(Duration::from_millis(20))
}

async fn late(_: BoxError) -> (StatusCode, &'static str) {
    (StatusCode::REQUEST_TIMEOUT, "late")
}

fn errors_of_a_layer_are_turned_into_answers(case: &mut Case) {
    let layer = ServiceBuilder::new().layer(HandleErrorLayer::new(late)).layer(limit());
    let router = Router::new().route("/never", get(pending::<()>)).route("/now", get("now"));
    case.serve(router.layer(layer));
    case.get("/never").is(408, "late");
    case.get("/now").is(200, "now");
}

fn errors_of_one_method_are_turned_into_answers(case: &mut Case) {
    let never = pending::<()>.layer((HandleErrorLayer::new(late), limit()));
    case.serve(Router::new().route("/", delete("deleted").get(never).post("posted")));
    case.get("/").is(408, "late");
    case.post("/", "").is(200, "posted");
    case.ask("DELETE", "/").is(200, "deleted");
}

fn errors_of_a_service_are_turned_into_answers(case: &mut Case) {
    let fails =
        tower::service_fn(async |_: Request| Err::<Response, _>(std::io::Error::other("broken")));
    let to_response = async |error: std::io::Error| (StatusCode::BAD_GATEWAY, error.to_string());
    let service = HandleError::new(fails, to_response);
    case.serve(Router::new().route("/", get_service(service)));
    case.get("/").is(502, "broken");
}

fn an_error_may_be_told_with_what_extractors_give(case: &mut Case) {
    let to_response = async |uri: Uri, error: BoxError| {
        (
            StatusCode::GATEWAY_TIMEOUT,
            format!("{uri}: {}", error.is::<tower::timeout::error::Elapsed>()),
        )
    };
    let layer = ServiceBuilder::new().layer(HandleErrorLayer::new(to_response)).layer(limit());
    case.serve(Router::new().route("/never", get(pending::<()>)).layer(layer));
    case.get("/never?x").is(504, "/never?x: true");
}

fn a_time_limit_of_tower_http_is_a_408(case: &mut Case) {
    let status = StatusCode::REQUEST_TIMEOUT;
    let limit = Duration::from_millis(20);
    let layer = tower_http::timeout::TimeoutLayer::with_status_code(status, limit);
    case.serve(Router::new().route("/", get(pending::<()>)).layer(layer));
    case.get("/").is(408, "").has("content-length", "0");
}

fn merged_routers_keep_their_layers(case: &mut Case) {
    let private = Router::new().route("/private", get("private")).layer(from_fn(guard));
    case.serve(private.merge(Router::new().route("/public", get("public"))));
    case.get("/private").is(401, "");
    case.get("/public").is(200, "public");
    case.get("/x").is(404, "");
}

fn a_layer_outside_the_router_may_rewrite_the_path(case: &mut Case) {
    let rewrite = map_request(async |mut request: Request| {
        if request.uri().path() == "/old" {
            *request.uri_mut() = Uri::from_static("/new?rewritten");
        }
        request
    });
    let inner = Router::new().route("/new", get(async |uri: Uri| uri.to_string().into_response()));
    case.serve(Router::new().fallback_service(inner).layer(rewrite));
    case.get("/old").is(200, "/new?rewritten");
    case.get("/new").is(200, "/new");
}
