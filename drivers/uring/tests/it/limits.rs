//! Lack of buffers, peers that do not read, and peers that send too much: no bytes are lost, and
//! memory stays bounded.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::{
    TEST_TIMEOUT, echo_all, join, pattern, pause, read, send, tcp, wait_until, worker,
};
use peregrine_driver::{Driver, Listener, Options, Socket, Stream};

#[test]
fn no_bytes_are_lost_while_no_buffer_is_free() {
    let (socket, address) = tcp();
    let options = Options { receive_buffers: 16, receive_buffer_bytes: 512, ..Options::default() };
    let worker = worker(options, move |driver| async move {
        let listener = driver.listen(socket).unwrap();
        let ended = echo_all(&driver, &listener, 64).await;
        wait_until(&driver, "all ended", || ended.get() == 64).await;
        wait_until(&driver, "all closed", || driver.stats().in_flight <= 1).await;
        driver.stats().buffers_exhausted
    });
    let clients: Vec<_> = (0..64)
        .map(|number| {
            thread::spawn(move || {
                let mut client = TcpStream::connect(address).unwrap();
                let sent: Vec<u8> =
                    pattern(100_000 + number).into_iter().map(|byte| byte ^ number as u8).collect();
                let writer = thread::spawn({
                    let (sent, mut client) = (sent.clone(), client.try_clone().unwrap());
                    move || {
                        client.write_all(&sent).unwrap();
                        client.shutdown(std::net::Shutdown::Write).unwrap();
                    }
                });
                let mut back = Vec::new();
                client.read_to_end(&mut back).unwrap();
                assert!(back == sent, "connection {number}: {} of {}", back.len(), sent.len());
                join(writer);
            })
        })
        .collect();
    clients.into_iter().for_each(join);
    assert!(join(worker) > 0, "the buffers never ran out: the test shows nothing");
}

/// Connections that are not read from may hold every buffer; the others must still be served.
#[test]
fn readers_are_served_while_idle_connections_hold_all_buffers() {
    let (socket, address) = tcp();
    let options = Options {
        receive_buffers: 16,
        receive_buffer_bytes: 512,
        read_ahead_buffers_max: 8,
        ..Options::default()
    };
    let worker = worker(options, move |driver| async move {
        let listener = driver.listen(socket).unwrap();
        let mut unread = Vec::new();
        for _ in 0..8 {
            let stream = listener.accept().await.unwrap();
            assert_eq!(read(&stream, 1).await.len(), 512);
            unread.push(stream);
        }
        pause(&driver, 50).await;
        let stream = listener.accept().await.unwrap();
        let received = read(&stream, 50_000).await;
        assert!(received == pattern(50_000), "received other bytes");
        let mut late_bytes = Vec::new();
        for stream in &unread {
            late_bytes.extend(read(stream, 20_000 - 512).await);
        }
        assert_eq!(late_bytes.len(), 8 * (20_000 - 512));
    });
    let mut unread = Vec::new();
    for _ in 0..8 {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(&[7; 20_000]).unwrap();
        unread.push(client);
    }
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(&pattern(50_000)).unwrap();
    join(worker);
}

#[test]
fn a_peer_whose_data_is_not_read_is_stopped() {
    let (socket, address) = tcp();
    let progress = Arc::new(AtomicUsize::new(0));
    let progress_seen = Arc::clone(&progress);
    const TOTAL: usize = 64 << 20;
    let worker = worker(Options::default(), move |driver| async move {
        let stream = driver.listen(socket).unwrap().accept().await.unwrap();
        let mut received = read(&stream, 1).await.len();
        // Wait until sending has stalled.
        let mut last = usize::MAX;
        wait_until(&driver, "sending has stalled", || {
            let now = progress_seen.load(Ordering::SeqCst);
            std::mem::replace(&mut last, now) == now && now > 0 && {
                thread::sleep(Duration::from_millis(200));
                progress_seen.load(Ordering::SeqCst) == now
            }
        })
        .await;
        assert!(last < TOTAL / 2, "sent {last} bytes to a peer that does not read");
        let before = driver.stats().in_flight;
        pause(&driver, 20).await;
        assert_eq!(driver.stats().in_flight, before, "no operation was started");
        while received < TOTAL {
            let chunk = stream.recv().await.unwrap();
            assert!(chunk.iter().all(|&byte| byte == 9));
            received += chunk.len();
        }
        assert_eq!(received, TOTAL);
    });
    let mut client = TcpStream::connect(address).unwrap();
    let block = vec![9; 1 << 16];
    while progress.load(Ordering::SeqCst) < TOTAL {
        client.write_all(&block).unwrap();
        progress.fetch_add(block.len(), Ordering::SeqCst);
    }
    join(worker);
}

#[test]
fn a_small_request_gets_through_beside_bulk_uploads() {
    let (socket, address) = tcp();
    let worker = worker(Options::default(), move |driver| async move {
        let listener = driver.listen(socket).unwrap();
        let ended = Rc::new(Cell::new(0));
        for _ in 0..4 {
            let (stream, ended) = (listener.accept().await.unwrap(), Rc::clone(&ended));
            driver.spawn(async move {
                let mut count = 0usize;
                while let Ok(chunk) = stream.recv().await {
                    if chunk.is_empty() {
                        break;
                    }
                    count += chunk.len();
                }
                assert!(count > 0);
                ended.set(ended.get() + 1);
            });
        }
        let _small = echo_all(&driver, &listener, 1).await;
        wait_until(&driver, "the uploads ended", || ended.get() == 4).await;
    });
    let stop = Arc::new(AtomicUsize::new(0));
    let uploads: Vec<_> = (0..4)
        .map(|_| {
            let (stop, mut client) = (Arc::clone(&stop), TcpStream::connect(address).unwrap());
            thread::spawn(move || {
                let block = vec![1; 1 << 16];
                while stop.load(Ordering::SeqCst) == 0 {
                    client.write_all(&block).unwrap();
                }
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(20));
    let mut small = TcpStream::connect(address).unwrap();
    for round in 0..50u8 {
        small.write_all(&[round; 100]).unwrap();
        let mut back = [0; 100];
        small.read_exact(&mut back).unwrap();
        assert_eq!(back, [round; 100]);
    }
    stop.store(1, Ordering::SeqCst);
    uploads.into_iter().for_each(join);
    join(worker);
}

#[test]
fn dropping_a_stream_cancels_its_operations() {
    let (socket, address) = tcp();
    let (sender, receiver) = std::sync::mpsc::channel();
    let worker = worker(Options::default(), move |driver| async move {
        let listener = driver.listen(socket).unwrap();
        for round in 0..20 {
            let stream = listener.accept().await.unwrap();
            // A receive and a send are in the kernel, and neither can complete by itself.
            tokio::select! {
                biased;
                _ = stream.recv() => panic!("nothing was sent"),
                _ = send(&stream, vec![1; 16 << 20]) => panic!("the peer does not read"),
                () = pause(&driver, if round % 2 == 0 { 0 } else { 5 }) => {}
            }
            drop(stream);
        }
        wait_until(&driver, "nothing is left", || driver.stats().in_flight == 0).await;
        sender.send(()).unwrap();
    });
    let mut clients = Vec::new();
    for _ in 0..20 {
        let client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        clients.push(client);
    }
    receiver.recv_timeout(TEST_TIMEOUT).unwrap();
    for mut client in clients {
        // The server's end is closed, so this loop ends.
        let mut buffer = vec![0; 1 << 20];
        loop {
            match client.read(&mut buffer) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                    break;
                }
            }
        }
    }
    join(worker);
}

#[test]
fn a_chunk_can_outlive_its_stream_and_its_worker() {
    let (socket, address) = tcp();
    let client = thread::spawn(move || {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"hello").unwrap();
        client
    });
    let chunk = peregrine_driver_uring::Uring::run(&Options::default(), |driver| async move {
        let stream = driver.listen(socket).unwrap().accept().await.unwrap();
        stream.recv().await.unwrap()
    })
    .unwrap();
    assert_eq!(&*chunk, b"hello");
    join(client);
}

#[test]
fn connections_in_the_backlog_are_accepted_in_order() {
    // Connecting to a Unix socket waits while the backlog is full.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    socket.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    socket.listen(16).unwrap();
    let clients = thread::spawn(move || {
        (0..600u16)
            .map(|number| {
                let mut client = std::os::unix::net::UnixStream::connect(&path).unwrap();
                client.write_all(&number.to_be_bytes()).unwrap();
                client
            })
            .collect::<Vec<_>>()
    });
    join(worker(Options::default(), move |driver| async move {
        let listener = driver.listen(Socket::Unix(socket.into())).unwrap();
        let first = listener.accept().await.unwrap();
        assert_eq!(read(&first, 2).await, [0, 0]);
        // More clients connect than the backlog holds.
        pause(&driver, 100).await;
        assert_eq!(driver.stats().accepted, 1);
        for number in 1..600u16 {
            tokio::select! {
                biased;
                () = std::future::ready(()) => {}
                _ = listener.accept() => panic!("not polled"),
            }
            let stream = listener.accept().await.unwrap();
            assert_eq!(read(&stream, 2).await, number.to_be_bytes());
        }
    }));
    join(clients);
}
