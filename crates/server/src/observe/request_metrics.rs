//! Measures one request, from its head to the end of its response.

use super::access_log::{AccessLogRecord, AccessLogger};
use super::metrics::{DURATION_BOUNDS, ErrorType, RequestAttributes, SIZE_BOUNDS, WorkerMetrics};
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

/// How much of the first line of an invalid request is stored for the access log.
const INVALID_LINE_BYTES_MAX: usize = 1024;
/// After a flush, the batch retains at most this capacity, even if it had grown larger.
const RETAINED_BATCH_CAPACITY: usize = 1024;

/// What a worker needs to measure its requests: counters, clock, access log and traces.
pub(crate) struct RequestRecorder {
    metrics: Arc<WorkerMetrics>,
    clock: Box<dyn Fn() -> Duration>,
    log: Option<AccessLogger>,
    tracer: Option<Tracer>,
    /// Whether [`RequestRecorder::flush_batch`] is called at the end of each loop iteration.
    is_batching: Cell<bool>,
    /// Requests that ended in this loop iteration. They are counted at the end of the iteration, so
    /// that the clock is read once for all of them. With an access log, requests are counted
    /// immediately instead, because each line needs its own end time.
    batch: RefCell<Vec<SampleRun>>,
}

/// Requests with equal samples that ended one after another.
struct SampleRun {
    sample: RequestSample,
    count: u64,
}

/// The measurements of a request that has ended, except its end time, which is taken when the
/// request is counted.
#[derive(PartialEq)]
struct RequestSample {
    attributes: RequestAttributes,
    started_at: Duration,
    request_body_bytes: u64,
    response_body_bytes: u64,
}

/// The measurements of a request in progress. The request is counted once: when its response is
/// complete, or when the request is aborted before that.
#[derive(Default)]
pub(crate) struct RequestMetrics {
    /// `None` if no request is in progress, or requests are not measured.
    recorder: Option<Rc<RequestRecorder>>,
    started_at: Duration,
    /// The attributes by which the request is counted.
    attributes: RequestAttributes,
    /// The body sizes, and the data that only the access log needs.
    log_record: AccessLogRecord,
}

impl RequestRecorder {
    /// Creates a recorder. `clock` must return the current time, not the time that the driver
    /// caches for a loop iteration.
    pub(crate) fn new(
        metrics: &Arc<WorkerMetrics>,
        clock: impl Fn() -> Duration + 'static,
        log: Option<AccessLogger>,
        tracer: Option<Tracer>,
    ) -> Rc<Self> {
        Rc::new(Self {
            metrics: Arc::clone(metrics),
            clock: Box::new(clock),
            log,
            tracer,
            is_batching: Cell::new(false),
            batch: RefCell::default(),
        })
    }

    /// Enables batching. The caller must then call [`flush_batch`](Self::flush_batch) at the end of
    /// each loop iteration.
    pub(crate) fn enable_batching(&self) {
        self.is_batching.set(true);
    }

    /// Counts the requests that ended in this loop iteration. `now` is the end of the iteration,
    /// which is when their responses are sent.
    pub(crate) fn flush_batch(&self, now: Duration) {
        let mut batch = self.batch.borrow_mut();
        if batch.is_empty() {
            return;
        }
        for SampleRun { sample, count } in batch.drain(..) {
            self.observe(&sample, count, now.saturating_sub(sample.started_at));
        }
        batch.shrink_to(RETAINED_BATCH_CAPACITY);
    }

    /// Counts a request that has ended, either immediately or at the end of the loop iteration. If
    /// there is an access log, writes the request's line.
    fn record_request(&self, request: &RequestMetrics) {
        let RequestMetrics { started_at, attributes, log_record, .. } = request;
        let (is_secure, method) = (attributes.is_secure, attributes.method);
        self.metrics.active_requests[usize::from(is_secure)][method as usize].add(-1);
        let sample = RequestSample {
            attributes: *attributes,
            started_at: *started_at,
            request_body_bytes: log_record.request_body_bytes,
            response_body_bytes: log_record.response_body_bytes,
        };
        if self.is_batching.get() && self.log.is_none() {
            let mut batch = self.batch.borrow_mut();
            // A busy worker responds to many similar requests per loop iteration. Their samples are
            // often equal, because the beginning of the iteration counts as the start of each.
            match batch.last_mut().filter(|last| last.sample == sample) {
                Some(last) => last.count += 1,
                None => batch.push(SampleRun { sample, count: 1 }),
            }
            return;
        }
        let duration = (self.clock)().saturating_sub(*started_at);
        if let Some(log) = &self.log {
            log.write(attributes, log_record, duration);
        }
        self.observe(&sample, 1, duration);
    }

    /// Adds `count` requests that took `duration` to the histograms.
    fn observe(&self, sample: &RequestSample, count: u64, duration: Duration) {
        let Some(histograms) = self.metrics.request_histograms.get() else { return };
        // Avoids the 128-bit multiplication of `as_nanos`. A `u64` can represent 584 years.
        let nanos =
            duration.as_secs().saturating_mul(1_000_000_000) + u64::from(duration.subsec_nanos());
        let attributes = &sample.attributes;
        let durations = histograms.durations.entry(attributes.pack());
        durations.observe_n(count, nanos, &DURATION_BOUNDS);
        let sizes = histograms.sizes.entry(attributes.pack_route());
        sizes.received.observe_n(count, sample.request_body_bytes, &SIZE_BOUNDS);
        sizes.sent.observe_n(count, sample.response_body_bytes, &SIZE_BOUNDS);
    }
}

impl Drop for RequestRecorder {
    fn drop(&mut self) {
        let now = (self.clock)();
        self.flush_batch(now);
    }
}

impl RequestMetrics {
    /// Begins to measure a request. `head` is `None` if the request was invalid. `now` may return
    /// the time when the loop iteration began, because the request has waited since then.
    #[inline]
    pub(crate) fn start(
        &mut self,
        recorder: Option<&Rc<RequestRecorder>>,
        head: Option<&RequestHead>,
        (version, connection): (Version, &Rc<ConnectionInfo>),
        now: impl FnOnce() -> Duration,
    ) {
        let Some(recorder) = recorder else { return };
        self.abort_if_unfinished();
        let is_secure = connection.tls.is_some();
        let method = head.map_or(Method::Extension, |head| head.index().method);
        recorder.metrics.active_requests[usize::from(is_secure)][method as usize].add(1);
        self.attributes =
            RequestAttributes { method, version, is_secure, ..RequestAttributes::default() };
        // Only the sizes need a reset: `finish` has already cleared the other fields.
        (self.log_record.request_body_bytes, self.log_record.response_body_bytes) = (0, 0);
        if recorder.log.is_some() {
            self.log_record.connection = Some(Rc::clone(connection));
        }
        self.started_at = now();
        self.recorder = Some(Rc::clone(recorder));
    }

    /// If there is an access log, stores the request's head for it. The head must not change
    /// afterwards.
    #[inline]
    pub(crate) fn set_head(&mut self, head: &RequestHead) {
        if self.is_logged() {
            self.log_record.head = Some(head.share());
        }
    }

    /// Stores the first line of an invalid request for the access log. `bytes` is the received
    /// input.
    #[cold]
    pub(crate) fn set_invalid_line(&mut self, bytes: &[u8]) {
        if self.is_logged() {
            let prefix = &bytes[..bytes.len().min(INVALID_LINE_BYTES_MAX)];
            let line = prefix.split(|byte| matches!(byte, b'\r' | b'\n')).next();
            self.log_record.invalid_request_line = line.unwrap_or_default().to_vec();
        }
    }

    /// Returns whether a request is being measured and there is an access log.
    fn is_logged(&self) -> bool {
        self.recorder.as_ref().is_some_and(|recorder| recorder.log.is_some())
    }

    /// The worker's tracer, if traces are enabled and a request is being measured.
    #[inline]
    pub(crate) fn tracer(&self) -> Option<&Tracer> {
        self.recorder.as_ref()?.tracer.as_ref()
    }

    /// Stores the request's trace context for the access log.
    pub(crate) fn set_trace_context(&mut self, trace_context: &LazyTraceContext) {
        if self.is_logged() {
            self.log_record.trace_context = Some(trace_context.clone());
        }
    }

    /// The attributes of the request, and the sizes of the received request body and of the written
    /// response body.
    pub(crate) fn summary(&self) -> (&RequestAttributes, u64, u64) {
        (&self.attributes, self.log_record.request_body_bytes, self.log_record.response_body_bytes)
    }

    /// Returns whether a request is being measured.
    pub(crate) fn is_started(&self) -> bool {
        self.recorder.is_some()
    }

    /// Records the route of the request.
    #[inline]
    pub(crate) fn set_route(&mut self, route: Option<u32>) {
        self.attributes.route = route;
    }

    /// Records the status of the response.
    #[inline]
    pub(crate) fn set_status(&mut self, status: StatusCode) {
        self.attributes.status = status.as_u16();
    }

    /// Records how the request failed, if the status does not show it.
    pub(crate) fn set_error(&mut self, error: ErrorType) {
        self.attributes.error = error;
    }

    /// Adds `bytes` to the size of the request body received so far.
    #[inline]
    pub(crate) fn add_received(&mut self, bytes: usize) {
        self.log_record.request_body_bytes += bytes as u64;
    }

    /// Adds `bytes` to the size of the response body written so far.
    #[inline]
    pub(crate) fn add_sent(&mut self, bytes: usize) {
        self.log_record.response_body_bytes += bytes as u64;
    }

    /// Counts the request, unless it was counted before. Called when its response is complete, or
    /// after [`RequestMetrics::mark_aborted`].
    #[inline]
    pub(crate) fn finish(&mut self) {
        if let Some(recorder) = self.recorder.take() {
            recorder.record_request(self);
            // Drop the request's head and connection: `start` relies on that.
            if recorder.log.is_some() {
                self.log_record = AccessLogRecord::default();
            }
        }
    }

    /// If the request has not been counted yet, counts it as aborted.
    #[inline]
    pub(crate) fn abort_if_unfinished(&mut self) {
        if self.recorder.is_some() {
            self.mark_aborted();
            self.finish();
        }
    }

    /// Records that the request ends before its response is complete: as `Aborted` if the response
    /// has begun, as `Cancelled` otherwise. An error that was recorded before remains.
    #[cold]
    pub(crate) fn mark_aborted(&mut self) {
        if self.attributes.error == ErrorType::None {
            let has_begun = self.attributes.status != 0;
            self.attributes.error =
                if has_begun { ErrorType::Aborted } else { ErrorType::Cancelled };
        }
    }
}

impl fmt::Debug for RequestMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestMetrics")
            .field("attributes", &self.attributes)
            .finish_non_exhaustive()
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
        fn start_request(&self) -> RequestMetrics {
            let mut metrics = RequestMetrics::default();
            let connection = Rc::default();
            let version_and_info = (Version::Http11, &connection);
            metrics.start(Some(&self.recorder), None, version_and_info, || {
                Duration::from_millis(self.now.get())
            });
            metrics
        }

        /// The attributes of all requests counted so far, with their counts.
        fn counted(&self) -> Vec<(RequestAttributes, u64)> {
            let histograms = self.worker_metrics.request_histograms.get().unwrap();
            let read = |(packed, histogram): (u64, &peregrine_metrics::Histogram<14>)| {
                let mut buckets = HistogramSnapshot::default();
                histogram.read_into(&mut buckets);
                (RequestAttributes::unpack(packed), buckets.count())
            };
            let mut all: Vec<_> = histograms.durations.entries().map(read).collect();
            all.sort_by_key(|(attributes, _)| attributes.pack());
            all
        }

        /// The number of requests in progress.
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
    fn request_finished_repeatedly_is_counted_once() {
        let fixture = fixture();
        let mut metrics = fixture.start_request();
        assert_eq!(fixture.active(), 1);
        metrics.set_status(StatusCode::OK);
        metrics.finish();
        metrics.abort_if_unfinished();
        metrics.finish();
        assert_eq!(fixture.active(), 0);
        let attributes = RequestAttributes {
            method: Method::Extension,
            version: Version::Http11,
            status: 200,
            ..RequestAttributes::default()
        };
        assert_eq!(fixture.counted(), [(attributes, 1)]);
    }

    #[test]
    fn batched_requests_are_counted_at_the_end_of_the_iteration() {
        let fixture = fixture();
        fixture.recorder.enable_batching();
        let run_request = |status| {
            let mut metrics = fixture.start_request();
            metrics.set_status(status);
            metrics.finish();
        };
        let count = || fixture.counted().iter().map(|(_, count)| count).sum::<u64>();
        (0..3).for_each(|_| run_request(StatusCode::OK));
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
        // Only consecutive requests with equal samples share an entry of the batch.
        for status in [200, 200, 404, 200] {
            run_request(StatusCode::from_u16(status).unwrap());
        }
        assert_eq!(fixture.recorder.batch.borrow().len(), 3);
        fixture.recorder.flush_batch(Duration::from_millis(30));
        let counts: Vec<_> = fixture
            .counted()
            .iter()
            .map(|(attributes, count)| (attributes.status, *count))
            .collect();
        assert_eq!(counts, [(200, 6), (404, 1)]);
        // Requests that end after the last loop iteration are counted as well.
        run_request(StatusCode::NOT_FOUND);
        let Fixture { worker_metrics, recorder, .. } = fixture;
        drop(recorder);
        assert_eq!(worker_metrics.request_histograms.get().unwrap().durations.entries().count(), 2);
    }

    #[test]
    fn aborted_request_records_whether_its_response_had_begun() {
        let fixture = fixture();
        fixture.start_request().abort_if_unfinished();
        let mut metrics = fixture.start_request();
        metrics.set_status(StatusCode::OK);
        metrics.abort_if_unfinished();
        let errors: Vec<_> = fixture
            .counted()
            .iter()
            .map(|(attributes, _)| (attributes.status, attributes.error))
            .collect();
        assert_eq!(errors, [(0, ErrorType::Cancelled), (200, ErrorType::Aborted)]);
    }

    #[test]
    fn unmeasured_request_records_nothing() {
        let mut metrics = RequestMetrics::default();
        let version_and_info = (Version::Http11, &Rc::default());
        metrics.start(None, None, version_and_info, || unreachable!("no clock is read"));
        metrics.add_received(1);
        metrics.finish();
        metrics.abort_if_unfinished();
        assert!(metrics.recorder.is_none());
    }

    #[test]
    fn durations_and_sizes_are_recorded() {
        let fixture = fixture();
        let mut metrics = fixture.start_request();
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
