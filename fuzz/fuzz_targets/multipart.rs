//! The target `multipart` for libFuzzer.
#![cfg_attr(feature = "libfuzzer", no_main)]

peregrine_fuzz::target!(multipart);
