//! Tests of applications through the public API, without a network.

mod ambiguous_paths;
mod build;
mod client;
mod conditions;
mod dispatch;
mod extractors;
#[cfg(feature = "fast-json")]
mod fast_json;
#[cfg(all(
    feature = "cbor",
    feature = "fast-json",
    feature = "message-pack",
    feature = "protobuf"
))]
mod formats;
mod handlers;
mod limits;
mod middleware;
mod modules;
mod routing;
mod sse;
mod targets;
