//! Middleware, for all routes and for one scope: built-in middleware, a function, and a function
//! with an extractor.
#![forbid(unsafe_code)]

use peregrine::prelude::*;
use std::time::Instant;
use subtle::ConstantTimeEq;

/// Adds a `Server-Timing` field with the duration of the request.
async fn server_timing(request: Request, next: Next<'_>) -> Response {
    let start = Instant::now();
    let response = next.run(request).await;
    let value = format!("app;dur={:.3}", start.elapsed().as_secs_f64() * 1000.0);
    let value = HeaderValue::try_from(value).expect("only visible ASCII");
    response.with_header(HeaderName::from_static("server-timing"), value)
}

#[derive(Clone)]
struct Token(&'static str);

/// Rejects requests without the right token.
async fn guard(
    State(token): State<Token>,
    headers: HeaderMap,
    request: Request,
    next: Next<'_>,
) -> Result<Response, Problem> {
    let given = headers.get("authorization").map(HeaderValue::as_bytes);
    let given = given.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
    // A constant-time comparison: the duration of `==` would reveal how much of the token is right.
    if !bool::from(given.ct_eq(token.0.as_bytes())) {
        let detail = "Send `Authorization: Bearer TOKEN` with the right token.";
        return Err(Problem::new(StatusCode::UNAUTHORIZED, "not-authorized", detail));
    }
    Ok(next.run(request).await)
}

fn app() -> App {
    App::new()
        .wrap(SetRequestId::new())
        .wrap(AccessLog::new())
        .wrap(SecurityHeaders::new())
        .wrap(CatchPanic::new())
        .wrap(server_timing)
        .get("/", || async { "open to all" })
        .get("/panic", async || -> &'static str { panic!("requested") })
        .scope("/admin", |scope| scope.wrap(guard).get("/", || async { "welcome" }))
        .state(Token("secret"))
}

const ABOUT: &str = "\
Middleware for all routes and for one scope. The scope's token is `secret`.

Try: curl -H 'authorization: Bearer secret' http://127.0.0.1:8080/admin";

fn main() -> peregrine::Result<()> {
    let address = peregrine_examples::address(ABOUT);
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    Server::bind(address).serve(app)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_scope_is_guarded() {
        let client = app().test();
        assert_eq!(client.get("/").send_blocking().status(), 200);
        assert_eq!(client.get("/admin").send_blocking().status(), 401);
        for wrong in ["", "Bearer ", "Bearer secre", "Bearer secret2", "Basic secret"] {
            let answer = client.get("/admin").header("Authorization", wrong).send_blocking();
            assert_eq!(answer.status(), 401, "{wrong}");
        }
        let admin = client.get("/admin").header("Authorization", "Bearer secret").send_blocking();
        assert_eq!(admin.text(), "welcome");
    }

    #[test]
    fn every_answer_has_a_request_id_and_a_duration() {
        let client = app().test();
        for path in ["/", "/nowhere", "/panic", "/admin"] {
            let response = client.get(path).send_blocking();
            assert!(response.header("x-request-id").is_some(), "{path}");
        }
        assert!(client.get("/").send_blocking().header("server-timing").is_some());
    }
}
