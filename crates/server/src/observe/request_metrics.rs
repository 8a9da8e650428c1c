//! Measures one request, from its head to the end of its response.

use super::access_log::{AccessLogRecord, AccessLogger};
use super::metrics::{ErrorType, RequestKey, WorkerMetrics};
use super::trace::Tracer;
use http::StatusCode;
use peregrine_proto::{Method, Version};
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::head::RequestHead;
use peregrine_web::trace::LazyTraceContext;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How much of the first line of an invalid request is kept for the access log.
const INVALID_LINE_BYTES_MAX: usize = 1024;
/// The buffer of requests that ended in one loop iteration keeps room for this many.
const BATCH_CAPACITY_MAX: usize = 1024;

/// What a worker needs to measure its requests: counters, clock, access log and traces.
pub(crate) struct RequestRecorder {
    metrics: Arc<WorkerMetrics>,
    clock: Box<dyn Fn() -> Duration>,
    log: Option<AccessLogger>,
    tracing: Option<Tracer>,
    /// Whether [`RequestRecorder::flush_batch`] is called at the end of each loop iteration.
    is_batching: Cell<bool>,
    /// Requests that ended in this loop iteration. They are counted at the end of the iteration, so
    /// that the clock is read once for all of them.
    batch: RefCell<Vec<SampleRun>>,
}

/// Identical requests that ended one after the other. Their end time is not known yet.
struct SampleRun {
    sample: RequestSample,
    count: u64,
}

/// One request that ended. Its end time is not known yet.
#[derive(PartialEq)]
struct RequestSample {
    key: RequestKey,
    started_at: Duration,
    received: u64,
    sent: u64,
}

/// The measurements of a request in progress. The request is counted once: at the end of its
/// response, or when it ends without a response.
#[derive(Default)]
pub(crate) struct RequestMetrics {
    /// `None` if no request is in progress, or requests are not measured.
    recorder: Option<Rc<RequestRecorder>>,
    started_at: Duration,
    key: RequestKey,
    record: AccessLogRecord,
}

impl RequestRecorder {
    /// `clock` reads the driver's clock without caching.
    pub(crate) fn new(
        counts: &Arc<WorkerMetrics>,
        clock: impl Fn() -> Duration + 'static,
        log: Option<AccessLogger>,
        tracing: Option<Tracer>,
    ) -> Rc<Self> {
        Rc::new(Self {
            metrics: Arc::clone(counts),
            clock: Box::new(clock),
            log,
            tracing,
            is_batching: Cell::new(false),
            batch: RefCell::default(),
        })
    }

    /// Announces that [`flush_batch`](Self::flush_batch) will be called at the end of each loop
    /// iteration.
    pub(crate) fn enable_batching(&self) {
        self.is_batching.set(true);
    }

    /// Counts the requests that ended in this loop iteration. `now` is the end of the iteration,
    /// when their responses are sent.
    pub(crate) fn flush_batch(&self, now: Duration) {
        let mut ended = self.batch.borrow_mut();
        if ended.is_empty() {
            return;
        }
        for SampleRun { sample: of_each, count } in ended.drain(..) {
            self.observe(&of_each, count, now.saturating_sub(of_each.started_at));
        }
        ended.shrink_to(BATCH_CAPACITY_MAX);
    }

    fn record(&self, tally: &RequestMetrics) {
        let RequestMetrics { started_at: began, key, record: told, .. } = tally;
        let (began, received, sent) = (*began, told.request_body_bytes, told.response_body_bytes);
        self.metrics.active_requests[usize::from(key.is_secure)][key.method as usize].add(-1);
        let measure = RequestSample { key: *key, started_at: began, received, sent };
        if self.is_batching.get() && self.log.is_none() {
            let mut ended = self.batch.borrow_mut();
            // A busy worker answers many identical requests per loop iteration, and all of them
            // count from the beginning of the iteration.
            match ended.last_mut().filter(|last| last.sample == measure) {
                Some(last) => last.count += 1,
                None => ended.push(SampleRun { sample: measure, count: 1 }),
            }
            return;
        }
        let took = (self.clock)().saturating_sub(began);
        if let Some(log) = &self.log {
            log.write(key, told, took);
        }
        self.observe(&measure, 1, took);
    }

    fn observe(&self, measure: &RequestSample, count: u64, took: Duration) {
        let Some(measured) = self.metrics.request_histograms.get() else { return };
        // Avoids the 128-bit multiplication of `as_nanos`. A `u64` holds 584 years.
        let took = took.as_secs().saturating_mul(1_000_000_000) + u64::from(took.subsec_nanos());
        let key = &measure.key;
        let durations = measured.durations.entry(key.pack());
        durations.observe_n(count, took, &super::metrics::DURATION_BOUNDS);
        let sizes = measured.sizes.entry(key.pack_route());
        sizes.received.observe_n(count, measure.received, &crate::observe::metrics::SIZE_BOUNDS);
        sizes.sent.observe_n(count, measure.sent, &crate::observe::metrics::SIZE_BOUNDS);
    }
}

impl Drop for RequestRecorder {
    fn drop(&mut self) {
        let now = (self.clock)();
        self.flush_batch(now);
    }
}

impl RequestMetrics {
    /// Begins to measure a request. `head` is `None` if it was invalid. `now` may return the time
    /// when the loop iteration began, because the request has waited since then.
    #[inline]
    pub(crate) fn start(
        &mut self,
        meters: Option<&Rc<RequestRecorder>>,
        head: Option<&RequestHead>,
        (version, connection): (Version, &Rc<ConnectionInfo>),
        now: impl FnOnce() -> Duration,
    ) {
        let Some(meters) = meters else { return };
        self.finish_or_abort();
        let is_secure = connection.tls.is_some();
        let method = head.map_or(Method::Extension, |head| head.index().method);
        meters.metrics.active_requests[usize::from(is_secure)][method as usize].add(1);
        // The record is updated in place. The end of the previous request dropped the data of that
        // request.
        self.key = RequestKey { method, version, is_secure, ..RequestKey::default() };
        (self.record.request_body_bytes, self.record.response_body_bytes) = (0, 0);
        if meters.log.is_some() {
            self.record.connection = Some(Rc::clone(connection));
        }
        self.started_at = now();
        self.recorder = Some(Rc::clone(meters));
    }

    /// Keeps the request's head for the access log, if there is an access log. The head must not
    /// change afterwards.
    #[inline]
    pub(crate) fn set_head(&mut self, head: &RequestHead) {
        if self.is_logged() {
            self.record.head = Some(head.share());
        }
    }

    /// Keeps the first line of an invalid request for the access log.
    #[cold]
    pub(crate) fn set_invalid_line(&mut self, bytes: &[u8]) {
        if self.is_logged() {
            let most = &bytes[..bytes.len().min(INVALID_LINE_BYTES_MAX)];
            let line = most.split(|byte| matches!(byte, b'\r' | b'\n')).next();
            self.record.invalid_request_line = line.unwrap_or_default().to_vec();
        }
    }

    fn is_logged(&self) -> bool {
        self.recorder.as_ref().is_some_and(|meters| meters.log.is_some())
    }

    /// The traces of the worker, if they are enabled.
    #[inline]
    pub(crate) fn tracing(&self) -> Option<&Tracer> {
        self.recorder.as_ref()?.tracing.as_ref()
    }

    /// Keeps the request's span context for the access log.
    pub(crate) fn set_trace_context(&mut self, place: &LazyTraceContext) {
        if self.is_logged() {
            self.record.trace_context = Some(place.clone());
        }
    }

    /// The attributes of the request, and the bytes of content received and written.
    pub(crate) fn summary(&self) -> (&RequestKey, u64, u64) {
        (&self.key, self.record.request_body_bytes, self.record.response_body_bytes)
    }

    /// Returns whether a request is being measured.
    pub(crate) fn is_started(&self) -> bool {
        self.recorder.is_some()
    }

    /// Records the route of the request.
    #[inline]
    pub(crate) fn set_route(&mut self, route: Option<u32>) {
        self.key.route = route;
    }

    /// Records the status of the response.
    #[inline]
    pub(crate) fn set_status(&mut self, status: StatusCode) {
        self.key.status = status.as_u16();
    }

    /// Records an error that the status does not show.
    pub(crate) fn set_error(&mut self, fault: ErrorType) {
        self.key.error = fault;
    }

    /// Counts received content of the request.
    #[inline]
    pub(crate) fn add_received(&mut self, bytes: usize) {
        self.record.request_body_bytes += bytes as u64;
    }

    /// Counts written content of the response.
    #[inline]
    pub(crate) fn add_sent(&mut self, bytes: usize) {
        self.record.response_body_bytes += bytes as u64;
    }

    /// Counts the request, because its response is complete.
    #[inline]
    pub(crate) fn finish(&mut self) {
        if let Some(meters) = self.recorder.take() {
            meters.record(self);
            // Drop everything that belongs to the request: `begin` relies on that.
            if meters.log.is_some() {
                self.record = AccessLogRecord::default();
            }
        }
    }

    /// Counts the request, if its response did not do so already.
    #[inline]
    pub(crate) fn finish_or_abort(&mut self) {
        if self.recorder.is_some() {
            self.mark_aborted();
            self.finish();
        }
    }

    /// Records that the request ends before its response is complete.
    #[cold]
    pub(crate) fn mark_aborted(&mut self) {
        if self.key.error == ErrorType::None {
            let has_begun = self.key.status != 0;
            self.key.error = if has_begun { ErrorType::Aborted } else { ErrorType::Cancelled };
        }
    }
}

impl fmt::Debug for RequestMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestMetrics").field("key", &self.key).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_metrics::HistogramSnapshot;
    use peregrine_web::App;

    struct Bench {
        counts: Arc<WorkerMetrics>,
        meters: Rc<RequestRecorder>,
        now: Rc<Cell<u64>>,
    }

    fn bench() -> Bench {
        let (counts, now) =
            (Arc::new(WorkerMetrics::with_request_histograms()), Rc::new(Cell::new(0)));
        counts.init_request_histograms(&App::new().get("/a", || "a").build().unwrap());
        let clock = Rc::clone(&now);
        let clock = move || Duration::from_millis(clock.get());
        let meters = RequestRecorder::new(&counts, clock, None, None);
        Bench { counts, meters, now }
    }

    impl Bench {
        fn begin(&self) -> RequestMetrics {
            let mut tally = RequestMetrics::default();
            let connection = Rc::default();
            let facts = (Version::Http11, &connection);
            tally.start(Some(&self.meters), None, facts, || Duration::from_millis(self.now.get()));
            tally
        }

        fn counted(&self) -> Vec<(RequestKey, u64)> {
            let measured = self.counts.request_histograms.get().unwrap();
            let read = |(key, histogram): (u64, &peregrine_metrics::Histogram<14>)| {
                let mut buckets = HistogramSnapshot::default();
                histogram.read_into(&mut buckets);
                (RequestKey::unpack(key), buckets.count())
            };
            let mut all: Vec<_> = measured.durations.entries().map(read).collect();
            all.sort_by_key(|(key, _)| key.pack());
            all
        }

        fn active(&self) -> i64 {
            self.counts.active_requests.iter().flatten().map(peregrine_metrics::Gauge::get).sum()
        }
    }

    #[test]
    fn a_request_is_counted_once_however_often_it_ends() {
        let bench = bench();
        let mut tally = bench.begin();
        assert_eq!(bench.active(), 1);
        tally.set_status(StatusCode::OK);
        tally.finish();
        tally.finish_or_abort();
        tally.finish();
        assert_eq!(bench.active(), 0);
        let key = RequestKey {
            method: Method::Extension,
            version: Version::Http11,
            status: 200,
            ..RequestKey::default()
        };
        assert_eq!(bench.counted(), [(key, 1)]);
    }

    #[test]
    fn what_ends_in_a_turn_is_counted_at_its_end() {
        let bench = bench();
        bench.meters.enable_batching();
        let end = |status| {
            let mut tally = bench.begin();
            tally.set_status(status);
            tally.finish();
        };
        let count = || bench.counted().iter().map(|(_, count)| count).sum::<u64>();
        (0..3).for_each(|_| end(StatusCode::OK));
        assert_eq!((count(), bench.active()), (0, 0));
        bench.meters.flush_batch(Duration::from_millis(30));
        assert_eq!(count(), 3);
        let mut took = HistogramSnapshot::default();
        let measured = bench.counts.request_histograms.get().unwrap();
        measured.durations.entries().for_each(|(_, histogram)| histogram.read_into(&mut took));
        assert_eq!(took.sum, 90_000_000);
        // Identical requests are combined. Different ones stay separate.
        for status in [200, 200, 404, 200] {
            end(StatusCode::from_u16(status).unwrap());
        }
        assert_eq!(bench.meters.batch.borrow().len(), 3);
        bench.meters.flush_batch(Duration::from_millis(30));
        let counts: Vec<_> =
            bench.counted().iter().map(|(key, count)| (key.status, *count)).collect();
        assert_eq!(counts, [(200, 6), (404, 1)]);
        // Requests that end after the last loop iteration are counted as well.
        end(StatusCode::NOT_FOUND);
        let Bench { counts, meters, .. } = bench;
        drop(meters);
        assert_eq!(counts.request_histograms.get().unwrap().durations.entries().count(), 2);
    }

    #[test]
    fn what_breaks_off_says_how_far_it_was() {
        let bench = bench();
        bench.begin().finish_or_abort();
        let mut begun = bench.begin();
        begun.set_status(StatusCode::OK);
        begun.finish_or_abort();
        let faults: Vec<_> =
            bench.counted().iter().map(|(key, _)| (key.status, key.error)).collect();
        assert_eq!(faults, [(0, ErrorType::Cancelled), (200, ErrorType::Aborted)]);
    }

    #[test]
    fn a_request_that_nobody_measures_leaves_nothing() {
        let mut tally = RequestMetrics::default();
        let facts = (Version::Http11, &Rc::default());
        tally.start(None, None, facts, || unreachable!("no clock is read"));
        tally.add_received(1);
        tally.finish();
        tally.finish_or_abort();
        assert!(tally.recorder.is_none());
    }

    #[test]
    fn times_and_sizes_are_those_of_the_request() {
        let bench = bench();
        let mut tally = bench.begin();
        tally.add_received(3);
        tally.add_sent(5000);
        bench.now.set(30);
        tally.set_status(StatusCode::OK);
        tally.finish();
        let measured = bench.counts.request_histograms.get().unwrap();
        let (mut took, mut received, mut sent) =
            <(HistogramSnapshot, HistogramSnapshot, HistogramSnapshot)>::default();
        measured.durations.entries().for_each(|(_, histogram)| histogram.read_into(&mut took));
        for (_, sizes) in measured.sizes.entries() {
            sizes.received.read_into(&mut received);
            sizes.sent.read_into(&mut sent);
        }
        assert_eq!((took.sum, received.sum, sent.sum), (30_000_000, 3, 5000));
        assert_eq!((took.counts[3], received.counts[1], sent.counts[3]), (1, 1, 1));
    }
}
