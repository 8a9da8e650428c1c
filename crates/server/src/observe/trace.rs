//! Traces requests: decides which requests are sampled, and builds spans only for those.

use super::access_log::route_patterns;
use super::span;
use peregrine_web::built::BuiltApp;
use peregrine_web::panic::in_span;
use peregrine_web::trace::{LazyTraceContext, TraceContext, TraceSeed, enter};
use peregrine_web::{Request, RequestHead};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::watch;
use tracing::Span;

/// Configures the tracing of requests. Each sampled request gets a span with the attributes of
/// OpenTelemetry's conventions for HTTP servers. A handler can continue the trace in requests that
/// it sends itself ([`TraceContext`]).
///
/// The server decides whether to sample a request before it builds the span. By default, a request
/// with a valid `traceparent` follows the decision in that field, and all other requests are
/// sampled.
///
/// ```no_run
/// use peregrine::prelude::*;
/// use peregrine::trace::TraceConfig;
///
/// fn main() -> peregrine::Result<()> {
///     // Sample one in ten of the requests that start a trace, and no health checks.
///     let traces = TraceConfig::new().sample_ratio(0.1).route_sample_ratio("/health", 0.0);
///     Server::bind("127.0.0.1:8080").traces(traces).serve(|| App::new().get("/health", || "well"))
/// }
/// ```
#[doc(alias = "TraceLayer")]
#[doc(alias = "TracingLogger")]
#[doc(alias = "OpenTelemetry")]
#[derive(Clone, Debug)]
pub struct TraceConfig {
    sample_ratio: f64,
    route_sample_ratios: BTreeMap<String, f64>,
    ignore_remote_parents: bool,
    recorder: Option<Arc<dyn SpanRecorder>>,
    updates: Option<watch::Receiver<TraceConfig>>,
}

/// A system that records spans and assigns its own IDs to them.
#[doc(hidden)]
pub trait SpanRecorder: fmt::Debug + Send + Sync {
    /// Called when the span of a request has begun. `parent` comes from the request's
    /// `traceparent`, unless remote parents are ignored. Returns the trace ID and the span ID that
    /// the system has assigned to the span. `None` if the system does not record it.
    fn on_start(&self, span: &Span, parent: Option<&TraceContext>) -> Option<([u8; 16], [u8; 8])>;
}

impl Default for TraceConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl TraceConfig {
    /// Samples every request without a valid `traceparent`. Otherwise, the decision in that field
    /// applies.
    #[must_use]
    pub fn new() -> Self {
        Self {
            sample_ratio: 1.0,
            route_sample_ratios: BTreeMap::new(),
            ignore_remote_parents: false,
            recorder: None,
            updates: None,
        }
    }

    /// Sets what fraction of the requests that start a trace is sampled, from 0.0 (none) to 1.0
    /// (all, the default).
    #[doc(alias = "TraceIdRatioBased")]
    #[doc(alias = "sampler")]
    #[must_use]
    pub fn sample_ratio(mut self, ratio: f64) -> Self {
        self.sample_ratio = ratio;
        self
    }

    /// Like [`TraceConfig::sample_ratio`], for the route with this pattern, such as `/birds/{id}`.
    /// At 0.0, no request for the route is sampled, even if its `traceparent` is marked as sampled.
    #[must_use]
    pub fn route_sample_ratio(mut self, pattern: impl Into<String>, ratio: f64) -> Self {
        self.route_sample_ratios.insert(pattern.into(), ratio);
        self
    }

    /// Starts a new trace for each request and ignores `traceparent` and `tracestate`. Use this for
    /// public servers, where any client could otherwise have all of its requests recorded.
    #[doc(alias = "ParentBased")]
    #[must_use]
    pub fn ignore_remote_parents(mut self) -> Self {
        self.ignore_remote_parents = true;
        self
    }

    /// Uses the span IDs that `recorder` assigns.
    #[doc(hidden)]
    #[must_use]
    pub fn recorder(mut self, recorder: Arc<dyn SpanRecorder>) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// Samples requests as the latest value of `updates` specifies.
    #[doc(hidden)]
    #[must_use]
    pub fn updates(mut self, updates: watch::Receiver<TraceConfig>) -> Self {
        self.updates = Some(updates);
        self
    }

    /// Checks that all ratios are valid, and that all routes are among the application's patterns,
    /// `known_patterns`.
    ///
    /// # Errors
    /// The text describes the mistake and how to fix it.
    #[doc(hidden)]
    pub fn validate(&self, known_patterns: &[String]) -> Result<(), String> {
        let default_ratio = std::iter::once(("requests", self.sample_ratio));
        let route_ratios =
            self.route_sample_ratios.iter().map(|(pattern, ratio)| (&**pattern, *ratio));
        for (subject, ratio) in default_ratio.chain(route_ratios) {
            if !(0.0..=1.0).contains(&ratio) {
                return Err(format!(
                    "the sampling ratio of {subject} is {ratio}: use a number from 0.0 (none) to \
                     1.0 (all)"
                ));
            }
        }
        let unknown =
            self.route_sample_ratios.keys().find(|pattern| !known_patterns.contains(pattern));
        unknown.map_or(Ok(()), |pattern| {
            let known_patterns = known_patterns.join(", ");
            Err(format!(
                "a sampling ratio is set for the route `{pattern}`, but the application has no \
                 such route; it has {known_patterns}"
            ))
        })
    }
}

/// Samples the requests of one worker and starts their spans.
pub(crate) struct Tracer {
    sampler: RefCell<Sampler>,
    updates: Option<RefCell<watch::Receiver<TraceConfig>>>,
    patterns: Vec<String>,
    recorder: Option<Arc<dyn SpanRecorder>>,
    /// The source of the latest request's random IDs.
    seed: Cell<TraceSeed>,
}

/// The rules that decide which requests are sampled.
struct Sampler {
    /// The [`sampling_threshold`] of routes without their own ratio.
    threshold: u64,
    /// The thresholds of routes with their own ratio, by route number.
    route_thresholds: Vec<Option<u64>>,
    /// Whether a valid `traceparent` decides whether its request is sampled.
    is_parent_based: bool,
}

impl Sampler {
    fn new(config: &TraceConfig, patterns: &[String]) -> Self {
        let threshold_of = |pattern: &String| {
            config.route_sample_ratios.get(pattern).copied().map(sampling_threshold)
        };
        Self {
            threshold: sampling_threshold(config.sample_ratio),
            route_thresholds: patterns.iter().map(threshold_of).collect(),
            is_parent_based: !config.ignore_remote_parents,
        }
    }
}

/// Converts a sampling ratio to a threshold. [`Tracer::sample`] derives a 63-bit number from the ID
/// of a new trace, as OpenTelemetry's ratio-based samplers do, and samples the trace if the number
/// is below the threshold.
fn sampling_threshold(ratio: f64) -> u64 {
    const ALL: u64 = 1 << 63;
    // Casting a float to an integer saturates.
    ((ALL as f64 * ratio) as u64).min(ALL)
}

/// The span and the trace context of a request in progress.
#[derive(Default)]
pub(crate) struct RequestSpan {
    /// The span in which application code runs. `None` if spans are disabled or the request is not
    /// sampled.
    pub(crate) span: Option<Span>,
    /// `None` if traces are disabled.
    pub(crate) trace_context: Option<LazyTraceContext>,
}

impl RequestSpan {
    /// Closes the span of a request that has ended, and drops its trace context.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if let Some(span) = self.span.take() {
            span::close(span);
        }
        self.trace_context = None;
    }

    /// Runs application code inside the span.
    #[inline]
    pub(crate) fn in_scope<T>(&self, run: impl FnOnce() -> T) -> T {
        let _guard = self.trace_context.as_ref().map(enter);
        match &self.span {
            None => run(),
            Some(span) => in_span(span, run),
        }
    }
}

impl Tracer {
    pub(crate) fn new(config: &TraceConfig, application: &BuiltApp) -> Self {
        let patterns = route_patterns(application);
        Self {
            sampler: RefCell::new(Sampler::new(config, &patterns)),
            updates: config.updates.clone().map(RefCell::new),
            patterns,
            recorder: config.recorder.clone(),
            // `RandomState` contains random bits from the operating system.
            seed: Cell::new(TraceSeed::new(RandomState::new().hash_one("traces"))),
        }
    }

    /// Applies the latest sampling rules if they have changed.
    fn reload(&self) {
        let Some(updates) = &self.updates else { return };
        // An error means that the sender is gone, so the rules no longer change.
        if updates.borrow().has_changed().unwrap_or(false) {
            let mut updates = updates.borrow_mut();
            *self.sampler.borrow_mut() = Sampler::new(&updates.borrow_and_update(), &self.patterns);
        }
    }

    /// Decides whether a routed request is sampled, and builds its span if so.
    pub(crate) fn start_span(
        &self,
        request: &Request,
        pattern: Option<&str>,
        request_span: &mut RequestSpan,
    ) {
        self.reload();
        let head = &request.parts.head;
        let parent =
            self.sampler.borrow().is_parent_based.then(|| TraceContext::extract(head)).flatten();
        let trace_context = self.sample(head, parent.as_ref());
        request_span.span = None;
        if trace_context.is_sampled() {
            let span = span::otel_span(request, pattern);
            if !span.is_disabled() {
                let trace_context = self.with_recorded_ids(trace_context, &span, parent.as_ref());
                (request_span.span, request_span.trace_context) = (Some(span), Some(trace_context));
                return;
            }
        }
        request_span.trace_context = Some(trace_context);
    }

    /// Replaces the IDs in `trace_context` with those of the recorder, if there is one.
    fn with_recorded_ids(
        &self,
        trace_context: LazyTraceContext,
        span: &Span,
        parent: Option<&TraceContext>,
    ) -> LazyTraceContext {
        match self.recorder.as_ref().and_then(|recorder| recorder.on_start(span, parent)) {
            Some((trace_id, span_id)) => LazyTraceContext::Computed(Rc::new(
                trace_context.context().with_ids(trace_id, span_id),
            )),
            None => trace_context,
        }
    }

    /// Creates the request's trace context, which contains the decision whether to sample the
    /// request.
    fn sample(&self, head: &RequestHead, parent: Option<&TraceContext>) -> LazyTraceContext {
        let sampler = self.sampler.borrow();
        let route_threshold =
            head.route_id().and_then(|route| *sampler.route_thresholds.get(route as usize)?);
        let seed = self.seed.get().next();
        self.seed.set(seed);
        let context = match parent {
            Some(parent) => {
                parent.child(seed.span_id(), parent.is_sampled() && route_threshold != Some(0))
            }
            None if seed.sampling_number() >> 1 >= route_threshold.unwrap_or(sampler.threshold) => {
                return LazyTraceContext::Unsampled(seed);
            }
            None => seed.root(true),
        };
        LazyTraceContext::Computed(Rc::new(context))
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
    fn count_sampled(traces: &TraceConfig, path: &str, traceparent: Option<&str>) -> usize {
        let application = App::new().get("/a", || "a").get("/b/{b}", || "b").build().unwrap();
        traces.validate(&route_patterns(&application)).expect("valid traces");
        let tracer = Tracer::new(traces, &application);
        let decide = || {
            let (method, authority, target) = (&b"GET"[..], &b""[..], path.as_bytes());
            let version = Version::Http11;
            let line = RequestLine { method, scheme: None, authority, target, version };
            let fields = traceparent.map(|value| (&b"traceparent"[..], value.as_bytes()));
            let fields = fields.into_iter().chain([(&b"host"[..], &b"a"[..])]);
            let mut head = RequestHead::build(&Limits::default(), &line, fields).unwrap();
            // Stores the route in `head`, where `sample` reads it.
            let _target =
                application.find(&mut head, &peregrine_web::connection::ConnectionInfo::default());
            let parent =
                TraceContext::extract(&head).filter(|_| tracer.sampler.borrow().is_parent_based);
            let context = tracer.sample(&head, parent.as_ref()).context();
            assert_ne!(parent.as_ref().map(TraceContext::span_id), Some(context.span_id()));
            let continues_parent = parent.map(|parent| parent.trace_id() == context.trace_id());
            assert_ne!(continues_parent, Some(false));
            context.is_sampled()
        };
        (0..1000).filter(|_| decide()).count()
    }

    #[test]
    fn requests_are_sampled_as_configured() {
        let all = TraceConfig::new();
        let none = TraceConfig::new().sample_ratio(0.0);
        let some = TraceConfig::new().sample_ratio(0.0).route_sample_ratio("/b/{b}", 1.0);
        let excluded = TraceConfig::new().route_sample_ratio("/a", 0.0);
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
            (&excluded, "/a", None, 0),
            (&excluded, "/a", Some(SAMPLED), 0),
            (&excluded, "/b/1", None, 1000),
            (&all.clone().ignore_remote_parents(), "/a", Some(UNSAMPLED), 1000),
            (&none.clone().ignore_remote_parents(), "/a", Some(SAMPLED), 0),
        ] {
            assert_eq!(
                count_sampled(traces, path, traceparent),
                expected,
                "{traces:?} {path} {traceparent:?}"
            );
        }
        let half = count_sampled(&TraceConfig::new().sample_ratio(0.5), "/a", None);
        assert!((350..650).contains(&half), "{half}");
    }

    #[test]
    fn sampled_parent_overrides_a_low_ratio() {
        assert_eq!(
            count_sampled(&TraceConfig::new().sample_ratio(0.001), "/a", Some(SAMPLED)),
            1000
        );
    }

    #[test]
    fn validate_names_the_mistake_and_the_fix() {
        let application = App::new().get("/a/{a}", || "a").build().unwrap();
        for (traces, expected) in [
            (TraceConfig::new().sample_ratio(1.5), "from 0.0 (none) to 1.0 (all)"),
            (TraceConfig::new().sample_ratio(f64::NAN), "requests"),
            (TraceConfig::new().route_sample_ratio("/a/{a}", -0.1), "/a/{a}"),
            (TraceConfig::new().route_sample_ratio("/b", 0.1), "no such route; it has /a/{a}"),
        ] {
            let error = traces.validate(&route_patterns(&application)).expect_err("invalid traces");
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn sampling_can_be_changed_at_run_time() {
        let application = App::new().get("/a", || "a").build().unwrap();
        let (sender, updates) = watch::channel(TraceConfig::new());
        let tracer = Tracer::new(&TraceConfig::new().updates(updates), &application);
        let current_rules = || {
            tracer.reload();
            let sampler = tracer.sampler.borrow();
            (sampler.threshold, sampler.route_thresholds[0], sampler.is_parent_based)
        };
        let all = sampling_threshold(1.0);
        assert_eq!(current_rules(), (all, None, true));
        sender.send_replace(
            TraceConfig::new()
                .sample_ratio(0.0)
                .route_sample_ratio("/a", 1.0)
                .ignore_remote_parents(),
        );
        assert_eq!(current_rules(), (0, Some(all), false));
        drop(sender);
        assert_eq!(current_rules(), (0, Some(all), false), "the last sampling stays");
    }
}
