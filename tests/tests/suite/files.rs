//! Files through a server on every kernel driver.

use peregrine::files::Files;
use peregrine::prelude::*;
use peregrine::{DriverChoice, Error, Limits, RunningServer};
use peregrine_tests::server::app::pattern;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

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
    files_of_every_size_arrive_whole_and_in_parts,
    a_head_has_the_length_and_nothing_else,
    a_file_that_is_replaced_while_it_is_sent_is_the_one_that_was_asked_for,
    a_peer_that_does_not_read_keeps_nobody_else_waiting,
    a_file_that_is_cut_short_while_it_is_sent_cuts_its_response,
    requests_behind_a_file_are_answered_behind_it,
    peers_that_leave_take_their_files_along,
    a_download_ends_before_the_server_does,
}

const SIZES: [usize; 6] = [0, 1, 1000, 65_536, 300_000, 10_000_000];

/// A folder, and a server for it; `None` if the kernel refuses the driver.
fn start(choice: DriverChoice) -> Option<(TempDir, RunningServer)> {
    let folder = tempfile::tempdir().expect("a folder");
    for size in SIZES {
        fs::write(folder.path().join(size.to_string()), pattern(size))
            .expect("the buffer has room");
    }
    let root = folder.path().to_owned();
    // Clients that read nothing must survive the test on a busy machine.
    let limits = Limits { transfer_rate_grace: Duration::from_secs(600), ..Limits::default() };
    let server = Server::bind("127.0.0.1:0").driver(choice).workers(NonZeroUsize::MIN).quiet();
    match server.limits(limits).start(move || App::new().subtree("/f", Files::dir(&root))) {
        Err(error @ Error::Driver { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        running => Some((folder, running.expect("the server starts"))),
    }
}

fn ask(running: &RunningServer, method: &str, name: &str, fields: &str) -> TcpStream {
    let address = running.http_address().expect("the server has an HTTP listener");
    let mut peer = TcpStream::connect(address).expect("the server accepts connections");
    peer.set_read_timeout(Some(Duration::from_secs(120))).expect("the timeout is not zero");
    let request =
        format!("{method} /f/{name} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n");
    peer.write_all(request.as_bytes()).expect("connected");
    peer
}

/// The rest of the response: its head, in lower case, and its content.
fn answer(mut peer: TcpStream, mut begun: Vec<u8>) -> (String, Vec<u8>) {
    peer.read_to_end(&mut begun).expect("the peer closes the connection cleanly");
    let end = begun.windows(4).position(|it| it == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8(begun[..end].to_vec()).expect("text").to_ascii_lowercase();
    (head, begun.split_off(end))
}

fn files_of_every_size_arrive_whole_and_in_parts(choice: DriverChoice) {
    let Some((_folder, running)) = start(choice) else { return };
    for size in SIZES {
        let expected = pattern(size);
        // Twice: from the disk, and from the cache.
        for _ in 0..2 {
            let (head, whole) = answer(ask(&running, "GET", &size.to_string(), ""), Vec::new());
            assert!(head.starts_with("http/1.1 200 ") && whole == expected, "{head}");
            assert!(head.contains(&format!("\r\ncontent-length: {size}\r\n")), "{head}");
        }
        if size < 1000 {
            continue;
        }
        let at = size / 3;
        let range = format!("Range: bytes={at}-\r\n");
        let (head, part) = answer(ask(&running, "GET", &size.to_string(), &range), Vec::new());
        assert!(head.starts_with("http/1.1 206 ") && part == expected[at..], "{head}");
        let range = format!("Range: bytes=0-99,{at}-\r\n");
        let (head, parts) = answer(ask(&running, "GET", &size.to_string(), &range), Vec::new());
        assert!(head.starts_with("http/1.1 206 "), "{head}");
        assert!(head.contains(&format!("\r\ncontent-length: {}\r\n", parts.len())), "{head}");
        assert!(parts.windows(100).any(|it| it == &expected[..100]));
    }
    running.graceful_shutdown().expect("the shutdown succeeds");
}

fn a_head_has_the_length_and_nothing_else(choice: DriverChoice) {
    let Some((_folder, running)) = start(choice) else { return };
    for size in SIZES {
        let (head, content) = answer(ask(&running, "HEAD", &size.to_string(), ""), Vec::new());
        assert!(head.contains(&format!("\r\ncontent-length: {size}\r\n")), "{head}");
        assert!(head.contains("\r\netag: ") && content.is_empty(), "{head}");
    }
    running.graceful_shutdown().expect("the shutdown succeeds");
}

fn a_file_that_is_replaced_while_it_is_sent_is_the_one_that_was_asked_for(choice: DriverChoice) {
    let Some((folder, running)) = start(choice) else { return };
    let size = SIZES[5];
    let mut peer = ask(&running, "GET", &size.to_string(), "");
    let mut begun = vec![0; 1000];
    peer.read_exact(&mut begun).expect("the response has begun");
    let other = folder.path().join("other");
    fs::write(&other, vec![b'x'; size]).expect("the buffer has room");
    fs::rename(&other, folder.path().join(size.to_string())).expect("both paths are in one folder");
    let (_, whole) = answer(peer, begun);
    assert!(whole == pattern(size), "every byte is from the first file");
    // For a moment, the file's cached state is still used.
    let mut whole = Vec::new();
    for _ in 0..100 {
        whole = answer(ask(&running, "GET", &size.to_string(), ""), Vec::new()).1;
        if whole.starts_with(b"x") {
            break;
        }
        assert!(whole == pattern(size), "a response is from one file");
        thread::sleep(Duration::from_millis(100));
    }
    assert!(whole == vec![b'x'; size], "later responses are from the second file");
    running.graceful_shutdown().expect("the shutdown succeeds");
}

fn a_peer_that_does_not_read_keeps_nobody_else_waiting(choice: DriverChoice) {
    let Some((_folder, running)) = start(choice) else { return };
    let stuck: Vec<_> = (0..8).map(|_| ask(&running, "GET", &SIZES[5].to_string(), "")).collect();
    for _ in 0..20 {
        let (head, small) = answer(ask(&running, "GET", "1000", ""), Vec::new());
        assert!(head.starts_with("http/1.1 200 ") && small == pattern(1000), "{head}");
    }
    for peer in stuck {
        let (_, whole) = answer(peer, Vec::new());
        assert!(whole == pattern(SIZES[5]), "a slow reader gets the complete file");
    }
    running.graceful_shutdown().expect("the shutdown succeeds");
}

fn a_file_that_is_cut_short_while_it_is_sent_cuts_its_response(choice: DriverChoice) {
    let Some((folder, running)) = start(choice) else { return };
    let size = SIZES[5];
    let mut peer = ask(&running, "GET", &size.to_string(), "");
    let mut all = vec![0; 1000];
    peer.read_exact(&mut all).expect("the response has begun");
    let path = folder.path().join(size.to_string());
    fs::File::options()
        .write(true)
        .open(path)
        .expect("the file exists")
        .set_len(500_000)
        .expect("shorter");
    let is_in_order = peer.read_to_end(&mut all);
    let at = all.windows(4).position(|it| it == b"\r\n\r\n").expect("a head") + 4;
    let sent = &all[at..];
    assert!(sent.len() < size, "{} bytes, {is_in_order:?}", sent.len());
    // Readers see zeros in place of a truncated part at that moment.
    let expected = pattern(size);
    let is_of_it =
        sent.iter().zip(&expected).all(|(byte, expected)| byte == expected || *byte == 0);
    assert!(is_of_it, "only bytes of the file");
    assert!(sent[..500_000.min(sent.len())] == expected[..500_000.min(sent.len())]);
    let (_, small) = answer(ask(&running, "GET", "1000", ""), Vec::new());
    assert!(small == pattern(1000), "the server still responds");
    running.graceful_shutdown().expect("the shutdown succeeds");
}

fn requests_behind_a_file_are_answered_behind_it(choice: DriverChoice) {
    let Some((_folder, running)) = start(choice) else { return };
    let mut peer = TcpStream::connect(running.http_address().expect("HTTP"))
        .expect("the server accepts connections");
    peer.set_read_timeout(Some(Duration::from_secs(120))).expect("the timeout is not zero");
    let sizes = [300_000, 1, 10_000_000, 1000, 65_536, 300_000];
    let mut asked = String::new();
    for (place, size) in sizes.iter().enumerate() {
        let close = if place + 1 == sizes.len() { "Connection: close\r\n" } else { "" };
        asked += &format!("GET /f/{size} HTTP/1.1\r\nHost: a\r\n{close}\r\n");
    }
    peer.write_all(asked.as_bytes()).expect("connected");
    let mut all = Vec::new();
    peer.read_to_end(&mut all).expect("the peer closes the connection cleanly");
    let mut rest = &all[..];
    for size in sizes {
        let at = rest.windows(4).position(|it| it == b"\r\n\r\n").expect("a head") + 4;
        assert!(rest[at..].starts_with(&pattern(size)), "{size} bytes in the right place");
        rest = &rest[at + size..];
    }
    assert!(rest.is_empty());
    running.graceful_shutdown().expect("the shutdown succeeds");
}

/// How many descriptors of files in this folder the process has open.
#[cfg(target_os = "linux")]
fn open_in(folder: &TempDir) -> usize {
    let all = fs::read_dir("/proc/self/fd").expect("the system tells");
    let targets = all.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.filter(|target| target.starts_with(folder.path()) && target != folder.path()).count()
}

#[cfg(not(target_os = "linux"))]
fn open_in(_: &TempDir) -> usize {
    0
}

fn peers_that_leave_take_their_files_along(choice: DriverChoice) {
    let Some((folder, running)) = start(choice) else { return };
    let name = SIZES[5].to_string();
    let path = folder.path().join(&name);
    for _ in 0..8 {
        let mut peer = ask(&running, "GET", &name, "");
        peer.read_exact(&mut [0; 1000]).expect("the response has begun");
        // The open file is deleted while it is sent.
        fs::remove_file(&path).expect("the file exists");
        fs::write(&path, pattern(SIZES[5])).expect("the buffer has room");
        drop(peer);
        thread::sleep(Duration::from_millis(50));
    }
    // Expired cache entries are dropped at the next access to the disk.
    let mut open = usize::MAX;
    for _ in 0..100 {
        thread::sleep(Duration::from_millis(100));
        answer(ask(&running, "GET", "300000", ""), Vec::new());
        open = open_in(&folder);
        if open <= 1 {
            break;
        }
    }
    assert!(open <= 1, "{open} files are open");
    running.graceful_shutdown().expect("the shutdown succeeds");
    assert_eq!(open_in(&folder), 0);
}

fn a_download_ends_before_the_server_does(choice: DriverChoice) {
    let Some((_folder, running)) = start(choice) else { return };
    let mut peer = ask(&running, "GET", &SIZES[5].to_string(), "");
    let mut begun = vec![0; 1000];
    peer.read_exact(&mut begun).expect("the response has begun");
    let reader = thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        answer(peer, begun).1
    });
    running.graceful_shutdown().expect("the shutdown succeeds");
    assert!(reader.join().expect("the reader does not panic") == pattern(SIZES[5]));
}
