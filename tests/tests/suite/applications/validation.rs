//! Violated validation rules, through a server on every kernel driver.

use garde::Validate;
use peregrine::prelude::*;
use peregrine::validate::Valid;
use peregrine::{DriverChoice, Error};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::time::Duration;

#[derive(serde::Deserialize, Validate)]
#[serde(rename_all = "camelCase")]
struct Account {
    #[garde(length(min = 3))]
    user_name: String,
    #[garde(inner(range(max = 9)))]
    numbers: Vec<u32>,
}

async fn create(Valid(Json(account)): Valid<Json<Account>>) -> String {
    format!("{} {}", account.user_name, account.numbers.len())
}

fn broken_rules_are_reported_whether_the_body_is_buffered_or_streamed(choice: DriverChoice) {
    let server = Server::bind("127.0.0.1:0").driver(choice).workers(NonZeroUsize::MIN).quiet();
    let running = match server.start(|| App::new().post("/", create)) {
        Err(error @ Error::Driver { .. }) => return eprintln!("skipped: {error}"),
        running => running.expect("the server starts"),
    };
    let numbers = vec!["7"; 30_000].join(",");
    let wrong = format!("{{\"userName\":\"a\",\"numbers\":[{numbers},10]}}");
    let right = wrong.replace("\"a\"", "\"ada\"").replace(",10]", "]");
    for (body, status, inside) in [
        (&right, "200", "ada 30000"),
        (&wrong, "422", "{\"detail\":\"greater than 9\",\"pointer\":\"/numbers/30000\"}"),
    ] {
        let mut peer =
            TcpStream::connect(running.http_address().expect("the server has an HTTP listener"))
                .expect("the server accepts connections");
        peer.set_read_timeout(Some(Duration::from_secs(30))).expect("the timeout is not zero");
        let head = format!(
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        peer.write_all(head.as_bytes()).expect("connected");
        peer.write_all(body.as_bytes()).expect("connected");
        let mut answer = String::new();
        peer.read_to_string(&mut answer).expect("a response");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.contains(inside), "{answer}");
        assert_eq!(answer.contains("/userName"), status == "422", "{answer}");
    }
    running.graceful_shutdown().expect("the shutdown succeeds");
}

#[test]
fn on_tokio() {
    broken_rules_are_reported_whether_the_body_is_buffered_or_streamed(DriverChoice::Tokio);
}

#[cfg(target_os = "linux")]
#[test]
fn on_uring() {
    broken_rules_are_reported_whether_the_body_is_buffered_or_streamed(DriverChoice::Uring);
}
