//! HTTP as state machines: bytes in, events and bytes out.
