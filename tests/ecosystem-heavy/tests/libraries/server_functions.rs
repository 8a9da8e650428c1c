//! Server functions as in leptos and dioxus: the crate `server_fn`, with its axum handler.

use axum::Router;
use axum::routing::any;
use futures_util::stream;
use peregrine::DriverChoice;
use peregrine::prelude::App;
use peregrine::tower::{Mount, tower};
use peregrine_ecosystem_tests::{base_url, client, end, in_runtime, on_both_drivers, start};
use reqwest::Response;
use server_fn::ServerFnError;
use server_fn::axum::handle_server_fn;
use server_fn::codec::{GetUrl, Json, StreamingText, TextStream};
use server_fn_macro_default::server;

on_both_drivers! {
    functions_are_called_by_their_paths,
    a_function_answers_piece_by_piece,
    a_prefix_that_is_taken_away_hides_the_functions,
}

#[server(endpoint = "add")]
async fn add(left: i32, right: i32) -> Result<i32, ServerFnError> {
    left.checked_add(right).ok_or_else(|| ServerFnError::new("that is too much"))
}

#[server(endpoint = "join", input = Json)]
async fn join(words: Vec<String>) -> Result<String, ServerFnError> {
    // Waits, like a database query.
    tokio::task::yield_now().await;
    Ok(words.join(" "))
}

#[server(endpoint = "double", input = GetUrl)]
async fn double(number: i32) -> Result<i32, ServerFnError> {
    Ok(number * 2)
}

#[server(endpoint = "count", output = StreamingText)]
async fn count(to: u32) -> Result<TextStream, ServerFnError> {
    let pieces = stream::unfold(1, move |number| async move {
        tokio::task::yield_now().await;
        (number <= to).then(|| (Ok(format!("{number},")), number + 1))
    });
    Ok(TextStream::new(pieces))
}

/// As in leptos programs. It finds a function by the full path, so the prefix must not be removed:
/// use `subtree`, or `mount` at `/`.
fn app() -> App {
    let functions = Router::new().route("/api/{*function}", any(handle_server_fn));
    App::new().subtree("/api", tower(functions)).get("/", || "a page of ours")
}

/// The request that a client stub sends.
async fn post(url: String, kind: &str, body: impl Into<reqwest::Body>) -> Response {
    let request = client(None).post(url).header("accept", "application/json");
    let request = request.header("content-type", kind).body(body);
    request.send().await.expect("the server responds")
}

const FORM: &str = "application/x-www-form-urlencoded";

fn functions_are_called_by_their_paths(choice: DriverChoice) {
    let Some(running) = start(choice, 2, app) else { return };
    let base = base_url(&running);
    in_runtime(async {
        let sum = post(format!("{base}/api/add"), FORM, "left=40&right=2").await;
        assert_eq!(sum.status(), 200);
        assert_eq!(sum.headers()["content-type"], "application/json");
        assert_eq!(sum.text().await.expect("a body"), "42");
        let words = post(format!("{base}/api/join"), "application/json", r#"{"words":["a","b"]}"#);
        assert_eq!(words.await.text().await.expect("a body"), r#""a b""#);
        let double = client(None).get(format!("{base}/api/double?number=21")).send().await;
        let double = double.expect("the server responds");
        assert_eq!(double.text().await.expect("a body"), "42");
        // An error of the function, and invalid arguments.
        let error = post(format!("{base}/api/add"), FORM, "left=2147483647&right=1").await;
        assert_eq!(error.status(), 500);
        assert!(error.text().await.expect("a body").contains("that is too much"));
        let error = post(format!("{base}/api/add"), FORM, "left=one").await;
        assert_eq!(error.status(), 500);
        let page = client(None).get(&base).send().await.expect("the server responds");
        assert_eq!(page.text().await.expect("a body"), "a page of ours");
    });
    end(running);
}

fn a_function_answers_piece_by_piece(choice: DriverChoice) {
    let Some(running) = start(choice, 1, app) else { return };
    let url = format!("{}/api/count", base_url(&running));
    in_runtime(async {
        let counted = post(url, FORM, "to=2000").await;
        // It uses this type for text as well.
        assert_eq!(counted.headers()["content-type"], "application/octet-stream");
        assert!(!counted.headers().contains_key("content-length"), "the length is unknown");
        let expected: String = (1..=2000).map(|number| format!("{number},")).collect();
        assert_eq!(counted.text().await.expect("a body"), expected);
    });
    end(running);
}

/// axum's own `nest` behaves the same.
fn a_prefix_that_is_taken_away_hides_the_functions(choice: DriverChoice) {
    let make = || {
        let functions = Router::new().fallback(handle_server_fn);
        App::new().mount("/api", functions)
    };
    let Some(running) = start(choice, 1, make) else { return };
    let url = format!("{}/api/add", base_url(&running));
    in_runtime(async {
        let lost = post(url, FORM, "left=40&right=2").await;
        assert_eq!(lost.status(), 400);
        let text = lost.text().await.expect("a body");
        assert!(text.contains("Could not find a server function at the route /add"), "{text}");
    });
    end(running);
}
