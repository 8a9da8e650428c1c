//! Sending ranges of files.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::sync::Arc;

use peregrine_driver::{Driver, FileRange, Stream};

use super::{A_WHILE, pattern, pause};
use crate::harness::{Harness, Peer};
use crate::poll::both;

/// An unnamed temporary file with this content.
fn file(bytes: &[u8]) -> Arc<File> {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).expect("the disk has space");
    Arc::new(file)
}

fn part(file: &Arc<File>, offset: usize, length: usize) -> FileRange {
    FileRange { file: Arc::clone(file), offset: offset as u64, len: length }
}

/// Everything received until the connection ends, cleanly or not.
async fn received(peer: &impl Peer) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        match peer.recv().await {
            Ok(bytes) if !bytes.is_empty() => all.extend(bytes),
            _ => return all,
        }
    }
}

/// Waits until only the test holds the file.
async fn wait_until_released(driver: &impl Driver, file: &Arc<File>) {
    while Arc::strong_count(file) > 1 {
        pause(driver, A_WHILE / 20).await;
    }
}

/// Bytes and file ranges arrive in the order of the calls, followed by the end of the stream,
/// whether or not the kernel has room for them; all of them count as progress.
pub fn bytes_and_files_keep_their_order(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        if !stream.supports_sendfile() {
            return;
        }
        let large = harness.large();
        let content = pattern(1, large + 5000);
        let file = file(&content);
        let mut message = Vec::new();
        let sizes =
            [(9, 90, 0), (0, 9, 3), (100, large, 5000), (0, 0, 7), (large, 7, 1), (3, large, 1)];
        for (round, (byte_count, file_bytes, offset)) in sizes.into_iter().enumerate() {
            let mut out = pattern(round as u32, byte_count);
            message.extend_from_slice(&out);
            message.extend_from_slice(&content[offset..offset + file_bytes]);
            stream.send_file(&mut out, part(&file, offset, file_bytes));
            assert!(out.is_empty());
            let mut small = pattern(200 + round as u32, round);
            message.extend_from_slice(&small);
            stream.send(&mut small);
        }
        stream.finish();
        let (sent, received) = both(stream.flush(), peer.recv_all()).await;
        sent.expect("the connection is open");
        let received = received.expect("the stream ends cleanly");
        assert!(
            received == message,
            "{} of {} bytes, or different bytes",
            received.len(),
            message.len()
        );
        assert_eq!(stream.bytes_written(), message.len() as u64);
        wait_until_released(&driver, &file).await;
    });
}

/// A file that ends before the requested range ends makes sending fail. Earlier data arrives, and
/// nothing is sent in place of the missing bytes.
pub fn a_file_that_is_too_short_ends_sending(harness: &impl Harness) {
    harness.check(async |driver| {
        for size in [0, 10, harness.large()] {
            let (stream, peer) = harness.pair(&driver).await;
            if !stream.supports_sendfile() {
                return;
            }
            let content = pattern(2, size);
            let file = file(&content);
            stream.send_file(&mut b"head".to_vec(), part(&file, 0, size + 100));
            stream.send(&mut b"behind".to_vec());
            let send = async move {
                let error = stream.flush().await.expect_err("the file is too short");
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
                stream.send(&mut b"later".to_vec());
                let error = stream.flush().await.expect_err("the error persists");
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
            };
            let ((), received) = both(send, received(&peer)).await;
            let message = [b"head", &*content].concat();
            assert!(
                message.starts_with(&received),
                "{} bytes, some of them unexpected",
                received.len()
            );
            wait_until_released(&driver, &file).await;
        }
    });
}

/// The driver releases a file when the connection breaks and when the stream is dropped.
pub fn files_are_closed(harness: &impl Harness) {
    harness.check(async |driver| {
        let content = pattern(3, harness.large());
        let file = file(&content);
        for is_reset in [true, false] {
            let (stream, peer) = harness.pair(&driver).await;
            if !stream.supports_sendfile() {
                return;
            }
            for _ in 0..3 {
                stream.send_file(&mut b"head".to_vec(), part(&file, 0, content.len()));
            }
            pause(&driver, A_WHILE / 20).await;
            if is_reset {
                peer.reset().await;
                assert!(stream.flush().await.is_err());
                wait_until_released(&driver, &file).await;
                stream.send_file(&mut Vec::new(), part(&file, 0, 10));
                assert_eq!(Arc::strong_count(&file), 1, "sending has stopped");
            } else {
                drop(stream);
                let received_bytes = received(&peer).await;
                let message = [b"head", &*content].concat();
                assert!(
                    message.starts_with(&received_bytes[..received_bytes.len().min(message.len())]),
                    "unexpected bytes"
                );
                wait_until_released(&driver, &file).await;
            }
        }
    });
}

/// A worker that ends releases all files.
pub fn a_worker_that_ends_closes_files(harness: &impl Harness) {
    let content = pattern(4, harness.large());
    let file = file(&content);
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        for _ in 0..2 {
            stream.send_file(&mut b"head".to_vec(), part(&file, 0, content.len()));
        }
        driver.spawn(async move {
            let _connection = (stream, peer);
            std::future::pending::<()>().await;
        });
        pause(&driver, A_WHILE / 20).await;
    });
    assert_eq!(Arc::strong_count(&file), 1);
}
