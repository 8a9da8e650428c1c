//! Tokio in handlers, on io_uring too: tasks, timers, sockets and blocking work, without any setup.
#![forbid(unsafe_code)]

use peregrine::prelude::*;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn sleep(Path(milliseconds): Path<u64>) -> String {
    tokio::time::sleep(Duration::from_millis(milliseconds.min(1000))).await;
    format!("slept {milliseconds} ms\n")
}

/// Two concurrent tasks on the worker's thread.
async fn tasks() -> String {
    let left = tokio::spawn(async { 40 });
    let right = tokio::spawn(async { 2 });
    let sum = left.await.unwrap_or(0) + right.await.unwrap_or(0);
    format!("{sum}\n")
}

/// A client and a server of another protocol, in place of a database driver.
async fn echo(text: String) -> std::result::Result<String, Problem> {
    let fail = |error: std::io::Error| {
        Problem::new(StatusCode::BAD_GATEWAY, "echo-failed", error.to_string())
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(fail)?;
    let address = listener.local_addr().map_err(fail)?;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        let (mut read, mut write) = stream.split();
        tokio::io::copy(&mut read, &mut write).await
    });
    let mut stream = TcpStream::connect(address).await.map_err(fail)?;
    stream.write_all(text.as_bytes()).await.map_err(fail)?;
    stream.shutdown().await.map_err(fail)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.map_err(fail)?;
    Ok(answer)
}

/// Work that would block the worker's other requests runs on another thread.
async fn blocking() -> String {
    let sum = peregrine::spawn_blocking(|| (1..=1_000_000_u64).sum::<u64>()).await;
    format!("{sum}\n")
}

const ABOUT: &str = "\
Tokio in handlers: tasks, timers, sockets and blocking work.

Try: curl http://127.0.0.1:8080/sleep/100";

fn main() -> peregrine::Result<()> {
    let address = peregrine_examples::address(ABOUT);
    Server::bind(address).serve(|| {
        App::new()
            .get("/sleep/{milliseconds}", sleep)
            .get("/tasks", tasks)
            .post("/echo", echo)
            .get("/blocking", blocking)
    })
}
