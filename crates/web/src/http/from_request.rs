//! The traits that convert a request into the arguments of a handler.
//!
//! The extractors are in [`extract`](crate::extract), which exports these traits to users.

use crate::http::problem::Problem;
use crate::http::request::{Parts, Request};
use crate::http::requirements::RouteRequirements;

/// A value from a request's head. A handler can have any number of such arguments before the last
/// one.
///
/// ```
/// use peregrine::http::StatusCode;
/// use peregrine::web::extract::FromRequestParts;
/// use peregrine::web::{Parts, Problem};
///
/// struct ApiVersion(u32);
///
/// impl FromRequestParts for ApiVersion {
///     async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
///         let version = parts.head.header("x-api-version").and_then(|text| text.parse().ok());
///         version.map(ApiVersion).ok_or_else(|| {
///             let detail = "send X-Api-Version with a whole number";
///             Problem::new(StatusCode::BAD_REQUEST, "no-api-version", detail)
///         })
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a handler's argument here",
    label = "not an extractor of the request's head",
    note = "a type of your own becomes an argument inside of an extractor: `Path<T>`, `Query<T>`, `State<T>`, or, as the last argument, `Json<T>` or `Form<T>`; or implement `FromRequestParts` for it",
    note = "an argument that reads the body (`Json`, `Form`, `Bytes`, `String`, `Body`, `Request`) must come last, so there can be only one",
    note = "the `T` in `State<T>` and `Extension<T>` must be `Clone` (`StateRef<T>` takes any); in `Query<T>` and `Path<T>` it must be `serde::Deserialize` without borrowing"
)]
pub trait FromRequestParts: Sized {
    /// Extracts the value from `parts`.
    ///
    /// # Errors
    /// The value is absent or invalid, or the server failed. The problem is sent to the client.
    fn from_request_parts(parts: &mut Parts) -> impl Future<Output = Result<Self, Problem>>;

    /// Extracts the value if it is present, for an argument of type `Option<Self>`.
    ///
    /// The extractors of this crate distinguish an absent value (`None`) from an invalid one (a
    /// problem). The value of an extractor that never fails is always present. Unless this method
    /// is overridden, every problem that is the client's fault (status below 500) counts as
    /// absence.
    ///
    /// # Errors
    /// The value is present but invalid, or the server failed.
    fn optional_from_request_parts(
        parts: &mut Parts,
    ) -> impl Future<Output = Result<Option<Self>, Problem>> {
        async { none_if_client_error(Self::from_request_parts(parts).await) }
    }

    /// Declares what the application must provide for this extractor to work, such as a state. This
    /// is checked once, when the application is built.
    fn require(_requirements: &mut RouteRequirements) {}
}

/// Marks extractors that consume the whole request.
#[derive(Debug)]
pub enum ViaRequest {}

/// Marks extractors that need only the head and are used as the last argument.
#[derive(Debug)]
pub enum ViaParts {}

/// A value from a whole request, including its body. Only the last argument of a handler can be
/// one. `Via` distinguishes the two kinds of last argument; implementations omit it.
///
/// ```
/// use peregrine::web::extract::{FromRequest, Json};
/// use peregrine::web::{Problem, Request};
///
/// struct Names(Vec<String>);
///
/// impl FromRequest for Names {
///     async fn from_request(request: Request) -> Result<Self, Problem> {
///         let Json(mut names) = Json::<Vec<String>>::from_request(request).await?;
///         names.sort();
///         Ok(Self(names))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a handler's last argument",
    label = "not an extractor",
    note = "the `T` in `Json<T>`, `Form<T>`, `Query<T>` and `Path<T>` must be `serde::Deserialize` without borrowing: put `#[derive(serde::Deserialize)]` on it",
    note = "the `T` in `State<T>` and `Extension<T>` must be `Clone` (`StateRef<T>` takes any)",
    note = "to extract another type, wrap it in one of these, or implement `FromRequestParts` or `FromRequest`"
)]
pub trait FromRequest<Via = ViaRequest>: Sized {
    /// Extracts the value from `request`.
    ///
    /// # Errors
    /// The value is absent or invalid, or the server failed. The problem is sent to the client.
    fn from_request(request: Request) -> impl Future<Output = Result<Self, Problem>>;

    /// Extracts the value if it is present, as [`FromRequestParts::optional_from_request_parts`]
    /// does. For the extractors of this crate that read the body, the value is absent if the
    /// request has neither a body nor a `Content-Type`. Exception: for GET and HEAD,
    /// [`Form`](crate::extract::Form) reads the query, and is absent if there is no query.
    ///
    /// # Errors
    /// The value is present but invalid, or the server failed.
    fn optional_from_request(
        request: Request,
    ) -> impl Future<Output = Result<Option<Self>, Problem>> {
        async { none_if_client_error(Self::from_request(request).await) }
    }

    /// As [`FromRequestParts::require`].
    fn require(_requirements: &mut RouteRequirements) {}
}

impl<T: FromRequestParts> FromRequest<ViaParts> for T {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        let (mut parts, _body) = request.into_parts();
        T::from_request_parts(&mut parts).await
    }

    fn require(requirements: &mut RouteRequirements) {
        T::require(requirements);
    }
}

/// `None` if the value is absent. Does not inherit the requirements of `T`
/// ([`FromRequestParts::require`]), so the application need not meet them.
impl<T: FromRequestParts> FromRequestParts for Option<T> {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        T::optional_from_request_parts(parts).await
    }
}

/// `None` if the value, such as a body, is absent.
impl<T: FromRequest> FromRequest for Option<T> {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        T::optional_from_request(request).await
    }
}

/// Never fails: the handler decides how to treat the problem.
impl<T: FromRequestParts> FromRequestParts for Result<T, Problem> {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        Ok(T::from_request_parts(parts).await)
    }

    fn require(requirements: &mut RouteRequirements) {
        T::require(requirements);
    }
}

/// Never fails: the handler decides how to treat the problem.
impl<T: FromRequest> FromRequest for Result<T, Problem> {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        Ok(T::from_request(request).await)
    }

    fn require(requirements: &mut RouteRequirements) {
        T::require(requirements);
    }
}

fn none_if_client_error<T>(result: Result<T, Problem>) -> Result<Option<T>, Problem> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(problem) if problem.status.is_server_error() => Err(problem),
        Err(_) => Ok(None),
    }
}
