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
        metrics: &Arc<WorkerMetrics>,
        clock: impl Fn() -> Duration + 'static,
        log: Option<AccessLogger>,
        tracing: Option<Tracer>,
    ) -> Rc<Self> {
        Rc::new(Self {
            metrics: Arc::clone(metrics),
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
        let mut batch = self.batch.borrow_mut();
        if batch.is_empty() {
            return;
        }
        for SampleRun { sample, count } in batch.drain(..) {
            self.observe(&sample, count, now.saturating_sub(sample.started_at));
        }
        batch.shrink_to(BATCH_CAPACITY_MAX);
    }

    fn record(&self, request: &RequestMetrics) {
        let RequestMetrics { started_at, key, record, .. } = request;
        let (started_at, received, sent) =
            (*started_at, record.request_body_bytes, record.response_body_bytes);
        self.metrics.active_requests[usize::from(key.is_secure)][key.method as usize].add(-1);
        let sample = RequestSample { key: *key, started_at, received, sent };
        if self.is_batching.get() && self.log.is_none() {
            let mut batch = self.batch.borrow_mut();
            // A busy worker answers many identical requests per loop iteration, and all of them
            // count from the beginning of the iteration.
            match batch.last_mut().filter(|last| last.sample == sample) {
                Some(last) => last.count += 1,
                None => batch.push(SampleRun { sample, count: 1 }),
            }
            return;
        }
        let duration = (self.clock)().saturating_sub(started_at);
        if let Some(log) = &self.log {
            log.write(key, record, duration);
        }
        self.observe(&sample, 1, duration);
    }

    fn observe(&self, sample: &RequestSample, count: u64, duration: Duration) {
        let Some(histograms) = self.metrics.request_histograms.get() else { return };
        // Avoids the 128-bit multiplication of `as_nanos`. A `u64` holds 584 years.
        let duration =
            duration.as_secs().saturating_mul(1_000_000_000) + u64::from(duration.subsec_nanos());
        let key = &sample.key;
        let durations = histograms.durations.entry(key.pack());
        durations.observe_n(count, duration, &super::metrics::DURATION_BOUNDS);
        let sizes = histograms.sizes.entry(key.pack_route());
        sizes.received.observe_n(count, sample.received, &crate::observe::metrics::SIZE_BOUNDS);
        sizes.sent.observe_n(count, sample.sent, &crate::observe::metrics::SIZE_BOUNDS);
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
        recorder: Option<&Rc<RequestRecorder>>,
        head: Option<&RequestHead>,
        (version, connection): (Version, &Rc<ConnectionInfo>),
        now: impl FnOnce() -> Duration,
    ) {
        let Some(recorder) = recorder else { return };
        self.finish_or_abort();
        let is_secure = connection.tls.is_some();
        let method = head.map_or(Method::Extension, |head| head.index().method);
        recorder.metrics.active_requests[usize::from(is_secure)][method as usize].add(1);
        // The record is updated in place. The end of the previous request dropped the data of that
        // request.
        self.key = RequestKey { method, version, is_secure, ..RequestKey::default() };
        (self.record.request_body_bytes, self.record.response_body_bytes) = (0, 0);
        if recorder.log.is_some() {
            self.record.connection = Some(Rc::clone(connection));
        }
        self.started_at = now();
        self.recorder = Some(Rc::clone(recorder));
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
            let prefix = &bytes[..bytes.len().min(INVALID_LINE_BYTES_MAX)];
            let line = prefix.split(|byte| matches!(byte, b'\r' | b'\n')).next();
            self.record.invalid_request_line = line.unwrap_or_default().to_vec();
        }
    }

    fn is_logged(&self) -> bool {
        self.recorder.as_ref().is_some_and(|recorder| recorder.log.is_some())
    }

    /// The traces of the worker, if they are enabled.
    #[inline]
    pub(crate) fn tracing(&self) -> Option<&Tracer> {
        self.recorder.as_ref()?.tracing.as_ref()
    }

    /// Keeps the request's span context for the access log.
    pub(crate) fn set_trace_context(&mut self, trace_context: &LazyTraceContext) {
        if self.is_logged() {
            self.record.trace_context = Some(trace_context.clone());
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
    pub(crate) fn set_error(&mut self, error: ErrorType) {
        self.key.error = error;
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
        if let Some(recorder) = self.recorder.take() {
            recorder.record(self);
            // Drop everything that belongs to the request: `start` relies on that.
            if recorder.log.is_some() {
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

    struct Fixture {
        worker_metrics: Arc<WorkerMetrics>,
        recorder: Rc<RequestRecorder>,
        now: Rc<Cell<u64>>,
    }

    fn fixture() -> Fixture {
        let (worker_metrics, now) =
            (Arc::new(WorkerMetrics::with_request_histograms()), Rc::new(Cell::new(0)));
        worker_metrics.init_request_histograms(&App::new().get("/a", || "a").build().unwrap());
        let clock = Rc::clone(&now);
        let clock = move || Duration::from_millis(clock.get());
        let recorder = RequestRecorder::new(&worker_metrics, clock, None, None);
        Fixture { worker_metrics, recorder, now }
    }

    impl Fixture {
        fn begin(&self) -> RequestMetrics {
            let mut metrics = RequestMetrics::default();
            let connection = Rc::default();
            let version_and_info = (Version::Http11, &connection);
            metrics.start(Some(&self.recorder), None, version_and_info, || {
                Duration::from_millis(self.now.get())
            });
            metrics
        }

        fn counted(&self) -> Vec<(RequestKey, u64)> {
            let histograms = self.worker_metrics.request_histograms.get().unwrap();
            let read = |(key, histogram): (u64, &peregrine_metrics::Histogram<14>)| {
                let mut buckets = HistogramSnapshot::default();
                histogram.read_into(&mut buckets);
                (RequestKey::unpack(key), buckets.count())
            };
            let mut all: Vec<_> = histograms.durations.entries().map(read).collect();
            all.sort_by_key(|(key, _)| key.pack());
            all
        }

        fn active(&self) -> i64 {
            self.worker_metrics
                .active_requests
                .iter()
                .flatten()
                .map(peregrine_metrics::Gauge::get)
                .sum()
        }
    }

    #[test]
    fn request_is_counted_once_even_if_it_is_finished_repeatedly() {
        let fixture = fixture();
        let mut metrics = fixture.begin();
        assert_eq!(fixture.active(), 1);
        metrics.set_status(StatusCode::OK);
        metrics.finish();
        metrics.finish_or_abort();
        metrics.finish();
        assert_eq!(fixture.active(), 0);
        let key = RequestKey {
            method: Method::Extension,
            version: Version::Http11,
            status: 200,
            ..RequestKey::default()
        };
        assert_eq!(fixture.counted(), [(key, 1)]);
    }

    #[test]
    fn requests_are_counted_at_the_end_of_the_iteration() {
        let fixture = fixture();
        fixture.recorder.enable_batching();
        let end = |status| {
            let mut metrics = fixture.begin();
            metrics.set_status(status);
            metrics.finish();
        };
        let count = || fixture.counted().iter().map(|(_, count)| count).sum::<u64>();
        (0..3).for_each(|_| end(StatusCode::OK));
        assert_eq!((count(), fixture.active()), (0, 0));
        fixture.recorder.flush_batch(Duration::from_millis(30));
        assert_eq!(count(), 3);
        let mut durations = HistogramSnapshot::default();
        let histograms = fixture.worker_metrics.request_histograms.get().unwrap();
        histograms
            .durations
            .entries()
            .for_each(|(_, histogram)| histogram.read_into(&mut durations));
        assert_eq!(durations.sum, 90_000_000);
        // Identical requests are combined. Different ones stay separate.
        for status in [200, 200, 404, 200] {
            end(StatusCode::from_u16(status).unwrap());
        }
        assert_eq!(fixture.recorder.batch.borrow().len(), 3);
        fixture.recorder.flush_batch(Duration::from_millis(30));
        let counts: Vec<_> =
            fixture.counted().iter().map(|(key, count)| (key.status, *count)).collect();
        assert_eq!(counts, [(200, 6), (404, 1)]);
        // Requests that end after the last loop iteration are counted as well.
        end(StatusCode::NOT_FOUND);
        let Fixture { worker_metrics, recorder, .. } = fixture;
        drop(recorder);
        assert_eq!(worker_metrics.request_histograms.get().unwrap().durations.entries().count(), 2);
    }

    #[test]
    fn aborted_request_records_whether_its_response_had_begun() {
        let fixture = fixture();
        fixture.begin().finish_or_abort();
        let mut metrics = fixture.begin();
        metrics.set_status(StatusCode::OK);
        metrics.finish_or_abort();
        let errors: Vec<_> =
            fixture.counted().iter().map(|(key, _)| (key.status, key.error)).collect();
        assert_eq!(errors, [(0, ErrorType::Cancelled), (200, ErrorType::Aborted)]);
    }

    #[test]
    fn unmeasured_request_records_nothing() {
        let mut metrics = RequestMetrics::default();
        let version_and_info = (Version::Http11, &Rc::default());
        metrics.start(None, None, version_and_info, || unreachable!("no clock is read"));
        metrics.add_received(1);
        metrics.finish();
        metrics.finish_or_abort();
        assert!(metrics.recorder.is_none());
    }

    #[test]
    fn durations_and_sizes_are_recorded() {
        let fixture = fixture();
        let mut metrics = fixture.begin();
        metrics.add_received(3);
        metrics.add_sent(5000);
        fixture.now.set(30);
        metrics.set_status(StatusCode::OK);
        metrics.finish();
        let histograms = fixture.worker_metrics.request_histograms.get().unwrap();
        let (mut durations, mut received, mut sent) =
            <(HistogramSnapshot, HistogramSnapshot, HistogramSnapshot)>::default();
        histograms
            .durations
            .entries()
            .for_each(|(_, histogram)| histogram.read_into(&mut durations));
        for (_, sizes) in histograms.sizes.entries() {
            sizes.received.read_into(&mut received);
            sizes.sent.read_into(&mut sent);
        }
        assert_eq!((durations.sum, received.sum, sent.sum), (30_000_000, 3, 5000));
        assert_eq!((durations.counts[3], received.counts[1], sent.counts[3]), (1, 1, 1));
    }
}
