//! The cookies of a request.

use super::RequestHead;
use peregrine_proto::field::trim_ows;
use std::borrow::Cow;

impl RequestHead {
    /// The names and values of all cookies, in order, as they were sent. Cookies without a name are
    /// skipped.
    // RFC 6265 §5.2: only spaces and tabs are removed around a name. `__Host-a` with other white
    // space before it is a different name. Other hosts can set a cookie of that name, so it must
    // not be mistaken for `__Host-a`.
    #[doc(hidden)]
    pub fn cookies(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        cookies_in(self.header_values("cookie"))
    }

    /// The value of the first cookie called `name`.
    // RFC 6265 §5.4: cookies with a longer path come first, then those that were set earlier.
    #[doc(hidden)]
    #[must_use]
    pub fn cookie(&self, name: &str) -> Option<&[u8]> {
        self.cookies().find(|(other, _)| *other == name.as_bytes()).map(|(_, value)| value)
    }

    /// As [`RequestHead::cookie`], but does not mark the response as specific to the client; see
    /// [`RequestHead::header_bytes_untracked`].
    #[doc(hidden)]
    #[must_use]
    pub fn cookie_untracked(&self, name: &str) -> Option<&[u8]> {
        let mut cookies = cookies_in(self.header_values_untracked("cookie"));
        cookies.find(|(other, _)| *other == name.as_bytes()).map(|(_, value)| value)
    }
}

/// Decodes the percent-encoding of a cookie's value, as the extractors do. A value with invalid
/// encoding stays as it is.
#[doc(hidden)]
#[must_use]
pub fn decode_cookie_value(value: &[u8]) -> Cow<'_, str> {
    peregrine_router::decode(value).unwrap_or_else(|_| String::from_utf8_lossy(value))
}

/// The names and values of the cookies in these fields.
fn cookies_in<'h>(
    fields: impl Iterator<Item = &'h [u8]>,
) -> impl Iterator<Item = (&'h [u8], &'h [u8])> {
    // RFC 6265 §5.4: a client sends one Cookie field; RFC 9113 §8.2.3 allows several.
    fields.flat_map(|value| value.split(|byte| *byte == b';')).filter_map(|pair| {
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (trim_ows(&pair[..equals]), trim_ows(&pair[equals + 1..]));
        (!name.is_empty()).then_some((name, value))
    })
}
