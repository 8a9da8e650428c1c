//! Converts the fields of a header block to a request's head, by the rules of RFC 9113 §8.

use super::error::Http2Error;
use super::hpack::{Field, FieldSink};
use super::hpack::{NameClass, is_value};
use super::limits::Limits;
use super::priority::Priority;
use crate::trailers::Trailers;
use crate::{
    BodyLength, HeadBuilder, HeadIndex, KnownField, Method, RequestLine, Scheme, Span, TargetForm,
    Version, field, h1,
};

/// Why the head or the trailers of a request are rejected; decides how the server responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadError {
    /// The request violates a rule of HTTP/2: the stream is reset.
    Stream(Http2Error),
    /// The request violates a rule of every HTTP version: the response has a 4xx or 5xx status.
    Request(crate::RequestError),
}

impl From<Http2Error> for HeadError {
    fn from(error: Http2Error) -> Self {
        Self::Stream(error)
    }
}

impl From<crate::RequestError> for HeadError {
    fn from(error: crate::RequestError) -> Self {
        Self::Request(error)
    }
}

/// The properties of a valid head that concern its stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadInfo {
    pub(super) body: BodyLength,
    /// The value of Content-Length, if the head contains it.
    pub(super) content_length: Option<u64>,
    pub(super) expects_continue: bool,
    pub(super) is_tunnel: bool,
    /// The priority, if the head contains it.
    pub(super) priority: Option<Priority>,
}

impl HeadInfo {
    /// The properties of a stream whose head was rejected.
    pub(super) const REFUSED: Self = Self {
        body: BodyLength::None,
        content_length: None,
        expects_continue: false,
        is_tunnel: false,
        priority: None,
    };
}

/// Receives the fields of a request and writes its head.
///
/// Pseudo-fields arrive first, in any order, and the head begins with a request line made of them.
/// So they are buffered in `scratch` until the first regular field arrives.
pub(super) struct RequestSink<'a> {
    limits: &'a Limits,
    bytes: &'a mut Vec<u8>,
    index: &'a mut HeadIndex,
    scratch: &'a mut Vec<u8>,
    pseudo: [Option<Span>; PSEUDO_COUNT],
    request_line_written: bool,
    /// Whether authority and path have the usual form: a host, and a path that begins with a slash.
    is_common_form: bool,
    /// The size of the fields, as defined by RFC 9113 §6.5.2.
    fields_bytes: usize,
    /// The index of the cookie field.
    cookie: Option<usize>,
    /// The offset in `scratch` of the cookie crumbs that arrived after another field followed the
    /// cookie.
    cookie_crumbs_at: usize,
    error: Option<HeadError>,
}

const METHOD: usize = 0;
const SCHEME: usize = 1;
const AUTHORITY: usize = 2;
const PATH: usize = 3;
const PROTOCOL: usize = 4;
const PSEUDO_COUNT: usize = 5;

impl FieldSink for RequestSink<'_> {
    #[inline]
    fn field(&mut self, field: Field<'_>) -> bool {
        match self.accept_field(field) {
            Ok(()) => true,
            Err(error) => {
                self.error = Some(error);
                false
            }
        }
    }
}

impl<'a> RequestSink<'a> {
    /// Creates a sink that replaces the contents of `bytes` and `index`.
    #[inline]
    pub(super) fn new(
        limits: &'a Limits,
        bytes: &'a mut Vec<u8>,
        index: &'a mut HeadIndex,
        scratch: &'a mut Vec<u8>,
    ) -> Self {
        bytes.clear();
        index.clear();
        scratch.clear();
        Self {
            limits,
            bytes,
            index,
            scratch,
            pseudo: [None; PSEUDO_COUNT],
            request_line_written: false,
            is_common_form: true,
            fields_bytes: 0,
            cookie: None,
            cookie_crumbs_at: 0,
            error: None,
        }
    }

    #[inline]
    fn accept_field(&mut self, field: Field<'_>) -> Result<(), HeadError> {
        self.fields_bytes += field.name.len() + field.value.len() + FIELD_OVERHEAD;
        if self.fields_bytes > self.limits.fields_bytes_max() as usize {
            return Err(crate::RequestError::HeadTooLong.into());
        }
        match field.info.name {
            NameClass::Field => {}
            NameClass::Method => return self.store_pseudo(METHOD, field),
            NameClass::Scheme => return self.store_pseudo(SCHEME, field),
            NameClass::Authority => return self.store_pseudo(AUTHORITY, field),
            NameClass::Path => return self.store_pseudo(PATH, field),
            NameClass::Protocol => return self.store_pseudo(PROTOCOL, field),
            class => return Err(name_error(class, self.request_line_written).into()),
        }
        if !field.info.value_is_valid {
            return Err(Http2Error::FieldValueInvalid.into());
        }
        if !self.request_line_written {
            self.write_request_line()?;
        }
        match field.info.known {
            KnownField::Cookie => return self.append_cookie_crumb(field.value),
            // RFC 9113 §8.2.2: TE must not contain any value other than "trailers".
            KnownField::Te if !field.value.eq_ignore_ascii_case(b"trailers") => {
                return Err(Http2Error::TeInvalid.into());
            }
            _ => {}
        }
        Ok(self.builder().field_unchecked(field.info.known, field.name, field.value)?)
    }

    #[inline]
    fn builder(&mut self) -> HeadBuilder<'_> {
        HeadBuilder::resume(&self.limits.request, self.bytes, self.index)
    }

    // RFC 9113 §8.3: all pseudo-fields precede all fields, and none occurs more than once.
    #[inline]
    fn store_pseudo(&mut self, pseudo_index: usize, field: Field<'_>) -> Result<(), HeadError> {
        if self.request_line_written {
            return Err(Http2Error::PseudoHeaderAfterField.into());
        }
        if self.pseudo[pseudo_index].is_some() {
            return Err(Http2Error::PseudoHeaderRepeated.into());
        }
        if !field.info.value_is_valid {
            self.is_common_form = false;
            if !is_value(field.value) {
                return Err(Http2Error::FieldValueInvalid.into());
            }
        }
        let start = self.scratch.len();
        self.scratch.extend_from_slice(field.value);
        self.pseudo[pseudo_index] = Some(Span::new(start, self.scratch.len()));
        Ok(())
    }

    /// Writes the request line.
    fn write_request_line(&mut self) -> Result<(), HeadError> {
        self.request_line_written = true;
        let text =
            |pseudo_index: usize| self.pseudo[pseudo_index].map(|span| span.slice(self.scratch));
        // RFC 9113 §8.3.1: a request has exactly one method, scheme and path, unless it is CONNECT.
        let method = text(METHOD).ok_or(Http2Error::PseudoHeaderMissing)?;
        let protocol = text(PROTOCOL);
        if method == b"CONNECT" && protocol.is_none() {
            // RFC 9113 §8.5: the scheme and the path must be omitted, and the authority is present.
            let is_valid = text(SCHEME).or(text(PATH)).is_none() && text(AUTHORITY).is_some();
            let unsupported = HeadError::Request(crate::RequestError::ConnectUnsupported);
            return Err(if is_valid { unsupported } else { Http2Error::ConnectInvalid.into() });
        }
        if protocol.is_some() && !self.limits.enable_connect_protocol {
            // RFC 8441 §3: a client must not send it before the server's setting allows it.
            return Err(Http2Error::PseudoHeaderUnknown.into());
        }
        if protocol.is_some() && method != b"CONNECT" {
            return Err(Http2Error::ProtocolMisplaced.into());
        }
        let scheme = text(SCHEME).ok_or(Http2Error::PseudoHeaderMissing)?;
        let target = text(PATH).ok_or(Http2Error::PseudoHeaderMissing)?;
        if target.is_empty() {
            return Err(Http2Error::PathEmpty.into());
        }
        let scheme = Some(Scheme::from_name(scheme).ok_or(crate::RequestError::TargetScheme)?);
        let authority = match text(AUTHORITY) {
            // RFC 9113 §8.3.1: for http and https the authority must not be empty.
            Some([]) => return Err(crate::RequestError::TargetHostInvalid.into()),
            authority => authority.unwrap_or_default(),
        };
        let line = RequestLine { method, scheme, authority, target, version: Version::Http2 };
        self.cookie_crumbs_at = self.scratch.len();
        let known_method = Method::from_name(method);
        if self.is_common_form
            && protocol.is_none()
            && known_method != Method::Extension
            && !authority.is_empty()
        {
            let (limits, bytes, index) = (&self.limits.request, &mut *self.bytes, &mut *self.index);
            return Ok(HeadBuilder::begin_unchecked(limits, &line, known_method, bytes, index)?);
        }
        let (limits, bytes, index) = (&self.limits.request, &mut *self.bytes, &mut *self.index);
        let _builder = match protocol {
            None => HeadBuilder::new(limits, &line, bytes, index)?,
            Some(protocol) => HeadBuilder::new_upgrade(limits, &line, protocol, bytes, index)?,
        };
        Ok(())
    }

    // RFC 9113 §8.2.3: cookies that were split are joined with "; " before being passed on.
    fn append_cookie_crumb(&mut self, value: &[u8]) -> Result<(), HeadError> {
        match self.cookie {
            None => {
                self.cookie = Some(self.index.fields.len());
                Ok(self.builder().field_unchecked(KnownField::Cookie, b"cookie", value)?)
            }
            Some(at) if at + 1 == self.index.fields.len() => {
                self.builder().append_to_last_value(b"; ", value).map_err(HeadError::Request)
            }
            Some(_) => {
                self.scratch.extend_from_slice(b"; ");
                self.scratch.extend_from_slice(value);
                Ok(())
            }
        }
    }

    /// Finishes the head. `end_stream` says whether the request is complete with its head.
    #[inline]
    pub(super) fn finish(mut self, end_stream: bool) -> Result<HeadInfo, HeadError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if !self.request_line_written {
            self.write_request_line()?;
        }
        if self.scratch.len() > self.cookie_crumbs_at {
            self.join_cookie_crumbs()?;
        }
        if self.index.target_form == TargetForm::Asterisk {
            self.write_host_field()?;
        }
        if self.pseudo[PROTOCOL].is_some() {
            self.write_synthetic_websocket_key()?;
        }
        self.builder().finish()?;
        self.check_host()?;
        const SPECIAL: u64 =
            KnownField::ContentLength.bit() | KnownField::Expect.bit() | KnownField::Priority.bit();
        let is_tunnel = self.pseudo[PROTOCOL].is_some();
        let body = if end_stream { BodyLength::None } else { BodyLength::Unknown };
        let mut info = HeadInfo { body, is_tunnel, ..HeadInfo::REFUSED };
        if self.index.present & SPECIAL != 0 {
            self.apply_special_fields(end_stream, &mut info)?;
        }
        Ok(info)
    }

    // RFC 9113 §8.3.1: the authority of a request for `*` can only be stored in Host.
    #[cold]
    fn write_host_field(&mut self) -> Result<(), HeadError> {
        let authority = self.pseudo[AUTHORITY].map_or(&[][..], |span| span.slice(self.scratch));
        if authority.is_empty() {
            return Ok(());
        }
        match self.index.get(KnownField::Host) {
            None => {
                let limits = &self.limits.request;
                let mut builder = HeadBuilder::resume(limits, self.bytes, self.index);
                Ok(builder.field(b"host", authority)?)
            }
            Some(host) if host.slice(self.bytes).eq_ignore_ascii_case(authority) => Ok(()),
            Some(_) => Err(Http2Error::AuthorityMismatch.into()),
        }
    }

    // RFC 8441 §5: over HTTP/2 there is no Sec-WebSocket-Key, because intermediaries cannot
    // misinterpret the request; RFC 6455 §4.2.1 requires one of 16 bytes.
    #[cold]
    fn write_synthetic_websocket_key(&mut self) -> Result<(), HeadError> {
        let upgrade = self.index.get(KnownField::Upgrade).unwrap_or_default();
        let is_websocket = upgrade.slice(self.bytes).eq_ignore_ascii_case(b"websocket");
        if !is_websocket || self.index.contains(KnownField::SecWebsocketKey) {
            return Ok(());
        }
        Ok(self.builder().field(b"sec-websocket-key", b"AAAAAAAAAAAAAAAAAAAAAA==")?)
    }

    #[cold]
    fn join_cookie_crumbs(&mut self) -> Result<(), HeadError> {
        let at = self.cookie.expect("crumbs follow a cookie");
        let limits = &self.limits.request;
        let mut builder = HeadBuilder::resume(limits, self.bytes, self.index);
        builder.move_to_end(at);
        Ok(builder.append_to_last_value(&self.scratch[self.cookie_crumbs_at..], b"")?)
    }

    // RFC 9113 §8.3.1: a request whose Host differs from its authority is treated as malformed; one
    // for http or https must have one of them.
    #[inline]
    fn check_host(&self) -> Result<(), HeadError> {
        if !self.index.contains(KnownField::Host) {
            let is_missing = self.index.authority.is_empty();
            return if is_missing { Err(crate::RequestError::HostMissing.into()) } else { Ok(()) };
        }
        if self.index.target_form != TargetForm::Absolute {
            return Ok(());
        }
        let host = self.index.get(KnownField::Host).unwrap_or_default();
        let (host, authority) = (host.slice(self.bytes), self.index.authority.slice(self.bytes));
        let same = host.eq_ignore_ascii_case(authority);
        if same { Ok(()) } else { Err(Http2Error::AuthorityMismatch.into()) }
    }

    /// Evaluates Content-Length, Expect and Priority, which few requests have.
    fn apply_special_fields(&self, end_stream: bool, info: &mut HeadInfo) -> Result<(), HeadError> {
        if let Some(value) = self.index.get(KnownField::ContentLength) {
            let value = value.slice(self.bytes);
            if self.index.is_repeated(KnownField::ContentLength) || value.contains(&b',') {
                return Err(crate::RequestError::ContentLengthRepeated.into());
            }
            let length = h1::parse_decimal(value)?;
            if end_stream && length > 0 {
                // RFC 9113 §8.1.1: the length must equal the sum of the DATA frames' content.
                return Err(Http2Error::ContentLengthMismatch.into());
            }
            if length > self.limits.request.body_bytes_max {
                return Err(crate::RequestError::BodyTooLarge.into());
            }
            info.content_length = Some(length);
            if length > 0 {
                info.body = BodyLength::Exact(length);
            }
        }
        // RFC 9110 §10.1.1: the only expectation is 100-continue; 417 may answer any other.
        let values = self.index.values(KnownField::Expect);
        let mut expectations = values.flat_map(|value| field::split_list(value.slice(self.bytes)));
        if expectations.any(|expectation| !expectation.eq_ignore_ascii_case(b"100-continue")) {
            return Err(crate::RequestError::ExpectationUnknown.into());
        }
        info.expects_continue = !end_stream && self.index.contains(KnownField::Expect);
        // RFC 9218 §5: the client's view of the priority is in the Priority field.
        info.priority = self
            .index
            .get(KnownField::Priority)
            .map(|value| Priority::parse(value.slice(self.bytes)));
        Ok(())
    }
}

/// The error for a name that requests must not have. `is_after_field` says whether a regular field
/// precedes the name.
#[cold]
fn name_error(class: NameClass, is_after_field: bool) -> Http2Error {
    match class {
        NameClass::Connection => Http2Error::ConnectionSpecificField,
        NameClass::Uppercase => Http2Error::FieldNameUppercase,
        NameClass::Invalid | NameClass::Field => Http2Error::FieldNameInvalid,
        _ if is_after_field => Http2Error::PseudoHeaderAfterField,
        _ => Http2Error::PseudoHeaderUnknown,
    }
}

/// The overhead of a field in addition to its bytes. RFC 9113 §6.5.2.
const FIELD_OVERHEAD: usize = 32;

/// Receives the trailers of a request.
pub(super) struct TrailerSink<'a> {
    limits: &'a crate::Limits,
    trailers: Option<Box<Trailers>>,
    bytes: usize,
    error: Option<HeadError>,
}

impl FieldSink for TrailerSink<'_> {
    fn field(&mut self, field: Field<'_>) -> bool {
        self.error = self.accept_field(field).err();
        self.error.is_none()
    }
}

impl<'a> TrailerSink<'a> {
    pub(super) const fn new(limits: &'a crate::Limits) -> Self {
        Self { limits, trailers: None, bytes: 0, error: None }
    }

    fn accept_field(&mut self, field: Field<'_>) -> Result<(), HeadError> {
        match field.info.name {
            NameClass::Field => {}
            class @ (NameClass::Connection | NameClass::Uppercase | NameClass::Invalid) => {
                return Err(name_error(class, true).into());
            }
            // RFC 9113 §8.1: trailers must not include pseudo-fields.
            _ => return Err(Http2Error::PseudoHeaderInTrailers.into()),
        }
        if !field.info.value_is_valid {
            return Err(Http2Error::FieldValueInvalid.into());
        }
        self.bytes += field.name.len() + field.value.len() + b": \r\n".len();
        let bytes_max = self.limits.trailer_bytes_max.min(crate::limits::HEAD_BYTES_CEILING);
        if self.bytes > bytes_max {
            return Err(crate::RequestError::TrailersTooLong.into());
        }
        // RFC 9110 §6.5.1: fields for framing, routing and similar have no meaning in a trailer
        // section, and a recipient may discard them.
        if field.info.known.is_allowed_in_trailers() {
            let trailers = self.trailers.get_or_insert_default();
            if trailers.len() >= self.limits.fields_max {
                return Err(crate::RequestError::FieldsTooMany.into());
            }
            trailers.push(field.name, field.value);
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Option<Box<Trailers>>, HeadError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.trailers),
        }
    }
}

/// Ignores all fields: for blocks that are decoded only to update the dynamic table.
pub(super) struct DiscardSink;

impl FieldSink for DiscardSink {
    fn field(&mut self, _: Field<'_>) -> bool {
        false
    }
}
