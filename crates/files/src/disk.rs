//! Reading from files: what the system has in its memory at once, and the rest where one may block.

use std::fs::File;
use std::io;

/// What came of a look that does not wait for a disk.
#[derive(Debug)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux says"))]
pub(crate) enum Now<T> {
    Done(io::Result<T>),
    /// Somebody would have to wait for the disk.
    WouldBlock,
    /// This system, or the file's file system, does not say.
    Unknown,
}

/// How far apart bytes are that stand for all between them. The system reads and forgets what is near together at about
/// the same time, and each look is a call.
const STEP_BYTES: u64 = 512 * 1024;

/// Does the system have these bytes in its memory, as far as some of them tell? A file that ends before them is an
/// error.
pub(crate) fn has(file: &File, at: u64, length: u64) -> Now<()> {
    let last = at + length.saturating_sub(1);
    let mut place = at;
    loop {
        match read_now(file, &mut [0], place) {
            Now::Done(Ok(0)) => return Now::Done(Err(io::ErrorKind::UnexpectedEof.into())),
            Now::Done(Ok(_)) if place == last => return Now::Done(Ok(())),
            Now::Done(Ok(_)) => place = last.min(place + STEP_BYTES),
            Now::Done(Err(error)) => return Now::Done(Err(error)),
            Now::WouldBlock => return Now::WouldBlock,
            Now::Unknown => return Now::Unknown,
        }
    }
}

/// Reads what the system has in its memory, and nothing at the file's end.
#[cfg(target_os = "linux")]
pub(crate) fn read_now(file: &File, buffer: &mut [u8], at: u64) -> Now<usize> {
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    let mut buffers = [io::IoSliceMut::new(buffer)];
    loop {
        return match preadv2(file, &mut buffers, at, ReadWriteFlags::NOWAIT) {
            Ok(count) => Now::Done(Ok(count)),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Now::WouldBlock,
            // Some file systems do not know the flag, old kernels not the call, and filters forbid it.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::INVAL) => Now::Unknown,
            Err(error) => Now::Done(Err(error.into())),
        };
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn read_now(_: &File, _: &mut [u8], _: u64) -> Now<usize> {
    Now::Unknown
}

/// Has the system read these bytes into its memory, and begin with those after them. It may block.
pub(crate) fn warm(file: &File, at: u64, length: u64) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let mut done = 0;
    while done < length {
        let wanted = usize::try_from(length - done).unwrap_or(usize::MAX).min(buffer.len());
        match read_at(file, at + done, &mut buffer[..wanted]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    read_ahead(file, at + length, length);
    Ok(())
}

/// Reads as much as is asked for, or until the file's end. It may block.
pub(crate) fn read(file: &File, at: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; bytes];
    let mut filled = 0;
    while filled < bytes {
        match read_at(file, at + filled as u64, &mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer.truncate(filled);
    read_ahead(file, at + filled as u64, filled as u64);
    Ok(buffer)
}

/// The system may begin with these bytes, of which nobody waits for any.
fn read_ahead(file: &File, at: u64, length: u64) {
    #[cfg(target_os = "linux")]
    if let Some(length) = std::num::NonZero::new(length) {
        // It is advice.
        let _ = rustix::fs::fadvise(file, at, Some(length), rustix::fs::Advice::WillNeed);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, at, length);
}

#[cfg(unix)]
fn read_at(file: &File, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, at)
}

#[cfg(windows)]
fn read_at(file: &File, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, at)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_was_just_written_is_there_and_what_is_beyond_the_end_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, vec![7; 600_000]).expect("there is room");
        let file = File::open(&path).expect("it is there");
        assert!(matches!(has(&file, 1000, 599_000), Now::Done(Ok(())) | Now::Unknown));
        for (at, length) in [(0, 600_001), (600_000, 1)] {
            assert!(matches!(has(&file, at, length), Now::Done(Err(_)) | Now::Unknown));
            assert!(warm(&file, at, length).is_err());
        }
        warm(&file, 0, 600_000).expect("all of it is there");
        assert_eq!(read(&file, 599_990, 100).expect("it can be read"), [7; 10]);
    }
}
