//! Tasks, time, and the end of a worker.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::panic::resume_unwind;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use peregrine_driver::{Driver, Listener, Stream};

use super::{A_WHILE, pause, send};
use crate::harness::{Harness, Peer};
use crate::poll::{first_of, polled_once};

/// Timers fire in the order of their deadlines, whatever the order of the calls.
pub fn timers_fire_in_order_and_never_early(harness: &impl Harness) {
    harness.check(async |driver| {
        let fired = Rc::new(RefCell::new(Vec::new()));
        let start = driver.now();
        for index in [3, 0, 4, 1, 2] {
            let (timer, fired) = (driver.clone(), Rc::clone(&fired));
            driver.spawn(async move {
                let deadline = start + A_WHILE * (index + 1);
                timer.sleep_until(deadline).await;
                assert!(timer.now() >= deadline, "{:?} is before {deadline:?}", timer.now());
                fired.borrow_mut().push(index);
            });
        }
        driver.sleep_until(start + A_WHILE * 7).await;
        while fired.borrow().len() < 5 {
            pause(&driver, A_WHILE).await;
        }
        assert_eq!(*fired.borrow(), [0, 1, 2, 3, 4]);
        // A deadline in the past completes at once.
        driver.sleep_until(Duration::ZERO).await;
        driver.sleep_until(start).await;
    });
}

/// Neither a dropped timer nor one that never fires keeps a worker from ending.
pub fn a_dropped_timer_is_harmless(harness: &impl Harness) {
    harness.check(async |driver| {
        for _ in 0..100 {
            assert!(polled_once(driver.sleep_until(driver.now() + A_WHILE)).await.is_none());
        }
        let never = driver.sleep_until(Duration::MAX);
        assert!(first_of(never, pause(&driver, A_WHILE)).await.is_none());
    });
}

/// `on_iteration_end` reports the end of every iteration with times that do not go back, or of no
/// iteration.
pub fn iteration_ends_are_reported_consistently(harness: &impl Harness) {
    harness.check(async |driver| {
        let (ends, latest) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(Duration::ZERO)));
        let is_supported = driver.on_iteration_end({
            let (ends, latest) = (Rc::clone(&ends), Rc::clone(&latest));
            move |now| {
                assert!(now >= latest.replace(now), "the clock went back");
                ends.set(ends.get() + 1);
            }
        });
        let done = Rc::new(Cell::new(0));
        for iteration in 1..=10 {
            let (ends_before, ran) = (ends.get(), Rc::clone(&done));
            driver.spawn(async move { ran.set(iteration) });
            let start = driver.precise_now();
            pause(&driver, A_WHILE).await;
            assert_eq!(done.get(), iteration);
            assert_eq!(ends.get() > ends_before, is_supported, "iteration {iteration}");
            assert!(!is_supported || latest.get() >= start);
        }
    });
}

/// The other tasks and the driver continue.
pub fn a_panic_ends_one_task_only(harness: &impl Harness) {
    harness.check(async |driver| {
        let dropped = Rc::new(Cell::new(0));
        for _ in 0..3 {
            let counter = DropCounter(Rc::clone(&dropped));
            let timer = driver.clone();
            driver.spawn(async move {
                let _counter = counter;
                pause(&timer, A_WHILE / 20).await;
                // Like a panic, but prints no message in the tests' output.
                resume_unwind(Box::new("on purpose"));
            });
        }
        let (stream, peer) = harness.pair(&driver).await;
        driver.spawn(super::echo(stream));
        while dropped.get() < 3 {
            pause(&driver, A_WHILE / 20).await;
        }
        // Byte by byte, because a socket may buffer no more than that.
        for byte in *b"fine" {
            peer.send(vec![byte]).await.expect("the connection is open");
            assert_eq!(peer.recv_exact(1).await.expect("the connection is open"), [byte]);
        }
        peer.half_close().await.expect("the connection is open");
        assert!(peer.recv_all().await.expect("the stream ends cleanly").is_empty());
    });
}

/// Counts how often it was dropped.
struct DropCounter(Rc<Cell<u32>>);

impl Drop for DropCounter {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// Whatever a task holds is released before `run` returns, including the task spawned last.
pub fn tasks_are_dropped_when_main_ends(harness: &impl Harness) {
    let dropped = Rc::new(Cell::new(0));
    let runs = Cell::new(0);
    harness.check(async |driver| {
        runs.set(runs.get() + 1);
        for _ in 0..2 {
            let counter = DropCounter(Rc::clone(&dropped));
            driver.spawn(async move {
                let _counter = counter;
                pending::<()>().await;
            });
            pause(&driver, A_WHILE / 20).await;
        }
        let counter = DropCounter(Rc::clone(&dropped));
        driver.spawn(async move { drop(counter) });
    });
    assert_eq!(dropped.get(), runs.get() * 3);
}

/// Nothing hangs, and nothing is used after it is freed.
pub fn the_worker_ends_with_everything_in_flight(harness: &impl Harness) {
    harness.check(async |driver| {
        let (listener, server_address) = harness.listen(&driver);
        let (receiving, silent_peer) = harness.pair(&driver).await;
        let (sending, stalled_peer) = harness.pair(&driver).await;
        let (abandoned, abandoned_peer) = harness.pair(&driver).await;
        assert!(polled_once(send(&abandoned, vec![1; harness.large()])).await.is_none());
        let timer = driver.clone();
        driver.spawn(async move { drop(listener.accept().await) });
        driver.spawn(async move { drop(receiving.recv().await) });
        let large = vec![2; harness.large()];
        driver.spawn(async move { drop(send(&sending, large).await) });
        driver.spawn(async move { timer.sleep_until(Duration::MAX).await });
        pause(&driver, A_WHILE).await;
        let unaccepted_peer = harness.connect(&driver, &server_address);
        driver.spawn(async move {
            let _peers = (abandoned, silent_peer, stalled_peer, abandoned_peer, unaccepted_peer);
            pending::<()>().await;
        });
        pause(&driver, A_WHILE / 20).await;
    });
}

/// Code that expects tokio can use its tasks and timers.
pub fn a_tokio_runtime_is_entered(harness: &impl Harness) {
    harness.check(async |driver| {
        let done = Rc::new(Cell::new(false));
        let (set, guard) = (Rc::clone(&done), driver.keep_awake());
        driver.spawn(async move {
            let task = tokio::spawn(async {
                let start = tokio::time::Instant::now();
                tokio::time::sleep(A_WHILE).await;
                start.elapsed()
            });
            assert!(task.await.expect("the task does not panic") >= A_WHILE);
            let timeout = tokio::time::timeout(A_WHILE, pending::<()>()).await;
            assert!(timeout.is_err());
            tokio::task::yield_now().await;
            drop(guard);
            set.set(true);
        });
        while !done.get() {
            pause(&driver, A_WHILE).await;
        }
        assert!(tokio::spawn(async { 7 }).await.is_ok_and(|seven| seven == 7));
    });
}

/// Tasks can wake one another through any waker they were polled with.
pub fn wakers_work_from_other_tasks(harness: &impl Harness) {
    harness.check(async |driver| {
        let slot = Rc::new(RefCell::new((0, None::<Waker>)));
        let take_turns = |parity: i32| {
            let slot = Rc::clone(&slot);
            poll_fn(move |cx| {
                let mut slot = slot.borrow_mut();
                if slot.0 == 100 {
                    slot.1.take().into_iter().for_each(Waker::wake);
                    return Poll::Ready(());
                }
                if slot.0 % 2 == parity {
                    slot.0 += 1;
                    slot.1.take().into_iter().for_each(Waker::wake);
                }
                slot.1 = Some(cx.waker().clone());
                Poll::Pending
            })
        };
        driver.spawn(ignore(take_turns(0)));
        take_turns(1).await;
        assert_eq!(slot.borrow().0, 100);
    });
}

async fn ignore(future: impl Future<Output = ()>) {
    future.await;
}

/// Time moves forward on both clocks, and the wall clock is plausible.
pub fn the_clocks_move_forward(harness: &impl Harness) {
    harness.check(async |driver| {
        let (now, date) = (driver.now(), driver.unix_time());
        pause(&driver, A_WHILE).await;
        assert!(driver.now() >= now + A_WHILE);
        // The machine's clock may be set back at any time, but not to before this was written.
        assert!(driver.unix_time() > Duration::from_secs(1_600_000_000));
        assert!(date > Duration::from_secs(1_600_000_000));
    });
}

/// Tokio tasks are counted as they start and end.
pub fn tokio_tasks_are_counted(harness: &impl Harness) {
    harness.check(async |driver| {
        let before = driver.tokio_tasks();
        let tasks: Vec<_> = (0..3).map(|_| tokio::spawn(pending::<()>())).collect();
        drop(tokio::task::spawn_local(async {}));
        assert_eq!(driver.tokio_tasks(), before + 4);
        tasks[0].abort();
        let _hold = driver.keep_awake();
        while driver.tokio_tasks() > before + 2 {
            pause(&driver, A_WHILE / 20).await;
        }
        assert_eq!(driver.tokio_tasks(), before + 2);
    });
}
