//! Captures the log of the applications, for all tests of the process.

use std::io::{self, Write};
use std::sync::{Mutex, Once, PoisonError};
use tracing_subscriber::fmt;

static BEGIN: Once = Once::new();
static TEXT: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Writer;

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        TEXT.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts capturing.
pub(crate) fn begin() {
    BEGIN.call_once(|| {
        fmt::Subscriber::builder()
            .with_env_filter("peregrine_axum_examples=debug")
            .without_time()
            .with_ansi(false)
            .with_target(false)
            .with_writer(|| Writer)
            .init();
    });
}

/// The lines that contain `mark`, in order.
pub(crate) fn lines(mark: &str) -> Vec<String> {
    let text = TEXT.lock().unwrap_or_else(PoisonError::into_inner);
    let text = String::from_utf8(text.clone()).expect("the log is UTF-8");
    let lines = text.lines().filter(|line| line.contains(mark));
    lines.map(|line| line.trim_start().to_owned()).collect()
}
