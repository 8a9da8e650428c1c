//! A tuple with an element before the body that is not a part of a response.

use peregrine::web::IntoResponse;

pub struct Bird;

pub fn show() -> impl IntoResponse {
    (Bird, "text")
}
