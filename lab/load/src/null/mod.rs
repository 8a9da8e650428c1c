//! The null server: it finds where requests end and answers fixed bytes, without reading more of
//! them. It shows what a client itself can do, and the floor of the machine.

mod frames;

use std::collections::HashMap;
use std::io::{self, BufRead, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{Timespec, epoll};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

use crate::certificate::CertificateFiles;
use crate::client::tls::{HTTP1, HTTP2};
use crate::websocket::{TEXT, accept_key, frame, offered_key};
use frames::Frames;
pub use frames::reply as frames_of;

/// How often a server that was started by [`NullServer::start`] looks whether it is to end.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// What stands for the listener among the tokens of connections.
const LISTENER: u64 = u64::MAX;

/// The most bytes that one read takes.
const READ_BYTES_MAX: usize = 64 << 10;

/// How a null server finds the end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestEnd {
    /// Every request has this many bytes, but for the last one of a connection where the script
    /// says so.
    Bytes(usize),
    /// A request ends with its head, after the first empty line.
    EmptyLine,
    /// Messages of a WebSocket, each of which takes up so many bytes; the head before them opens it. The
    /// bytes of a reply are those of [`message_of`].
    Messages(usize),
    /// HTTP/2 says where a request ends; the bytes of a reply are those of [`frames_of`].
    Frames,
}

/// What a null server does.
#[derive(Debug, Clone)]
pub struct Script {
    /// Where a request ends.
    pub end: RequestEnd,
    /// The bytes of every reply.
    pub reply: Vec<u8>,
    /// After how many requests the connection closes, how many bytes the last request has, and
    /// the bytes of the last reply; none: never.
    pub last: Option<(u64, usize, Vec<u8>)>,
    /// TLS; none: plain.
    pub tls: Option<Arc<ServerConfig>>,
}

/// A null server on a thread of its own, ended when dropped.
#[derive(Debug)]
pub struct NullServer {
    address: SocketAddr,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NullServer {
    /// Starts a server on a free port of the loopback interface, on `cpus` (empty: anywhere).
    ///
    /// # Errors
    ///
    /// The kernel's, if it cannot listen.
    pub fn start(script: Script, cpus: Vec<usize>) -> io::Result<NullServer> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stop = is_stopped.clone();
        let thread = std::thread::spawn(move || {
            // Where it runs decides how fast it is, not whether it is right.
            let _ = crate::system::pin_this_thread(&cpus);
            let _ = serve(&listener, &script, &stop);
        });
        Ok(NullServer { address, is_stopped, thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for NullServer {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// TLS as the null server speaks it: 1.3, whichever protocol the client offers, sessions resumed by
/// tickets.
///
/// # Errors
///
/// The file system's, or `InvalidData` if the files hold no certificate or no key for it.
pub fn tls(files: &CertificateFiles) -> io::Result<Arc<ServerConfig>> {
    let invalid = |error: &dyn std::fmt::Display| {
        io::Error::new(io::ErrorKind::InvalidData, error.to_string())
    };
    let certificates = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| invalid(&error))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| invalid(&error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3 suites")
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(|error| invalid(&error))?;
    config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
    config.ticketer = aws_lc_rs::Ticketer::new().map_err(|error| invalid(&error))?;
    Ok(Arc::new(config))
}

/// The bytes of a text message, as a server sends it.
#[must_use]
pub fn message_of(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame(&mut out, TEXT, None, text);
    out
}

/// Takes the head that opens a WebSocket, answers it, and says how many bytes of messages there are
/// in `bytes`; none as long as the head is not whole.
fn open(offer: &mut Option<Vec<u8>>, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<Option<usize>> {
    let Some(head) = offer else { return Ok(Some(bytes.len())) };
    head.extend_from_slice(bytes);
    let Some(end) = memchr::memmem::find(head, b"\r\n\r\n") else { return Ok(None) };
    let key = offered_key(&head[..end]).ok_or(io::ErrorKind::InvalidData)?;
    let reply = format!(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-accept: {}\r\n\r\n",
        accept_key(key)
    );
    out.extend_from_slice(reply.as_bytes());
    let count = head.len() - end - 4;
    *offer = None;
    Ok(Some(count))
}

/// One connection.
struct Peer {
    stream: TcpStream,
    session: Option<Box<ServerConnection>>,
    /// Bytes of a request that is not whole yet, where only their number counts.
    pending_bytes: usize,
    /// How much of the empty line has been seen, where that ends a request.
    matched: usize,
    answered: u64,
    /// The head that opens a WebSocket, as far as it is there; none: it is open.
    offer: Option<Vec<u8>>,
    frames: Frames,
    unsent: Vec<u8>,
}

/// Serves connections until `is_stopped`.
///
/// # Errors
///
/// The kernel's, if the server itself cannot go on.
pub fn serve(listener: &TcpListener, script: &Script, is_stopped: &AtomicBool) -> io::Result<()> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    listener.set_nonblocking(true)?;
    epoll::add(&poll, listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
    let mut peers: HashMap<u64, Peer> = HashMap::new();
    let mut next = 0;
    let mut events = Vec::with_capacity(256);
    let mut bytes = vec![0; READ_BYTES_MAX];
    while !is_stopped.load(Ordering::Relaxed) {
        events.clear();
        match epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&LOOK)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events.drain(..) {
            let (id, flags) = (event.data.u64(), event.flags);
            if id == LISTENER {
                accept(listener, &poll, script, &mut peers, &mut next)?;
                continue;
            }
            let Some(peer) = peers.get_mut(&id) else { continue };
            let interest = match peer.on_ready(script, &mut bytes) {
                // Closing the descriptor takes it out of the epoll set.
                Err(_) => {
                    peers.remove(&id);
                    continue;
                }
                Ok(true) => epoll::EventFlags::IN,
                // What is sent later is read for later, too.
                Ok(false) => epoll::EventFlags::OUT,
            };
            if interest == epoll::EventFlags::OUT || flags.contains(epoll::EventFlags::OUT) {
                epoll::modify(&poll, &peer.stream, epoll::EventData::new_u64(id), interest)?;
            }
        }
    }
    Ok(())
}

fn accept(
    listener: &TcpListener,
    poll: &OwnedFd,
    script: &Script,
    peers: &mut HashMap<u64, Peer>,
    next: &mut u64,
) -> io::Result<()> {
    // A connection that is gone already, or one too many for this process, is not the server's end.
    while let Ok((stream, _)) = listener.accept() {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let session = match &script.tls {
            Some(config) => {
                let session = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
                Some(Box::new(session))
            }
            None => None,
        };
        epoll::add(poll, &stream, epoll::EventData::new_u64(*next), epoll::EventFlags::IN)?;
        let peer = Peer {
            stream,
            session,
            pending_bytes: 0,
            matched: 0,
            answered: 0,
            offer: matches!(script.end, RequestEnd::Messages(_)).then(Vec::new),
            frames: Frames::default(),
            unsent: Vec::new(),
        };
        peers.insert(*next, peer);
        *next += 1;
    }
    Ok(())
}

impl Peer {
    /// Reads what is there and answers every whole request in it with one write; whether all of
    /// it is sent. An error is the end of the connection, also the intended one.
    fn on_ready(&mut self, script: &Script, bytes: &mut [u8]) -> io::Result<bool> {
        if !self.unsent.is_empty() {
            return self.flush();
        }
        let count = match self.stream.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) => return Err(error),
        };
        let Some(mut session) = self.session.take() else {
            let mut replies = std::mem::take(&mut self.unsent);
            let is_over = self.answer(&bytes[..count], script, &mut replies)?;
            self.unsent = replies;
            return self.end(is_over);
        };
        let mut rest = &bytes[..count];
        let (mut replies, mut is_over) = (Vec::new(), false);
        while !rest.is_empty() {
            session.read_tls(&mut rest)?;
            session.process_new_packets().map_err(io::Error::other)?;
            let mut reader = session.reader();
            while let Ok(plain) = reader.fill_buf() {
                let count = plain.len();
                if count == 0 {
                    break;
                }
                is_over |= self.answer(plain, script, &mut replies)?;
                reader.consume(count);
            }
        }
        session.writer().write_all(&replies)?;
        if is_over {
            session.send_close_notify();
        }
        while session.wants_write() {
            session.write_tls(&mut self.unsent)?;
        }
        self.session = Some(session);
        self.end(is_over)
    }

    fn end(&mut self, is_over: bool) -> io::Result<bool> {
        let is_sent = self.flush()?;
        // The last reply is small, so it fits the socket; if not, the client sees a short one.
        if is_over { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(is_sent) }
    }

    /// Appends a reply for each request that ends in `bytes`; whether the last one was the last.
    fn answer(&mut self, bytes: &[u8], script: &Script, out: &mut Vec<u8>) -> io::Result<bool> {
        let closing = script.last.as_ref();
        let mut finish = |answered: &mut u64| {
            *answered += 1;
            match closing {
                Some((after, _, reply)) if answered == after => {
                    out.extend_from_slice(reply);
                    true
                }
                _ => {
                    out.extend_from_slice(&script.reply);
                    false
                }
            }
        };
        match script.end {
            RequestEnd::Frames => {
                self.frames.answer(bytes, &script.reply, out)?;
                Ok(false)
            }
            RequestEnd::Messages(usual) => {
                let Some(count) = open(&mut self.offer, bytes, out)? else { return Ok(false) };
                self.pending_bytes += count;
                while self.pending_bytes >= usual {
                    self.pending_bytes -= usual;
                    out.extend_from_slice(&script.reply);
                }
                Ok(false)
            }
            RequestEnd::Bytes(usual) => {
                self.pending_bytes += bytes.len();
                loop {
                    let awaited = match closing {
                        Some((after, last_bytes, _)) if self.answered + 1 == *after => *last_bytes,
                        _ => usual,
                    };
                    if self.pending_bytes < awaited {
                        return Ok(false);
                    }
                    self.pending_bytes -= awaited;
                    if finish(&mut self.answered) {
                        return Ok(true);
                    }
                }
            }
            RequestEnd::EmptyLine => {
                let line = b"\r\n\r\n";
                let mut rest = bytes;
                // Most reads are whole requests, so the end is searched for in one go.
                while self.matched == 0 {
                    let Some(place) = memchr::memmem::find(rest, line) else { break };
                    rest = &rest[place + line.len()..];
                    if finish(&mut self.answered) {
                        return Ok(true);
                    }
                }
                for &byte in rest {
                    self.matched = match byte {
                        _ if byte == line[self.matched] => self.matched + 1,
                        b'\r' => 1,
                        _ => 0,
                    };
                    if self.matched == line.len() {
                        self.matched = 0;
                        if finish(&mut self.answered) {
                            return Ok(true);
                        }
                    }
                }
                Ok(false)
            }
        }
    }

    /// Sends what it can; whether all of it is gone.
    fn flush(&mut self) -> io::Result<bool> {
        let mut sent = 0;
        while sent < self.unsent.len() {
            match self.stream.write(&self.unsent[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.unsent.drain(..sent);
        Ok(self.unsent.is_empty())
    }
}
