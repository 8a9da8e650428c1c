//! Forms with files, through a server on every kernel driver.

use peregrine::multipart::{Multipart, MultipartForm, MultipartLimits, UploadedFile};
use peregrine::prelude::*;
use peregrine::{DriverChoice, Error, RunningServer};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::time::Duration;

macro_rules! on_both_drivers {
    ($($case:ident,)*) => {
        mod on_tokio {
            $(#[test] fn $case() { super::$case(super::DriverChoice::Tokio); })*
        }
        #[cfg(target_os = "linux")]
        mod on_uring {
            $(#[test] fn $case() { super::$case(super::DriverChoice::Uring); })*
        }
    };
}

on_both_drivers! {
    a_large_file_arrives_whole_however_it_is_sent,
    a_form_that_is_too_large_is_a_413_while_it_is_sent,
    a_form_that_breaks_off_harms_nobody,
}

/// Only a hang takes this long.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(serde::Deserialize)]
struct Sent {
    title: String,
    file: UploadedFile,
}

/// A checksum that depends on every byte and its position.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
}

async fn whole(MultipartForm(sent): MultipartForm<Sent>) -> String {
    let mut reader = sent.file.reader();
    let sum = peregrine::spawn_blocking(move || {
        let mut all = Vec::new();
        reader.read_to_end(&mut all).map(|_| sum(&all))
    });
    let sum = sum.await.expect("the file can be read");
    format!("{} {} {} {sum}", sent.title, sent.file.len(), sent.file.is_in_memory())
}

async fn pieces(mut form: Multipart) -> Result<String, Problem> {
    let mut bytes = 0;
    while let Some(mut field) = form.next_field().await? {
        while let Some(piece) = field.chunk().await? {
            bytes += piece.len();
            // A slow handler delays only its own peer.
            tokio::task::yield_now().await;
        }
    }
    Ok(bytes.to_string())
}

fn app() -> App {
    let small = MultipartLimits { file_bytes_max: 100_000, ..MultipartLimits::DEFAULT };
    App::new()
        .get("/", || "well")
        .post("/whole", whole.body_limit(64 << 20))
        .post("/pieces", pieces.body_limit(64 << 20))
        .scope("/small", |scope| scope.wrap(small).post("/", pieces.body_limit(64 << 20)))
}

/// A server; `None` if the kernel refuses the driver.
fn start(choice: DriverChoice) -> Option<RunningServer> {
    let server = Server::bind("127.0.0.1:0").driver(choice).quiet();
    match server.workers(NonZeroUsize::MIN).start(app) {
        Err(error @ Error::Driver { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        running => Some(running.expect("the server starts")),
    }
}

fn connect(running: &RunningServer) -> TcpStream {
    let address: SocketAddr = running.http_address().expect("the server has an HTTP listener");
    let peer = TcpStream::connect(address).expect("the server accepts connections");
    peer.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
    peer.set_write_timeout(Some(PATIENCE)).expect("the timeout is not zero");
    peer
}

/// Sends a request with the body `form`, with a length or in chunks, and reads the response to its
/// end.
fn post(running: &RunningServer, path: &str, form: &[u8], chunk: Option<usize>) -> String {
    let mut peer = connect(running);
    let framing = match chunk {
        Some(_) => "Transfer-Encoding: chunked".to_owned(),
        None => format!("Content-Length: {}", form.len()),
    };
    let mut bytes = format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: multipart/form-data; boundary=b\r\n\
         {framing}\r\n\r\n"
    )
    .into_bytes();
    match chunk {
        Some(size) => {
            for piece in form.chunks(size) {
                bytes.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                bytes.extend_from_slice(piece);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
        }
        None => bytes.extend_from_slice(form),
    }
    let sender = peer.try_clone().expect("a descriptor is left");
    let sending = std::thread::spawn(move || {
        // A client whose request is refused may not be read to the end.
        let mut sender = sender;
        let _ = sender.write_all(&bytes);
    });
    let mut answer = Vec::new();
    // An aborted connection may end with a reset after the response.
    let _ = peer.read_to_end(&mut answer);
    let _ = peer.shutdown(Shutdown::Both);
    sending.join().expect("the task does not panic");
    String::from_utf8(answer).expect("text")
}

fn form(file: &[u8]) -> Vec<u8> {
    let title = "--b\r\nContent-Disposition: form-data; name=\"title\"\r\n\r\nlanner\r\n";
    let head = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n";
    [title.as_bytes(), head.as_bytes(), file, b"\r\n--b--\r\n"].concat()
}

/// Content with many beginnings of boundary delimiters.
fn content(bytes: usize) -> Vec<u8> {
    let period: String = (0..9_973).map(|number| format!("\r\n--{number}\r")).collect();
    let mut content = period.as_bytes().repeat(bytes.div_ceil(period.len()));
    content.truncate(bytes);
    content
}

fn a_large_file_arrives_whole_however_it_is_sent(choice: DriverChoice) {
    let Some(running) = start(choice) else { return };
    for (bytes, in_memory) in [(0, true), (1000, true), (20 << 20, false)] {
        let file = content(bytes);
        let form = form(&file);
        for chunk in [None, Some(1021), Some(1 << 20)] {
            let answer = post(&running, "/whole", &form, chunk);
            let expected = format!("\r\n\r\nlanner {bytes} {in_memory} {}", sum(&file));
            assert!(answer.ends_with(&expected), "{answer}");
            let answer = post(&running, "/pieces", &form, chunk);
            assert!(answer.ends_with(&format!("\r\n\r\n{}", bytes + 6)), "{answer}");
        }
    }
    running.graceful_shutdown().expect("the shutdown succeeds");
}

fn a_form_that_is_too_large_is_a_413_while_it_is_sent(choice: DriverChoice) {
    let Some(running) = start(choice) else { return };
    let form = form(&content(8 << 20));
    for chunk in [None, Some(4000)] {
        let answer = post(&running, "/small", &form, chunk);
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        assert!(answer.contains("\"limit\":100000") && answer.contains("\"field\":\"file\""));
    }
    running.graceful_shutdown().expect("the shutdown succeeds");
}

fn a_form_that_breaks_off_harms_nobody(choice: DriverChoice) {
    let Some(running) = start(choice) else { return };
    let form = form(&content(1 << 20));
    for path in ["/whole", "/pieces"] {
        for (count, of) in [(100, form.len()), (form.len() / 2, form.len()), (90, 90)] {
            let mut peer = connect(&running);
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {of}\r\n\
                 Content-Type: multipart/form-data; boundary=b\r\n\r\n"
            );
            peer.write_all(head.as_bytes()).expect("connected");
            peer.write_all(&form[..count]).expect("connected");
            peer.shutdown(Shutdown::Write).expect("connected");
            let mut answer = String::new();
            peer.read_to_string(&mut answer).expect("the peer closes the connection cleanly");
            // The whole body arrived, but not a complete form; or not even that.
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{answer}");
            assert!(count < of || answer.contains("incomplete-multipart"), "{answer}");
        }
    }
    let mut peer = connect(&running);
    peer.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").expect("connected");
    let mut answer = String::new();
    peer.read_to_string(&mut answer).expect("a response");
    assert!(answer.ends_with("\r\n\r\nwell"), "{answer}");
    running.graceful_shutdown().expect("the shutdown succeeds");
}
