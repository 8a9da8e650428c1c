//! Sending: one operation at a time for a connection, continued until everything is out.
//!
//! What is to be sent while a send is in the kernel queues behind it. A send that went well wakes
//! nobody but who waits for the end of all of them; its memory goes to the worker's next send.

use std::io;
use std::task::{Context, Poll};

use io_uring::opcode;
use socket2::SockRef;

use crate::operation::{Kind, Sending, Token};
use crate::stream::{Connection, Outgoing, UringStream, current, operation_ended};
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
        if outgoing.failed == 0 && outgoing.finishes() {
            outgoing.failed = libc::EPIPE;
        }
        if outgoing.failed != 0 {
            out.clear();
            return;
        }
        let bytes = std::mem::replace(out, self.shared.spare.take());
        if outgoing.busy {
            outgoing.later.get_or_insert_default().queue.push_back(bytes);
        } else {
            outgoing.current = Sending::new(bytes);
            self.shared.start_send(self.index, connection);
        }
    }

    pub(crate) fn poll_all_sent(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut streams = self.shared.streams.borrow_mut();
        let outgoing = &mut streams[self.index as usize].outgoing;
        if !outgoing.busy {
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
        if connection.outgoing.busy {
            connection.outgoing.later.get_or_insert_default().finish = true;
        } else {
            shut_down_sending(connection);
        }
    }
}

impl Outgoing {
    /// Will our side end, or has it?
    fn finishes(&self) -> bool {
        self.is_finished || self.later.as_ref().is_some_and(|later| later.finish)
    }

    fn take_current(&mut self) -> Sending {
        std::mem::take(&mut self.current)
    }

    fn result(&self) -> io::Result<()> {
        if self.failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(self.failed)) }
    }
}

impl Shared {
    /// Gives the rest of the current bytes to the kernel, or ends the send if nothing is left or
    /// it cannot go on.
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
        let mut waiters = [Waiter::NONE, Waiter::NONE];
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
            outgoing.taken += u64::try_from(result).unwrap_or(0);
            let is_whole = match result {
                1.. => outgoing.current.advance(result as usize),
                _ if result == -libc::EINTR || result == -libc::EAGAIN => false,
                // A stream socket that takes nothing of something is as good as broken.
                0 => outgoing.fail(libc::EPIPE),
                _ => outgoing.fail(-result),
            };
            if !is_whole {
                self.start_send(token.index, connection);
            } else {
                self.spare.keep(outgoing.take_current().into_empty());
                if outgoing.later.is_some() {
                    self.go_on(token.index, connection);
                }
            }
            if !connection.outgoing.busy {
                waiters[0] = std::mem::take(&mut connection.outgoing.waiter);
                if connection.outgoing.failed != 0 {
                    waiters[1] = std::mem::take(&mut connection.receive_waiter);
                }
            }
        }
        waiters.into_iter().for_each(|waiter| waiter.wake(&self.tasks));
    }

    /// Begins what waited for a send to end.
    fn go_on(&self, index: u32, connection: &mut Connection) {
        let Some(later) = connection.outgoing.later.as_mut() else { return };
        if connection.outgoing.failed == 0
            && let Some(next) = later.queue.pop_front()
        {
            connection.outgoing.current = Sending::new(next);
            self.start_send(index, connection);
            return;
        }
        let finish = later.finish;
        connection.outgoing.later = None;
        if finish {
            shut_down_sending(connection);
        }
    }
}

impl Outgoing {
    fn fail(&mut self, code: i32) -> bool {
        self.failed = code;
        true
    }
}

/// Sends the end of our side. A direct call: the ring would hand it to another thread.
fn shut_down_sending(connection: &mut Connection) {
    if connection.outgoing.failed != 0 {
        return;
    }
    connection.outgoing.is_finished = true;
    let socket = SockRef::from(&connection.descriptor);
    if let Err(error) = socket.shutdown(std::net::Shutdown::Write) {
        connection.outgoing.failed = error.raw_os_error().unwrap_or(libc::EPIPE);
    }
}
