//! Libraries of the tokio ecosystem inside handlers, and axum's behaviour beside ours.

mod axum_behaviour;
mod libraries;
