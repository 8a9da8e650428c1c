//! Whether replies came over the lab's echo server, where a scenario says that handlers ask it.
//!
//! A server that answers such a request from the request itself saves the round trip that is to be
//! measured. What all replies of a look hold in their bodies must have passed through the echo
//! server in that look.

use peregrine_lab_model::check::{Check, Outcome};

/// The check's name in a run file.
pub const NAME: &str = "each reply came over the echo server";

/// Compares the echo server's counts before and after a look with what the replies held.
#[must_use]
pub fn check(name: &str, before: u64, after: u64, body_bytes: u64) -> Check {
    let echoed = after.saturating_sub(before);
    Check {
        name: NAME.to_owned(),
        contender: Some(name.to_owned()),
        outcome: if echoed >= body_bytes { Outcome::Passed } else { Outcome::Failed },
        detail: format!("{body_bytes} bytes in replies, {echoed} bytes echoed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_bytes_than_the_replies_hold_fail() {
        assert_eq!(check("a", 5, 105, 100).outcome, Outcome::Passed);
        // What is under way at the end was asked for and not answered.
        assert_eq!(check("a", 5, 121, 100).outcome, Outcome::Passed);
        assert_eq!(check("a", 5, 104, 100).outcome, Outcome::Failed);
    }
}
