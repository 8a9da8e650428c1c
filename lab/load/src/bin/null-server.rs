//! The fastest server there is for a workload: it counts bytes and answers fixed ones, without
//! reading a request. It shows what the client itself can do, and the floor of the machine.
//!
//! Usage: `null-server WORKLOAD`, with the port in the variable PORT. Plain HTTP only.

#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
fn main() -> std::io::Result<()> {
    server::run()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("null-server: Linux only");
}

#[cfg(target_os = "linux")]
mod server {
    use std::collections::HashMap;
    use std::io::{self, Read, Write};
    use std::net::{TcpListener, TcpStream};

    use peregrine_lab_load::workload::Workload;
    use rustix::event::epoll;

    const LISTENER: u64 = u64::MAX;

    /// Which end of a request the bytes of a connection have reached.
    struct Peer {
        stream: TcpStream,
        unanswered_bytes: usize,
    }

    pub(crate) fn run() -> io::Result<()> {
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, text);
        let name = std::env::args().nth(1).ok_or_else(|| invalid("name a workload"))?;
        let workload = Workload::named(&name).ok_or_else(|| invalid("no such workload"))?;
        let port = std::env::var("PORT").ok().and_then(|port| port.parse().ok());
        let port: u16 = port.ok_or_else(|| invalid("PORT is not a port"))?;
        let reply = workload.answer.example();
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let interest = epoll::EventFlags::IN;
        epoll::add(&poll, &listener, epoll::EventData::new_u64(LISTENER), interest)?;
        let mut peers: HashMap<u64, Peer> = HashMap::new();
        let mut next = 0;
        let mut events = Vec::with_capacity(256);
        let mut replies = Vec::new();
        loop {
            events.clear();
            match epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in events.drain(..) {
                let id = event.data.u64();
                if id == LISTENER {
                    let (stream, _) = listener.accept()?;
                    stream.set_nodelay(true)?;
                    epoll::add(&poll, &stream, epoll::EventData::new_u64(next), interest)?;
                    peers.insert(next, Peer { stream, unanswered_bytes: 0 });
                    next += 1;
                    continue;
                }
                let Some(peer) = peers.get_mut(&id) else { continue };
                // Closing the descriptor takes it out of the epoll set.
                if answer(peer, workload.request.len(), &reply, &mut replies).is_err() {
                    peers.remove(&id);
                }
            }
        }
    }

    /// Reads what is there and answers every whole request in it with one write.
    fn answer(
        peer: &mut Peer,
        request_bytes: usize,
        reply: &[u8],
        replies: &mut Vec<u8>,
    ) -> io::Result<()> {
        let mut bytes = [0; 16 << 10];
        let count = peer.stream.read(&mut bytes)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        peer.unanswered_bytes += count;
        replies.clear();
        while peer.unanswered_bytes >= request_bytes {
            peer.unanswered_bytes -= request_bytes;
            replies.extend_from_slice(reply);
        }
        peer.stream.write_all(replies)
    }
}
