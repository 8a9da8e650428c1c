//! One worker's thread: builds the application, serves, and reports how it ended.

use crate::error::Error;
use crate::runtime::driver_choice::PreparedDriver;
use crate::runtime::handle::{ServerEvent, ServerHandle, WorkerExit};
use crate::runtime::make_app::BoxedMakeApp;
use peregrine_admin::internal::WorkerReporter;
use peregrine_driver::{Driver, Handoff, Options, Socket};
use peregrine_driver_tokio::Tokio;
use peregrine_restart::internal::WatchdogResponder;
use peregrine_server::{
    AccessLogStyle, Balancer, BoundListener, Heartbeat, Instrumentation, Lifecycle, TraceConfig,
    WorkerAccessLog, WorkerLimits, WorkerReport,
};
use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use tokio::sync::watch as watched;

/// The patterns of the application's routes, set by the first worker that builds it.
pub(crate) type RoutePatterns = Arc<OnceLock<Vec<String>>>;

/// The inputs of one worker's thread.
pub(crate) struct Worker {
    pub(crate) id: usize,
    pub(crate) listeners: Vec<BoundListener<Socket>>,
    pub(crate) limits: WorkerLimits,
    pub(crate) options: Options,
    pub(crate) driver: PreparedDriver,
    /// The state that it publishes for the admin listener.
    pub(crate) reporter: Option<WorkerReporter>,
    pub(crate) access_log: Option<WorkerAccessLog>,
    pub(crate) traces: Option<TraceConfig>,
    pub(crate) patterns: RoutePatterns,
    /// Its membership in the group of workers that balance connections among each other.
    pub(crate) balancer: Option<Balancer<Handoff>>,
}

impl Worker {
    /// Returns the body of the worker's thread, which reports its end whatever the cause.
    pub(crate) fn into_thread_body(
        self,
        make: BoxedMakeApp,
        handle: &ServerHandle,
        pulse: Arc<Heartbeat>,
        answering: Option<WatchdogResponder>,
    ) -> impl FnOnce() + Send + use<> {
        let (number, handle, orders) = (self.id, handle.clone(), handle.subscribe());
        move || {
            let started = || handle.send_event(ServerEvent::WorkerReady(number));
            // Unwind safe, because nothing of the worker is used after a panic.
            let run = AssertUnwindSafe(|| self.run(make, orders, pulse, answering, &started));
            let result = catch_unwind(run).unwrap_or_else(|panic| {
                Err(Error::WorkerPanicked { worker: number, cause: panic_message(&*panic) })
            });
            handle.send_event(ServerEvent::WorkerExited(WorkerExit { worker: number, result }));
        }
    }

    /// Runs the worker until it ends. Calls `make` inside the worker's runtime, and `started` when
    /// the worker has its application and listens.
    fn run(
        self,
        make: BoxedMakeApp,
        orders: watched::Receiver<Lifecycle>,
        pulse: Arc<Heartbeat>,
        answering: Option<WatchdogResponder>,
        started: &dyn Fn(),
    ) -> Result<WorkerReport, Error> {
        let Self {
            listeners,
            limits,
            options,
            driver: seat,
            reporter: shown,
            access_log: log,
            traces,
            ..
        } = self;
        let (patterns, member) = (self.patterns, self.balancer);
        let style = log.as_ref().map(|log| log.style.clone());
        let observed = match &shown {
            Some(shown) => Instrumentation::with_metrics(pulse, Arc::clone(&shown.view().metrics)),
            None => Instrumentation::new(pulse),
        };
        let observed = Rc::new(observed.with_access_log(log).with_tracing(traces.clone()));
        let counts = Rc::clone(&observed);
        let begin = WorkerStart {
            make,
            on_ready: started,
            listeners,
            limits,
            instrumentation: observed,
            lifecycle: orders,
            reporter: shown,
            watchdog: answering,
            log_style: style,
            traces,
            patterns,
            balancer: member,
        };
        let report = match seat {
            PreparedDriver::Tokio => Tokio::run(&options, |driver| begin.run(driver)),
            #[cfg(all(target_os = "linux", feature = "uring"))]
            PreparedDriver::Uring(ring) => ring.run(&options, |driver| begin.run(driver)),
        };
        // Taken again, because the driver has waited for blocking functions after the worker ended.
        Ok(WorkerReport { stats: counts.stats(), ..report.map_err(Error::Worker)?? })
    }
}

/// The inputs of a worker, without its driver.
struct WorkerStart<'a> {
    make: BoxedMakeApp,
    on_ready: &'a dyn Fn(),
    listeners: Vec<BoundListener<Socket>>,
    limits: WorkerLimits,
    instrumentation: Rc<Instrumentation>,
    lifecycle: watched::Receiver<Lifecycle>,
    reporter: Option<WorkerReporter>,
    watchdog: Option<WatchdogResponder>,
    log_style: Option<watched::Receiver<AccessLogStyle>>,
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
            on_ready: started,
            listeners,
            limits,
            instrumentation: observed,
            lifecycle: mut orders,
            reporter: shown,
            ..
        } = self;
        let (answering, member) = (self.watchdog, self.balancer);
        if let Some(shown) = &shown {
            shown.on_thread_start();
        }
        let application = {
            // An `async` `make` may wait for events that the driver does not know.
            let _hold = driver.keep_awake();
            let (mut made, mut ended) =
                (pin!(make()), pin!(orders.wait_for(|o| *o > Lifecycle::Serving)));
            let made = poll_fn(|cx| match made.as_mut().poll(cx) {
                Poll::Ready(application) => Poll::Ready(Some(application)),
                Poll::Pending => ended.as_mut().poll(cx).map(|_| None),
            });
            match made.await {
                Some(application) => application.map_err(Error::Build)?,
                None => return Ok(WorkerReport::default()),
            }
        };
        let known = self.patterns.get_or_init(|| peregrine_server::route_patterns(&application));
        if let Some(traces) = self.traces {
            traces.validate(known).map_err(Error::Config)?;
        }
        if let Some(style) = self.log_style {
            style.borrow().validate(known).map_err(Error::Config)?;
        }
        if let Some(shown) = &shown {
            shown.on_serve(&application);
        }
        if let Some(answering) = answering {
            driver.spawn_boxed(Box::pin(answering.run(orders.clone())));
        }
        let running = peregrine_server::run_worker(
            driver,
            listeners,
            application,
            limits,
            observed,
            orders,
            member,
        );
        let mut running = pin!(running);
        // The first poll starts listening.
        let ended = poll_fn(|cx| Poll::Ready(running.as_mut().poll(cx))).await;
        if ended.is_pending() {
            started();
        }
        match ended {
            Poll::Ready(report) => report,
            Poll::Pending => running.await,
        }
        .map_err(Error::Worker)
    }
}

/// The message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("(no message)").to_owned()
}
