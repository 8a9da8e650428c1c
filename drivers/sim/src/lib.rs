//! A seeded network in memory, with faults and virtual time.
