//! WebSockets without a network: with the test client, and polled by hand.

mod polled;
mod socket;
