//! The thread that writes the access log.

use super::figures::Figures;
#[cfg(feature = "config")]
use super::queue::WRITERS_MAX;
use super::queue::{Bell, KEPT_BYTES_MAX, Life, Queue};
use super::sink::Sink;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Lines that come within this time are written together: under load the thread wakes so often, and else it sleeps.
const GATHER: Duration = Duration::from_millis(10);

/// How long a writer has to notice that lines are to go elsewhere. One that does not waits for somebody who takes nothing.
#[cfg(feature = "config")]
const NOTICE: Duration = Duration::from_secs(1);

/// What all writers of a log share: the first one, and those that took the place of one that waits for ever, such as for
/// the reader of a pipe.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) queues: Vec<Arc<Queue>>,
    pub(super) bell: Arc<Bell>,
    pub(super) figures: Arc<Figures>,
    pub(super) done: mpsc::Sender<()>,
    pub(super) present: Mutex<Present>,
}

/// The writer that counts. Whoever takes lines or tells what became of them holds the lock, so that another one is not told
/// of twice.
#[derive(Debug, Default)]
pub(super) struct Present {
    number: usize,
    /// Lines that it has in hand.
    lines: u64,
}

impl Desk {
    /// Has a new writer begin, on a thread of its own.
    pub(super) fn start(self: &Arc<Self>, sink: Sink, number: usize) -> io::Result<()> {
        let writer = Writer { sink, desk: Arc::clone(self), number };
        let thread = thread::Builder::new().name("peregrine-log".to_owned());
        thread.spawn(move || writer.run()).map(drop)
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has lines go elsewhere from now on, if need be by another writer.
    #[cfg(feature = "config")]
    pub(super) fn switch(self: &Arc<Self>, sink: Sink) {
        self.bell.switch(sink);
        let until = Instant::now() + NOTICE;
        while self.bell.has_next() && Instant::now() < until {
            thread::sleep(GATHER);
        }
        let number = self.present().number + 1;
        if number == WRITERS_MAX {
            if self.bell.has_next() {
                tracing::error!(target: "peregrine",
                    "the access log goes elsewhere when what it is written to takes something again: too many writers wait already");
            }
            return;
        }
        let Some(sink) = self.bell.takes_next() else { return };
        tracing::warn!(target: "peregrine", log = %sink,
            "what the access log is written to takes nothing; another thread writes elsewhere, and what the old one \
             has in hand counts as lost");
        if let Err(error) = self.start(sink, number) {
            tracing::error!(target: "peregrine", %error, "there is no thread for the access log: lines are lost");
        }
    }
}

pub(super) struct Writer {
    sink: Sink,
    desk: Arc<Desk>,
    number: usize,
}

impl Writer {
    fn run(mut self) {
        let desk = Arc::clone(&self.desk);
        self.begin();
        let (mut batch, mut fails) = (Vec::new(), false);
        loop {
            self.wait();
            desk.bell.answer();
            if !desk.bell.is_present(self.number) {
                // What was heard is for the one that is.
                return desk.bell.rouse();
            }
            if let Some(next) = desk.bell.takes_next() {
                // Whether this one can be written is not known yet.
                (self.sink, fails) = (next, false);
                tracing::info!(target: "peregrine", log = %self.sink, "the access log goes elsewhere");
            }
            if desk.bell.takes_reopen() {
                self.reopen();
            }
            // Before the last look at what waits, so that nothing comes after it.
            let is_last = match desk.bell.life() {
                Life::On => false,
                Life::Leaving => desk.queues.iter().all(|queue| Arc::strong_count(queue) == 1),
                Life::Ending => true,
            };
            let mut bytes = 0;
            for queue in &desk.queues {
                for slot in 0..Queue::SLOTS {
                    let Some(taken) = self.take(queue, slot, batch) else { return };
                    batch = taken;
                    bytes += batch.len();
                    if !self.write(&batch, &mut fails) {
                        return;
                    }
                    batch.clear();
                    if batch.capacity() > KEPT_BYTES_MAX {
                        batch = Vec::new();
                    }
                }
            }
            if is_last && bytes == 0 {
                break;
            }
        }
        let _ = desk.done.send(());
    }

    /// Is the present one from now on.
    fn begin(&self) {
        let mut present = self.desk.present();
        self.desk.figures.failed.add(std::mem::take(&mut present.lines));
        present.number = self.number;
        self.desk.bell.wakes(self.number, thread::current());
    }

    /// Takes what waits in one of the slots; nothing if another writer does that now.
    fn take(&self, queue: &Queue, slot: usize, empty: Vec<u8>) -> Option<Vec<u8>> {
        let mut present = self.desk.present();
        (present.number == self.number).then(|| {
            let batch = queue.take(slot, empty);
            present.lines = lines(&batch);
            batch
        })
    }

    /// Writes whole lines. Those that the system does not take are lost. Says whether this writer is the present one after
    /// that.
    fn write(&mut self, batch: &[u8], fails: &mut bool) -> bool {
        if batch.is_empty() {
            return true;
        }
        let (written, outcome) = self.sink.write(batch);
        let mut present = self.desk.present();
        if present.number != self.number {
            return false;
        }
        present.lines = 0;
        let figures = &self.desk.figures;
        figures.written.add(lines(&batch[..written]));
        let lost = lines(&batch[written..]);
        figures.failed.add(lost);
        drop(present);
        tell(&self.sink, outcome, lost, fails);
        true
    }

    /// Waits until there is something to do, and then a little for more.
    fn wait(&self) {
        let bell = &self.desk.bell;
        while bell.life() == Life::On && !bell.is_rung() && bell.is_present(self.number) {
            thread::park();
        }
        // Whoever rings while this thread works leaves a token that ends a pause at once.
        let until = Instant::now() + GATHER;
        while bell.life() != Life::Ending && !bell.is_urgent() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::park_timeout(left);
        }
    }

    fn reopen(&mut self) {
        match self.sink.reopen() {
            Ok(false) => {
                tracing::warn!(target: "peregrine", log = %self.sink,
                    "there is no file of a log to open again");
            }
            Ok(true) => {
                self.desk.figures.reopened.add(1);
                tracing::info!(target: "peregrine", log = %self.sink, "the access log was opened again");
            }
            Err(error) => {
                tracing::error!(target: "peregrine", log = %self.sink, %error,
                    "the access log cannot be opened again; the old file goes on");
            }
        }
    }
}

fn lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Tells of the first failure, and of its end, rather than of each line.
fn tell(sink: &Sink, outcome: io::Result<()>, lost: u64, fails: &mut bool) {
    match outcome {
        Ok(()) if std::mem::replace(fails, false) => {
            tracing::info!(target: "peregrine", log = %sink, "the access log is written again");
        }
        Err(error) if !std::mem::replace(fails, true) => {
            tracing::error!(target: "peregrine", log = %sink, %error, lost,
                "the access log cannot be written; what is lost is counted");
        }
        Ok(()) | Err(_) => {}
    }
}
