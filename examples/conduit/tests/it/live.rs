use crate::harness::world;
use serde_json::{Value, json};

fn of(event: &str) -> Value {
    serde_json::from_str(event).expect("valid JSON")
}

#[tokio::test]
async fn readers_of_an_article_see_its_comments_and_no_others() {
    let world = world().await;
    let ada = world.user("ada").await;
    ada.publish("One", &[]).await;
    ada.publish("Two", &[]).await;
    let mut readers = Vec::new();
    for _ in 0..2 {
        let reader = world.client.get("/api/live/articles/one/comments").send().await;
        assert_eq!(reader.assert_status(200).header("content-type"), Some("text/event-stream"));
        readers.push(reader);
    }
    let say = async |slug: &str, body: &str| {
        let comment = json!({ "comment": { "body": body } });
        ada.post(&format!("/api/articles/{slug}/comments"), comment).await.assert_status(201);
    };
    say("two", "elsewhere").await;
    say("one", "<b>here</b>").await;
    for reader in &mut readers {
        let event = reader.event().await.expect("the stream is open").expect("a valid event");
        let comment = of(&event.data);
        assert_eq!((event.name.as_str(), &comment["body"]), ("comment", &json!("<b>here</b>")));
        assert_eq!(event.id, comment["id"].to_string());
        assert_eq!(comment["author"]["following"], false);
    }
    world.client.get("/api/live/articles/none/comments").send().await.assert_status(404);
}

#[tokio::test]
async fn a_reader_that_comes_again_gets_what_it_missed_in_order() {
    let world = world().await;
    let ada = world.user("ada").await;
    for title in ["a", "b", "c"] {
        ada.publish(title, &[]).await;
    }
    let request = world.client.get("/api/live/articles").header("last-event-id", "1");
    let mut reader = request.send().await;
    ada.publish("d", &[]).await;
    for (id, slug) in [("2", "b"), ("3", "c"), ("4", "d")] {
        let event = reader.event().await.expect("the stream is open").expect("a valid event");
        assert_eq!((event.id.as_str(), &of(&event.data)["slug"]), (id, &json!(slug)));
    }
    let wrong = world.client.get("/api/live/articles").header("last-event-id", "x").send().await;
    assert!(wrong.assert_status(400).json::<Value>()["errors"].is_object());
}

#[tokio::test]
async fn a_reader_that_does_not_read_holds_nobody_up() {
    let world = world().await;
    let ada = world.user("ada").await;
    ada.publish("One", &[]).await;
    let mut slow = world.client.get("/api/live/articles/one/comments").send().await;
    for number in 0..200 {
        let comment = json!({ "comment": { "body": number.to_string() } });
        ada.post("/api/articles/one/comments", comment).await.assert_status(201);
    }
    // The reader receives the events that were queued, and then the end of the stream.
    let mut count = 0;
    while let Some(event) = slow.event().await {
        event.expect("a valid event");
        count += 1;
    }
    assert!((64..200).contains(&count), "{count}");
}
