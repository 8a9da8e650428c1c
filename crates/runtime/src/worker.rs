//! One worker's thread: builds the application, serves, and reports the result.

use crate::driver_choice::PreparedDriver;
use crate::error::Error;
use crate::handle::{ServerEvent, ServerHandle, WorkerExit};
use peregrine_admin::internal::WorkerReporter;
use peregrine_driver::{Driver, Handoff, Options, Socket};
use peregrine_driver_tokio::Tokio;
use peregrine_restart::internal::WatchdogResponder;
use peregrine_server::{
    AccessLogStyle, Balancer, BoundListener, Heartbeat, Instrumentation, Lifecycle, TraceConfig,
    WorkerAccessLog, WorkerLimits, WorkerReport,
};
use peregrine_web::BuildError;
use peregrine_web::built::BuiltApp;
use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use tokio::sync::watch;

/// The patterns of the application's routes, set by the first worker that has built its
/// application.
pub type RoutePatterns = Arc<OnceLock<Vec<String>>>;

/// Builds a worker's application, on the worker's thread.
pub type BoxedMakeApp = Box<dyn FnOnce() -> BuildFuture + Send>;

/// An application that is being built.
pub type BuildFuture = Pin<Box<dyn Future<Output = Result<BuiltApp, BuildError>>>>;

/// The inputs of one worker's thread.
pub(crate) struct Worker {
    pub(crate) id: usize,
    pub(crate) listeners: Vec<BoundListener<Socket>>,
    pub(crate) limits: WorkerLimits,
    pub(crate) options: Options,
    pub(crate) driver: PreparedDriver,
    /// Publishes the worker's state for the admin pages.
    pub(crate) reporter: Option<WorkerReporter>,
    pub(crate) access_log: Option<WorkerAccessLog>,
    pub(crate) traces: Option<TraceConfig>,
    pub(crate) patterns: RoutePatterns,
    /// Balances connections with the other workers.
    pub(crate) balancer: Option<Balancer<Handoff>>,
}

impl Worker {
    /// Returns the function that the worker's thread runs. It reports the thread's result even
    /// after a panic. `watchdog` responds to the service manager's watchdog.
    pub(crate) fn into_thread_body(
        self,
        make: BoxedMakeApp,
        handle: &ServerHandle,
        heartbeat: Arc<Heartbeat>,
        watchdog: Option<WatchdogResponder>,
    ) -> impl FnOnce() + Send + use<> {
        let (worker, handle, lifecycle) = (self.id, handle.clone(), handle.subscribe());
        move || {
            let on_ready = || handle.send_event(ServerEvent::WorkerReady(worker));
            // Unwind safe, because no part of the worker is used after a panic.
            let run =
                AssertUnwindSafe(|| self.run(make, lifecycle, heartbeat, watchdog, &on_ready));
            let result = catch_unwind(run).unwrap_or_else(|panic| {
                Err(Error::WorkerPanicked { worker, cause: panic_message(&*panic) })
            });
            handle.send_event(ServerEvent::WorkerExited(WorkerExit { worker, result }));
        }
    }

    /// Runs the worker until it ends. Calls `make` inside the worker's runtime, and `on_ready` once
    /// the worker has its application and listens.
    fn run(
        self,
        make: BoxedMakeApp,
        lifecycle: watch::Receiver<Lifecycle>,
        heartbeat: Arc<Heartbeat>,
        watchdog: Option<WatchdogResponder>,
        on_ready: &dyn Fn(),
    ) -> Result<WorkerReport, Error> {
        let Self { listeners, limits, options, driver, reporter, access_log, traces, .. } = self;
        let (patterns, balancer) = (self.patterns, self.balancer);
        let log_style = access_log.as_ref().map(|access_log| access_log.style.clone());
        let instrumentation = match &reporter {
            Some(reporter) => {
                Instrumentation::with_metrics(heartbeat, Arc::clone(&reporter.view().metrics))
            }
            None => Instrumentation::new(heartbeat),
        };
        let instrumentation =
            Rc::new(instrumentation.with_access_log(access_log).with_tracing(traces.clone()));
        let counters = Rc::clone(&instrumentation);
        let start = WorkerStart {
            make,
            on_ready,
            listeners,
            limits,
            instrumentation,
            lifecycle,
            reporter,
            watchdog,
            log_style,
            traces,
            patterns,
            balancer,
        };
        let report = match driver {
            PreparedDriver::Tokio => Tokio::run(&options, |driver| start.run(driver)),
            #[cfg(all(target_os = "linux", feature = "uring"))]
            PreparedDriver::Uring(ring) => ring.run(&options, |driver| start.run(driver)),
        };
        // The counters are read again, because the driver waits for blocking functions after the
        // worker has created its report.
        Ok(WorkerReport { stats: counters.stats(), ..report.map_err(Error::Worker)?? })
    }
}

/// The inputs of a worker, without its driver. Created on the worker's thread.
struct WorkerStart<'r> {
    make: BoxedMakeApp,
    on_ready: &'r dyn Fn(),
    listeners: Vec<BoundListener<Socket>>,
    limits: WorkerLimits,
    instrumentation: Rc<Instrumentation>,
    lifecycle: watch::Receiver<Lifecycle>,
    reporter: Option<WorkerReporter>,
    watchdog: Option<WatchdogResponder>,
    log_style: Option<watch::Receiver<AccessLogStyle>>,
    traces: Option<TraceConfig>,
    patterns: RoutePatterns,
    balancer: Option<Balancer<Handoff>>,
}

impl WorkerStart<'_> {
    /// Builds the application and serves.
    async fn run<D: Driver<Socket = Socket, Handoff = Handoff>>(
        self,
        driver: D,
    ) -> Result<WorkerReport, Error> {
        let Self {
            make,
            on_ready,
            listeners,
            limits,
            instrumentation,
            mut lifecycle,
            reporter,
            ..
        } = self;
        let (watchdog, balancer) = (self.watchdog, self.balancer);
        if let Some(reporter) = &reporter {
            reporter.on_thread_start();
        }
        let application = {
            // An `async` `make` may wait for events that the driver does not know about, such as
            // tokio's timers.
            let _hold = driver.keep_awake();
            let (mut build, mut shutdown) =
                (pin!(make()), pin!(lifecycle.wait_for(|state| *state > Lifecycle::Serving)));
            let application = poll_fn(|cx| match build.as_mut().poll(cx) {
                Poll::Ready(application) => Poll::Ready(Some(application)),
                Poll::Pending => shutdown.as_mut().poll(cx).map(|_| None),
            });
            match application.await {
                Some(application) => application.map_err(Error::Build)?,
                // A shutdown was requested during the build.
                None => return Ok(WorkerReport::default()),
            }
        };
        let patterns = self.patterns.get_or_init(|| peregrine_server::route_patterns(&application));
        if let Some(traces) = self.traces {
            traces.validate(patterns).map_err(Error::Config)?;
        }
        if let Some(style) = self.log_style {
            style.borrow().validate(patterns).map_err(Error::Config)?;
        }
        if let Some(reporter) = &reporter {
            reporter.on_serve(&application);
        }
        if let Some(watchdog) = watchdog {
            driver.spawn_boxed(Box::pin(watchdog.run(lifecycle.clone())));
        }
        let running = peregrine_server::run_worker(
            driver,
            listeners,
            application,
            limits,
            instrumentation,
            lifecycle,
            balancer,
        );
        let mut running = pin!(running);
        // The first poll starts listening. It is ready only if that fails or the server has shut
        // down.
        let first_poll = poll_fn(|cx| Poll::Ready(running.as_mut().poll(cx))).await;
        if first_poll.is_pending() {
            on_ready();
        }
        match first_poll {
            Poll::Ready(report) => report,
            Poll::Pending => running.await,
        }
        .map_err(Error::Worker)
    }
}

/// Returns the message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("(no message)").to_owned()
}
