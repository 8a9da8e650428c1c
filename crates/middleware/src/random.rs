//! Numbers that nobody can guess, and their text.

use std::fmt;

/// Bytes from the system's source of randomness.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // It fails on systems that have no such source, or in a sandbox that forbids it: then nothing here can be kept secret, and
    // a panic is a 500.
    getrandom::fill(&mut bytes).expect("the system has a source of randomness");
    bytes
}

/// Bytes, shown as hexadecimal digits.
pub(crate) struct Hex<'b>(pub(crate) &'b [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
