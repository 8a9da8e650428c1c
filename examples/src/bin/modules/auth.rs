//! Access control.

use peregrine::prelude::*;

/// The role that the guard requires. A real application would verify a signature.
pub(crate) struct Keeper(pub(crate) &'static str);

/// A middleware: a function of extractors, the request, and the next middleware or handler.
pub(crate) async fn guard(
    keeper: StateRef<Keeper>,
    headers: HeaderMap,
    request: Request,
    next: Next<'_>,
) -> Result<Response, Problem> {
    if headers.get("x-role").is_some_and(|role| role == keeper.0) {
        return Ok(next.run(request).await);
    }
    let detail = "Only keepers may do that.";
    Err(Problem::new(StatusCode::UNAUTHORIZED, "not-a-keeper", detail))
}
