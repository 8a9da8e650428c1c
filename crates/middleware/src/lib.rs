//! The middleware that ships with Peregrine.
