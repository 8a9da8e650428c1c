//! Rendering of problems with the application's function.

use crate::http::head::RequestHead;
use crate::http::panic::catch_panic;
use crate::http::problem::Problem;
use crate::http::response::Response;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG};
use std::rc::Rc;

/// A function that renders problems.
pub(crate) type ProblemRenderer = Rc<dyn Fn(Problem, &RequestHead) -> Response>;

/// Marks a response whose problem is already rendered. The problem stays in the extensions for
/// middleware to read.
#[derive(Clone, Copy)]
struct ProblemRendered;

/// Replaces `raw` by what `hook` renders, if it was made from a problem. The result is not rendered
/// again.
pub(crate) fn render_problem(
    hook: &dyn Fn(Problem, &RequestHead) -> Response,
    head: &RequestHead,
    raw: Response,
) -> Response {
    let mut raw = raw;
    let Some(extensions) = raw.extensions() else { return raw };
    if extensions.get::<ProblemRendered>().is_some() {
        return raw;
    }
    let Some(problem) = extensions.get::<Problem>().cloned() else { return raw };
    let rendered = catch_panic("the `on_problem` function", || hook(problem.clone(), head));
    let mut response = match rendered {
        None => raw,
        Some(mut response) => {
            // The function decides about the fields that describe the body. All others (`Allow`,
            // cookies, fields that middleware added) stay, unless the function has set them.
            let replaced = |name| response.headers.get(name).is_some();
            let of_body = [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, ETAG];
            let kept =
                raw.headers.iter().filter(|(name, _)| !of_body.contains(name) && !replaced(name));
            let kept: Vec<_> = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
            response.headers.extend(kept);
            // Extensions that middleware attached, such as the one against compression, apply to
            // the rendered response too.
            let mut extensions = std::mem::take(raw.extensions_mut());
            extensions.extend(std::mem::take(response.extensions_mut()));
            *response.extensions_mut() = extensions;
            match raw.take_after_response() {
                Some(rest) => response.with_after_response(rest),
                None => response,
            }
        }
    };
    response.extensions_mut().insert(problem);
    response.extensions_mut().insert(ProblemRendered);
    response
}

/// Removes the marks that are left for middleware.
pub(crate) fn unmarked(mut response: Response) -> Response {
    if response.extensions().is_some_and(|extensions| extensions.get::<ProblemRendered>().is_some())
    {
        response.extensions_mut().remove::<Problem>();
        response.extensions_mut().remove::<ProblemRendered>();
    }
    response
}
