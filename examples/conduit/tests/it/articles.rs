use crate::harness::{refused, slugs, world};
use serde_json::{Value, json};

#[tokio::test]
async fn an_article_is_published_as_it_was_written() {
    let world = world().await;
    let ada = world.user("ada").await;
    let article = json!({ "title": "How to train", "description": "Ever wonder?", "body": "With care.", "tagList": ["training", "dragons", "dragons"] });
    let made = ada.post("/api/articles", json!({ "article": article })).await;
    let made = made.assert_status(201).json::<Value>()["article"].clone();
    let mut rest = made.clone();
    for name in ["createdAt", "updatedAt"] {
        let time = rest.as_object_mut().and_then(|rest| rest.remove(name)).expect("a time");
        let time = time.as_str().expect("a text");
        assert!(time.len() == 24 && time.ends_with('Z') && time.as_bytes()[19] == b'.', "{time}");
    }
    let author = json!({ "username": "ada", "bio": null, "image": null, "following": false });
    assert_eq!(
        rest,
        json!({
            "slug": "how-to-train", "title": "How to train", "description": "Ever wonder?", "body": "With care.",
            "tagList": ["dragons", "training"], "favorited": false, "favoritesCount": 0, "author": author,
        })
    );
    assert_eq!(world.get("/api/articles/how-to-train").await["article"], made);
    let list = world.get("/api/articles").await;
    assert_eq!((&list["articlesCount"], &list["articles"][0]["slug"]), (&json!(1), &made["slug"]));
    assert!(list["articles"][0].get("body").is_none(), "lists do not include the text");
    assert_eq!(world.get("/api/tags").await, json!({ "tags": ["dragons", "training"] }));
}

#[tokio::test]
async fn titles_may_be_the_same_and_slugs_are_not() {
    let world = world().await;
    let ada = world.user("ada").await;
    let (first, second) = (ada.publish("Same", &[]).await, ada.publish("Same", &[]).await);
    assert_ne!(first, second);
    assert!(second.starts_with("same-"));
    // A slug never collides with a route, and may have letters of any alphabet.
    let feed = ada.publish("Feed", &[]).await;
    assert_ne!(feed, "feed");
    assert_eq!(ada.publish("李白", &[]).await, "李白");
    assert_eq!(world.get("/api/articles/%E6%9D%8E%E7%99%BD").await["article"]["title"], "李白");
}

#[tokio::test]
async fn missing_parts_of_an_article_are_reported_by_field() {
    let world = world().await;
    let ada = world.user("ada").await;
    let blank = json!(["can't be blank"]);
    let response = ada.post("/api/articles", json!({ "article": { "title": " " } })).await;
    refused(&response, 422, &json!({ "title": blank, "description": blank, "body": blank }));
    let many = vec!["x"; 21];
    let article =
        json!({ "title": "x".repeat(201), "description": "x", "body": "x", "tagList": many });
    let errors = ada.post("/api/articles", json!({ "article": article })).await;
    let errors = errors.assert_status(422).json::<Value>()["errors"].clone();
    assert!(errors["title"].is_array() && errors["tagList"].is_array(), "{errors}");
    let article = json!({ "title": "x", "description": "x", "body": "x", "tagList": ["good", ""] });
    let response = ada.post("/api/articles", json!({ "article": article })).await;
    refused(&response, 422, &json!({ "tagList": blank }));
    assert_eq!(world.get("/api/articles").await["articlesCount"], 0);
}

#[tokio::test]
async fn a_change_keeps_what_it_leaves_out_and_a_new_title_gives_a_new_slug() {
    let world = world().await;
    let ada = world.user("ada").await;
    let slug = ada.publish("Before", &["a", "b"]).await;
    let before = world.get("/api/articles/before").await["article"].clone();
    let change = async |slug: &str, article: Value| {
        let response =
            ada.put(&format!("/api/articles/{slug}"), json!({ "article": article })).await;
        response.assert_status(200).json::<Value>()["article"].clone()
    };
    let changed = change(&slug, json!({ "body": "other" })).await;
    assert_eq!(
        (&changed["body"], &changed["slug"], &changed["tagList"]),
        (&json!("other"), &json!("before"), &json!(["a", "b"]))
    );
    assert_eq!(changed["createdAt"], before["createdAt"]);
    assert!(changed["updatedAt"].as_str() > before["updatedAt"].as_str());
    assert_eq!(change(&slug, json!({ "title": "Before" })).await["slug"], "before");
    assert_eq!(change(&slug, json!({ "tagList": [] })).await["tagList"], json!([]));
    assert_eq!(change(&slug, json!({ "title": "After" })).await["slug"], "after");
    world.client.get("/api/articles/before").send().await.assert_status(404);
    assert_eq!(world.get("/api/articles/after").await["article"]["body"], "other");
    for name in ["title", "description", "body", "tagList"] {
        let response = ada.put("/api/articles/after", json!({ "article": { name: null } })).await;
        assert!(response.assert_status(422).json::<Value>()["errors"][name].is_array(), "{name}");
    }
}

#[tokio::test]
async fn only_its_author_changes_an_article_or_takes_it_away() {
    let world = world().await;
    let (ada, eve) = (world.user("ada").await, world.user("eve").await);
    ada.publish("Mine", &[]).await;
    let (change, not_hers) =
        (json!({ "article": { "body": "x" } }), json!({ "article": ["forbidden"] }));
    refused(&eve.put("/api/articles/mine", change.clone()).await, 403, &not_hers);
    refused(&eve.delete("/api/articles/mine").await, 403, &not_hers);
    assert_eq!(world.get("/api/articles/mine").await["article"]["body"], "text");
    let unknown = json!({ "article": ["not found"] });
    refused(&ada.put("/api/articles/none", change).await, 404, &unknown);
    refused(&ada.delete("/api/articles/none").await, 404, &unknown);
    refused(&ada.post("/api/articles/none/favorite", Value::Null).await, 404, &unknown);
    refused(&ada.delete("/api/articles/none/favorite").await, 404, &unknown);
    let removed = ada.delete("/api/articles/mine").await;
    assert_eq!((removed.status().as_u16(), removed.text()), (204, String::new()));
    refused(&world.client.get("/api/articles/mine").send().await, 404, &unknown);
}

#[tokio::test]
async fn what_hangs_on_an_article_goes_with_it() {
    let world = world().await;
    let (ada, bob) = (world.user("ada").await, world.user("bob").await);
    ada.publish("Doomed", &["only"]).await;
    bob.post("/api/articles/doomed/comments", json!({ "comment": { "body": "hm" } }))
        .await
        .assert_status(201);
    bob.post("/api/articles/doomed/favorite", Value::Null).await.assert_status(200);
    ada.delete("/api/articles/doomed").await.assert_status(204);
    assert_eq!(world.get("/api/tags").await, json!({ "tags": [] }));
    assert_eq!(world.get("/api/articles?favorited=bob").await["articlesCount"], 0);
    // A new article with the same slug starts without tags, favourites and comments.
    assert_eq!(ada.publish("Doomed", &[]).await, "doomed");
    assert_eq!(world.get("/api/articles/doomed").await["article"]["favoritesCount"], 0);
    assert_eq!(world.get("/api/articles/doomed/comments").await, json!({ "comments": [] }));
}

#[tokio::test]
async fn a_favourite_is_counted_once_for_each_user() {
    let world = world().await;
    let (ada, bob) = (world.user("ada").await, world.user("bob").await);
    ada.publish("Good", &[]).await;
    ada.publish("Other", &[]).await;
    let seen = |article: &Value| {
        (article["article"]["favorited"].clone(), article["article"]["favoritesCount"].clone())
    };
    for (user, count) in [(&ada, 1), (&ada, 1), (&bob, 2)] {
        let response = user.post("/api/articles/good/favorite", Value::Null).await;
        assert_eq!(seen(&response.assert_status(200).json()), (json!(true), json!(count)));
    }
    assert_eq!(seen(&world.get("/api/articles/good").await), (json!(false), json!(2)));
    let favourites = bob.get("/api/articles?favorited=ada").await.json::<Value>();
    assert_eq!(
        (slugs(&favourites), &favourites["articles"][0]["favorited"]),
        (vec!["good"], &json!(true))
    );
    for count in [1, 1] {
        let response = bob.delete("/api/articles/good/favorite").await;
        assert_eq!(seen(&response.assert_status(200).json()), (json!(false), json!(count)));
    }
    assert_eq!(world.get("/api/articles?favorited=bob").await["articlesCount"], 0);
}

#[tokio::test]
async fn lists_are_filtered_and_have_pages_the_latest_first() {
    let world = world().await;
    let (ada, bob) = (world.user("ada").await, world.user("bob").await);
    for (user, title, tags) in [
        (&ada, "a1", &["x"][..]),
        (&bob, "b1", &["x", "y"]),
        (&ada, "a2", &[]),
        (&ada, "a3", &["y"]),
    ] {
        user.publish(title, tags).await;
    }
    for (query, count, expected) in [
        ("", 4, &["a3", "a2", "b1", "a1"][..]),
        ("?author=ADA", 3, &["a3", "a2", "a1"]),
        ("?tag=x", 2, &["b1", "a1"]),
        ("?tag=y&author=bob", 1, &["b1"]),
        ("?author=nobody", 0, &[]),
        ("?tag=X", 0, &[]),
        ("?limit=1", 4, &["a3"]),
        ("?limit=2&offset=1", 4, &["a2", "b1"]),
        ("?offset=3", 4, &["a1"]),
        ("?offset=9", 4, &[]),
        ("?limit=100000", 4, &["a3", "a2", "b1", "a1"]),
    ] {
        let list = world.get(&format!("/api/articles{query}")).await;
        assert_eq!(
            (list["articlesCount"].as_u64(), slugs(&list)),
            (Some(count), expected.to_vec()),
            "{query}"
        );
    }
    for query in ["limit=0", "limit=-1", "limit=x", "offset=-1"] {
        let response = world.client.get(&format!("/api/articles?{query}")).send().await;
        let name = query.split('=').next().expect("a name");
        let errors = response.json::<Value>();
        assert!(
            response.status().is_client_error() && errors["errors"][name].is_array(),
            "{query}: {errors}"
        );
    }
}

#[tokio::test]
async fn the_feed_has_articles_of_those_who_are_followed() {
    let world = world().await;
    let (ada, bob, eve) =
        (world.user("ada").await, world.user("bob").await, world.user("eve").await);
    let feed = async |query: &str| {
        let response = ada.get(&format!("/api/articles/feed{query}")).await;
        response.assert_status(200).json::<Value>()
    };
    bob.publish("b1", &[]).await;
    eve.publish("e1", &[]).await;
    ada.publish("own", &[]).await;
    assert_eq!(feed("").await, json!({ "articles": [], "articlesCount": 0 }));
    for name in ["bob", "eve"] {
        ada.post(&format!("/api/profiles/{name}/follow"), Value::Null).await.assert_status(200);
    }
    bob.publish("b2", &[]).await;
    let all = feed("").await;
    assert_eq!((slugs(&all), &all["articlesCount"]), (vec!["b2", "e1", "b1"], &json!(3)));
    assert_eq!(all["articles"][0]["author"]["following"], true);
    let page = feed("?limit=1&offset=1").await;
    assert_eq!((slugs(&page), &page["articlesCount"]), (vec!["e1"], &json!(3)));
    ada.delete("/api/profiles/bob/follow").await.assert_status(200);
    assert_eq!(slugs(&feed("").await), ["e1"]);
}

#[tokio::test]
async fn an_article_that_is_too_large_is_refused_before_it_is_read() {
    let world = world().await;
    let ada = world.user("ada").await;
    let body = "x".repeat(100_001);
    let article = json!({ "article": { "title": "x", "description": "x", "body": body } });
    assert!(ada.post("/api/articles", article).await.assert_status(422).json::<Value>()["errors"]["body"].is_array());
    let huge =
        ada.sign(world.client.post("/api/articles")).header("content-type", "application/json");
    let response = huge.body("x".repeat(3 << 20)).send().await;
    assert!(response.assert_status(413).json::<Value>()["errors"].is_object());
}
