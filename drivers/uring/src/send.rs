//! Sending: one operation at a time for a connection, continued until everything is out.
//!
//! A send begins when it is asked for, not when its future is polled, so that dropping the future
//! at any time leaves the bytes with the connection. What is asked for while an abandoned send is
//! in the kernel queues behind it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use io_uring::opcode;
use socket2::SockRef;

use crate::operation::{Kind, Sending, Token};
use crate::stream::{Connection, Outgoing, UringStream, current, operation_ended};
use crate::task::Waiter;
use crate::worker::Shared;

/// Waits for the end of one send.
pub(crate) struct SendFuture<'stream> {
    stream: &'stream UringStream,
    /// The number of the send.
    number: u32,
    read: bool,
}

impl<'stream> SendFuture<'stream> {
    pub(crate) fn begin(stream: &'stream UringStream, out: Vec<u8>) -> Self {
        let mut streams = stream.shared.streams.borrow_mut();
        let connection = &mut streams[stream.index as usize];
        let outgoing = &mut connection.outgoing;
        outgoing.begun = outgoing.begun.wrapping_add(1);
        let number = outgoing.begun;
        if outgoing.busy {
            outgoing.later.get_or_insert_default().queue.push_back(out);
        } else {
            outgoing.current = Sending::new(out);
            stream.shared.start_send(stream.index, connection);
        }
        Self { stream, number, read: false }
    }
}

impl Future for SendFuture<'_> {
    type Output = (io::Result<()>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = &self.stream.shared;
        let mut streams = shared.streams.borrow_mut();
        let outgoing = &mut streams[self.stream.index as usize].outgoing;
        if !outgoing.is_over(self.number) {
            let old = outgoing.waiter.register(context, &shared.tasks);
            drop(streams);
            drop(old);
            return Poll::Pending;
        }
        // A later send uses the memory by now, if there is one.
        let sent = if outgoing.busy { Sending::default() } else { outgoing.take_current() };
        let result = outgoing.result();
        drop(streams);
        self.read = true;
        Poll::Ready((result, sent.into_empty()))
    }
}

impl Drop for SendFuture<'_> {
    fn drop(&mut self) {
        if self.read {
            return;
        }
        let mut streams = self.stream.shared.streams.borrow_mut();
        let outgoing = &mut streams[self.stream.index as usize].outgoing;
        if outgoing.begun != self.number {
            return;
        }
        let waiter = std::mem::take(&mut outgoing.waiter);
        // A result that nobody reads holds no memory.
        let unread = if outgoing.busy { Sending::default() } else { outgoing.take_current() };
        drop(streams);
        drop((waiter, unread));
    }
}

impl Outgoing {
    fn is_over(&self, number: u32) -> bool {
        self.ended.wrapping_sub(number) < u32::MAX / 2
    }

    fn take_current(&mut self) -> Sending {
        std::mem::take(&mut self.current)
    }

    fn result(&self) -> io::Result<()> {
        if self.failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(self.failed)) }
    }
}

impl UringStream {
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

    pub(crate) fn poll_finish(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut streams = self.shared.streams.borrow_mut();
        let outgoing = &mut streams[self.index as usize].outgoing;
        let Some(later) = outgoing.later.as_mut().filter(|later| later.finish) else {
            return Poll::Ready(outgoing.result());
        };
        let old = later.finish_waiter.register(context, &self.shared.tasks);
        drop(streams);
        drop(old);
        Poll::Pending
    }
}

impl Shared {
    /// Gives the rest of the current bytes to the kernel, or ends the send if nothing is left or
    /// it cannot go on.
    fn start_send(&self, index: u32, connection: &mut Connection) {
        let rest = connection.outgoing.current.rest();
        if rest.is_empty() || connection.outgoing.failed != 0 {
            connection.outgoing.ended = connection.outgoing.ended.wrapping_add(1);
            return;
        }
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
                connection.outgoing.ended = connection.outgoing.ended.wrapping_add(1);
            }
        }
    }

    pub(crate) fn on_send(&self, token: Token, result: i32) {
        let (mut waiter, mut finish_waiter) = (Waiter::NONE, Waiter::NONE);
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
            let over = match result {
                1.. => outgoing.current.advance(result as usize),
                _ if result == -libc::EINTR || result == -libc::EAGAIN => false,
                // A stream socket that takes nothing of something is as good as broken.
                0 => outgoing.fail(libc::EPIPE),
                _ => outgoing.fail(-result),
            };
            if over {
                outgoing.ended = outgoing.ended.wrapping_add(1);
                waiter = std::mem::take(&mut outgoing.waiter);
                if outgoing.later.is_some() {
                    finish_waiter = self.go_on(token.index, connection);
                }
            } else {
                let ended = outgoing.ended;
                self.start_send(token.index, connection);
                if connection.outgoing.ended != ended {
                    waiter = std::mem::take(&mut connection.outgoing.waiter);
                }
            }
        }
        waiter.wake(&self.tasks);
        finish_waiter.wake(&self.tasks);
    }

    /// Begins what waited for a send to end. Returns who waits for our side to be finished, when
    /// it is.
    fn go_on(&self, index: u32, connection: &mut Connection) -> Waiter {
        while !connection.outgoing.busy {
            let Some(later) = connection.outgoing.later.as_mut() else { break };
            if let Some(next) = later.queue.pop_front() {
                connection.outgoing.current = Sending::new(next);
                self.start_send(index, connection);
                continue;
            }
            let finish = later.finish;
            let waiter = std::mem::take(&mut later.finish_waiter);
            connection.outgoing.later = None;
            if finish {
                shut_down_sending(connection);
            }
            return waiter;
        }
        Waiter::NONE
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
    let socket = SockRef::from(&connection.descriptor);
    if let Err(error) = socket.shutdown(std::net::Shutdown::Write) {
        connection.outgoing.failed = error.raw_os_error().unwrap_or(libc::EPIPE);
    }
}
