//! A tuple with something before the body that is no part of a response.

use peregrine::web::IntoResponse;

pub struct Bird;

pub fn show() -> impl IntoResponse {
    (Bird, "text")
}
