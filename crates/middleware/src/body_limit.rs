//! Limits the size of request bodies.

use peregrine_web::{Middleware, Request, Response, Service};

/// Lowers or raises the size limit of request bodies, in bytes, for the routes inside.
///
/// The innermost of several limits applies, whether it is larger or smaller than the others: a
/// handler's own limit, otherwise that of the innermost `BodyLimit`, otherwise the server's. It is
/// checked when the body is read: reading a larger one fails with
/// [`BodyError::TooLarge`](peregrine_web::BodyError::TooLarge), which extractors turn into status
/// 413 before the handler runs. A body whose length is known to exceed the limit fails before the
/// peer gets 100 (Continue). A body that is not read is not checked.
///
/// ```
/// use peregrine::middleware::BodyLimit;
/// use peregrine::App;
///
/// async fn echo(text: String) -> String {
///     text
/// }
///
/// let client = App::new().wrap(BodyLimit::new(5)).post("/", echo).test();
/// assert_eq!(client.post("/").body("12345").send_blocking().text(), "12345");
/// assert_eq!(client.post("/").body("123456").send_blocking().status(), 413);
/// ```
#[doc(alias = "RequestBodyLimit")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLimit {
    bytes_max: u64,
}

impl BodyLimit {
    /// Creates a limit of `bytes_max` bytes.
    #[must_use]
    pub const fn new(bytes_max: u64) -> Self {
        Self { bytes_max }
    }
}

impl Middleware for BodyLimit {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        let (parts, body) = request.into_parts();
        next.call(Request::from_parts(parts, body.limited(self.bytes_max))).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_web::{App, HandlerExt};
    use std::cell::Cell;
    use std::rc::Rc;

    #[test]
    fn a_body_over_the_limit_never_reaches_the_handler() {
        let calls = Rc::new(Cell::new(0));
        let counter = Rc::clone(&calls);
        let handler = move |_: String| {
            counter.set(counter.get() + 1);
            "done"
        };
        let client = App::new().wrap(BodyLimit::new(3)).post("/", handler).test();
        let response = client.post("/").body("1234").send_blocking();
        assert_eq!((response.status().as_u16(), calls.get()), (413, 0));
        let text = response.text();
        assert!(text.contains("\"limit\":3") && text.contains("limit of 3 bytes"), "{text}");
        assert_eq!(client.post("/").body("123").send_blocking().text(), "done");
        assert_eq!(calls.get(), 1);
    }

    #[test]
    fn reading_a_streamed_body_over_the_limit_fails() {
        let client = App::new().wrap(BodyLimit::new(3)).post("/", async |text: String| text).test();
        assert_eq!(client.post("/").chunks(["1", "23"]).send_blocking().text(), "123");
        let response = client.post("/").chunks(["12", "34"]).send_blocking();
        assert_eq!(response.status(), 413);
        assert!(response.text().contains("\"limit\":3"), "{}", response.text());
    }

    #[test]
    fn the_innermost_limit_applies_whether_smaller_or_larger() {
        let text = async |text: String| text;
        let app = App::new()
            .wrap(BodyLimit::new(5))
            .post("/route", text.body_limit(7))
            .scope("/lower", |scope| scope.wrap(BodyLimit::new(3)).post("/", text))
            .scope("/higher", |scope| scope.wrap(BodyLimit::new(9)).post("/", text));
        let client = app.test();
        for (target, limit) in [("/route", 7), ("/lower", 3), ("/higher", 9)] {
            let (fits, larger) = ("x".repeat(limit), "x".repeat(limit + 1));
            for request in
                [client.post(target).body(fits.clone()), client.post(target).chunks([fits])]
            {
                assert_eq!(request.send_blocking().status(), 200, "{target}");
            }
            for request in
                [client.post(target).body(larger.clone()), client.post(target).chunks([larger])]
            {
                let response = request.send_blocking();
                assert_eq!(response.status(), 413, "{target}");
                assert!(response.text().contains(&format!("\"limit\":{limit}")), "{target}");
            }
        }
    }
}
