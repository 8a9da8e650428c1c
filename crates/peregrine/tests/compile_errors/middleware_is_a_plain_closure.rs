//! A middleware as a closure that is not `async` itself.

use peregrine::prelude::*;

pub fn app() -> App {
    App::new()
        .with(|request: Request, next: Next<'_>| async move { next.run(request).await })
        .get("/", || "hello")
}
