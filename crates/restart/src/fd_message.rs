//! Messages with names, bytes and file descriptors, sent between processes over a Unix socket.
//!
//! A parcel is a header of three big-endian numbers (the lengths of its name and its bytes, and the
//! number of its descriptors), then its name, then its bytes. Descriptors are attached to the
//! header (`SCM_RIGHTS`); each further batch of them is attached to one extra byte. Receivers
//! ignore parcels with unknown names, so a process can send new kinds of parcels to an older one.

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
/// The number of descriptors attached to one send; the kernel accepts up to 253.
const FDS_PER_SEND: usize = 64;
/// The timeout for sending a parcel, and for receiving the rest of one after its header.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Upper limits on the size of a parcel, well above the size of real ones.
const NAME_BYTES_MAX: usize = 64 * 1024;
const BYTES_MAX: usize = 16 * 1024 * 1024;
const FDS_MAX: usize = 64 * 1024;

/// The names of the messages between the two processes, in the order in which they are sent.
pub(crate) mod handover_message {
    /// The original standard input: the successor's was replaced by the link between the processes.
    pub(crate) const INPUT: &str = "input";
    /// The sockets of a listener. The rest of the name is the listener's key.
    pub(crate) const LISTENER: &str = "listener ";
    // To pass anything else to successors, add a message here: older successors ignore names that
    // they do not know.
    /// All sockets were passed on.
    pub(crate) const END: &str = "end";
    /// The successor does not listen at the address with this key.
    pub(crate) const UNUSED: &str = "untaken";
    /// The successor is ready, but does not accept connections yet.
    pub(crate) const READY: &str = "ready";
    /// The successor cannot start; the bytes contain the reason.
    pub(crate) const FAILED: &str = "failed";
    /// Tells the successor to accept connections.
    pub(crate) const GO: &str = "go";
    /// A reload was requested from the predecessor when the successor may already have read its
    /// settings, so the successor must reload.
    pub(crate) const RELOAD: &str = "reload";
    /// The successor accepts connections.
    pub(crate) const SERVING: &str = "serving";
    /// The successor now owns the sockets, and is the service manager's main process.
    pub(crate) const RELEASED: &str = "yours";
}

/// A received parcel.
#[derive(Debug)]
pub(crate) struct FdMessage {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// Sends a parcel. There must be no other sender on `link`.
pub(crate) fn send(
    mut link: &UnixStream,
    name: &str,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    link.set_write_timeout(Some(MESSAGE_TIMEOUT))?;
    let mut header = [0; HEADER_BYTES];
    let lengths = [name.len(), bytes.len(), descriptors.len()];
    for (part, length) in header.chunks_exact_mut(4).zip(lengths) {
        let length = u32::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
        part.copy_from_slice(&length.to_be_bytes());
    }
    let mut batches = descriptors.chunks(FDS_PER_SEND);
    send_with(link, &header, batches.next().unwrap_or_default())?;
    for batch in batches {
        send_with(link, &[0], batch)?;
    }
    link.write_all(name.as_bytes())?;
    link.write_all(bytes)
}

/// Sends a few bytes with up to one batch of descriptors attached.
fn send_with(link: &UnixStream, bytes: &[u8], batch: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FDS_PER_SEND))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !batch.is_empty() {
        let has_room = beside.push(SendAncillaryMessage::ScmRights(batch));
        debug_assert!(has_room, "the space fits a batch");
    }
    let bytes = [IoSlice::new(bytes)];
    retry_on_intr(|| sendmsg(link, &bytes, &mut beside, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Receives the next parcel. Returns `None` if no parcel starts `within` that time.
///
/// # Errors
/// The other end is closed ([`io::ErrorKind::UnexpectedEof`]), or the bytes are not a valid parcel.
pub(crate) fn receive(mut link: &UnixStream, within: Duration) -> io::Result<Option<FdMessage>> {
    let mut header = [0; HEADER_BYTES];
    let mut descriptors = Vec::new();
    link.set_read_timeout(Some(within))?;
    match receive_with(link, &mut header, &mut descriptors) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        received => received?,
    }
    link.set_read_timeout(Some(MESSAGE_TIMEOUT))?;
    let number =
        |at| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let [name, bytes, count] = [0, 4, 8].map(|at| number(at) as usize);
    if name > NAME_BYTES_MAX || bytes > BYTES_MAX || count > FDS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too large"));
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
    Ok(Some(FdMessage { name, bytes: content, fds: descriptors }))
}

/// Receives all of `bytes`, which were sent in one piece, and the descriptors attached to them.
fn receive_with(
    link: &UnixStream,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FDS_PER_SEND))];
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
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the header is incomplete")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(1);

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().expect("free descriptors")
    }

    #[test]
    fn what_is_sent_arrives_in_order_with_any_number_of_descriptors() {
        for count in [0, 1, FDS_PER_SEND, FDS_PER_SEND + 1, 3 * FDS_PER_SEND] {
            let (here, there) = pair();
            let (told, heard) = pair();
            let all: Vec<_> = (0..count).map(|_| told.as_fd()).collect();
            send(&here, "first", b"bytes", &all).expect("the link is open");
            send(&here, "", b"", &[]).expect("the link is open");
            let first = receive(&there, LONG).expect("open link").expect("a parcel");
            assert_eq!((&*first.name, &*first.bytes), ("first", &b"bytes"[..]));
            assert_eq!(first.fds.len(), count);
            for descriptor in first.fds {
                let mut one = [0];
                (&UnixStream::from(descriptor)).write_all(b"x").expect("the other end is open");
                (&heard).read_exact(&mut one).expect("the byte arrives");
            }
            let last = receive(&there, LONG).expect("open link").expect("a parcel");
            assert_eq!((&*last.name, last.bytes.len(), last.fds.len()), ("", 0, 0));
            assert!(receive(&there, SHORT).expect("open link").is_none());
        }
    }

    #[test]
    fn an_end_and_what_is_no_parcel_are_errors() {
        let kind = |there| receive(&there, LONG).expect_err("an error").kind();
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
            (&here).write_all(bytes).expect("the buffer has space");
            drop(here);
            assert_eq!(kind(there), expected, "{bytes:?}");
        }
    }
}
