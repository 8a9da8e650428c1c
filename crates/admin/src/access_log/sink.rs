//! The output of the access log: a file, standard output, or another writer.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
#[cfg(unix)]
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

/// How long to wait before the next attempt to write to a full non-blocking descriptor.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The output of the access log.
pub struct Sink {
    kind: SinkKind,
    /// Whether the output ends with a line that was written only in part.
    is_last_line_partial: bool,
}

enum SinkKind {
    File {
        path: PathBuf,
        file: File,
    },
    #[cfg(unix)]
    Stdout(Stdout),
    Stream {
        name: &'static str,
        stream: Box<dyn Write + Send>,
    },
}

impl Sink {
    pub(super) fn file(path: PathBuf) -> io::Result<Self> {
        let file = open(&path)?;
        Ok(Self { kind: SinkKind::File { path, file }, is_last_line_partial: false })
    }

    /// Opens standard output, without the lock and the buffer of `std::io::Stdout`.
    pub(super) fn stdout() -> io::Result<Self> {
        #[cfg(unix)]
        let sink = Self::stdout_from_fd(io::stdout().as_fd().try_clone_to_owned()?);
        #[cfg(not(unix))]
        let sink = Ok(Self::from_writer(Box::new(io::stdout())));
        sink
    }

    /// Like [`stdout`](Self::stdout), with a duplicate of the descriptor.
    #[cfg(unix)]
    pub(super) fn stdout_from_fd(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { kind: SinkKind::Stdout(Stdout::new(fd)?), is_last_line_partial: false })
    }

    pub(super) fn from_writer(stream: Box<dyn Write + Send>) -> Self {
        Self { kind: SinkKind::Stream { name: "a writer", stream }, is_last_line_partial: false }
    }

    /// Reopens the output if it is a file, and returns whether it is. On error, the old file stays
    /// open.
    pub(super) fn reopen(&mut self) -> io::Result<bool> {
        let SinkKind::File { path, file } = &mut self.kind else { return Ok(false) };
        *file = open(path)?;
        self.is_last_line_partial = false;
        Ok(true)
    }

    /// Writes lines. Returns how many bytes were written, up to the end of the last complete line:
    /// a line that was written in part counts as not written. While the output is full, waits and
    /// retries. Fails with `WouldBlock` if `gives_up` returns true meanwhile.
    pub(super) fn write(
        &mut self,
        lines: &[u8],
        gives_up: impl Fn() -> bool,
    ) -> (usize, io::Result<()>) {
        if self.is_last_line_partial {
            // The next line must not be appended to an incomplete one.
            if let (0, result) = self.write_bytes(b"\n", &gives_up) {
                return (0, result);
            }
            self.is_last_line_partial = false;
        }
        let (written, result) = self.write_bytes(lines, &gives_up);
        let last_newline = lines[..written].iter().rposition(|byte| *byte == b'\n');
        let complete_len = last_newline.map_or(0, |index| index + 1);
        self.is_last_line_partial =
            written > complete_len && !self.truncate(written - complete_len);
        (complete_len, result.and_then(|()| self.flush()))
    }

    /// Writes all bytes, unless an error occurs. Returns how many were written.
    fn write_bytes(
        &mut self,
        bytes: &[u8],
        gives_up: &impl Fn() -> bool,
    ) -> (usize, io::Result<()>) {
        let mut written = 0;
        while written < bytes.len() {
            let stream: &mut dyn Write = match &mut self.kind {
                SinkKind::File { file, .. } => file,
                #[cfg(unix)]
                SinkKind::Stdout(stdout) => stdout,
                SinkKind::Stream { stream, .. } => stream,
            };
            match stream.write(&bytes[written..]) {
                Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A pipe is full, or another process has made a shared descriptor non-blocking.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !gives_up() => {
                    self.wait_writable();
                }
                Err(error) => return (written, Err(error)),
            }
        }
        (written, Ok(()))
    }

    /// Waits for [`RETRY_INTERVAL`], or until the system reports that the output is writable.
    fn wait_writable(&self) {
        #[cfg(unix)]
        {
            use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
            let fd = match &self.kind {
                SinkKind::File { file, .. } => Some(file.as_fd()),
                SinkKind::Stdout(stdout) => Some(stdout.as_fd()),
                SinkKind::Stream { .. } => None,
            };
            if let Some(fd) = fd {
                let timeout = PollTimeout::try_from(RETRY_INTERVAL).expect("10 ms is in range");
                if poll(&mut [PollFd::new(fd, PollFlags::POLLOUT)], timeout).is_ok() {
                    return;
                }
            }
        }
        thread::sleep(RETRY_INTERVAL);
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.kind {
            SinkKind::File { .. } => Ok(()),
            #[cfg(unix)]
            SinkKind::Stdout(_) => Ok(()),
            SinkKind::Stream { stream, .. } => stream.flush(),
        }
    }

    /// Removes the last `bytes`, which are the beginning of a line, and returns whether that
    /// succeeded. It can succeed only for a file to which no other process, such as a successor,
    /// has written since.
    fn truncate(&mut self, bytes: usize) -> bool {
        let SinkKind::File { file, .. } = &mut self.kind else { return false };
        let (Ok(metadata), Ok(end)) = (file.metadata(), file.stream_position()) else {
            return false;
        };
        let is_at_end = metadata.is_file() && metadata.len() == end;
        is_at_end && file.set_len(end.saturating_sub(bytes as u64)).is_ok()
    }
}

/// Standard output. Writes do not block where possible, so that the thread can switch to another
/// output while a pipe is full. The descriptor's flags are not changed, because the rest of the
/// program shares the descriptor.
#[cfg(unix)]
enum Stdout {
    /// A file, a terminal, or a pipe. A pipe is opened a second time if possible.
    File(File),
    /// A socket, usually of a service manager.
    Socket(socket2::Socket),
}

#[cfg(unix)]
impl Stdout {
    fn new(fd: OwnedFd) -> io::Result<Self> {
        use nix::libc::O_NONBLOCK;
        use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
        let file = File::from(fd);
        let kind = file.metadata()?.file_type();
        if kind.is_socket() {
            return Ok(Self::Socket(socket2::Socket::from(OwnedFd::from(file))));
        }
        // A second file description of the same pipe has its own flags. Opening it requires /proc
        // and write permission on the pipe. Otherwise the existing descriptor is used, and writes
        // may block.
        let reopen = || {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(path)
        };
        let reopened = if kind.is_fifo() { reopen().ok() } else { None };
        Ok(Self::File(reopened.unwrap_or(file)))
    }
}

#[cfg(unix)]
impl AsFd for Stdout {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::File(file) => file.as_fd(),
            Self::Socket(socket) => socket.as_fd(),
        }
    }
}

#[cfg(unix)]
impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        use nix::libc::{MSG_DONTWAIT, MSG_NOSIGNAL};
        match self {
            Self::File(file) => file.write(bytes),
            Self::Socket(socket) => socket.send_with_flags(bytes, MSG_DONTWAIT | MSG_NOSIGNAL),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens a log file for appending, and creates it if it does not exist.
fn open(path: &PathBuf) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    {
        use nix::libc::{ENXIO, O_NONBLOCK};
        use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
        // Without O_NONBLOCK, opening a pipe that has no reader, and writing to a full pipe, would
        // block.
        let is_pipe =
            || std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo());
        options.custom_flags(O_NONBLOCK).open(path).map_err(|error| {
            if error.raw_os_error() == Some(ENXIO) && is_pipe() {
                let text = "no process reads this pipe: start its reader first";
                return io::Error::new(io::ErrorKind::NotConnected, text);
            }
            error
        })
    }
    #[cfg(not(unix))]
    options.open(path)
}

impl fmt::Display for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            SinkKind::File { path, .. } => path.display().fmt(f),
            #[cfg(unix)]
            SinkKind::Stdout(_) => f.write_str("stdout"),
            SinkKind::Stream { name, .. } => f.write_str(name),
        }
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
