//! The API, called in process.

use app::app;
use peregrine::openapi::OpenApiExt;
use serde_json::json;

#[test]
fn a_bird_that_is_added_is_found() {
    let client = app().test();
    let kestrel = json!({ "name": "kestrel", "wingspan_cm": 75 });
    let number: usize = client
        .post("/birds")
        .json(&kestrel)
        .send_blocking()
        .assert_status(201)
        .json();
    let path = format!("/birds/{number}");
    client
        .get(&path)
        .send_blocking()
        .assert_status(200)
        .assert_json(&kestrel);
    assert!(
        client
            .get("/birds")
            .send_blocking()
            .assert_status(200)
            .text()
            .contains("kestrel")
    );
}

#[test]
fn invalid_requests_are_rejected() {
    let client = app().test();
    client
        .get("/birds/1000000")
        .send_blocking()
        .assert_status(404);
    client
        .get("/birds/no-number")
        .send_blocking()
        .assert_status(400);
    let wide = json!({ "name": "roc", "wingspan_cm": 4000 });
    let problem = client
        .post("/birds")
        .json(&wide)
        .send_blocking()
        .assert_status(422)
        .text();
    assert!(problem.contains("/wingspan_cm"), "{problem}");
}

#[test]
fn every_route_is_in_the_document() {
    // `require_descriptions` makes a route without a description an error.
    let document = app().openapi().expect("every route is described");
    assert!(document.operation("POST", "/birds").is_some());
    app().test().get("/docs").send_blocking().assert_status(200);
}
