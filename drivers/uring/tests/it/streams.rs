//! Connections: bytes arrive complete and in order, whatever happens to futures and peers.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use crate::harness::{
    echo, echo_all, finish, join, pattern, pause, read, send, tcp, wait_until, worker,
};
use peregrine_driver::{Address, Driver, Listener, Options, Socket, Stream};
use peregrine_driver_uring::{Uring, UringStream};

#[test]
fn bytes_are_echoed_over_tcp() {
    let (socket, address) = tcp();
    let worker = worker(Options::default(), move |driver| async move {
        let listener = driver.listen(socket).unwrap();
        let stream = listener.accept().await.unwrap();
        assert_eq!(stream.local_addr(), Address::Tcp(address));
        let peer = stream.peer_addr();
        echo(stream).await;
        peer
    });
    let mut client = TcpStream::connect(address).unwrap();
    for round in 0..100 {
        let text = format!("round {round}");
        client.write_all(text.as_bytes()).unwrap();
        let mut back = vec![0; text.len()];
        client.read_exact(&mut back).unwrap();
        assert_eq!(back, text.as_bytes());
    }
    let local = client.local_addr().unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(join(worker), Address::Tcp(local));
}

#[test]
fn bytes_are_echoed_over_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let expected = path.clone();
    let worker = worker(Options::default(), move |driver| async move {
        let listener = driver.listen(Socket::Unix(listener)).unwrap();
        let stream = listener.accept().await.unwrap();
        assert_eq!(stream.local_addr(), Address::Unix(Some(expected.clone())));
        assert_eq!(stream.peer_addr(), Address::Unix(None));
        let credentials = stream.peer_credentials().expect("credentials");
        assert_eq!(credentials.pid, Some(std::process::id()));
        let metadata = std::fs::metadata(expected.as_path()).unwrap();
        assert_eq!((credentials.uid, credentials.gid), (metadata.uid(), metadata.gid()));
        echo(stream).await;
    });
    let mut client = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let sent = pattern(300_000);
    let writer = thread::spawn({
        let (sent, mut client) = (sent.clone(), client.try_clone().unwrap());
        move || {
            client.write_all(&sent).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        }
    });
    let mut back = Vec::new();
    client.read_to_end(&mut back).unwrap();
    assert!(back == sent, "received other bytes");
    join(writer);
    join(worker);
}

#[test]
fn a_thousand_connections_are_served() {
    let (socket, address) = tcp();
    let worker = worker(Options::default(), move |driver| async move {
        let listener = driver.listen(socket).unwrap();
        let ended = echo_all(&driver, &listener, 1_000).await;
        wait_until(&driver, "all ended", || ended.get() == 1_000).await;
        wait_until(&driver, "all closed", || driver.stats().in_flight <= 1).await;
        driver.stats().accepted
    });
    let mut clients: Vec<_> = (0..1_000).map(|_| TcpStream::connect(address).unwrap()).collect();
    for round in 0..3u8 {
        for (number, client) in clients.iter_mut().enumerate() {
            client.write_all(&[round, number as u8, (number >> 8) as u8]).unwrap();
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let mut back = [0; 3];
            client.read_exact(&mut back).unwrap();
            assert_eq!(back, [round, number as u8, (number >> 8) as u8]);
        }
    }
    drop(clients);
    assert_eq!(join(worker), 1_000);
}

#[test]
fn a_partial_send_is_continued() {
    let (socket, address) = tcp();
    let sent = pattern(24 << 20);
    let expected = sent.clone();
    let worker = worker(Options::default(), move |driver| async move {
        let stream = driver.listen(socket).unwrap().accept().await.unwrap();
        send(&stream, sent).await.unwrap();
        finish(&stream).await.unwrap();
        assert!(stream.recv().await.unwrap().is_empty());
    });
    let mut client = TcpStream::connect(address).unwrap();
    thread::sleep(Duration::from_millis(100));
    let mut back = Vec::new();
    client.read_to_end(&mut back).unwrap();
    assert!(back == expected, "received other bytes");
    drop(client);
    join(worker);
}

#[test]
fn a_half_closed_peer_still_gets_its_replies() {
    let (socket, address) = tcp();
    let worker = worker(Options::default(), move |driver| async move {
        let stream = driver.listen(socket).unwrap().accept().await.unwrap();
        let received = read(&stream, 5).await;
        assert!(stream.recv().await.unwrap().is_empty(), "end of input");
        assert!(stream.recv().await.unwrap().is_empty(), "end of input again");
        for _ in 0..3 {
            send(&stream, received.clone()).await.unwrap();
        }
        send(&stream, pattern(4 << 20)).await.unwrap();
        finish(&stream).await.unwrap();
    });
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"hello").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    client.read_to_end(&mut back).unwrap();
    assert_eq!(&back[..15], b"hellohellohello");
    assert!(back[15..] == pattern(4 << 20), "received other bytes");
    join(worker);
}

#[test]
fn dropping_a_receive_loses_nothing() {
    let (socket, address) = tcp();
    let sent = pattern(3_000_000);
    let expected = sent.clone();
    let worker = worker(Options::default(), move |driver| async move {
        let stream = driver.listen(socket).unwrap().accept().await.unwrap();
        let mut received = Vec::new();
        let mut dropped = 0;
        while received.len() < expected.len() {
            let deadline = driver.sleep_until(driver.now() + Duration::from_micros(50));
            tokio::select! {
                biased;
                () = deadline => dropped += 1,
                chunk = stream.recv() => received.extend_from_slice(&chunk.unwrap()),
            }
            // Polled once and dropped.
            if received.len() % 3 == 0 && received.len() < expected.len() {
                tokio::select! {
                    biased;
                    chunk = stream.recv() => received.extend_from_slice(&chunk.unwrap()),
                    () = std::future::ready(()) => dropped += 1,
                }
            }
        }
        assert!(received == expected, "received other bytes");
        assert!(dropped > 0, "nothing was dropped");
    });
    let mut client = TcpStream::connect(address).unwrap();
    for piece in sent.chunks(10_001) {
        client.write_all(piece).unwrap();
        thread::yield_now();
    }
    join(worker);
}

#[test]
fn a_send_with_a_dropped_flush_continues_in_order() {
    let (socket, address) = tcp();
    let worker = worker(Options::default(), move |driver| async move {
        let stream = driver.listen(socket).unwrap().accept().await.unwrap();
        // No task waits, then one waits briefly, then more data is queued.
        stream.send(&mut pattern(8 << 20));
        tokio::select! {
            biased;
            _ = send(&stream, vec![1; 100_000]) => panic!("the first send cannot be over"),
            () = std::future::ready(()) => {}
        }
        stream.send(&mut vec![2; 10]);
        send(&stream, vec![3; 10]).await.unwrap();
        finish(&stream).await.unwrap();
        assert!(stream.recv().await.unwrap().is_empty());
        pause(&driver, 1).await;
    });
    let mut client = TcpStream::connect(address).unwrap();
    thread::sleep(Duration::from_millis(50));
    let mut back = Vec::new();
    client.read_to_end(&mut back).unwrap();
    let mut expected = pattern(8 << 20);
    expected.extend([1; 100_000]);
    expected.extend([2; 10]);
    expected.extend([3; 10]);
    assert!(back == expected, "received other bytes");
    drop(client);
    join(worker);
}

#[test]
fn finish_waits_for_earlier_sends() {
    let (socket, address) = tcp();
    let worker = worker(Options::default(), move |driver| async move {
        let stream = driver.listen(socket).unwrap().accept().await.unwrap();
        stream.send(&mut pattern(8 << 20));
        stream.finish();
        assert!(stream.recv().await.unwrap().is_empty());
    });
    let mut client = TcpStream::connect(address).unwrap();
    thread::sleep(Duration::from_millis(50));
    let mut back = Vec::new();
    client.read_to_end(&mut back).unwrap();
    assert!(back == pattern(8 << 20), "received other bytes");
    drop(client);
    join(worker);
}

#[test]
fn a_broken_connection_is_reported_after_its_bytes() {
    let (socket, address) = tcp();
    let worker = worker(Options::default(), move |driver| async move {
        let stream = driver.listen(socket).unwrap().accept().await.unwrap();
        assert_eq!(&read(&stream, 5).await, b"hello");
        // The client closes with unread bytes, which causes a reset.
        send(&stream, vec![0; 1000]).await.unwrap();
        let error = stream.recv().await.err().expect("the peer resets");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        assert!(stream.recv().await.is_err(), "the error is repeated");
        assert!(send(&stream, vec![0; 10]).await.is_err());
        assert!(send(&stream, vec![0; 10]).await.is_err());
        assert!(finish(&stream).await.is_err());
    });
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"hello").unwrap();
    let mut one = [0];
    client.read_exact(&mut one).unwrap();
    drop(client);
    join(worker);
}

#[test]
fn a_pending_receive_is_woken_when_a_send_finds_no_room() {
    let (socket, address) = tcp();
    let worker = worker(Options::default(), move |driver| async move {
        let stream = Rc::new(driver.listen(socket).unwrap().accept().await.unwrap());
        let polls = Rc::new(Cell::new(0));
        driver.spawn({
            let (stream, polls) = (Rc::clone(&stream), Rc::clone(&polls));
            async move {
                poll_fn(|cx| {
                    polls.set(polls.get() + 1);
                    stream.poll_recv(cx)
                })
                .await
                .unwrap();
            }
        });
        pause(&driver, 5).await;
        assert_eq!(polls.get(), 1);
        while stream.is_flushed() {
            assert_eq!(polls.get(), 1, "the reader was woken early");
            stream.send(&mut pattern(8_000));
            pause(&driver, 1).await;
        }
        assert_eq!(polls.get(), 2);
    });
    let client = TcpStream::connect(address).unwrap();
    join(worker);
    drop(client);
}

/// Operations after a small send are not delayed until the worker wakes up for another reason.
#[test]
fn operations_after_a_small_send_are_not_delayed() {
    const ROUNDS: u32 = 40;
    let (socket, address) = tcp();
    thread::spawn(move || {
        Uring::run(&Options::default(), async move |driver| {
            let listener = driver.listen(socket).unwrap();
            let inner = driver.clone();
            // A task of the worker; the future that the thread blocks on sleeps differently.
            driver.spawn(async move {
                loop {
                    let stream = listener.accept().await.unwrap();
                    inner.spawn(respond_as_requested(stream));
                }
            });
            std::future::pending::<()>().await;
        })
        .unwrap();
    });
    let time = |request: &[u8]| {
        let start = std::time::Instant::now();
        for _ in 0..ROUNDS {
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all(request).unwrap();
            let mut response = [0; 2];
            client.read_exact(&mut response[..request.len()]).unwrap();
            if request.len() == 1 && request != b"1" {
                assert_eq!(client.read(&mut response).unwrap(), 0, "end of input");
            }
        }
        start.elapsed()
    };
    // In the baseline no task waits for the end of the send.
    let baseline = time(b"1").max(Duration::from_millis(1));
    for request in [&b"w"[..], b"f", b"d", b"22"] {
        let ratio = time(request).as_secs_f64() / baseline.as_secs_f64();
        assert!(ratio < 50.0, "{:?}: {ratio:.0} times as long", request.escape_ascii());
    }
}

/// Sends one byte for each received one, and then acts on the first one: waits until it is sent and
/// finishes (`w`), finishes right away (`f`), drops the connection (`d`), or sends one more byte
/// (`22`).
async fn respond_as_requested(stream: UringStream) {
    let request = stream.recv().await.expect("a request").to_vec();
    stream.send(&mut vec![b'!']);
    match request[0] {
        b'w' => {
            stream.flush().await.expect("the peer is connected");
            stream.finish();
            assert!(stream.recv().await.is_ok_and(|end| end.is_empty()));
        }
        b'f' => {
            stream.finish();
            assert!(stream.recv().await.is_ok_and(|end| end.is_empty()));
        }
        b'd' => {}
        b'2' => {
            stream.send(&mut vec![b'!']);
            assert!(stream.recv().await.is_ok_and(|end| end.is_empty()));
        }
        _ => assert!(stream.recv().await.is_ok_and(|end| end.is_empty())),
    }
}
