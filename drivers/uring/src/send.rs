//! Sending: at once as far as the kernel takes it, the rest by one operation of the ring at a time.
//!
//! Most sends fit into the socket's buffer. A plain call has then done everything when it returns:
//! there is no completion to wait for, nobody to wake, and the memory is free again. Only what the
//! kernel does not take goes to the ring, which sends it when the peer has read. What is to be sent
//! meanwhile queues behind it.

use std::io;
use std::task::{Context, Poll};

use io_uring::opcode;
use socket2::SockRef;

use crate::operation::{Kind, Sending, Token};
use crate::stream::{Connection, End, Outgoing, UringStream, current, operation_ended};
use crate::task::Waiter;
use crate::worker::Shared;

impl UringStream {
    /// Gives `out` to the kernel, or queues it behind what is there already.
    pub(crate) fn begin_send(&self, out: &mut Vec<u8>) {
        if out.is_empty() {
            return;
        }
        let mut streams = self.shared.streams.borrow_mut();
        let connection = &mut streams[self.index as usize];
        let outgoing = &mut connection.outgoing;
        if outgoing.failed != 0 || outgoing.end != End::Open {
            outgoing.is_overrun |= outgoing.end != End::Open;
            out.clear();
        } else if outgoing.busy {
            let bytes = std::mem::replace(out, self.shared.spare.take());
            outgoing.later.get_or_insert_default().push_back(bytes);
        } else {
            self.shared.send_now(self.index, connection, out);
            let waiters = connection.take_waiters_of_failure();
            drop(streams);
            waiters.into_iter().for_each(|waiter| waiter.wake(&self.shared.tasks));
        }
    }

    pub(crate) fn poll_all_sent(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut streams = self.shared.streams.borrow_mut();
        let outgoing = &mut streams[self.index as usize].outgoing;
        if !outgoing.busy || outgoing.is_overrun {
            return Poll::Ready(outgoing.result());
        }
        let old = outgoing.waiter.register(context, &self.shared.tasks);
        drop(streams);
        drop(old);
        Poll::Pending
    }

    /// Ends our side now, or after what is being sent.
    pub(crate) fn begin_finish(&self) {
        let mut streams = self.shared.streams.borrow_mut();
        let connection = &mut streams[self.index as usize];
        if connection.outgoing.end == End::Open {
            connection.outgoing.end = End::Asked;
            if !connection.outgoing.busy {
                connection.shut_down_sending();
            }
        }
    }
}

impl Outgoing {
    fn result(&self) -> io::Result<()> {
        match self.failed {
            0 if self.is_overrun => Err(io::ErrorKind::BrokenPipe.into()),
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

impl Connection {
    /// Sends the end of our side. A direct call: the ring would hand it to another thread.
    fn shut_down_sending(&mut self) {
        if self.outgoing.failed != 0 {
            return;
        }
        self.outgoing.end = End::Sent;
        let socket = SockRef::from(&self.descriptor);
        if let Err(error) = socket.shutdown(std::net::Shutdown::Write) {
            self.outgoing.failed = error.raw_os_error().unwrap_or(libc::EPIPE);
        }
    }

    /// Both directions learn that the connection broke.
    fn take_waiters_of_failure(&mut self) -> [Waiter; 2] {
        if self.outgoing.failed == 0 {
            return [Waiter::NONE, Waiter::NONE];
        }
        [std::mem::take(&mut self.outgoing.waiter), std::mem::take(&mut self.receive_waiter)]
    }
}

impl Shared {
    /// Sends what the kernel takes at once, and gives the rest to the ring.
    fn send_now(&self, index: u32, connection: &mut Connection, out: &mut Vec<u8>) {
        let outgoing = &mut connection.outgoing;
        if self.ending.get() {
            outgoing.failed = libc::ENOTCONN;
            out.clear();
            return;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let taken = match SockRef::from(&connection.descriptor).send_with_flags(out, flags) {
            Ok(taken) => taken,
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM) => 0,
                code => {
                    outgoing.failed = code.unwrap_or(libc::EPIPE);
                    out.clear();
                    return;
                }
            },
        };
        outgoing.taken += taken as u64;
        if taken == out.len() {
            out.clear();
            return;
        }
        outgoing.current = Sending::new(std::mem::replace(out, self.spare.take()));
        outgoing.current.advance(taken);
        self.start_send(index, connection);
    }

    /// Gives the rest of the current bytes to the ring, or ends sending if it takes nothing.
    fn start_send(&self, index: u32, connection: &mut Connection) {
        let rest = connection.outgoing.current.rest();
        let entry = opcode::Send::new(connection.target(), rest.as_ptr(), rest.len() as u32)
            .flags(libc::MSG_NOSIGNAL)
            .build();
        // SAFETY: `current` owns the bytes. While `busy` is set it is neither changed nor taken,
        // the slot stays because of `in_flight`, and `busy` is cleared by the completion alone.
        match unsafe { self.submit(entry, connection.token(Kind::Send, index)) } {
            Ok(()) => {
                connection.outgoing.busy = true;
                connection.in_flight += 1;
            }
            Err(error) => {
                connection.outgoing.failed = error.raw_os_error().unwrap_or(libc::ENOTCONN);
            }
        }
    }

    pub(crate) fn on_send(&self, token: Token, result: i32) {
        let mut waiters;
        {
            let mut streams = self.streams.borrow_mut();
            let Some(connection) = current(&mut streams, token) else { return };
            connection.outgoing.busy = false;
            if connection.closing {
                operation_ended(&mut streams, token);
                return;
            }
            connection.in_flight -= 1;
            let outgoing = &mut connection.outgoing;
            let is_whole = match result {
                1.. => {
                    outgoing.taken += u64::from(result.unsigned_abs());
                    outgoing.current.advance(result as usize)
                }
                _ if result == -libc::EINTR || result == -libc::EAGAIN => false,
                // A stream socket that takes nothing of something is as good as broken.
                0 => outgoing.fail(libc::EPIPE),
                _ => outgoing.fail(-result),
            };
            if is_whole {
                self.spare.give(std::mem::take(&mut outgoing.current).into_bytes());
                self.go_on(token.index, connection);
            } else {
                self.start_send(token.index, connection);
            }
            waiters = connection.take_waiters_of_failure();
            if !connection.outgoing.busy && connection.outgoing.failed == 0 {
                waiters[0] = std::mem::take(&mut connection.outgoing.waiter);
            }
        }
        waiters.into_iter().for_each(|waiter| waiter.wake(&self.tasks));
    }

    /// Begins what waited for a send to end.
    fn go_on(&self, index: u32, connection: &mut Connection) {
        let outgoing = &mut connection.outgoing;
        if outgoing.failed == 0
            && let Some(next) = outgoing.later.as_mut().and_then(|later| later.pop_front())
        {
            outgoing.current = Sending::new(next);
            self.start_send(index, connection);
            return;
        }
        outgoing.later = None;
        if outgoing.end == End::Asked {
            connection.shut_down_sending();
        }
    }
}

impl Outgoing {
    fn fail(&mut self, code: i32) -> bool {
        self.failed = code;
        true
    }
}
