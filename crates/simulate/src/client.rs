//! [`SimClient`]: an HTTP/1.1 client of a simulated server.

use super::connection::SimConnection;
use super::request::SimRequest;
use super::response::ResponseReader;
use super::server::SimServer;
use super::sim::Sim;
use http::Method;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// An HTTP/1.1 client. It keeps its connections alive, as browsers do, and opens another one if all
/// of them are in use. This is a handle: clones share connections.
///
/// The client never retries: if the connection of a request breaks, the request is
/// [lost](super::SimRequestError).
#[derive(Clone)]
pub struct SimClient(Rc<ClientInner>);

struct ClientInner {
    server: SimServer,
    listener: usize,
    id: u64,
    /// Idle connections.
    idle: RefCell<Vec<ResponseReader>>,
}

impl SimClient {
    pub(super) fn new(server: SimServer, listener: usize) -> Self {
        let id = server.sim().next_client_id();
        Self(Rc::new(ClientInner { server, listener, id, idle: RefCell::default() }))
    }

    /// Creates a request. `target` is written into the request line unchanged.
    pub fn request(&self, method: Method, target: &str) -> SimRequest {
        SimRequest::new(self.clone(), method, target.to_owned())
    }

    /// Creates a GET request.
    pub fn get(&self, target: &str) -> SimRequest {
        self.request(Method::GET, target)
    }

    /// Creates a HEAD request.
    pub fn head(&self, target: &str) -> SimRequest {
        self.request(Method::HEAD, target)
    }

    /// Creates a POST request.
    pub fn post(&self, target: &str) -> SimRequest {
        self.request(Method::POST, target)
    }

    /// Creates a PUT request.
    pub fn put(&self, target: &str) -> SimRequest {
        self.request(Method::PUT, target)
    }

    /// Creates a PATCH request.
    pub fn patch(&self, target: &str) -> SimRequest {
        self.request(Method::PATCH, target)
    }

    /// Creates a DELETE request.
    pub fn delete(&self, target: &str) -> SimRequest {
        self.request(Method::DELETE, target)
    }

    /// Closes all idle connections.
    pub fn close(&self) {
        drop(self.0.idle.take());
    }

    /// Returns the number by which the events identify the client.
    pub(super) fn id(&self) -> u64 {
        self.0.id
    }

    pub(super) fn sim(&self) -> &Sim {
        self.0.server.sim()
    }

    /// Returns an idle connection, or opens a new one.
    pub(super) fn idle_or_new_connection(&self) -> ResponseReader {
        loop {
            let reader = self.0.idle.borrow_mut().pop();
            match reader {
                // The server has closed this connection in the meantime.
                Some(reader) if reader.is_readable() => {}
                Some(reader) => return reader,
                None => return ResponseReader::new(self.connect()),
            }
        }
    }

    fn connect(&self) -> SimConnection {
        let connection = self.0.server.connect_to(self.0.listener);
        let (client_id, connection_id) = (self.id(), connection.id());
        self.sim().log(format!("client {client_id}: opens connection {connection_id}"));
        connection
    }

    /// Returns a connection to the pool of idle ones.
    pub(super) fn return_connection(&self, connection: ResponseReader) {
        self.0.idle.borrow_mut().push(connection);
    }
}

impl fmt::Debug for SimClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimClient").field("id", &self.id()).finish_non_exhaustive()
    }
}
