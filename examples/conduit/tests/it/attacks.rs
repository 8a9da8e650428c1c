//! Hostile input: unusual characters, boundary values of numbers, forged tokens, and many
//! concurrent requests.

use crate::harness::{User, slugs, world};
use peregrine::web::testing::TestForm;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Texts that break naive parsing, escaping or interpolation.
const ODD: [&str; 14] = [
    "a\u{0}b",
    "'; DROP TABLE users; --",
    "\" OR 1=1",
    "%_%",
    "\\",
    "<script>alert(1)</script>",
    "{{7*7}}",
    "\u{202e}gnp.exe",
    "\u{feff}x",
    "I\u{307}\u{131}\u{130}",
    "\u{1f469}\u{200d}\u{1f4bb}",
    "e\u{301} and \u{e9}",
    "\u{fffd}\u{ffff}",
    "a\r\nSet-Cookie: b=c",
];

#[tokio::test]
async fn odd_texts_come_back_as_they_were() {
    let world = world().await;
    let ann = world.user("ann").await;
    for text in ODD {
        let article =
            json!({ "title": text, "description": text, "body": text, "tagList": [text, text] });
        let made = ann.post("/api/articles", json!({ "article": article })).await;
        made.assert_status(201);
        let made: Value = made.json();
        let slug = made["article"]["slug"].as_str().expect("a slug").to_owned();
        let path: String = url_of(&slug);
        let found = world.get(&format!("/api/articles/{path}")).await;
        for field in ["title", "description", "body"] {
            assert_eq!(found["article"][field], text, "{slug}");
        }
        assert_eq!(found["article"]["tagList"], json!([text.trim()]), "{text:?}");
        let tagged = world.get(&format!("/api/articles?tag={}", url_of(text.trim()))).await;
        assert_eq!(slugs(&tagged), [&slug], "{text:?}");
        let comments = format!("/api/articles/{path}/comments");
        let comment = ann.post(&comments, json!({ "comment": { "body": text } })).await;
        comment.assert_status(201);
        let comments = world.get(&format!("/api/articles/{path}/comments")).await;
        assert_eq!(comments["comments"][0]["body"], text);
        let page = world
            .client
            .get(&format!("/articles/{path}"))
            .header("accept", "text/html")
            .send()
            .await;
        assert!(!page.assert_status(200).text().contains("<script>alert"), "{text:?}");
        assert!(page.header("set-cookie").is_none());
    }
}

#[tokio::test]
async fn odd_names_lead_to_their_users_and_to_nobody_else() {
    let world = world().await;
    let watcher = world.user("watcher").await;
    let names = [
        "a?b",
        "a#b",
        "a%b",
        "a%2fb",
        "..%2f",
        "a\\b",
        "a&b=c",
        "a+b",
        "a;b",
        "\u{1f469}",
        "~",
        "...",
        "null",
        "0",
    ];
    for name in names {
        let user = json!({ "username": name, "email": format!("{}@x", names.iter().position(|one| *one == name).expect("it is in the list")), "password": "password" });
        let made = world.client.post("/api/users").json(&json!({ "user": user })).send().await;
        made.assert_status(201);
        let path = url_of(name);
        let profile = world.get(&format!("/api/profiles/{path}")).await;
        assert_eq!(profile["profile"]["username"], name);
        let followed = watcher.post(&format!("/api/profiles/{path}/follow"), json!({})).await;
        assert_eq!(followed.assert_status(200).json::<Value>()["profile"]["following"], true);
        let page = world
            .client
            .get(&format!("/authors/{path}"))
            .header("accept", "text/html")
            .send()
            .await;
        page.assert_status(200);
    }
    // Names that differ only in case are the same name.
    let again = json!({ "username": "WATCHER", "email": "other@x", "password": "password" });
    let again = world.client.post("/api/users").json(&json!({ "user": again })).send().await;
    again.assert_status(409);
}

#[tokio::test]
async fn tokens_that_somebody_made_up_let_in_nobody() {
    let world = world().await;
    let ann = world.user("ann").await;
    let parts: Vec<_> = ann.token.split('.').collect();
    let [head, claims, signature] = parts[..] else { panic!("three parts") };
    // {"alg":"none"}
    let none = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0";
    let forged = [
        format!("{none}.{claims}."),
        format!("{none}.{claims}.{signature}"),
        format!("{head}.{claims}."),
        format!("{head}.{claims}"),
        format!("{head}.{claims}.{}", signature.chars().rev().collect::<String>()),
        format!("{head}.{head}.{signature}"),
        format!("{}.", ann.token),
        format!("{} {}", ann.token, ann.token),
        String::new(),
        ".".to_owned(),
        "..".to_owned(),
        "a".repeat(8_000),
        "\u{e9}".to_owned(),
    ];
    for token in forged {
        for scheme in ["Token", "Bearer", "token", "Basic", ""] {
            let request =
                world.client.get("/api/user").header("authorization", format!("{scheme} {token}"));
            assert_eq!(request.send().await.status(), 401, "{scheme} {token}");
        }
    }
    let twice = ann.sign(ann.sign(world.client.get("/api/user"))).send().await;
    twice.assert_status(401);
    // A changed password invalidates earlier tokens.
    let changed = ann.put("/api/user", json!({ "user": { "password": "another one" } })).await;
    changed.assert_status(200);
    ann.get("/api/user").await.assert_status(401);
}

#[tokio::test]
async fn pages_have_edges_and_no_overflow() {
    let world = world().await;
    let ann = world.user("ann").await;
    for title in ["one", "two", "three"] {
        ann.publish(title, &[]).await;
    }
    for (query, status, count) in [
        ("limit=1&offset=2", 200, 1),
        ("limit=4294967295&offset=0", 200, 3),
        ("limit=4294967295&offset=4294967295", 200, 0),
        ("offset=3", 200, 0),
        ("limit=0", 422, 0),
        ("limit=-1", 400, 0),
        ("limit=4294967296", 400, 0),
        ("limit=1.5", 400, 0),
        ("limit=1e1", 400, 0),
        ("limit=", 400, 0),
        ("limit=1&limit=2", 400, 0),
        ("offset=99999999999999999999", 400, 0),
    ] {
        let response = world.client.get(&format!("/api/articles?{query}")).send().await;
        assert_eq!(response.status(), status, "{query}");
        if status == 200 {
            let list: Value = response.json();
            assert_eq!((slugs(&list).len(), &list["articlesCount"]), (count, &json!(3)), "{query}");
        }
    }
    for (page, status) in
        [("0", 200), ("1", 200), ("4294967295", 200), ("4294967296", 400), ("-1", 400), ("x", 400)]
    {
        let response = world.client.get(&format!("/?page={page}")).header("accept", "text/html");
        assert_eq!(response.send().await.status(), status, "{page}");
    }
    for id in ["0", "-1", "9223372036854775807", "9223372036854775808", "x", "1.0", "%31"] {
        let response = ann.delete(&format!("/api/articles/one/comments/{id}")).await;
        assert!(matches!(response.status().as_u16(), 404 | 400), "{id}: {}", response.status());
    }
}

#[tokio::test]
async fn bodies_that_are_no_documents_are_refused() {
    let world = world().await;
    let ann = world.user("ann").await;
    let deep = "[".repeat(100_000);
    let nested = format!("{}1{}", r#"{"article":"#.repeat(5_000), "}".repeat(5_000));
    for body in [
        "",
        "null",
        "[]",
        "{}",
        "{",
        "\u{feff}{}",
        &deep,
        &nested,
        r#"{"article":null}"#,
        r#"{"article":{"title":"a","title":"b"}}"#,
        r#"{"article":{"title":1,"description":"d","body":"b"}}"#,
        r#"{"article":{"title":"a","description":"d","body":"b","tagList":"x"}}"#,
        r#"{"article":{"title":"a","description":"d","body":"b","tagList":[null]}}"#,
        r#"{"article":{"title":"\ud800","description":"d","body":"b"}}"#,
    ] {
        let request = ann.sign(world.client.post("/api/articles"));
        let response = request.header("content-type", "application/json").body(body.to_owned());
        let status = response.send().await.status().as_u16();
        assert!(matches!(status, 400 | 413 | 422), "{status}: {}", &body[..body.len().min(80)]);
    }
    let large =
        json!({ "article": { "title": "x", "description": "d", "body": "b".repeat(3 << 20) } });
    ann.post("/api/articles", large).await.assert_status(413);
    assert_eq!(world.get("/api/articles").await["articlesCount"], 0);
}

#[tokio::test]
async fn pictures_are_pictures_up_to_the_last_byte_that_they_may_have() {
    let world = world().await;
    let ann = world.user("ann").await;
    let put = async |bytes: Vec<u8>, name: &'static str| {
        let form = TestForm::new().file("image", name, "text/html", bytes);
        ann.sign(world.client.put("/api/user/image")).multipart(form).send().await
    };
    let gif = |length: usize| [b"GIF89a".to_vec(), vec![0; length - 6]].concat();
    put(gif(1000), "a.gif").await.assert_status(200);
    put(gif(1001), "a.gif").await.assert_status(413);
    for bytes in [
        Vec::new(),
        b"<html>".to_vec(),
        b"GIF".to_vec(),
        b"RIFF1234WAVE".to_vec(),
        b" GIF89a".to_vec(),
    ] {
        put(bytes, "a.gif").await.assert_status(422);
    }
    for name in ["../../a.gif", "a.html", "/etc/passwd", "", "a.gif\r\nX: y", "\u{202e}fig.a"] {
        let made = put(gif(10), name).await;
        made.assert_status(200);
        let url = made.json::<Value>()["user"]["image"].as_str().expect("a URL").to_owned();
        assert!(url.starts_with("/uploads/") && url.ends_with(".gif"), "{url}");
        let picture = world.client.get(&url).send().await;
        assert_eq!(picture.assert_status(200).header("content-type"), Some("image/gif"));
        assert_eq!(picture.header("x-content-type-options"), Some("nosniff"));
    }
    // Each picture replaced the previous one, so the folder has one.
    let folder = std::fs::read_dir(world.folder().join("uploads")).expect("the folder exists");
    assert_eq!(folder.count(), 1);
    // Another user's picture and other files are not removed.
    let bob = world.user("bob").await;
    let mine = world.get("/api/profiles/ann").await["profile"]["image"].clone();
    for image in
        [mine.clone(), json!("/uploads/../conduit.db"), json!("/uploads/x.gif"), json!(null)]
    {
        bob.put("/api/user", json!({ "user": { "image": image } })).await.assert_status(200);
    }
    world.client.get(mine.as_str().expect("text")).send().await.assert_status(200);
}

#[tokio::test]
async fn many_at_once_leave_nothing_torn() {
    let world = world().await;
    let users: Vec<User<'_>> =
        vec![world.user("a").await, world.user("b").await, world.user("c").await];
    let slug = users[0].publish("the same title", &[]).await;
    let favorite = format!("/api/articles/{slug}/favorite");
    let work = users.iter().enumerate().map(|(number, user)| {
        let favorite = &favorite;
        async move {
            let mut made = Vec::new();
            for round in 0..8 {
                user.post(favorite, json!({})).await.assert_status(200);
                user.delete(favorite).await.assert_status(200);
                user.post(favorite, json!({})).await.assert_status(200);
                made.push(user.publish("the same title", &["x"]).await);
                let bio = json!({ "user": { "bio": format!("{number} {round}") } });
                user.put("/api/user", bio).await.assert_status(200);
            }
            made
        }
    });
    let made: Vec<_> = futures(work).await.into_iter().flatten().collect();
    let distinct: BTreeSet<_> = made.iter().collect();
    assert_eq!((made.len(), distinct.len()), (24, 24));
    let article = world.get(&format!("/api/articles/{slug}")).await;
    assert_eq!(article["article"]["favoritesCount"], 3);
    assert_eq!(world.get("/api/articles").await["articlesCount"], 25);
    // Of several concurrent registrations of one name, one succeeds.
    let register = (0..6).map(|number| {
        let user =
            json!({ "username": "wanted", "email": format!("{number}@x"), "password": "password" });
        let request = world.client.post("/api/users").json(&json!({ "user": user }));
        async move { request.send().await.status().as_u16() }
    });
    let mut statuses = futures(register).await;
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409, 409, 409, 409, 409]);
}

/// Runs all futures concurrently.
async fn futures<F: Future>(all: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut all: Vec<_> = all.into_iter().map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|cx| {
        for (future, output) in all.iter_mut().filter(|(_, output)| output.is_none()) {
            if let std::task::Poll::Ready(ready) = future.as_mut().poll(cx) {
                *output = Some(ready);
            }
        }
        match all.iter().all(|(_, output)| output.is_some()) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    all.into_iter().filter_map(|(_, output)| output).collect()
}

/// The text, percent-encoded as a path segment or a query value.
fn url_of(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}
