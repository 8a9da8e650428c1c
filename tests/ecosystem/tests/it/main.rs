//! Libraries of the tokio ecosystem inside handlers, and axum's behaviour compared with ours.

mod axum_behaviour;
mod libraries;
