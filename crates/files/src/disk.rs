//! File reads: immediately if the data is in the page cache, otherwise on threads that may block.

use std::fs::File;
use std::io;

/// The result of a read attempt that does not wait for the disk.
#[derive(Debug)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux reports it"))]
pub(crate) enum TryRead<T> {
    Done(io::Result<T>),
    /// Reading would wait for the disk.
    WouldBlock,
    /// The system or the file system cannot tell.
    Unknown,
}

/// The distance between probes for cached data. The kernel loads and evicts neighboring pages at
/// about the same time, and each probe is a system call.
const RESIDENCY_SAMPLE_BYTES: u64 = 512 * 1024;

/// Whether these bytes are in the page cache, judging by samples. A file that ends earlier is an
/// error.
pub(crate) fn check_resident(file: &File, offset: u64, length: u64) -> TryRead<()> {
    let last = offset + length.saturating_sub(1);
    let mut probe = offset;
    loop {
        match try_read(file, &mut [0], probe) {
            TryRead::Done(Ok(0)) => return TryRead::Done(Err(io::ErrorKind::UnexpectedEof.into())),
            TryRead::Done(Ok(_)) if probe == last => return TryRead::Done(Ok(())),
            TryRead::Done(Ok(_)) => probe = last.min(probe + RESIDENCY_SAMPLE_BYTES),
            TryRead::Done(Err(error)) => return TryRead::Done(Err(error)),
            TryRead::WouldBlock => return TryRead::WouldBlock,
            TryRead::Unknown => return TryRead::Unknown,
        }
    }
}

/// Reads from the page cache only. Returns 0 bytes at the end of the file.
#[cfg(target_os = "linux")]
pub(crate) fn try_read(file: &File, buffer: &mut [u8], offset: u64) -> TryRead<usize> {
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    let mut buffers = [io::IoSliceMut::new(buffer)];
    loop {
        return match preadv2(file, &mut buffers, offset, ReadWriteFlags::NOWAIT) {
            Ok(count) => TryRead::Done(Ok(count)),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => TryRead::WouldBlock,
            // Some file systems do not support the flag, old kernels lack the call, and some
            // seccomp filters forbid it.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::INVAL) => TryRead::Unknown,
            Err(error) => TryRead::Done(Err(error.into())),
        };
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn try_read(_: &File, _: &mut [u8], _: u64) -> TryRead<usize> {
    TryRead::Unknown
}

/// Loads these bytes into the page cache, and starts to read ahead. May block.
pub(crate) fn prefetch(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let mut done = 0;
    while done < length {
        let wanted = usize::try_from(length - done).unwrap_or(usize::MAX).min(buffer.len());
        match read_at(file, offset + done, &mut buffer[..wanted]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    readahead(file, offset + length, length);
    Ok(())
}

/// Reads `bytes` bytes, or fewer at the end of the file. May block.
pub(crate) fn read(file: &File, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; bytes];
    let mut filled = 0;
    while filled < bytes {
        match read_at(file, offset + filled as u64, &mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer.truncate(filled);
    readahead(file, offset + filled as u64, filled as u64);
    Ok(buffer)
}

/// Advises the kernel to load these bytes, without waiting for them.
fn readahead(file: &File, offset: u64, length: u64) {
    #[cfg(target_os = "linux")]
    if let Some(length) = std::num::NonZero::new(length) {
        // This is only advice, so errors do not matter.
        let _ = rustix::fs::fadvise(file, offset, Some(length), rustix::fs::Advice::WillNeed);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, offset, length);
}

#[cfg(unix)]
fn read_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, offset)
}

#[cfg(windows)]
fn read_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, offset)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn written_bytes_are_resident_and_bytes_past_the_end_are_an_error() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("file");
        fs::write(&path, vec![7; 600_000]).expect("the disk has space");
        let file = File::open(&path).expect("the file exists");
        assert!(matches!(
            check_resident(&file, 1000, 599_000),
            TryRead::Done(Ok(())) | TryRead::Unknown
        ));
        for (offset, length) in [(0, 600_001), (600_000, 1)] {
            assert!(matches!(
                check_resident(&file, offset, length),
                TryRead::Done(Err(_)) | TryRead::Unknown
            ));
            assert!(prefetch(&file, offset, length).is_err());
        }
        prefetch(&file, 0, 600_000).expect("the file is long enough");
        assert_eq!(read(&file, 599_990, 100).expect("the file is readable"), [7; 10]);
    }
}
