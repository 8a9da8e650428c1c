//! The thread that writes the access log.

use super::metrics::AccessLogMetrics;
use super::queue::{LineQueue, RETAINED_BYTES_MAX, WriterSignal, WriterState};
use super::sink::Sink;
use peregrine_web::panic::catch_subscriber_panic;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Lines that arrive within this time are written together. Under load, the thread wakes at this
/// interval; without load, it sleeps.
const BATCH_DELAY: Duration = Duration::from_millis(10);

/// The state of the thread that writes the access log.
pub(super) struct AccessLogWriter {
    pub(super) sink: Sink,
    pub(super) queues: Vec<Arc<LineQueue>>,
    pub(super) signal: Arc<WriterSignal>,
    pub(super) metrics: Arc<AccessLogMetrics>,
    /// Receives `Ok` when the thread ends.
    pub(super) done: mpsc::Sender<io::Result<()>>,
}

impl AccessLogWriter {
    /// Writes lines until the log is closed.
    pub(super) fn run(mut self) {
        // `batch` is the buffer that circulates through the slots. `is_failing` is whether the last
        // write failed: only the first failure in a row is logged.
        let (mut batch, mut is_failing) = (Vec::new(), false);
        let queues = std::mem::take(&mut self.queues);
        loop {
            self.wait();
            self.signal.clear();
            self.switch_sink(&mut is_failing);
            self.reopen();
            // The state is read before the queues are emptied, so that the last round writes all
            // lines that were queued before the log was closed.
            let is_last = match self.signal.state() {
                WriterState::Running => false,
                // Each worker has one clone of its queue, and drops it when it ends.
                WriterState::Detached => queues.iter().all(|queue| Arc::strong_count(queue) == 1),
                WriterState::Flushing => true,
            };
            let mut bytes = 0;
            for queue in &queues {
                for slot in 0..LineQueue::SLOTS {
                    batch = queue.take(slot, batch);
                    bytes += batch.len();
                    self.write(&batch, &mut is_failing);
                    batch.clear();
                    if batch.capacity() > RETAINED_BYTES_MAX {
                        batch = Vec::new();
                    }
                }
            }
            if is_last && bytes == 0 {
                break;
            }
        }
        let _ = self.done.send(Ok(()));
    }

    /// Waits until there is work, and then for up to [`BATCH_DELAY`] for further lines.
    fn wait(&self) {
        while self.signal.state() == WriterState::Running && !self.signal.is_set() {
            thread::park();
        }
        // A wake-up during other work leaves a park token, which makes the next park return
        // immediately, so this is a loop.
        let deadline = Instant::now() + BATCH_DELAY;
        while self.signal.state() != WriterState::Flushing && !self.signal.is_urgent() {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return;
            }
            thread::park_timeout(remaining);
        }
    }

    /// Switches to the next output, if there is one.
    fn switch_sink(&mut self, is_failing: &mut bool) {
        if let Some(next) = self.signal.take_next_sink() {
            // A failure of the new output must be logged again.
            (self.sink, *is_failing) = (next, false);
            catch_subscriber_panic(|| {
                tracing::info!(target: "peregrine", log = %self.sink,
                "the access log has a new output")
            });
        }
    }

    /// Writes complete lines. If writing fails, the remaining lines are lost. While a pipe is full,
    /// waits; if the output is then switched or reopened, writes the remaining lines to the new
    /// output.
    fn write(&mut self, mut lines: &[u8], is_failing: &mut bool) {
        let count_lines = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        while !lines.is_empty() {
            let (written, result) = self.sink.write(lines, || self.signal.wants_other_sink());
            self.metrics.written.add(count_lines(&lines[..written]));
            lines = &lines[written..];
            if matches!(&result, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
                self.switch_sink(is_failing);
                self.reopen();
                continue;
            }
            let lost = count_lines(lines);
            self.metrics.failed.add(lost);
            return report_outcome(&self.sink, result, lost, is_failing);
        }
    }

    /// Reopens the file, if requested.
    fn reopen(&mut self) {
        if !self.signal.take_reopen() {
            return;
        }
        match self.sink.reopen() {
            Ok(false) => {
                catch_subscriber_panic(|| {
                    tracing::warn!(target: "peregrine", log = %self.sink,
                    "there is no log file to reopen")
                });
            }
            Ok(true) => {
                self.metrics.reopened.add(1);
                catch_subscriber_panic(|| {
                    tracing::info!(target: "peregrine", log = %self.sink,
                    "the access log was reopened")
                });
            }
            Err(error) => {
                catch_subscriber_panic(|| {
                    tracing::error!(target: "peregrine", log = %self.sink, %error,
                    "the access log cannot be reopened; writing continues to the old file")
                });
            }
        }
    }
}

/// Logs the first failure and the recovery from it, but not every lost line.
fn report_outcome(sink: &Sink, result: io::Result<()>, lost: u64, is_failing: &mut bool) {
    match result {
        Ok(()) if std::mem::replace(is_failing, false) => {
            catch_subscriber_panic(|| {
                tracing::info!(target: "peregrine", log = %sink,
                "the access log can be written again")
            });
        }
        Err(error) if !std::mem::replace(is_failing, true) => {
            catch_subscriber_panic(|| {
                tracing::error!(target: "peregrine", log = %sink, %error, lost,
                "the access log cannot be written; lost lines are counted")
            });
        }
        Ok(()) | Err(_) => {}
    }
}
