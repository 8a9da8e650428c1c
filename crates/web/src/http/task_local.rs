//! Values that a middleware keeps for a request while the request's code runs.

use crate::http::request::Request;
use crate::http::response::Response;
use crate::http::service::Service;
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::thread::LocalKey;

/// Runs what comes next. While its future is polled, and only then, `value` is in `place`, where extractors find it:
/// so it needs no memory of its own, nor be `Send`, as an extension of the request would. Gives back what became of it.
pub async fn holding<T: 'static, S: Service>(
    place: &'static LocalKey<Cell<Option<T>>>,
    value: T,
    request: Request,
    next: &S,
) -> (Response, Option<T>) {
    let mut mine = Some(value);
    // The call is inside the future, so that it finds the value as well.
    let mut answer = pin!(async { next.call(request).await });
    let response = poll_fn(|context| {
        let swap = Swap { place, mine: &mut mine, outer: None }.enter();
        let polled = answer.as_mut().poll(context);
        drop(swap);
        polled
    });
    let response = response.await;
    (response, mine)
}

/// Puts the value into its place, and takes it out again whatever happens: another request may be polled next.
struct Swap<'m, T: 'static> {
    place: &'static LocalKey<Cell<Option<T>>>,
    mine: &'m mut Option<T>,
    /// What a middleware further out has there.
    outer: Option<T>,
}

impl<T> Swap<'_, T> {
    fn enter(mut self) -> Self {
        self.outer = self.place.replace(self.mine.take());
        self
    }
}

impl<T> Drop for Swap<'_, T> {
    fn drop(&mut self) {
        *self.mine = self.place.replace(self.outer.take());
    }
}
