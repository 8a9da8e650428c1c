//! The rules of the driver contract, one function each. A function's name states its rule.

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

/// Long enough for a peer's bytes to arrive, short enough for a test. If it is too short, a test
/// may pass without exercising its rule, but must never fail.
const A_WHILE: Duration = Duration::from_millis(20);

/// Bytes that differ by position and by `salt`.
fn pattern(salt: u32, count: usize) -> Vec<u8> {
    // A prime, so that losing a power of two of bytes is always detected.
    const PERIOD: usize = 65_521;
    let mut state = salt.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    let mut bytes = Vec::with_capacity(count);
    bytes.extend((0..count.min(PERIOD)).map(|_| next()));
    while bytes.len() < count {
        // Whole periods, except at the end.
        let more = (bytes.len() / PERIOD * PERIOD).min(count - bytes.len());
        bytes.extend_from_within(..more);
    }
    bytes
}

/// Waits for `duration` on the driver's clock.
fn pause<D: Driver>(driver: &D, duration: Duration) -> impl Future<Output = ()> {
    driver.sleep_until(driver.now() + duration)
}

/// Echoes everything until the peer's end, then ends its own side.
async fn echo<S: Stream>(stream: S) {
    let mut out = Vec::new();
    loop {
        let chunk = stream.recv().await.expect("the connection is open");
        if chunk.is_empty() {
            break;
        }
        out.extend_from_slice(&chunk);
        drop(chunk);
        stream.send(&mut out);
        stream.flush().await.expect("the connection is open");
    }
    finish(&stream).await.expect("the connection is open");
}

/// Sends `bytes` and waits until the kernel has accepted them.
async fn send<S: Stream>(stream: &S, mut bytes: Vec<u8>) -> io::Result<()> {
    stream.send(&mut bytes);
    stream.flush().await
}

/// Ends our sending side and waits until that is done.
async fn finish<S: Stream>(stream: &S) -> io::Result<()> {
    stream.finish();
    stream.flush().await
}

/// Everything received until the peer's end.
async fn receive_all<S: Stream>(stream: &S) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let chunk = stream.recv().await.expect("the connection is open");
        if chunk.is_empty() {
            return all;
        }
        all.extend_from_slice(&chunk);
    }
}
