use crate::harness::Host;
use crate::log;
use peregrine_axum_examples::print_request_response::{SHOWN_BYTES_MAX, app};

pub(crate) async fn bodies_are_shown_and_passed_on(host: Host) {
    log::begin();
    let server = host.serve(app());
    let text = format!("body of {:?}", host.engine);
    let upper = server.post("/upper", "text/plain", text.clone()).await;
    assert_eq!(upper.brief(), (200, text.to_uppercase().as_str()));
    assert_eq!(upper.field("content-length"), Some(text.len().to_string().as_str()));
    assert_eq!(log::lines(&text), [format!("INFO request: {text}")]);
    let shown = text.to_uppercase();
    assert_eq!(log::lines(&shown), [format!("INFO response: {shown}")]);
    server.end().await;
}

pub(crate) async fn a_body_that_is_too_large_to_show_is_refused(host: Host) {
    let server = host.serve(app());
    let most = "x".repeat(SHOWN_BYTES_MAX);
    let upper = server.post("/upper", "text/plain", most.clone()).await;
    assert_eq!(upper.brief(), (200, most.to_uppercase().as_str()));
    let refused = server.post("/upper", "text/plain", most + "x").await;
    assert_eq!(refused.brief(), (413, "The request cannot be logged: length limit exceeded."));
    server.end().await;
}

pub(crate) async fn a_client_that_asks_before_it_sends_is_told_to(host: Host) {
    let server = host.serve(app());
    let mut raw = server.connect().await;
    raw.send(
        "POST /upper HTTP/1.1\r\nHost: a\r\nConnection: close\r\nExpect: 100-continue\r\n\
         Content-Length: 5\r\n\r\n",
    )
    .await;
    assert_eq!(raw.read_until("\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    raw.send("hello").await;
    assert!(raw.rest().await.ends_with("\r\n\r\nHELLO"));
    server.end().await;
}
