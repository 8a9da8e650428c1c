//! A request's head: one pooled block with its bytes, their index, and the route.

mod convert;
mod cookies;
mod nominated;
pub(crate) mod selection;

use crate::http::interim::Interims;
use bytes::Bytes;
use convert::uri_of;
use http::Uri;
use peregrine_proto::{
    FieldIndex, HeadBuilder, HeadIndex, Known, Limits, Method, Reject, RequestLine, Span, Version,
};
use peregrine_router::Parameters;
use peregrine_slot::{Pool, Reuse};
use selection::Selection;
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

/// A block whose bytes grew beyond this is freed, not kept.
const BLOCK_BYTES_MAX: usize = 16 * 1024;

thread_local! {
    static BLOCKS: Pool<Shared> = const { Pool::new(64) };
}

/// The head of a request, as it was on the wire. Eight bytes that point to a pooled block; dropping the
/// last pointer gives the block back.
pub struct Head(Option<Shared>);

#[derive(Clone, Default)]
struct Shared(Rc<Block>);

#[derive(Clone, Default)]
struct Block {
    bytes: Vec<u8>,
    index: HeadIndex,
    parameters: Parameters,
    route: Option<u32>,
    /// The server's route, where an application that is used as a handler has noted one of its own.
    outer_route: Option<Option<u32>>,
    /// Shared by all copies of the head, so that a rewritten one reaches the server too.
    interims: Rc<Interims>,
    /// Shared likewise, so that a mark on any copy is seen wherever the response is stored or sent.
    identity_reads: IdentityReads,
    selection: Selection,
}

/// The identities that the response to a request depends on so far. All copies of the request's
/// head share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdentityReads(Rc<Cell<u8>>);

impl IdentityReads {
    /// The marks, whose meaning is in [`private_response`](crate::http::private_response).
    pub(crate) fn bits(&self) -> u8 {
        self.0.get()
    }

    pub(crate) fn mark(&self, bits: u8) {
        self.0.set(self.0.get() | bits);
    }

    /// Forgets the marks, unless a watch still holds them.
    fn clear(&mut self) {
        match Rc::get_mut(&mut self.0) {
            Some(bits) => bits.set(0),
            None => self.0 = Rc::default(),
        }
    }
}

impl Reuse for Shared {
    fn make() -> Self {
        Self::default()
    }

    /// Forgets the request and keeps the memory, unless another owner still has the block. Every field
    /// is named, so that a new field does not compile until it is cleared here as well.
    fn clean(&mut self) -> bool {
        let Some(block) = Rc::get_mut(&mut self.0) else { return false };
        let Block {
            bytes,
            index,
            parameters,
            route,
            outer_route,
            interims,
            identity_reads,
            selection,
        } = block;
        bytes.clear();
        index.clear();
        parameters.clear();
        (*route, *outer_route) = (None, None);
        match Rc::get_mut(interims) {
            Some(interims) => interims.clear(),
            None => *interims = Rc::default(),
        }
        identity_reads.clear();
        selection.clear();
        bytes.capacity() <= BLOCK_BYTES_MAX
    }
}

impl Head {
    /// An empty head from this thread's stock. The server fills [`Head::index_mut`] with the parser,
    /// then calls [`Head::set_bytes`] with the bytes that the index refers to; or it fills both with a
    /// [`HeadBuilder`] on [`Head::buffers_mut`].
    #[must_use]
    pub fn take() -> Self {
        Self(Some(Pool::take_local(&BLOCKS)))
    }

    /// A head from its parts, by the rules of the parser.
    ///
    /// # Errors
    /// A part breaks a rule or exceeds one of the `limits`.
    pub fn build<'f>(
        limits: &Limits,
        line: &RequestLine<'_>,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
    ) -> Result<Self, Reject> {
        let mut head = Self::take();
        let (bytes, index) = head.buffers_mut();
        let mut builder = HeadBuilder::begin(limits, line, bytes, index)?;
        for (name, value) in fields {
            builder.field(name, value)?;
        }
        builder.finish()?;
        Ok(head)
    }

    /// What the request's handler sends before its response.
    pub(crate) fn interims(&self) -> &Rc<Interims> {
        &self.block().interims
    }

    pub(crate) fn set_interims(&mut self, interims: Rc<Interims>) {
        self.block_mut().interims = interims;
    }

    /// The identities that the response to this request depends on.
    pub(crate) fn identity_reads(&self) -> &IdentityReads {
        &self.block().identity_reads
    }

    /// What the request was matched by.
    pub(crate) fn selection(&self) -> &Selection {
        &self.block().selection
    }

    pub(crate) fn selection_mut(&mut self) -> &mut Selection {
        &mut self.block_mut().selection
    }

    pub(crate) fn set_identity_reads(&mut self, reads: IdentityReads) {
        self.block_mut().identity_reads = reads;
    }

    fn block(&self) -> &Block {
        &self.0.as_ref().expect("a head has its block until it drops").0
    }

    /// The block, to be changed. A shared block is copied first, which only happens for a middleware
    /// that rewrites requests.
    fn block_mut(&mut self) -> &mut Block {
        Rc::make_mut(&mut self.0.as_mut().expect("a head has its block until it drops").0)
    }

    /// Another reference to the same head, without a copy: for code that looks at the head after the
    /// request is gone.
    #[must_use]
    pub fn share(&self) -> Self {
        Self(self.0.clone())
    }

    /// The parser's output.
    #[must_use]
    pub fn index(&self) -> &HeadIndex {
        &self.block().index
    }

    /// The parser's output, to be filled.
    pub fn index_mut(&mut self) -> &mut HeadIndex {
        &mut self.block_mut().index
    }

    /// The bytes and the index that refers to them, for a [`HeadBuilder`].
    pub fn buffers_mut(&mut self) -> (&mut Vec<u8>, &mut HeadIndex) {
        let block = self.block_mut();
        (&mut block.bytes, &mut block.index)
    }

    /// Copies the bytes that the index refers to.
    pub fn set_bytes(&mut self, bytes: &[u8]) {
        let block = self.block_mut();
        block.bytes.clear();
        block.bytes.extend_from_slice(bytes);
    }

    /// The head as it was on the wire of HTTP/1, or would have been: request line and fields.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.block().bytes
    }

    /// The bytes of `span`.
    #[must_use]
    pub fn slice(&self, span: Span) -> &[u8] {
        let bytes = &self.block().bytes;
        bytes.get(usize::from(span.start)..usize::from(span.end)).unwrap_or(&[])
    }

    /// The text of `span`, which the parser guarantees to be ASCII; anything else reads as empty.
    fn text(&self, span: Span) -> &str {
        std::str::from_utf8(self.slice(span)).unwrap_or("")
    }

    /// The method's name.
    #[must_use]
    pub fn method_name(&self) -> &str {
        self.text(self.index().method_span)
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> http::Method {
        match self.index().method {
            Method::Get => http::Method::GET,
            Method::Head => http::Method::HEAD,
            Method::Post => http::Method::POST,
            Method::Put => http::Method::PUT,
            Method::Delete => http::Method::DELETE,
            Method::Connect => http::Method::CONNECT,
            Method::Options => http::Method::OPTIONS,
            Method::Trace => http::Method::TRACE,
            Method::Patch => http::Method::PATCH,
            Method::Query | Method::Extension => {
                http::Method::from_bytes(self.slice(self.index().method_span))
                    .expect("the parser lets only tokens pass as methods")
            }
        }
    }

    /// Gives the request another method than the one that was sent. Its name stands behind the head's bytes.
    pub(crate) fn set_method(&mut self, method: Method) {
        let Block { bytes, index, .. } = self.block_mut();
        let name = method.name().unwrap_or_default();
        let (start, end) = (bytes.len(), bytes.len() + name.len());
        if let (Ok(start), Ok(end)) = (start.try_into(), end.try_into()) {
            bytes.extend_from_slice(name.as_bytes());
            (index.method, index.method_span) = (method, Span { start, end });
        }
    }

    /// Gives the request another path, and keeps its query. Both are written at `from`, the length
    /// of the original head, over a path that was set before. `false`: a head of 64 KiB has no
    /// room.
    pub(crate) fn set_path(&mut self, path: &[u8], from: usize) -> bool {
        let query = self.query().map(str::to_owned);
        let Block { bytes, index, .. } = self.block_mut();
        bytes.truncate(from);
        bytes.extend_from_slice(path);
        let middle = bytes.len();
        if let Some(query) = &query {
            bytes.push(b'?');
            bytes.extend_from_slice(query.as_bytes());
        }
        let places = (from.try_into(), middle.try_into(), bytes.len().try_into());
        let (Ok(start), Ok(middle), Ok(end)) = places else { return false };
        index.path = Span { start, end: middle };
        index.target = Span { start, end };
        true
    }

    /// The version of HTTP that the peer speaks.
    #[must_use]
    pub fn version(&self) -> http::Version {
        match self.index().version {
            Version::Http10 => http::Version::HTTP_10,
            Version::Http11 => http::Version::HTTP_11,
            Version::Http2 => http::Version::HTTP_2,
        }
    }

    /// The path as it was sent, still percent-encoded; `*` for `OPTIONS *`.
    #[must_use]
    pub fn path(&self) -> &str {
        let block = self.block();
        std::str::from_utf8(block.index.path_of(&block.bytes)).unwrap_or("")
    }

    /// The query without its question mark.
    #[must_use]
    pub fn query(&self) -> Option<&str> {
        self.index().query.map(|span| self.text(span))
    }

    /// The authority that the request is for: from an absolute target, else from `Host`.
    #[must_use]
    pub fn authority(&self) -> &str {
        self.text(self.index().authority)
    }

    /// The request target as an [`Uri`]. Builds it at each call.
    #[must_use]
    pub fn uri(&self) -> Uri {
        uri_of(Bytes::copy_from_slice(self.slice(self.index().target)))
    }

    /// As [`Head::field`], without the mark: for code on whose result the response does not depend,
    /// such as logs, and for that which takes care of it, such as caches. Its callers are listed in
    /// the tests of [`Personal`].
    #[doc(hidden)]
    #[must_use]
    pub fn peek_field<'h>(&'h self, name: &str) -> Option<&'h [u8]> {
        let known = Known::find(name.as_bytes());
        if known != Known::Other {
            return Some(self.slice(self.index().find(known)?));
        }
        let mut fields = self.index().fields.iter();
        let field = fields.find(|field| {
            field.known == Known::Other
                && self.slice(field.name).eq_ignore_ascii_case(name.as_bytes())
        })?;
        Some(self.slice(field.value))
    }

    /// The type of the content, if that is one of gRPC's: `application/grpc`, and what begins so.
    #[must_use]
    pub fn grpc_type(&self) -> Option<&[u8]> {
        const GRPC: &[u8] = b"application/grpc";
        let value = self.field("content-type")?;
        value.get(..GRPC.len()).filter(|start| start.eq_ignore_ascii_case(GRPC)).map(|_| value)
    }

    /// The value of the first field called `name`, in any case, if it is text.
    #[must_use]
    pub fn field_text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.field(name)?).ok()
    }

    /// As [`Head::fields_named`], without the mark; see [`Head::peek_field`].
    #[doc(hidden)]
    pub fn peek_fields_named<'h>(&'h self, name: &'h str) -> impl Iterator<Item = &'h [u8]> + 'h {
        let known = Known::find(name.as_bytes());
        let index = self.index();
        // Of most that is asked for there is none, and the index knows by a bit.
        let fields = if index.has(known) { &index.fields[..] } else { &[] };
        fields
            .iter()
            .filter(move |field| {
                field.known == known
                    && (known != Known::Other
                        || self.slice(field.name).eq_ignore_ascii_case(name.as_bytes()))
            })
            .map(|field| self.slice(field.value))
    }

    /// As [`Head::remove_fields`], without the mark.
    pub(crate) fn omit_fields(&mut self, names: &[&str]) {
        let Block { bytes, index, .. } = self.block_mut();
        index.retain(|field| {
            let name = bytes.get(usize::from(field.name.start)..usize::from(field.name.end));
            let name = name.unwrap_or_default();
            !names.iter().any(|removed| name.eq_ignore_ascii_case(removed.as_bytes()))
        });
    }

    /// Adds a field behind the others, as if it had been sent. `false`: a head of 64 KiB has no place for it, and it is not added.
    ///
    /// If the client named the field in `Connection`, its name is removed there: that was about the
    /// client's field, and a proxy passes on this one.
    pub fn add_field(&mut self, field: &str, content: &[u8]) -> bool {
        if self.index().has(Known::Connection) {
            self.forget_nominated(&[field]);
        }
        let Block { bytes, index, .. } = self.block_mut();
        let (start, middle) = (bytes.len(), bytes.len() + field.len());
        let places = (start.try_into(), middle.try_into(), (middle + content.len()).try_into());
        let (Ok(start), Ok(middle), Ok(end)) = places else { return false };
        bytes.extend_from_slice(field.as_bytes());
        bytes.extend_from_slice(content);
        let (name, value) = (Span { start, end: middle }, Span { start: middle, end });
        let known = Known::find(field.as_bytes());
        index.fields.push(FieldIndex { name, value, known });
        // It counts which names there are anew.
        index.retain(|_| true);
        true
    }

    /// As [`Head::fields`], without the mark; see [`Head::peek_field`].
    #[doc(hidden)]
    pub fn peek_fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let fields = self.index().fields.iter();
        fields.map(|field| (self.slice(field.name), self.slice(field.value)))
    }

    /// The path parameters that the router found.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.block().parameters
    }

    /// The route that the router found.
    #[must_use]
    pub fn route(&self) -> Option<u32> {
        self.block().route
    }

    /// The route that the server found, also inside of an application that is used as a handler.
    #[doc(hidden)]
    #[must_use]
    pub fn server_route(&self) -> Option<u32> {
        self.block().outer_route.unwrap_or_else(|| self.route())
    }

    /// This head is the same request's.
    pub(crate) fn share_outer_route(&mut self, origin: &Self) {
        let Block { outer_route, selection, .. } = origin.block();
        let own = self.block_mut();
        (own.outer_route, own.selection) = (*outer_route, selection.clone());
    }

    /// From here on routes are those of an application that is used as a handler.
    #[doc(hidden)]
    pub fn keep_route(&mut self) {
        let block = self.block_mut();
        block.outer_route.get_or_insert(block.route);
        block.selection.enter(block.route);
    }

    /// Lets `find` read the path's bytes and write parameters; it returns the route.
    pub fn resolve<T>(
        &mut self,
        find: impl FnOnce(&[u8], &mut Parameters) -> (Option<u32>, T),
    ) -> T {
        let block = self.block_mut();
        let path = block.index.path_of(&block.bytes);
        let (route, result) = find(path, &mut block.parameters);
        block.route = route;
        result
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        if let Some(block) = self.0.take() {
            Pool::give_local(&BLOCKS, block);
        }
    }
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Head");
        debug.field("method", &self.method_name());
        debug.field("target", &self.text(self.index().target));
        // Values may be secrets: names only.
        let names: Vec<_> =
            self.peek_fields().map(|(name, _)| String::from_utf8_lossy(name)).collect();
        debug.field("fields", &names).finish()
    }
}
