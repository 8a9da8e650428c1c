//! The fields after a request's content.

use crate::Span;

/// Trailer fields with a copy of their bytes, because the received bytes are no longer available
/// when the caller reads the fields.
#[derive(Debug, Default)]
pub(crate) struct Trailers {
    bytes: Vec<u8>,
    fields: Vec<(Span, Span)>,
}

impl Trailers {
    pub(crate) fn len(&self) -> usize {
        self.fields.len()
    }

    /// Adds a field. All fields together are no longer than a trailer section, at most 65,535
    /// bytes.
    pub(crate) fn push(&mut self, name: &[u8], value: &[u8]) {
        let name_start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        let value_start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        let name = Span::new(name_start, value_start);
        self.fields.push((name, Span::new(value_start, self.bytes.len())));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|(name, value)| (name.slice(&self.bytes), value.slice(&self.bytes)))
    }
}
