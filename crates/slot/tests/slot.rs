//! The guarantees of a slot: it holds any future, aligned, drops it once, and reuses its memory.

use peregrine_slot::FutureSlot;
use peregrine_slot::boxed::BoxedSlot;
use std::cell::Cell;
use std::future::{Future, poll_fn, ready};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

fn poll_to_end<T>(future: impl Future<Output = T>) -> (T, u32) {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    for polls in 1.. {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return (value, polls);
        }
    }
    unreachable!("the loop ends with the future")
}

/// Polls `future` in `slot` until it completes. Returns the slot, the output, and the number of
/// polls.
fn run<T>(slot: FutureSlot, future: impl Future<Output = T>) -> (FutureSlot, T, u32) {
    let mut pinned = slot.pin(future);
    let (value, polls) = poll_to_end(&mut pinned);
    (pinned.into_slot(), value, polls)
}

fn yield_times(times: u32) -> impl Future<Output = ()> {
    let mut remaining = times;
    poll_fn(move |_| {
        if remaining == 0 {
            return Poll::Ready(());
        }
        remaining -= 1;
        Poll::Pending
    })
}

struct DropCounter(Rc<Cell<u32>>);
impl Drop for DropCounter {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn slot_and_box_return_the_same_values_after_the_same_number_of_polls() {
    let mut slot = FutureSlot::new();
    for times in 0..20 {
        let make = || async move {
            let padding = [times as u8; 333];
            yield_times(times).await;
            padding.iter().map(|byte| u32::from(*byte)).sum::<u32>()
        };
        let (returned, value, polls) = run(slot, make());
        slot = returned;
        assert_eq!((value, polls), poll_to_end(BoxedSlot::new().pin(make())));
    }
}

#[test]
fn a_slot_allocates_only_when_a_future_is_larger_than_all_before() {
    let slot = FutureSlot::new();
    assert_eq!(slot.capacity(), 0);
    let (mut slot, ..) = run(slot, ready([0u8; 1000]));
    let large = slot.capacity();
    assert!(large >= 1000);
    for _ in 0..100 {
        (slot, ..) = run(slot, ready(0u8));
        (slot, ..) = run(slot, ready([0u8; 900]));
    }
    assert_eq!(slot.capacity(), large);
    (slot, ..) = run(slot, ready([0u8; 5000]));
    assert!(slot.capacity() >= 5000);
}

#[test]
fn a_future_is_dropped_once_whether_finished_or_abandoned() {
    let drops = Rc::new(Cell::new(0));
    let mut slot = FutureSlot::new();
    for finish in [true, false] {
        let guard = DropCounter(Rc::clone(&drops));
        let mut pinned = slot.pin(async move {
            yield_times(1).await;
            drop(guard);
        });
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut pinned).poll(&mut cx).is_pending());
        if finish {
            assert!(Pin::new(&mut pinned).poll(&mut cx).is_ready());
        }
        slot = pinned.into_slot();
    }
    assert_eq!(drops.get(), 2);
}

#[test]
fn a_future_with_a_large_alignment_is_aligned() {
    #[repr(align(128))]
    struct Aligned(u8);
    impl Future for Aligned {
        type Output = (usize, u8);
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<(usize, u8)> {
            Poll::Ready((&raw const *self as usize, self.0))
        }
    }
    let (slot, ..) = run(FutureSlot::new(), ready(()));
    let (_, (address, value), _) = run(slot, Aligned(9));
    assert_eq!((address % 128, value), (0, 9));
}

#[test]
fn a_future_can_borrow_data_that_outlives_the_slot() {
    let text = String::from("borrowed");
    let (_, length, _) = run(FutureSlot::new(), async { text.len() });
    assert_eq!(length, 8);
}

#[test]
fn a_pinned_future_can_be_moved_between_polls_and_returns_its_slot() {
    let drops = Rc::new(Cell::new(0));
    let mut slot = FutureSlot::new();
    for round in 1..=3 {
        let guard = DropCounter(Rc::clone(&drops));
        let mut pinned = slot.pin(async move {
            let _guard = guard;
            yield_times(2).await;
            round
        });
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut pinned).poll(&mut cx).is_pending());
        let mut moved = Box::new(pinned);
        assert!(Pin::new(&mut *moved).poll(&mut cx).is_pending());
        if round < 3 {
            assert_eq!(Pin::new(&mut *moved).poll(&mut cx), Poll::Ready(round));
        }
        slot = moved.into_slot();
        assert_eq!(drops.get(), round);
        assert!(slot.capacity() > 0);
    }
}

#[test]
fn a_pinned_future_is_dropped_with_its_guard() {
    let drops = Rc::new(Cell::new(0));
    let guard = DropCounter(Rc::clone(&drops));
    drop(FutureSlot::new().pin(async move {
        let _guard = guard;
        yield_times(1).await;
    }));
    assert_eq!(drops.get(), 1);
}

#[test]
fn a_panicking_destructor_leaks_only_the_block() {
    struct PanicsOnDrop;
    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            panic!("the destructor fails");
        }
    }
    let guard = PanicsOnDrop;
    let pinned = FutureSlot::new().pin(async move {
        let _guard = guard;
        yield_times(1).await;
    });
    let result =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(pinned.into_slot())));
    assert!(result.is_err());
}
