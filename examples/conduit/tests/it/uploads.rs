use crate::harness::{User, World, refused, world};
use peregrine::web::testing::{TestForm, TestResponse};
use serde_json::{Value, json};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\nrest";

async fn upload(world: &World, user: &User<'_>, content: &'static [u8]) -> TestResponse {
    let form = TestForm::new().file("image", "../../me.html", "text/html", content);
    user.sign(world.client.put("/api/user/image")).multipart(form).send().await
}

fn image(response: &TestResponse) -> String {
    let image = response.assert_status(200).json::<Value>()["user"]["image"].clone();
    image.as_str().expect("a URL").to_owned()
}

fn kept(world: &World) -> usize {
    std::fs::read_dir(world.folder().join("uploads")).expect("the folder exists").count()
}

#[tokio::test]
async fn a_picture_is_kept_under_a_name_of_ours_and_served_for_good() {
    let world = world().await;
    let ada = world.user("ada").await;
    let url = image(&upload(&world, &ada, PNG).await);
    assert!(url.starts_with("/uploads/") && url.ends_with(".png") && !url.contains("me"), "{url}");
    assert_eq!(world.get("/api/profiles/ada").await["profile"]["image"], url);
    let mut served = world.client.get(&url).send().await;
    served.assert_status(200);
    assert_eq!(&served.collect().await.expect("the body is complete")[..], PNG);
    assert_eq!(served.header("content-type"), Some("image/png"));
    assert_eq!(served.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(served.header("cross-origin-resource-policy"), Some("cross-origin"));
    assert!(served.header("cache-control").is_some_and(|value| value.contains("immutable")));
    for path in ["/uploads/", "/uploads/none.png"] {
        world.client.get(path).send().await.assert_status(404);
    }
    for path in ["/uploads/../conduit.db", "/uploads/%2e%2e/conduit.db"] {
        world.client.get(path).send().await.assert_status(400);
    }
}

#[tokio::test]
async fn a_picture_that_is_replaced_does_not_stay() {
    let world = world().await;
    let ada = world.user("ada").await;
    let first = image(&upload(&world, &ada, PNG).await);
    let second = image(&upload(&world, &ada, b"GIF89a").await);
    assert_eq!(kept(&world), 1);
    world.client.get(&first).send().await.assert_status(404);
    world.client.get(&second).send().await.assert_status(200);
    ada.put("/api/user", json!({ "user": { "image": null } })).await.assert_status(200);
    assert_eq!(kept(&world), 0);
    // Setting another user's picture, or another file, does not let a user remove it.
    let bob = world.user("bob").await;
    let picture = image(&upload(&world, &bob, PNG).await);
    for url in ["/uploads/../conduit.db", &picture] {
        ada.put("/api/user", json!({ "user": { "image": url } })).await.assert_status(200);
        ada.put("/api/user", json!({ "user": { "image": null } })).await.assert_status(200);
    }
    world.client.get(&picture).send().await.assert_status(200);
    assert!(world.folder().join("conduit.db").exists());
}

#[tokio::test]
async fn what_is_no_picture_is_refused_and_nothing_is_kept() {
    let world = world().await;
    let ada = world.user("ada").await;
    let no_picture = json!({ "image": ["must be a PNG, JPEG, GIF or WebP"] });
    for content in [&b"<script>"[..], b"", b"RIFF\0\0\0\0WAVE"] {
        refused(&upload(&world, &ada, content).await, 422, &no_picture);
    }
    let mut large = PNG.to_vec();
    large.resize(1001, 0);
    assert!(
        upload(&world, &ada, large.leak()).await.assert_status(413).json::<Value>()["errors"]
            .is_object()
    );
    let two =
        TestForm::new().file("image", "a", "image/png", PNG).file("image", "b", "image/png", PNG);
    ada.sign(world.client.put("/api/user/image")).multipart(two).send().await.assert_status(413);
    let none = TestForm::new().text("image", "x");
    ada.sign(world.client.put("/api/user/image")).multipart(none).send().await.assert_status(422);
    ada.put("/api/user/image", json!({})).await.assert_status(415);
    assert_eq!(kept(&world), 0);
    assert_eq!(ada.get("/api/user").await.json::<Value>()["user"]["image"], Value::Null);
}
