//! The engine for machines that refuse io_uring.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{Timespec, epoll};

use super::engine::{self, Engine, Event, Token};

/// The most events that one turn takes from the kernel.
const EVENTS_MAX: usize = 256;

/// The most bytes that one turn takes from one stream.
const RECEIVE_BYTES_MAX: usize = 64 << 10;

/// Level-triggered readiness over non-blocking streams.
pub(crate) struct Readiness {
    epoll: OwnedFd,
    streams: Vec<Option<Attached>>,
    free: Vec<Token>,
    events: Vec<epoll::Event>,
    scratch: Box<[u8]>,
}

struct Attached {
    stream: TcpStream,
    unsent: Vec<u8>,
    is_connecting: bool,
}

impl Readiness {
    pub(crate) fn new() -> io::Result<Readiness> {
        Ok(Readiness {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            streams: Vec::new(),
            free: Vec::new(),
            events: Vec::with_capacity(EVENTS_MAX),
            scratch: vec![0; RECEIVE_BYTES_MAX].into_boxed_slice(),
        })
    }

    fn on_ready(
        &mut self,
        token: Token,
        flags: epoll::EventFlags,
        sink: &mut dyn FnMut(Token, Event<'_>),
    ) -> io::Result<()> {
        let Some(attached) = self.streams[token].as_mut() else { return Ok(()) };
        if attached.is_connecting {
            return self.on_connected(token, sink);
        }
        if flags.contains(epoll::EventFlags::OUT) && attached.flush()? {
            let data = epoll::EventData::new_u64(token as u64);
            epoll::modify(&self.epoll, &attached.stream, data, epoll::EventFlags::IN)?;
        }
        if !flags.intersects(!epoll::EventFlags::OUT) {
            return Ok(());
        }
        let ended = match attached.stream.read(&mut self.scratch) {
            Ok(0) => None,
            Ok(count) => {
                sink(token, Event::Data(&self.scratch[..count]));
                return Ok(());
            }
            Err(error) if is_transient(&error) => return Ok(()),
            Err(error) => Some(error),
        };
        // Level-triggered: an ended stream would be reported for ever.
        epoll::delete(&self.epoll, &attached.stream)?;
        sink(token, Event::Ended(ended));
        Ok(())
    }
}

impl Readiness {
    fn on_connected(
        &mut self,
        token: Token,
        sink: &mut dyn FnMut(Token, Event<'_>),
    ) -> io::Result<()> {
        let attached = self.streams[token].as_mut().expect("only attached streams have events");
        attached.is_connecting = false;
        if let Err(error) = engine::connected(&attached.stream) {
            epoll::delete(&self.epoll, &attached.stream)?;
            sink(token, Event::Ended(Some(error)));
            return Ok(());
        }
        let data = epoll::EventData::new_u64(token as u64);
        epoll::modify(&self.epoll, &attached.stream, data, epoll::EventFlags::IN)?;
        sink(token, Event::Connected);
        Ok(())
    }

    fn add(&mut self, stream: TcpStream, is_connecting: bool) -> io::Result<Token> {
        let token = self.free.pop().unwrap_or(self.streams.len());
        let data = epoll::EventData::new_u64(token as u64);
        let awaited = if is_connecting { epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
        epoll::add(&self.epoll, &stream, data, awaited)?;
        let attached = Some(Attached { stream, unsent: Vec::new(), is_connecting });
        if token == self.streams.len() {
            self.streams.push(attached);
        } else {
            self.streams[token] = attached;
        }
        Ok(token)
    }
}

impl Engine for Readiness {
    fn attach(&mut self, stream: TcpStream) -> io::Result<Token> {
        stream.set_nonblocking(true)?;
        self.add(stream, false)
    }

    fn connect(&mut self, address: SocketAddr) -> io::Result<Token> {
        self.add(engine::begin_to_connect(address)?, true)
    }

    fn send(&mut self, token: Token, bytes: &[u8]) -> io::Result<()> {
        let attached = self.streams[token].as_mut().expect("only attached streams are sent to");
        let is_waiting = !attached.unsent.is_empty();
        attached.unsent.extend_from_slice(bytes);
        if is_waiting || attached.flush()? {
            return Ok(());
        }
        let data = epoll::EventData::new_u64(token as u64);
        let both = epoll::EventFlags::IN | epoll::EventFlags::OUT;
        Ok(epoll::modify(&self.epoll, &attached.stream, data, both)?)
    }

    fn detach(&mut self, token: Token) {
        // Closing the only descriptor takes it out of the epoll set.
        if self.streams[token].take().is_some() {
            self.free.push(token);
        }
    }

    fn set_reset_on_close(&mut self, token: Token) {
        if let Some(attached) = &self.streams[token] {
            engine::set_reset_on_close(&attached.stream);
        }
    }

    fn turn(&mut self, wait: Duration, sink: &mut dyn FnMut(Token, Event<'_>)) -> io::Result<()> {
        let timeout = Timespec::try_from(wait).map_err(io::Error::other)?;
        self.events.clear();
        let room = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, room, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in std::mem::take(&mut self.events) {
            let token = usize::try_from(event.data.u64()).expect("a token was registered");
            self.on_ready(token, event.flags, sink)?;
        }
        self.events.reserve(EVENTS_MAX);
        Ok(())
    }
}

impl Attached {
    /// Sends what it can; whether all of it is gone. A broken stream counts as sent: reading from
    /// it reports the end.
    fn flush(&mut self) -> io::Result<bool> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_transient(&error) => return Ok(false),
                Err(_) => self.unsent.clear(),
            }
        }
        Ok(true)
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
