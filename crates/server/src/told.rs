//! What the access log tells of a request.

use peregrine_web::connection::ConnectionInfo;
use peregrine_web::head::Head;
use peregrine_web::trace::Place;
use std::rc::Rc;

/// What the access log tells of a request beside what is counted.
#[derive(Default)]
pub(crate) struct Told {
    /// The request's head, if it was understood and there is a log.
    pub(crate) head: Option<Head>,
    /// The connection, if there is a log.
    pub(crate) connection: Option<Rc<ConnectionInfo>>,
    /// The first line of what was no request.
    pub(crate) refused: Vec<u8>,
    /// The request's place in its trace.
    pub(crate) trace: Option<Place>,
    /// Bytes of the request's content that came.
    pub(crate) received: u64,
    /// Bytes of the response's content that were written.
    pub(crate) sent: u64,
}
