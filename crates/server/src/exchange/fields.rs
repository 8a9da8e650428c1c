//! Converts header fields between the application's types and the byte strings of the protocols.

use http::{HeaderMap, HeaderName, HeaderValue};
use peregrine_web::Headers;

/// Creates a `HeaderMap` from fields. The protocol core has validated them, so the filter never
/// drops one.
pub(crate) fn to_header_map<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> HeaderMap {
    let pairs = pairs.filter_map(|(name, value)| {
        Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?))
    });
    pairs.collect()
}

/// The names and values of a `HeaderMap`: those of trailers or of an interim response.
pub(crate) fn header_map_pairs(fields: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
}

/// The names and values of a response's fields.
pub(crate) fn field_pairs(fields: &Headers) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
}
