//! Where driver, protocol and application meet.
