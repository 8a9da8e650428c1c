//! Traces requests: decides which requests are sampled, and builds spans only for these.

use super::access_log::patterns;
use super::span;
use peregrine_web::application::Application;
use peregrine_web::panics::inside;
use peregrine_web::trace::{Place, Seed, TraceContext, enter};
use peregrine_web::{Head, Request};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::watch;
use tracing::Span;

/// Traces of requests. Each sampled request gets a span with the attributes of OpenTelemetry's
/// conventions for HTTP servers. A handler can continue the trace in requests that it sends itself
/// ([`TraceContext`]).
///
/// The server decides whether to sample a request before it builds the span. By default, a request
/// with a valid `traceparent` follows the decision in that field, and all other requests are
/// sampled.
///
/// ```no_run
/// use peregrine::prelude::*;
/// use peregrine::trace::Traces;
///
/// fn main() -> peregrine::Result<()> {
///     // Sample one in ten of the requests that start a trace, and no health checks.
///     let traces = Traces::new().ratio(0.1).route("/health", 0.0);
///     Server::bind("127.0.0.1:8080").traces(traces).serve(|| App::new().get("/health", || "well"))
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Traces {
    ratio: f64,
    routes: BTreeMap<String, f64>,
    ignores_parents: bool,
    recorder: Option<Arc<dyn Recorder>>,
    live: Option<watch::Receiver<Traces>>,
}

/// A system that records spans and assigns its own ids to them.
#[doc(hidden)]
pub trait Recorder: fmt::Debug + Send + Sync {
    /// Called when a span has begun, with its parent. Returns the ids that the system has assigned
    /// to the span.
    fn begin(&self, span: &Span, parent: Option<&TraceContext>) -> Option<([u8; 16], [u8; 8])>;
}

impl Default for Traces {
    fn default() -> Self {
        Self::new()
    }
}

impl Traces {
    /// Samples all requests without a `traceparent`.
    #[must_use]
    pub fn new() -> Self {
        Self {
            ratio: 1.0,
            routes: BTreeMap::new(),
            ignores_parents: false,
            recorder: None,
            live: None,
        }
    }

    /// Sets which part of the requests that start a trace is sampled, from 0.0 (none) to 1.0 (all,
    /// the default).
    #[must_use]
    pub fn ratio(mut self, ratio: f64) -> Self {
        self.ratio = ratio;
        self
    }

    /// As [`Traces::ratio`], for the route with this pattern, such as `/birds/{id}`. At 0.0, no
    /// request for the route is sampled, even if its `traceparent` says so.
    #[must_use]
    pub fn route(mut self, pattern: impl Into<String>, ratio: f64) -> Self {
        self.routes.insert(pattern.into(), ratio);
        self
    }

    /// Starts a new trace for each request and ignores `traceparent` and `tracestate`. Use this for
    /// public servers. Otherwise any client can have all of its requests recorded.
    #[must_use]
    pub fn ignore_parents(mut self) -> Self {
        self.ignores_parents = true;
        self
    }

    /// Takes the ids of spans from `recorder`.
    #[doc(hidden)]
    #[must_use]
    pub fn recorder(mut self, recorder: Arc<dyn Recorder>) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// Makes the latest value of `live` decide which requests are sampled.
    #[doc(hidden)]
    #[must_use]
    pub fn live(mut self, live: watch::Receiver<Traces>) -> Self {
        self.live = Some(live);
        self
    }

    /// Checks that all ratios are valid, and that all routes are among these patterns of the
    /// application.
    ///
    /// # Errors
    /// The text describes the mistake and how to fix it.
    #[doc(hidden)]
    pub fn check(&self, known: &[String]) -> Result<(), String> {
        let all = std::iter::once(("requests", self.ratio));
        let routes = self.routes.iter().map(|(pattern, ratio)| (&**pattern, *ratio));
        for (of, ratio) in all.chain(routes) {
            if !(0.0..=1.0).contains(&ratio) {
                return Err(format!(
                    "the sampling ratio of {of} is {ratio}: use a number from 0.0 (none) to 1.0 \
                     (all)"
                ));
            }
        }
        let unknown = self.routes.keys().find(|pattern| !known.contains(pattern));
        unknown.map_or(Ok(()), |pattern| {
            let known = known.join(", ");
            Err(format!(
                "a sampling ratio is set for the route `{pattern}`, but the application has no \
                 such route; it has {known}"
            ))
        })
    }
}

/// The traces of one worker.
pub(crate) struct Tracing {
    sampling: RefCell<Sampling>,
    live: Option<RefCell<watch::Receiver<Traces>>>,
    patterns: Vec<String>,
    recorder: Option<Arc<dyn Recorder>>,
    seed: Cell<Seed>,
}

/// The rules that decide which requests are sampled.
struct Sampling {
    bound: u64,
    /// The bounds of routes with their own ratio, by route number.
    bounds: Vec<Option<u64>>,
    follows: bool,
}

impl Sampling {
    fn of(traces: &Traces, patterns: &[String]) -> Self {
        let of = |pattern: &String| traces.routes.get(pattern).copied().map(bound);
        Self {
            bound: bound(traces.ratio),
            bounds: patterns.iter().map(of).collect(),
            follows: !traces.ignores_parents,
        }
    }
}

/// How many of 2^63 trace ids are sampled. OpenTelemetry's ratio-based samplers use the trace id in
/// the same way.
fn bound(ratio: f64) -> u64 {
    const ALL: u64 = 1 << 63;
    // Casting a float to an integer saturates.
    ((ALL as f64 * ratio) as u64).min(ALL)
}

/// The span and the span context of a request in progress.
#[derive(Default)]
pub(crate) struct Traced {
    /// The span in which application code runs. `None` if spans are disabled or the request is not
    /// sampled.
    pub(crate) span: Option<Span>,
    pub(crate) place: Option<Place>,
}

impl Traced {
    /// Closes the span when the request is over.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if let Some(span) = self.span.take() {
            span::close(span);
        }
        self.place = None;
    }

    /// Runs application code inside the span.
    #[inline]
    pub(crate) fn run<T>(&self, run: impl FnOnce() -> T) -> T {
        let _present = self.place.as_ref().map(enter);
        match &self.span {
            None => run(),
            Some(span) => inside(span, run),
        }
    }
}

impl Tracing {
    pub(crate) fn new(traces: &Traces, application: &Application) -> Self {
        let patterns = patterns(application);
        Self {
            sampling: RefCell::new(Sampling::of(traces, &patterns)),
            live: traces.live.clone().map(RefCell::new),
            patterns,
            recorder: traces.recorder.clone(),
            // `RandomState` contains random bits from the operating system.
            seed: Cell::new(Seed::new(RandomState::new().hash_one("traces"))),
        }
    }

    /// Applies the current sampling, if it may change.
    fn follow(&self) {
        let Some(live) = &self.live else { return };
        // An error means that the sampling cannot change any more.
        if live.borrow().has_changed().unwrap_or(false) {
            let mut live = live.borrow_mut();
            *self.sampling.borrow_mut() = Sampling::of(&live.borrow_and_update(), &self.patterns);
        }
    }

    /// Decides whether a routed request is sampled, and builds its span if so.
    pub(crate) fn begin(&self, request: &Request, pattern: Option<&str>, traced: &mut Traced) {
        self.follow();
        let head = &request.parts.head;
        let parent = self.sampling.borrow().follows.then(|| TraceContext::of(head)).flatten();
        let place = self.decide(head, parent.as_ref());
        traced.span = None;
        if place.is_sampled() {
            let span = span::whole(request, pattern);
            if !span.is_disabled() {
                let place = self.named(place, &span, parent.as_ref());
                (traced.span, traced.place) = (Some(span), Some(place));
                return;
            }
        }
        traced.place = Some(place);
    }

    /// Replaces the ids in `place` with those of the recorder, if there is one.
    fn named(&self, place: Place, span: &Span, parent: Option<&TraceContext>) -> Place {
        match self.recorder.as_ref().and_then(|recorder| recorder.begin(span, parent)) {
            Some((trace_id, span_id)) => {
                Place::Known(Rc::new(place.context().renamed(trace_id, span_id)))
            }
            None => place,
        }
    }

    /// Makes the request's span context, which contains the decision whether to sample the request.
    fn decide(&self, head: &Head, parent: Option<&TraceContext>) -> Place {
        let sampling = self.sampling.borrow();
        let own = head.route().and_then(|route| *sampling.bounds.get(route as usize)?);
        let seed = self.seed.get().next();
        self.seed.set(seed);
        let context = match parent {
            Some(parent) => parent.child(seed.span_id(), parent.is_sampled() && own != Some(0)),
            None if seed.sample() >> 1 >= own.unwrap_or(sampling.bound) => {
                return Place::Unrecorded(seed);
            }
            None => seed.root(true),
        };
        Place::Known(Rc::new(context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_proto::{Limits, RequestLine, Version};
    use peregrine_web::App;

    const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    /// Returns how many of 1,000 requests are sampled.
    fn sampled(traces: &Traces, path: &str, traceparent: Option<&str>) -> usize {
        let application = App::new().get("/a", || "a").get("/b/{b}", || "b").build().unwrap();
        traces.check(&patterns(&application)).expect("valid traces");
        let tracing = Tracing::new(traces, &application);
        let decide = || {
            let (method, authority, target) = (&b"GET"[..], &b""[..], path.as_bytes());
            let version = Version::Http11;
            let line = RequestLine { method, scheme: None, authority, target, version };
            let fields = traceparent.map(|value| (&b"traceparent"[..], value.as_bytes()));
            let fields = fields.into_iter().chain([(&b"host"[..], &b"a"[..])]);
            let mut head = Head::build(&Limits::default(), &line, fields).unwrap();
            let _target =
                application.find(&mut head, &peregrine_web::connection::ConnectionInfo::default());
            let parent = TraceContext::of(&head).filter(|_| tracing.sampling.borrow().follows);
            let context = tracing.decide(&head, parent.as_ref()).context();
            assert_ne!(parent.as_ref().map(TraceContext::span_id), Some(context.span_id()));
            let follows = parent.map(|parent| parent.trace_id() == context.trace_id());
            assert_ne!(follows, Some(false));
            context.is_sampled()
        };
        (0..1000).filter(|_| decide()).count()
    }

    #[test]
    fn requests_are_sampled_as_was_asked_for() {
        let all = Traces::new();
        let none = Traces::new().ratio(0.0);
        let some = Traces::new().ratio(0.0).route("/b/{b}", 1.0);
        let others = Traces::new().route("/a", 0.0);
        for (traces, path, traceparent, expected) in [
            (&all, "/a", None, 1000),
            (&all, "/nowhere", None, 1000),
            (&all, "/a", Some(SAMPLED), 1000),
            (&all, "/a", Some(UNSAMPLED), 0),
            (&all, "/a", Some("no traceparent"), 1000),
            (&none, "/a", None, 0),
            (&none, "/nowhere", None, 0),
            (&some, "/a", None, 0),
            (&some, "/b/1", None, 1000),
            (&some, "/b/1", Some(UNSAMPLED), 0),
            (&others, "/a", None, 0),
            (&others, "/a", Some(SAMPLED), 0),
            (&others, "/b/1", None, 1000),
            (&all.clone().ignore_parents(), "/a", Some(UNSAMPLED), 1000),
            (&none.clone().ignore_parents(), "/a", Some(SAMPLED), 0),
        ] {
            assert_eq!(
                sampled(traces, path, traceparent),
                expected,
                "{traces:?} {path} {traceparent:?}"
            );
        }
        let half = sampled(&Traces::new().ratio(0.5), "/a", None);
        assert!((350..650).contains(&half), "{half}");
    }

    #[test]
    fn a_sampled_parent_is_followed_where_fewer_begin() {
        assert_eq!(sampled(&Traces::new().ratio(0.001), "/a", Some(SAMPLED)), 1000);
    }

    #[test]
    fn what_cannot_be_is_said_with_its_remedy() {
        let application = App::new().get("/a/{a}", || "a").build().unwrap();
        for (traces, says) in [
            (Traces::new().ratio(1.5), "from 0.0 (none) to 1.0 (all)"),
            (Traces::new().ratio(f64::NAN), "requests"),
            (Traces::new().route("/a/{a}", -0.1), "/a/{a}"),
            (Traces::new().route("/b", 0.1), "no such route; it has /a/{a}"),
        ] {
            let error = traces.check(&patterns(&application)).expect_err("invalid traces");
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn sampling_changes_while_requests_come() {
        let application = App::new().get("/a", || "a").build().unwrap();
        let (change, live) = watch::channel(Traces::new());
        let tracing = Tracing::new(&Traces::new().live(live), &application);
        let sampled = || {
            tracing.follow();
            let sampling = tracing.sampling.borrow();
            (sampling.bound, sampling.bounds[0], sampling.follows)
        };
        let all = bound(1.0);
        assert_eq!(sampled(), (all, None, true));
        change.send_replace(Traces::new().ratio(0.0).route("/a", 1.0).ignore_parents());
        assert_eq!(sampled(), (0, Some(all), false));
        drop(change);
        assert_eq!(sampled(), (0, Some(all), false), "the last sampling stays");
    }
}
