//! An application as a tower service on one thread.

use crate::after_response;
use crate::error::BoxError;
use crate::extensions;
use crate::request::to_head;
use crate::response::{to_body, to_http};
use crate::timer::new_timer;
use http::{HeaderValue, Method, StatusCode, header};
use http_body::Body as HttpBody;
use peregrine_web::built::BuiltApp;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::extract::DEFAULT_BODY_BYTES_MAX;
use peregrine_web::handler::OnDisconnect;
use peregrine_web::head::RequestHead;
use peregrine_web::panic::catch_panic;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::private_response::{IdentitySources, PrivateResponse};
use peregrine_web::selection::MountInfo;
use peregrine_web::{App, Body, BuildError, IntoResponse, Problem, Request, Response};
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Converts an application into a tower service, for hyper, for axum, or for tests that call tower
/// services.
///
/// Handlers need not be `Send`, so neither the service nor its future is `Send`. Run the service
/// where futures stay on one thread: on a current-thread runtime or in a `LocalSet`. For servers
/// that require `Send`, use [`spawn_tower`](crate::spawn_tower).
///
/// ```
/// use peregrine::tower::into_tower;
/// use peregrine::App;
/// use tower::ServiceExt;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let service = into_tower(App::new().get("/", || "hello"))?;
/// let request = peregrine::http::Request::get("/").body(String::new())?;
/// let response = service.oneshot(request).await?;
/// assert_eq!(response.into_body().collect(1000).await?, b"hello");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # Differences from the Peregrine server
///
/// The body limit of a route (default 2 MiB, see [`AppService::body_limit`]) and its time limit
/// apply. Under another server, the time limit needs a tokio runtime with time enabled. The
/// surrounding server handles the connection, including time limits on slow peers. It also handles
/// the panics that the `CatchPanic` middleware does not catch. An upgrade needs hyper's `OnUpgrade`
/// in the request's extensions, where hyper inserts it, and a `LocalSet`, because the upgraded
/// protocol runs as a local task.
///
/// Interim responses ([`Interim`](peregrine_web::extract::Interim)) are not sent, because a tower
/// service returns only the final response.
///
/// The routes' `run_to_completion`, `requests_max` and `never_shed` have no effect, because they
/// concern the connection and the worker; the log warns of the first two. Set them where the
/// service is mounted, for example `tower(service).run_to_completion()`. An outer `Idempotency`
/// does not know the guards of the routes inside: put it inside the application if a guard selects
/// its routes.
///
/// A tower service inside the application may spawn a task that reads the request body after the
/// response. This works only if the application is mounted in another Peregrine application. Other
/// servers drop the body with the response, and the task's next read fails with
/// [`BodyError::Disconnected`].
///
/// If the request's extensions contain a [`ConnectionInfo`], handlers see this value as their
/// connection. Otherwise they see `ConnectionInfo::default()`.
///
/// Behind another server, or behind middleware that creates a new request without the original
/// extensions, the application cannot know whether the surrounding code has identified the client.
/// In these cases, `Cache` stores only responses with `Cache-Control: public` or `s-maxage`, and
/// `Idempotency` stores responses only if it has a scope.
///
/// [`BodyError::Disconnected`]: peregrine_web::BodyError::Disconnected
///
/// # Errors
/// The application is invalid, for example because routes conflict; see [`App::build`].
pub fn into_tower(app: App) -> Result<AppService, BuildError> {
    app.build().map(AppService::new)
}

/// Like [`into_tower`], but returns a make-service, which returns a clone of the service for each
/// connection.
///
/// # Errors
/// The application is invalid, for example because routes conflict; see [`App::build`].
///
/// ```
/// use peregrine::tower::into_make_service;
/// use peregrine::App;
///
/// let make = into_make_service(App::new().get("/", || "hello"))?;
/// # let _ = make;
/// # Ok::<_, peregrine::web::BuildError>(())
/// ```
pub fn into_make_service(app: App) -> Result<MakeAppService, BuildError> {
    into_tower(app).map(MakeAppService)
}

/// An application as a tower service. [`into_tower`] creates one.
#[doc(alias = "RouterService")]
#[derive(Clone)]
pub struct AppService {
    app: Rc<BuiltApp>,
    body_bytes_max: u64,
    /// The worker that counts work which continues after its client has disconnected. `None`: the
    /// worker of the connection, if the surrounding server is Peregrine.
    worker_id: Option<u64>,
}

impl AppService {
    /// Creates a service from an application that is already built.
    #[must_use]
    pub fn new(application: BuiltApp) -> Self {
        extensions::expect_nested_app();
        warn_of_ignored_options(&application);
        let app = Rc::new(application);
        Self { app, body_bytes_max: DEFAULT_BODY_BYTES_MAX, worker_id: None }
    }

    /// Sets the body limit, in bytes, for routes that have no limit of their own. Default: 2 MiB.
    /// Reading a body over the limit fails, and extractors respond with 413.
    #[must_use]
    pub fn body_limit(self, bytes_max: u64) -> Self {
        Self { body_bytes_max: bytes_max, ..self }
    }

    pub(crate) fn with_worker_id(self, worker_id: u64) -> Self {
        Self { worker_id: Some(worker_id), ..self }
    }

    /// Handles one request, whatever its body type.
    pub(crate) async fn respond<B>(&self, request: http::Request<B>) -> Response
    where
        B: HttpBody<Error: Into<BoxError>> + 'static,
    {
        let (mut parts, body) = request.into_parts();
        let mut connection = parts.extensions.remove::<ConnectionInfo>().unwrap_or_default();
        connection.worker_id = self.worker_id.unwrap_or(connection.worker_id);
        let is_head = parts.method == Method::HEAD;
        let mut head = match to_head(&parts) {
            Ok(head) => head,
            Err(error) => {
                return self.app.render_problem(error.into(), &RequestHead::from_pool());
            }
        };
        // Keeps the fields that `Connection` names: the client addressed `Connection` to the
        // surrounding server, whose middleware may have set those fields itself.
        head.keep_nominated_headers();
        // Saves the route of the surrounding server before this application sets its own.
        head.enter_nested_app();
        // The surrounding code may already have identified the client. The response then depends on
        // the client's identity, even if this application does not read it.
        PrivateResponse::import_marks(&head, &connection, &parts.extensions);
        if let Some(mounted) = parts.extensions.get::<MountInfo>() {
            head.set_mount(mounted.clone());
        }
        let target = self.app.find(&mut head, &connection);
        let limit = target.body_limit(self.body_bytes_max);
        let timeout = target.options().timeout;
        let mut extensions = parts.extensions;
        let on_upgrade = extensions.remove::<hyper::upgrade::OnUpgrade>();
        let body = to_body(body).limited(limit);
        let shared_head = head.share();
        let mut request =
            Request::new(head, body, Rc::clone(self.app.states()), Rc::new(connection));
        *request.parts.extensions_mut() = extensions;
        let request = target.lift_limit(request);
        let result = with_timeout(self.app.call(request), timeout).await;
        let timeout_response = || self.app.render_problem(Problem::handler_timeout(), &shared_head);
        let mut response = result.unwrap_or_else(timeout_response);
        PrivateResponse::finish_response(&shared_head, &mut response);
        // Reports to a surrounding Peregrine server which identities the response depends on.
        let sources = PrivateResponse::watch_head(&shared_head).sources();
        if sources != IdentitySources::default() {
            response.extensions_mut().insert(sources);
        }
        if let Some(upgrade) = response.take_upgrade() {
            match on_upgrade {
                Some(on_upgrade) => crate::upgrade::spawn_upgrade(on_upgrade, upgrade),
                None => return upgrade_unsupported(),
            }
        }
        if is_head {
            strip_body(&mut response);
        }
        response
    }
}

/// Logs a warning for each route with an option that only a Peregrine server applies and that
/// clients notice if it is missing.
fn warn_of_ignored_options(app: &BuiltApp) {
    for route in app.routes() {
        let runs_to_completion = route.options.on_disconnect == OnDisconnect::RunToCompletion;
        let option = match (route.options.requests_max, runs_to_completion) {
            (Some(_), _) => "requests_max",
            (None, true) => "run_to_completion",
            (None, false) => continue,
        };
        let (methods, pattern, location) = (route.methods, route.pattern, route.location);
        catch_subscriber_panic(|| {
            tracing::warn!(target: "peregrine",
            "{methods} {pattern} ({location}) sets `{option}`, which has no effect inside a tower \
             service; set it where the service is mounted")
        });
    }
}

/// Returns the handler's response, or `None` if the time limit expires first. As in the server, a
/// panic in the destructor of the handler's future does not change the response.
async fn with_timeout(
    handler: impl Future<Output = Response>,
    limit: Option<Duration>,
) -> Option<Response> {
    let mut handler = pin!(Some(handler));
    let mut timer = None;
    let result = poll_fn(|cx| {
        let future = handler.as_mut().as_pin_mut().expect("the handler is dropped only below");
        if let Poll::Ready(response) = future.poll(cx) {
            return Poll::Ready(Some(response));
        }
        let Some(limit) = limit else { return Poll::Pending };
        if timer.is_none() {
            timer = new_timer(limit);
        }
        let Some(timer) = &mut timer else { return Poll::Pending };
        timer.poll_elapsed(cx).map(|()| None)
    })
    .await;
    catch_panic("the destructor of a handler's future", || handler.set(None));
    result
}

/// RFC 9110 §9.3.2: a response to HEAD has no content, and may announce the length of the response
/// to GET.
fn strip_body(response: &mut Response) {
    let body = std::mem::take(&mut response.body);
    // RFC 9110 §15.3.6: a 205 response to GET has no content either.
    let length = body.length().filter(|_| response.status != StatusCode::RESET_CONTENT);
    if let Some(length) = length {
        response.headers.insert_if_not_present(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
}

fn upgrade_unsupported() -> Response {
    catch_subscriber_panic(|| {
        tracing::error!(target: "peregrine",
        "a handler responded with an upgrade, but the server around it does not offer one")
    });
    let detail = "The server cannot change the protocol here.";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "no-upgrade", detail).into_response()
}

impl<B> tower_service::Service<http::Request<B>> for AppService
where
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = AppFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> AppFuture {
        let service = self.clone();
        AppFuture(Box::pin(async move {
            let mut response = service.respond(request).await;
            response.take_after_response().into_iter().for_each(after_response::defer);
            to_http(response, |body| body)
        }))
    }
}

/// The future of [`AppService`]. It is not `Send`.
pub struct AppFuture(Pin<Box<dyn Future<Output = http::Response<Body>>>>);

impl Future for AppFuture {
    type Output = Result<http::Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx).map(Ok)
    }
}

/// Returns a clone of one service for each connection. [`into_make_service`] creates one.
#[doc(alias = "IntoMakeService")]
#[derive(Clone, Debug)]
pub struct MakeAppService(AppService);

impl<T> tower_service::Service<T> for MakeAppService {
    type Response = AppService;
    type Error = Infallible;
    type Future = std::future::Ready<Result<AppService, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: T) -> Self::Future {
        std::future::ready(Ok(self.0.clone()))
    }
}

impl fmt::Debug for AppService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AppService").field(&self.app).finish()
    }
}

impl fmt::Debug for AppFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AppFuture")
    }
}
