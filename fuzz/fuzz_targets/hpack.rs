//! The target `hpack` for libFuzzer.
#![cfg_attr(feature = "libfuzzer", no_main)]

peregrine_fuzz::target!(hpack);
