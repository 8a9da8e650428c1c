//! Tasks, timers, and tokio on the ring's thread.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use crate::harness::{TEST_TIMEOUT, echo, echo_all, join, pause, send, tcp, wait_until, worker};
use peregrine_driver::{Driver, Listener, Options, Stream};
use peregrine_driver_uring::Uring;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, oneshot};

#[test]
fn sleeping_tasks_wake_in_order_and_never_early() {
    join(worker(Options::default(), |driver: Uring| async move {
        let order = Rc::new(RefCell::new(Vec::new()));
        let start = driver.now();
        for ms in [70u64, 5, 130, 1, 30, 66] {
            let (order, driver) = (Rc::clone(&order), driver.clone());
            driver.clone().spawn(async move {
                let at = start + Duration::from_millis(ms);
                driver.sleep_until(at).await;
                assert!(driver.now() >= at);
                order.borrow_mut().push(ms);
            });
        }
        // A sleep that is dropped, or whose deadline has passed, has no effect on the others.
        drop(driver.sleep_until(start + Duration::from_millis(40)));
        driver.sleep_until(Duration::ZERO).await;
        wait_until(&driver, "all woke", || order.borrow().len() == 6).await;
        assert_eq!(*order.borrow(), [1, 5, 30, 66, 70, 130]);
    }));
}

#[test]
fn the_task_that_polled_a_sleep_last_is_woken() {
    join(worker(Options::default(), |driver: Uring| async move {
        let mut sleep = Box::pin(driver.sleep_until(driver.now() + Duration::from_millis(20)));
        let mut noop_context = Context::from_waker(std::task::Waker::noop());
        assert!(sleep.as_mut().poll(&mut noop_context).is_pending());
        assert!(sleep.as_mut().poll(&mut noop_context).is_pending());
        sleep.await;
    }));
}

/// Repeatedly wakes the calling task from another thread.
async fn wait_for_wakes_from_threads(rounds: usize) {
    for _ in 0..rounds {
        let (sender, receiver) = oneshot::channel();
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(3));
            sender.send(()).expect("the task waits");
        });
        receiver.await.expect("the thread sends");
    }
}

#[test]
fn another_thread_wakes_a_worker_that_sleeps_in_the_ring() {
    join(worker(Options::default(), |driver: Uring| async move {
        let before = driver.stats().syscalls;
        wait_for_wakes_from_threads(30).await;
        let syscalls = driver.stats().syscalls - before;
        // On a busy machine some wake-ups come before the worker is asleep.
        assert!(syscalls >= 5, "the worker never slept in the ring: {syscalls} system calls");
        assert!(syscalls < 300, "the worker polled instead of sleeping: {syscalls} system calls");
    }));
}

#[test]
fn another_thread_wakes_a_worker_that_sleeps_in_tokio() {
    join(worker(Options::default(), |driver: Uring| async move {
        let _keep_awake = driver.keep_awake();
        let before = driver.stats().syscalls;
        wait_for_wakes_from_threads(30).await;
        let syscalls = driver.stats().syscalls - before;
        assert!(syscalls < 300, "the worker polled instead of sleeping: {syscalls} system calls");
    }));
}

#[test]
fn another_thread_wakes_a_spawned_task_in_both_ways_of_sleeping() {
    join(worker(Options::default(), |driver: Uring| async move {
        for keep_awake in [false, true] {
            let _keep_awake = keep_awake.then(|| driver.keep_awake());
            let done = Rc::new(Notify::new());
            for _ in 0..20 {
                let done = Rc::clone(&done);
                driver.spawn(async move {
                    wait_for_wakes_from_threads(5).await;
                    done.notify_one();
                });
            }
            done.notified().await;
        }
    }));
}

/// The worker serves connections and timers while it sleeps in tokio.
#[test]
fn completions_are_processed_while_the_worker_sleeps_in_tokio() {
    let (socket, address) = tcp();
    let worker = worker(Options::default(), move |driver: Uring| async move {
        let _keep_awake = driver.keep_awake();
        let listener = driver.listen(socket).unwrap();
        let ended = echo_all(&driver, &listener, 3).await;
        let start = driver.now();
        for _ in 0..20 {
            pause(&driver, 2).await;
        }
        assert!(driver.now() >= start + Duration::from_millis(40));
        wait_until(&driver, "all closed", || ended.get() == 3).await;
    });
    for _ in 0..3 {
        use std::io::{Read, Write};
        let mut client = std::net::TcpStream::connect(address).unwrap();
        for round in 0..50u8 {
            thread::sleep(Duration::from_micros(300));
            client.write_all(&[round; 10]).unwrap();
            let mut back = [0; 10];
            client.read_exact(&mut back).unwrap();
            assert_eq!(back, [round; 10]);
        }
    }
    join(worker);
}

#[test]
fn tokio_tasks_run_beside_the_ring() {
    join(worker(Options::default(), |driver: Uring| async move {
        assert_eq!(tokio::spawn(async { 1 }).await.unwrap(), 1);
        // No `KeepAwake` is needed, because the driver notices tokio tasks.
        let slept = tokio::spawn(async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            2
        });
        assert_eq!(slept.await.unwrap(), 2);
        let local = Rc::new(3);
        let moved = Rc::clone(&local);
        let spawned = tokio::task::spawn_local(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            *moved
        });
        assert_eq!(spawned.await.unwrap(), 3);
        assert_eq!(tokio::task::spawn_blocking(|| 4).await.unwrap(), 4);
        drop(driver);
    }));
}

#[test]
fn an_event_unknown_to_the_driver_is_late_but_not_lost() {
    join(worker(Options::default(), |_: Uring| async move {
        // Without a `KeepAwake` the worker sleeps in the ring.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let handle = tokio::runtime::Handle::current();
        let (sender, receiver) = oneshot::channel();
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            handle.spawn(async move { sender.send(()).unwrap() });
        });
        receiver.await.unwrap();
    }));
}

#[test]
fn driver_tasks_may_use_tokio_directly() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut peer, _) = listener.accept().unwrap();
        let mut received = [0; 4];
        peer.read_exact(&mut received).unwrap();
        thread::sleep(Duration::from_millis(5));
        peer.write_all(&received).unwrap();
    });
    join(worker(Options::default(), move |driver: Uring| async move {
        let (sender, receiver) = oneshot::channel();
        let inner = driver.clone();
        driver.spawn(async move {
            let _keep_awake = inner.keep_awake();
            tokio::time::sleep(Duration::from_millis(5)).await;
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            stream.write_all(b"ping").await.unwrap();
            let mut back = [0; 4];
            stream.read_exact(&mut back).await.unwrap();
            assert_eq!(&back, b"ping");
            let sum = tokio::task::spawn_blocking(|| 20 + 22).await.unwrap();
            sender.send(sum).unwrap();
        });
        assert_eq!(receiver.await.unwrap(), 42);
    }));
    join(server);
}

#[test]
fn tokio_tasks_may_use_the_driver() {
    let (socket, address) = tcp();
    let worker = worker(Options::default(), move |driver: Uring| async move {
        let listener = driver.listen(socket).unwrap();
        let inner = driver.clone();
        let task = tokio::task::spawn_local(async move {
            let stream = listener.accept().await.unwrap();
            // The worker is now parked in tokio and must notice each of these.
            tokio::time::sleep(Duration::from_millis(10)).await;
            pause(&inner, 5).await;
            let (sender, receiver) = oneshot::channel();
            inner.spawn(async move { sender.send(()).unwrap() });
            receiver.await.unwrap();
            echo(stream).await;
        });
        task.await.unwrap();
        drop(driver);
    });
    thread::spawn(move || {
        use std::io::{Read, Write};
        let mut client = std::net::TcpStream::connect(address).unwrap();
        client.write_all(b"hello").unwrap();
        let mut back = [0; 5];
        client.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"hello");
    });
    join(worker);
}

#[test]
fn a_busy_ring_yields_to_tokio() {
    join(worker(Options::default(), |driver: Uring| async move {
        let done = Rc::new(Cell::new(false));
        let busy = Rc::clone(&done);
        // A task that is always ready keeps the loop busy.
        driver.spawn(poll_fn(move |cx: &mut Context<'_>| {
            if busy.get() {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        let slept = tokio::spawn(async {
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_millis(2)).await;
                tokio::task::yield_now().await;
            }
        });
        slept.await.unwrap();
        pause(&driver, 3).await;
        done.set(true);
    }));
}

#[test]
fn a_task_that_wakes_itself_is_polled_once_per_iteration() {
    join(worker(Options::default(), |driver: Uring| async move {
        let (done, is_done) = tokio::sync::oneshot::channel();
        let (iterations, mut polls, mut done) = (Rc::new(Cell::new(0)), 0, Some(done));
        let counted = Rc::clone(&iterations);
        assert!(driver.on_iteration_end(move |_| counted.set(counted.get() + 1)));
        let before = iterations.get();
        driver.spawn(poll_fn(move |cx: &mut Context<'_>| {
            polls += 1;
            if polls <= 100 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            done.take().unwrap().send(iterations.get() - before).unwrap();
            Poll::Ready(())
        }));
        // The kernel is entered after each poll.
        let iterations: usize = is_done.await.unwrap();
        assert!((100..110).contains(&iterations), "{iterations}");
    }));
}

#[test]
fn tasks_do_not_share_one_tokio_budget() {
    join(worker(Options::default(), |driver: Uring| async move {
        let _keep_awake = driver.keep_awake();
        receive_without_a_pause().await;
        let (done, is_done) = tokio::sync::oneshot::channel();
        driver.spawn(async move {
            receive_without_a_pause().await;
            done.send(()).unwrap();
        });
        is_done.await.unwrap();
    }));
}

async fn receive_without_a_pause() {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..10_000 {
        sender.send(number).expect("the receiver exists");
    }
    // With the tokio budget of one task this would be pending after 128 messages.
    for expected in 0..10_000 {
        let next = poll_fn(|cx| Poll::Ready(receiver.poll_recv(cx))).await;
        assert_eq!(next, Poll::Ready(Some(expected)));
    }
}

#[test]
fn awaiting_a_tokio_task_does_not_enter_the_kernel() {
    join(worker(Options::default(), |driver: Uring| async move {
        let (done, syscalls) = tokio::sync::oneshot::channel();
        let inner = driver.clone();
        driver.spawn(async move {
            let before = inner.stats().syscalls;
            for number in 0..1_000 {
                assert_eq!(tokio::spawn(async move { number }).await.unwrap(), number);
            }
            done.send(inner.stats().syscalls - before).unwrap();
        });
        let syscalls = syscalls.await.unwrap();
        assert!(syscalls < 100, "{syscalls} system calls for 1,000 tasks");
    }));
}

struct PanicsWhenDropped;
impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        if !thread::panicking() {
            panic!("a test of panics in destructors");
        }
    }
}

#[test]
fn a_panic_ends_only_its_task() {
    join(worker(Options::default(), |driver: Uring| async move {
        let witness = Rc::new(());
        let captured = Rc::clone(&witness);
        driver.spawn(async move {
            let _captured = captured;
            panic!("a test of panics in tasks");
        });
        driver.spawn(async { drop(PanicsWhenDropped) });
        driver.spawn(std::future::ready(()));
        wait_until(&driver, "the task was dropped", || Rc::strong_count(&witness) == 1).await;
    }));
}

struct PanicsInPending(#[allow(dead_code, reason = "only dropped")] PanicsWhenDropped);
impl Future for PanicsInPending {
    type Output = ();
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

#[test]
fn tasks_alive_at_the_end_are_dropped() {
    let witness = join(worker(Options::default(), |driver: Uring| async move {
        let witness = std::sync::Arc::new(());
        for _ in 0..3 {
            let (captured, inner) = (std::sync::Arc::clone(&witness), driver.clone());
            driver.spawn(async move {
                pause(&inner, 1_000_000).await;
                drop(captured);
            });
            let captured = std::sync::Arc::clone(&witness);
            tokio::task::spawn_local(async move {
                std::future::pending::<()>().await;
                drop(captured);
            });
        }
        driver.spawn(PanicsInPending(PanicsWhenDropped));
        pause(&driver, 1).await;
        witness
    }));
    assert_eq!(std::sync::Arc::strong_count(&witness), 1);
}

#[test]
fn a_panic_of_main_ends_the_worker() {
    let worker = thread::spawn(|| {
        Uring::run(&Options::default(), |driver: Uring| async move {
            driver.spawn(std::future::pending());
            pause(&driver, 1).await;
            panic!("a test of panics in main");
        })
    });
    assert!(worker.join().is_err());
}

#[test]
fn a_waker_can_outlive_its_worker() {
    let (sender, receiver) = mpsc::channel();
    join(worker(Options::default(), move |_: Uring| {
        poll_fn(move |cx: &mut Context<'_>| {
            sender.send(cx.waker().clone()).unwrap();
            Poll::Ready(())
        })
    }));
    let waker = receiver.recv_timeout(TEST_TIMEOUT).unwrap();
    waker.wake_by_ref();
    thread::spawn(move || waker.wake()).join().unwrap();
}

#[test]
fn handles_that_outlive_their_worker_return_errors() {
    let (socket, address) = tcp();
    let client = thread::spawn(move || std::net::TcpStream::connect(address).unwrap());
    let (driver, listener, stream) = Uring::run(&Options::default(), |driver| async move {
        let listener = driver.listen(socket).unwrap();
        let stream = listener.accept().await.unwrap();
        tokio::select! {
            biased;
            _ = stream.recv() => panic!("nothing was sent"),
            _ = listener.accept() => panic!("there is no other connection"),
            () = std::future::ready(()) => {}
        }
        (driver, listener, stream)
    })
    .unwrap();
    assert_eq!(driver.stats().in_flight, 0);
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert!(matches!(Box::pin(stream.recv()).as_mut().poll(&mut cx), Poll::Ready(Err(_))));
    let sent = Box::pin(send(&stream, vec![1])).as_mut().poll(&mut cx);
    assert!(matches!(sent, Poll::Ready(Err(_))));
    assert!(matches!(Box::pin(listener.accept()).as_mut().poll(&mut cx), Poll::Ready(Err(_))));
    join(client);
}

/// How often the calling thread slept.
fn sleeps_of_this_thread() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("/proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).expect("sleeps are counted")
}

#[test]
fn an_idle_worker_stays_asleep() {
    let (socket, address) = tcp();
    join(worker(Options::default(), move |driver: Uring| async move {
        let listener = driver.listen(socket).unwrap();
        let client = thread::spawn(move || std::net::TcpStream::connect(address).unwrap());
        let stream = listener.accept().await.unwrap();
        tokio::select! {
            biased;
            _ = stream.recv() => panic!("nothing was sent"),
            _ = listener.accept() => panic!("there is no other connection"),
            () = pause(&driver, 400) => {}
        }
        let before = (sleeps_of_this_thread(), driver.stats().syscalls);
        pause(&driver, 2_000).await;
        let after = (sleeps_of_this_thread(), driver.stats().syscalls);
        let (sleeps, syscalls) = (after.0 - before.0, after.1 - before.1);
        assert!(sleeps <= 6, "{sleeps} sleeps in two idle seconds");
        assert!(syscalls <= 6, "{syscalls} system calls in two idle seconds");
        join(client);
    }));
}

#[test]
fn a_long_idle_worker_wakes_up_for_every_kind_of_event() {
    let (socket, address) = tcp();
    join(worker(Options::default(), move |driver: Uring| async move {
        let listener = driver.listen(socket).unwrap();
        let handle = tokio::runtime::Handle::current();
        for round in 0..3 {
            pause(&driver, 300).await;
            // A wake-up by another thread, a tokio task spawned elsewhere, a tokio timer, a
            // connection.
            wait_for_wakes_from_threads(1).await;
            let (handle, (sender, receiver)) = (handle.clone(), oneshot::channel());
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(300));
                handle.spawn(async move { sender.send(()).unwrap() });
            });
            receiver.await.unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
            let client = thread::spawn(move || {
                use std::io::{Read, Write};
                thread::sleep(Duration::from_millis(300));
                let mut client = std::net::TcpStream::connect(address).unwrap();
                client.write_all(&[round]).unwrap();
                client.read_exact(&mut [0]).unwrap();
            });
            echo(listener.accept().await.unwrap()).await;
            join(client);
        }
    }));
}

#[test]
fn sleeping_until_the_maximum_time_is_allowed() {
    join(worker(Options::default(), |driver: Uring| async move {
        for keep_awake in [false, true] {
            let _keep_awake = keep_awake.then(|| driver.keep_awake());
            tokio::select! {
                () = driver.sleep_until(Duration::MAX) => panic!("this deadline is never reached"),
                () = wait_for_wakes_from_threads(2) => {}
            }
        }
    }));
}

#[test]
fn a_spinning_worker_serves_connections_and_wake_ups() {
    let (socket, address) = tcp();
    let options = Options { busy_poll_us: 200, cpu: Some(0), ..Options::default() };
    let worker = worker(options, move |driver: Uring| async move {
        let stream = driver.listen(socket).unwrap().accept().await.unwrap();
        wait_for_wakes_from_threads(3).await;
        pause(&driver, 3).await;
        echo(stream).await;
    });
    {
        use std::io::{Read, Write};
        let mut client = std::net::TcpStream::connect(address).unwrap();
        for round in 0..100u8 {
            client.write_all(&[round; 10]).unwrap();
            let mut back = [0; 10];
            client.read_exact(&mut back).unwrap();
            assert_eq!(back, [round; 10]);
        }
    }
    join(worker);
}
