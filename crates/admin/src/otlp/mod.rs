//! Exports spans to OpenTelemetry collectors, with OTLP over HTTP. Requires the feature `otlp`.
//!
//! [`Otlp`] is the complete setup. A separate thread sends the spans. It drops spans that it cannot
//! send, so that no worker waits.

mod client;
mod span_queue;

#[cfg(test)]
pub(crate) use self::span_queue::FAMILIES;
pub(crate) use self::span_queue::write;

use self::client::CollectorClient;
use self::span_queue::SpanQueue;
use http::HeaderMap;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider,
};
use opentelemetry::{Context, global};
use opentelemetry_http::HeaderInjector;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use peregrine_server::{SpanRecorder, TraceConfig};
#[cfg(feature = "config")]
use peregrine_settings::ServerConfig;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::trace::{TraceContext, is_unsampled};
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr as _;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata, Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::{DynFilterFn, Targets};
use tracing_subscriber::layer::{self, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// The default time limit for sending one batch.
const DEFAULT_EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the shutdown waits by default until all spans are sent.
const DEFAULT_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The targets of the exporter itself. Sending their spans would endlessly create more spans.
const EXCLUDED_TARGETS: [&str; 2] = ["opentelemetry", "rustls"];

/// Exports spans to an OpenTelemetry collector, with OTLP over HTTP in Protobuf encoding.
///
/// ```no_run
/// use peregrine::otlp::Otlp;
/// use peregrine::prelude::*;
/// use peregrine::trace::TraceConfig;
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     Otlp::new("birds").endpoint("http://collector:4318").install()?;
///     let server = Server::bind("0.0.0.0:8080").traces(TraceConfig::new().sample_ratio(0.1));
///     Ok(server.serve(|| App::new().get("/", || "hello"))?)
/// }
/// ```
///
/// The environment can provide settings that are not set here: `OTEL_EXPORTER_OTLP_ENDPOINT`,
/// `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_BSP_MAX_QUEUE_SIZE` and the
/// other variables of the OpenTelemetry SDKs. By default, the collector is at
/// `http://localhost:4318`.
///
/// A separate thread sends spans in batches. If its queue of 2,048 spans is full, further spans are
/// dropped, so that no worker waits. When a server shuts down, it waits for up to 5 s
/// ([`flush_timeout`](Self::flush_timeout)) until the queue is empty. The admin listener's metrics
/// include the numbers of sent and lost spans.
///
/// The thread has a small built-in HTTP/1.1 client, which supports HTTPS with the feature `tls`. No
/// other HTTP client is linked, and no runtime is needed.
#[derive(Clone)]
#[must_use = "no spans are sent until `install` or `layer`"]
pub struct Otlp {
    service_name: Option<String>,
    endpoint: Option<String>,
    headers: HashMap<String, String>,
    level: LevelFilter,
    export_timeout: Duration,
    flush_timeout: Duration,
}

impl fmt::Debug for Otlp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service_name: service, headers, level, .. } = self;
        // Header values may be secrets, and the address may contain a password.
        let names: Vec<_> = headers.keys().collect();
        let mut debug = f.debug_struct("Otlp");
        debug.field("service", service).field("headers", &names).field("level", level);
        debug.finish_non_exhaustive()
    }
}

/// Why spans cannot be sent.
#[derive(Debug)]
#[non_exhaustive]
pub enum OtlpError {
    /// The exporter has invalid settings, usually an invalid address of the collector.
    Exporter(String),
    /// The program already has a `tracing` subscriber: add [`Otlp::layer`] to it.
    Subscriber,
}

impl fmt::Display for OtlpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exporter(cause) => write!(
                f,
                "spans cannot be sent: {cause}; write the collector's address like \
                 `http://collector:4318`"
            ),
            Self::Subscriber => f.write_str(
                "the program already has a `tracing` subscriber: add `Otlp::layer` to it instead \
                 of calling `install`; `Otlp::from_config` takes the values from a configuration",
            ),
        }
    }
}

impl std::error::Error for OtlpError {}

impl Otlp {
    /// Creates an exporter for the spans of a service with this name.
    pub fn new(service: impl Into<String>) -> Self {
        Self::from_env().service_name(service)
    }

    /// Creates an exporter for the spans of a service whose name comes from the environment
    /// (`OTEL_SERVICE_NAME`).
    #[doc(alias = "OTEL_SERVICE_NAME")]
    pub fn from_env() -> Self {
        Self {
            service_name: None,
            endpoint: None,
            headers: HashMap::new(),
            level: LevelFilter::INFO,
            export_timeout: DEFAULT_EXPORT_TIMEOUT,
            flush_timeout: DEFAULT_FLUSH_TIMEOUT,
        }
    }

    /// Sets the service's name.
    #[doc(alias = "OTEL_SERVICE_NAME")]
    pub fn service_name(mut self, service: impl Into<String>) -> Self {
        self.service_name = Some(service.into());
        self
    }

    /// Sets how long sending one batch of spans may take, from connecting to the collector's
    /// response. When this time has passed, the batch is lost and counted. The lookup of the
    /// collector's name, before that, is limited only by the system's resolver. Meanwhile, spans
    /// wait in the queue. A shutdown waits no longer than [`flush_timeout`](Self::flush_timeout),
    /// even during a lookup. Default: 10 s.
    #[doc(alias = "OTEL_EXPORTER_OTLP_TIMEOUT")]
    pub fn export_timeout(mut self, timeout: Duration) -> Self {
        self.export_timeout = timeout;
        self
    }

    /// Sets how long the shutdown of the server waits until all spans are sent. Default: 5 s.
    pub fn flush_timeout(mut self, timeout: Duration) -> Self {
        self.flush_timeout = timeout;
        self
    }

    /// Sets the collector's address, such as `http://collector:4318`; `/v1/traces` is appended.
    /// Default: the address in the environment, or else `http://localhost:4318`.
    pub fn endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoint = Some(url.into());
        self
    }

    /// Adds a header field to the requests to the collector, for example for authentication.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Sets the most verbose level of the spans and events that are sent. Default: `INFO`.
    pub fn level(mut self, level: Level) -> Self {
        self.level = LevelFilter::from_level(level);
        self
    }

    /// Installs a `tracing` subscriber for the whole program. It exports spans, and writes events
    /// to standard error, filtered by the environment variable `RUST_LOG` (such as `info`, the
    /// default, or `warn,birds=debug`).
    ///
    /// # Errors
    /// The collector's address is invalid, or the program already has a subscriber.
    pub fn install(self) -> Result<(), OtlpError> {
        let filter = std::env::var("RUST_LOG").ok();
        let filter = filter.and_then(|filter| Targets::from_str(&filter).ok());
        let filter = filter.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
        let terminal = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let subscriber = tracing_subscriber::registry().with(self.layer()?);
        let subscriber = subscriber.with(terminal.with_filter(filter));
        tracing::subscriber::set_global_default(subscriber).map_err(|_| OtlpError::Subscriber)
    }

    /// Like [`install`](Self::install), but does nothing if the program has already added a layer
    /// that exports spans.
    ///
    /// # Errors
    /// See [`install`](Self::install).
    #[doc(hidden)]
    pub fn install_if_absent(self) -> Result<(), OtlpError> {
        let has_provider = !PROVIDERS.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        if has_provider { Ok(()) } else { self.install() }
    }

    /// Returns a layer for the program's own subscriber.
    ///
    /// # Errors
    /// The collector's address is invalid.
    pub fn layer<S>(self) -> Result<impl Layer<S>, OtlpError>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        let Self { service_name, endpoint, headers, level, export_timeout, flush_timeout } = self;
        let exporter = SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary);
        let exporter = exporter.with_http_client(CollectorClient { timeout: export_timeout });
        let exporter = exporter.with_timeout(export_timeout).with_headers(headers);
        let exporter = match endpoint {
            None => exporter,
            Some(url) => exporter.with_endpoint(format!("{}/v1/traces", url.trim_end_matches('/'))),
        };
        let exporter = exporter.build().map_err(|error| OtlpError::Exporter(error.to_string()))?;
        let resource = Resource::builder();
        let resource = match service_name {
            Some(name) => resource.with_service_name(name),
            None => resource,
        };
        let provider = SdkTracerProvider::builder().with_span_processor(SpanQueue::new(exporter));
        let provider = provider.with_resource(resource.build()).build();
        let tracer = provider.tracer("peregrine");
        PROVIDERS.lock().unwrap_or_else(PoisonError::into_inner).push((provider, flush_timeout));
        global::set_text_map_propagator(TraceContextPropagator::new());
        let layer = tracing_opentelemetry::layer().with_tracer(tracer);
        // Request spans already have all useful attributes.
        let layer = layer.with_location(false).with_threads(false).with_tracked_inactivity(false);
        let is_exported = move |metadata: &Metadata<'_>, _: &layer::Context<'_, S>| {
            let matches_target = |target: &&str| {
                let suffix = metadata.target().strip_prefix(target);
                suffix.is_some_and(|suffix| suffix.is_empty() || suffix.starts_with([':', '_']))
            };
            // If the request is not sampled, its handler's spans would start new traces, so they
            // are not exported.
            *metadata.level() <= level
                && !is_unsampled()
                && !EXCLUDED_TARGETS.iter().any(matches_target)
        };
        Ok(layer.with_filter(DynFilterFn::new(is_exported).with_max_level_hint(level)))
    }
}

#[cfg(feature = "config")]
impl Otlp {
    /// Creates the exporter from the configuration, or returns `None` if no endpoint is set. A
    /// program with its own `tracing` subscriber adds the exporter's [layer](Self::layer) to it.
    /// Otherwise the server [installs](Self::install) a subscriber when it starts.
    pub fn from_config(config: &ServerConfig) -> Option<Self> {
        let config = &config.traces.otlp;
        let otlp = Self::from_env().endpoint(config.endpoint.as_ref()?);
        let otlp = otlp.export_timeout(config.export_timeout).flush_timeout(config.flush_timeout);
        let otlp = config
            .headers
            .iter()
            .fold(otlp, |otlp, (name, value)| otlp.header(name, value.expose_secret()));
        Some(match &config.service_name {
            Some(service) => otlp.service_name(service),
            None => otlp,
        })
    }
}

/// The exporters to flush when a server shuts down, each with its flush timeout.
static PROVIDERS: Mutex<Vec<(SdkTracerProvider, Duration)>> = Mutex::new(Vec::new());

/// Used in place of timeouts beyond the range of `Instant`.
const FAR_FUTURE: Duration = Duration::from_secs(30 * 365 * 86_400);

/// Returns the instant at which `timeout` expires.
fn deadline_in(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or_else(|| now + FAR_FUTURE)
}

/// Sends all queued spans. Waits until they are sent, for up to the longest [`Otlp::flush_timeout`]
/// of all exporters.
pub fn flush() {
    let providers = PROVIDERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let Some(timeout) = providers.iter().map(|(_, timeout)| *timeout).max() else { return };
    let (sender, receiver) = mpsc::channel();
    let deadline = deadline_in(timeout);
    let flush_all = move || {
        // `force_flush` has its own timeout, which may be shorter than ours, so it is repeated.
        let results: Vec<_> = loop {
            let flushes = providers.iter().map(|(provider, _)| provider.force_flush());
            let results: Vec<_> = flushes.collect();
            let is_timeout =
                |result: &OTelSdkResult| matches!(result, Err(OTelSdkError::Timeout(_)));
            if !results.iter().any(is_timeout) || Instant::now() >= deadline {
                break results;
            }
        };
        let _ = sender.send(results);
    };
    if thread::Builder::new().name("peregrine-otlp".to_owned()).spawn(flush_all).is_err() {
        return;
    }
    match receiver.recv_timeout(timeout) {
        Ok(results) => {
            for error in results.into_iter().filter_map(Result::err) {
                catch_subscriber_panic(|| {
                    tracing::warn!(target: "peregrine", %error,
                    "the last spans could not be sent")
                });
            }
        }
        Err(_) => {
            let spans = span_queue::queued();
            catch_subscriber_panic(|| {
                tracing::warn!(target: "peregrine", ?timeout, spans,
                "the last spans were not sent in time")
            });
        }
    }
}

/// Makes `traces` use OpenTelemetry's span ids.
pub fn with_otel_recorder(traces: TraceConfig) -> TraceConfig {
    traces.recorder(Arc::new(OtelRecorder))
}

/// Records request spans through the OpenTelemetry layer.
#[derive(Debug)]
struct OtelRecorder;

impl SpanRecorder for OtelRecorder {
    fn on_start(&self, span: &Span, parent: Option<&TraceContext>) -> Option<([u8; 16], [u8; 8])> {
        if let Some(parent) = parent {
            // Fails if no layer records the span. The span's context is then invalid, so `None` is
            // returned below.
            let _ = span
                .set_parent(Context::new().with_remote_span_context(to_otel_span_context(parent)));
        }
        let context = span.context();
        let otel_span = context.span();
        let span_context = otel_span.span_context();
        span_context
            .is_valid()
            .then(|| (span_context.trace_id().to_bytes(), span_context.span_id().to_bytes()))
    }
}

fn to_otel_span_context(parent: &TraceContext) -> SpanContext {
    let state = parent.state().and_then(|state| TraceState::from_str(state).ok());
    SpanContext::new(
        TraceId::from_bytes(parent.trace_id()),
        SpanId::from_bytes(parent.span_id()),
        TraceFlags::new(parent.flags()),
        true,
        state.unwrap_or_default(),
    )
}

/// Adds the trace context fields to a request that is sent within the current span, which the
/// handler may have created. Returns false if no layer records that span.
pub fn inject(headers: &mut HeaderMap) -> bool {
    if is_unsampled() {
        return false;
    }
    let context = Span::current().context();
    let is_recorded = context.span().span_context().is_valid();
    if is_recorded {
        // The W3C fields are also injected explicitly, because a program with its own pipeline may
        // not have set a global propagator.
        let mut headers = HeaderInjector(headers);
        TraceContextPropagator::new().inject_context(&context, &mut headers);
        global::get_text_map_propagator(|propagator| {
            propagator.inject_context(&context, &mut headers);
        });
    }
    is_recorded
}
