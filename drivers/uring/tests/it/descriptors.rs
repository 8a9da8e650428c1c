//! Descriptors are counted for the whole process, so each test runs in a separate process.

use std::net::TcpStream;

use crate::harness::{join, pause, read, send, tcp, wait_until, worker};
use crate::own_process;
use peregrine_driver::{Driver, Listener, Options, Stream};

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").count()
}

#[test]
fn every_descriptor_is_closed() {
    if own_process::delegate("descriptors::every_descriptor_is_closed") {
        return;
    }
    // The first runtime of a process opens shared resources, such as tokio's signal pipe.
    join(worker(Options::default(), |_| async {}));
    let base = open_descriptors();
    for round in 0..3 {
        let (socket, address) = tcp();
        let clients = join(worker(Options::default(), move |driver| async move {
            let listener = driver.listen(socket).unwrap();
            let mut clients: Vec<_> =
                (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
            let with_clients = open_descriptors();
            let mut streams = Vec::new();
            for _ in 0..20 {
                streams.push(listener.accept().await.unwrap());
            }
            assert_eq!(open_descriptors(), with_clients + 20);
            // Some during a receive, some during a send, some idle.
            for (number, stream) in streams.iter().enumerate() {
                tokio::select! {
                    biased;
                    _ = stream.recv(), if number % 3 == 0 => panic!("nothing was sent"),
                    _ = send(stream, vec![0; 8 << 20]), if number % 3 == 1 => panic!("no reads"),
                    () = std::future::ready(()) => {}
                }
            }
            if round > 0 {
                drop(streams);
                wait_until(&driver, "closed", || open_descriptors() == with_clients).await;
                assert_eq!(driver.stats().in_flight, 0);
                // Connections in the backlog are closed with the listening socket.
                drop(listener);
                wait_until(&driver, "all closed", || open_descriptors() == with_clients - 1).await;
                assert_eq!(driver.stats().in_flight, 0);
            }
            clients.truncate(39);
            clients
        }));
        drop(clients);
        // Resources that were alive when the worker ended are closed as well.
        assert_eq!(open_descriptors(), base, "round {round}");
    }
}

#[test]
fn accepting_continues_after_running_out_of_descriptors() {
    if own_process::delegate("descriptors::accepting_continues_after_running_out_of_descriptors") {
        return;
    }
    let (socket, address) = tcp();
    join(worker(Options::default(), move |driver| async move {
        let listener = driver.listen(socket).unwrap();
        let mut clients: Vec<_> = (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
        let fillers = leave_descriptors(3);
        let mut streams = Vec::new();
        for _ in 0..3 {
            streams.push(listener.accept().await.unwrap());
        }
        // One error per attempt; the other connections stay in the backlog.
        for _ in 0..3 {
            let error = listener.accept().await.err().expect("no descriptor is left");
            assert_eq!(error.raw_os_error(), Some(emfile()));
            pause(&driver, 1).await;
        }
        drop(fillers);
        for _ in 0..5 {
            streams.push(listener.accept().await.unwrap());
        }
        for (number, client) in clients.iter_mut().enumerate() {
            use std::io::Write;
            client.write_all(&[number as u8]).unwrap();
        }
        for (number, stream) in streams.iter().enumerate() {
            assert_eq!(read(stream, 1).await, [number as u8]);
        }
    }));
}

fn emfile() -> i32 {
    24
}

/// Opens files until the process can open only `count` more.
fn leave_descriptors(count: usize) -> Vec<std::fs::File> {
    let mut fillers = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        fillers.push(file);
    }
    fillers.truncate(fillers.len() - count);
    fillers
}
