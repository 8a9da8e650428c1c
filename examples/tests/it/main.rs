//! The example programs, started as processes and asked over sockets.

#![cfg(unix)]

mod login;
mod run;
