//! The trace context of a request (W3C Trace Context): parsed strictly from the request, and added
//! to the requests that a handler sends.
//!
//! `tracestate.rs` parses the list of vendor data, which the server passes on.

mod tracestate;

use crate::extract::FromRequestParts;
use crate::http::head::RequestHead;
use crate::http::panic::catch_subscriber_panic;
use crate::{Parts, Problem};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use peregrine_proto::KnownField;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// The field that identifies the trace and the span.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The field that carries the vendor data of tracing systems.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The length of `traceparent` in version 00. Later versions begin with a prefix of the same length
/// and form.
const TRACEPARENT_BYTES: usize = 55;

const FLAG_SAMPLED: u8 = 1;
/// The trace's ID was generated randomly (Trace Context, level 2).
const FLAG_RANDOM: u8 = 2;

/// A position in a trace: which trace, which span, and whether the trace is recorded.
///
/// As a handler's argument it is the context of the request, if the server has [`TraceConfig`]. The
/// requests that the handler sends can carry it:
///
/// ```
/// use peregrine::trace::TraceContext;
/// use peregrine::http::HeaderMap;
///
/// async fn proxy(trace: Option<TraceContext>) -> String {
///     let mut fields = HeaderMap::new();
///     if let Some(trace) = &trace {
///         trace.inject(&mut fields);
///     }
///     // reqwest::Client::new().get("http://birds.example/").headers(fields).send().await
///     format!("{} fields", fields.len())
/// }
/// # let client = peregrine::App::new().get("/", proxy).test();
/// # assert_eq!(client.get("/").send_blocking().text(), "0 fields");
/// ```
///
/// [`TraceConfig`]: https://docs.rs/peregrine/latest/peregrine/trace/struct.TraceConfig.html
#[doc(alias = "SpanContext")]
#[doc(alias = "traceparent")]
#[derive(Clone, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
    state: Option<Arc<str>>,
}

impl TraceContext {
    /// The start of a new trace. `None` if an ID is all zeros, which the standard forbids.
    #[must_use]
    pub fn root(trace_id: [u8; 16], span_id: [u8; 8], is_sampled: bool) -> Option<Self> {
        let flags = FLAG_RANDOM | u8::from(is_sampled);
        let is_valid = trace_id != [0; 16] && span_id != [0; 8];
        is_valid.then_some(Self { trace_id, span_id, flags, state: None })
    }

    /// Parses the values of the two fields. `None` if `traceparent` does not follow the standard
    /// exactly; an invalid `tracestate` is left out.
    #[must_use]
    pub fn parse<'f>(
        traceparent: &[u8],
        tracestate: impl IntoIterator<Item = &'f [u8]>,
    ) -> Option<Self> {
        let (prefix, rest) = traceparent.split_at_checked(TRACEPARENT_BYTES)?;
        let version = decode_hex::<1>(&prefix[..2])?[0];
        // Trace Context §3.2.2: version ff is forbidden; a later version may continue after a
        // dash.
        let is_well_formed = match version {
            0xff => false,
            0 => rest.is_empty(),
            _ => rest.first().is_none_or(|byte| *byte == b'-'),
        };
        let dash_positions = [2, 35, 52];
        if !is_well_formed || dash_positions.iter().any(|index| prefix[*index] != b'-') {
            return None;
        }
        let (trace_id, span_id) = (decode_hex(&prefix[3..35])?, decode_hex(&prefix[36..52])?);
        // The other flags are reserved: the standard requires that they are sent as zero.
        let flags = decode_hex::<1>(&prefix[53..])?[0] & (FLAG_SAMPLED | FLAG_RANDOM);
        if trace_id == [0; 16] || span_id == [0; 8] {
            return None;
        }
        let state = tracestate::parse(tracestate);
        Some(Self { trace_id, span_id, flags, state })
    }

    /// The trace context in a request's head. `None` unless there is exactly one `traceparent`
    /// field, and it is valid.
    #[must_use]
    pub fn extract(head: &RequestHead) -> Option<Self> {
        if !head.index().contains(KnownField::Traceparent) {
            return None;
        }
        let mut values = head.header_values("traceparent");
        let traceparent = values.next()?;
        if values.next().is_some() {
            return None;
        }
        Self::parse(traceparent, head.header_values("tracestate"))
    }

    /// The same trace with another span.
    #[must_use]
    pub fn child(&self, span_id: [u8; 8], is_sampled: bool) -> Self {
        let flags = self.flags & FLAG_RANDOM | u8::from(is_sampled);
        Self { span_id, flags, ..self.clone() }
    }

    /// The same context with other IDs, for a tracing system that assigns its own.
    #[must_use]
    pub fn with_ids(&self, trace_id: [u8; 16], span_id: [u8; 8]) -> Self {
        Self { trace_id, span_id, ..self.clone() }
    }

    /// The context of the request that this thread is handling, if the server has `TraceConfig`. It
    /// is available in handlers, middleware and response bodies, but not in tasks that they spawn.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(|current| current.as_ref().map(LazyTraceContext::context))
    }

    /// Whether the trace is recorded.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & FLAG_SAMPLED != 0
    }

    /// The trace's ID.
    #[must_use]
    pub fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }

    /// The span's ID.
    #[must_use]
    pub fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    /// The bit flags: 1 if the trace is recorded, 2 if its ID is random.
    #[must_use]
    pub fn flags(&self) -> u8 {
        self.flags
    }

    /// The vendor data of tracing systems, as one list.
    #[must_use]
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// The value of `traceparent`, in version 00.
    #[must_use]
    pub fn traceparent(&self) -> String {
        let Self { trace_id, span_id, flags, .. } = self;
        format!("00-{}-{}-{flags:02x}", Hex(trace_id), Hex(span_id))
    }

    /// Sets both fields of an outgoing request, replacing earlier ones.
    pub fn inject(&self, headers: &mut HeaderMap) {
        let value = |text: &str| HeaderValue::from_str(text).expect("the value is visible ASCII");
        headers.insert(TRACEPARENT, value(&self.traceparent()));
        match &self.state {
            Some(state) => headers.insert(TRACESTATE, value(state)),
            None => headers.remove(TRACESTATE),
        };
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("TraceContext");
        debug.field("traceparent", &self.traceparent()).field("tracestate", &self.state).finish()
    }
}

/// Formats bytes as lower-case hexadecimal digits.
#[doc(hidden)]
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Parses hexadecimal digits. Trace Context §3.2: upper-case ones are not valid.
fn decode_hex<const BYTES: usize>(digits: &[u8]) -> Option<[u8; BYTES]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}

/// The source of one request's IDs, which are unique but not secret.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSeed(u64);

impl TraceSeed {
    /// One seed yields three numbers: the two halves of a trace's ID, and a span's ID.
    const NUMBERS_PER_SEED: u64 = 3;
    /// The increment of SplitMix64.
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

    /// The first seed. `seed` should be random.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The seed of the next request. Its numbers follow those of this seed.
    #[must_use]
    #[inline]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(Self::STEP.wrapping_mul(Self::NUMBERS_PER_SEED)))
    }

    /// The number at `index`, generated by SplitMix64. Never zero, because an ID must not be zero.
    #[inline]
    fn number(self, index: u64) -> u64 {
        let state = self.0.wrapping_add(Self::STEP.wrapping_mul(index));
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31).max(1)
    }

    /// The second half of the trace's ID, which decides whether the trace is sampled.
    #[must_use]
    #[inline]
    pub fn sampling_number(self) -> u64 {
        self.number(0)
    }

    /// The span's ID.
    #[must_use]
    pub fn span_id(self) -> [u8; 8] {
        self.number(1).to_be_bytes()
    }

    /// The start of a new trace.
    #[must_use]
    pub fn root(self, is_sampled: bool) -> TraceContext {
        let trace_id = u128::from(self.number(2)) << 64 | u128::from(self.sampling_number());
        TraceContext::root(trace_id.to_be_bytes(), self.span_id(), is_sampled)
            .expect("the numbers of a seed are not zero")
    }
}

/// The trace context of a request that is being handled, computed only if it is needed.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub enum LazyTraceContext {
    /// The start of a trace that is not recorded. Its IDs are rarely needed, so they are computed
    /// only on demand.
    Unsampled(TraceSeed),
    /// Any other context.
    Computed(Rc<TraceContext>),
}

impl LazyTraceContext {
    /// Computes the trace context.
    #[must_use]
    pub fn context(&self) -> TraceContext {
        match self {
            Self::Unsampled(seed) => seed.root(false),
            Self::Computed(context) => TraceContext::clone(context),
        }
    }

    /// Whether the trace is recorded.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        matches!(self, Self::Computed(context) if context.is_sampled())
    }
}

thread_local! {
    static CURRENT: RefCell<Option<LazyTraceContext>> = const { RefCell::new(None) };
}

/// Restores the thread's previous trace context on drop.
#[doc(hidden)]
pub struct TraceGuard(Option<LazyTraceContext>);

/// Makes `context` the current trace context of this thread until the guard is dropped.
#[doc(hidden)]
#[must_use]
#[inline]
pub fn enter(context: &LazyTraceContext) -> TraceGuard {
    TraceGuard(CURRENT.replace(Some(context.clone())))
}

/// The current trace context of this thread.
#[doc(hidden)]
#[must_use]
pub fn current() -> Option<LazyTraceContext> {
    CURRENT.with_borrow(Clone::clone)
}

impl Drop for TraceGuard {
    #[inline]
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Whether this thread is handling a request whose trace is not recorded.
#[must_use]
pub fn is_unsampled() -> bool {
    let has_unsampled = |current: &Option<LazyTraceContext>| {
        current.as_ref().is_some_and(|context| !context.is_sampled())
    };
    // A thread that is exiting handles no request.
    CURRENT
        .try_with(|current| current.try_borrow().is_ok_and(|current| has_unsampled(&current)))
        .unwrap_or(false)
}

impl FromRequestParts for TraceContext {
    async fn from_request_parts(_: &mut Parts) -> Result<Self, Problem> {
        Self::current().ok_or_else(|| {
            catch_subscriber_panic(|| {
                tracing::error!(target: "peregrine",
                "the handler needs the request's trace; add `.traces(TraceConfig::new())` to the server")
            });
            let detail =
                "the server lacks something that it needs for this request; its log says what";
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "missing-trace", detail)
        })
    }

    async fn optional_from_request_parts(_: &mut Parts) -> Result<Option<Self>, Problem> {
        Ok(Self::current())
    }
}

#[cfg(test)]
mod tests;
