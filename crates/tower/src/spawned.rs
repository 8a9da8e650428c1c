//! An application on its own thread, as a tower service that is `Send`.

use crate::app_service::AppService;
use crate::body::{SendBody, SendBoxBody};
use crate::body_channel::LocalProvider;
use crate::error::BoxError;
use crate::response::to_http;
use crate::timer::TokioTimerSource;
use http_body::Body as HttpBody;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::head::RequestHead;
use peregrine_web::in_flight::{InFlightCounter, WorkerRegistration};
use peregrine_web::{App, BuildError, timer};
use std::any::Any;
use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;

/// The maximum number of requests that wait for the application's thread.
const QUEUED_REQUESTS_MAX: usize = 1024;
/// The maximum number of detached tasks: work that continues after its client has disconnected, and
/// background refreshes. While there are that many, the thread takes no further requests.
const DETACHED_TASKS_MAX: usize = 1024;

/// Why an application could not be spawned.
#[derive(Debug)]
#[non_exhaustive]
pub enum SpawnError {
    /// The application is invalid, for example because routes conflict.
    Build(BuildError),
    /// The thread or its runtime could not be started.
    Thread(io::Error),
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Build(error) => error.fmt(f),
            Self::Thread(error) => {
                write!(f, "the application's thread could not be started: {error}")
            }
        }
    }
}

impl std::error::Error for SpawnError {}

/// Runs an application on its own thread, and returns a tower service that is `Send` and `Clone`,
/// for axum and for hyper on several threads. The thread ends when the last clone is dropped.
///
/// Each request goes to that thread through a channel, and its response returns through another.
/// This wakes a thread twice for each request, which costs some microseconds. All requests share
/// one core. Bodies pass through a channel one frame at a time, when they are read. To use more
/// cores, spawn several applications and distribute the load between them. The reverse is faster:
/// let the Peregrine server run the axum router or other tower service, with [`crate::tower`].
///
/// The application is not notified when the surrounding server drains. Its event streams continue
/// until they end or the server closes them.
///
/// Work can continue after its client has disconnected: a request with an idempotency key, or a
/// background refresh of a cache. While 1,024 such tasks run, no further requests are taken. The
/// thread finishes them before it ends. The surrounding server does not know of them: after it has
/// shut down, await [`SpawnedService::closed`] before you leave `main`.
///
/// ```
/// use axum::Router;
/// use peregrine::tower::spawn_tower;
/// use peregrine::App;
///
/// let ours = spawn_tower(|| App::new().get("/hello", || "hello"))?;
/// let router: Router = Router::new().nest_service("/ours", ours);
/// # let _ = router;
/// # Ok::<_, peregrine::tower::SpawnError>(())
/// ```
///
/// # Errors
/// The application is invalid, for example because routes conflict, or its thread could not be
/// started.
pub fn spawn_tower<M>(make: M) -> Result<SpawnedService, SpawnError>
where
    M: FnOnce() -> App + Send + 'static,
{
    let (request_sender, request_receiver) = mpsc::channel(QUEUED_REQUESTS_MAX);
    let (build_sender, build_receiver) = std::sync::mpsc::channel();
    let (thread_alive, thread_watch) = watch::channel(());
    let run_thread = move || {
        let _thread_alive = thread_alive;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())
            .map_err(SpawnError::Thread);
        let service = make().build().map(AppService::new).map_err(SpawnError::Build);
        let (runtime, service) = match runtime.and_then(|runtime| Ok((runtime, service?))) {
            Ok(built) => built,
            Err(error) => return drop(build_sender.send(Err(error))),
        };
        let _ = build_sender.send(Ok(()));
        timer::install(Rc::new(TokioTimerSource::new()));
        runtime.block_on(run_app(&service, request_receiver));
    };
    let thread = std::thread::Builder::new().name("peregrine-tower".to_owned());
    thread.spawn(run_thread).map_err(SpawnError::Thread)?;
    // The thread sends the result of the build, unless `make` panics.
    let panicked =
        |_| SpawnError::Thread(io::Error::other("the function that creates it panicked"));
    build_receiver.recv().map_err(panicked)??;
    Ok(SpawnedService { request_sender, thread_watch, permit: None })
}

/// Handles each request in its own task, until the last [`SpawnedService`] is dropped and the last
/// request and detached task have completed.
async fn run_app(service: &AppService, mut requests: mpsc::Receiver<RemoteRequest>) {
    let detached_tasks = Rc::new(DetachedTasks::default());
    let counter: Rc<dyn InFlightCounter> = Rc::<DetachedTasks>::clone(&detached_tasks);
    let registration = WorkerRegistration::new(Rc::downgrade(&counter));
    let mut tasks = JoinSet::new();
    while let Some(RemoteRequest { request, reply }) = requests.recv().await {
        let service = service.clone().with_worker_id(registration.id());
        tasks.spawn_local(handle_request(service, request, reply));
        // Frees the results of tasks that have ended.
        while tasks.try_join_next().is_some() {}
        detached_tasks.wait_for_fewer_than(DETACHED_TASKS_MAX).await;
    }
    while tasks.join_next().await.is_some() {}
    detached_tasks.wait_for_fewer_than(1).await;
}

/// The number of detached tasks of the application.
#[derive(Default)]
struct DetachedTasks {
    count: Cell<usize>,
    task_ended: Notify,
}

impl DetachedTasks {
    async fn wait_for_fewer_than(&self, count: usize) {
        while self.count.get() >= count {
            self.task_ended.notified().await;
        }
    }
}

impl InFlightCounter for DetachedTasks {
    fn try_acquire(
        self: Rc<Self>,
        _: &RequestHead,
        _: &ConnectionInfo,
        ignores_limit: bool,
    ) -> Option<Box<dyn Any>> {
        let count = self.count.get();
        (ignores_limit || count < DETACHED_TASKS_MAX).then(|| {
            self.count.set(count + 1);
            Box::new(DetachedTaskPermit(self)) as _
        })
    }
}

/// Counts one detached task until it is dropped.
struct DetachedTaskPermit(Rc<DetachedTasks>);

impl Drop for DetachedTaskPermit {
    fn drop(&mut self) {
        self.0.count.update(|count| count - 1);
        self.0.task_ended.notify_one();
    }
}

async fn handle_request(
    service: AppService,
    request: http::Request<SendBoxBody>,
    mut reply: oneshot::Sender<http::Response<SendBody>>,
) {
    // If the caller drops its future, the handler's future is dropped too, as if the peer had
    // disconnected.
    let mut response = tokio::select! {
        biased;
        response = service.respond(request) => response,
        () = reply.closed() => return,
    };
    let (mut forwarder, after_response) = (None, response.take_after_response());
    let response = to_http(response, |body| {
        let (body, body_forwarder) = SendBody::from_body(body);
        forwarder = body_forwarder;
        body
    });
    if reply.send(response).is_err() {
        return;
    }
    // `forwarder` is `None` if the body was complete.
    if let Some(forwarder) = forwarder {
        forwarder.run_to_completion().await;
    }
    // A service inside the application may have spawned a task that still reads the request body.
    if let Some(after_response) = after_response {
        after_response.await;
    }
}

struct RemoteRequest {
    request: http::Request<SendBoxBody>,
    reply: oneshot::Sender<http::Response<SendBody>>,
}

/// An application on its own thread as a tower service. [`spawn_tower`] creates one.
#[doc(alias = "Buffer")]
pub struct SpawnedService {
    request_sender: mpsc::Sender<RemoteRequest>,
    /// Fails once the thread has ended.
    thread_watch: watch::Receiver<()>,
    /// The permit for the next call, or the future that waits for it.
    permit: Option<PermitState>,
}

enum PermitState {
    Waiting(PermitFuture),
    Acquired(mpsc::OwnedPermit<RemoteRequest>),
}

type PermitFuture = Pin<
    Box<
        dyn Future<Output = Result<mpsc::OwnedPermit<RemoteRequest>, mpsc::error::SendError<()>>>
            + Send
            + Sync,
    >,
>;

impl SpawnedService {
    /// Completes when the application's thread has ended: after the last clone of this service was
    /// dropped, and all of its work has completed, including work that continues after its client
    /// has disconnected. The future itself does not keep the thread running.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use peregrine::App;
    /// use peregrine::tower::spawn_tower;
    ///
    /// let ours = spawn_tower(|| App::new().get("/hello", || "hello"))?;
    /// let closed = ours.closed();
    /// let router: axum::Router = axum::Router::new().nest_service("/ours", ours);
    /// // Run the server here: `axum::serve(listener, router).with_graceful_shutdown(..).await`.
    /// # drop(router);
    /// closed.await;
    /// # Ok::<_, peregrine::tower::SpawnError>(())
    /// # }).unwrap();
    /// ```
    pub fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut thread_watch = self.thread_watch.clone();
        async move { while thread_watch.changed().await.is_ok() {} }
    }
}

impl Clone for SpawnedService {
    fn clone(&self) -> Self {
        let (request_sender, thread_watch) =
            (self.request_sender.clone(), self.thread_watch.clone());
        Self { request_sender, thread_watch, permit: None }
    }
}

impl<B> tower_service::Service<http::Request<B>> for SpawnedService
where
    B: HttpBody<Error: Into<BoxError>> + Send + 'static,
{
    type Response = http::Response<SendBody>;
    type Error = Infallible;
    type Future = SpawnedFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        loop {
            match &mut self.permit {
                Some(PermitState::Acquired(_)) => return Poll::Ready(Ok(())),
                Some(PermitState::Waiting(permit_future)) => {
                    match ready!(permit_future.as_mut().poll(cx)) {
                        Ok(permit) => self.permit = Some(PermitState::Acquired(permit)),
                        // The thread has ended. `call` has no permit, and responds with a 500.
                        Err(_) => {
                            self.permit = None;
                            return Poll::Ready(Ok(()));
                        }
                    }
                }
                None => {
                    let permit_future = self.request_sender.clone().reserve_owned();
                    self.permit = Some(PermitState::Waiting(Box::pin(permit_future)));
                }
            }
        }
    }

    fn call(&mut self, request: http::Request<B>) -> SpawnedFuture {
        let (reply, response) = oneshot::channel();
        // Without a permit the sender of the reply is dropped, and the response is a 500.
        if let Some(PermitState::Acquired(permit)) = self.permit.take() {
            permit.send(RemoteRequest { request: request.map(SendBoxBody::new), reply });
        }
        SpawnedFuture(response)
    }
}

/// The future of [`SpawnedService`]. Dropping it drops the handler's future.
#[derive(Debug)]
pub struct SpawnedFuture(oneshot::Receiver<http::Response<SendBody>>);

impl Future for SpawnedFuture {
    type Output = Result<http::Response<SendBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = ready!(Pin::new(&mut self.0).poll(cx));
        // Receiving fails if the handler panicked or the thread has ended.
        Poll::Ready(Ok(response.unwrap_or_else(|_| {
            let mut response = http::Response::new(SendBody::default());
            *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
            response
        })))
    }
}

impl fmt::Debug for SpawnedService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpawnedService")
    }
}
