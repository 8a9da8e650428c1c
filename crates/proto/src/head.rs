//! What a request's head says, as places in its bytes.

use crate::field::Known;
use crate::span::Span;

/// A request method. RFC 9110 §9.1: method names are case-sensitive, so `get` is an extension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Method {
    /// GET.
    #[default]
    Get,
    /// HEAD.
    Head,
    /// POST.
    Post,
    /// PUT.
    Put,
    /// DELETE.
    Delete,
    /// CONNECT. It is refused while parsing, so no head has it.
    Connect,
    /// OPTIONS.
    Options,
    /// TRACE.
    Trace,
    /// PATCH.
    Patch,
    /// QUERY: a safe request with content.
    Query,
    /// Any other token; [`HeadIndex::method_span`] has its name.
    Extension,
}

impl Method {
    /// The method of this exact name.
    #[inline]
    #[must_use]
    pub fn find(name: &[u8]) -> Self {
        match name {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"CONNECT" => Self::Connect,
            b"OPTIONS" => Self::Options,
            b"TRACE" => Self::Trace,
            b"PATCH" => Self::Patch,
            b"QUERY" => Self::Query,
            _ => Self::Extension,
        }
    }

    /// Its name, or `None` for an extension.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
            Self::Options => "OPTIONS",
            Self::Trace => "TRACE",
            Self::Patch => "PATCH",
            Self::Query => "QUERY",
            Self::Extension => return None,
        })
    }
}

/// The version of a request. Higher minor versions count as 1.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
}

/// How the request line writes the target. RFC 9112 §3.2: the fourth form, an authority alone, goes
/// with CONNECT only, which is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TargetForm {
    /// `/path?query`.
    #[default]
    Origin,
    /// `http://host/path?query`.
    Absolute,
    /// `*`, with OPTIONS only.
    Asterisk,
}

/// How much content a request has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BodyLength {
    /// No content: no `Data` and no `End` follow the head.
    #[default]
    None,
    /// So many bytes, at least 1.
    Exact(u64),
    /// Unknown before its end.
    Chunked,
}

/// Where one field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldIndex {
    /// The name as sent, a token.
    pub name: Span,
    /// The value without the white space around it: no control byte but HTAB.
    pub value: Span,
    /// Which well-known name it is.
    pub known: Known,
}

/// What a request's head says. All spans count from the head's first byte, so they stay right when
/// the head is copied: `HeadIndex` with the bytes `unread[skip..used]` is the whole head.
///
/// Reuse one for many requests: [`HeadIndex::clear`] keeps the memory of `fields`.
#[derive(Clone, Debug, Default)]
pub struct HeadIndex {
    /// The method.
    pub method: Method,
    /// The method's name.
    pub method_span: Span,
    /// The whole request target.
    pub target: Span,
    /// The target's form.
    pub form: TargetForm,
    /// The path, with its leading `/`; `*` in asterisk form. In absolute form it may be empty, which
    /// means `/`; [`HeadIndex::path_of`] says so.
    pub path: Span,
    /// What follows the first `?`, without it.
    pub query: Option<Span>,
    /// Host and port: of the target in absolute form, else of Host. Empty if an HTTP/1.0 request has
    /// neither.
    pub authority: Span,
    /// The version.
    pub version: Version,
    /// All fields in the order of sending.
    pub fields: Vec<FieldIndex>,
    /// How much content follows.
    pub body: BodyLength,
    /// Whether the client would send another request on this connection.
    pub keep_alive: bool,
    /// Whether the client waits for an interim 100 response before it sends the content.
    pub expect_continue: bool,
    /// Whether the client asks for another protocol: Upgrade and `Connection: upgrade` in HTTP/1.1.
    pub upgrade: bool,
    /// How many bytes of `unread` stand before the head: 2 for an empty line, else 0.
    pub skip: u16,
    /// One bit for each well-known name that occurs.
    pub(crate) present: u64,
    /// One bit for each well-known name that occurs more than once.
    pub(crate) repeated: u64,
}

impl HeadIndex {
    /// An index with room for 16 fields.
    #[must_use]
    pub fn new() -> Self {
        Self { fields: Vec::with_capacity(16), ..Self::default() }
    }

    /// Forgets the head, keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.fields.clear();
        self.method = Method::Get;
        self.method_span = Span::EMPTY;
        self.target = Span::EMPTY;
        self.form = TargetForm::Origin;
        self.path = Span::EMPTY;
        self.query = None;
        self.authority = Span::EMPTY;
        self.version = Version::Http11;
        self.body = BodyLength::None;
        self.keep_alive = false;
        self.expect_continue = false;
        self.upgrade = false;
        self.skip = 0;
        self.present = 0;
        self.repeated = 0;
    }

    /// Whether a field of this well-known name occurs. Costs one test of a bit.
    #[inline]
    #[must_use]
    pub fn has(&self, known: Known) -> bool {
        self.present & known.bit() != 0
    }

    /// The place of the first value of this well-known name. Not for [`Known::Other`].
    #[inline]
    #[must_use]
    pub fn find(&self, known: Known) -> Option<Span> {
        if !self.has(known) {
            return None;
        }
        self.fields.iter().find(|field| field.known == known).map(|field| field.value)
    }

    /// The places of all values of this well-known name, in the order of sending.
    pub fn values(&self, known: Known) -> impl Iterator<Item = Span> {
        let fields = self.fields.iter().filter(move |field| field.known == known);
        fields.map(|field| field.value)
    }

    /// The path in `head`; `/` where the target has none. RFC 9110 §4.2.3: an empty path component is
    /// equivalent to an absolute path of "/".
    #[inline]
    #[must_use]
    pub fn path_of<'head>(&self, head: &'head [u8]) -> &'head [u8] {
        if self.path.is_empty() { b"/" } else { self.path.of(head) }
    }
}
