//! What an application is made of; no I/O.
