//! Starts the example programs as processes and sends them requests.

#![cfg(unix)]

mod login;
mod run;
