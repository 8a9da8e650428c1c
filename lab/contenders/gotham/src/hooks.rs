//! The middleware around the events route.

use std::pin::Pin;

use futures_util::future::{FutureExt, TryFutureExt};
use gotham::handler::HandlerFuture;
use gotham::http::HeaderValue;
use gotham::middleware::Middleware;
use gotham::prelude::*;
use gotham::state::State;

use crate::model::HookState;

/// Leaves state before the handler and sets the field after it.
#[derive(Clone, Copy, NewMiddleware)]
pub struct Hooks;

impl Middleware for Hooks {
    fn call<Chain>(self, mut state: State, chain: Chain) -> Pin<Box<HandlerFuture>>
    where
        Chain: FnOnce(State) -> Pin<Box<HandlerFuture>> + Send + 'static,
    {
        state.put(HookState { after: "done" });
        chain(state)
            .map_ok(|(state, mut response)| {
                let value = HeaderValue::from_static("done");
                response.headers_mut().insert("x-benchmark-after", value);
                (state, response)
            })
            .boxed()
    }
}
