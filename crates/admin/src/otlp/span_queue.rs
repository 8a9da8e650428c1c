//! The span queue, with counters of spans that are sent, that cannot be sent, or that are dropped
//! because the queue is full.

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor,
};
use peregrine_metrics::{Exposition, MetricFamily, MetricType};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The maximum number of spans in a queue, by default.
const QUEUED_SPANS_MAX: usize = 2048;

/// The span counters of this process.
#[derive(Debug)]
struct SpanCounters {
    created: AtomicU64,
    exported: AtomicU64,
    /// Spans that did not fit into the queue.
    dropped: AtomicU64,
    /// Spans that could not be sent, or that the collector rejected.
    failed: AtomicU64,
}

static COUNTERS: SpanCounters = SpanCounters {
    created: AtomicU64::new(0),
    exported: AtomicU64::new(0),
    dropped: AtomicU64::new(0),
    failed: AtomicU64::new(0),
};

fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Returns the number of queued spans of this process, including those that are being sent.
pub(super) fn queued() -> u64 {
    let SpanCounters { created, exported, dropped, failed } = &COUNTERS;
    // These are read before `created`, so that the difference cannot be negative.
    let finished = load(exported) + load(dropped) + load(failed);
    load(created).saturating_sub(finished)
}

/// Passes spans to the thread that sends them, and limits the number of queued spans.
#[derive(Debug)]
pub(super) struct SpanQueue {
    batch_processor: BatchSpanProcessor,
    /// The number of spans in this queue, which [`CountingExporter`] decreases. The counters of the
    /// process include the spans of all queues.
    queue_len: Arc<AtomicUsize>,
    queue_len_max: usize,
}

impl SpanQueue {
    /// Creates a queue for this exporter.
    pub(super) fn new(collector: opentelemetry_otlp::SpanExporter) -> Self {
        let setting = std::env::var("OTEL_BSP_MAX_QUEUE_SIZE").ok();
        let setting = setting.and_then(|text| text.trim().parse().ok()).filter(|max| *max > 0);
        let queue_len_max = setting.unwrap_or(QUEUED_SPANS_MAX);
        let queue_len = Arc::<AtomicUsize>::default();
        let counting_exporter = CountingExporter { collector, queue_len: Arc::clone(&queue_len) };
        // The SDK's queue has the same size, so it never drops a span that this queue accepts.
        let config = BatchConfigBuilder::default().with_max_queue_size(queue_len_max).build();
        let batch_processor =
            BatchSpanProcessor::builder(counting_exporter).with_batch_config(config).build();
        Self { batch_processor, queue_len, queue_len_max }
    }
}

impl SpanProcessor for SpanQueue {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batch_processor.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        add(&COUNTERS.created, 1);
        let increment = |len: usize| (len < self.queue_len_max).then_some(len + 1);
        match self.queue_len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, increment) {
            Ok(_) => self.batch_processor.on_end(span),
            Err(_) => add(&COUNTERS.dropped, 1),
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batch_processor.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batch_processor.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batch_processor.set_resource(resource);
    }
}

/// Sends batches, and counts their spans.
#[derive(Debug)]
struct CountingExporter {
    collector: opentelemetry_otlp::SpanExporter,
    /// The `queue_len` of the [`SpanQueue`].
    queue_len: Arc<AtomicUsize>,
}

impl SpanExporter for CountingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let result = self.collector.export(batch).await;
        add(if result.is_ok() { &COUNTERS.exported } else { &COUNTERS.failed }, count);
        self.queue_len.fetch_sub(count, Ordering::Relaxed);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.collector.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.collector.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.collector.set_resource(resource);
    }
}

const CREATED: MetricFamily<'_> = MetricFamily {
    name: "peregrine_trace_spans",
    metric_type: MetricType::Counter,
    unit: "",
    help: "Spans that were recorded for export to a collector.",
};
const EXPORTED: MetricFamily<'_> = MetricFamily {
    name: "peregrine_trace_exported_spans",
    metric_type: MetricType::Counter,
    unit: "",
    help: "Spans that a collector accepted.",
};
const DROPPED: MetricFamily<'_> = MetricFamily {
    name: "peregrine_trace_dropped_spans",
    metric_type: MetricType::Counter,
    unit: "",
    help: "Spans that were lost, by reason.",
};
const QUEUED: MetricFamily<'_> = MetricFamily {
    name: "peregrine_trace_queued_spans",
    metric_type: MetricType::Gauge,
    unit: "",
    help: "Spans that wait to be sent.",
};

/// The metric families that [`write()`] writes, in order.
#[cfg(test)]
pub(crate) const FAMILIES: &[MetricFamily<'static>] = &[CREATED, EXPORTED, DROPPED, QUEUED];

/// Writes the metrics.
pub(crate) fn write(page: &mut Exposition) {
    let queued = queued();
    page.begin_family(&CREATED);
    page.sample(&[], load(&COUNTERS.created));
    page.begin_family(&EXPORTED);
    page.sample(&[], load(&COUNTERS.exported));
    page.begin_family(&DROPPED);
    page.sample(&[("reason", "queue_full")], load(&COUNTERS.dropped));
    page.sample(&[("reason", "send_failed")], load(&COUNTERS.failed));
    page.begin_family(&QUEUED);
    page.sample(&[], queued);
}
