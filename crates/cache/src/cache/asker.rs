//! Whose request it is, as far as that matters to what is kept.

use http::Method;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::personal::{IdentitySources, Personal};
use peregrine_web::{Head, Parts};

/// A request, as a cache looks at it.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'h> {
    pub(crate) head: &'h Head,
    pub(crate) connection: &'h ConnectionInfo,
    /// The identities that were read so far: see [`Personal`].
    pub(crate) sources: IdentitySources,
}

impl<'h> Asker<'h> {
    pub(crate) fn of(parts: &'h Parts) -> Self {
        let sources = Personal::watch(parts).sources();
        Self { head: &parts.head, connection: parts.peek_connection(), sources }
    }

    /// Was the client identified, or is it in a place that was read?
    pub(crate) fn is_known(&self) -> bool {
        self.sources.are_noted(self.head, self.connection)
    }

    /// Has the client said who it is? RFC 9111 §3.5 speaks of `Authorization`, and means all that is like it. What is kept is given to nobody
    /// before a handler looks, so the usual field of API keys counts by itself too.
    pub(crate) fn has_credentials(&self) -> bool {
        let has = |name: &&str| self.head.peek_field(name).is_some();
        self.is_known() || ["authorization", "x-api-key"].iter().any(has)
    }

    /// May the answer be about the client?
    pub(crate) fn is_personal(&self) -> bool {
        self.has_credentials() || self.head.peek_field("cookie").is_some()
    }

    /// The route that answers the request, and for one that was mounted the path that it is known
    /// by there: what tells apart responses that have the same target.
    pub(crate) fn place(&self) -> Vec<u8> {
        let mut place = self.head.route_path().to_be_bytes().to_vec();
        if self.head.path() != self.head.original_path() {
            place.extend_from_slice(self.head.path().as_bytes());
        }
        place
    }

    /// RFC 9110 §9.3.2: the answer to HEAD is that to GET without its content, also where HEAD has
    /// a route of its own. Where guards have a say, nothing tells which route GET would come to.
    pub(crate) fn is_plain_head(&self) -> bool {
        let is_guarded = self.head.has_opaque_guards() || !self.head.guard_fields().is_empty();
        self.head.method() == Method::HEAD && !is_guarded
    }

    /// What the request says in the fields of a name, so that nothing else reads the same: a handler may tell apart what looks alike, and an
    /// answer that one client provoked would be another's.
    pub(crate) fn said(&self, name: &str) -> Vec<u8> {
        // RFC 9111 §4.1: in fields that are known to be lists, space between elements makes no difference.
        let is_list = name.starts_with("accept");
        let mut all = Vec::new();
        for value in self.head.peek_fields_named(name) {
            if is_list && !value.contains(&b'"') {
                for (number, element) in value.split(|byte| *byte == b',').enumerate() {
                    all.extend_from_slice(if number > 0 { b"," } else { b"" });
                    all.extend_from_slice(element.trim_ascii());
                }
            } else {
                all.extend_from_slice(value);
            }
            // No value has one. A field that is there and empty is something else than none.
            all.push(b'\n');
        }
        all
    }
}
