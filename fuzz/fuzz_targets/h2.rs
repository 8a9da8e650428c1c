//! The target `h2` for libFuzzer.
#![cfg_attr(feature = "libfuzzer", no_main)]

peregrine_fuzz::target!(h2);
