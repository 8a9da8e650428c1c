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

/// A network whose sockets buffer 900 bytes to send and 600 received bytes.
fn network_with_socket_buffers() -> Network {
    let socket_buffers = SocketBuffers {
        send_bytes_max: 900,
        notsent_lowat_bytes: 900,
        receive_bytes_max: 600,
        window_update_bytes: 200,
    };
    Network::new(1, Faults { socket_buffers: Some(socket_buffers), ..Faults::none() })
}

async fn pair(driver: &Sim) -> (peregrine_driver_sim::SimStream, Client) {
    let port = driver.network().bind();
    let client = driver.network().connect(&port);
    let listener = driver.listen(port).expect("the port is bound");
    (listener.accept().await.expect("the client waits"), client)
}

/// Waits until all events that are due have happened.
async fn settle(driver: &Sim) {
    driver.sleep_until(driver.now() + Duration::from_millis(2)).await;
}

#[test]
fn the_kernel_accepts_what_both_buffers_hold_and_more_only_in_steps() {
    run(&network_with_socket_buffers(), async |driver: Sim| {
        let (stream, client) = pair(&driver).await;
        stream.send(&mut vec![7; 10_000]);
        assert_eq!(stream.bytes_written(), 900, "bytes in flight stay in the send buffer");
        settle(&driver).await;
        assert_eq!(stream.bytes_written(), 1_500);
        let mut progress = vec![stream.bytes_written()];
        let mut read = 0;
        while read < 3_000 {
            read += client.recv_at_most(10).await.expect("open").len();
            settle(&driver).await;
            if stream.bytes_written() != *progress.last().expect("non-empty") {
                progress.push(stream.bytes_written());
            }
        }
        let steps: Vec<_> = progress.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(steps.len() > 3 && steps.iter().all(|step| *step >= 300), "{progress:?}");
        while read < 10_000 {
            read += client.recv().await.expect("open").len();
        }
        stream.flush().await.expect("all of it was accepted");
        assert_eq!(stream.bytes_written(), 10_000);
    });
}

#[test]
fn without_socket_buffers_a_pipe_accepts_single_bytes() {
    let network = Network::new(1, Faults { pipe_bytes_max: 100, ..Faults::none() });
    run(&network, async |driver: Sim| {
        let (stream, client) = pair(&driver).await;
        stream.send(&mut vec![7; 200]);
        for accepted in 100..150 {
            assert_eq!(stream.bytes_written(), accepted);
            client.recv_at_most(1).await.expect("open");
        }
    });
}

#[test]
fn data_accepted_by_the_kernel_is_delivered_after_the_stream_is_closed() {
    let network = network_with_socket_buffers();
    run(&network, async |driver: Sim| {
        let (stream, client) = pair(&driver).await;
        stream.send(&mut vec![7; 10_000]);
        settle(&driver).await;
        let accepted = stream.bytes_written();
        drop(stream);
        driver.sleep_until(24 * HOUR).await;
        assert_eq!(driver.network().orphaned_bytes(), 900, "the client does not read");
        let all = client.recv_all().await.expect("a regular end");
        assert_eq!(all.len() as u64, accepted, "bytes that no kernel accepted are lost");
        assert_eq!(driver.network().orphaned_bytes(), 0);
    });
    assert_eq!(network.connections(), 0);
}

#[test]
fn a_reset_on_drop_leaves_nothing_in_the_kernel() {
    run(&network_with_socket_buffers(), async |driver: Sim| {
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
fn closing_with_unread_bytes_resets_the_connection_and_loses_the_response() {
    for is_read in [false, true] {
        run(&network_with_socket_buffers(), async |driver: Sim| {
            let (stream, client) = pair(&driver).await;
            client.send(b"request and more").await.expect("open");
            settle(&driver).await;
            if is_read {
                stream.recv().await.expect("open");
            }
            stream.send(&mut b"response".to_vec());
            settle(&driver).await;
            drop(stream);
            settle(&driver).await;
            let received = client.recv_all().await;
            assert_eq!(received.ok().as_deref(), is_read.then_some(&b"response"[..]));
        });
    }
}

#[test]
fn bytes_that_arrive_at_a_closed_stream_reset_it_and_lose_the_response() {
    run(&network_with_socket_buffers(), async |driver: Sim| {
        let (stream, client) = pair(&driver).await;
        stream.send(&mut b"response".to_vec());
        drop(stream);
        client.send(b"more").await.expect("the reset has not arrived yet");
        settle(&driver).await;
        assert!(client.recv().await.is_err());
    });
}

#[test]
fn a_port_that_refuses_new_connections_still_accepts_its_backlog() {
    let network = Network::new(5, Faults::none());
    run(&network, async |driver: Sim| {
        let port = driver.network().bind();
        let port_id = port.id();
        let before = driver.network().connect(&port);
        let listener = driver.listen(port).expect("the port is bound");
        listener.refuse_new_connections();
        let after: Vec<_> = (0..20).map(|_| driver.network().connect_to(port_id)).collect();
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
        let late = driver.network().connect_to(port_id);
        let error = late.recv().await.expect_err("the listener is gone");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
    assert_eq!(network.connections(), 0);
}

#[test]
fn time_passes_while_the_thread_is_blocked_and_timers_fire_late() {
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
fn virtual_years_take_no_real_time_and_endless_sleeps_do_not_end() {
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
        let network = driver.network().clone();
        driver.spawn(async move { network.sleep(Duration::MAX).await });
        driver.sleep_until(driver.now() + HOUR).await;
        tokio::time::sleep(100 * 24 * HOUR).await;
    });
    assert!(real.elapsed() < HOUR);
}
