//! A process without free descriptors.
#![cfg(unix)]

use std::fs::File;
use std::time::Duration;

use peregrine_driver::{Driver, Listener, Options, Socket, Stream};
use peregrine_driver_tokio::Tokio;
use peregrine_tests::{Kernel, Peer, ThreadPeer, isolated};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Far more than a driver and this test need.
const DESCRIPTORS_MAX: u64 = 200;

/// `EMFILE` and `ENFILE`, the same on all Unix systems.
const NO_DESCRIPTORS: [Option<i32>; 2] = [Some(24), Some(23)];

fn refused_attempts_leave_the_connection_waiting<D: Driver<Socket = Socket>>() {
    let (socket, place) = Kernel::<D>::tcp().socket();
    D::run(&Options::default(), async |driver: D| {
        let listener = driver.listen(socket).expect("a bound socket can listen");
        let _hold = driver.keep_awake();
        let peer = ThreadPeer::connect(&place);
        let mut hoard = Vec::new();
        // Any existing path will do. The loop ends when the limit is reached.
        while let Ok(file) = File::open("/") {
            hoard.push(file);
        }
        for _ in 0..3 {
            let error =
                listener.accept().await.err().expect("accepting fails without a free descriptor");
            assert!(NO_DESCRIPTORS.contains(&error.raw_os_error()), "{error}");
            driver.sleep_until(driver.now() + Duration::from_millis(5)).await;
        }
        drop(hoard);
        // A driver that accepts ahead may have one more error to report.
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(_) => listener.accept().await.expect("the descriptors are back"),
        };
        peer.send(b"patience".to_vec()).await.expect("the connection is open");
        assert!(b"patience".starts_with(&stream.recv().await.expect("the connection is open")));
    })
    .expect("the driver starts");
}

#[test]
fn a_worker_without_descriptors_reports_each_attempt_and_recovers() {
    isolated(|| {
        lower_the_limit_of_descriptors();
        refused_attempts_leave_the_connection_waiting::<Tokio>();
        #[cfg(target_os = "linux")]
        refused_attempts_leave_the_connection_waiting::<peregrine_driver_uring::Uring>();
    });
}

fn lower_the_limit_of_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS_MAX), ..limit })
        .expect("a process may lower its own limit");
}
