use peregrine::openapi::DescribeExt;
use peregrine::prelude::*;

pub struct User;

impl FromRequestParts for User {
    async fn from_request_parts(_: &mut Parts) -> Result<Self, Problem> {
        Ok(Self)
    }
}

pub fn app() -> App {
    App::new().get("/", (|_: User| "a").described())
}
