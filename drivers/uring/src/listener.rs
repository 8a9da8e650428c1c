//! Accepts connections only while a task waits in `accept`, and none in advance.
//!
//! Workers may share a listening socket, and connections must be distributed among them. So a
//! worker does not accept more connections than its tasks wait for, and it waits *exclusively*, at
//! the end of the kernel's wait queue: a new connection wakes only the worker that has waited
//! longest, which then queues behind the others again. A worker that is blocked by a handler leaves
//! the queue with the first connection that wakes it; the next worker that wakes up accepts that
//! connection.
//!
//! Whether the listening descriptor is in non-blocking mode (`O_NONBLOCK`) concerns all other users
//! of the socket too, so the mode is left unchanged, and accepting works differently in each.

use std::future::{Future, poll_fn};
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use io_uring::{opcode, types};
use peregrine_driver::{Listener, Socket, SocketOptions};
use socket2::{SockFilter, SockRef, TcpKeepalive};

use crate::executor::Waiter;
use crate::operation::{OpKind, Token};
use crate::stream::UringStream;
use crate::worker::UringWorker;

/// The maximum number of connections that may have been waiting before the options were set on the
/// listening socket, and so did not inherit them: the longest backlog that systems are usually
/// configured with.
const PREEXISTING_MAX: u32 = 65_536;

/// For each this many tasks polled in an iteration, one more connection is accepted in the next
/// one; see [`UringWorker::accept_batch_size`].
const POLLS_PER_ACCEPT: usize = 8;

/// The minimum number of connections accepted after a long iteration.
const ACCEPT_BATCH_AFTER_LONG_ITERATION: usize = 32;

/// Drops TCP segments that start a connection (SYN without ACK). The filter of a listening socket
/// sees each segment from its TCP header; the flags are in byte 13.
const DROP_SYN_FILTER: [SockFilter; 5] = [
    SockFilter::new((libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16, 0, 0, 13),
    SockFilter::new((libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16, 0, 0, 0x12),
    SockFilter::new((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, 1, 0x02),
    SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0),
    SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, u32::MAX),
];

/// A listening socket that accepts through the ring.
pub struct UringListener {
    worker: Rc<UringWorker>,
    index: u32,
}

/// The state of a listener. It exists until the listener is dropped and its operations have
/// completed.
pub(crate) struct ListenerSlot {
    socket: Socket,
    generation: u32,
    state: AcceptState,
    /// Whether the handle was dropped; connections that are still accepted are then closed.
    closing: bool,
    /// The number of incomplete operations.
    in_flight: u8,
    /// The number of connections to accept directly before waiting in the ring for one again.
    accept_budget: usize,
    /// A connection that the ring has accepted for the next call of `accept`.
    ready: Option<OwnedFd>,
    /// How many of the next connections may not have inherited the options, which are then set on
    /// each of them.
    preexisting: u32,
    /// An error number to return from the next call of `accept`.
    error: Option<i32>,
    /// Whether a Unix socket was shut down, so that it gets no new connections.
    is_shut_down: bool,
    waiter: Waiter,
}

/// The operation that waits for a connection.
///
/// | from | to | when |
/// |---|---|---|
/// | Idle | Armed | a task waits in `accept` |
/// | Armed | Cancelling | the task stops waiting |
/// | Armed, Cancelling | Idle | the completion arrived |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AcceptState {
    Idle,
    /// With the kind of the armed operation: [`OpKind::Accept`] or [`OpKind::AcceptReady`].
    Armed(OpKind),
    Cancelling,
}

impl ListenerSlot {
    fn socket(&self) -> SockRef<'_> {
        match &self.socket {
            Socket::Tcp(listener) => SockRef::from(listener),
            Socket::Unix(listener) => SockRef::from(listener),
        }
    }

    /// Accepts a connection from the backlog. Never blocks.
    fn try_accept(&mut self) -> io::Result<OwnedFd> {
        // In blocking mode, the call would block. Other users may change the mode at any time.
        if !self.socket().nonblocking()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match self.socket().accept() {
            Ok((socket, _name)) => Ok(socket.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // The backlog is empty, so all later connections inherit the options.
                self.preexisting = 0;
                Err(if self.is_shut_down { io::ErrorKind::InvalidInput.into() } else { error })
            }
            Err(error) => Err(error),
        }
    }

    fn apply_options(&mut self, descriptor: &OwnedFd, options: &SocketOptions) {
        if self.preexisting > 0 {
            self.preexisting -= 1;
            // Fails only if the peer is gone, and then the first receive reports an error.
            let _ = set_options(&SockRef::from(descriptor), options);
        }
    }
}

/// Sets the options that accepted sockets inherit from their listening socket.
fn set_options(socket: &SockRef<'_>, options: &SocketOptions) -> io::Result<()> {
    socket.set_tcp_nodelay(options.nodelay)?;
    // The server measures the progress of a send by how much the kernel accepts.
    socket.set_tcp_notsent_lowat(options.notsent_lowat_bytes)?;
    socket.set_tcp_user_timeout(options.tcp_user_timeout_clamped())?;
    if let Some(time) = options.tcp_keepalive {
        let keep_alive = TcpKeepalive::new()
            .with_time(time)
            .with_interval(options.tcp_keepalive_interval)
            .with_retries(options.tcp_keepalive_retries);
        socket.set_tcp_keepalive(&keep_alive)?;
    } else {
        // A previous owner of the listening socket, such as the process before a restart, may have
        // enabled it.
        socket.set_keepalive(false)?;
    }
    Ok(())
}

impl UringListener {
    pub(crate) fn open(worker: &Rc<UringWorker>, socket: Socket) -> io::Result<Self> {
        let preexisting = match &socket {
            Socket::Tcp(listener) => {
                let listener = SockRef::from(listener);
                set_options(&listener, &worker.socket_options)?;
                PREEXISTING_MAX
            }
            Socket::Unix(_) => 0,
        };
        let generation = worker.next_generation();
        let index = worker.listeners.borrow_mut().insert(ListenerSlot {
            socket,
            generation,
            state: AcceptState::Idle,
            closing: false,
            in_flight: 0,
            // Finds out early whether the backlog is empty, as it usually is: `preexisting` then
            // becomes 0.
            accept_budget: 1,
            ready: None,
            preexisting,
            error: None,
            is_shut_down: false,
            waiter: Waiter::NONE,
        }) as u32;
        Ok(Self { worker: Rc::clone(worker), index })
    }

    fn poll_accept(&self, context: &Context<'_>) -> Poll<io::Result<UringStream>> {
        let mut listeners = self.worker.listeners.borrow_mut();
        let listener = &mut listeners[self.index as usize];
        match self.worker.next_connection(listener) {
            Ok(Some(descriptor)) => {
                drop(listeners);
                return Poll::Ready(Ok(UringStream::open(&self.worker, descriptor)));
            }
            Ok(None) => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
        if listener.state == AcceptState::Idle {
            self.worker.arm_accept(self.index, listener)?;
        }
        let old = listener.waiter.register(context, &self.worker.executor);
        drop(listeners);
        drop(old);
        Poll::Pending
    }
}

impl UringListener {
    /// Waits until no operation is armed, so that new connections wake other workers. Then accepts
    /// a connection if there is one.
    fn poll_cancel_accept(&self, context: &Context<'_>) -> Poll<io::Result<Option<UringStream>>> {
        let mut listeners = self.worker.listeners.borrow_mut();
        let listener = &mut listeners[self.index as usize];
        self.worker.cancel_accept(self.index, listener);
        if listener.state == AcceptState::Cancelling {
            let old = listener.waiter.register(context, &self.worker.executor);
            drop(listeners);
            drop(old);
            return Poll::Pending;
        }
        listener.accept_budget = listener.accept_budget.max(1);
        let accepted = self.worker.next_connection(listener);
        drop(listeners);
        Poll::Ready(accepted.map(|descriptor| {
            descriptor.map(|descriptor| UringStream::open(&self.worker, descriptor))
        }))
    }
}

impl Listener for UringListener {
    type Stream = UringStream;

    fn accept(&self) -> impl Future<Output = io::Result<UringStream>> {
        Accept { listener: self, is_armed: false }
    }

    async fn cancel_accept(&self) -> io::Result<Option<UringStream>> {
        poll_fn(|cx| self.poll_cancel_accept(cx)).await
    }

    /// TCP clients get no response and retry for a while. Clients of a Unix socket are refused
    /// immediately.
    fn refuse_new_connections(&self) {
        let mut listeners = self.worker.listeners.borrow_mut();
        let listener = &mut listeners[self.index as usize];
        match listener.socket {
            Socket::Tcp(_) => {
                // If the kernel does not support filters, new connections are still accepted.
                let _ = listener.socket().attach_filter(&DROP_SYN_FILTER);
            }
            Socket::Unix(_) => {
                listener.is_shut_down = listener.socket().shutdown(Shutdown::Read).is_ok()
            }
        }
    }
}

impl Drop for UringListener {
    fn drop(&mut self) {
        self.worker.close_listener(self.index);
    }
}

/// The future of [`UringListener::accept`].
struct Accept<'listener> {
    listener: &'listener UringListener,
    is_armed: bool,
}

impl Future for Accept<'_> {
    type Output = io::Result<UringStream>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let accepted = self.listener.poll_accept(cx);
        self.is_armed = accepted.is_pending();
        accepted
    }
}

impl Drop for Accept<'_> {
    /// Cancels the wait, so that another worker is woken for the next connection.
    fn drop(&mut self) {
        if self.is_armed {
            let worker = &self.listener.worker;
            let mut listeners = worker.listeners.borrow_mut();
            worker.cancel_accept(self.listener.index, &mut listeners[self.listener.index as usize]);
        }
    }
}

impl UringWorker {
    /// Returns a connection that is ready now, if there is one.
    fn next_connection(&self, listener: &mut ListenerSlot) -> io::Result<Option<OwnedFd>> {
        if let Some(descriptor) = listener.ready.take() {
            return Ok(Some(descriptor));
        }
        if let Some(code) = listener.error.take() {
            return Err(io::Error::from_raw_os_error(code));
        }
        if listener.accept_budget == 0 || self.is_shutting_down.get() {
            return Ok(None);
        }
        listener.accept_budget -= 1;
        match listener.try_accept() {
            Ok(descriptor) => {
                self.accepted.set(self.accepted.get() + 1);
                listener.apply_options(&descriptor, &self.socket_options);
                Ok(Some(descriptor))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                listener.accept_budget = 0;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn arm_accept(&self, index: u32, listener: &mut ListenerSlot) -> io::Result<()> {
        let descriptor = types::Fd(listener.socket().as_raw_fd());
        let (kind, entry) = if listener.socket().nonblocking()? {
            let events = (libc::EPOLLIN | libc::EPOLLEXCLUSIVE) as u32;
            (OpKind::AcceptReady, opcode::PollAdd::new(descriptor, events).build())
        } else {
            // The kernel's accept waits exclusively in any case. With O_NONBLOCK it would not wait.
            let accept =
                opcode::Accept::new(descriptor, std::ptr::null_mut(), std::ptr::null_mut());
            (OpKind::Accept, accept.flags(libc::SOCK_CLOEXEC).build())
        };
        // SAFETY: neither operation refers to memory; the accept does not write an address.
        unsafe { self.submit(entry, Token::new(kind, listener.generation, index)) }?;
        listener.state = AcceptState::Armed(kind);
        listener.in_flight += 1;
        Ok(())
    }

    /// Cancels the armed operation.
    fn cancel_accept(&self, index: u32, listener: &mut ListenerSlot) {
        let AcceptState::Armed(kind) = listener.state else { return };
        let target = Token::new(kind, listener.generation, index);
        if self.cancel(target, OpKind::CancelAccept).is_ok() {
            listener.state = AcceptState::Cancelling;
            listener.in_flight += 1;
        }
    }

    /// Handles the completion of a poll: a connection is ready to be accepted.
    pub(crate) fn on_accept_ready(&self, token: Token, result: i32) {
        self.complete_accept(token, |listener| match result {
            0.. => listener.accept_budget = self.accept_batch_size(),
            _ if result == -libc::ECANCELED => {}
            _ => listener.error = Some(-result),
        });
    }

    /// Handles the completion of an accept.
    pub(crate) fn on_accept(&self, token: Token, result: i32) {
        let descriptor = (result >= 0).then(|| {
            // SAFETY: the kernel created this descriptor for this completion; nothing else uses it.
            unsafe { OwnedFd::from_raw_fd(result) }
        });
        self.complete_accept(token, |listener| match descriptor {
            Some(_abandoned) if listener.closing => {}
            Some(descriptor) => {
                self.accepted.set(self.accepted.get() + 1);
                listener.apply_options(&descriptor, &self.socket_options);
                listener.ready = Some(descriptor);
            }
            // EAGAIN means that the mode of the descriptor was changed.
            None if matches!(-result, libc::ECANCELED | libc::EAGAIN) => {}
            None => listener.error = Some(-result),
        });
    }

    fn complete_accept(&self, token: Token, update: impl FnOnce(&mut ListenerSlot)) {
        let waiter;
        {
            let mut listeners = self.listeners.borrow_mut();
            let Some(listener) = find_live(&mut listeners, token) else { return };
            listener.state = AcceptState::Idle;
            listener.in_flight -= 1;
            update(listener);
            waiter = std::mem::take(&mut listener.waiter);
            free_when_done(&mut listeners, token.index);
        }
        waiter.wake(&self.executor);
    }

    /// The number of connections to accept before queuing behind the other workers again. It is one
    /// after a short iteration with few polls. After other iterations it is larger, because the
    /// worker would otherwise need many of these to empty the backlog. This is fair: idle workers
    /// have accepted their connections in the meantime.
    fn accept_batch_size(&self) -> usize {
        let batch_size = 1 + self.executor.polls() / POLLS_PER_ACCEPT;
        if self.long_iterations.borrow().is_last_long() {
            batch_size.max(ACCEPT_BATCH_AFTER_LONG_ITERATION)
        } else {
            batch_size
        }
    }

    pub(crate) fn on_accept_cancelled(&self, token: Token) {
        let mut listeners = self.listeners.borrow_mut();
        let Some(listener) = find_live(&mut listeners, token) else { return };
        listener.in_flight -= 1;
        free_when_done(&mut listeners, token.index);
    }

    fn close_listener(&self, index: u32) {
        // Dropped after the borrow, because the destructor of a waker may run any code.
        let to_drop;
        {
            let mut listeners = self.listeners.borrow_mut();
            let listener = &mut listeners[index as usize];
            listener.closing = true;
            to_drop = (listener.ready.take(), std::mem::take(&mut listener.waiter));
            self.cancel_accept(index, listener);
            free_when_done(&mut listeners, index);
        }
        drop(to_drop);
    }
}

/// The listener of a completion, if it still exists.
fn find_live(
    listeners: &mut peregrine_slot::Slab<ListenerSlot>,
    token: Token,
) -> Option<&mut ListenerSlot> {
    listeners
        .get_mut(token.index as usize)
        .filter(|listener| listener.generation == token.generation)
}

fn free_when_done(listeners: &mut peregrine_slot::Slab<ListenerSlot>, index: u32) {
    let listener = &listeners[index as usize];
    if listener.closing && listener.in_flight == 0 {
        listeners.remove(index as usize);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::net::{TcpListener, TcpStream};
    use std::task::Poll;
    use std::time::Duration;

    use peregrine_driver::{Driver, Listener, Options, Socket, SocketOptions};
    use socket2::SockRef;

    use crate::Uring;

    #[test]
    fn every_accepted_connection_has_the_options_of_its_listener() {
        for is_blocking in [true, false] {
            assert_options_are_set(is_blocking);
        }
    }

    #[test]
    fn cancel_accept_returns_a_connection_that_arrived_meanwhile() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        Uring::run(&Options::default(), |driver| async move {
            let listener = driver.listen(Socket::Tcp(socket)).unwrap();
            for turns in 0..3 {
                let mut accept = Box::pin(listener.accept());
                for _ in 0..turns {
                    let poll = poll_fn(|cx| Poll::Ready(accept.as_mut().poll(cx)));
                    assert!(poll.await.is_pending(), "the backlog is empty");
                    driver.sleep_until(driver.now() + Duration::from_millis(2)).await;
                }
                let _client = TcpStream::connect(address).unwrap();
                drop(accept);
                assert!(listener.cancel_accept().await.unwrap().is_some(), "after {turns} turns");
                assert!(listener.cancel_accept().await.unwrap().is_none(), "after {turns} turns");
            }
        })
        .unwrap();
    }

    #[test]
    fn listening_disables_a_keep_alive_set_by_a_previous_owner() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        SockRef::from(&socket).set_keepalive(true).unwrap();
        let duplicate = socket.try_clone().unwrap();
        let socket_options = SocketOptions { tcp_keepalive: None, ..SocketOptions::default() };
        Uring::run(&Options { socket_options, ..Options::default() }, |driver| async move {
            let _listener = driver.listen(Socket::Tcp(socket)).unwrap();
            assert!(!SockRef::from(&duplicate).keepalive().unwrap());
        })
        .unwrap();
    }

    fn assert_options_are_set(is_blocking: bool) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(!is_blocking).unwrap();
        let address = socket.local_addr().unwrap();
        let _older = TcpStream::connect(address).unwrap();
        let socket_options = SocketOptions {
            nodelay: false,
            notsent_lowat_bytes: 20_000,
            tcp_keepalive: Some(Duration::from_secs(77)),
            ..SocketOptions::default()
        };
        Uring::run(&Options { socket_options, ..Options::default() }, |driver| async move {
            let listener = driver.listen(Socket::Tcp(socket)).unwrap();
            for accepted in 0..3 {
                let stream = listener.accept().await.unwrap();
                let streams = stream.worker.streams.borrow();
                let socket = SockRef::from(&streams[stream.index as usize].descriptor);
                assert!(!socket.tcp_nodelay().unwrap(), "connection {accepted}");
                assert_eq!(socket.tcp_notsent_lowat().unwrap(), 20_000);
                assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(77));
                drop(streams);
                // Later connections inherit the option.
                stream.worker.listeners.borrow_mut()[0].preexisting = 0;
                let _younger = TcpStream::connect(address).unwrap();
            }
        })
        .unwrap();
    }
}
