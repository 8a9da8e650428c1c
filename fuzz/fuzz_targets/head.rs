//! The target `head` for libFuzzer.
#![cfg_attr(feature = "libfuzzer", no_main)]

peregrine_fuzz::target!(head);
