use crate::harness::{refused, world};
use serde_json::{Value, json};

#[tokio::test]
async fn comments_are_added_listed_and_taken_away() {
    let world = world().await;
    let (ada, bob) = (world.user("ada").await, world.user("bob").await);
    ada.publish("Talk", &[]).await;
    let target = "/api/articles/talk/comments";
    let mut ids = Vec::new();
    for body in ["first", "second"] {
        let made = bob.post(target, json!({ "comment": { "body": body } })).await;
        let comment = made.assert_status(201).json::<Value>()["comment"].clone();
        assert_eq!(
            (&comment["body"], &comment["author"]["username"]),
            (&json!(body), &json!("bob"))
        );
        assert_eq!(comment["createdAt"], comment["updatedAt"]);
        ids.push(comment["id"].as_i64().expect("a number"));
    }
    let bodies = |list: &Value| {
        list["comments"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|one| one["body"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(bodies(&world.get(target).await), ["second", "first"]);
    ada.post("/api/profiles/bob/follow", Value::Null).await.assert_status(200);
    let seen = ada.get(target).await.json::<Value>();
    assert_eq!(seen["comments"][0]["author"]["following"], true);
    // Not even the article's author may delete other users' comments.
    refused(
        &ada.delete(&format!("{target}/{}", ids[0])).await,
        403,
        &json!({ "comment": ["forbidden"] }),
    );
    bob.delete(&format!("{target}/{}", ids[0])).await.assert_status(204);
    assert_eq!(bodies(&world.get(target).await), ["second"]);
}

#[tokio::test]
async fn a_comment_is_of_one_article_and_says_something() {
    let world = world().await;
    let ada = world.user("ada").await;
    ada.publish("One", &[]).await;
    ada.publish("Two", &[]).await;
    let comment = json!({ "comment": { "body": "x" } });
    let made = ada.post("/api/articles/one/comments", comment.clone()).await;
    let id = made.json::<Value>()["comment"]["id"].clone();
    let (no_article, no_comment) =
        (json!({ "article": ["not found"] }), json!({ "comment": ["not found"] }));
    refused(&ada.delete(&format!("/api/articles/two/comments/{id}")).await, 404, &no_comment);
    refused(&ada.delete("/api/articles/one/comments/999").await, 404, &no_comment);
    refused(&ada.delete(&format!("/api/articles/none/comments/{id}")).await, 404, &no_article);
    refused(&ada.post("/api/articles/none/comments", comment).await, 404, &no_article);
    refused(&world.client.get("/api/articles/none/comments").send().await, 404, &no_article);
    for comment in [json!({}), json!({ "body": " \n" })] {
        let response = ada.post("/api/articles/one/comments", json!({ "comment": comment })).await;
        refused(&response, 422, &json!({ "body": ["can't be blank"] }));
    }
    assert!(ada.delete("/api/articles/one/comments/x").await.status().is_client_error());
}
