//! Named bytes and descriptors, on their way from one process to another over a Unix socket.
//!
//! A parcel is a header of three big-endian numbers (the length of its name, of its bytes, and its
//! count of descriptors), then its name, then its bytes. Descriptors travel beside the header
//! (`SCM_RIGHTS`), and beside a byte for each further batch of them. A name that the receiver does not
//! know is no error, so that a process can hand things to one that is older.

use rustix::cmsg_space;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const HEADER_BYTES: usize = 12;
/// Descriptors that travel beside one send; the kernel takes up to 253.
const BATCH: usize = 64;
/// How long the rest of a parcel may take when its header has come, and how long one may take to leave.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a parcel may have, beyond what any has.
const NAME_BYTES_MAX: usize = 64 * 1024;
const BYTES_MAX: usize = 16 * 1024 * 1024;
const DESCRIPTORS_MAX: usize = 64 * 1024;

/// Names of what the two processes say to each other, in the order in which they say it.
pub(crate) mod step {
    /// The standard input of the process that hands over, which the link has taken the place of.
    pub(crate) const INPUT: &str = "input";
    /// A place to listen: the rest of the name is its key.
    pub(crate) const LISTENER: &str = "listener ";
    // Whatever else a successor is to have goes here: a parcel with a name of its own, which a successor
    // that does not know it passes over.
    /// Everything was handed over.
    pub(crate) const END: &str = "end";
    /// The successor does not listen where this key leads.
    pub(crate) const UNTAKEN: &str = "untaken";
    /// The successor is ready, and accepts nobody.
    pub(crate) const READY: &str = "ready";
    /// The successor cannot begin; the bytes say why.
    pub(crate) const FAILED: &str = "failed";
    /// Accept.
    pub(crate) const GO: &str = "go";
    /// Somebody asked the predecessor to read its settings again while the successor may have read them already.
    pub(crate) const RELOAD: &str = "reload";
    /// The successor accepts.
    pub(crate) const SERVING: &str = "serving";
    /// The sockets, and the name of being the service, are the successor's alone.
    pub(crate) const YOURS: &str = "yours";
}

/// What came.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Sends one parcel. Nobody else sends on `link`.
pub(crate) fn send(
    mut link: &UnixStream,
    name: &str,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    link.set_write_timeout(Some(PATIENCE))?;
    let mut header = [0; HEADER_BYTES];
    let lengths = [name.len(), bytes.len(), descriptors.len()];
    for (part, length) in header.chunks_exact_mut(4).zip(lengths) {
        let length = u32::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
        part.copy_from_slice(&length.to_be_bytes());
    }
    let mut batches = descriptors.chunks(BATCH);
    send_with(link, &header, batches.next().unwrap_or_default())?;
    for batch in batches {
        send_with(link, &[0], batch)?;
    }
    link.write_all(name.as_bytes())?;
    link.write_all(bytes)
}

/// Sends a few bytes with at most a batch of descriptors beside them.
fn send_with(link: &UnixStream, bytes: &[u8], batch: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(BATCH))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !batch.is_empty() {
        let has_room = beside.push(SendAncillaryMessage::ScmRights(batch));
        debug_assert!(has_room, "there is room for a batch");
    }
    let bytes = [IoSlice::new(bytes)];
    retry_on_intr(|| sendmsg(link, &bytes, &mut beside, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// The next parcel; `None` if none begins to come `within` that time.
///
/// # Errors
/// The other end is closed ([`io::ErrorKind::UnexpectedEof`]), or what came is no parcel.
pub(crate) fn receive(mut link: &UnixStream, within: Duration) -> io::Result<Option<Parcel>> {
    let mut header = [0; HEADER_BYTES];
    let mut descriptors = Vec::new();
    link.set_read_timeout(Some(within))?;
    match receive_with(link, &mut header, &mut descriptors) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        received => received?,
    }
    link.set_read_timeout(Some(PATIENCE))?;
    let number =
        |at| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let [name, bytes, count] = [0, 4, 8].map(|at| number(at) as usize);
    if name > NAME_BYTES_MAX || bytes > BYTES_MAX || count > DESCRIPTORS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no parcel is so large"));
    }
    while descriptors.len() < count {
        let before = descriptors.len();
        receive_with(link, &mut [0], &mut descriptors)?;
        if descriptors.len() == before {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "descriptors are missing"));
        }
    }
    let mut text = vec![0; name];
    link.read_exact(&mut text)?;
    let name = String::from_utf8(text).map_err(|_| io::ErrorKind::InvalidData)?;
    let mut content = vec![0; bytes];
    link.read_exact(&mut content)?;
    Ok(Some(Parcel { name, bytes: content, descriptors }))
}

/// Receives all of `bytes`, which were sent in one piece, with the descriptors beside them.
fn receive_with(
    link: &UnixStream,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(BATCH))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let length = bytes.len();
    let mut into = [IoSliceMut::new(bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = retry_on_intr(|| recvmsg(link, &mut into, &mut beside, flags))?;
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            descriptors.extend(came);
        }
    }
    match received.bytes {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        all if all == length => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "half a header came")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(1);

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().expect("there are descriptors")
    }

    #[test]
    fn what_is_sent_arrives_in_order_with_any_number_of_descriptors() {
        for count in [0, 1, BATCH, BATCH + 1, 3 * BATCH] {
            let (here, there) = pair();
            let (told, heard) = pair();
            let all: Vec<_> = (0..count).map(|_| told.as_fd()).collect();
            send(&here, "first", b"bytes", &all).expect("it is read");
            send(&here, "", b"", &[]).expect("it is read");
            let first = receive(&there, LONG).expect("it is open").expect("it came");
            assert_eq!((&*first.name, &*first.bytes), ("first", &b"bytes"[..]));
            assert_eq!(first.descriptors.len(), count);
            for descriptor in first.descriptors {
                let mut one = [0];
                (&UnixStream::from(descriptor)).write_all(b"x").expect("it is the same socket");
                (&heard).read_exact(&mut one).expect("it arrives");
            }
            let last = receive(&there, LONG).expect("it is open").expect("it came");
            assert_eq!((&*last.name, last.bytes.len(), last.descriptors.len()), ("", 0, 0));
            assert!(receive(&there, SHORT).expect("it is open").is_none());
        }
    }

    #[test]
    fn an_end_and_what_is_no_parcel_are_errors() {
        let kind = |there| receive(&there, LONG).expect_err("no parcel").kind();
        let (here, there) = pair();
        drop(here);
        assert_eq!(kind(there), io::ErrorKind::UnexpectedEof);
        for (bytes, expected) in [
            (&[0xff; 12][..], io::ErrorKind::InvalidData),
            (&[0; 5], io::ErrorKind::InvalidData),
            (&[0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, b'a'], io::ErrorKind::UnexpectedEof),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0], io::ErrorKind::InvalidData),
        ] {
            let (here, there) = pair();
            (&here).write_all(bytes).expect("there is room");
            drop(here);
            assert_eq!(kind(there), expected, "{bytes:?}");
        }
    }
}
