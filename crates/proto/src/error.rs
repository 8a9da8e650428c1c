//! Errors of requests: one variant for each rule that a peer can violate.

use std::fmt;

/// A rule that the peer violated, or a limit that it exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum RequestError {
    /// More than one empty line precedes the request line. Status 400, RFC 9112 §2.2.
    EmptyLineRepeated,
    /// The client began HTTP/2 without agreeing on it first; this port speaks HTTP/1.1. Status 505,
    /// RFC 9113 §3.4.
    Http2Preface,
    /// The request line is not a method, a target and a version, separated by single spaces. Status
    /// 400, RFC 9112 §3.
    RequestLineInvalid,
    /// The request line is longer than the server reads. Status 414, RFC 9112 §3.
    RequestLineTooLong,
    /// The method has a byte that a token must not have. Status 400, RFC 9110 §9.1.
    MethodInvalid,
    /// The method is longer than any that the server knows. Status 501, RFC 9112 §3.
    MethodUnknown,
    /// The server is not a tunnel and does not implement CONNECT. Status 501, RFC 9110 §9.1.
    ConnectUnsupported,
    /// The request target has an invalid byte or an unknown form. Status 400, RFC 9112 §3.2.
    TargetInvalid,
    /// The request target has a fragment, which is never sent. Status 400, RFC 9112 §3.2.
    TargetFragment,
    /// The target `*` is valid with OPTIONS only. Status 400, RFC 9112 §3.2.4.
    TargetAsterisk,
    /// A target that is only an authority is valid with CONNECT only. Status 400, RFC 9112 §3.2.3.
    TargetAuthority,
    /// The target's scheme is neither http nor https. Status 400, RFC 9110 §4.2.
    TargetScheme,
    /// The connection is not secured for this resource: it has no TLS, or a certificate for other
    /// hosts. Status 421, RFC 9110 §7.4.
    Misdirected,
    /// The target's authority has user information, no host, or a malformed host or port. Status
    /// 400, RFC 9110 §4.2.1.
    TargetHostInvalid,
    /// The version is not `HTTP/` followed by a digit, a dot and a digit. Status 400, RFC 9112
    /// §2.3.
    VersionInvalid,
    /// The request's major version of HTTP is not 1. Status 505, RFC 9110 §15.6.6.
    VersionUnsupported,
    /// A line ends with a line feed without a carriage return. Status 400, RFC 9112 §2.2.
    BareLf,
    /// A carriage return has no line feed after it. Status 400, RFC 9112 §2.2.
    BareCr,
    /// A field line begins with white space: obsolete folding is not accepted. Status 400, RFC 9112
    /// §5.2.
    ObsFold,
    /// A field line has no colon. Status 400, RFC 9112 §5.
    FieldColonMissing,
    /// A field has no name. Status 400, RFC 9110 §5.1.
    FieldNameEmpty,
    /// A field name has a byte that a token must not have. Status 400, RFC 9110 §5.1.
    FieldNameInvalid,
    /// There is white space between a field name and its colon. Status 400, RFC 9112 §5.1.
    FieldNameSpace,
    /// A field value has a NUL byte. Status 400, RFC 9110 §5.5.
    FieldValueNul,
    /// A field value has a control byte. Status 400, RFC 9110 §5.5.
    FieldValueInvalid,
    /// A field line is longer than the server reads. Status 431, RFC 6585 §5.
    FieldTooLong,
    /// There are more field lines than the server reads. Status 431, RFC 6585 §5.
    FieldsTooMany,
    /// The head is longer than the server reads. Status 431, RFC 6585 §5.
    HeadTooLong,
    /// An HTTP/1.1 request has no Host field. Status 400, RFC 9112 §3.2.
    HostMissing,
    /// There is more than one Host field. Status 400, RFC 9112 §3.2.
    HostRepeated,
    /// The Host field names no host. Status 400, RFC 9110 §4.2.1.
    HostEmpty,
    /// The Host field is not a host with an optional port. Status 400, RFC 9112 §3.2.
    HostInvalid,
    /// The Content-Length is not one number of decimal digits. Status 400, RFC 9110 §8.6.
    ContentLengthInvalid,
    /// The Content-Length is larger than the server can count. Status 400, RFC 9110 §8.6.
    ContentLengthOverflow,
    /// There is more than one Content-Length, as a list or as repeated fields. Status 400, RFC 9110
    /// §8.6.
    ContentLengthRepeated,
    /// There is both a Content-Length and a Transfer-Encoding. Status 400, RFC 9112 §6.1.
    ContentLengthWithTransferEncoding,
    /// An HTTP/1.0 request has a Transfer-Encoding. Status 400, RFC 9112 §6.1.
    TransferEncodingInHttp10,
    /// The Transfer-Encoding is not a list of codings. Status 400, RFC 9112 §6.1.
    TransferEncodingInvalid,
    /// The Transfer-Encoding names a coding that the server does not implement. Status 501, RFC
    /// 9112 §6.1.
    TransferCodingUnsupported,
    /// The last transfer coding is not chunked, so the end of the content is unknown. Status 400,
    /// RFC 9112 §6.3.
    ChunkedNotLast,
    /// The chunked coding is applied more than once. Status 400, RFC 9112 §6.1.
    ChunkedRepeated,
    /// The Expect field has an expectation other than 100-continue. Status 417, RFC 9110 §10.1.1.
    ExpectationUnknown,
    /// The content is larger than the server reads. Status 413, RFC 9110 §15.5.14.
    BodyTooLarge,
    /// A chunk size is not one or more hexadecimal digits. Status 400, RFC 9112 §7.1.
    ChunkSizeInvalid,
    /// A chunk size is larger than the server can count. Status 400, RFC 9112 §7.1.
    ChunkSizeOverflow,
    /// A chunk extension is malformed. Status 400, RFC 9112 §7.1.1.
    ChunkExtensionInvalid,
    /// The extensions of a chunk are longer than the server reads. Status 400, RFC 9112 §7.1.1.
    ChunkExtensionsTooLong,
    /// No line end follows a chunk's data. Status 400, RFC 9112 §7.1.
    ChunkCrlfMissing,
    /// The trailer section is longer than the server reads. Status 431, RFC 6585 §5.
    TrailersTooLong,
    /// The connection ended within a head. Status 400, RFC 9112 §8.
    HeadTruncated,
    /// The connection ended within the content. Status 400, RFC 9112 §8.
    BodyIncomplete,
}

impl RequestError {
    /// Every variant, in order.
    pub const ALL: &'static [Self] = &[
        Self::EmptyLineRepeated,
        Self::Http2Preface,
        Self::RequestLineInvalid,
        Self::RequestLineTooLong,
        Self::MethodInvalid,
        Self::MethodUnknown,
        Self::ConnectUnsupported,
        Self::TargetInvalid,
        Self::TargetFragment,
        Self::TargetAsterisk,
        Self::TargetAuthority,
        Self::TargetScheme,
        Self::Misdirected,
        Self::TargetHostInvalid,
        Self::VersionInvalid,
        Self::VersionUnsupported,
        Self::BareLf,
        Self::BareCr,
        Self::ObsFold,
        Self::FieldColonMissing,
        Self::FieldNameEmpty,
        Self::FieldNameInvalid,
        Self::FieldNameSpace,
        Self::FieldValueNul,
        Self::FieldValueInvalid,
        Self::FieldTooLong,
        Self::FieldsTooMany,
        Self::HeadTooLong,
        Self::HostMissing,
        Self::HostRepeated,
        Self::HostEmpty,
        Self::HostInvalid,
        Self::ContentLengthInvalid,
        Self::ContentLengthOverflow,
        Self::ContentLengthRepeated,
        Self::ContentLengthWithTransferEncoding,
        Self::TransferEncodingInHttp10,
        Self::TransferEncodingInvalid,
        Self::TransferCodingUnsupported,
        Self::ChunkedNotLast,
        Self::ChunkedRepeated,
        Self::ExpectationUnknown,
        Self::BodyTooLarge,
        Self::ChunkSizeInvalid,
        Self::ChunkSizeOverflow,
        Self::ChunkExtensionInvalid,
        Self::ChunkExtensionsTooLong,
        Self::ChunkCrlfMissing,
        Self::TrailersTooLong,
        Self::HeadTruncated,
        Self::BodyIncomplete,
    ];

    /// The status of the response.
    #[must_use]
    pub const fn status(self) -> u16 {
        self.details().0
    }

    /// The section of the standard that contains the rule, or the status for exceeding a limit:
    /// `RFC 9112 §5.1`.
    #[must_use]
    pub const fn section(self) -> &'static str {
        self.details().1
    }

    /// The violated rule, as one sentence without its full stop.
    #[must_use]
    pub const fn rule(self) -> &'static str {
        self.details().2
    }

    /// Returns whether the connection closes after the response. It does after most errors, because
    /// it is unclear where the next request begins. It does not after an unknown expectation or a
    /// misdirected request, whose heads are valid.
    #[must_use]
    pub const fn closes_connection(self) -> bool {
        !matches!(self, Self::ExpectationUnknown | Self::Misdirected)
    }

    #[expect(clippy::too_many_lines, reason = "one table with a row for each rule")]
    const fn details(self) -> (u16, &'static str, &'static str) {
        match self {
            Self::EmptyLineRepeated => {
                (400, "RFC 9112 §2.2", "More than one empty line precedes the request line")
            }
            Self::Http2Preface => (
                505,
                "RFC 9113 §3.4",
                "The client began HTTP/2 without agreeing on it first; this port speaks HTTP/1.1",
            ),
            Self::RequestLineInvalid => (
                400,
                "RFC 9112 §3",
                "The request line is not a method, a target and a version, separated by single spaces",
            ),
            Self::RequestLineTooLong => {
                (414, "RFC 9112 §3", "The request line is longer than the server reads")
            }
            Self::MethodInvalid => {
                (400, "RFC 9110 §9.1", "The method has a byte that a token must not have")
            }
            Self::MethodUnknown => {
                (501, "RFC 9112 §3", "The method is longer than any that the server knows")
            }
            Self::ConnectUnsupported => {
                (501, "RFC 9110 §9.1", "The server is not a tunnel and does not implement CONNECT")
            }
            Self::TargetInvalid => {
                (400, "RFC 9112 §3.2", "The request target has an invalid byte or an unknown form")
            }
            Self::TargetFragment => {
                (400, "RFC 9112 §3.2", "The request target has a fragment, which is never sent")
            }
            Self::TargetAsterisk => {
                (400, "RFC 9112 §3.2.4", "The target `*` is valid with OPTIONS only")
            }
            Self::TargetAuthority => (
                400,
                "RFC 9112 §3.2.3",
                "A target that is only an authority is valid with CONNECT only",
            ),
            Self::TargetScheme => {
                (400, "RFC 9110 §4.2", "The target's scheme is neither http nor https")
            }
            Self::Misdirected => (
                421,
                "RFC 9110 §7.4",
                "The connection is not secured for this resource: it has no TLS, or a certificate for other hosts",
            ),
            Self::TargetHostInvalid => (
                400,
                "RFC 9110 §4.2.1",
                "The target's authority has user information, no host, or a malformed host or port",
            ),
            Self::VersionInvalid => (
                400,
                "RFC 9112 §2.3",
                "The version is not `HTTP/` followed by a digit, a dot and a digit",
            ),
            Self::VersionUnsupported => {
                (505, "RFC 9110 §15.6.6", "The request's major version of HTTP is not 1")
            }
            Self::BareLf => {
                (400, "RFC 9112 §2.2", "A line ends with a line feed without a carriage return")
            }
            Self::BareCr => (400, "RFC 9112 §2.2", "A carriage return has no line feed after it"),
            Self::ObsFold => (
                400,
                "RFC 9112 §5.2",
                "A field line begins with white space: obsolete folding is not accepted",
            ),
            Self::FieldColonMissing => (400, "RFC 9112 §5", "A field line has no colon"),
            Self::FieldNameEmpty => (400, "RFC 9110 §5.1", "A field has no name"),
            Self::FieldNameInvalid => {
                (400, "RFC 9110 §5.1", "A field name has a byte that a token must not have")
            }
            Self::FieldNameSpace => {
                (400, "RFC 9112 §5.1", "There is white space between a field name and its colon")
            }
            Self::FieldValueNul => (400, "RFC 9110 §5.5", "A field value has a NUL byte"),
            Self::FieldValueInvalid => (400, "RFC 9110 §5.5", "A field value has a control byte"),
            Self::FieldTooLong => {
                (431, "RFC 6585 §5", "A field line is longer than the server reads")
            }
            Self::FieldsTooMany => {
                (431, "RFC 6585 §5", "There are more field lines than the server reads")
            }
            Self::HeadTooLong => (431, "RFC 6585 §5", "The head is longer than the server reads"),
            Self::HostMissing => (400, "RFC 9112 §3.2", "An HTTP/1.1 request has no Host field"),
            Self::HostRepeated => (400, "RFC 9112 §3.2", "There is more than one Host field"),
            Self::HostEmpty => (400, "RFC 9110 §4.2.1", "The Host field names no host"),
            Self::HostInvalid => {
                (400, "RFC 9112 §3.2", "The Host field is not a host with an optional port")
            }
            Self::ContentLengthInvalid => {
                (400, "RFC 9110 §8.6", "The Content-Length is not one number of decimal digits")
            }
            Self::ContentLengthOverflow => {
                (400, "RFC 9110 §8.6", "The Content-Length is larger than the server can count")
            }
            Self::ContentLengthRepeated => (
                400,
                "RFC 9110 §8.6",
                "There is more than one Content-Length, as a list or as repeated fields",
            ),
            Self::ContentLengthWithTransferEncoding => {
                (400, "RFC 9112 §6.1", "There is both a Content-Length and a Transfer-Encoding")
            }
            Self::TransferEncodingInHttp10 => {
                (400, "RFC 9112 §6.1", "An HTTP/1.0 request has a Transfer-Encoding")
            }
            Self::TransferEncodingInvalid => {
                (400, "RFC 9112 §6.1", "The Transfer-Encoding is not a list of codings")
            }
            Self::TransferCodingUnsupported => (
                501,
                "RFC 9112 §6.1",
                "The Transfer-Encoding names a coding that the server does not implement",
            ),
            Self::ChunkedNotLast => (
                400,
                "RFC 9112 §6.3",
                "The last transfer coding is not chunked, so the end of the content is unknown",
            ),
            Self::ChunkedRepeated => {
                (400, "RFC 9112 §6.1", "The chunked coding is applied more than once")
            }
            Self::ExpectationUnknown => (
                417,
                "RFC 9110 §10.1.1",
                "The Expect field has an expectation other than 100-continue",
            ),
            Self::BodyTooLarge => {
                (413, "RFC 9110 §15.5.14", "The content is larger than the server reads")
            }
            Self::ChunkSizeInvalid => {
                (400, "RFC 9112 §7.1", "A chunk size is not one or more hexadecimal digits")
            }
            Self::ChunkSizeOverflow => {
                (400, "RFC 9112 §7.1", "A chunk size is larger than the server can count")
            }
            Self::ChunkExtensionInvalid => {
                (400, "RFC 9112 §7.1.1", "A chunk extension is malformed")
            }
            Self::ChunkExtensionsTooLong => (
                400,
                "RFC 9112 §7.1.1",
                "The extensions of a chunk are longer than the server reads",
            ),
            Self::ChunkCrlfMissing => (400, "RFC 9112 §7.1", "No line end follows a chunk's data"),
            Self::TrailersTooLong => {
                (431, "RFC 6585 §5", "The trailer section is longer than the server reads")
            }
            Self::HeadTruncated => (400, "RFC 9112 §8", "The connection ended within a head"),
            Self::BodyIncomplete => (400, "RFC 9112 §8", "The connection ended within the content"),
        }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.rule(), self.section())
    }
}

impl std::error::Error for RequestError {}
