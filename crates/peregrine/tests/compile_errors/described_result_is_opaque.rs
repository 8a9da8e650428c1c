use peregrine::openapi::DescribeExt;
use peregrine::prelude::*;

async fn show() -> impl IntoResponse {
    "a"
}

pub fn app() -> App {
    App::new().get("/", show.described())
}
