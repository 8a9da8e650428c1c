//! The span queue, with counters for spans that are sent, that fail, or that are dropped because
//! the queue is full.

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor,
};
use peregrine_metrics::{Family, Kind, Page};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The maximum number of queued spans, by default.
const WAITING_MAX: usize = 2048;

/// Counters of the spans of this process.
#[derive(Debug)]
struct Figures {
    made: AtomicU64,
    exported: AtomicU64,
    /// The queue had no room for them.
    dropped: AtomicU64,
    /// They could not be sent, or the collector rejected them.
    failed: AtomicU64,
}

static FIGURES: Figures = Figures {
    made: AtomicU64::new(0),
    exported: AtomicU64::new(0),
    dropped: AtomicU64::new(0),
    failed: AtomicU64::new(0),
};

fn add(count: &AtomicU64, more: usize) {
    count.fetch_add(more as u64, Ordering::Relaxed);
}

fn of(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// The number of queued spans.
pub(super) fn waiting() -> u64 {
    let Figures { made, exported, dropped, failed } = &FIGURES;
    // Read before `made`, so that the difference cannot be negative.
    let over = of(exported) + of(dropped) + of(failed);
    of(made).saturating_sub(over)
}

/// Passes spans to the thread that sends them, and limits how many are queued.
#[derive(Debug)]
pub(super) struct Entrance {
    batches: BatchSpanProcessor,
    waiting: Arc<AtomicUsize>,
    waiting_max: usize,
}

impl Entrance {
    /// A queue for this exporter.
    pub(super) fn to(collector: opentelemetry_otlp::SpanExporter) -> Self {
        let said = std::env::var("OTEL_BSP_MAX_QUEUE_SIZE").ok();
        let said = said.and_then(|said| said.trim().parse().ok()).filter(|most| *most > 0);
        let waiting_max = said.unwrap_or(WAITING_MAX);
        let waiting = Arc::<AtomicUsize>::default();
        let exit = Exit { collector, waiting: Arc::clone(&waiting) };
        // The SDK's queue has the same size as ours, so it never drops a span that is not counted.
        let config = BatchConfigBuilder::default().with_max_queue_size(waiting_max).build();
        let batches = BatchSpanProcessor::builder(exit).with_batch_config(config).build();
        Self { batches, waiting, waiting_max }
    }
}

impl SpanProcessor for Entrance {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        add(&FIGURES.made, 1);
        let one_more = |waiting: usize| (waiting < self.waiting_max).then_some(waiting + 1);
        match self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => self.batches.on_end(span),
            Err(_) => add(&FIGURES.dropped, 1),
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

/// Sends batches, and counts their spans.
#[derive(Debug)]
struct Exit {
    collector: opentelemetry_otlp::SpanExporter,
    waiting: Arc<AtomicUsize>,
}

impl SpanExporter for Exit {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let outcome = self.collector.export(batch).await;
        add(if outcome.is_ok() { &FIGURES.exported } else { &FIGURES.failed }, count);
        self.waiting.fetch_sub(count, Ordering::Relaxed);
        outcome
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

const MADE: Family<'_> = Family {
    name: "peregrine_trace_spans",
    kind: Kind::Counter,
    unit: "",
    help: "Spans that were recorded for export to a collector.",
};
const EXPORTED: Family<'_> = Family {
    name: "peregrine_trace_exported_spans",
    kind: Kind::Counter,
    unit: "",
    help: "Spans that a collector accepted.",
};
const DROPPED: Family<'_> = Family {
    name: "peregrine_trace_dropped_spans",
    kind: Kind::Counter,
    unit: "",
    help: "Spans that were lost, by reason.",
};
const WAITING: Family<'_> = Family {
    name: "peregrine_trace_waiting_spans",
    kind: Kind::Gauge,
    unit: "",
    help: "Spans that wait to be sent.",
};

/// The metric families that [`write()`] writes, in order.
#[cfg(test)]
pub(crate) const FAMILIES: &[Family<'static>] = &[MADE, EXPORTED, DROPPED, WAITING];

/// Writes the metrics.
pub(crate) fn write(page: &mut Page) {
    let waiting = waiting();
    page.family(&MADE);
    page.sample(&[], of(&FIGURES.made));
    page.family(&EXPORTED);
    page.sample(&[], of(&FIGURES.exported));
    page.family(&DROPPED);
    page.sample(&[("reason", "queue_full")], of(&FIGURES.dropped));
    page.sample(&[("reason", "send_failed")], of(&FIGURES.failed));
    page.family(&WAITING);
    page.sample(&[], waiting);
}
