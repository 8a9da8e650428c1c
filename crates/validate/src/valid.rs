//! The extractor that validates what another extractor returns.

use crate::json_pointer::{FieldNames, Shape, json_pointer};
use crate::problem::{ERRORS_MAX, ValidationErrors};
use crate::{probe, recorder};
use garde::{Report, Validate};
#[cfg(feature = "multipart")]
use peregrine_multipart::MultipartForm;
use peregrine_web::extract::{
    Form, FromRequest, FromRequestParts, Json, Path, Query, RouteRequirements, json_with,
    optional_from_body,
};
use peregrine_web::request::Parts;
use peregrine_web::state::States;
use peregrine_web::{Problem, Request};
use serde::de::DeserializeOwned;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// An extractor whose value satisfies the rules of its type: `Valid<Json<T>>`, and likewise with
/// `Form`, `Query`, `Path` and `MultipartForm`.
///
/// It fails like the inner extractor, and with 422 `validation-failed` for a value that breaks a
/// rule; see [`ValidationErrors`]. `Option<Valid<_>>` is `None` if the request has no value for the
/// inner extractor.
///
/// Rules can need a context (`#[garde(context(Words))]`) whose type implements `Default`. The
/// context is the application's state of that type, set with `.state(value)`, or else the default.
#[doc(alias = "validate")]
#[doc(alias = "Validated")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Valid<E>(pub E);

/// Checks the rules of `value`.
fn validate<T>(value: &T, states: &States) -> Result<(), Report>
where
    T: Validate<Context: Default + 'static>,
{
    match states.get::<T::Context>() {
        Some(context) => value.validate_with(context),
        None => value.validate(),
    }
}

/// Builds the problem, with the field names that serde expects.
#[cold]
fn to_problem(report: &Report, location: &'static str, shape: &Shape, states: &States) -> Problem {
    let names = states.get::<FieldNames>();
    let mut errors = ValidationErrors::new(location);
    // Finding a name takes time proportional to the document, so only listed errors get one.
    for (path, error) in report.iter().take(ERRORS_MAX) {
        let (pointer, unmatched_field) = json_pointer(path, shape, names);
        let detail = match unmatched_field {
            Some(field) => format!("{field}: {}", error.message()),
            None => error.message().to_owned(),
        };
        errors = errors.add(pointer, detail);
    }
    errors.with_omitted(report.iter().skip(ERRORS_MAX).count()).into()
}

macro_rules! impl_from_request_parts {
    ($($Extractor:ident $location:literal)*) => {
        $(
            impl<T> FromRequestParts for Valid<$Extractor<T>>
            where
                T: DeserializeOwned + Validate<Context: Default + 'static>,
            {
                async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
                    let value = $Extractor::<T>::from_request_parts(parts).await?;
                    validate_fields(value, $location, parts.states())
                }

                async fn optional_from_request_parts(
                    parts: &mut Parts,
                ) -> Result<Option<Self>, Problem> {
                    match $Extractor::<T>::optional_from_request_parts(parts).await? {
                        Some(value) => validate_fields(value, $location, parts.states()).map(Some),
                        None => Ok(None),
                    }
                }

                fn require(requirements: &mut RouteRequirements) {
                    <$Extractor<T> as FromRequestParts>::require(requirements);
                }
            }
        )*
    };
}

impl_from_request_parts! { Query "query" Path "path" }

impl<T> FromRequest for Valid<Json<T>>
where
    T: DeserializeOwned + Validate<Context: Default + 'static>,
{
    async fn from_request(request: Request) -> Result<Self, Problem> {
        let states = Rc::clone(request.parts.states());
        let validate_json = |value: T, bytes: &[u8]| match validate(&value, &states) {
            Ok(()) => Ok(Self(Json(value))),
            Err(report) => {
                Err(to_problem(&report, "body", &recorder::record_shape::<T>(bytes), &states))
            }
        };
        json_with(request, validate_json).await
    }

    async fn optional_from_request(request: Request) -> Result<Option<Self>, Problem> {
        optional_from_body(request).await
    }
}

impl<T> FromRequest for Valid<Form<T>>
where
    T: DeserializeOwned + Validate<Context: Default + 'static>,
{
    async fn from_request(request: Request) -> Result<Self, Problem> {
        let states = Rc::clone(request.parts.states());
        let location = form_location(&request);
        let value = Form::<T>::from_request(request).await?;
        validate_fields(value, location, &states)
    }

    async fn optional_from_request(request: Request) -> Result<Option<Self>, Problem> {
        let states = Rc::clone(request.parts.states());
        let location = form_location(&request);
        match Form::<T>::optional_from_request(request).await? {
            Some(value) => validate_fields(value, location, &states).map(Some),
            None => Ok(None),
        }
    }
}

/// Returns where the form is: GET and HEAD send it in the query.
fn form_location(request: &Request) -> &'static str {
    if matches!(request.method(), http::Method::GET | http::Method::HEAD) {
        "query"
    } else {
        "body"
    }
}

fn validate_fields<E, T>(
    value: E,
    location: &'static str,
    states: &States,
) -> Result<Valid<E>, Problem>
where
    E: Deref<Target = T>,
    T: DeserializeOwned + Validate<Context: Default + 'static>,
{
    match validate(&*value, states) {
        Ok(()) => Ok(Valid(value)),
        Err(report) => Err(to_problem(&report, location, &probe::probe_fields::<T>(), states)),
    }
}

#[cfg(feature = "multipart")]
impl<T> FromRequest for Valid<MultipartForm<T>>
where
    T: DeserializeOwned + Validate<Context: Default + 'static>,
{
    async fn from_request(request: Request) -> Result<Self, Problem> {
        let states = Rc::clone(request.parts.states());
        let value = MultipartForm::<T>::from_request(request).await?;
        validate_fields(value, "body", &states)
    }

    async fn optional_from_request(request: Request) -> Result<Option<Self>, Problem> {
        let states = Rc::clone(request.parts.states());
        match MultipartForm::<T>::optional_from_request(request).await? {
            Some(value) => validate_fields(value, "body", &states).map(Some),
            None => Ok(None),
        }
    }
}

impl<E> Deref for Valid<E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.0
    }
}

impl<E> DerefMut for Valid<E> {
    fn deref_mut(&mut self) -> &mut E {
        &mut self.0
    }
}
