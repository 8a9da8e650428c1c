//! Builds heads from their parts, for requests that were not received over HTTP/1 or that a layer
//! modifies.

use crate::field::{self, KnownField};
use crate::h1::parse_method_and_target;
use crate::limits::HEAD_BYTES_CEILING;
use crate::{
    FieldIndex, HeadIndex, Limits, Method, RequestError, Scheme, Span, TargetForm, Version,
    authority,
};

/// The parts of a request line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLine<'a> {
    /// The method's name.
    pub method: &'a [u8],
    /// The scheme, if the request contains one.
    pub scheme: Option<Scheme>,
    /// Host and port, if the request contains them outside its fields; otherwise empty. An
    /// authority requires a scheme. With the asterisk form, use a Host field instead.
    pub authority: &'a [u8],
    /// Path and query, or `*`. With an authority it may be empty, which means `/`.
    pub target: &'a [u8],
    /// The version.
    pub version: Version,
}

/// Writes a head and indexes it, by the rules and limits of the parser: the bytes are an HTTP/1
/// head that the parser would index in the same way. The builder does not require a Host field, and
/// does not check the fields that frame the content.
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
/// let mut builder = HeadBuilder::new(&limits, &line, &mut bytes, &mut head)?;
/// builder.field(b"accept", b"*/*")?;
/// builder.finish()?;
/// assert_eq!(head.authority.slice(&bytes), b"example.org");
/// assert_eq!(bytes, b"GET https://example.org/a?b HTTP/2.0\r\naccept: */*\r\n\r\n");
/// # Ok::<_, peregrine_proto::RequestError>(())
/// ```
#[derive(Debug)]
#[must_use = "a head ends with `finish`"]
pub struct HeadBuilder<'head> {
    limits: &'head Limits,
    bytes: &'head mut Vec<u8>,
    index: &'head mut HeadIndex,
}

impl<'head> HeadBuilder<'head> {
    /// Starts a head in `bytes` and `index`, whose contents are replaced. After an error of this or
    /// a later call, they do not contain a valid head.
    ///
    /// # Errors
    /// The line violates a rule, or is longer than `limits` allows.
    pub fn new(
        limits: &'head Limits,
        line: &RequestLine<'_>,
        bytes: &'head mut Vec<u8>,
        index: &'head mut HeadIndex,
    ) -> Result<Self, RequestError> {
        bytes.clear();
        index.clear();
        let RequestLine { method, scheme, authority, target, version } = *line;
        let authority = if target == b"*" { &[] } else { authority };
        if scheme.is_none() && !authority.is_empty() {
            return Err(RequestError::TargetAuthority);
        }
        let length = [method, authority, target].map(<[u8]>::len).iter().sum::<usize>();
        if length > HEAD_BYTES_CEILING {
            return Err(RequestError::RequestLineTooLong);
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
            return Err(RequestError::RequestLineTooLong);
        }
        this.check_length(0)?;
        parse_method_and_target(this.bytes, this.index)?;
        // The parser must find exactly these parts: otherwise a space or a slash inside of a part
        // has shifted their boundaries.
        if this.index.method_span.len() != method.len() {
            return Err(RequestError::MethodInvalid);
        }
        let spans = (this.index.target.range(), this.index.authority.len());
        if spans != (target_start..target_end, authority.len()) {
            return Err(RequestError::TargetInvalid);
        }
        this.index.scheme = scheme;
        this.index.version = version;
        Ok(this)
    }

    /// Starts the head of an extended CONNECT request in the form of an HTTP/1.1 upgrade: the
    /// method of `line` is replaced by GET, and the fields `connection: upgrade` and `upgrade`,
    /// which names the protocol, are added. HTTP/2 clients must not send these fields, so handlers
    /// see one form for both versions.
    ///
    /// # Errors
    /// The line or the protocol violates a rule, or is longer than `limits` allows.
    // RFC 8441 §4 and §5: the parts of such a request mean what they mean for HTTP/1.1's Upgrade.
    pub fn new_upgrade(
        limits: &'head Limits,
        line: &RequestLine<'_>,
        protocol: &[u8],
        bytes: &'head mut Vec<u8>,
        index: &'head mut HeadIndex,
    ) -> Result<Self, RequestError> {
        let line = RequestLine { method: b"GET", ..*line };
        let mut this = Self::new(limits, &line, bytes, index)?;
        if !field::is_token(protocol) {
            return Err(RequestError::FieldValueInvalid);
        }
        this.field(b"connection", b"upgrade")?;
        this.field(b"upgrade", protocol)?;
        Ok(this)
    }

    /// Starts a head whose parts are known to be valid: `method` is the line's method, the line has
    /// a scheme and an authority, and its target is a path that begins with a slash, possibly with
    /// a query. The result is that of [`new`](Self::new), without parsing.
    #[inline]
    pub(crate) fn begin_unchecked(
        limits: &Limits,
        line: &RequestLine<'_>,
        method: Method,
        bytes: &mut Vec<u8>,
        index: &mut HeadIndex,
    ) -> Result<(), RequestError> {
        let RequestLine { method: name, scheme, authority, target, version } = *line;
        let scheme_name = scheme.map_or("", Scheme::name);
        let length = name.len() + scheme_name.len() + authority.len() + target.len();
        let length = length + b" :// HTTP/2.0\r\n".len();
        if length > limits.request_line_bytes_max {
            return Err(RequestError::RequestLineTooLong);
        }
        if length + b"\r\n".len() > limits.head_bytes_max.min(HEAD_BYTES_CEILING) {
            return Err(RequestError::HeadTooLong);
        }
        bytes.clear();
        index.clear();
        bytes.reserve(length + FIELDS_CAPACITY);
        bytes.extend_from_slice(name);
        bytes.push(b' ');
        let start = bytes.len();
        bytes.extend_from_slice(scheme_name.as_bytes());
        bytes.extend_from_slice(b"://");
        let authority_start = bytes.len();
        bytes.extend_from_slice(authority);
        let path_start = bytes.len();
        bytes.extend_from_slice(target);
        let end = bytes.len();
        bytes.extend_from_slice(b" HTTP/2.0\r\n");
        let query = target.iter().position(|byte| *byte == b'?').map(|at| path_start + at);
        index.method = method;
        index.method_span = Span::new(0, name.len());
        index.scheme = scheme;
        index.target = Span::new(start, end);
        index.target_form = TargetForm::Absolute;
        index.authority = Span::new(authority_start, path_start);
        index.path = Span::new(path_start, query.unwrap_or(end));
        index.query = query.map(|at| Span::new(at + 1, end));
        index.version = version;
        debug_assert!(
            {
                let (mut expected_bytes, mut expected_index) = (Vec::new(), HeadIndex::default());
                let is_ok =
                    HeadBuilder::new(limits, line, &mut expected_bytes, &mut expected_index)
                        .is_ok();
                is_ok && *bytes == expected_bytes && *index == expected_index
            },
            "the parser yields the same head"
        );
        Ok(())
    }

    /// Adds a field. White space around its value is removed.
    ///
    /// # Errors
    /// The field violates a rule, or exceeds a limit.
    #[inline]
    pub fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), RequestError> {
        let known = KnownField::from_name(name);
        if known == KnownField::Other && !field::is_token(name) {
            let is_empty = name.is_empty();
            return Err(if is_empty {
                RequestError::FieldNameEmpty
            } else {
                RequestError::FieldNameInvalid
            });
        }
        let value = field::trim_ows(value);
        match value.get(field::value_end(value, 0)) {
            None => {}
            Some(0) => return Err(RequestError::FieldValueNul),
            Some(_) => return Err(RequestError::FieldValueInvalid),
        }
        self.field_unchecked(known, name, value)
    }

    /// Resumes a head that was started in `bytes` and `index`.
    #[inline]
    pub(crate) fn resume(
        limits: &'head Limits,
        bytes: &'head mut Vec<u8>,
        index: &'head mut HeadIndex,
    ) -> Self {
        Self { limits, bytes, index }
    }

    /// Adds a field whose name and value are known to be valid. `known` is the name's variant.
    #[inline]
    pub(crate) fn field_unchecked(
        &mut self,
        known: KnownField,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), RequestError> {
        let line_len = name.len() + value.len() + b": \r\n".len();
        if line_len > self.limits.field_bytes_max {
            return Err(RequestError::FieldTooLong);
        }
        if self.index.fields.len() >= self.limits.fields_max {
            return Err(RequestError::FieldsTooMany);
        }
        self.check_length(line_len)?;
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

    /// Appends two texts, which are known to be valid, to the value of the last field.
    pub(crate) fn append_to_last_value(
        &mut self,
        first: &[u8],
        second: &[u8],
    ) -> Result<(), RequestError> {
        let added = first.len() + second.len();
        self.check_length(added)?;
        let last = self.index.fields.last_mut().expect("the caller has added a field");
        let line_len = last.name.len() + last.value.len() + b": \r\n".len();
        if line_len + added > self.limits.field_bytes_max {
            return Err(RequestError::FieldTooLong);
        }
        self.bytes.truncate(usize::from(last.value.end));
        self.bytes.extend_from_slice(first);
        self.bytes.extend_from_slice(second);
        last.value = Span::new(usize::from(last.value.start), self.bytes.len());
        self.bytes.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Moves the field at `index` to the end.
    pub(crate) fn move_to_end(&mut self, index: usize) {
        let start = usize::from(self.index.fields[index].name.start);
        let length = usize::from(self.index.fields[index].value.end) + b"\r\n".len() - start;
        self.bytes[start..].rotate_left(length);
        let tail = &mut self.index.fields[index..];
        tail.rotate_left(1);
        let (moved, others) = tail.split_last_mut().expect("the field to move exists");
        let shift_back = |span: Span, bytes: usize| {
            Span::new(usize::from(span.start) - bytes, usize::from(span.end) - bytes)
        };
        for field in others {
            field.name = shift_back(field.name, length);
            field.value = shift_back(field.value, length);
        }
        let end = usize::from(moved.value.end) + b"\r\n".len();
        let (name, value) = (moved.name.range(), moved.value.range());
        let offset = self.bytes.len() - end;
        moved.name = Span::new(name.start + offset, name.end + offset);
        moved.value = Span::new(value.start + offset, value.end + offset);
    }

    /// Finishes the head.
    ///
    /// # Errors
    /// There is more than one Host field, or an invalid one.
    pub fn finish(self) -> Result<(), RequestError> {
        self.bytes.extend_from_slice(b"\r\n");
        authority::set_from_host(self.bytes, self.index)
    }

    /// Rejects a head that would become too long with `additional` bytes and the empty line.
    #[inline]
    fn check_length(&self, additional: usize) -> Result<(), RequestError> {
        let bytes_max = self.limits.head_bytes_max.min(HEAD_BYTES_CEILING);
        let bytes = self.bytes.len().saturating_add(additional).saturating_add(b"\r\n".len());
        if bytes > bytes_max { Err(RequestError::HeadTooLong) } else { Ok(()) }
    }
}

/// The space reserved for the fields after a request line, in bytes.
const FIELDS_CAPACITY: usize = 512;
