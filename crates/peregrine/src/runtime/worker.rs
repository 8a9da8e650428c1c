//! One worker's thread: builds the application, serves, and reports how it ended.

use crate::error::Error;
use crate::runtime::driver_choice::Seat;
use crate::runtime::handle::{Ended, Handle, News};
use crate::runtime::make_app::Make;
use peregrine_admin::internal::Begun;
use peregrine_driver::{Driver, Options, Passed, Socket};
use peregrine_driver_tokio::Tokio;
use peregrine_restart::internal::Answering;
use peregrine_server::{
    Listen, Log, Member, Observed, Order, Pulse, Report, Style, Traces, WorkerLimits,
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
pub(crate) type Patterns = Arc<OnceLock<Vec<String>>>;

/// The inputs of one worker's thread.
pub(crate) struct Worker {
    pub(crate) number: usize,
    pub(crate) listeners: Vec<Listen<Socket>>,
    pub(crate) limits: WorkerLimits,
    pub(crate) options: Options,
    pub(crate) seat: Seat,
    /// The state that it publishes for the admin listener.
    pub(crate) shown: Option<Begun>,
    pub(crate) log: Option<Log>,
    pub(crate) traces: Option<Traces>,
    pub(crate) patterns: Patterns,
    /// Its membership in the group of workers that balance connections among each other.
    pub(crate) member: Option<Member<Passed>>,
}

impl Worker {
    /// Returns the body of the worker's thread, which reports its end whatever the cause.
    pub(crate) fn body(
        self,
        make: Make,
        handle: &Handle,
        pulse: Arc<Pulse>,
        answering: Option<Answering>,
    ) -> impl FnOnce() + Send + use<> {
        let (number, handle, orders) = (self.number, handle.clone(), handle.subscribe());
        move || {
            let started = || handle.tell(News::Ready(number));
            // Unwind safe, because nothing of the worker is used after a panic.
            let run = AssertUnwindSafe(|| self.run(make, orders, pulse, answering, &started));
            let result = catch_unwind(run).unwrap_or_else(|panic| {
                Err(Error::Panicked { worker: number, cause: message(&*panic) })
            });
            handle.tell(News::Ended(Ended { number, result }));
        }
    }

    /// Runs the worker until it ends. Calls `make` inside the worker's runtime, and `started` when
    /// the worker has its application and listens.
    fn run(
        self,
        make: Make,
        orders: watched::Receiver<Order>,
        pulse: Arc<Pulse>,
        answering: Option<Answering>,
        started: &dyn Fn(),
    ) -> Result<Report, Error> {
        let Self { listeners, limits, options, seat, shown, log, traces, .. } = self;
        let (patterns, member) = (self.patterns, self.member);
        let style = log.as_ref().map(|log| log.style.clone());
        let observed = match &shown {
            Some(shown) => Observed::counting(pulse, Arc::clone(&shown.view().counts)),
            None => Observed::new(pulse),
        };
        let observed = Rc::new(observed.logging(log).tracing(traces.clone()));
        let counts = Rc::clone(&observed);
        let begin = Begin {
            make,
            started,
            listeners,
            limits,
            observed,
            orders,
            shown,
            answering,
            style,
            traces,
            patterns,
            member,
        };
        let report = match seat {
            Seat::Tokio => Tokio::run(&options, |driver| begin.on(driver)),
            #[cfg(all(target_os = "linux", feature = "uring"))]
            Seat::Uring(ring) => ring.run(&options, |driver| begin.on(driver)),
        };
        // Taken again, because the driver has waited for blocking functions after the worker ended.
        Ok(Report { snapshot: counts.snapshot(), ..report.map_err(Error::Worker)?? })
    }
}

/// The inputs of a worker, without its driver.
struct Begin<'a> {
    make: Make,
    started: &'a dyn Fn(),
    listeners: Vec<Listen<Socket>>,
    limits: WorkerLimits,
    observed: Rc<Observed>,
    orders: watched::Receiver<Order>,
    shown: Option<Begun>,
    answering: Option<Answering>,
    style: Option<watched::Receiver<Style>>,
    traces: Option<Traces>,
    patterns: Patterns,
    member: Option<Member<Passed>>,
}

impl Begin<'_> {
    /// Builds the application and serves.
    async fn on<D: Driver<Socket = Socket, Passed = Passed>>(
        self,
        driver: D,
    ) -> Result<Report, Error> {
        let Self { make, started, listeners, limits, observed, mut orders, shown, .. } = self;
        let (answering, member) = (self.answering, self.member);
        if let Some(shown) = &shown {
            shown.before();
        }
        let application = {
            // An `async` `make` may wait for events that the driver does not know.
            let _hold = driver.hold();
            let (mut made, mut ended) =
                (pin!(make()), pin!(orders.wait_for(|o| *o > Order::Serve)));
            let made = poll_fn(|context| match made.as_mut().poll(context) {
                Poll::Ready(application) => Poll::Ready(Some(application)),
                Poll::Pending => ended.as_mut().poll(context).map(|_| None),
            });
            match made.await {
                Some(application) => application.map_err(Error::Build)?,
                None => return Ok(Report::default()),
            }
        };
        let known = self.patterns.get_or_init(|| peregrine_server::patterns(&application));
        if let Some(traces) = self.traces {
            traces.check(known).map_err(Error::Config)?;
        }
        if let Some(style) = self.style {
            style.borrow().check(known).map_err(Error::Config)?;
        }
        if let Some(shown) = &shown {
            shown.serve(&application);
        }
        if let Some(answering) = answering {
            driver.spawn_boxed(Box::pin(answering.run(orders.clone())));
        }
        let running =
            peregrine_server::run(driver, listeners, application, limits, observed, orders, member);
        let mut running = pin!(running);
        // The first poll starts listening.
        let ended = poll_fn(|context| Poll::Ready(running.as_mut().poll(context))).await;
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
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("(no message)").to_owned()
}
