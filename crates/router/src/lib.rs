//! Path to route and parameters; no HTTP, no I/O.
