//! Serves `GET /json` for `.ci/instructions`: `instructions native` from a handler of Peregrine's,
//! `instructions mounted` from an axum router.
//!
//! Listens on a free port of 127.0.0.1, which the start line on standard error names, with one
//! worker on the Tokio driver: valgrind does not implement io_uring.
#![forbid(unsafe_code)]

use std::num::NonZeroUsize;
use std::process::ExitCode;

use peregrine::{App, DriverChoice, Server};
use serde::Serialize;

#[derive(Serialize)]
struct Message {
    message: &'static str,
}

const MESSAGE: Message = Message { message: "Hello, World!" };

fn main() -> ExitCode {
    let server = Server::bind("127.0.0.1:0").workers(NonZeroUsize::MIN).driver(DriverChoice::Tokio);
    let served = match std::env::args().nth(1).as_deref() {
        Some("native") => server.serve(native),
        Some("mounted") => server.serve_tower(mounted()),
        _ => {
            eprintln!("usage: instructions native|mounted");
            return ExitCode::from(2);
        }
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

fn native() -> App {
    App::new().get("/json", async || peregrine::web::extract::Json(MESSAGE))
}

fn mounted() -> axum::Router {
    axum::Router::new().route("/json", axum::routing::get(async || axum::Json(MESSAGE)))
}
