//! Conversion of requests to the types of the `http` crate.

use super::RequestHead;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use peregrine_proto::{KnownField, Span};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::LazyLock;

/// The size of the memory blocks that hold copies of several heads. A block is freed when the last
/// of its copies is dropped, so in larger blocks one long-lived copy would keep more of the others
/// in memory.
const COPY_BLOCK_BYTES: usize = 4 * 1024;

thread_local! {
    static COPY_BLOCK: RefCell<BytesMut> = RefCell::default();
}

impl RequestHead {
    /// Converts the head to the `http` crate's request, with `body`. The target and all values
    /// share one copy of the head's bytes. The head represents an extended CONNECT of HTTP/2 as an
    /// HTTP/1.1 upgrade, so that request gets version HTTP/1.1.
    #[must_use]
    pub fn to_http<B>(&self, body: B) -> http::Request<B> {
        let shared = copy_to_bytes(self.as_bytes());
        let mut request = http::Request::new(body);
        *request.method_mut() = self.method();
        *request.version_mut() = match self.version() {
            http::Version::HTTP_2 if self.index().wants_upgrade(self.as_bytes()) => {
                http::Version::HTTP_11
            }
            version => version,
        };
        *request.uri_mut() = uri_of(shared.slice(to_range(self.index().target)));
        *request.headers_mut() = self.header_map_of(&shared);
        request
    }

    /// As [`RequestHead::to_header_map`], but does not mark the response as specific to the client;
    /// see [`RequestHead::header_bytes_untracked`].
    #[doc(hidden)]
    #[must_use]
    pub fn header_map_untracked(&self) -> HeaderMap {
        self.header_map_of(&Bytes::copy_from_slice(self.as_bytes()))
    }

    /// The fields; `shared` is a copy of the head's bytes.
    fn header_map_of(&self, shared: &Bytes) -> HeaderMap {
        let mut map = HeaderMap::with_capacity(self.index().fields.len());
        for field in &self.index().fields {
            let name = match KNOWN_NAMES.get(field.known as usize) {
                Some(name) => Ok(name.clone()),
                None => HeaderName::from_bytes(self.slice(field.name)),
            };
            let value = to_range(field.value);
            // The parser accepts only what these types accept, so neither conversion fails.
            if let (Ok(name), Ok(value)) =
                (name, HeaderValue::from_maybe_shared(shared.slice(value)))
            {
                map.append(name, value);
            }
        }
        map
    }
}

/// The well-known names as the `http` crate represents them, in the order of [`KnownField::ALL`].
static KNOWN_NAMES: LazyLock<Box<[HeaderName]>> = LazyLock::new(|| {
    KnownField::ALL.iter().map(|known| HeaderName::from_static(known.name())).collect()
});

/// Copies `bytes` into the current block, so that most copies need no allocation.
fn copy_to_bytes(bytes: &[u8]) -> Bytes {
    let copied = COPY_BLOCK.try_with(|block| {
        let mut block = block.borrow_mut();
        // The capacity is what remains of the block, because `split` removes each copy from it.
        if block.capacity() < bytes.len() {
            block.reserve(COPY_BLOCK_BYTES.max(bytes.len()));
        }
        block.extend_from_slice(bytes);
        block.split().freeze()
    });
    // While the thread exits, its block may already be freed.
    copied.unwrap_or_else(|_| Bytes::copy_from_slice(bytes))
}

fn to_range(span: Span) -> Range<usize> {
    usize::from(span.start)..usize::from(span.end)
}

pub(super) fn uri_of(target: Bytes) -> Uri {
    // The parser's target grammar is at least as strict as that of `Uri`, so this does not fail.
    Uri::from_maybe_shared(target).unwrap_or_else(|_| Uri::from_static("/"))
}
