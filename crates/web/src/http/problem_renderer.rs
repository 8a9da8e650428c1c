//! Renders problems with the application's function ([`App::on_problem`](crate::App::on_problem)).

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

/// If `original` was created from a problem, replaces it with the response that `renderer` returns,
/// and marks that response so that it is not rendered again.
pub(crate) fn render_problem(
    renderer: &dyn Fn(Problem, &RequestHead) -> Response,
    head: &RequestHead,
    mut original: Response,
) -> Response {
    let Some(extensions) = original.extensions() else { return original };
    if extensions.get::<ProblemRendered>().is_some() {
        return original;
    }
    let Some(problem) = extensions.get::<Problem>().cloned() else { return original };
    let rendered = catch_panic("the `on_problem` function", || renderer(problem.clone(), head));
    let mut response = match rendered {
        // The function panicked, so the problem is sent in its default form.
        None => original,
        Some(mut response) => {
            // The fields that describe the body are those of the rendered response. All other
            // fields (`Allow`, cookies, fields that middleware added) are kept, unless the function
            // has set them.
            let is_set = |name| response.headers.get(name).is_some();
            let body_headers = [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, ETAG];
            let retained = original
                .headers
                .iter()
                .filter(|(name, _)| !body_headers.contains(name) && !is_set(name));
            let retained: Vec<_> =
                retained.map(|(name, value)| (name.clone(), value.clone())).collect();
            response.headers.extend(retained);
            // Extensions that middleware attached, such as `NoCompression`, apply to the rendered
            // response too.
            let mut extensions = std::mem::take(original.extensions_mut());
            extensions.extend(std::mem::take(response.extensions_mut()));
            *response.extensions_mut() = extensions;
            match original.take_after_response() {
                Some(after_response) => response.with_after_response(after_response),
                None => response,
            }
        }
    };
    response.extensions_mut().insert(problem);
    response.extensions_mut().insert(ProblemRendered);
    response
}

/// Removes the extensions that [`render_problem`] left for middleware, before the response leaves
/// the application.
pub(crate) fn strip_problem_extensions(mut response: Response) -> Response {
    if response.extensions().is_some_and(|extensions| extensions.get::<ProblemRendered>().is_some())
    {
        response.extensions_mut().remove::<Problem>();
        response.extensions_mut().remove::<ProblemRendered>();
    }
    response
}
