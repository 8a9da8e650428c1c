//! Accepts connections.

use std::io;
use std::rc::Rc;

use peregrine_driver::Socket;
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::UnixListener;

use crate::connection::Connection;
use crate::stream::Stream;
use crate::worker::{Worker, increment};

/// A listening socket of one worker. The kernel closes what is in its backlog when it is dropped.
pub struct Listener {
    source: Source,
    worker: Rc<Worker>,
}

enum Source {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixListener),
}

impl Listener {
    pub(crate) fn new(socket: Socket, worker: Rc<Worker>) -> io::Result<Self> {
        let source = match socket {
            Socket::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                // A reply must not wait for the peer's delayed acknowledgement. Linux hands this
                // option on to every accepted socket, which saves a call per connection.
                socket2::SockRef::from(&listener).set_tcp_nodelay(true)?;
                Source::Tcp(TcpListener::from_std(listener)?)
            }
            #[cfg(unix)]
            Socket::Unix(listener) => {
                listener.set_nonblocking(true)?;
                Source::Unix(UnixListener::from_std(listener)?)
            }
        };
        Ok(Self { source, worker })
    }
}

impl peregrine_driver::Listener for Listener {
    type Stream = Stream;

    async fn accept(&self) -> io::Result<Stream> {
        let accepted = match &self.source {
            Source::Tcp(listener) => match listener.accept().await {
                Ok((socket, _)) => prepare(&socket).map(|()| Connection::Tcp(socket)),
                Err(error) => Err(error),
            },
            #[cfg(unix)]
            Source::Unix(listener) => {
                listener.accept().await.map(|(socket, _)| Connection::Unix(socket))
            }
        };
        increment(&self.worker.figures.calls);
        let connection = accepted?;
        increment(&self.worker.figures.accepted);
        Ok(Stream::new(connection, Rc::clone(&self.worker)))
    }
}

/// Sets what the listening socket does not hand on.
#[cfg(target_os = "linux")]
fn prepare(_socket: &tokio::net::TcpStream) -> io::Result<()> {
    Ok(())
}

/// Sets what the listening socket does not hand on.
#[cfg(not(target_os = "linux"))]
fn prepare(socket: &tokio::net::TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)
}
