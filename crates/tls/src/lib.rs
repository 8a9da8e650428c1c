//! TLS as a stage between bytes and bytes.
