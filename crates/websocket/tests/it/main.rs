//! WebSockets without a network: by the test client, and polled by hand.

mod polled;
mod socket;
