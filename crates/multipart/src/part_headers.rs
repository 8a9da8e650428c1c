//! The head of a part: its name, file name and media type.

use crate::error::MultipartError;
use percent_encoding::percent_decode;
use std::str;

/// The head of a part.
///
/// All of it is sent by the client. A file name must not be used as a path;
/// [`sanitize_file_name`](crate::sanitize_file_name) turns it into a safe name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartHeaders {
    name: String,
    file_name: Option<String>,
    content_type: Option<String>,
    headers: Vec<(String, Vec<u8>)>,
}

impl PartHeaders {
    /// Parses header fields, each of which ends with CR LF.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, MultipartError> {
        let mut head = Self::default();
        let mut disposition = None;
        for line in bytes.split(|byte| *byte == b'\n') {
            let Some(line) = line.strip_suffix(b"\r") else { break };
            let (name, value) = parse_header(line)?;
            match &*name {
                "content-disposition"
                    if disposition.replace(Disposition::parse(value)?).is_some() =>
                {
                    return Err(MultipartError::MissingContentDisposition);
                }
                // The first one applies, as in `PartHeaders::header`.
                "content-type" if head.header("content-type").is_none() => {
                    head.content_type = str::from_utf8(value).ok().map(str::to_owned);
                }
                // RFC 7578 §4.7: senders should not use it. Encoded content must not pass for plain
                // content.
                "content-transfer-encoding" => {
                    let allowed = [&b"binary"[..], b"8bit", b"7bit"];
                    if !allowed.iter().any(|encoding| value.eq_ignore_ascii_case(encoding)) {
                        return Err(MultipartError::UnsupportedTransferEncoding);
                    }
                }
                _ => {}
            }
            head.headers.push((name, value.to_vec()));
        }
        let Some(Disposition { name, file_name }) = disposition else {
            return Err(MultipartError::MissingContentDisposition);
        };
        head.name = name.ok_or(MultipartError::MissingName)?;
        head.file_name = file_name;
        Ok(head)
    }

    /// The field's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file name sent by the client. It is empty for a file field without a chosen file.
    #[must_use]
    pub fn file_name(&self) -> Option<&str> {
        self.file_name.as_deref()
    }

    /// Whether this is a file: a part with a file name, even an empty one.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.file_name.is_some()
    }

    /// The media type sent by the client.
    #[must_use]
    pub fn content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
    }

    /// The value of the first header field called `name`, in any case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let mut headers = self.headers.iter();
        let (_, value) = headers.find(|(other, _)| other.eq_ignore_ascii_case(name))?;
        Some(value)
    }

    /// The name, the file name and the media type.
    pub(crate) fn into_parts(self) -> (String, Option<String>, Option<String>) {
        (self.name, self.file_name, self.content_type)
    }
}

/// Splits a header field into its name, in lower case, and its value, without surrounding
/// whitespace.
fn parse_header(line: &[u8]) -> Result<(String, &[u8]), MultipartError> {
    let colon = line.iter().position(|byte| *byte == b':').ok_or(MultipartError::InvalidHeader)?;
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    if value.contains(&b'\r') {
        return Err(MultipartError::InvalidHeaderLine);
    }
    let is_valid = !name.is_empty() && name.iter().all(|byte| is_token(*byte));
    let name =
        str::from_utf8(name).ok().filter(|_| is_valid).ok_or(MultipartError::InvalidHeader)?;
    if value.contains(&0) {
        return Err(MultipartError::InvalidHeader);
    }
    Ok((name.to_ascii_lowercase(), value))
}

/// RFC 9110, section 5.6.2: the characters of a token.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[derive(Default)]
struct Disposition {
    name: Option<String>,
    file_name: Option<String>,
}

impl Disposition {
    fn parse(value: &[u8]) -> Result<Self, MultipartError> {
        let value = str::from_utf8(value).map_err(|_| MultipartError::InvalidContentDisposition)?;
        let mut parameters = Parameters::new(value);
        if !parameters.essence().eq_ignore_ascii_case("form-data") {
            return Err(MultipartError::MissingContentDisposition);
        }
        let (mut disposition, mut extended) = (Self::default(), None);
        while let Some((name, value)) =
            parameters.next().ok_or(MultipartError::InvalidContentDisposition)?
        {
            let field = match () {
                () if name.eq_ignore_ascii_case("name") => &mut disposition.name,
                () if name.eq_ignore_ascii_case("filename") => &mut disposition.file_name,
                // RFC 7578 §4.2 forbids it; .NET clients send it for non-ASCII names.
                () if name.eq_ignore_ascii_case("filename*") => {
                    let value = decode_ext_value(&value)
                        .ok_or(MultipartError::InvalidContentDisposition)?;
                    if extended.replace(value).is_some() {
                        return Err(MultipartError::InvalidContentDisposition);
                    }
                    continue;
                }
                () => continue,
            };
            if field.replace(value).is_some() {
                return Err(MultipartError::InvalidContentDisposition);
            }
        }
        disposition.file_name = extended.or(disposition.file_name);
        Ok(disposition)
    }
}

/// RFC 8187, section 3.2: a charset, a language, and percent-encoded text.
fn decode_ext_value(value: &str) -> Option<String> {
    let (charset, rest) = value.split_once('\'')?;
    let (_, text) = rest.split_once('\'')?;
    if !charset.eq_ignore_ascii_case("utf-8") {
        return None;
    }
    percent_decode(text.as_bytes()).decode_utf8().ok().map(Into::into)
}

/// The parameters of a value: `form-data; name="a"`.
pub(crate) struct Parameters<'v> {
    essence: &'v str,
    rest: &'v str,
}

impl<'v> Parameters<'v> {
    pub(crate) fn new(value: &'v str) -> Self {
        let (essence, rest) = value.split_at(value.find(';').unwrap_or(value.len()));
        Self { essence: essence.trim_ascii(), rest }
    }

    /// The text before the parameters.
    pub(crate) fn essence(&self) -> &'v str {
        self.essence
    }

    /// Parses the next name and value. The inner `None` is the end, the outer one a syntax error.
    pub(crate) fn next(&mut self) -> Option<Option<(&'v str, String)>> {
        self.rest = self.rest.trim_ascii_start();
        // RFC 9110 §5.6.6: a semicolon need not be followed by a parameter.
        while let Some(rest) = self.rest.strip_prefix(';') {
            self.rest = rest.trim_ascii_start();
        }
        if self.rest.is_empty() {
            return Some(None);
        }
        let (name, rest) = self.rest.split_once('=')?;
        let name = name.trim_ascii();
        if name.is_empty() || !name.bytes().all(is_token) {
            return None;
        }
        let rest = rest.trim_ascii_start();
        let value = if let Some(quoted) = rest.strip_prefix('"') {
            let (value, length) = parse_quoted_string(quoted)?;
            self.rest = &quoted[length..];
            value
        } else {
            let (value, rest) = rest.split_at(rest.find(';').unwrap_or(rest.len()));
            self.rest = rest;
            value.trim_ascii_end().to_owned()
        };
        let remaining = self.rest.trim_ascii_start();
        (remaining.is_empty() || remaining.starts_with(';')).then_some(Some((name, value)))
    }
}

/// Parses a quoted string after its opening quote. Returns its content, and its length including
/// the closing quote.
///
/// Browsers write a quote as `%22` and line ends as `%0D%0A`, and do not escape backslashes; other
/// clients escape quotes and backslashes with a backslash. Both forms are accepted; a backslash
/// before any other character stands for itself.
fn parse_quoted_string(text: &str) -> Option<(String, usize)> {
    let (mut value, mut rest) = (String::new(), text);
    loop {
        let index = rest.find(['"', '\\', '%'])?;
        value.push_str(&rest[..index]);
        rest = &rest[index..];
        let (decoded, length) = match rest.as_bytes() {
            [b'"', ..] => return Some((value, text.len() - rest.len() + 1)),
            [b'\\', b'"', ..] => ("\"", 2),
            [b'\\', b'\\', ..] => ("\\", 2),
            [b'%', b'2', b'2', ..] => ("\"", 3),
            [b'%', b'0', b'D' | b'd', ..] => ("\r", 3),
            [b'%', b'0', b'A' | b'a', ..] => ("\n", 3),
            _ => (&rest[..1], 1),
        };
        value.push_str(decoded);
        rest = &rest[length..];
    }
}

/// Parses the boundary in a `Content-Type` of `multipart/form-data`; `None` for any other type.
pub(crate) fn parse_boundary(content_type: &[u8]) -> Option<Result<String, MultipartError>> {
    let end = content_type.iter().position(|byte| *byte == b';').unwrap_or(content_type.len());
    if !content_type[..end].trim_ascii().eq_ignore_ascii_case(b"multipart/form-data") {
        return None;
    }
    let Ok(text) = str::from_utf8(content_type) else {
        return Some(Err(MultipartError::MissingBoundary));
    };
    let (mut parameters, mut boundary) = (Parameters::new(text), None);
    loop {
        match parameters.next() {
            Some(Some((name, value))) if name.eq_ignore_ascii_case("boundary") => {
                if boundary.replace(value).is_some() {
                    return Some(Err(MultipartError::MissingBoundary));
                }
            }
            Some(Some(_)) => {}
            Some(None) => return Some(boundary.ok_or(MultipartError::MissingBoundary)),
            None => return Some(Err(MultipartError::MissingBoundary)),
        }
    }
}

/// Whether a field with this media type is UTF-8: it declares no other charset.
pub(crate) fn is_utf8(content_type: &str) -> bool {
    let mut parameters = Parameters::new(content_type);
    while let Some(Some((name, value))) = parameters.next() {
        if name.eq_ignore_ascii_case("charset") {
            return ["utf-8", "utf8", "us-ascii"]
                .iter()
                .any(|charset| value.eq_ignore_ascii_case(charset));
        }
    }
    true
}
