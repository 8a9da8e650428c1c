//! An application with its own database, and its users.

use peregrine::config::SecretString;
use peregrine::web::testing::{TestClient, TestRequest, TestResponse};
use peregrine_conduit::{Conduit, Settings};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// An application in process. Its files are removed when it is dropped.
pub(crate) struct World {
    pub(crate) client: TestClient,
    pub(crate) conduit: Conduit,
    folder: TempDir,
}

pub(crate) fn settings(folder: &Path) -> Settings {
    Settings {
        database: folder.join("conduit.db"),
        uploads: folder.join("uploads"),
        upload_bytes_max: 1000,
        // Tests must not fail because the machine is busy.
        wait_max: Duration::from_secs(60),
        secret: SecretString::new("a secret of 32 bytes, for tests!"),
        ..Settings::default()
    }
}

pub(crate) async fn world() -> World {
    let folder = tempfile::tempdir().expect("the disk is writable");
    let conduit = Conduit::open(&settings(folder.path())).await.expect("it opens");
    World { client: conduit.app().test(), conduit, folder }
}

/// A registered user with a token.
pub(crate) struct User<'w> {
    client: &'w TestClient,
    pub(crate) token: String,
}

impl World {
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Registers a user.
    pub(crate) async fn user(&self, name: &str) -> User<'_> {
        let user = json!({ "username": name, "email": format!("{}@mail", name.replace(' ', ".")), "password": "password" });
        let made = self.client.post("/api/users").json(&json!({ "user": user })).send().await;
        made.assert_status(201);
        let token = made.json::<Value>()["user"]["token"].as_str().expect("a token").to_owned();
        User { client: &self.client, token }
    }

    /// The response to an anonymous user.
    pub(crate) async fn get(&self, target: &str) -> Value {
        let response = self.client.get(target).send().await;
        response.assert_status(200);
        response.json()
    }
}

impl User<'_> {
    pub(crate) fn sign(&self, request: TestRequest) -> TestRequest {
        request.header("authorization", format!("Token {}", self.token))
    }

    pub(crate) async fn get(&self, target: &str) -> TestResponse {
        self.sign(self.client.get(target)).send().await
    }

    pub(crate) async fn post(&self, target: &str, body: Value) -> TestResponse {
        self.sign(self.client.post(target)).json(&body).send().await
    }

    pub(crate) async fn put(&self, target: &str, body: Value) -> TestResponse {
        self.sign(self.client.put(target)).json(&body).send().await
    }

    pub(crate) async fn delete(&self, target: &str) -> TestResponse {
        self.sign(self.client.delete(target)).send().await
    }

    /// Publishes an article and returns its slug.
    pub(crate) async fn publish(&self, title: &str, tags: &[&str]) -> String {
        let article =
            json!({ "title": title, "description": "about", "body": "text", "tagList": tags });
        let made = self.post("/api/articles", json!({ "article": article })).await;
        made.assert_status(201);
        made.json::<Value>()["article"]["slug"].as_str().expect("a slug").to_owned()
    }
}

/// The slugs of a list, in order.
pub(crate) fn slugs(list: &Value) -> Vec<&str> {
    let articles = list["articles"].as_array().expect("a list");
    articles.iter().map(|article| article["slug"].as_str().expect("a slug")).collect()
}

/// Checks the status, and that the response contains exactly these errors.
pub(crate) fn refused(response: &TestResponse, status: u16, errors: &Value) {
    response.assert_status(status).assert_json(&json!({ "errors": errors }));
}
