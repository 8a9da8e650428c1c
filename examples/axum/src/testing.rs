//! An application with tests that do not need a server.

use axum::extract::ConnectInfo;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// The application.
pub fn app() -> Router {
    Router::new()
        .route("/", get("Hello, World!"))
        .route("/json", post(async |Json(value): Json<Value>| Json(json!({ "got": value }))))
        .route("/peer", get(async |ConnectInfo(peer): ConnectInfo<SocketAddr>| peer.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::extract::connect_info::MockConnectInfo;
    use axum::http::header::CONTENT_TYPE;
    use axum::http::{Request, StatusCode};
    use axum::response::Response;
    use http_body_util::BodyExt;
    use tower::{Service, ServiceExt};

    fn get(path: &str) -> Request<Body> {
        Request::get(path).body(Body::empty()).expect("the path is valid")
    }

    async fn text(response: Response) -> String {
        let body = response.into_body().collect().await.expect("the body is complete").to_bytes();
        String::from_utf8(body.to_vec()).expect("the body is text")
    }

    #[tokio::test]
    async fn a_router_answers_one_request_without_a_server() {
        let response = app().oneshot(get("/")).await.expect("a router does not fail");
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(text(response).await, "Hello, World!");
        let response = app().oneshot(get("/nowhere")).await.expect("a router does not fail");
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        assert_eq!(text(response).await, "");
    }

    #[tokio::test]
    async fn a_router_reads_json_without_a_server() {
        let request = Request::post("/json")
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from("[1, 2, 3]"))
            .expect("the request is valid");
        let response = app().oneshot(request).await.expect("a router does not fail");
        assert_eq!(text(response).await, r#"{"got":[1,2,3]}"#);
    }

    #[tokio::test]
    async fn a_router_answers_several_requests_without_being_cloned() {
        let mut app = app().into_service();
        for _ in 0..3 {
            let ready = ServiceExt::<Request<Body>>::ready(&mut app).await;
            let response = ready.expect("a router is always ready").call(get("/")).await;
            assert_eq!(response.expect("a router does not fail").status(), StatusCode::OK);
        }
    }

    #[tokio::test]
    async fn a_peer_s_address_can_be_made_up() {
        let peer = SocketAddr::from(([10, 0, 0, 7], 70));
        let app = app().layer(MockConnectInfo(peer));
        let response = app.oneshot(get("/peer")).await.expect("a router does not fail");
        assert_eq!(text(response).await, "10.0.0.7:70");
    }

    /// The same axum application, tested with Peregrine's test client.
    #[test]
    fn a_mounted_router_answers_without_a_server() {
        use peregrine::tower::Mount;
        let client = peregrine::App::new().mount("/axum", app()).test();
        assert_eq!(client.get("/axum").send_blocking().text(), "Hello, World!");
        assert_eq!(client.get("/axum/nowhere").send_blocking().status(), 404);
    }
}
