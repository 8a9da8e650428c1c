//! What a service in production would set: limits, a Unix socket, work that must not stop half-way,
//! problems in the company's own form.
#![forbid(unsafe_code)]

use peregrine::Limits;
use peregrine::prelude::*;
use serde_json::json;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Money: begun is done, even if the peer hangs up.
async fn pay(Path(account): Path<u64>) -> String {
    tokio::time::sleep(Duration::from_millis(20)).await;
    format!("paid from {account}\n")
}

async fn report() -> &'static str {
    tokio::time::sleep(Duration::from_secs(60)).await;
    "never reached: the route allows half a second"
}

fn main() -> peregrine::Result<()> {
    let limits = Limits {
        idle_timeout: Duration::from_secs(20),
        body_bytes_max: 64 * 1024,
        connections_max: 10_000,
        lifetime_max: Some(Duration::from_secs(3600)),
        shutdown_timeout: Duration::from_secs(10),
        ..Limits::default()
    };
    let mut server = Server::bind(peregrine_examples::address()).limits(limits);
    if let Some(path) = std::env::var_os("SOCKET") {
        server = server.unix(path);
    }
    server.serve(|| {
        App::new()
            .post("/accounts/{account}/payments", pay.run_to_end())
            .get("/report", report.timeout(Duration::from_millis(500)))
            .on_problem(|problem: Problem, _: &peregrine::web::Head| {
                let status = problem.status;
                (status, Json(json!({ "error": problem.kind, "message": problem.detail })))
            })
    })
}
