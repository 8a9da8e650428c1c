use crate::harness::world;
use peregrine::openapi::OpenApiExt;
use serde_json::{Value, json};

#[tokio::test]
async fn every_endpoint_of_the_specification_is_in_the_document() {
    let world = world().await;
    let document = world.conduit.app().openapi().expect("every route is described");
    for (method, path, success, has_security) in [
        ("POST", "/api/users", "201", false),
        ("POST", "/api/users/login", "200", false),
        ("GET", "/api/user", "200", true),
        ("PUT", "/api/user", "200", true),
        ("PUT", "/api/user/image", "200", true),
        ("GET", "/api/profiles/{username}", "200", true),
        ("POST", "/api/profiles/{username}/follow", "200", true),
        ("DELETE", "/api/profiles/{username}/follow", "200", true),
        ("GET", "/api/articles", "200", true),
        ("GET", "/api/articles/feed", "200", true),
        ("POST", "/api/articles", "201", true),
        ("GET", "/api/articles/{slug}", "200", true),
        ("PUT", "/api/articles/{slug}", "200", true),
        ("DELETE", "/api/articles/{slug}", "204", true),
        ("POST", "/api/articles/{slug}/favorite", "200", true),
        ("DELETE", "/api/articles/{slug}/favorite", "200", true),
        ("GET", "/api/articles/{slug}/comments", "200", true),
        ("POST", "/api/articles/{slug}/comments", "201", true),
        ("DELETE", "/api/articles/{slug}/comments/{id}", "204", true),
        ("GET", "/api/tags", "200", false),
        ("GET", "/api/live/articles", "200", false),
        ("GET", "/api/live/articles/{slug}/comments", "200", false),
    ] {
        let operation =
            document.operation(method, path).unwrap_or_else(|| panic!("{method} {path}"));
        assert!(operation["responses"][success].is_object(), "{method} {path}: {operation}");
        assert_eq!(operation["security"].is_array(), has_security, "{method} {path}: {operation}");
    }
    let served = world.get("/openapi.json").await;
    assert_eq!(&served, document.value());
    // Fields with a default, whose absence is reported as a validation error, are still required.
    let new: &Value = &served["components"]["schemas"]["NewUser"];
    assert_eq!(new["required"], json!(["username", "email", "password"]));
}
