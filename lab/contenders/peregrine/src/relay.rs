//! The small pool of connections to the lab's echo server, which stands for a database: they are
//! kept, each is lent to one handler at a time, and who finds none waits for a turn.

use std::env;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// The longest text that may be relayed.
const TEXT_BYTES_MAX: usize = 64;

/// The most connections of a pool.
const CONNECTIONS_MAX: usize = 16;

pub struct Pool {
    port: Option<u16>,
    turns: Semaphore,
    idle: Mutex<Vec<TcpStream>>,
}

impl Pool {
    pub fn from_environment() -> Pool {
        Pool {
            port: env::var("ECHO_PORT").ok().and_then(|port| port.parse().ok()),
            turns: Semaphore::new(CONNECTIONS_MAX),
            idle: Mutex::new(Vec::with_capacity(CONNECTIONS_MAX)),
        }
    }

    /// The text as it came back.
    pub async fn relay(&self, text: &str) -> io::Result<String> {
        let mut room = [0; TEXT_BYTES_MAX];
        let back = room.get_mut(..text.len()).ok_or(io::ErrorKind::InvalidInput)?;
        let _turn = self.turns.acquire().await.map_err(io::Error::other)?;
        let mut stream = match self.take() {
            Some(stream) => stream,
            None => self.connect().await?,
        };
        stream.write_all(text.as_bytes()).await?;
        stream.read_exact(back).await?;
        // After an error, or where the handler was dropped meanwhile, it is not put back.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        String::from_utf8(back.to_vec()).map_err(io::Error::other)
    }

    fn take(&self) -> Option<TcpStream> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let port = self.port.ok_or(io::ErrorKind::AddrNotAvailable)?;
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}
