//! A reusable place for one future of any type.
