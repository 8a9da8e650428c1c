//! Connections with socket buffers, and how they end.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use peregrine_driver::{Driver, Listener, Options, Stream};
use peregrine_driver_sim::{Client, Faults, Network, Sim, SocketBuffers};

const HOUR: Duration = Duration::from_secs(3600);

fn run<T>(network: &Network, main: impl AsyncFnOnce(Sim) -> T) -> T {
    network
        .run(&Options::default(), async |driver| main(driver).await)
        .expect("a runtime without I/O starts")
}

/// A network whose sockets hold 900 bytes to send and 600 received bytes.
fn sockets() -> Network {
    let sockets = SocketBuffers {
        send_bytes_max: 900,
        notsent_lowat_bytes: 900,
        receive_bytes_max: 600,
        window_update_bytes: 200,
    };
    Network::new(1, Faults { socket_buffers: Some(sockets), ..Faults::none() })
}

async fn pair(driver: &Sim) -> (peregrine_driver_sim::SimStream, Client) {
    let port = driver.network().bind();
    let client = driver.network().connect(&port);
    let listener = driver.listen(port).expect("the port is bound");
    (listener.accept().await.expect("the client waits"), client)
}

/// Lets all events that are due happen.
async fn settle(driver: &Sim) {
    driver.sleep_until(driver.now() + Duration::from_millis(2)).await;
}

#[test]
fn a_kernel_takes_what_both_buffers_hold_and_more_only_in_lumps() {
    run(&sockets(), async |driver: Sim| {
        let (stream, client) = pair(&driver).await;
        stream.send(&mut vec![7; 10_000]);
        assert_eq!(stream.bytes_written(), 900, "flying bytes stay in the send buffer");
        settle(&driver).await;
        assert_eq!(stream.bytes_written(), 1_500);
        let mut steps = vec![stream.bytes_written()];
        let mut read = 0;
        while read < 3_000 {
            read += client.recv_at_most(10).await.expect("open").len();
            settle(&driver).await;
            if stream.bytes_written() != *steps.last().expect("non-empty") {
                steps.push(stream.bytes_written());
            }
        }
        let lumps: Vec<_> = steps.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(lumps.len() > 3 && lumps.iter().all(|lump| *lump >= 300), "{steps:?}");
        while read < 10_000 {
            read += client.recv().await.expect("open").len();
        }
        stream.flush().await.expect("all of it was accepted");
        assert_eq!(stream.bytes_written(), 10_000);
    });
}

#[test]
fn without_sockets_a_pipe_takes_byte_by_byte() {
    let network = Network::new(1, Faults { pipe_bytes_max: 100, ..Faults::none() });
    run(&network, async |driver: Sim| {
        let (stream, client) = pair(&driver).await;
        stream.send(&mut vec![7; 200]);
        for taken in 100..150 {
            assert_eq!(stream.bytes_written(), taken);
            client.recv_at_most(1).await.expect("open");
        }
    });
}

#[test]
fn a_closed_stream_delivers_what_its_kernel_took_and_keeps_it_until_then() {
    let network = sockets();
    run(&network, async |driver: Sim| {
        let (stream, client) = pair(&driver).await;
        stream.send(&mut vec![7; 10_000]);
        settle(&driver).await;
        let taken = stream.bytes_written();
        drop(stream);
        driver.sleep_until(24 * HOUR).await;
        assert_eq!(driver.network().orphaned_bytes(), 900, "the client does not read");
        let all = client.recv_all().await.expect("a regular end");
        assert_eq!(all.len() as u64, taken, "bytes that no kernel accepted are lost");
        assert_eq!(driver.network().orphaned_bytes(), 0);
    });
    assert_eq!(network.connections(), 0);
}

#[test]
fn a_stream_that_resets_leaves_nothing_in_the_kernel() {
    run(&sockets(), async |driver: Sim| {
        let (stream, client) = pair(&driver).await;
        stream.send(&mut vec![7; 10_000]);
        settle(&driver).await;
        stream.reset_on_drop();
        drop(stream);
        assert_eq!(driver.network().orphaned_bytes(), 0);
        let error = client.recv_all().await.expect_err("the connection was reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn closing_over_unread_bytes_takes_the_answer_away_from_the_client() {
    for is_read in [false, true] {
        run(&sockets(), async |driver: Sim| {
            let (stream, client) = pair(&driver).await;
            client.send(b"request and more").await.expect("open");
            settle(&driver).await;
            if is_read {
                stream.recv().await.expect("open");
            }
            stream.send(&mut b"answer".to_vec());
            settle(&driver).await;
            drop(stream);
            settle(&driver).await;
            let got = client.recv_all().await;
            assert_eq!(got.ok().as_deref(), is_read.then_some(&b"answer"[..]));
        });
    }
}

#[test]
fn bytes_that_come_to_a_closed_stream_take_its_answer_away() {
    run(&sockets(), async |driver: Sim| {
        let (stream, client) = pair(&driver).await;
        stream.send(&mut b"answer".to_vec());
        drop(stream);
        client.send(b"more").await.expect("the reset has not arrived yet");
        settle(&driver).await;
        assert!(client.recv().await.is_err());
    });
}

#[test]
fn a_port_that_refuses_still_gives_those_who_came_before() {
    let network = Network::new(5, Faults::none());
    run(&network, async |driver: Sim| {
        let port = driver.network().bind();
        let place = port.id();
        let before = driver.network().connect(&port);
        let listener = driver.listen(port).expect("the port is bound");
        listener.refuse_new_connections();
        let after: Vec<_> = (0..20).map(|_| driver.network().connect_to(place)).collect();
        let stream = listener.accept().await.expect("the connection is in the backlog");
        stream.send(&mut b"hello".to_vec());
        assert_eq!(before.recv().await.expect("open"), b"hello");
        settle(&driver).await;
        let refused = driver.network().connections_refused();
        assert!((1..20).contains(&refused), "some are refused, some wait: {refused}");
        drop(listener);
        for client in after {
            let error = client.recv().await.expect_err("new connections are refused");
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        }
        let late = driver.network().connect_to(place);
        let error = late.recv().await.expect_err("the listener is gone");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
    assert_eq!(network.connections(), 0);
}

#[test]
fn time_passes_while_a_function_blocks_and_what_was_due_comes_late() {
    run(&Network::new(1, Faults::none()), async |driver: Sim| {
        let (stream, client) = pair(&driver).await;
        client.stall(Duration::from_secs(5));
        client.send(b"x").await.expect("open");
        let (network, timer) = (driver.network().clone(), driver.clone());
        driver.spawn(async move {
            timer.sleep_until(Duration::from_secs(1)).await;
            network.block_thread(Duration::from_secs(180));
            assert_eq!(timer.now(), Duration::from_secs(181));
        });
        let tokios = tokio::time::Instant::now();
        driver.sleep_until(Duration::from_secs(2)).await;
        assert_eq!(driver.now(), Duration::from_secs(181));
        assert_eq!(tokios.elapsed(), Duration::from_secs(181));
        assert_eq!(&*stream.recv().await.expect("open"), b"x");
        driver.sleep_until(Duration::from_secs(200)).await;
        assert_eq!(driver.now(), Duration::from_secs(200));
    });
}

#[test]
fn years_pass_in_no_time_and_ever_is_no_time() {
    let real = Instant::now();
    let network = Network::new(1, Faults::none());
    run(&network, async |driver: Sim| {
        for years in 1..=20 {
            let at = years * 365 * 24 * HOUR;
            driver.sleep_until(at).await;
            assert_eq!(driver.now(), at);
        }
        let timer = driver.clone();
        driver.spawn(async move { timer.sleep_until(Duration::MAX).await });
        let ever = driver.network().clone();
        driver.spawn(async move { ever.sleep(Duration::MAX).await });
        driver.sleep_until(driver.now() + HOUR).await;
        tokio::time::sleep(100 * 24 * HOUR).await;
    });
    assert!(real.elapsed() < HOUR);
}
