//! The contents of a request's head, as spans of its bytes: the same for every HTTP version.

use crate::error::RequestError;
use crate::field::{self, KnownField};
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
    /// CONNECT, which is rejected: no head has this method.
    Connect,
    /// OPTIONS.
    Options,
    /// TRACE.
    Trace,
    /// PATCH.
    Patch,
    /// QUERY: a safe request with content.
    Query,
    /// Any other token; [`HeadIndex::method_span`] contains its name.
    Extension,
}

impl Method {
    /// The method of this exact name.
    #[inline]
    #[must_use]
    pub fn from_name(name: &[u8]) -> Self {
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

    /// The method's name, or `None` for an extension.
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
    /// HTTP/2.
    Http2,
}

/// The scheme of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Scheme {
    /// `http`.
    Http,
    /// `https`.
    Https,
}

impl Scheme {
    /// The scheme of this name, in any case. RFC 3986 §3.1: schemes are case-insensitive.
    #[must_use]
    pub const fn from_name(name: &[u8]) -> Option<Self> {
        if name.eq_ignore_ascii_case(b"http") {
            Some(Self::Http)
        } else if name.eq_ignore_ascii_case(b"https") {
            Some(Self::Https)
        } else {
            None
        }
    }

    /// The scheme's name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// The form of the target in the request line. RFC 9112 §3.2: the fourth form, an authority alone,
/// is used only with CONNECT, which is rejected.
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
    /// This many bytes, at least 1.
    Exact(u64),
    /// Unknown before the content ends. Over HTTP/1.1 the content is chunked.
    Unknown,
}

/// The position of one field in a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldIndex {
    /// The name as sent, a token.
    pub name: Span,
    /// The value without the white space around it. The only control byte that it can contain is
    /// HTAB.
    pub value: Span,
    /// The name's variant.
    pub known: KnownField,
}

/// The index of a request's head. All spans are relative to the head's first byte, so they stay
/// valid when the head is copied.
///
/// The framing of the request (where its content ends, and whether another request may follow) is
/// not part of the index: over HTTP/1.1 that is in [`h1::Framing`](crate::h1::Framing). A
/// [`HeadBuilder`](crate::HeadBuilder) creates heads that were not received over HTTP/1.1.
///
/// An index can be reused for many requests: [`HeadIndex::clear`] does not free the memory of
/// `fields`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadIndex {
    /// The method.
    pub method: Method,
    /// The method's name.
    pub method_span: Span,
    /// The scheme, if the request contains one; otherwise the scheme of the connection applies.
    pub scheme: Option<Scheme>,
    /// The whole request target.
    pub target: Span,
    /// The target's form.
    pub target_form: TargetForm,
    /// The path, with its leading `/`; `*` in asterisk form. In absolute form it may be empty,
    /// which means `/`; [`HeadIndex::path_bytes`] returns that.
    pub path: Span,
    /// The part after the first `?`.
    pub query: Option<Span>,
    /// Host and port: from a target in absolute form, otherwise from Host. Empty if an HTTP/1.0
    /// request has neither.
    pub authority: Span,
    /// The version.
    pub version: Version,
    /// All fields in the order in which they were sent. If an HTTP/1 target is in absolute form,
    /// the value of Host is that of `authority`, not the one that was sent.
    pub fields: Vec<FieldIndex>,
    /// One bit for each well-known name that occurs.
    pub(crate) present: u64,
    /// One bit for each well-known name that occurs more than once.
    pub(crate) repeated: u64,
}

impl HeadIndex {
    /// Creates an empty index with room for 16 fields.
    #[must_use]
    pub fn new() -> Self {
        Self { fields: Vec::with_capacity(16), ..Self::default() }
    }

    /// Clears the index without freeing its memory.
    #[inline]
    pub fn clear(&mut self) {
        // Lists every field, so that a new one does not compile until it is cleared here too.
        let Self {
            method,
            method_span,
            scheme,
            target,
            target_form,
            path,
            query,
            authority,
            version,
            fields,
            present,
            repeated,
        } = self;
        *method = Method::Get;
        *method_span = Span::EMPTY;
        *scheme = None;
        *target = Span::EMPTY;
        *target_form = TargetForm::Origin;
        *path = Span::EMPTY;
        *query = None;
        *authority = Span::EMPTY;
        *version = Version::Http11;
        fields.clear();
        *present = 0;
        *repeated = 0;
    }

    /// Adds a field after the others.
    #[inline]
    pub(crate) fn push(&mut self, field: FieldIndex) {
        let bit = field.known.bit();
        self.repeated |= self.present & bit;
        self.present |= bit;
        self.fields.push(field);
    }

    /// Replaces the value of the Host field, which must occur once.
    #[cold]
    pub(crate) fn set_host(&mut self, value: Span) {
        let host = self.fields.iter_mut().find(|field| field.known == KnownField::Host);
        host.expect("the head has a Host field").value = value;
    }

    /// Removes the fields for which `keep` returns false. Their bytes stay in the head.
    pub fn retain(&mut self, keep: impl FnMut(&FieldIndex) -> bool) {
        self.fields.retain(keep);
        (self.present, self.repeated) = (0, 0);
        for field in &self.fields {
            self.repeated |= self.present & field.known.bit();
            self.present |= field.known.bit();
        }
    }

    /// Returns whether a field of this well-known name occurs more than once.
    #[inline]
    #[must_use]
    pub fn is_repeated(&self, known: KnownField) -> bool {
        self.repeated & known.bit() != 0
    }

    /// Returns whether a field of this well-known name occurs. Costs one bit test.
    #[inline]
    #[must_use]
    pub fn contains(&self, known: KnownField) -> bool {
        self.present & known.bit() != 0
    }

    /// The position of the first value of this well-known name. Not for [`KnownField::Other`].
    #[inline]
    #[must_use]
    pub fn get(&self, known: KnownField) -> Option<Span> {
        if !self.contains(known) {
            return None;
        }
        self.fields.iter().find(|field| field.known == known).map(|field| field.value)
    }

    /// The positions of all values of this well-known name, in the order in which they were sent.
    pub fn values(&self, known: KnownField) -> impl Iterator<Item = Span> {
        let fields = self.fields.iter().filter(move |field| field.known == known);
        fields.map(|field| field.value)
    }

    /// The path in `head`; `/` if the target has none. RFC 9110 §4.2.3: an empty path component is
    /// equivalent to an absolute path of "/".
    #[inline]
    #[must_use]
    pub fn path_bytes<'head>(&self, head: &'head [u8]) -> &'head [u8] {
        if self.path.is_empty() { b"/" } else { self.path.slice(head) }
    }

    /// Returns whether the client requests an upgrade to another protocol: by Upgrade in HTTP/1.1,
    /// or as written by [`HeadBuilder::new_upgrade`](crate::HeadBuilder::new_upgrade) for HTTP/2.
    /// `head` contains the bytes. Costs one bit test if the field is missing.
    // RFC 9110 §7.8: Upgrade in an HTTP/1.0 request must be ignored, and it requires the option.
    #[inline]
    #[must_use]
    pub fn wants_upgrade(&self, head: &[u8]) -> bool {
        self.contains(KnownField::Upgrade)
            && self.version != Version::Http10
            && self.values(KnownField::Connection).any(|value| {
                field::split_list(value.slice(head))
                    .any(|option| option.eq_ignore_ascii_case(b"upgrade"))
            })
    }

    /// Rejects a request for an `https` resource that arrived over a connection without TLS. Must
    /// not be called for a connection from a trusted proxy, whose client may have used TLS.
    ///
    /// # Errors
    /// [`RequestError::Misdirected`]. The head is valid, so the connection can continue after the
    /// response.
    // RFC 9110 §7.4: a request for an https resource must be rejected unless it was received over a
    // connection that was secured for that origin.
    pub const fn check_https_over_tls(&self, is_secure: bool) -> Result<(), RequestError> {
        match self.scheme {
            Some(Scheme::Https) if !is_secure => Err(RequestError::Misdirected),
            _ => Ok(()),
        }
    }
}
