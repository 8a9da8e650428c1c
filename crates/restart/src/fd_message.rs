//! Messages with names, bytes and file descriptors, sent between processes over a Unix socket.
//!
//! A message is a header of three big-endian `u32` (the lengths of its name and its bytes, and the
//! number of its descriptors), then its name, then its bytes. Descriptors are attached to the
//! header (`SCM_RIGHTS`); each further batch of them is attached to one extra byte. Receivers
//! ignore messages with unknown names, so a newer process can send new kinds of messages to an
//! older one.

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
/// The timeout for sending a message, and for receiving the rest of one after its header.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Upper limits on the size of a message, well above the size of real ones.
const NAME_BYTES_MAX: usize = 64 * 1024;
const BYTES_MAX: usize = 16 * 1024 * 1024;
const FDS_MAX: usize = 64 * 1024;

/// The names of the messages between the two processes, in the order in which they are sent.
pub(crate) mod handover_message {
    /// The original standard input: the successor's was replaced by the link between the processes.
    pub(crate) const INPUT: &str = "input";
    /// The sockets of a listener. The rest of the name is the listener's key.
    pub(crate) const LISTENER: &str = "listener ";
    // To pass something else to successors, add a message before `END`: older successors ignore
    // unknown names.
    /// All sockets were passed on.
    pub(crate) const END: &str = "end";
    /// The successor does not use the listener whose key is in the bytes.
    pub(crate) const UNUSED: &str = "untaken";
    /// The successor is ready, but does not accept connections yet.
    pub(crate) const READY: &str = "ready";
    /// The successor cannot take over; the bytes contain the reason.
    pub(crate) const FAILED: &str = "failed";
    /// Lets the successor accept connections.
    pub(crate) const GO: &str = "go";
    /// The successor accepts connections.
    pub(crate) const SERVING: &str = "serving";
    /// A reload was requested from the predecessor when the successor could already have read its
    /// settings, so the successor must reload.
    pub(crate) const RELOAD: &str = "reload";
    /// The successor now owns the sockets, and is the service manager's main process.
    pub(crate) const RELEASED: &str = "yours";
}

/// A received message.
#[derive(Debug)]
pub(crate) struct FdMessage {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// Sends a message. There must be no other sender on `link`.
pub(crate) fn send(
    mut link: &UnixStream,
    name: &str,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    link.set_write_timeout(Some(MESSAGE_TIMEOUT))?;
    let mut header = [0; HEADER_BYTES];
    let lengths = [name.len(), bytes.len(), fds.len()];
    for (field, length) in header.chunks_exact_mut(4).zip(lengths) {
        let length = u32::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
        field.copy_from_slice(&length.to_be_bytes());
    }
    let mut batches = fds.chunks(FDS_PER_SEND);
    send_with(link, &header, batches.next().unwrap_or_default())?;
    for batch in batches {
        send_with(link, &[0], batch)?;
    }
    link.write_all(name.as_bytes())?;
    link.write_all(bytes)
}

/// Sends a few bytes with up to one batch of descriptors attached.
fn send_with(link: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut control_space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FDS_PER_SEND))];
    let mut control = SendAncillaryBuffer::new(&mut control_space);
    if !fds.is_empty() {
        let has_room = control.push(SendAncillaryMessage::ScmRights(fds));
        debug_assert!(has_room, "the space fits `FDS_PER_SEND` descriptors");
    }
    let iov = [IoSlice::new(bytes)];
    retry_on_intr(|| sendmsg(link, &iov, &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Receives the next message. Returns `None` if no message starts within `timeout`.
///
/// # Errors
/// The other end is closed ([`io::ErrorKind::UnexpectedEof`]), or the message is invalid.
pub(crate) fn receive(mut link: &UnixStream, timeout: Duration) -> io::Result<Option<FdMessage>> {
    let mut header = [0; HEADER_BYTES];
    let mut fds = Vec::new();
    link.set_read_timeout(Some(timeout))?;
    match receive_with(link, &mut header, &mut fds) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        received => received?,
    }
    link.set_read_timeout(Some(MESSAGE_TIMEOUT))?;
    let read_u32 = |offset| {
        u32::from_be_bytes([
            header[offset],
            header[offset + 1],
            header[offset + 2],
            header[offset + 3],
        ])
    };
    let [name_len, bytes_len, fd_count] = [0, 4, 8].map(|offset| read_u32(offset) as usize);
    if name_len > NAME_BYTES_MAX || bytes_len > BYTES_MAX || fd_count > FDS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too large"));
    }
    while fds.len() < fd_count {
        let fd_count_before = fds.len();
        receive_with(link, &mut [0], &mut fds)?;
        if fds.len() == fd_count_before {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "descriptors are missing"));
        }
    }
    let mut name = vec![0; name_len];
    link.read_exact(&mut name)?;
    let name = String::from_utf8(name).map_err(|_| io::ErrorKind::InvalidData)?;
    let mut bytes = vec![0; bytes_len];
    link.read_exact(&mut bytes)?;
    Ok(Some(FdMessage { name, bytes, fds }))
}

/// Receives all of `bytes`, which were sent in one call, and the descriptors attached to them.
fn receive_with(link: &UnixStream, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<()> {
    let mut control_space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FDS_PER_SEND))];
    let mut control = RecvAncillaryBuffer::new(&mut control_space);
    let expected = bytes.len();
    let mut iov = [IoSliceMut::new(bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = retry_on_intr(|| recvmsg(link, &mut iov, &mut control, flags))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received_fds) = message {
            fds.extend(received_fds);
        }
    }
    match received.bytes {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        received_bytes if received_bytes == expected => Ok(()),
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
        UnixStream::pair().expect("there are free descriptors")
    }

    #[test]
    fn messages_arrive_in_order_with_any_number_of_descriptors() {
        for count in [0, 1, FDS_PER_SEND, FDS_PER_SEND + 1, 3 * FDS_PER_SEND] {
            let (sender, receiver) = pair();
            let (pipe_sender, pipe_receiver) = pair();
            let fds: Vec<_> = (0..count).map(|_| pipe_sender.as_fd()).collect();
            send(&sender, "first", b"bytes", &fds).expect("the link is open");
            send(&sender, "", b"", &[]).expect("the link is open");
            let first =
                receive(&receiver, LONG).expect("the link is open").expect("a message was sent");
            assert_eq!((&*first.name, &*first.bytes), ("first", &b"bytes"[..]));
            assert_eq!(first.fds.len(), count);
            for fd in first.fds {
                let mut byte = [0];
                (&UnixStream::from(fd)).write_all(b"x").expect("the other end is open");
                (&pipe_receiver).read_exact(&mut byte).expect("the byte arrives");
            }
            let last =
                receive(&receiver, LONG).expect("the link is open").expect("a message was sent");
            assert_eq!((&*last.name, last.bytes.len(), last.fds.len()), ("", 0, 0));
            assert!(receive(&receiver, SHORT).expect("the link is open").is_none());
        }
    }

    #[test]
    fn a_closed_link_and_invalid_messages_are_errors() {
        let kind = |receiver| receive(&receiver, LONG).expect_err("the message is invalid").kind();
        let (sender, receiver) = pair();
        drop(sender);
        assert_eq!(kind(receiver), io::ErrorKind::UnexpectedEof);
        for (bytes, expected) in [
            (&[0xff; 12][..], io::ErrorKind::InvalidData),
            (&[0; 5], io::ErrorKind::InvalidData),
            (&[0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, b'a'], io::ErrorKind::UnexpectedEof),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0], io::ErrorKind::InvalidData),
        ] {
            let (sender, receiver) = pair();
            (&sender).write_all(bytes).expect("the buffer has space");
            drop(sender);
            assert_eq!(kind(receiver), expected, "{bytes:?}");
        }
    }
}
