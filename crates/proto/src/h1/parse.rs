//! Parses bytes into the lines of a head.
//!
//! The usual case is one pass over a complete head. Parsing stops at an incomplete line and starts
//! again at its first byte when its end has arrived. Until then only the new bytes are searched for
//! that end, so parsing a head that arrives in many chunks costs at most twice as much.
//!
//! An error is reported only when the end of its line has arrived (or the line is too long), so the
//! result does not depend on how the bytes were split. A bare carriage return also ends a line, and
//! that line is rejected immediately, because the peer may never send a line feed. A method that is
//! too long is rejected without waiting for the line end.

use super::framing::{self, Framing};
use super::line::{Line, LineLimits, ParseError, ParseProgress};
use crate::authority;
use crate::field::{self, PATH, QUERY, TOKEN};
use crate::limits::{HEAD_BYTES_CEILING, METHOD_BYTES_MAX};
use crate::{
    FieldIndex, HeadIndex, KnownField, Limits, Method, RequestError, Scheme, Span, TargetForm,
    Version,
};

/// Parses the head at the start of `bytes` into `index` and `framing`, and returns its length.
/// `progress` and `index` contain the result of an earlier call with fewer of the same bytes.
#[inline]
pub(super) fn parse_head(
    bytes: &[u8],
    progress: &mut ParseProgress,
    limits: &Limits,
    index: &mut HeadIndex,
    framing: &mut Framing,
) -> Result<usize, ParseError> {
    let bytes_max = limits.head_bytes_max.min(HEAD_BYTES_CEILING);
    let window = &bytes[..bytes.len().min(bytes_max)];
    let mut at = usize::from(progress.line);
    let has_line_end = !progress.has_no_line_end(window);
    let result = if has_line_end {
        parse_lines(window, &mut at, limits, index, framing)
    } else {
        Err(ParseError::Incomplete)
    };
    result.map_err(|error| {
        *progress = ParseProgress::new(at, window.len());
        let error = if has_line_end { Some(error) } else { None };
        resolve_error(window, at, error, limits, index)
    })
}

/// Returns the error if `window` contains no complete head. The current line begins at `at`;
/// `error` is the one found in it, or `None` if it was not parsed because it has no end yet.
#[cold]
fn resolve_error(
    window: &[u8],
    at: usize,
    error: Option<ParseError>,
    limits: &Limits,
    index: &mut HeadIndex,
) -> ParseError {
    let (line_max, too_long) = if at == 0 {
        (limits.request_line_bytes_max, RequestError::RequestLineTooLong)
    } else {
        (limits.field_bytes_max, RequestError::FieldTooLong)
    };
    if at == 0 && begins_with_long_method(&window[..window.len().min(line_max)]) {
        return ParseError::Invalid(RequestError::MethodUnknown);
    }
    let bytes_max = limits.head_bytes_max.min(HEAD_BYTES_CEILING);
    let head_full = (window.len() == bytes_max).then_some(RequestError::HeadTooLong);
    let line_limits = LineLimits { line_max, too_long, head_full };
    let Some(error) = error else { return line_limits.incomplete_line(window.len() - at) };
    line_limits.resolve(&window[at..], error, |end| match at {
        0 => parse_request_line(&window[..end], index).err(),
        _ => parse_field_line(&window[..at + end], at).err(),
    })
}

/// Parses lines from `at` to the end of the head, and returns the head's length. After an error,
/// `at` is the start of the current line.
#[inline]
fn parse_lines(
    window: &[u8],
    at: &mut usize,
    limits: &Limits,
    index: &mut HeadIndex,
    framing: &mut Framing,
) -> Result<usize, ParseError> {
    if *at == 0 {
        let end = parse_request_line(window, index)?;
        if end > limits.request_line_bytes_max {
            return Err(ParseError::Invalid(RequestError::RequestLineTooLong));
        }
        *at = end;
    }
    loop {
        let (field, end) = match parse_field_line(window, *at)? {
            Line::Field(field, end) => (field, end),
            Line::Empty(end) => {
                let head = &window[..end];
                framing::determine_framing(head, limits, index, framing)
                    .map_err(ParseError::Invalid)?;
                return Ok(end);
            }
        };
        if end - *at > limits.field_bytes_max {
            return Err(ParseError::Invalid(RequestError::FieldTooLong));
        }
        if index.fields.len() >= limits.fields_max {
            return Err(ParseError::Invalid(RequestError::FieldsTooMany));
        }
        index.push(field);
        *at = end;
    }
}

/// Parses the field line, or the empty line, at `at`.
#[inline]
pub(super) fn parse_field_line(window: &[u8], at: usize) -> Result<Line, ParseError> {
    // The empty line is checked first, so that the search for a colon does not continue beyond the
    // head.
    if window.get(at) == Some(&b'\r') {
        return match window.get(at + 1) {
            None => Err(ParseError::Incomplete),
            Some(b'\n') => Ok(Line::Empty(at + 2)),
            Some(_) => Err(ParseError::Invalid(RequestError::BareCr)),
        };
    }
    let Some(colon) = field::find_colon(window, at) else {
        return Err(field_name_error(window, at, window.len()));
    };
    let name = &window[at..colon];
    let known = KnownField::from_name(name);
    if known == KnownField::Other && !field::is_token(name) {
        return Err(field_name_error(window, at, colon));
    }
    let mut start = colon + 1;
    while let Some(b' ' | b'\t') = window.get(start) {
        start += 1;
    }
    let value_end = field::value_end(window, start);
    if window.get(value_end..value_end + 2) != Some(b"\r\n") {
        return Err(field_value_error(window, value_end));
    }
    let mut end = value_end;
    while end > start && matches!(window[end - 1], b' ' | b'\t') {
        end -= 1;
    }
    let (name, value) = (Span::new(at, colon), Span::new(start, end));
    Ok(Line::Field(FieldIndex { name, value, known }, value_end + 2))
}

/// The error in the name of the line at `at`, if that line is complete. The next colon is at
/// `colon`, possibly in another line.
#[cold]
fn field_name_error(window: &[u8], at: usize, colon: usize) -> ParseError {
    let line = window[at..].split(|byte| *byte == b'\n').next().unwrap_or_default();
    let name = &window[at..colon.min(at + line.len())];
    let error = if let [b' ' | b'\t', ..] = line {
        // RFC 9112 §5.2: a server that receives obs-fold must reject the message or replace it.
        RequestError::ObsFold
    } else if let Some(cr) = name.iter().position(|byte| *byte == b'\r') {
        let ends_line = cr + 1 == line.len();
        if ends_line { RequestError::FieldColonMissing } else { RequestError::BareCr }
    } else if name.len() == line.len() {
        RequestError::BareLf
    } else if name.is_empty() {
        RequestError::FieldNameEmpty
    } else if field::is_token(field::trim_ows(name)) {
        // RFC 9112 §5.1: no white space is allowed between the name and the colon; reject with 400.
        RequestError::FieldNameSpace
    } else {
        RequestError::FieldNameInvalid
    };
    ParseError::Invalid(error)
}

/// The error in a value at `at`, where a line end should be.
#[cold]
fn field_value_error(window: &[u8], at: usize) -> ParseError {
    ParseError::Invalid(match window.get(at) {
        None => return ParseError::Incomplete,
        // RFC 9112 §2.2: a recipient of a bare CR must consider it invalid or replace it.
        Some(b'\r') => RequestError::BareCr,
        // RFC 9112 §2.2: a recipient may recognise a single LF as a line end; this one does not,
        // because the two readings enable request smuggling.
        Some(b'\n') => RequestError::BareLf,
        Some(0) => RequestError::FieldValueNul,
        Some(_) => RequestError::FieldValueInvalid,
    })
}

/// Parses the request line at the start of `window` and returns the offset of the next line.
#[inline]
fn parse_request_line(window: &[u8], index: &mut HeadIndex) -> Result<usize, ParseError> {
    let version_start = parse_until_version(window, index)?;
    if window.get(version_start..version_start + 10) == Some(b"HTTP/1.1\r\n") {
        index.version = Version::Http11;
        return Ok(version_start + 10);
    }
    parse_other_version(window, version_start, index)
}

/// Parses the method and the target at the start of `line`; the rest of it is ignored.
pub(crate) fn parse_method_and_target(
    line: &[u8],
    index: &mut HeadIndex,
) -> Result<(), RequestError> {
    match parse_until_version(line, index) {
        Ok(_version_start) => Ok(()),
        Err(ParseError::Invalid(error)) => Err(error),
        Err(ParseError::Incomplete) => Err(RequestError::RequestLineInvalid),
    }
}

/// Parses the method and the target, and returns the offset of the version.
#[inline]
fn parse_until_version(window: &[u8], index: &mut HeadIndex) -> Result<usize, ParseError> {
    let method_end = parse_method(window, index)?;
    let target = method_end + 1;
    let target_end = match window.get(target) {
        Some(b'/') => {
            index.target_form = TargetForm::Origin;
            index.authority = Span::EMPTY;
            parse_path_and_query(window, target, index)?
        }
        Some(b'*') => parse_asterisk_form(window, target, index)?,
        Some(_) => parse_absolute_form(window, target, index)?,
        None => return Err(ParseError::Incomplete),
    };
    if window.get(target_end) != Some(&b' ') {
        return Err(target_error(window, target_end));
    }
    index.target = Span::new(target, target_end);
    Ok(target_end + 1)
}

/// Parses the method and returns the offset of the space after it.
#[inline]
fn parse_method(window: &[u8], index: &mut HeadIndex) -> Result<usize, ParseError> {
    if window.starts_with(b"GET ") {
        index.method = Method::Get;
        index.method_span = Span::new(0, 3);
        return Ok(3);
    }
    let mut end = 0;
    while end < window.len() && end <= METHOD_BYTES_MAX && field::has_class(window[end], TOKEN) {
        end += 1;
    }
    match window.get(end) {
        None => return Err(ParseError::Incomplete),
        // RFC 9112 §3: 501 is for a method longer than any that the server implements.
        Some(_) if end > METHOD_BYTES_MAX => {
            return Err(ParseError::Invalid(RequestError::MethodUnknown));
        }
        Some(b' ') if end > 0 => {}
        Some(b' ') => return Err(ParseError::Invalid(RequestError::RequestLineInvalid)),
        Some(_) => return Err(request_line_error(window, end, RequestError::MethodInvalid)),
    }
    index.method = Method::from_name(&window[..end]);
    index.method_span = Span::new(0, end);
    if index.method == Method::Connect {
        // RFC 9110 §9.1: a method that the server does not implement is answered with 501.
        return Err(ParseError::Invalid(RequestError::ConnectUnsupported));
    }
    Ok(end)
}

/// Returns whether the line begins with a method that is too long.
fn begins_with_long_method(line: &[u8]) -> bool {
    let prefix = line.get(..=METHOD_BYTES_MAX);
    prefix.is_some_and(|prefix| prefix.iter().all(|byte| field::has_class(*byte, TOKEN)))
}

/// Parses a path, which may be empty, and a query from `at`; returns where they end.
#[inline]
fn parse_path_and_query(
    window: &[u8],
    at: usize,
    index: &mut HeadIndex,
) -> Result<usize, ParseError> {
    let mut end = at + class_prefix_len(&window[at..], PATH);
    index.path = Span::new(at, end);
    index.query = None;
    if window.get(end) == Some(&b'?') {
        let query = end + 1;
        end = query + class_prefix_len(&window[query..], QUERY);
        index.query = Some(Span::new(query, end));
    }
    Ok(end)
}

/// The number of bytes at the start that are in a class.
#[inline]
fn class_prefix_len(bytes: &[u8], class: u8) -> usize {
    bytes.iter().position(|byte| !field::has_class(*byte, class)).unwrap_or(bytes.len())
}

// RFC 9112 §3.2.4: the asterisk form is only used for a server-wide OPTIONS request.
#[cold]
fn parse_asterisk_form(
    window: &[u8],
    at: usize,
    index: &mut HeadIndex,
) -> Result<usize, ParseError> {
    if window.starts_with(b"PRI * HTTP/2.0\r\n") {
        // RFC 9113 §3.4: the preface is chosen so that HTTP/1.1 servers do not continue after it.
        return Err(ParseError::Invalid(RequestError::Http2Preface));
    }
    if window.get(at + 1).is_some_and(|byte| *byte != b' ') {
        return Err(target_error(window, at + 1));
    }
    if index.method != Method::Options {
        return Err(ParseError::Invalid(RequestError::TargetAsterisk));
    }
    index.target_form = TargetForm::Asterisk;
    index.authority = Span::EMPTY;
    index.path = Span::new(at, at + 1);
    index.query = None;
    Ok(at + 1)
}

// RFC 9112 §3.2.2: a server must accept the absolute form in requests.
#[cold]
fn parse_absolute_form(
    window: &[u8],
    at: usize,
    index: &mut HeadIndex,
) -> Result<usize, ParseError> {
    let rest = &window[at..];
    let end = rest.iter().position(|byte| *byte <= b' ').unwrap_or(rest.len());
    let target = &rest[..end];
    let name_bytes = target.iter().position(|byte| *byte == b':').unwrap_or(0);
    let (name, rest) = target.split_at(name_bytes);
    let scheme = Scheme::from_name(name).filter(|_| rest.starts_with(b"://"));
    let Some(scheme) = scheme else { return Err(target_form_error(window, at, target)) };
    let authority = at + name_bytes + b"://".len();
    let authority_bytes = window[authority..at + end]
        .iter()
        .position(|byte| matches!(byte, b'/' | b'?' | b'#'))
        .unwrap_or(at + end - authority);
    let authority_end = authority + authority_bytes;
    if !authority::is_host_and_port(&window[authority..authority_end]) {
        // RFC 9110 §4.2.1: an http URI with an empty host must be rejected as invalid.
        // RFC 9110 §4.2.4: user information in an http URI ought to be treated as an error.
        return Err(ParseError::Invalid(RequestError::TargetHostInvalid));
    }
    index.target_form = TargetForm::Absolute;
    index.scheme = Some(scheme);
    index.authority = Span::new(authority, authority_end);
    parse_path_and_query(window, authority_end, index)
}

/// The error in a target whose form is not supported.
#[cold]
fn target_form_error(window: &[u8], at: usize, target: &[u8]) -> ParseError {
    let scheme = target.iter().position(|byte| *byte == b':').map(|colon| target.split_at(colon));
    ParseError::Invalid(match scheme {
        Some((scheme, rest)) if rest.starts_with(b"://") && field::is_token(scheme) => {
            RequestError::TargetScheme
        }
        // RFC 9112 §3.2.3: the authority form is only used for CONNECT requests.
        Some(_) if authority::is_host_and_port(target) => RequestError::TargetAuthority,
        _ if target.is_empty() => {
            return request_line_error(window, at, RequestError::RequestLineInvalid);
        }
        _ => RequestError::TargetInvalid,
    })
}

/// The error in a target that ends at `at` without a space.
#[cold]
fn target_error(window: &[u8], at: usize) -> ParseError {
    let other = match window.get(at) {
        // RFC 9112 §3.2: a request target has no fragment in any form.
        Some(b'#') => RequestError::TargetFragment,
        _ => RequestError::TargetInvalid,
    };
    request_line_error(window, at, other)
}

/// The error in a request line that has an unexpected byte at `at`.
#[cold]
fn request_line_error(window: &[u8], at: usize, other: RequestError) -> ParseError {
    match (window.get(at), window.get(at + 1)) {
        (None, _) => ParseError::Incomplete,
        (Some(b'\n'), _) => ParseError::Invalid(RequestError::BareLf),
        (Some(b'\r'), Some(b'\n')) => ParseError::Invalid(RequestError::RequestLineInvalid),
        (Some(b'\r'), _) => ParseError::Invalid(RequestError::BareCr),
        _ => ParseError::Invalid(other),
    }
}

/// Parses a version other than HTTP/1.1, or rejects an invalid one.
#[cold]
fn parse_other_version(
    window: &[u8],
    at: usize,
    index: &mut HeadIndex,
) -> Result<usize, ParseError> {
    let rest = &window[at..];
    let Some(lf) = rest.iter().position(|byte| *byte == b'\n') else {
        return Err(ParseError::Incomplete);
    };
    let error = match &rest[..lf] {
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor, b'\r']
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            match (major, minor) {
                (b'1', b'0') => index.version = Version::Http10,
                // RFC 9110 §2.5: a message with a higher minor version is processed as if it were
                // the highest minor version that the recipient conforms to.
                (b'1', _) => index.version = Version::Http11,
                _ => return Err(ParseError::Invalid(RequestError::VersionUnsupported)),
            }
            return Ok(at + lf + 1);
        }
        [text @ .., b'\r'] if text.contains(&b'\r') => RequestError::BareCr,
        // RFC 9112 §3.2: no white space is allowed in the request target, and an invalid request
        // line must not be repaired.
        [text @ .., b'\r'] if text.is_empty() || text.contains(&b' ') => {
            RequestError::RequestLineInvalid
        }
        [_text @ .., b'\r'] => RequestError::VersionInvalid,
        _ => RequestError::BareLf,
    };
    Err(ParseError::Invalid(error))
}

#[cfg(test)]
mod tests {
    use super::{Framing, ParseError, ParseProgress, parse_head};
    use crate::{HeadIndex, Limits};

    #[test]
    fn scanned_bytes_are_not_searched_again_for_a_line_end() {
        let bytes = [b"GET / HTTP/1.1\r\nHost: ".as_slice(), &[b'a'; 5000]].concat();
        let (mut progress, mut index) = (ParseProgress::default(), HeadIndex::new());
        for end in 0..bytes.len() {
            let (limits, mut framing) = (Limits::DEFAULT, Framing::default());
            let result =
                parse_head(&bytes[..end], &mut progress, &limits, &mut index, &mut framing);
            assert_eq!(result, Err(ParseError::Incomplete));
            let line = if end < 16 { 0 } else { 16 };
            assert_eq!(progress, ParseProgress::new(line, end), "all bytes were scanned");
        }
    }
}
