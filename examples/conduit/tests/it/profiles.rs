use crate::harness::{refused, world};
use serde_json::{Value, json};

#[tokio::test]
async fn a_profile_shows_whether_the_viewer_follows_the_user() {
    let world = world().await;
    let (ada, bob) = (world.user("ada").await, world.user("bob smith").await);
    let profile = |following: bool| json!({ "profile": { "username": "bob smith", "bio": null, "image": null, "following": following } });
    let target = "/api/profiles/bob%20smith";
    assert_eq!(world.get(target).await, profile(false));
    for _ in 0..2 {
        let response = ada.sign(world.client.post(&format!("{target}/follow"))).send().await;
        response.assert_status(200).assert_json(&profile(true));
    }
    ada.get(target).await.assert_json(&profile(true));
    bob.get(target).await.assert_json(&profile(false));
    assert_eq!(world.get(target).await, profile(false));
    for _ in 0..2 {
        ada.delete(&format!("{target}/follow"))
            .await
            .assert_status(200)
            .assert_json(&profile(false));
    }
    ada.get(target).await.assert_json(&profile(false));
}

#[tokio::test]
async fn nobody_is_not_found() {
    let world = world().await;
    let ada = world.user("ada").await;
    let unknown = json!({ "profile": ["not found"] });
    refused(&world.client.get("/api/profiles/eve").send().await, 404, &unknown);
    refused(&ada.post("/api/profiles/eve/follow", Value::Null).await, 404, &unknown);
    refused(&ada.delete("/api/profiles/eve/follow").await, 404, &unknown);
}
