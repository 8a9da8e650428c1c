//! Accepting: one multishot operation per listener, and the connections that wait to be taken.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};

use io_uring::{opcode, types};
use peregrine_driver::{Listener, Socket};
use socket2::SockRef;

use crate::operation::{Kind, Token};
use crate::stream::UringStream;
use crate::task::Waiter;
use crate::worker::Shared;

/// Connections accepted and not yet taken. When there are as many, accepting ends until all are
/// taken. The kernel accepts all of its backlog at once, so that the backlog's length comes on top;
/// the rest waits there.
const ACCEPT_AHEAD_MAX: usize = 256;

/// Connections that may be older than `TCP_NODELAY` on their listening socket, and so did not
/// inherit it: as many as the longest backlog that systems are set to.
const ELDERS_MAX: u32 = 65_536;

/// Accepts connections through the ring.
pub struct UringListener {
    shared: Rc<Shared>,
    index: u32,
}

/// The state of a listener. It lives until the listener is dropped and its operations ended.
pub(crate) struct Listening {
    socket: Socket,
    generation: u32,
    accepting: Accepting,
    /// The handle is gone: whatever is accepted is closed.
    closing: bool,
    /// Operations that did not complete.
    in_flight: u8,
    ready: VecDeque<OwnedFd>,
    /// Accepted connections that still get `TCP_NODELAY` one by one.
    elders: u32,
    failed: Option<i32>,
    waiter: Waiter,
}

/// | from | to | when |
/// |---|---|---|
/// | Idle | Armed | `accept` finds nothing ready |
/// | Armed | Ending | too many wait, or the listener is dropped |
/// | Armed, Ending | Idle | the final completion came |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accepting {
    Idle,
    Armed,
    Ending,
}

impl Listening {
    fn descriptor(&self) -> types::Fd {
        types::Fd(match &self.socket {
            Socket::Tcp(listener) => listener.as_raw_fd(),
            Socket::Unix(listener) => listener.as_raw_fd(),
        })
    }
}

impl UringListener {
    pub(crate) fn open(shared: &Rc<Shared>, socket: Socket) -> io::Result<Self> {
        let elders = match &socket {
            Socket::Tcp(listener) => {
                // The kernel completes at once with EAGAIN on descriptors that do not block.
                listener.set_nonblocking(false)?;
                // Accepted sockets inherit this, so that it costs no call for each of them.
                SockRef::from(listener).set_tcp_nodelay(true)?;
                ELDERS_MAX
            }
            Socket::Unix(listener) => {
                listener.set_nonblocking(false)?;
                0
            }
        };
        let generation = shared.next_generation();
        let index = shared.listeners.borrow_mut().insert(Listening {
            socket,
            generation,
            accepting: Accepting::Idle,
            closing: false,
            in_flight: 0,
            ready: VecDeque::new(),
            elders,
            failed: None,
            waiter: Waiter::NONE,
        }) as u32;
        Ok(Self { shared: Rc::clone(shared), index })
    }

    fn poll_accept(&self, context: &Context<'_>) -> Poll<io::Result<UringStream>> {
        let mut listeners = self.shared.listeners.borrow_mut();
        let listening = &mut listeners[self.index as usize];
        if let Some(descriptor) = listening.ready.pop_front() {
            drop(listeners);
            return Poll::Ready(Ok(UringStream::open(&self.shared, descriptor)));
        }
        if let Some(code) = listening.failed.take() {
            return Poll::Ready(Err(io::Error::from_raw_os_error(code)));
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

impl Listener for UringListener {
    type Stream = UringStream;

    fn accept(&self) -> impl Future<Output = io::Result<UringStream>> {
        poll_fn(|context| self.poll_accept(context))
    }
}

impl Drop for UringListener {
    fn drop(&mut self) {
        self.shared.close_listener(self.index);
    }
}

impl Shared {
    fn arm_accept(&self, index: u32, listening: &mut Listening) -> io::Result<()> {
        let entry =
            opcode::AcceptMulti::new(listening.descriptor()).flags(libc::SOCK_CLOEXEC).build();
        // SAFETY: a multishot accept names no memory.
        unsafe { self.submit(entry, Token::new(Kind::Accept, listening.generation, index)) }?;
        listening.accepting = Accepting::Armed;
        listening.in_flight += 1;
        Ok(())
    }

    /// Asks the kernel to end the accept. When it cannot even be asked, the next completion asks
    /// again.
    fn end_accept(&self, index: u32, listening: &mut Listening) {
        let target = Token::new(Kind::Accept, listening.generation, index);
        if self.cancel(target, Kind::CancelAccept).is_ok() {
            listening.accepting = Accepting::Ending;
            listening.in_flight += 1;
        }
    }

    pub(crate) fn on_accept(&self, token: Token, result: i32, ended: bool) {
        let descriptor = (result >= 0).then(|| {
            // SAFETY: the kernel made this descriptor for this completion; nobody else knows it.
            unsafe { OwnedFd::from_raw_fd(result) }
        });
        let waiter;
        {
            let mut listeners = self.listeners.borrow_mut();
            let Some(listening) = current(&mut listeners, token) else { return };
            if ended {
                listening.accepting = Accepting::Idle;
                listening.in_flight -= 1;
            }
            match descriptor {
                Some(_abandoned) if listening.closing => {}
                Some(descriptor) => {
                    self.accepted.set(self.accepted.get() + 1);
                    if listening.elders > 0 {
                        listening.elders -= 1;
                        // It fails only if the peer is gone, which shows at the first receive.
                        let _ = SockRef::from(&descriptor).set_tcp_nodelay(true);
                    }
                    listening.ready.push_back(descriptor);
                }
                None if result == -libc::ECANCELED => {}
                None => listening.failed = Some(-result),
            }
            let full = listening.ready.len() >= ACCEPT_AHEAD_MAX;
            if listening.accepting == Accepting::Armed && (full || listening.closing) {
                self.end_accept(token.index, listening);
            }
            waiter = std::mem::take(&mut listening.waiter);
            free_when_done(&mut listeners, token.index);
        }
        waiter.wake(&self.tasks);
    }

    pub(crate) fn on_accept_cancelled(&self, token: Token) {
        let mut listeners = self.listeners.borrow_mut();
        let Some(listening) = current(&mut listeners, token) else { return };
        listening.in_flight -= 1;
        free_when_done(&mut listeners, token.index);
    }

    fn close_listener(&self, index: u32) {
        let waiter;
        {
            let mut listeners = self.listeners.borrow_mut();
            let listening = &mut listeners[index as usize];
            listening.closing = true;
            listening.ready.clear();
            waiter = std::mem::take(&mut listening.waiter);
            if listening.accepting == Accepting::Armed {
                self.end_accept(index, listening);
            }
            free_when_done(&mut listeners, index);
        }
        drop(waiter);
    }
}

/// The listener that a completion is for, if it still is the same one.
fn current(listeners: &mut slab::Slab<Listening>, token: Token) -> Option<&mut Listening> {
    listeners
        .get_mut(token.index as usize)
        .filter(|listening| listening.generation == token.generation)
}

fn free_when_done(listeners: &mut slab::Slab<Listening>, index: u32) {
    let listening = &listeners[index as usize];
    if listening.closing && listening.in_flight == 0 {
        listeners.remove(index as usize);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use peregrine_driver::{Driver, Listener, Options, Socket};
    use socket2::SockRef;

    use crate::Uring;

    #[test]
    fn small_writes_are_not_delayed_on_any_accepted_connection() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let _older = TcpStream::connect(address).unwrap();
        Uring::run(&Options::default(), |driver| async move {
            let listener = driver.listen(Socket::Tcp(socket)).unwrap();
            for accepted in 0..3 {
                let stream = listener.accept().await.unwrap();
                let streams = stream.shared.streams.borrow();
                let socket = SockRef::from(&streams[stream.index as usize].descriptor);
                assert!(socket.tcp_nodelay().unwrap(), "connection {accepted}");
                drop(streams);
                // The later ones inherit it.
                stream.shared.listeners.borrow_mut()[0].elders = 0;
                let _younger = TcpStream::connect(address).unwrap();
            }
        })
        .unwrap();
    }
}
