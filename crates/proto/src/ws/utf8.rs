//! Incremental validation of UTF-8.

/// Validates text as it arrives. A byte that no continuation can make valid is rejected at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Utf8Validator {
    /// The bytes of an incomplete character.
    partial: [u8; 4],
    /// The number of these bytes, at most 3.
    length: u8,
}

impl Utf8Validator {
    /// Creates a validator that has seen no bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self { partial: [0; 4], length: 0 }
    }

    /// Validates the next piece: returns whether everything so far can be the beginning of a text.
    // RFC 6455 §8.1: an endpoint MUST fail the connection when bytes of a text are not UTF-8.
    #[must_use]
    pub fn check(&mut self, mut piece: &[u8]) -> bool {
        while self.length > 0 {
            let Some((byte, rest)) = piece.split_first() else { return true };
            self.partial[usize::from(self.length)] = *byte;
            self.length += 1;
            piece = rest;
            match std::str::from_utf8(&self.partial[..usize::from(self.length)]) {
                Ok(_) => self.length = 0,
                Err(error) if error.error_len().is_some() => return false,
                Err(_) => {}
            }
        }
        let Err(error) = std::str::from_utf8(piece) else { return true };
        let begun = &piece[error.valid_up_to()..];
        // The error has no length if the piece ends within a character.
        if error.error_len().is_some() {
            return false;
        }
        self.partial[..begun.len()].copy_from_slice(begun);
        self.length = begun.len().min(3) as u8;
        true
    }

    /// Returns whether the text so far does not end within a character.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.length == 0
    }
}
