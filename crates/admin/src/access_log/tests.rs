use super::queue::{LineQueue, WriterSignal};
use super::sink::Sink;
use super::{AccessLogMetrics, AccessLogOptions};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// A writer that accepts a number of bytes and then fails, until [`mend`](Self::mend) is called.
#[derive(Clone, Default)]
struct Limited(Arc<Mutex<(Vec<u8>, usize)>>);

impl Limited {
    fn new(room: usize) -> Self {
        Self(Arc::new(Mutex::new((Vec::new(), room))))
    }

    fn mend(&self) {
        self.0.lock().unwrap().1 = usize::MAX;
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().0.clone()).unwrap()
    }
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut inner = self.0.lock().unwrap();
        let (taken, room) = &mut *inner;
        let count = bytes.len().min(*room);
        if count == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        taken.extend_from_slice(&bytes[..count]);
        *room -= count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_line_that_is_cut_short_does_not_become_one_with_the_next() {
    for (room, written, then) in [
        (0, 0, "one\ntwo\n"),
        (2, 0, "on\none\ntwo\n"),
        (4, 4, "one\none\ntwo\n"),
        (6, 4, "one\ntw\none\ntwo\n"),
    ] {
        let stream = Limited::new(room);
        let mut sink = Sink::from_writer(Box::new(stream.clone()));
        let (whole, outcome) = sink.write(b"one\ntwo\n", || false);
        assert_eq!((whole, outcome.is_err()), (written, true), "{room}");
        // While the writer is still full, nothing is written.
        assert_eq!(sink.write(b"lost\n", || false).0, 0);
        stream.mend();
        assert_eq!(sink.write(b"one\ntwo\n", || false).0, 8);
        assert_eq!(stream.text(), then, "{room}");
    }
}

#[test]
fn a_queue_has_room_for_so_much_and_counts_the_rest() {
    let (bell, figures) = (Arc::new(WriterSignal::default()), Arc::new(AccessLogMetrics::new(1)));
    let queue = Arc::new(LineQueue::new(0, 10, &bell, &figures));
    for line in ["1234\n", "5678\n", "9\n", "\n"] {
        queue.push(line.as_bytes());
    }
    assert_eq!((figures.pending(), figures.dropped()), (2, 2));
    assert_eq!(queue.take(0, Vec::new()), b"1234\n5678\n");
    assert_eq!(queue.take(1, Vec::new()), b"");
    queue.push(b"9\n");
    assert_eq!((figures.pending(), figures.dropped()), (3, 2));
}

#[test]
fn whoever_finds_nothing_said_rings_the_bell() {
    let (bell, figures) = (Arc::new(WriterSignal::default()), Arc::new(AccessLogMetrics::new(1)));
    let queue = Arc::new(LineQueue::new(0, 100, &bell, &figures));
    assert!(!bell.is_set());
    queue.push(b"1\n");
    assert!(bell.is_set() && !bell.is_urgent());
    bell.clear();
    assert!(!bell.is_set());
    queue.push(&[b'x'; 60]);
    assert!(bell.is_set() && bell.is_urgent(), "the queue is half full");
}

#[test]
fn a_log_says_where_it_goes() {
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
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::{Duration, Instant};

    /// A timeout that only a hang exceeds.
    const PATIENCE: Duration = Duration::from_secs(10);

    fn pipe() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("pipe");
        let made = Command::new("mkfifo").arg(&path).status().expect("`mkfifo` is installed");
        assert!(made.success());
        (folder, path)
    }

    fn reader(path: &Path) -> File {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(nix::libc::O_NONBLOCK).open(path).expect("the pipe")
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_an_error_and_not_waited_for() {
        let (_folder, path) = pipe();
        let (sender, opened) = mpsc::channel();
        let of_thread = path.clone();
        thread::spawn(move || sender.send(Sink::file(of_thread).map(drop)));
        let opened = opened.recv_timeout(PATIENCE).expect("opening does not block");
        let error = opened.expect_err("the pipe has no reader").to_string();
        assert!(error.contains("no process reads this pipe"), "{error}");
        let _reader = reader(&path);
        Sink::file(path).expect("the pipe has a reader");
    }

    /// Starts a log whose output is not read, with more lines than the pipe has room for.
    fn stuck(log: AccessLogOptions, lines: &[u8]) -> crate::access_log::StartedAccessLog {
        let logging = log.start(1).expect("the pipe has a reader");
        for _ in 0..200 {
            logging.logs[0].sink.write_line(lines);
        }
        // Wait until the thread has written some of them and is blocked.
        let begun = Instant::now();
        while logging.flush.metrics.pending() == 200 && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(50));
        logging
    }

    /// Waits for the last line of a file, checks that all lines are complete, and counts them.
    fn comes_whole(path: &Path) -> usize {
        let begun = Instant::now();
        let text = loop {
            let text = fs::read_to_string(path).unwrap_or_default();
            if text.ends_with("last\n") {
                break text;
            }
            assert!(begun.elapsed() < PATIENCE, "got {} bytes", text.len());
            thread::sleep(Duration::from_millis(1));
        };
        assert!(text.lines().all(|one| one == "last" || one.len() == 999), "incomplete line");
        text.lines().count()
    }

    #[test]
    fn who_opens_a_log_again_frees_it_of_a_pipe_that_nobody_empties() {
        let (_folder, path) = pipe();
        let reader = reader(&path);
        let logging = stuck(AccessLogOptions::file(&path), &[&[b'x'; 999][..], b"\n"].concat());
        fs::remove_file(&path).expect("the pipe exists");
        logging.control.as_ref().expect("a file").reopen();
        logging.logs[0].sink.write_line(b"last\n");
        assert!(comes_whole(&path) > 100 && logging.flush.metrics.dropped() == 0);
        drop(reader);
    }

    #[test]
    fn lines_leave_an_output_that_nobody_takes_for_the_next_place() {
        let (pipe_reader, pipe) = std::io::pipe().expect("a pipe");
        let (peer, socket) = std::os::unix::net::UnixStream::pair().expect("sockets");
        for output in [OwnedFd::from(pipe), OwnedFd::from(socket)] {
            let folder = tempfile::tempdir().expect("a directory");
            let next = folder.path().join("next");
            let bell = Arc::new(WriterSignal::default());
            let shared = output.try_clone().expect("a duplicate");
            let mut sink = Sink::stdout_from_fd(output).expect("an open descriptor");
            let line = [&[b'x'; 999][..], b"\n"].concat();
            let switch = Arc::clone(&bell);
            let place = next.clone();
            let switcher = thread::spawn(move || {
                thread::sleep(Duration::from_millis(50));
                switch.switch(Sink::file(place).expect("a new file"));
            });
            let (written, outcome) = sink.write(&line.repeat(2000), || bell.wants_other_sink());
            let error = outcome.expect_err("no room for 2 MB");
            assert_eq!((error.kind(), written % 1000), (std::io::ErrorKind::WouldBlock, 0));
            assert!(written > 0 && next.exists());
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
    fn lines_leave_a_pipe_that_nobody_empties_for_the_next_place() {
        let (folder, path) = pipe();
        let _reader = reader(&path);
        let logging = stuck(AccessLogOptions::file(&path), &[&[b'x'; 999][..], b"\n"].concat());
        let next = folder.path().join("next");
        let place = logging.control.as_ref().expect("a file");
        place.0.switch(Sink::file(next.clone()).expect("a new file"));
        logging.logs[0].sink.write_line(b"last\n");
        assert!(comes_whole(&next) > 100 && logging.flush.metrics.dropped() == 0);
    }
}
