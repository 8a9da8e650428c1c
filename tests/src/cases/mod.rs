//! The rules of the contract, a function each. A function's name is its claim.

pub mod accepting;
pub mod files;
pub mod kernel;
pub mod passing;
pub mod receiving;
pub mod running;
pub mod sending;
pub mod shared;
pub mod sharing;

use std::future::Future;
use std::io;
use std::time::Duration;

use peregrine_driver::{Driver, Stream};

/// Long enough that a peer's bytes arrive, and short for a test. Nothing may fail because it was
/// too short, only succeed without having tried.
const A_WHILE: Duration = Duration::from_millis(20);

/// Bytes that differ at each place and for each `salt`.
fn pattern(salt: u32, count: usize) -> Vec<u8> {
    // A prime, so that no power of two of lost bytes goes unnoticed.
    const PERIOD: usize = 65_521;
    let mut state = salt.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    let mut bytes = Vec::with_capacity(count);
    bytes.extend((0..count.min(PERIOD)).map(|_| next()));
    while bytes.len() < count {
        // Whole periods, but for the end.
        let more = (bytes.len() / PERIOD * PERIOD).min(count - bytes.len());
        bytes.extend_from_within(..more);
    }
    bytes
}

/// Waits for `duration` on the driver's clock.
fn pause<D: Driver>(driver: &D, duration: Duration) -> impl Future<Output = ()> {
    driver.sleep_until(driver.now() + duration)
}

/// Sends everything back until the peer's end, then ends as well.
async fn echo<S: Stream>(stream: S) {
    let mut out = Vec::new();
    loop {
        let chunk = stream.recv().await.expect("nothing breaks the connection");
        if chunk.is_empty() {
            break;
        }
        out.extend_from_slice(&chunk);
        drop(chunk);
        stream.send(&mut out);
        stream.sent().await.expect("nothing breaks the connection");
    }
    finish(&stream).await.expect("nothing breaks the connection");
}

/// Sends `bytes`, and waits until the kernel has them.
async fn send<S: Stream>(stream: &S, mut bytes: Vec<u8>) -> io::Result<()> {
    stream.send(&mut bytes);
    stream.sent().await
}

/// Ends our side, and waits until that is done.
async fn finish<S: Stream>(stream: &S) -> io::Result<()> {
    stream.finish();
    stream.sent().await
}

/// Everything until the peer's end.
async fn receive_all<S: Stream>(stream: &S) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let chunk = stream.recv().await.expect("nothing breaks the connection");
        if chunk.is_empty() {
            return all;
        }
        all.extend_from_slice(&chunk);
    }
}
