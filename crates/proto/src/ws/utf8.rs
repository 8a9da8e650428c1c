//! Incremental validation of UTF-8.

/// Validates text as it arrives. An invalid byte is rejected immediately, not at the end of the
/// text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Utf8Validator {
    /// The bytes of an incomplete character.
    partial: [u8; 4],
    /// The number of these bytes, at most 3.
    length: u8,
}

impl Utf8Validator {
    /// Creates a validator.
    #[must_use]
    pub const fn new() -> Self {
        Self { partial: [0; 4], length: 0 }
    }

    /// Validates the next bytes: returns whether all bytes so far are the beginning of a valid
    /// text.
    // RFC 6455 §8.1: an endpoint MUST fail the connection when bytes of a text are not UTF-8.
    #[must_use]
    pub fn check(&mut self, mut bytes: &[u8]) -> bool {
        while self.length > 0 {
            let Some((byte, rest)) = bytes.split_first() else { return true };
            self.partial[usize::from(self.length)] = *byte;
            self.length += 1;
            bytes = rest;
            match std::str::from_utf8(&self.partial[..usize::from(self.length)]) {
                Ok(_) => self.length = 0,
                Err(error) if error.error_len().is_some() => return false,
                Err(_) => {}
            }
        }
        let Err(error) = std::str::from_utf8(bytes) else { return true };
        let incomplete = &bytes[error.valid_up_to()..];
        // The error has no length if the bytes end within a character.
        if error.error_len().is_some() {
            return false;
        }
        self.partial[..incomplete.len()].copy_from_slice(incomplete);
        self.length = incomplete.len().min(3) as u8;
        true
    }

    /// Returns whether the text so far does not end within a character.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.length == 0
    }
}
