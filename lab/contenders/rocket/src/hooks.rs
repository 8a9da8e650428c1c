//! The fairing around the events route, and the guards that its handler takes.

use std::convert::Infallible;

use rocket::fairing::{Fairing, Info, Kind};
use rocket::http::Status;
use rocket::request::{FromRequest, Outcome};
use rocket::{Data, Request, Response, async_trait};

use crate::model::HookState;

/// Leaves state before the handler and sets the field after it. A fairing sees every request, so
/// that it asks for the path.
pub struct Hooks;

#[async_trait]
impl Fairing for Hooks {
    fn info(&self) -> Info {
        Info { name: "hooks of the events route", kind: Kind::Request | Kind::Response }
    }

    async fn on_request(&self, request: &mut Request<'_>, _: &mut Data<'_>) {
        if is_project(request) {
            request.local_cache(|| HookState { after: "done" });
        }
    }

    async fn on_response<'r>(&self, request: &'r Request<'_>, response: &mut Response<'r>) {
        if is_project(request) {
            response.set_raw_header("X-Benchmark-After", "done");
        }
    }
}

fn is_project(request: &Request<'_>) -> bool {
    request.uri().path().starts_with("/projects/")
}

#[async_trait]
impl<'r> FromRequest<'r> for &'r HookState {
    type Error = Infallible;

    async fn from_request(request: &'r Request<'_>) -> Outcome<Self, Infallible> {
        Outcome::Success(request.local_cache(|| HookState { after: "" }))
    }
}

/// The header X-Request-ID, which the events route asks for.
pub struct RequestId(pub String);

#[async_trait]
impl<'r> FromRequest<'r> for RequestId {
    type Error = &'static str;

    async fn from_request(request: &'r Request<'_>) -> Outcome<Self, &'static str> {
        match request.headers().get_one("X-Request-ID") {
            Some(value) => Outcome::Success(RequestId(value.to_owned())),
            None => Outcome::Error((Status::BadRequest, "the header X-Request-ID is missing")),
        }
    }
}
