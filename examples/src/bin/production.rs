//! Settings of a production service: limits, a Unix socket, a handler that always runs to its end,
//! and problems in the company's own format, including those of the server.
#![forbid(unsafe_code)]

use peregrine::Limits;
use peregrine::prelude::*;
use serde_json::json;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A payment, which must complete even if the client disconnects.
async fn pay(Path(account): Path<u64>) -> String {
    tokio::time::sleep(Duration::from_millis(20)).await;
    format!("paid from {account}\n")
}

async fn report() -> &'static str {
    tokio::time::sleep(Duration::from_secs(60)).await;
    "never reached: the route times out after half a second"
}

fn app() -> App {
    App::new()
        .post("/accounts/{account}/payments", pay.run_to_completion())
        // The 503 of this timeout has the company's format too.
        .get("/report", report.timeout(Duration::from_millis(500)))
        .on_problem(|problem: Problem, _: &RequestHead| {
            let status = problem.status;
            (status, Json(json!({ "error": problem.kind, "message": problem.detail })))
        })
}

const ABOUT: &str = "\
Settings of a production service. SOCKET=/a/path adds a Unix socket.

Try: curl -X POST http://127.0.0.1:8080/accounts/7/payments";

fn main() -> peregrine::Result<()> {
    let address = peregrine_examples::address(ABOUT);
    let limits = Limits {
        idle_timeout: Duration::from_secs(20),
        body_bytes_max: 64 * 1024,
        connections_max: 10_000,
        connection_age_max: Some(Duration::from_secs(3600)),
        shutdown_timeout: Duration::from_secs(10),
        ..Limits::default()
    };
    let mut server = Server::bind(address).limits(limits);
    if let Some(path) = std::env::var_os("SOCKET") {
        server = server.listen_unix(path);
    }
    server.serve(app)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_has_the_form_of_the_company() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            // The timer fires at once, so the timeout expires as soon as the handler waits.
            let client = app().test().with_timer(|_| std::future::ready(()));
            for (request, status, kind) in [
                (client.get("/report"), 503, "handler-timeout"),
                (client.get("/nowhere"), 404, "unknown-route"),
                (client.post("/accounts/x/payments"), 400, "invalid-path"),
                (client.get("/accounts/7/payments"), 405, "method-not-allowed"),
            ] {
                let response = request.send().await;
                assert_eq!(response.status(), status);
                let problem: serde_json::Value = response.json();
                assert_eq!((&problem["error"], problem.get("type")), (&json!(kind), None));
            }
        });
    }
}
