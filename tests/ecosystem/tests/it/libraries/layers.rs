//! Tower layers that require everything they wrap to be `Send`, around our handlers, which are not.

use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::middleware::{Next, from_fn};
use axum_login::{AuthManagerLayerBuilder, AuthSession, AuthUser, AuthnBackend, UserId};
use http::StatusCode;
use peregrine::DriverChoice;
use peregrine::tower::{layer, layer_with_body};
use peregrine::web::App;
use peregrine::web::prelude::{Extension, State};
use peregrine_ecosystem_tests::{base_url, client, end, in_runtime, on_both_drivers, start};
use reqwest::Response;
use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_sessions::{MemoryStore, Session, SessionManagerLayer};

on_both_drivers! {
    a_session_goes_from_request_to_request,
    a_user_who_logged_in_is_known_until_he_logs_out,
    who_asks_too_often_is_refused_by_his_address,
    a_function_of_axum_is_a_middleware_around_a_handler_of_ours,
}

/// A value that must not leave its thread, kept while a handler waits.
type Local = Rc<Cell<u32>>;

fn cookie(response: &Response) -> Option<String> {
    let value = response.headers().get("set-cookie")?.to_str().ok()?;
    value.split(';').next().map(ToOwned::to_owned)
}

async fn get(url: &str, cookie: Option<&str>) -> Response {
    let mut request = client(None).get(url);
    if let Some(cookie) = cookie {
        request = request.header("cookie", cookie);
    }
    request.send().await.expect("the server responds")
}

async fn count(Extension(session): Extension<Session>, State(local): State<Local>) -> String {
    let count = session.get::<u32>("count").await.expect("the store responds").unwrap_or(0) + 1;
    session.insert("count", count).await.expect("a number is stored");
    local.set(local.get() + 1);
    count.to_string()
}

fn a_session_goes_from_request_to_request(choice: DriverChoice) {
    let sessions = SessionManagerLayer::new(MemoryStore::default()).with_secure(false);
    let make = move || {
        App::new().state(Local::default()).wrap(layer(sessions.clone())).get("/count", count).post(
            "/length",
            async |Extension(session): Extension<Session>, body: Vec<u8>| {
                let length = session.insert("length", body.len()).await;
                length.map(|()| body.len().to_string()).map_err(|_| StatusCode::BAD_GATEWAY)
            },
        )
    };
    let Some(running) = start(choice, 2, make) else { return };
    in_runtime(async {
        let url = format!("{}/count", base_url(&running));
        let first = get(&url, None).await;
        let id = cookie(&first).expect("a new session has a cookie");
        assert_eq!(first.text().await.expect("a body"), "1");
        for expected in ["2", "3"] {
            let next = get(&url, Some(&id)).await;
            assert_eq!(next.text().await.expect("a body"), expected);
        }
        assert_eq!(
            get(&url, None).await.text().await.expect("a body"),
            "1",
            "another client has another session"
        );
        let body = vec![b'x'; 300_000];
        let long = client(None).post(format!("{}/length", base_url(&running))).body(body);
        let long = long.send().await.expect("the server responds");
        assert!(cookie(&long).is_some());
        assert_eq!(long.text().await.expect("a body"), "300000");
    });
    end(running);
}

#[derive(Clone, Debug)]
struct User;

impl AuthUser for User {
    type Id = u8;

    fn id(&self) -> u8 {
        7
    }

    fn session_auth_hash(&self) -> &[u8] {
        b"of the password"
    }
}

#[derive(Clone)]
struct Users;

impl AuthnBackend for Users {
    type User = User;
    type Credentials = String;
    type Error = Infallible;

    async fn authenticate(&self, password: String) -> Result<Option<User>, Infallible> {
        Ok((password == "sesame").then_some(User))
    }

    async fn get_user(&self, id: &UserId<Self>) -> Result<Option<User>, Infallible> {
        Ok((*id == 7).then_some(User))
    }
}

async fn log_in(
    Extension(mut session): Extension<AuthSession<Users>>,
    State(local): State<Local>,
    password: String,
) -> StatusCode {
    let Ok(Some(user)) = session.authenticate(password).await else {
        return StatusCode::UNAUTHORIZED;
    };
    local.set(local.get() + 1);
    session.login(&user).await.map_or(StatusCode::BAD_GATEWAY, |()| StatusCode::NO_CONTENT)
}

async fn log_out(Extension(mut session): Extension<AuthSession<Users>>) -> StatusCode {
    session.logout().await.map_or(StatusCode::BAD_GATEWAY, |_| StatusCode::NO_CONTENT)
}

async fn who(Extension(session): Extension<AuthSession<Users>>) -> Result<String, StatusCode> {
    let user = session.user.ok_or(StatusCode::UNAUTHORIZED)?;
    Ok(format!("user {}", user.id()))
}

fn a_user_who_logged_in_is_known_until_he_logs_out(choice: DriverChoice) {
    let sessions = SessionManagerLayer::new(MemoryStore::default()).with_secure(false);
    let login = AuthManagerLayerBuilder::new(Users, sessions).build();
    let make = move || {
        App::new()
            .state(Local::default())
            .wrap(layer(login.clone()))
            .post("/login", log_in)
            .post("/logout", log_out)
            .get("/me", who)
    };
    let Some(running) = start(choice, 2, make) else { return };
    in_runtime(async {
        let url = base_url(&running);
        let log_in = async |password: &'static str| {
            let request = client(None).post(format!("{url}/login")).body(password);
            request.send().await.expect("the server responds")
        };
        let me = format!("{url}/me");
        assert_eq!(get(&me, None).await.status(), 401);
        assert_eq!(log_in("rye").await.status(), 401);
        let welcome = log_in("sesame").await;
        assert_eq!(welcome.status(), 204);
        let id = cookie(&welcome).expect("a session");
        let known = get(&me, Some(&id)).await;
        assert_eq!(known.text().await.expect("a body"), "user 7");
        let bye = client(None).post(format!("{url}/logout")).header("cookie", &id).send().await;
        assert_eq!(bye.expect("the server responds").status(), 204);
        assert_eq!(get(&me, Some(&id)).await.status(), 401);
    });
    end(running);
}

fn who_asks_too_often_is_refused_by_his_address(choice: DriverChoice) {
    let mut config = GovernorConfigBuilder::default();
    let config = config.per_second(3600).burst_size(2).use_headers().finish().expect("a period");
    let config = Arc::new(config);
    let make = move || {
        let limit = layer_with_body(Body::new, GovernorLayer::new(Arc::clone(&config)));
        App::new()
            .state(Local::default())
            .get("/free", || "free")
            .wrap(limit.connect_info(ConnectInfo))
            .get("/", async |State(local): State<Local>| {
                local.set(local.get() + 1);
                "served"
            })
    };
    let Some(running) = start(choice, 2, make) else { return };
    in_runtime(async {
        let url = base_url(&running);
        for left in ["1", "0"] {
            let served = get(&url, None).await;
            assert_eq!(served.headers()["x-ratelimit-remaining"], left);
            assert_eq!(served.text().await.expect("a body"), "served");
        }
        let refused = get(&url, None).await;
        assert_eq!(refused.status(), 429);
        assert!(refused.headers().contains_key("retry-after"));
        assert!(refused.text().await.expect("a body").starts_with("Too Many Requests"));
        assert_eq!(get(&format!("{url}/free"), None).await.status(), 200);
    });
    end(running);
}

fn a_function_of_axum_is_a_middleware_around_a_handler_of_ours(choice: DriverChoice) {
    async fn guard(request: Request, next: Next) -> axum::response::Response {
        if request.headers().contains_key("x-key") {
            return next.run(request).await;
        }
        axum::response::IntoResponse::into_response((StatusCode::FORBIDDEN, "no key"))
    }
    let make = || {
        let echo = async |State(local): State<Local>, body: Vec<u8>| {
            local.set(local.get() + 1);
            body
        };
        let guard = layer_with_body(Body::new, from_fn(guard));
        App::new().state(Local::default()).wrap(guard).post("/", echo)
    };
    let Some(running) = start(choice, 1, make) else { return };
    in_runtime(async {
        let url = base_url(&running);
        let refused = client(None).post(&url).body("a body").send().await;
        assert_eq!(refused.expect("the server responds").status(), 403);
        for length in [0, 10, 300_000] {
            let body = vec![b'x'; length];
            let echo = client(None).post(&url).header("x-key", "1").body(body.clone()).send().await;
            let echo = echo.expect("the server responds");
            assert_eq!(echo.status(), 200);
            assert_eq!(echo.bytes().await.expect("a body"), body);
        }
    });
    end(running);
}
