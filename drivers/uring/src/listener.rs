//! Accepts connections, one per request for one, and none in advance.
//!
//! Workers may share a listening socket, and connections must be distributed among them. So no
//! worker takes more than it asked for, and a waiting worker waits *exclusively*, at the end of the
//! kernel's wait queue: a new connection wakes the worker that has waited longest, which then
//! queues behind the others again. A worker that is blocked by a handler leaves the queue with the
//! first connection that wakes it, and that connection is taken by the next worker that wakes up.
//!
//! The mode of the listening descriptor (`O_NONBLOCK`) is shared with all other users of the
//! socket, so it is left unchanged. Accepting works differently in the two modes.

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

/// The number of connections that may be older than the options of their listening socket, and so
/// did not inherit them: the longest backlog that systems are configured to use.
const PREEXISTING_MAX: u32 = 65_536;

/// For this many tasks polled in an iteration, one more connection is taken in the next one; see
/// [`UringWorker::accept_batch_size`].
const POLLS_PER_ACCEPT: usize = 8;

/// The minimum number of connections taken after a long iteration.
const ACCEPT_BATCH_AFTER_STALL: usize = 32;

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

/// The state of a listener. Kept until the listener is dropped and its operations have completed.
pub(crate) struct ListenerSlot {
    socket: Socket,
    generation: u32,
    state: AcceptState,
    /// The handle was dropped: accepted connections are closed.
    closing: bool,
    /// The number of incomplete operations.
    in_flight: u8,
    /// The number of connections to take from the kernel before waiting for one again.
    accept_budget: usize,
    /// A connection that was accepted after the waiting task gave up.
    ready: Option<OwnedFd>,
    /// The number of accepted connections whose options are still set individually.
    preexisting: u32,
    error: Option<i32>,
    /// New connections are dropped.
    is_shut_down: bool,
    waiter: Waiter,
}

/// | from | to | when |
/// |---|---|---|
/// | Idle | Armed | a task waits in `accept` |
/// | Armed | Ending | the task stops waiting |
/// | Armed, Ending | Idle | the completion arrived |
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

    /// Takes a connection from the backlog. Never blocks.
    fn try_accept(&mut self) -> io::Result<OwnedFd> {
        // Other users of the socket may change its mode at any time.
        if !self.socket().nonblocking()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match self.socket().accept() {
            Ok((socket, _name)) => Ok(socket.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.preexisting = 0;
                Err(if self.is_shut_down { io::ErrorKind::InvalidInput.into() } else { error })
            }
            Err(error) => Err(error),
        }
    }

    fn apply_options(&mut self, descriptor: &OwnedFd, options: &SocketOptions) {
        if self.preexisting > 0 {
            self.preexisting -= 1;
            // Fails only if the peer is gone, which the first receive reports.
            let _ = set_options(&SockRef::from(descriptor), options);
        }
    }
}

/// Sets the options that accepted sockets inherit from a listening one.
fn set_options(socket: &SockRef<'_>, options: &SocketOptions) -> io::Result<()> {
    socket.set_tcp_nodelay(options.nodelay)?;
    // The progress of a send is measured by what the kernel takes.
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
    pub(crate) fn open(shared: &Rc<UringWorker>, socket: Socket) -> io::Result<Self> {
        let earlier = match &socket {
            Socket::Tcp(listener) => {
                let listener = SockRef::from(listener);
                set_options(&listener, &shared.socket_options)?;
                PREEXISTING_MAX
            }
            Socket::Unix(_) => 0,
        };
        let generation = shared.next_generation();
        let index = shared.listeners.borrow_mut().insert(ListenerSlot {
            socket,
            generation,
            state: AcceptState::Idle,
            closing: false,
            in_flight: 0,
            // Usually the backlog is still empty, so no connection is older than the options.
            accept_budget: 1,
            ready: None,
            preexisting: earlier,
            error: None,
            is_shut_down: false,
            waiter: Waiter::NONE,
        }) as u32;
        Ok(Self { worker: Rc::clone(shared), index })
    }

    fn poll_accept(&self, context: &Context<'_>) -> Poll<io::Result<UringStream>> {
        let mut listeners = self.worker.listeners.borrow_mut();
        let listening = &mut listeners[self.index as usize];
        match self.worker.next_connection(listening) {
            Ok(Some(descriptor)) => {
                drop(listeners);
                return Poll::Ready(Ok(UringStream::open(&self.worker, descriptor)));
            }
            Ok(None) => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
        if listening.state == AcceptState::Idle {
            self.worker.arm_accept(self.index, listening)?;
        }
        let old = listening.waiter.register(context, &self.worker.executor);
        drop(listeners);
        drop(old);
        Poll::Pending
    }
}

impl UringListener {
    /// Waits until nothing is armed, so that new connections wake other workers. Then takes a
    /// connection if there is one.
    fn poll_cancel_accept(&self, context: &Context<'_>) -> Poll<io::Result<Option<UringStream>>> {
        let mut listeners = self.worker.listeners.borrow_mut();
        let listening = &mut listeners[self.index as usize];
        self.worker.cancel_accept(self.index, listening);
        if listening.state == AcceptState::Cancelling {
            let old = listening.waiter.register(context, &self.worker.executor);
            drop(listeners);
            drop(old);
            return Poll::Pending;
        }
        listening.accept_budget = listening.accept_budget.max(1);
        let taken = self.worker.next_connection(listening);
        drop(listeners);
        Poll::Ready(taken.map(|taken| taken.map(|it| UringStream::open(&self.worker, it))))
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

    /// TCP clients keep retrying for a while. Clients of a Unix socket are refused immediately.
    fn refuse_new_connections(&self) {
        let mut listeners = self.worker.listeners.borrow_mut();
        let listening = &mut listeners[self.index as usize];
        match listening.socket {
            Socket::Tcp(_) => {
                // If the kernel does not support filters, new connections are still accepted.
                let _ = listening.socket().attach_filter(&DROP_SYN_FILTER);
            }
            Socket::Unix(_) => {
                listening.is_shut_down = listening.socket().shutdown(Shutdown::Read).is_ok()
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
    /// Cancels the wait, so that another worker gets the connection.
    fn drop(&mut self) {
        if self.is_armed {
            let shared = &self.listener.worker;
            let mut listeners = shared.listeners.borrow_mut();
            shared.cancel_accept(self.listener.index, &mut listeners[self.listener.index as usize]);
        }
    }
}

impl UringWorker {
    /// Takes a connection that is ready now.
    fn next_connection(&self, listening: &mut ListenerSlot) -> io::Result<Option<OwnedFd>> {
        if let Some(descriptor) = listening.ready.take() {
            return Ok(Some(descriptor));
        }
        if let Some(code) = listening.error.take() {
            return Err(io::Error::from_raw_os_error(code));
        }
        if listening.accept_budget == 0 || self.is_shutting_down.get() {
            return Ok(None);
        }
        listening.accept_budget -= 1;
        match listening.try_accept() {
            Ok(descriptor) => {
                self.accepted.set(self.accepted.get() + 1);
                listening.apply_options(&descriptor, &self.socket_options);
                Ok(Some(descriptor))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                listening.accept_budget = 0;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn arm_accept(&self, index: u32, listening: &mut ListenerSlot) -> io::Result<()> {
        let descriptor = types::Fd(listening.socket().as_raw_fd());
        let (kind, entry) = if listening.socket().nonblocking()? {
            let events = (libc::EPOLLIN | libc::EPOLLEXCLUSIVE) as u32;
            (OpKind::AcceptReady, opcode::PollAdd::new(descriptor, events).build())
        } else {
            // The ring waits exclusively by itself. With O_NONBLOCK it would not wait.
            let accept =
                opcode::Accept::new(descriptor, std::ptr::null_mut(), std::ptr::null_mut());
            (OpKind::Accept, accept.flags(libc::SOCK_CLOEXEC).build())
        };
        // SAFETY: neither refers to memory; the accept does not write an address.
        unsafe { self.submit(entry, Token::new(kind, listening.generation, index)) }?;
        listening.state = AcceptState::Armed(kind);
        listening.in_flight += 1;
        Ok(())
    }

    /// Cancels the armed operation.
    fn cancel_accept(&self, index: u32, listening: &mut ListenerSlot) {
        let AcceptState::Armed(kind) = listening.state else { return };
        let target = Token::new(kind, listening.generation, index);
        if self.cancel(target, OpKind::CancelAccept).is_ok() {
            listening.state = AcceptState::Cancelling;
            listening.in_flight += 1;
        }
    }

    /// A connection is ready to be accepted.
    pub(crate) fn on_accept_ready(&self, token: Token, result: i32) {
        self.complete_accept(token, |listening| match result {
            0.. => listening.accept_budget = self.accept_batch_size(),
            _ if result == -libc::ECANCELED => {}
            _ => listening.error = Some(-result),
        });
    }

    /// The ring has accepted a connection.
    pub(crate) fn on_accept(&self, token: Token, result: i32) {
        let descriptor = (result >= 0).then(|| {
            // SAFETY: the kernel created this descriptor for this completion; nothing else uses it.
            unsafe { OwnedFd::from_raw_fd(result) }
        });
        self.complete_accept(token, |listening| match descriptor {
            Some(_abandoned) if listening.closing => {}
            Some(descriptor) => {
                self.accepted.set(self.accepted.get() + 1);
                listening.apply_options(&descriptor, &self.socket_options);
                listening.ready = Some(descriptor);
            }
            // EAGAIN means that the mode of the descriptor was changed.
            None if matches!(-result, libc::ECANCELED | libc::EAGAIN) => {}
            None => listening.error = Some(-result),
        });
    }

    fn complete_accept(&self, token: Token, note: impl FnOnce(&mut ListenerSlot)) {
        let waiter;
        {
            let mut listeners = self.listeners.borrow_mut();
            let Some(listening) = find_live(&mut listeners, token) else { return };
            listening.state = AcceptState::Idle;
            listening.in_flight -= 1;
            note(listening);
            waiter = std::mem::take(&mut listening.waiter);
            free_when_done(&mut listeners, token.index);
        }
        waiter.wake(&self.executor);
    }

    /// The number of connections to take before queuing behind the other workers again: one, and
    /// more after iterations with many polls or long ones, because emptying the backlog would take
    /// many of them. Idle workers have taken their connections in the meantime.
    fn accept_batch_size(&self) -> usize {
        let share = 1 + self.executor.polls() / POLLS_PER_ACCEPT;
        if self.long_iterations.borrow().is_last_long() {
            share.max(ACCEPT_BATCH_AFTER_STALL)
        } else {
            share
        }
    }

    pub(crate) fn on_accept_cancelled(&self, token: Token) {
        let mut listeners = self.listeners.borrow_mut();
        let Some(listening) = find_live(&mut listeners, token) else { return };
        listening.in_flight -= 1;
        free_when_done(&mut listeners, token.index);
    }

    fn close_listener(&self, index: u32) {
        let foreign;
        {
            let mut listeners = self.listeners.borrow_mut();
            let listening = &mut listeners[index as usize];
            listening.closing = true;
            foreign = (listening.ready.take(), std::mem::take(&mut listening.waiter));
            self.cancel_accept(index, listening);
            free_when_done(&mut listeners, index);
        }
        drop(foreign);
    }
}

/// The listener of a completion, if it still exists.
fn find_live(
    listeners: &mut peregrine_slot::Slab<ListenerSlot>,
    token: Token,
) -> Option<&mut ListenerSlot> {
    listeners
        .get_mut(token.index as usize)
        .filter(|listening| listening.generation == token.generation)
}

fn free_when_done(listeners: &mut peregrine_slot::Slab<ListenerSlot>, index: u32) {
    let listening = &listeners[index as usize];
    if listening.closing && listening.in_flight == 0 {
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
            options_are_set_with(is_blocking);
        }
    }

    #[test]
    fn a_connection_that_came_while_accepting_ended_is_not_left_behind() {
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
    fn keep_alive_that_somebody_before_asked_for_is_off() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        SockRef::from(&socket).set_keepalive(true).unwrap();
        let same = socket.try_clone().unwrap();
        let sockets = SocketOptions { tcp_keepalive: None, ..SocketOptions::default() };
        Uring::run(
            &Options { socket_options: sockets, ..Options::default() },
            |driver| async move {
                let _listener = driver.listen(Socket::Tcp(socket)).unwrap();
                assert!(!SockRef::from(&same).keepalive().unwrap());
            },
        )
        .unwrap();
    }

    fn options_are_set_with(is_blocking: bool) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(!is_blocking).unwrap();
        let address = socket.local_addr().unwrap();
        let _older = TcpStream::connect(address).unwrap();
        let sockets = SocketOptions {
            nodelay: false,
            notsent_lowat_bytes: 20_000,
            tcp_keepalive: Some(Duration::from_secs(77)),
            ..SocketOptions::default()
        };
        Uring::run(
            &Options { socket_options: sockets, ..Options::default() },
            |driver| async move {
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
            },
        )
        .unwrap();
    }
}
