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

use crate::operation::{Kind, Token};
use crate::stream::UringStream;
use crate::task::Waiter;
use crate::worker::Shared;

/// The number of connections that may be older than the options of their listening socket, and so
/// did not inherit them: the longest backlog that systems are configured to use.
const EARLIER_MAX: u32 = 65_536;

/// For this many tasks polled in a turn, one more connection is taken in the next one; see
/// [`Shared::share`].
const POLLS_PER_CONNECTION: usize = 8;

/// The minimum number of connections taken after a long turn.
const AFTER_LONG_TURN: usize = 32;

/// Drops TCP segments that start a connection (SYN without ACK). The filter of a listening socket
/// sees each segment from its TCP header; the flags are in byte 13.
const REFUSE_SYN: [SockFilter; 5] = [
    SockFilter::new((libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16, 0, 0, 13),
    SockFilter::new((libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16, 0, 0, 0x12),
    SockFilter::new((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, 1, 0x02),
    SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0),
    SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, u32::MAX),
];

/// A listening socket that accepts through the ring.
pub struct UringListener {
    shared: Rc<Shared>,
    index: u32,
}

/// The state of a listener. Kept until the listener is dropped and its operations have completed.
pub(crate) struct Listening {
    socket: Socket,
    generation: u32,
    accepting: Accepting,
    /// The handle was dropped: accepted connections are closed.
    closing: bool,
    /// The number of incomplete operations.
    in_flight: u8,
    /// The number of connections to take from the kernel before waiting for one again.
    due: usize,
    /// A connection that was accepted after the waiting task gave up.
    ready: Option<OwnedFd>,
    /// The number of accepted connections whose options are still set individually.
    earlier: u32,
    failed: Option<i32>,
    /// New connections are dropped.
    refuses: bool,
    waiter: Waiter,
}

/// | from | to | when |
/// |---|---|---|
/// | Idle | Armed | a task waits in `accept` |
/// | Armed | Ending | the task stops waiting |
/// | Armed, Ending | Idle | the completion arrived |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accepting {
    Idle,
    /// With the kind of the armed operation: [`Kind::Accept`] or [`Kind::Connection`].
    Armed(Kind),
    Ending,
}

impl Listening {
    fn socket(&self) -> SockRef<'_> {
        match &self.socket {
            Socket::Tcp(listener) => SockRef::from(listener),
            Socket::Unix(listener) => SockRef::from(listener),
        }
    }

    /// Takes a connection from the backlog. Never blocks.
    fn take(&mut self) -> io::Result<OwnedFd> {
        // Other users of the socket may change its mode at any time.
        if !self.socket().nonblocking()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match self.socket().accept() {
            Ok((socket, _name)) => Ok(socket.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.earlier = 0;
                Err(if self.refuses { io::ErrorKind::InvalidInput.into() } else { error })
            }
            Err(error) => Err(error),
        }
    }

    fn prepare(&mut self, descriptor: &OwnedFd, options: &SocketOptions) {
        if self.earlier > 0 {
            self.earlier -= 1;
            // Fails only if the peer is gone, which the first receive reports.
            let _ = set_options(&SockRef::from(descriptor), options);
        }
    }
}

/// Sets the options that accepted sockets inherit from a listening one.
fn set_options(socket: &SockRef<'_>, options: &SocketOptions) -> io::Result<()> {
    socket.set_tcp_nodelay(options.nodelay)?;
    // The progress of a send is measured by what the kernel takes.
    socket.set_tcp_notsent_lowat(options.unsent_bytes_max)?;
    socket.set_tcp_user_timeout(options.user_timeout_kept())?;
    if let Some(time) = options.keep_alive {
        let keep_alive = TcpKeepalive::new()
            .with_time(time)
            .with_interval(options.keep_alive_interval)
            .with_retries(options.keep_alive_probes);
        socket.set_tcp_keepalive(&keep_alive)?;
    } else {
        // A previous owner of the listening socket, such as the process before a restart, may have
        // enabled it.
        socket.set_keepalive(false)?;
    }
    Ok(())
}

impl UringListener {
    pub(crate) fn open(shared: &Rc<Shared>, socket: Socket) -> io::Result<Self> {
        let earlier = match &socket {
            Socket::Tcp(listener) => {
                let listener = SockRef::from(listener);
                set_options(&listener, &shared.sockets)?;
                EARLIER_MAX
            }
            Socket::Unix(_) => 0,
        };
        let generation = shared.next_generation();
        let index = shared.listeners.borrow_mut().insert(Listening {
            socket,
            generation,
            accepting: Accepting::Idle,
            closing: false,
            in_flight: 0,
            // Usually the backlog is still empty, so no connection is older than the options.
            due: 1,
            ready: None,
            earlier,
            failed: None,
            refuses: false,
            waiter: Waiter::NONE,
        }) as u32;
        Ok(Self { shared: Rc::clone(shared), index })
    }

    fn poll_accept(&self, context: &Context<'_>) -> Poll<io::Result<UringStream>> {
        let mut listeners = self.shared.listeners.borrow_mut();
        let listening = &mut listeners[self.index as usize];
        match self.shared.next_connection(listening) {
            Ok(Some(descriptor)) => {
                drop(listeners);
                return Poll::Ready(Ok(UringStream::open(&self.shared, descriptor)));
            }
            Ok(None) => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
        if listening.accepting == Accepting::Idle {
            self.shared.arm_accept(self.index, listening)?;
        }
        let old = listening.waiter.register(context, &self.shared.tasks);
        drop(listeners);
        drop(old);
        Poll::Pending
    }
}

impl UringListener {
    /// Waits until nothing is armed, so that new connections wake other workers. Then takes a
    /// connection if there is one.
    fn poll_last(&self, context: &Context<'_>) -> Poll<io::Result<Option<UringStream>>> {
        let mut listeners = self.shared.listeners.borrow_mut();
        let listening = &mut listeners[self.index as usize];
        self.shared.end_accept(self.index, listening);
        if listening.accepting == Accepting::Ending {
            let old = listening.waiter.register(context, &self.shared.tasks);
            drop(listeners);
            drop(old);
            return Poll::Pending;
        }
        listening.due = listening.due.max(1);
        let taken = self.shared.next_connection(listening);
        drop(listeners);
        Poll::Ready(taken.map(|taken| taken.map(|it| UringStream::open(&self.shared, it))))
    }
}

impl Listener for UringListener {
    type Stream = UringStream;

    fn accept(&self) -> impl Future<Output = io::Result<UringStream>> {
        Accept { listener: self, waits: false }
    }

    async fn last(&self) -> io::Result<Option<UringStream>> {
        poll_fn(|context| self.poll_last(context)).await
    }

    /// TCP clients keep retrying for a while. Clients of a Unix socket are refused immediately.
    fn refuse_new(&self) {
        let mut listeners = self.shared.listeners.borrow_mut();
        let listening = &mut listeners[self.index as usize];
        match listening.socket {
            Socket::Tcp(_) => {
                // If the kernel does not support filters, new connections are still accepted.
                let _ = listening.socket().attach_filter(&REFUSE_SYN);
            }
            Socket::Unix(_) => {
                listening.refuses = listening.socket().shutdown(Shutdown::Read).is_ok()
            }
        }
    }
}

impl Drop for UringListener {
    fn drop(&mut self) {
        self.shared.close_listener(self.index);
    }
}

/// The future of [`UringListener::accept`].
struct Accept<'listener> {
    listener: &'listener UringListener,
    waits: bool,
}

impl Future for Accept<'_> {
    type Output = io::Result<UringStream>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let accepted = self.listener.poll_accept(context);
        self.waits = accepted.is_pending();
        accepted
    }
}

impl Drop for Accept<'_> {
    /// Cancels the wait, so that another worker gets the connection.
    fn drop(&mut self) {
        if self.waits {
            let shared = &self.listener.shared;
            let mut listeners = shared.listeners.borrow_mut();
            shared.end_accept(self.listener.index, &mut listeners[self.listener.index as usize]);
        }
    }
}

impl Shared {
    /// Takes a connection that is ready now.
    fn next_connection(&self, listening: &mut Listening) -> io::Result<Option<OwnedFd>> {
        if let Some(descriptor) = listening.ready.take() {
            return Ok(Some(descriptor));
        }
        if let Some(code) = listening.failed.take() {
            return Err(io::Error::from_raw_os_error(code));
        }
        if listening.due == 0 || self.ending.get() {
            return Ok(None);
        }
        listening.due -= 1;
        match listening.take() {
            Ok(descriptor) => {
                self.accepted.set(self.accepted.get() + 1);
                listening.prepare(&descriptor, &self.sockets);
                Ok(Some(descriptor))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                listening.due = 0;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn arm_accept(&self, index: u32, listening: &mut Listening) -> io::Result<()> {
        let descriptor = types::Fd(listening.socket().as_raw_fd());
        let (kind, entry) = if listening.socket().nonblocking()? {
            let events = (libc::EPOLLIN | libc::EPOLLEXCLUSIVE) as u32;
            (Kind::Connection, opcode::PollAdd::new(descriptor, events).build())
        } else {
            // The ring waits exclusively by itself. With O_NONBLOCK it would not wait.
            let accept =
                opcode::Accept::new(descriptor, std::ptr::null_mut(), std::ptr::null_mut());
            (Kind::Accept, accept.flags(libc::SOCK_CLOEXEC).build())
        };
        // SAFETY: neither refers to memory; the accept does not write an address.
        unsafe { self.submit(entry, Token::new(kind, listening.generation, index)) }?;
        listening.accepting = Accepting::Armed(kind);
        listening.in_flight += 1;
        Ok(())
    }

    /// Cancels the armed operation.
    fn end_accept(&self, index: u32, listening: &mut Listening) {
        let Accepting::Armed(kind) = listening.accepting else { return };
        let target = Token::new(kind, listening.generation, index);
        if self.cancel(target, Kind::CancelAccept).is_ok() {
            listening.accepting = Accepting::Ending;
            listening.in_flight += 1;
        }
    }

    /// A connection is ready to be accepted.
    pub(crate) fn on_connection(&self, token: Token, result: i32) {
        self.accept_ended(token, |listening| match result {
            0.. => listening.due = self.share(),
            _ if result == -libc::ECANCELED => {}
            _ => listening.failed = Some(-result),
        });
    }

    /// The ring has accepted a connection.
    pub(crate) fn on_accept(&self, token: Token, result: i32) {
        let descriptor = (result >= 0).then(|| {
            // SAFETY: the kernel created this descriptor for this completion; nothing else uses it.
            unsafe { OwnedFd::from_raw_fd(result) }
        });
        self.accept_ended(token, |listening| match descriptor {
            Some(_abandoned) if listening.closing => {}
            Some(descriptor) => {
                self.accepted.set(self.accepted.get() + 1);
                listening.prepare(&descriptor, &self.sockets);
                listening.ready = Some(descriptor);
            }
            // EAGAIN means that the mode of the descriptor was changed.
            None if matches!(-result, libc::ECANCELED | libc::EAGAIN) => {}
            None => listening.failed = Some(-result),
        });
    }

    fn accept_ended(&self, token: Token, note: impl FnOnce(&mut Listening)) {
        let waiter;
        {
            let mut listeners = self.listeners.borrow_mut();
            let Some(listening) = current(&mut listeners, token) else { return };
            listening.accepting = Accepting::Idle;
            listening.in_flight -= 1;
            note(listening);
            waiter = std::mem::take(&mut listening.waiter);
            free_when_done(&mut listeners, token.index);
        }
        waiter.wake(&self.tasks);
    }

    /// The number of connections to take before queuing behind the other workers again: one, and
    /// more after turns with many polls or long ones, because emptying the backlog would take many
    /// of them. Idle workers have taken their connections in the meantime.
    fn share(&self) -> usize {
        let share = 1 + self.tasks.polls() / POLLS_PER_CONNECTION;
        if self.long_turns.borrow().is_last_long() { share.max(AFTER_LONG_TURN) } else { share }
    }

    pub(crate) fn on_accept_cancelled(&self, token: Token) {
        let mut listeners = self.listeners.borrow_mut();
        let Some(listening) = current(&mut listeners, token) else { return };
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
            self.end_accept(index, listening);
            free_when_done(&mut listeners, index);
        }
        drop(foreign);
    }
}

/// The listener of a completion, if it still exists.
fn current(
    listeners: &mut peregrine_slot::Table<Listening>,
    token: Token,
) -> Option<&mut Listening> {
    listeners
        .get_mut(token.index as usize)
        .filter(|listening| listening.generation == token.generation)
}

fn free_when_done(listeners: &mut peregrine_slot::Table<Listening>, index: u32) {
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
                    let poll = poll_fn(|context| Poll::Ready(accept.as_mut().poll(context)));
                    assert!(poll.await.is_pending(), "the backlog is empty");
                    driver.sleep_until(driver.now() + Duration::from_millis(2)).await;
                }
                let _client = TcpStream::connect(address).unwrap();
                drop(accept);
                assert!(listener.last().await.unwrap().is_some(), "after {turns} turns");
                assert!(listener.last().await.unwrap().is_none(), "after {turns} turns");
            }
        })
        .unwrap();
    }

    #[test]
    fn keep_alive_that_somebody_before_asked_for_is_off() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        SockRef::from(&socket).set_keepalive(true).unwrap();
        let same = socket.try_clone().unwrap();
        let sockets = SocketOptions { keep_alive: None, ..SocketOptions::default() };
        Uring::run(&Options { sockets, ..Options::default() }, |driver| async move {
            let _listener = driver.listen(Socket::Tcp(socket)).unwrap();
            assert!(!SockRef::from(&same).keepalive().unwrap());
        })
        .unwrap();
    }

    fn options_are_set_with(is_blocking: bool) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(!is_blocking).unwrap();
        let address = socket.local_addr().unwrap();
        let _older = TcpStream::connect(address).unwrap();
        let sockets = SocketOptions {
            nodelay: false,
            unsent_bytes_max: 20_000,
            keep_alive: Some(Duration::from_secs(77)),
            ..SocketOptions::default()
        };
        Uring::run(&Options { sockets, ..Options::default() }, |driver| async move {
            let listener = driver.listen(Socket::Tcp(socket)).unwrap();
            for accepted in 0..3 {
                let stream = listener.accept().await.unwrap();
                let streams = stream.shared.streams.borrow();
                let socket = SockRef::from(&streams[stream.index as usize].descriptor);
                assert!(!socket.tcp_nodelay().unwrap(), "connection {accepted}");
                assert_eq!(socket.tcp_notsent_lowat().unwrap(), 20_000);
                assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(77));
                drop(streams);
                // Later connections inherit the option.
                stream.shared.listeners.borrow_mut()[0].earlier = 0;
                let _younger = TcpStream::connect(address).unwrap();
            }
        })
        .unwrap();
    }
}
