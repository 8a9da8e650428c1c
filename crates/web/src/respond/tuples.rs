//! Tuples: parts from left to right, then the response that they change.

use super::{IntoResponse, IntoResponseParts, failed_by};
use crate::response::Response;

macro_rules! tuples {
    ($($part:ident),+) => {
        impl<$($part: IntoResponseParts,)+ R: IntoResponse> IntoResponse for ($($part,)+ R) {
            #[expect(non_snake_case, reason = "a type's name serves as its value's name here")]
            fn into_response(self) -> Response {
                let ($($part,)+ rest) = self;
                let mut response = rest.into_response();
                $(
                    if let Err(problem) = $part.into_response_parts(&mut response) {
                        return failed_by(problem);
                    }
                )+
                response
            }
        }
    };
}

tuples!(A);
tuples!(A, B);
tuples!(A, B, C);
tuples!(A, B, C, D);
tuples!(A, B, C, D, E);
tuples!(A, B, C, D, E, F);
tuples!(A, B, C, D, E, F, G);
tuples!(A, B, C, D, E, F, G, H);
