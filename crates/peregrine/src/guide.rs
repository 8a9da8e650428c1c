//! Compiles the code in the guide and the README as documentation tests.

#[doc = include_str!("../../../docs/guide/README.md")]
mod index {}

#[doc = include_str!("../../../docs/guide/first-steps.md")]
mod first_steps {}

#[doc = include_str!("../../../docs/guide/errors.md")]
mod errors {}

#[doc = include_str!("../../../docs/guide/extractors.md")]
mod extractors {}

#[doc = include_str!("../../../docs/guide/responses-and-errors.md")]
mod responses_and_errors {}

#[doc = include_str!("../../../docs/guide/middleware.md")]
mod middleware {}

#[doc = include_str!("../../../docs/guide/state-and-concurrency.md")]
mod state_and_concurrency {}

#[doc = include_str!("../../../docs/guide/testing.md")]
mod testing {}

#[doc = include_str!("../../../docs/guide/limits.md")]
mod limits {}

#[doc = include_str!("../../../docs/guide/http2.md")]
mod http2 {}

#[doc = include_str!("../../../docs/guide/measuring.md")]
mod measuring {}

#[cfg(all(feature = "cors", feature = "csrf", feature = "security-headers"))]
#[doc = include_str!("../../../docs/guide/browsers.md")]
mod browsers {}

#[cfg(feature = "compression")]
#[doc = include_str!("../../../docs/guide/compression.md")]
mod compression {}

#[cfg(feature = "cache")]
#[doc = include_str!("../../../docs/guide/responses.md")]
mod responses {}

#[cfg(all(
    feature = "cbor",
    feature = "fast-json",
    feature = "message-pack",
    feature = "protobuf"
))]
#[doc = include_str!("../../../docs/guide/bodies.md")]
mod bodies {}

#[cfg(all(feature = "sessions", feature = "cookies-signed"))]
#[doc = include_str!("../../../docs/guide/sessions.md")]
mod sessions {}

#[cfg(feature = "auth")]
#[doc = include_str!("../../../docs/guide/auth.md")]
mod auth {}

#[cfg(feature = "rate-limit")]
#[doc = include_str!("../../../docs/guide/rate-limits.md")]
mod rate_limits {}

#[cfg(feature = "config")]
#[doc = include_str!("../../../docs/guide/configuration.md")]
mod configuration {}

#[doc = include_str!("../../../docs/guide/routing.md")]
mod routing {}

#[doc = include_str!("../../../docs/guide/from-go.md")]
mod from_go {}

#[doc = include_str!("../../../docs/guide/security.md")]
mod security {}

#[doc = include_str!("../../../docs/guide/events.md")]
mod events {}

#[cfg(feature = "proxy")]
#[doc = include_str!("../../../docs/guide/proxying.md")]
mod proxying {}

#[cfg(feature = "tls")]
#[doc = include_str!("../../../docs/guide/proxies.md")]
mod proxies {}

#[cfg(feature = "tls")]
#[doc = include_str!("../../../docs/guide/tls.md")]
mod tls {}

#[cfg(all(target_os = "linux", feature = "restart"))]
#[doc = include_str!("../../../docs/guide/deployment.md")]
mod deployment {}

#[cfg(feature = "websocket")]
#[doc = include_str!("../../../docs/guide/websocket.md")]
mod websocket {}

#[cfg(feature = "multipart")]
#[doc = include_str!("../../../docs/guide/forms.md")]
mod forms {}

#[cfg(feature = "validate")]
#[doc = include_str!("../../../docs/guide/validation.md")]
mod validation {}

#[cfg(feature = "openapi")]
#[doc = include_str!("../../../docs/guide/openapi.md")]
mod openapi {}

#[cfg(feature = "files")]
#[doc = include_str!("../../../docs/guide/files.md")]
mod files {}

#[doc = include_str!("../../../docs/guide/observability.md")]
mod observability {}

#[doc = include_str!("../../../docs/guide/overload.md")]
mod overload {}

#[cfg(feature = "tower")]
#[doc = include_str!("../../../docs/guide/from-axum.md")]
mod from_axum {}

#[doc = include_str!("../../../docs/guide/from-actix-web.md")]
mod from_actix_web {}

#[doc = include_str!("../../../README.md")]
mod readme {}
