use super::queue::{LineQueue, WriterSignal};
use super::sink::Sink;
use super::{AccessLogMetrics, AccessLogOptions};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// A writer that accepts a number of bytes and then fails, until
/// [`remove_limit`](Self::remove_limit) is called.
#[derive(Clone, Default)]
struct Limited(Arc<Mutex<(Vec<u8>, usize)>>);

impl Limited {
    fn new(capacity: usize) -> Self {
        Self(Arc::new(Mutex::new((Vec::new(), capacity))))
    }

    fn remove_limit(&self) {
        self.0.lock().unwrap().1 = usize::MAX;
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().0.clone()).unwrap()
    }
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut inner = self.0.lock().unwrap();
        let (written, capacity) = &mut *inner;
        let count = bytes.len().min(*capacity);
        if count == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        written.extend_from_slice(&bytes[..count]);
        *capacity -= count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_partial_line_is_terminated_before_the_next_one() {
    for (capacity, written, expected) in [
        (0, 0, "one\ntwo\n"),
        (2, 0, "on\none\ntwo\n"),
        (4, 4, "one\none\ntwo\n"),
        (6, 4, "one\ntw\none\ntwo\n"),
    ] {
        let writer = Limited::new(capacity);
        let mut sink = Sink::from_writer(Box::new(writer.clone()));
        let (complete_len, result) = sink.write(b"one\ntwo\n", || false);
        assert_eq!((complete_len, result.is_err()), (written, true), "{capacity}");
        // While the writer is still full, nothing is written.
        assert_eq!(sink.write(b"lost\n", || false).0, 0);
        writer.remove_limit();
        assert_eq!(sink.write(b"one\ntwo\n", || false).0, 8);
        assert_eq!(writer.text(), expected, "{capacity}");
    }
}

#[test]
fn a_full_queue_drops_and_counts_lines() {
    let (signal, metrics) = (Arc::new(WriterSignal::default()), Arc::new(AccessLogMetrics::new(1)));
    let queue = Arc::new(LineQueue::new(0, 10, &signal, &metrics));
    for line in ["1234\n", "5678\n", "9\n", "\n"] {
        queue.push(line.as_bytes());
    }
    assert_eq!((metrics.pending(), metrics.dropped()), (2, 2));
    assert_eq!(queue.take(0, Vec::new()), b"1234\n5678\n");
    assert_eq!(queue.take(1, Vec::new()), b"");
    queue.push(b"9\n");
    assert_eq!((metrics.pending(), metrics.dropped()), (3, 2));
}

#[test]
fn a_queued_line_signals_the_writer() {
    let (signal, metrics) = (Arc::new(WriterSignal::default()), Arc::new(AccessLogMetrics::new(1)));
    let queue = Arc::new(LineQueue::new(0, 100, &signal, &metrics));
    assert!(!signal.is_set());
    queue.push(b"1\n");
    assert!(signal.is_set() && !signal.is_urgent());
    signal.clear();
    assert!(!signal.is_set());
    queue.push(&[b'x'; 60]);
    assert!(signal.is_set() && signal.is_urgent(), "the queue is half full");
}

#[test]
fn debug_shows_the_target_of_the_log() {
    assert!(format!("{:?}", AccessLogOptions::stdout()).contains("stdout"));
    assert!(format!("{:?}", AccessLogOptions::file("/tmp/a.log")).contains("/tmp/a.log"));
    assert!(AccessLogOptions::file("a").may_be_file() && !AccessLogOptions::stdout().may_be_file());
}

/// Named pipes, with readers that stop reading or disconnect.
#[cfg(unix)]
mod pipes {
    use super::super::queue::WriterSignal;
    use super::super::{AccessLogOptions, Sink};
    use std::fs::{self, File, OpenOptions};
    use std::io::Read;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::{Duration, Instant};

    /// A timeout that only a hang exceeds.
    const TIMEOUT: Duration = Duration::from_secs(10);

    fn pipe() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pipe");
        let status = Command::new("mkfifo").arg(&path).status().expect("`mkfifo` is installed");
        assert!(status.success());
        (directory, path)
    }

    fn reader(path: &Path) -> File {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(nix::libc::O_NONBLOCK).open(path).expect("the pipe")
    }

    #[test]
    fn opening_a_pipe_without_a_reader_fails_without_blocking() {
        let (_directory, path) = pipe();
        let (sender, receiver) = mpsc::channel();
        let thread_path = path.clone();
        thread::spawn(move || sender.send(Sink::file(thread_path).map(drop)));
        let opened = receiver.recv_timeout(TIMEOUT).expect("opening does not block");
        let error = opened.expect_err("the pipe has no reader").to_string();
        assert!(error.contains("no process reads this pipe"), "{error}");
        let _reader = reader(&path);
        Sink::file(path).expect("the pipe has a reader");
    }

    /// Starts a log whose output is not read, with more lines than the pipe has room for.
    fn start_blocked(
        log: AccessLogOptions,
        lines: &[u8],
        mut reader: &File,
    ) -> crate::access_log::StartedAccessLog {
        let started_log = log.start(1).expect("the pipe has a reader");
        for _ in 0..200 {
            started_log.logs[0].sink.write_line(lines);
        }
        // Wait until the thread has written some of them and is blocked.
        let start = Instant::now();
        while reader.read(&mut [0]).is_err() {
            assert!(start.elapsed() < TIMEOUT, "nothing is written");
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(50));
        started_log
    }

    /// Waits for the last line of a file, checks that all lines are complete, and counts them.
    fn count_complete_lines(path: &Path) -> usize {
        let start = Instant::now();
        let text = loop {
            let text = fs::read_to_string(path).unwrap_or_default();
            if text.ends_with("last\n") {
                break text;
            }
            assert!(start.elapsed() < TIMEOUT, "got {} bytes", text.len());
            thread::sleep(Duration::from_millis(1));
        };
        assert!(text.lines().all(|line| line == "last" || line.len() == 999), "incomplete line");
        text.lines().count()
    }

    #[test]
    fn reopening_the_log_unblocks_the_writer_from_a_full_pipe() {
        let (_directory, path) = pipe();
        let reader = reader(&path);
        let line = [&[b'x'; 999][..], b"\n"].concat();
        let started_log = start_blocked(AccessLogOptions::file(&path), &line, &reader);
        fs::remove_file(&path).expect("the pipe exists");
        started_log.control.as_ref().expect("a file").reopen();
        started_log.logs[0].sink.write_line(b"last\n");
        assert!(count_complete_lines(&path) > 100 && started_log.flush.metrics.dropped() == 0);
        drop(reader);
    }

    #[test]
    fn switching_the_output_unblocks_a_full_stdout() {
        let (pipe_reader, pipe) = std::io::pipe().expect("a pipe");
        let (peer, socket) = std::os::unix::net::UnixStream::pair().expect("sockets");
        for output in [OwnedFd::from(pipe), OwnedFd::from(socket)] {
            let directory = tempfile::tempdir().expect("a directory");
            let next_path = directory.path().join("next");
            let signal = Arc::new(WriterSignal::default());
            let shared = output.try_clone().expect("a duplicate");
            let mut sink = Sink::stdout_from_fd(output).expect("an open descriptor");
            let line = [&[b'x'; 999][..], b"\n"].concat();
            let switch_signal = Arc::clone(&signal);
            let switch_path = next_path.clone();
            let switcher = thread::spawn(move || {
                thread::sleep(Duration::from_millis(50));
                switch_signal.switch(Sink::file(switch_path).expect("a new file"));
            });
            let (written, result) = sink.write(&line.repeat(2000), || signal.wants_other_sink());
            let error = result.expect_err("no room for 2 MB");
            assert_eq!((error.kind(), written % 1000), (std::io::ErrorKind::WouldBlock, 0));
            assert!(written > 0 && next_path.exists());
            switcher.join().expect("no panic");
            // The flags of the shared descriptor are unchanged.
            if let Ok(text) =
                fs::read_to_string(format!("/proc/self/fdinfo/{}", shared.as_raw_fd()))
            {
                let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
                let flags = i32::from_str_radix(flags.expect("a flags line").trim(), 8);
                assert_eq!(flags.expect("a number") & nix::libc::O_NONBLOCK, 0);
            }
        }
        drop((pipe_reader, peer));
    }

    #[test]
    fn switching_the_output_unblocks_a_full_pipe() {
        let (directory, path) = pipe();
        let reader = reader(&path);
        let line = [&[b'x'; 999][..], b"\n"].concat();
        let started_log = start_blocked(AccessLogOptions::file(&path), &line, &reader);
        let next_path = directory.path().join("next");
        let control = started_log.control.as_ref().expect("a file");
        control.0.switch(Sink::file(next_path.clone()).expect("a new file"));
        started_log.logs[0].sink.write_line(b"last\n");
        assert!(count_complete_lines(&next_path) > 100 && started_log.flush.metrics.dropped() == 0);
    }
}
