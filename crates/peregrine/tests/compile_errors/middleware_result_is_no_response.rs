//! Middleware whose return type is not a response.

use peregrine::prelude::*;

async fn count(request: Request, next: Next<'_>) -> u64 {
    next.run(request).await.status.as_u16().into()
}

pub fn app() -> App {
    App::new().wrap(count).get("/", || "hello")
}
