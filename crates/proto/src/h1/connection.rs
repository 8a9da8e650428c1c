//! One HTTP/1 connection, which combines its two state machines.

use super::event::{Event, NextAction, WaitingFor};
use super::framing::Framing;
use super::receive::{self, ReceivePath};
use super::send::{self, BodyFraming, ExternalData, RequestInfo, ResponseLength, SendPath};
use crate::trailers::Trailers;
use crate::{Date, HeadIndex, Limits, Method, RequestError, Version};

/// One HTTP/1 connection: 64 bytes, without buffers.
///
/// Four kinds of methods, in the order of use:
///
/// - bytes in: [`receive`](Self::receive), [`receive_eof`](Self::receive_eof);
/// - bytes out: optionally [`send_interim`](Self::send_interim), then
///   [`send_response`](Self::send_response), then [`send_data`](Self::send_data) any number of
///   times, then always [`finish`](Self::finish); or [`switch_protocols`](Self::switch_protocols)
///   instead of all that;
/// - queries: [`next_action`](Self::next_action), [`waiting_for`](Self::waiting_for),
///   [`trailers`](Self::trailers);
/// - settings: [`stop_after_response`](Self::stop_after_response),
///   [`discard_body`](Self::discard_body), [`keep_reading_body`](Self::keep_reading_body).
///
/// ```
/// use peregrine_proto::{Date, HeadIndex, Limits};
/// use peregrine_proto::h1::{Connection, Event, NextAction, ResponseLength};
///
/// let (limits, date) = (Limits::default(), Date::from_unix_seconds(784_111_777));
/// let (mut connection, mut head) = (Connection::new(&limits), HeadIndex::new());
/// let unread = b"GET /hello HTTP/1.1\r\nHost: example.org\r\n\r\n";
/// let (used, event) = connection.receive(&limits, unread, &mut head);
/// assert_eq!(used, unread.len());
/// assert!(matches!(event, Event::Head(framing) if framing.keep_alive));
/// assert_eq!(head.path.slice(unread), b"/hello");
///
/// let mut out = Vec::new();
/// connection.send_response(200, [], ResponseLength::Exact(2), &date, &mut out);
/// connection.send_data(b"hi", &mut out);
/// connection.finish([], &mut out);
/// assert_eq!(connection.next_action(), NextAction::Request);
/// ```
#[derive(Debug)]
pub struct Connection {
    receive: ReceivePath,
    send: SendPath,
    /// Trailers of the current request, from its end to the next head.
    trailers: Option<Box<Trailers>>,
    /// How many more bytes of content may be discarded after the response.
    drain_left: u32,
    /// How many more bytes of chunk extensions are accepted.
    chunk_extension_bytes_left: u32,
    /// Whether the current request's method is HEAD.
    is_head_request: bool,
    /// Whether the current request's version is HTTP/1.0.
    is_http10: bool,
    /// Whether the current request requests an upgrade to another protocol.
    wants_upgrade: bool,
    /// Whether the client waits for a 100 response before it sends content.
    expects_continue: bool,
    /// Whether another request may follow the current one.
    keep_alive: bool,
    /// Whether the server does not accept further requests.
    draining: bool,
    /// What to do with the rest of the current request's content.
    body_demand: BodyDemand,
    /// Whether a head was already received.
    has_received_head: bool,
}

/// What to do with the rest of a request's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyDemand {
    /// Yield it until the response is complete, then discard it.
    Undecided,
    /// Yield it even after the response is complete.
    Keep,
    /// Discard it.
    Discard,
}

const _: () = assert!(size_of::<Connection>() <= 64, "every idle connection holds one");

impl Connection {
    /// Creates a connection.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        Self {
            receive: ReceivePath::new(),
            send: SendPath::new(),
            trailers: None,
            drain_left: limits.drain_bytes_max,
            chunk_extension_bytes_left: 0,
            is_head_request: false,
            is_http10: false,
            wants_upgrade: false,
            expects_continue: false,
            keep_alive: true,
            draining: false,
            body_demand: BodyDemand::Undecided,
            has_received_head: false,
        }
    }

    /// Processes bytes: returns how many of `unread` were used, and their meaning.
    ///
    /// `unread` holds all received bytes that were not used yet. After [`Event::NeedInput`], call
    /// again when there are more. While a head is incomplete, pass the same `head` to every call,
    /// because it contains the result so far. While content is received, `head` is not changed. The
    /// events do not depend on how the bytes are split between calls, except that content is split
    /// in the same way.
    #[inline]
    pub fn receive(
        &mut self,
        limits: &Limits,
        unread: &[u8],
        head: &mut HeadIndex,
    ) -> (usize, Event) {
        use receive::State;
        match self.receive.state() {
            State::Head => {
                let mut framing = Framing::default();
                let (used, event) = self.receive.read_head(limits, unread, head, &mut framing);
                match event {
                    Event::NeedInput => {}
                    Event::RequestError(error) => {
                        framing.keep_alive &= !error.closes_connection();
                        self.begin_exchange(limits, head, &framing);
                    }
                    _ => self.begin_exchange(limits, head, &framing),
                }
                (used, event)
            }
            State::Exact | State::Chunked => self.receive_body(limits, unread),
            State::Done => (0, Event::Paused),
            State::Upgraded => (0, Event::Upgraded),
            State::Failed | State::Closed => (0, Event::Closed),
        }
    }

    /// Sets the state that the response depends on, from a complete head.
    #[inline]
    fn begin_exchange(&mut self, limits: &Limits, head: &HeadIndex, framing: &Framing) {
        self.trailers = None;
        self.has_received_head = true;
        self.is_head_request = head.method == Method::Head;
        self.is_http10 = head.version == Version::Http10;
        self.wants_upgrade = framing.upgrade;
        self.expects_continue = framing.expect_continue;
        self.body_demand = BodyDemand::Undecided;
        self.drain_left = limits.drain_bytes_max;
        self.chunk_extension_bytes_left = receive::EXTENSION_BYTES_SLACK;
        self.keep_alive = framing.keep_alive && !self.draining;
    }

    fn receive_body(&mut self, limits: &Limits, unread: &[u8]) -> (usize, Event) {
        let is_discarding =
            self.send.state() == send::State::Done && self.body_demand != BodyDemand::Keep;
        let chunk_max = if is_discarding { u64::from(self.drain_left) } else { u64::MAX };
        let extensions = &mut self.chunk_extension_bytes_left;
        let (used, event) = match self.receive.state() {
            receive::State::Exact => self.receive.read_exact_body(unread),
            _ => self.receive.read_chunked_body(
                limits,
                unread,
                chunk_max,
                extensions,
                &mut self.trailers,
            ),
        };
        match &event {
            Event::Data(range) => {
                self.expects_continue = false;
                if is_discarding {
                    let bytes =
                        u32::try_from(range.len()).expect("a chunk is at most `drain_left` bytes");
                    self.drain_left -= bytes;
                }
            }
            Event::RequestError(_) => self.keep_alive = false,
            _ => {}
        }
        self.join_directions();
        match self.receive.state() {
            receive::State::Closed if event == Event::NeedInput => (used, Event::Closed),
            _ => (used, event),
        }
    }

    /// Writes the head of the final response to the current request, and returns how its content is
    /// framed. Before the request's head is complete (after a timeout, for example), the response
    /// ends the connection.
    ///
    /// `status` is 200 to 999; anything else is written as 500. Of `fields`:
    /// - fields whose name is not a token are omitted;
    /// - control bytes in a value, including CR, LF and NUL, become spaces;
    /// - `Transfer-Encoding` is omitted: the framing follows from `length`;
    /// - `Content-Length` is omitted, but in a response to HEAD and in a 304 the first valid one is
    ///   written instead of `length`;
    /// - of `Connection`, the options `close` and `upgrade` are kept, all others are omitted;
    /// - the first `Date` replaces `date`.
    ///
    /// Panics if a response has begun.
    #[inline]
    pub fn send_response<'a>(
        &mut self,
        status: u16,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        length: ResponseLength,
        date: &Date,
        out: &mut Vec<u8>,
    ) -> BodyFraming {
        match self.receive.state() {
            receive::State::Done => {}
            receive::State::Exact | receive::State::Chunked => {
                // RFC 9110 §10.1.1: after a final response instead of 100, the client may or may
                // not send the content, so the next bytes would be ambiguous.
                self.keep_alive &= !self.expects_continue && !self.will_abandon_body();
            }
            receive::State::Head => {
                self.receive.transition(receive::Transition::Close);
                self.keep_alive = false;
            }
            _ => self.keep_alive = false,
        }
        let request = RequestInfo {
            is_head_request: self.is_head_request,
            is_http10: self.is_http10,
            keep_alive: self.keep_alive && !self.draining,
        };
        let (framing, keep_alive) =
            self.send.send_response(status, fields, length, request, date, out);
        self.keep_alive = keep_alive;
        framing
    }

    /// Writes content of the response, framed. Returns how many bytes of `data` were written; the
    /// rest exceeds the length of the response. For a response without content, this is 0.
    #[inline]
    pub fn send_data(&mut self, data: &[u8], out: &mut Vec<u8>) -> usize {
        let external = self.begin_external_data(data.len(), out);
        out.extend_from_slice(&data[..external.accepted]);
        out.extend_from_slice(external.suffix);
        external.accepted
    }

    /// Like [`send_data`](Self::send_data), for content that the caller sends from its own memory:
    /// writes the framing before it. The caller sends `accepted` bytes of content, then `suffix`.
    #[inline]
    pub fn begin_external_data(&mut self, bytes: usize, out: &mut Vec<u8>) -> ExternalData {
        self.send.begin_external_data(bytes, out)
    }

    /// Ends the response. Must be called for every response, even one without content.
    ///
    /// Trailers are written only with chunked content; fields that
    /// [`send_response`](Self::send_response) would omit, or that must not be trailers, are
    /// omitted. If less content was sent than Content-Length announced, the connection closes.
    /// Panics if no response has begun.
    #[inline]
    pub fn finish<'a>(
        &mut self,
        trailers: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        out: &mut Vec<u8>,
    ) {
        let is_complete = self.send.finish(trailers, out);
        self.keep_alive &= is_complete;
        self.join_directions();
    }

    /// Returns whether it is already known that the content will not be read to its end: the rest
    /// is to be discarded, but exceeds the limit for that or has an unknown length.
    // RFC 9112 §9.6: a server that does not read the whole message closes, and says so in its
    // response.
    fn will_abandon_body(&self) -> bool {
        let is_chunked = self.receive.state() == receive::State::Chunked;
        self.body_demand == BodyDemand::Discard && (is_chunked || self.exceeds_drain_limit())
    }

    /// Returns whether more content is announced than may be discarded.
    #[inline]
    fn exceeds_drain_limit(&self) -> bool {
        self.receive.body_bytes_left() > u64::from(self.drain_left)
    }

    /// Called after either direction has made progress. Once both are done, the connection is ready
    /// for the next request, or closes.
    #[inline]
    fn join_directions(&mut self) {
        if self.send.state() != send::State::Done {
            return;
        }
        match self.receive.state() {
            receive::State::Closed => {}
            receive::State::Exact | receive::State::Chunked
                if self.body_demand == BodyDemand::Keep => {}
            _ if !self.keep_alive || self.draining => {
                self.receive.transition(receive::Transition::Close)
            }
            receive::State::Done => {
                self.receive.transition(receive::Transition::NextRequest);
                self.send.transition(send::Transition::NextRequest);
                self.is_head_request = false;
                self.is_http10 = false;
                self.wants_upgrade = false;
                self.expects_continue = false;
            }
            _ if self.exceeds_drain_limit() => self.receive.transition(receive::Transition::Close),
            _ => {}
        }
    }

    /// Writes an interim response: 100, 102, 103 or another 1xx, but not 101. Writes nothing if the
    /// response is not allowed: to an HTTP/1.0 client, before a head is complete, after the final
    /// response has begun, or if it is a 100 and the client does not wait for it. Fields are
    /// handled as by [`send_response`](Self::send_response).
    pub fn send_interim<'a>(
        &mut self,
        status: u16,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        out: &mut Vec<u8>,
    ) {
        use receive::State;
        // RFC 9110 §15.2: a server must not send a 1xx response to an HTTP/1.0 client.
        let is_allowed = !self.is_http10
            && self.send.state() == send::State::Waiting
            && matches!(self.receive.state(), State::Exact | State::Chunked | State::Done);
        let is_allowed_status = match status {
            100 => self.expects_continue,
            _ => (102..200).contains(&status),
        };
        if is_allowed && is_allowed_status {
            send::write_interim(status, fields, out);
            self.expects_continue &= status != 100;
        }
    }

    /// Writes the 101 response to a request with [`Framing::upgrade`] whose content was received.
    /// From then on all unread bytes belong to the other protocol. The fields must name it in
    /// `Upgrade`; `Connection` is written here. Returns `false`, and writes nothing, if there is no
    /// such request.
    pub fn switch_protocols<'a>(
        &mut self,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        out: &mut Vec<u8>,
    ) -> bool {
        // RFC 9110 §7.8: a server must not switch to a protocol that the client did not ask for.
        let can_switch = self.wants_upgrade
            && self.receive.state() == receive::State::Done
            && self.send.state() == send::State::Waiting;
        if can_switch {
            send::write_interim(101, fields, out);
            self.receive.transition(receive::Transition::Switch);
            self.send.transition(send::Transition::Switch);
        }
        can_switch
    }

    /// Must be called when the peer has finished sending, after all earlier bytes were passed to
    /// [`receive`](Self::receive), which returned [`Event::NeedInput`].
    ///
    /// Returns `Closed` between requests, `RequestError` within a request, and `Paused` if a
    /// complete request waits for its response. That response can still be sent, because the peer
    /// may have closed only its own direction.
    pub fn receive_eof(&mut self) -> Event {
        use receive::State;
        let event = match self.receive.state() {
            State::Head if self.receive.is_in_head() => {
                self.receive.fail(RequestError::HeadTruncated)
            }
            State::Exact | State::Chunked if self.send.state() != send::State::Done => {
                self.receive.fail(RequestError::BodyIncomplete)
            }
            State::Head | State::Exact | State::Chunked | State::Failed | State::Closed => {
                self.receive.transition(receive::Transition::Close);
                Event::Closed
            }
            State::Done => return Event::Paused,
            State::Upgraded => return Event::Upgraded,
        };
        self.keep_alive = false;
        event
    }

    /// The event that the connection is waiting for.
    #[must_use]
    pub fn waiting_for(&self) -> WaitingFor {
        use receive::State;
        match self.receive.state() {
            State::Head if self.receive.is_in_head() => WaitingFor::Head,
            State::Head if self.has_received_head => WaitingFor::NextRequest,
            State::Head => WaitingFor::FirstByte,
            State::Exact | State::Chunked => WaitingFor::Body,
            State::Done | State::Failed | State::Upgraded | State::Closed => WaitingFor::Nothing,
        }
    }

    /// Makes the current request the last one; its response contains `connection: close`. Between
    /// requests, [`next_action`](Self::next_action) is `Close`; a response to a request that has
    /// arrived can still be sent.
    pub fn stop_after_response(&mut self) {
        self.draining = true;
    }

    /// Declares that the rest of the current request's content is not needed. Call this as soon as
    /// that is known, at the latest before [`send_response`](Self::send_response), whose head then
    /// contains `connection: close` unless the rest is known to be short enough to be discarded.
    /// Content that arrives after the call is still yielded; ignore it.
    ///
    /// Without the call, the response leaves the connection open, because the content may be read
    /// while the response is sent. If the rest then turns out to exceed the limit for discarded
    /// content, the connection closes without notice, and a request that the client has already
    /// sent is lost.
    ///
    /// After [`keep_reading_body`](Self::keep_reading_body) and a complete response, this call may
    /// change [`next_action`](Self::next_action).
    pub fn discard_body(&mut self) {
        self.body_demand = BodyDemand::Discard;
        self.join_directions();
    }

    /// Allows the rest of the current request's content to be read after its response is complete.
    /// Call it before [`finish`](Self::finish). Until [`discard_body`](Self::discard_body) is
    /// called, content is yielded up to its end, even if the connection closes afterwards.
    pub fn keep_reading_body(&mut self) {
        self.body_demand = BodyDemand::Keep;
    }

    /// The next step of the connection.
    #[inline]
    #[must_use]
    pub fn next_action(&self) -> NextAction {
        use {receive::State, send::State as SendState};
        match (self.send.state(), self.receive.state()) {
            (SendState::Upgraded, _) => NextAction::Upgraded,
            (SendState::Done, State::Exact | State::Chunked) => NextAction::DiscardBody,
            (SendState::Done, _) | (SendState::Waiting, State::Closed) => NextAction::Close,
            (SendState::Waiting, State::Head) if self.draining && !self.receive.is_in_head() => {
                NextAction::Close
            }
            (SendState::Waiting, State::Head) => NextAction::Request,
            _ => NextAction::Respond,
        }
    }

    /// The trailers of the request, from its `End` to the next `Head`. Fields without a meaning in
    /// a trailer section (framing, routing, authentication and similar) are omitted.
    pub fn trailers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.trailers.iter().flat_map(|trailers| trailers.iter())
    }

    /// Checks all invariants.
    pub fn assert_invariants(&self) {
        use {receive::State, send::State as SendState};
        self.receive.assert_invariants();
        self.send.assert_invariants();
        let (receive, send) = (self.receive.state(), self.send.state());
        let is_upgraded = (receive == State::Upgraded, send == SendState::Upgraded);
        assert!(is_upgraded.0 == is_upgraded.1, "the two directions switch together");
        if receive == State::Head {
            assert!(send == SendState::Waiting, "the next head is read after the response");
        }
        if send == SendState::Done {
            assert!(receive != State::Done, "`join_directions` was called after both were done");
            assert!(receive != State::Failed, "a failed connection closes after the response");
        }
    }
}
