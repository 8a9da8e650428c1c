//! Reasons for rejecting a form.

use http::StatusCode;
use peregrine_web::Problem;
use std::fmt;

/// Why a form is rejected. The client is at fault in each case.
#[doc(alias = "MultipartRejection")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MultipartError {
    /// The `Content-Type` has no `boundary`, or two of them.
    MissingBoundary,
    /// The boundary is empty, too long, or contains a forbidden character.
    InvalidBoundary,
    /// A boundary is followed by something other than a line end or two hyphens.
    InvalidDelimiter,
    /// A line of a part's head ends without a carriage return, or contains one.
    InvalidHeaderLine,
    /// A line of a part's head is not a header field.
    InvalidHeader,
    /// A part has no `Content-Disposition: form-data`, or two of them.
    MissingContentDisposition,
    /// A part's `Content-Disposition` is malformed or not UTF-8.
    InvalidContentDisposition,
    /// A part has no name.
    MissingName,
    /// A part has a forbidden `Content-Transfer-Encoding`.
    UnsupportedTransferEncoding,
    /// A field's text is not UTF-8.
    InvalidUtf8,
    /// A field declares a charset other than UTF-8.
    UnsupportedCharset,
    /// The form ends before its last boundary.
    Incomplete,
    /// There are too many parts.
    TooManyFields(usize),
    /// Too many of the parts are files.
    TooManyFiles(usize),
    /// A field that is not a file is too large.
    FieldTooLarge(u64),
    /// A file is too large.
    FileTooLarge(u64),
    /// The parts are too large in total.
    TotalTooLarge(u64),
    /// A part has too many header fields.
    TooManyPartHeaders(usize),
    /// A part's head, or the data around the parts, is too long.
    PartHeadersTooLarge(usize),
}

impl MultipartError {
    /// The status of the response.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::UnsupportedTransferEncoding | Self::UnsupportedCharset => {
                StatusCode::UNSUPPORTED_MEDIA_TYPE
            }
            _ if self.limit().is_some() => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    /// The limit that the form exceeded, if that is the reason.
    #[must_use]
    pub fn limit(self) -> Option<u64> {
        match self {
            Self::TooManyFields(limit)
            | Self::TooManyFiles(limit)
            | Self::TooManyPartHeaders(limit)
            | Self::PartHeadersTooLarge(limit) => Some(limit as u64),
            Self::FieldTooLarge(limit) | Self::FileTooLarge(limit) | Self::TotalTooLarge(limit) => {
                Some(limit)
            }
            _ => None,
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Incomplete => "incomplete-multipart",
            Self::UnsupportedTransferEncoding | Self::UnsupportedCharset => "unsupported-encoding",
            _ if self.limit().is_some() => "multipart-too-large",
            _ => "invalid-multipart",
        }
    }

    /// The problem, about the part of this name if known.
    #[must_use]
    pub fn to_problem(self, field: Option<&str>) -> Problem {
        let problem = Problem::new(self.status(), self.kind(), self.to_string());
        let problem = match self.limit() {
            Some(limit) => problem.with_member("limit", limit),
            None => problem,
        };
        match field {
            Some(field) => problem.with_member("field", shortened(field)),
            None => problem,
        }
    }
}

/// Text from the client, truncated for the response.
fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(200)]
}

impl fmt::Display for MultipartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingBoundary => f.write_str("the Content-Type must have one parameter `boundary`"),
            Self::InvalidBoundary => f.write_str(
                "the boundary must be 1 to 70 letters, digits and characters of `'()+_,-./:=? `, and not end \
                 with a space",
            ),
            Self::InvalidDelimiter => {
                f.write_str("a boundary must be followed by the end of its line, or by `--`")
            }
            Self::InvalidHeaderLine => {
                f.write_str("each line of a part's head must end with CR LF, and contain no other CR")
            }
            Self::InvalidHeader => {
                f.write_str("each line of a part's head must be a name, a colon and a value")
            }
            Self::MissingContentDisposition => {
                f.write_str("each part must have one header field `Content-Disposition: form-data`")
            }
            Self::InvalidContentDisposition => {
                f.write_str("a part's Content-Disposition is malformed or not UTF-8")
            }
            Self::MissingName => f.write_str("each part's Content-Disposition must have a `name`"),
            Self::UnsupportedTransferEncoding => f.write_str(
                "a part must not have a Content-Transfer-Encoding other than 7bit, 8bit or binary",
            ),
            Self::InvalidUtf8 => f.write_str("the field must be UTF-8 text"),
            Self::UnsupportedCharset => f.write_str("the field's charset must be UTF-8"),
            Self::Incomplete => f.write_str("the form ended before its last boundary"),
            Self::TooManyFields(limit) => write!(f, "the form has more than {limit} fields"),
            Self::TooManyFiles(limit) => write!(f, "the form has more than {limit} files"),
            Self::FieldTooLarge(limit) => {
                write!(f, "the field is larger than the limit of {limit} bytes")
            }
            Self::FileTooLarge(limit) => {
                write!(f, "the file is larger than the limit of {limit} bytes")
            }
            Self::TotalTooLarge(limit) => {
                write!(f, "the form's fields exceed the total limit of {limit} bytes")
            }
            Self::TooManyPartHeaders(limit) => {
                write!(f, "a part has more than {limit} header fields")
            }
            Self::PartHeadersTooLarge(limit) => write!(
                f,
                "a part's head, or the data around the parts, is longer than the limit of {limit} bytes"
            ),
        }
    }
}

impl std::error::Error for MultipartError {}

impl From<MultipartError> for Problem {
    fn from(error: MultipartError) -> Self {
        error.to_problem(None)
    }
}
