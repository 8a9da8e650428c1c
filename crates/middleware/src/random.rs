//! Unpredictable numbers, and their text form.

use std::fmt;

/// Returns random bytes from the operating system.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Fails on systems without a source of randomness, or in a sandbox that forbids it. No secret
    // can be created then, and the panic becomes a 500.
    getrandom::fill(&mut bytes).expect("the system provides random bytes");
    bytes
}

/// Displays bytes as hexadecimal digits.
pub(crate) struct Hex<'b>(pub(crate) &'b [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
