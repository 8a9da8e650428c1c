//! The head of a request: one pooled block with its bytes, an index of them, and the matched route.

mod convert;
mod cookies;
mod identity_reads;
mod nominated;
pub(crate) mod selection;

pub use cookies::decode_cookie_value;
pub(crate) use identity_reads::{IdentityReads, NestedMarks};

use crate::http::interim::PendingInterims;
use bytes::Bytes;
use convert::uri_of;
use http::Uri;
use peregrine_proto::{
    FieldIndex, HeadBuilder, HeadIndex, KnownField, Limits, Method, RequestError, RequestLine,
    Span, Version,
};
use peregrine_router::Parameters;
use peregrine_slot::{Pool, Recycle};
use selection::Selection;
use std::fmt;
use std::rc::Rc;

/// A block whose buffer has a larger capacity than this is freed instead of pooled.
const POOLED_BLOCK_BYTES_MAX: usize = 16 * 1024;

thread_local! {
    static BLOCKS: Pool<SharedBlock> = const { Pool::new(64) };
}

/// The head of a request, as received. It is an eight-byte pointer to a pooled block; dropping the
/// last pointer returns the block to the pool.
#[doc(alias = "Head")]
#[doc(alias = "RequestParts")]
#[doc(alias = "parts")]
pub struct RequestHead(Option<SharedBlock>);

#[derive(Clone, Default)]
struct SharedBlock(Rc<HeadBlock>);

#[derive(Clone, Default)]
struct HeadBlock {
    bytes: Vec<u8>,
    index: HeadIndex,
    parameters: Parameters,
    route: Option<u32>,
    /// The `route` that the server's application matched, saved before a nested application (one
    /// that is used as a handler) replaces `route` with a route of its own. `None` if there is no
    /// nested application; `Some(None)` if the outer application matched no route.
    outer_route: Option<Option<u32>>,
    /// Shared by all copies of the head, so that interim responses sent through any copy reach the
    /// server.
    pending_interims: Rc<PendingInterims>,
    /// Also shared by all copies, so that the code that stores or sends the response sees a mark
    /// that was set on any of them.
    identity_reads: IdentityReads,
    selection: Selection,
}

impl Recycle for SharedBlock {
    fn create() -> Self {
        Self::default()
    }

    /// Clears the request and keeps the memory. Refuses to pool the block if another owner still
    /// has it or its buffer is too large. Every field is named, so that a new field does not
    /// compile until it is cleared here too.
    fn recycle(&mut self) -> bool {
        let Some(block) = Rc::get_mut(&mut self.0) else { return false };
        let HeadBlock {
            bytes,
            index,
            parameters,
            route,
            outer_route,
            pending_interims,
            identity_reads,
            selection,
        } = block;
        bytes.clear();
        index.clear();
        parameters.clear();
        (*route, *outer_route) = (None, None);
        match Rc::get_mut(pending_interims) {
            Some(interims) => interims.clear(),
            None => *pending_interims = Rc::default(),
        }
        identity_reads.clear();
        selection.clear();
        bytes.capacity() <= POOLED_BLOCK_BYTES_MAX
    }
}

impl RequestHead {
    /// An empty head from this thread's pool. The server fills [`RequestHead::index_mut`] with the
    /// parser, then calls [`RequestHead::set_bytes`] with the bytes that the index refers to; or it
    /// fills both with a [`HeadBuilder`] on [`RequestHead::buffers_mut`].
    #[must_use]
    pub fn from_pool() -> Self {
        Self(Some(Pool::get_local(&BLOCKS)))
    }

    /// Builds a head from its parts. The parser's rules apply.
    ///
    /// # Errors
    /// A part breaks a rule or exceeds one of the `limits`.
    pub fn build<'f>(
        limits: &Limits,
        line: &RequestLine<'_>,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
    ) -> Result<Self, RequestError> {
        let mut head = Self::from_pool();
        let (bytes, index) = head.buffers_mut();
        let mut builder = HeadBuilder::new(limits, line, bytes, index)?;
        for (name, value) in fields {
            builder.field(name, value)?;
        }
        builder.finish()?;
        Ok(head)
    }

    /// The queue of the request's interim responses.
    pub(crate) fn pending_interims(&self) -> &Rc<PendingInterims> {
        &self.block().pending_interims
    }

    pub(crate) fn set_pending_interims(&mut self, interims: Rc<PendingInterims>) {
        self.block_mut().pending_interims = interims;
    }

    /// The identities that the response to this request depends on.
    pub(crate) fn identity_reads(&self) -> &IdentityReads {
        &self.block().identity_reads
    }

    /// How the request's route was selected.
    pub(crate) fn selection(&self) -> &Selection {
        &self.block().selection
    }

    pub(crate) fn selection_mut(&mut self) -> &mut Selection {
        &mut self.block_mut().selection
    }

    pub(crate) fn set_identity_reads(&mut self, reads: IdentityReads) {
        self.block_mut().identity_reads = reads;
    }

    fn block(&self) -> &HeadBlock {
        &self.0.as_ref().expect("a head has its block until it is dropped").0
    }

    /// The block, for modification. If another head shares the block, it is copied first; that
    /// happens only if middleware rewrites requests.
    fn block_mut(&mut self) -> &mut HeadBlock {
        Rc::make_mut(&mut self.0.as_mut().expect("a head has its block until it is dropped").0)
    }

    /// Another reference to the same head, without a copy. For code that reads the head after the
    /// request was dropped.
    #[must_use]
    pub fn share(&self) -> Self {
        Self(self.0.clone())
    }

    /// The parser's output: where the parts of the head are in its bytes.
    #[must_use]
    pub fn index(&self) -> &HeadIndex {
        &self.block().index
    }

    /// The parser's output, for the parser to fill.
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

    /// The request line and the fields in the format of HTTP/1, into which a request received over
    /// HTTP/2 is converted. Fields that were removed are still included, and values that were set
    /// later follow the head.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.block().bytes
    }

    /// The bytes of `span`; empty if it is out of bounds.
    #[must_use]
    pub fn slice(&self, span: Span) -> &[u8] {
        let bytes = &self.block().bytes;
        bytes.get(usize::from(span.start)..usize::from(span.end)).unwrap_or(&[])
    }

    /// The text of `span`, which the parser guarantees to be ASCII; empty if it is not.
    fn text(&self, span: Span) -> &str {
        std::str::from_utf8(self.slice(span)).unwrap_or("")
    }

    /// The method's name.
    #[must_use]
    pub fn method_str(&self) -> &str {
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
                    .expect("the parser accepts only tokens as methods")
            }
        }
    }

    /// Replaces the request's method with a standard one. Its name is appended to the head's bytes;
    /// if the head would exceed 64 KiB, nothing changes.
    pub(crate) fn set_method(&mut self, method: Method) {
        let HeadBlock { bytes, index, .. } = self.block_mut();
        let name = method.name().unwrap_or_default();
        let (start, end) = (bytes.len(), bytes.len() + name.len());
        if let (Ok(start), Ok(end)) = (start.try_into(), end.try_into()) {
            bytes.extend_from_slice(name.as_bytes());
            (index.method, index.method_span) = (method, Span { start, end });
        }
    }

    /// Replaces the request's path and keeps its query. Both are written after the original head,
    /// whose length is `head_len`, so they overwrite a path that was set before. Returns `false` if
    /// the head would exceed 64 KiB; its path must then not be read.
    pub(crate) fn set_path(&mut self, path: &[u8], head_len: usize) -> bool {
        let query = self.query().map(str::to_owned);
        let HeadBlock { bytes, index, .. } = self.block_mut();
        bytes.truncate(head_len);
        bytes.extend_from_slice(path);
        let path_end = bytes.len();
        if let Some(query) = &query {
            bytes.push(b'?');
            bytes.extend_from_slice(query.as_bytes());
        }
        let offsets = (head_len.try_into(), path_end.try_into(), bytes.len().try_into());
        let (Ok(start), Ok(path_end), Ok(end)) = offsets else { return false };
        index.path = Span { start, end: path_end };
        index.target = Span { start, end };
        true
    }

    /// The HTTP version of the request.
    #[must_use]
    pub fn version(&self) -> http::Version {
        match self.index().version {
            Version::Http10 => http::Version::HTTP_10,
            Version::Http11 => http::Version::HTTP_11,
            Version::Http2 => http::Version::HTTP_2,
        }
    }

    /// The path as sent by the client, still percent-encoded; `*` for `OPTIONS *`. A tower layer,
    /// or the service in which this application is mounted, may have changed it; see
    /// [`RequestHead::original_path`].
    #[must_use]
    pub fn path(&self) -> &str {
        let block = self.block();
        std::str::from_utf8(block.index.path_bytes(&block.bytes)).unwrap_or("")
    }

    /// The query, without its question mark.
    #[must_use]
    pub fn query(&self) -> Option<&str> {
        self.index().query.map(|span| self.text(span))
    }

    /// The authority of the request: that of the target (`:authority` over HTTP/2) if it has one,
    /// else that of `Host`.
    #[must_use]
    pub fn authority(&self) -> &str {
        self.text(self.index().authority)
    }

    /// The request target as a [`Uri`], which each call parses again.
    #[must_use]
    pub fn uri(&self) -> Uri {
        uri_of(Bytes::copy_from_slice(self.slice(self.index().target)))
    }

    /// As [`RequestHead::header_bytes`], but does not mark the response as specific to the client.
    /// For code that does not use the value for the response, such as logs, and for code that keeps
    /// the responses of different clients apart itself, such as caches. A test of
    /// [`private_response`](crate::private_response) lists the files that may call it.
    #[doc(hidden)]
    #[must_use]
    pub fn header_bytes_untracked<'h>(&'h self, name: &str) -> Option<&'h [u8]> {
        let known = KnownField::from_name(name.as_bytes());
        if known != KnownField::Other {
            return Some(self.slice(self.index().get(known)?));
        }
        let mut fields = self.index().fields.iter();
        let field = fields.find(|field| {
            field.known == KnownField::Other
                && self.slice(field.name).eq_ignore_ascii_case(name.as_bytes())
        })?;
        Some(self.slice(field.value))
    }

    /// The content type, if it begins with `application/grpc`.
    #[must_use]
    pub fn grpc_content_type(&self) -> Option<&[u8]> {
        const GRPC: &[u8] = b"application/grpc";
        let value = self.header_bytes("content-type")?;
        value.get(..GRPC.len()).filter(|prefix| prefix.eq_ignore_ascii_case(GRPC)).map(|_| value)
    }

    /// The value of the first field called `name` (case-insensitive), if it is text.
    #[doc(alias = "field")]
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.header_bytes(name)?).ok()
    }

    /// As [`RequestHead::header_values`], but does not mark the response as specific to the client;
    /// see [`RequestHead::header_bytes_untracked`].
    #[doc(hidden)]
    pub fn header_values_untracked<'h>(
        &'h self,
        name: &'h str,
    ) -> impl Iterator<Item = &'h [u8]> + 'h {
        let known = KnownField::from_name(name.as_bytes());
        let index = self.index();
        // Most lookups are for absent fields; for known names, one bit of the index shows that.
        let fields = if index.contains(known) { &index.fields[..] } else { &[] };
        fields
            .iter()
            .filter(move |field| {
                field.known == known
                    && (known != KnownField::Other
                        || self.slice(field.name).eq_ignore_ascii_case(name.as_bytes()))
            })
            .map(|field| self.slice(field.value))
    }

    /// As [`RequestHead::remove_fields`], but does not mark the response as specific to the client.
    pub(crate) fn remove_fields_untracked(&mut self, names: &[&str]) {
        let HeadBlock { bytes, index, .. } = self.block_mut();
        index.retain(|field| {
            let name = bytes.get(usize::from(field.name.start)..usize::from(field.name.end));
            let name = name.unwrap_or_default();
            !names.iter().any(|removed| name.eq_ignore_ascii_case(removed.as_bytes()))
        });
    }

    /// Appends a field, as if it had been sent. If the head would exceed 64 KiB, changes nothing
    /// and returns `false`.
    ///
    /// If the client named the field in `Connection`, the name is removed from there. Otherwise a
    /// proxy that obeys `Connection` would drop this field too, although the client meant only its
    /// own.
    pub fn append_header(&mut self, name: &str, value: &[u8]) -> bool {
        let start = self.as_bytes().len();
        let name_end = start + name.len();
        let offsets = (start.try_into(), name_end.try_into(), (name_end + value.len()).try_into());
        let (Ok(start), Ok(name_end), Ok(end)) = offsets else { return false };
        if self.index().contains(KnownField::Connection) {
            self.remove_connection_options(&[name]);
        }
        let HeadBlock { bytes, index, .. } = self.block_mut();
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(value);
        let known = KnownField::from_name(name.as_bytes());
        let (name_span, value_span) =
            (Span { start, end: name_end }, Span { start: name_end, end });
        index.fields.push(FieldIndex { name: name_span, value: value_span, known });
        // Keeps all fields: `retain` also updates the set of known names that are present.
        index.retain(|_| true);
        true
    }

    /// As [`RequestHead::headers`], but does not mark the response as specific to the client; see
    /// [`RequestHead::header_bytes_untracked`].
    #[doc(hidden)]
    pub fn headers_untracked(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let fields = self.index().fields.iter();
        fields.map(|field| (self.slice(field.name), self.slice(field.value)))
    }

    /// The path parameters that the router found.
    #[must_use]
    pub fn path_parameters(&self) -> &Parameters {
        &self.block().parameters
    }

    /// The ID of the route that the router found.
    #[must_use]
    pub fn route_id(&self) -> Option<u32> {
        self.block().route
    }

    /// The ID of the route that the server's application matched, even inside a nested application
    /// that is used as a handler.
    #[doc(hidden)]
    #[must_use]
    pub fn outer_route_id(&self) -> Option<u32> {
        self.block().outer_route.unwrap_or_else(|| self.route_id())
    }

    /// Copies the outer route and the selection from `original`, a head of the same request.
    pub(crate) fn copy_outer_route(&mut self, original: &Self) {
        let HeadBlock { outer_route, selection, .. } = original.block();
        let block = self.block_mut();
        (block.outer_route, block.selection) = (*outer_route, selection.clone());
    }

    /// Saves the current route as the outer route, unless an application around this one has
    /// already saved its own. To be called before a nested application, which is used as a handler,
    /// sets a route of its own.
    #[doc(hidden)]
    pub fn enter_nested_app(&mut self) {
        let block = self.block_mut();
        block.outer_route.get_or_insert(block.route);
        block.selection.enter(block.route);
    }

    /// Sets the route and the path parameters: calls `find`, which gets the path's bytes, writes
    /// the parameters, and returns the route's ID and a value for the caller.
    pub fn resolve<T>(
        &mut self,
        find: impl FnOnce(&[u8], &mut Parameters) -> (Option<u32>, T),
    ) -> T {
        let block = self.block_mut();
        let path = block.index.path_bytes(&block.bytes);
        let (route, result) = find(path, &mut block.parameters);
        block.route = route;
        result
    }
}

impl Drop for RequestHead {
    fn drop(&mut self) {
        if let Some(block) = self.0.take() {
            Pool::put_local(&BLOCKS, block);
        }
    }
}

impl fmt::Debug for RequestHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("RequestHead");
        debug.field("method", &self.method_str());
        debug.field("target", &self.text(self.index().target));
        // Values may be secrets, so only names are shown.
        let names: Vec<_> =
            self.headers_untracked().map(|(name, _)| String::from_utf8_lossy(name)).collect();
        debug.field("fields", &names).finish()
    }
}
