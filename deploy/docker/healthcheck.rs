//! A Docker health check for images without a shell or curl: `healthcheck [ADDRESS [PATH]]`.
//!
//! Exits with 0 if `http://ADDRESS PATH` responds with 200 within three seconds, and with 1
//! otherwise. By default it requests `/livez` from the admin listener at 127.0.0.1:9090, which
//! fails if a handler blocks its thread. Build it with `rustc --edition 2024 -O healthcheck.rs`.
#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(3);

fn ask(address: &str, path: &str) -> io::Result<String> {
    let place = address.to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let mut stream = TcpStream::connect_timeout(&place, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(4096).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:9090".to_owned());
    let path = arguments.next().unwrap_or_else(|| "/livez".to_owned());
    match ask(&address, &path) {
        Ok(answer) if answer.starts_with("HTTP/1.1 200 ") => ExitCode::SUCCESS,
        // Docker stores the output, for `docker inspect`.
        Ok(answer) => {
            println!("{}", answer.trim_end());
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("http://{address}{path}: {error}");
            ExitCode::FAILURE
        }
    }
}
