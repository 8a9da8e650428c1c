//! Values that a middleware provides to the code that handles one request.

use crate::http::request::Request;
use crate::http::response::Response;
use crate::http::service::Service;
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::thread::LocalKey;

/// Calls `next` with `value` in `place`, where extractors find it, whenever its future is polled,
/// and only then. So the value needs no allocation and need not be `Send`, unlike an extension of
/// the request. Returns the response, and the value unless it was taken.
pub async fn with_task_local<T: 'static, S: Service>(
    place: &'static LocalKey<Cell<Option<T>>>,
    value: T,
    request: Request,
    next: &S,
) -> (Response, Option<T>) {
    let mut mine = Some(value);
    // `call` runs inside the future, so that it finds the value as well.
    let mut answer = pin!(async { next.call(request).await });
    let response = poll_fn(|cx| {
        let swap = SwapGuard { key: place, value: &mut mine, outer: None }.enter();
        let polled = answer.as_mut().poll(cx);
        drop(swap);
        polled
    });
    let response = response.await;
    (response, mine)
}

/// Puts the value into its place, and always takes it out again: the next poll may be for another
/// request.
struct SwapGuard<'m, T: 'static> {
    key: &'static LocalKey<Cell<Option<T>>>,
    value: &'m mut Option<T>,
    /// The value of an outer middleware that uses the same place.
    outer: Option<T>,
}

impl<T> SwapGuard<'_, T> {
    fn enter(mut self) -> Self {
        self.outer = self.key.replace(self.value.take());
        self
    }
}

impl<T> Drop for SwapGuard<'_, T> {
    fn drop(&mut self) {
        *self.value = self.key.replace(self.outer.take());
    }
}
