use crate::harness::{Host, answer};
use peregrine_axum_examples::sessions::app;
use reqwest::Method;

const FORM: &str = "application/x-www-form-urlencoded";

pub(crate) async fn a_session_lasts_from_login_to_logout(host: Host) {
    let server = host.serve(app());
    assert_eq!(server.get("/").await.brief(), (200, "Who are you?"));
    let sent_away = server.get("/secret").await;
    assert_eq!((sent_away.brief(), sent_away.field("location")), ((303, ""), Some("/")));

    let login = server.post("/login", FORM, "name=Ada").await;
    assert_eq!((login.brief(), login.field("location")), ((303, ""), Some("/secret")));
    let cookie = login.field("set-cookie").expect("there is a session").to_owned();
    assert_eq!(cookie, "session=1; SameSite=Lax; HttpOnly; Path=/");
    let other = server.post("/login", FORM, "name=Bob").await;
    assert_eq!(other.field("set-cookie"), Some("session=2; SameSite=Lax; HttpOnly; Path=/"));

    let as_user = |method, path, cookie| {
        answer(server.request(method, path).header("cookie", "theme=dark").header("cookie", cookie))
    };
    let secret = as_user(Method::GET, "/secret", "a=b; session=1").await;
    assert_eq!(secret.brief(), (200, "Ada, this is for you."));
    assert_eq!(as_user(Method::GET, "/", "session=2").await.brief(), (200, "Hello, Bob!"));
    assert_eq!(as_user(Method::GET, "/secret", "session=3").await.status, 303);

    let logout = as_user(Method::POST, "/logout", "session=1").await;
    assert_eq!(logout.field("set-cookie"), Some("session=; Max-Age=0; Path=/"));
    assert_eq!(as_user(Method::GET, "/secret", "session=1").await.status, 303);
    assert_eq!(as_user(Method::GET, "/", "session=2").await.brief(), (200, "Hello, Bob!"));
    server.end().await;
}
