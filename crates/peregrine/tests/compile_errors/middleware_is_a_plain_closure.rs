//! A closure as middleware that is not an `async` closure.

use peregrine::prelude::*;

pub fn app() -> App {
    App::new()
        .wrap(|request: Request, next: Next<'_>| async move { next.run(request).await })
        .get("/", || "hello")
}
