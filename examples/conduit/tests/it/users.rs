use crate::harness::{refused, settings, world};
use peregrine_conduit::Conduit;
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use std::cell::Cell;
use std::time::Duration;

#[tokio::test]
async fn whoever_registers_can_log_in_and_is_known() {
    let world = world().await;
    let ada = world.user("ada").await;
    let me = ada.get("/api/user").await.json::<Value>()["user"].clone();
    assert_eq!(
        (&me["username"], &me["email"], &me["bio"], &me["image"]),
        (&json!("ada"), &json!("ada@mail"), &Value::Null, &Value::Null)
    );
    // Addresses and names that differ only in case are the same.
    let login = json!({ "user": { "email": "ADA@mail", "password": "password" } });
    let response = world.client.post("/api/users/login").json(&login).send().await;
    assert_eq!(response.assert_status(200).json::<Value>()["user"]["username"], "ada");
}

#[tokio::test]
async fn names_and_addresses_are_had_by_one() {
    let world = world().await;
    world.user("ada").await;
    for (name, email, errors) in [
        ("Ada", "other@mail", json!({ "username": ["has already been taken"] })),
        ("other", "Ada@Mail", json!({ "email": ["has already been taken"] })),
    ] {
        let user = json!({ "user": { "username": name, "email": email, "password": "password" } });
        refused(&world.client.post("/api/users").json(&user).send().await, 409, &errors);
    }
    let eve = world.user("eve").await;
    let change = eve.put("/api/user", json!({ "user": { "username": "ADA" } })).await;
    refused(&change, 409, &json!({ "username": ["has already been taken"] }));
}

#[tokio::test]
async fn missing_and_invalid_values_are_reported_by_field() {
    let world = world().await;
    let blank = json!(["can't be blank"]);
    for (path, user, errors) in [
        ("/api/users", json!({}), json!({ "username": blank, "email": blank, "password": blank })),
        (
            "/api/users",
            json!({ "username": "a/b", "email": "x", "password": "short" }),
            json!({
                "username": ["must not have slashes, or spaces at its ends"],
                "email": ["is not an email address"],
                "password": ["must have 8 characters or more"],
            }),
        ),
        (
            "/api/users",
            json!({ "username": 7 }),
            json!({ "username": ["invalid type: integer `7`, expected a string"] }),
        ),
        (
            "/api/users/login",
            json!({ "email": "", "password": "" }),
            json!({ "email": blank, "password": blank }),
        ),
    ] {
        let response = world.client.post(path).json(&json!({ "user": user })).send().await;
        refused(&response, 422, &errors);
    }
    let response = world.client.post("/api/users").json(&json!({})).send().await;
    refused(&response, 422, &json!({ "user": ["missing field"] }));
    let response = world.client.post("/api/users").header("content-type", "application/json");
    let response = response.body("{").send().await;
    assert!(response.assert_status(400).json::<Value>()["errors"]["invalid-json"].is_array());
}

#[tokio::test]
async fn only_the_right_password_logs_in_and_nobody_tries_for_long() {
    let folder = tempfile::tempdir().expect("the disk is writable");
    let settings = peregrine_conduit::Settings { logins_per_minute: 3, ..settings(folder.path()) };
    let client = Conduit::open(&settings).await.expect("it opens").app().test();
    let user =
        json!({ "user": { "username": "ada", "email": "ada@mail", "password": "password" } });
    client.post("/api/users").json(&user).send().await.assert_status(201);
    let login = async |email: &str, password: &str| {
        let user = json!({ "user": { "email": email, "password": password } });
        client.post("/api/users/login").json(&user).send().await
    };
    let wrong = json!({ "credentials": ["invalid"] });
    refused(&login("ada@mail", "passw0rd").await, 401, &wrong);
    refused(&login("nobody@mail", "password").await, 401, &wrong);
    login("ada@mail", "password").await.assert_status(200);
    login("ada@mail", "passw0rd").await;
    let late = login("ADA@mail", "password").await;
    assert!(late.assert_status(429).header("retry-after").is_some());
    login("nobody@mail", "password").await.assert_status(401);
}

#[tokio::test]
async fn while_another_process_writes_a_start_waits_and_a_request_gets_retry_after() {
    let folder = tempfile::tempdir().expect("the disk is writable");
    let wait_max = Duration::from_millis(500);
    let settings = peregrine_conduit::Settings { wait_max, ..settings(folder.path()) };
    Conduit::open(&settings).await.expect("it opens").close().await;
    let options = SqliteConnectOptions::new().filename(&settings.database);
    let mut other = SqliteConnection::connect_with(&options).await.expect("it opens");
    let writing = other.begin_with("BEGIN IMMEDIATE").await.expect("no other writer");
    let is_over = Cell::new(false);
    let write = async {
        tokio::time::sleep(3 * wait_max).await;
        is_over.set(true);
        writing.rollback().await.expect("the transaction is open");
    };
    let open = async {
        let conduit = Conduit::open(&settings).await.expect("it opens");
        assert!(is_over.get(), "start-up waits for the writer");
        conduit
    };
    let (conduit, ()) = tokio::join!(open, write);
    let client = conduit.app().test();
    let writing = other.begin_with("BEGIN IMMEDIATE").await.expect("no other writer");
    let user =
        json!({ "user": { "username": "ada", "email": "ada@mail", "password": "password" } });
    let register = async || client.post("/api/users").json(&user).send().await;
    let refused = register().await;
    assert!(refused.assert_status(503).header("retry-after").is_some());
    writing.rollback().await.expect("the transaction is open");
    // On a busy machine, more than one retry may be needed.
    loop {
        match register().await.status().as_u16() {
            201 => break,
            status => assert_eq!(status, 503),
        }
    }
}

#[tokio::test]
async fn a_token_is_asked_for_and_judged() {
    let world = world().await;
    let ada = world.user("ada").await;
    for (method, path) in [
        ("GET", "/api/user"),
        ("PUT", "/api/user"),
        ("PUT", "/api/user/image"),
        ("GET", "/api/articles/feed"),
        ("POST", "/api/articles"),
        ("PUT", "/api/articles/x"),
        ("DELETE", "/api/articles/x"),
        ("POST", "/api/articles/x/favorite"),
        ("DELETE", "/api/articles/x/favorite"),
        ("POST", "/api/articles/x/comments"),
        ("DELETE", "/api/articles/x/comments/1"),
        ("POST", "/api/profiles/x/follow"),
        ("DELETE", "/api/profiles/x/follow"),
    ] {
        let request = world.client.request(method.parse().expect("a method"), path);
        let response = request.send().await;
        refused(&response, 401, &json!({ "token": ["is missing"] }));
        assert_eq!(response.header("www-authenticate"), Some("Token"), "{method} {path}");
    }
    let invalid = json!({ "token": ["is invalid"] });
    let (head, signature) = ada.token.rsplit_once('.').expect("three parts");
    let forged = format!("{head}.{}", signature.chars().rev().collect::<String>());
    for value in [
        "Token",
        "Token x",
        "Basic YTpi",
        &format!("Token {forged}"),
        &format!("Token {}", &ada.token[1..]),
    ] {
        // An invalid token is rejected even on public routes.
        for path in ["/api/user", "/api/articles"] {
            let response = world.client.get(path).header("authorization", value).send().await;
            refused(&response, 401, &invalid);
        }
    }
    for scheme in ["Token", "Bearer", "bearer"] {
        let request = world
            .client
            .get("/api/user")
            .header("authorization", format!("{scheme} {}", ada.token));
        request.send().await.assert_status(200);
    }
}

#[tokio::test]
async fn a_token_ends_with_the_password() {
    let world = world().await;
    let ada = world.user("ada").await;
    let changed = ada.put("/api/user", json!({ "user": { "password": "another one" } })).await;
    let token = changed.assert_status(200).json::<Value>()["user"]["token"].clone();
    refused(&ada.get("/api/user").await, 401, &json!({ "token": ["is invalid"] }));
    let value = format!("Token {}", token.as_str().expect("a token"));
    world
        .client
        .get("/api/user")
        .header("authorization", value.clone())
        .send()
        .await
        .assert_status(200);
    for (password, status) in [("password", 401), ("another one", 200)] {
        let user = json!({ "user": { "email": "ada@mail", "password": password } });
        world.client.post("/api/users/login").json(&user).send().await.assert_status(status);
    }
    // A token issued for another database with the same secret is invalid here.
    let folder = tempfile::tempdir().expect("the disk is writable");
    let other = Conduit::open(&settings(folder.path())).await.expect("it opens").app().test();
    other.get("/api/user").header("authorization", value).send().await.assert_status(401);
}

#[tokio::test]
async fn changes_are_kept_and_what_is_left_out_stays() {
    let world = world().await;
    let ada = world.user("ada").await;
    let change = async |user: Value| {
        let response = ada.put("/api/user", json!({ "user": user })).await;
        let user = response.assert_status(200).json::<Value>()["user"].clone();
        assert_eq!(ada.get("/api/user").await.json::<Value>()["user"]["bio"], user["bio"]);
        user
    };
    let changed = change(json!({ "bio": "I count", "image": "https://x/a.png" })).await;
    assert_eq!(
        (&changed["bio"], &changed["image"]),
        (&json!("I count"), &json!("https://x/a.png"))
    );
    let changed = change(json!({ "username": "lovelace", "email": "l@mail" })).await;
    assert_eq!(
        (&changed["username"], &changed["email"], &changed["bio"]),
        (&json!("lovelace"), &json!("l@mail"), &json!("I count"))
    );
    // An empty text or null removes an optional value,
    assert_eq!(change(json!({ "bio": "" })).await["bio"], Value::Null);
    assert_eq!(change(json!({ "image": null })).await["image"], Value::Null);
    // and is rejected for a required one.
    for name in ["username", "email", "password"] {
        for value in [json!(""), Value::Null] {
            let response = ada.put("/api/user", json!({ "user": { name: value } })).await;
            assert!(
                response.assert_status(422).json::<Value>()["errors"][name].is_array(),
                "{name}"
            );
        }
    }
    let response =
        ada.put("/api/user", json!({ "user": { "image": "javascript:alert(1)" } })).await;
    refused(&response, 422, &json!({ "image": ["must be an https or http URL"] }));
    refused(
        &ada.put("/api/user", json!({ "user": {} })).await,
        422,
        &json!({ "user": ["has no changes"] }),
    );
}

#[tokio::test]
async fn a_request_of_another_origin_is_answered_so_that_browsers_let_it() {
    let world = world().await;
    let asked = world.client.options("/api/user").header("origin", "https://front.example");
    let asked = asked.header("access-control-request-method", "PUT");
    let response =
        asked.header("access-control-request-headers", "authorization,content-type").send().await;
    assert_eq!(response.assert_status(204).header("access-control-allow-origin"), Some("*"));
    let response =
        world.client.get("/api/user").header("origin", "https://front.example").send().await;
    assert_eq!(response.assert_status(401).header("access-control-allow-origin"), Some("*"));
    assert_eq!(
        world.client.get("/api/nowhere").send().await.assert_status(404).header("content-type"),
        Some("application/json")
    );
}
