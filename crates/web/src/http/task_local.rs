//! Values that a middleware provides to the code that handles one request.

use crate::http::request::Request;
use crate::http::response::Response;
use crate::http::service::Service;
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::thread::LocalKey;

/// Calls `next`. While its future is polled, `value` is in the thread-local `key`, where extractors
/// find it. Unlike an extension of the request, the value needs no allocation and need not be
/// `Send`. Returns the response, and the value unless an extractor took it.
pub async fn with_task_local<T: 'static, S: Service>(
    key: &'static LocalKey<Cell<Option<T>>>,
    value: T,
    request: Request,
    next: &S,
) -> (Response, Option<T>) {
    let mut own_value = Some(value);
    // Calls the service inside the future, because `call` itself may read the value before it
    // returns.
    let mut future = pin!(async { next.call(request).await });
    let response = poll_fn(|cx| {
        let guard = SwapGuard { key, value: &mut own_value, outer: None }.enter();
        let polled = future.as_mut().poll(cx);
        drop(guard);
        polled
    });
    let response = response.await;
    (response, own_value)
}

/// While it exists, `value` is in the thread-local variable. When dropped, moves it back, unless an
/// extractor took it, and restores the previous value, even after a panic, because the next poll on
/// this thread may be for another request.
struct SwapGuard<'m, T: 'static> {
    key: &'static LocalKey<Cell<Option<T>>>,
    value: &'m mut Option<T>,
    /// The previous value: that of an outer middleware that uses the same key.
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
