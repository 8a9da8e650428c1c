//! Heads that are made of their parts, where no HTTP/1 head was received: by HPACK, or by a layer that
//! changes a request.

use crate::field::{self, Known};
use crate::h1::method_and_target;
use crate::limits::HEAD_BYTES_CEILING;
use crate::{FieldIndex, HeadIndex, Limits, Reject, Scheme, Span, Version, authority};

/// What stands before the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLine<'a> {
    /// The method's name.
    pub method: &'a [u8],
    /// The scheme, if the request names one.
    pub scheme: Option<Scheme>,
    /// Host and port, if the request names them beside its fields; else empty. It needs a scheme. In
    /// asterisk form there is no place for it: give a Host field.
    pub authority: &'a [u8],
    /// Path and query, or `*`. With an authority it may be empty, which means `/`.
    pub target: &'a [u8],
    /// The version.
    pub version: Version,
}

/// Writes a head, and notes where things are in it, by the rules and limits of the parser: the bytes
/// are a head of HTTP/1, of which the parser would make the same index. The builder asks for no Host
/// field, and does not look at the fields that frame the content.
///
/// ```
/// use peregrine_proto::{HeadBuilder, HeadIndex, Limits, RequestLine, Scheme, Version};
///
/// let (limits, mut bytes, mut head) = (Limits::default(), Vec::new(), HeadIndex::new());
/// let line = RequestLine {
///     method: b"GET",
///     scheme: Some(Scheme::Https),
///     authority: b"example.org",
///     target: b"/a?b",
///     version: Version::Http2,
/// };
/// let mut builder = HeadBuilder::begin(&limits, &line, &mut bytes, &mut head)?;
/// builder.field(b"accept", b"*/*")?;
/// builder.finish()?;
/// assert_eq!(head.authority.of(&bytes), b"example.org");
/// assert_eq!(bytes, b"GET https://example.org/a?b HTTP/2.0\r\naccept: */*\r\n\r\n");
/// # Ok::<_, peregrine_proto::Reject>(())
/// ```
#[derive(Debug)]
#[must_use = "a head ends with `finish`"]
pub struct HeadBuilder<'head> {
    limits: &'head Limits,
    bytes: &'head mut Vec<u8>,
    index: &'head mut HeadIndex,
}

impl<'head> HeadBuilder<'head> {
    /// Begins a head in `bytes` and `index`; what was in them is forgotten. After an error, here or
    /// later, they hold no head.
    ///
    /// # Errors
    /// The line breaks a rule, or is longer than `limits` has it.
    pub fn begin(
        limits: &'head Limits,
        line: &RequestLine<'_>,
        bytes: &'head mut Vec<u8>,
        index: &'head mut HeadIndex,
    ) -> Result<Self, Reject> {
        bytes.clear();
        index.clear();
        let RequestLine { method, scheme, authority, target, version } = *line;
        let authority = if target == b"*" { &[] } else { authority };
        if scheme.is_none() && !authority.is_empty() {
            return Err(Reject::TargetAuthority);
        }
        let parts = [method, authority, target].map(<[u8]>::len).iter().sum::<usize>();
        if parts > HEAD_BYTES_CEILING {
            return Err(Reject::RequestLineTooLong);
        }
        bytes.extend_from_slice(method);
        bytes.push(b' ');
        let target_start = bytes.len();
        if let Some(scheme) = scheme.filter(|_| !authority.is_empty()) {
            bytes.extend_from_slice(scheme.name().as_bytes());
            bytes.extend_from_slice(b"://");
            bytes.extend_from_slice(authority);
        }
        bytes.extend_from_slice(target);
        let target_end = bytes.len();
        bytes.extend_from_slice(match version {
            Version::Http10 => b" HTTP/1.0\r\n",
            Version::Http11 => b" HTTP/1.1\r\n",
            Version::Http2 => b" HTTP/2.0\r\n",
        });
        let this = Self { limits, bytes, index };
        if this.bytes.len() > limits.request_line_bytes_max {
            return Err(Reject::RequestLineTooLong);
        }
        this.check_length(0)?;
        method_and_target(this.bytes, this.index)?;
        // The parser must find the parts that were given: otherwise a piece of one part passes for
        // another part.
        if this.index.method_span.len() != method.len() {
            return Err(Reject::MethodInvalid);
        }
        let found = (this.index.target.range(), this.index.authority.len());
        if found != (target_start..target_end, authority.len()) {
            return Err(Reject::TargetInvalid);
        }
        this.index.scheme = scheme;
        this.index.version = version;
        Ok(this)
    }

    /// Adds a field. White space around its value is left out.
    ///
    /// # Errors
    /// The field breaks a rule, or passes a limit.
    #[inline]
    pub fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), Reject> {
        let known = Known::find(name);
        if known == Known::Other && !field::is_token(name) {
            let is_empty = name.is_empty();
            return Err(if is_empty { Reject::FieldNameEmpty } else { Reject::FieldNameInvalid });
        }
        let value = field::trim(value);
        match value.get(field::value_end(value, 0)) {
            None => {}
            Some(0) => return Err(Reject::FieldValueNul),
            Some(_) => return Err(Reject::FieldValueInvalid),
        }
        let line = name.len() + value.len() + b": \r\n".len();
        if line > self.limits.field_bytes_max {
            return Err(Reject::FieldTooLong);
        }
        if self.index.fields.len() >= self.limits.fields_max {
            return Err(Reject::FieldsTooMany);
        }
        self.check_length(line)?;
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(b": ");
        let value_start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        let value = Span::new(value_start, self.bytes.len());
        self.bytes.extend_from_slice(b"\r\n");
        self.index.push(FieldIndex { name: Span::new(start, start + name.len()), value, known });
        Ok(())
    }

    /// Ends the head.
    ///
    /// # Errors
    /// There is more than one Host field, or an invalid one.
    pub fn finish(self) -> Result<(), Reject> {
        self.bytes.extend_from_slice(b"\r\n");
        authority::from_host(self.bytes, self.index)
    }

    /// Whether the head may grow by this many bytes and its end.
    #[inline]
    fn check_length(&self, more: usize) -> Result<(), Reject> {
        let bytes_max = self.limits.head_bytes_max.min(HEAD_BYTES_CEILING);
        let bytes = self.bytes.len().saturating_add(more).saturating_add(b"\r\n".len());
        if bytes > bytes_max { Err(Reject::HeadTooLong) } else { Ok(()) }
    }
}
