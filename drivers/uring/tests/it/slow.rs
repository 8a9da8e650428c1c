//! Peers that read slowly or not at all: how much the kernel buffers for them, and how it is
//! released.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::thread;

use crate::harness::{TEST_TIMEOUT, join, pause, send, tcp, wait_until, worker};
use peregrine_driver::{Driver, Listener, Options, Stream};
use peregrine_driver_uring::{Uring, UringStream};

/// More than the kernel buffers.
const LARGE_BYTES: usize = 64 << 20;

/// Waits until the kernel has filled its buffers.
async fn wait_until_stalled(driver: &Uring, stream: &UringStream) -> u64 {
    loop {
        let before = stream.bytes_written();
        pause(driver, 100).await;
        if before > 0 && stream.bytes_written() == before {
            return before;
        }
    }
}

/// The number of bytes that are ready to be read.
fn unread_bytes(client: &TcpStream) -> u64 {
    let mut count: libc::c_int = 0;
    // SAFETY: the call writes one integer, which outlives it.
    let result = unsafe { libc::ioctl(client.as_raw_fd(), libc::FIONREAD, &mut count) };
    assert_eq!(result, 0);
    count.try_into().unwrap()
}

#[test]
fn bytes_written_is_little_more_than_what_the_peer_has_read() {
    const PIECE: usize = 128 * 1024;
    for is_nonblocking in [false, true] {
        let (socket, address) = tcp();
        if let peregrine_driver::Socket::Tcp(listener) = &socket {
            listener.set_nonblocking(is_nonblocking).unwrap();
        }
        let mut client = TcpStream::connect(address).unwrap();
        join(worker(Options::default(), move |driver| async move {
            let stream = driver.listen(socket).unwrap().accept().await.unwrap();
            stream.send(&mut vec![1; LARGE_BYTES]);
            let mut before = wait_until_stalled(&driver, &stream).await;
            let buffered = before - unread_bytes(&client);
            assert!(
                buffered <= 256 * 1024,
                "the kernel buffers {buffered} bytes for a stalled peer"
            );
            // Room is noticed when the peer reads a little.
            client.set_nonblocking(true).unwrap();
            let mut piece = vec![0; PIECE];
            for _ in 0..10 {
                let mut remaining = PIECE;
                while remaining > 0 {
                    pause(&driver, 2).await;
                    remaining -= client.read(&mut piece[..remaining.min(8192)]).unwrap_or(0);
                }
                wait_until(&driver, "progress", || stream.bytes_written() > before).await;
                before = wait_until_stalled(&driver, &stream).await;
            }
        }));
    }
}

/// The connections of a local port, and how many of them still have data to send.
fn connections_of_port(port: u16) -> (usize, usize) {
    const FIN_WAIT_1: &str = "04";
    const TIME_WAIT: &str = "06";
    const LISTEN: &str = "0A";
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port_suffix = format!(":{port:04X}");
    let states: Vec<_> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields[1].ends_with(&port_suffix))
        .map(|fields| fields[3].to_owned())
        .collect();
    let open = states.iter().filter(|state| *state != LISTEN && *state != TIME_WAIT).count();
    (open, states.iter().filter(|state| *state == FIN_WAIT_1).count())
}

#[test]
fn a_reset_on_drop_leaves_nothing_in_the_kernel() {
    for finish_first in [false, true] {
        let (socket, address) = tcp();
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let (sender, receiver) = mpsc::channel::<()>();
        let worker = worker(Options::default(), move |driver| async move {
            let stream = driver.listen(socket).unwrap().accept().await.unwrap();
            tokio::select! {
                biased;
                _ = stream.recv() => panic!("nothing was sent"),
                _ = send(&stream, vec![1; LARGE_BYTES]) => panic!("the peer does not read"),
                _ = wait_until_stalled(&driver, &stream) => {}
            }
            stream.send(&mut vec![2; 1000]);
            if finish_first {
                stream.finish();
            }
            assert!(driver.stats().in_flight >= 2, "a receive and a send are in the kernel");
            stream.reset_on_drop();
            drop(stream);
            wait_until(&driver, "the kernel has closed it", || {
                connections_of_port(address.port()) == (0, 0)
            })
            .await;
            assert_eq!(driver.stats().in_flight, 0);
            sender.send(()).unwrap();
        });
        receiver.recv_timeout(TEST_TIMEOUT).unwrap();
        let mut buffer = vec![0; 1 << 20];
        let error = loop {
            match client.read(&mut buffer) {
                Ok(0) => panic!("a regular end"),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        join(worker);
    }
}

#[test]
fn streams_marked_for_reset_are_reset_when_the_worker_ends() {
    let (socket, address) = tcp();
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    join(worker(Options::default(), move |driver: Uring| async move {
        let stream = driver.listen(socket).unwrap().accept().await.unwrap();
        stream.send(&mut vec![1; LARGE_BYTES]);
        wait_until_stalled(&driver, &stream).await;
        stream.reset_on_drop();
        driver.spawn(async move {
            let _ = stream.recv().await;
        });
        pause(&driver, 5).await;
    }));
    let reader = thread::spawn(move || client.read_to_end(&mut Vec::new()));
    assert_eq!(join(reader).unwrap_err().kind(), ErrorKind::ConnectionReset);
}
