//! A limit on the bodies of requests.

use peregrine_web::{BodyError, IntoResponse, Middleware, Problem, Request, Response, Service};

/// Lowers or raises the limit of requests' bodies, in bytes, for the routes inside.
///
/// A body that is known to be larger is answered with 413 before anything inside runs. One whose
/// length is unknown is cut off when it has grown beyond the limit; what reads it then fails with
/// [`BodyError::TooLarge`], which extractors turn into the same answer. The innermost of several
/// limits counts for those, and so does the limit that a handler has of its own.
///
/// ```
/// use peregrine_middleware::BodyLimit;
/// use peregrine_web::App;
///
/// async fn echo(text: String) -> String {
///     text
/// }
///
/// let client = App::new().with(BodyLimit::new(5)).post("/", echo).test();
/// assert_eq!(client.post("/").body("12345").send_now().text(), "12345");
/// assert_eq!(client.post("/").body("123456").send_now().status(), 413);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLimit {
    bytes_max: u64,
}

impl BodyLimit {
    /// A limit of `bytes_max` bytes.
    #[must_use]
    pub const fn new(bytes_max: u64) -> Self {
        Self { bytes_max }
    }
}

impl Middleware for BodyLimit {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        let limit = self.bytes_max;
        if request.body.length().is_some_and(|length| length > limit) {
            return Problem::from(BodyError::TooLarge { limit }).into_response();
        }
        let (parts, body) = request.into_parts();
        next.call(Request::from_parts(parts, body.limited(limit))).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_web::App;
    use std::cell::Cell;
    use std::rc::Rc;

    #[test]
    fn a_body_known_to_be_too_large_never_reaches_the_handler() {
        let calls = Rc::new(Cell::new(0));
        let counter = Rc::clone(&calls);
        let handler = move || {
            counter.set(counter.get() + 1);
            "done"
        };
        let client = App::new().with(BodyLimit::new(3)).post("/", handler).test();
        let refused = client.post("/").body("1234").send_now();
        assert_eq!((refused.status().as_u16(), calls.get()), (413, 0));
        let text = refused.text();
        assert!(text.contains("\"limit\":3") && text.contains("limit of 3 bytes"), "{text}");
        assert_eq!(client.post("/").body("123").send_now().text(), "done");
        assert_eq!(calls.get(), 1);
    }

    #[test]
    fn a_body_that_grows_too_large_is_cut_off() {
        let client = App::new().with(BodyLimit::new(3)).post("/", async |text: String| text).test();
        assert_eq!(client.post("/").pieces(["1", "23"]).send_now().text(), "123");
        let refused = client.post("/").pieces(["12", "34"]).send_now();
        assert_eq!(refused.status(), 413);
        assert!(refused.text().contains("\"limit\":3"), "{}", refused.text());
    }

    #[test]
    fn the_innermost_limit_counts_for_bodies_of_unknown_length() {
        let app = App::new().with(BodyLimit::new(9)).with(BodyLimit::new(3));
        let client = app.post("/", async |text: String| text).test();
        assert!(client.post("/").pieces(["12", "34"]).send_now().text().contains("\"limit\":3"));
    }
}
