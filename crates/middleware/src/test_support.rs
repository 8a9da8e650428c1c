//! Captures `tracing` events in tests.

use std::cell::RefCell;
use std::fmt;
use std::sync::Once;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// An event, with its fields as text.
#[derive(Clone, Debug)]
pub(crate) struct CapturedEvent {
    pub(crate) level: Level,
    pub(crate) target: &'static str,
    fields: Vec<(&'static str, String)>,
}

impl CapturedEvent {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value.as_str())
    }
}

impl Visit for CapturedEvent {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields.push((field.name(), format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.push((field.name(), value.to_owned()));
    }
}

thread_local! {
    static EVENTS: RefCell<Option<Vec<CapturedEvent>>> = const { RefCell::new(None) };
}

/// Calls `run` and returns the events that it causes on this thread.
///
/// One subscriber serves all tests: short-lived ones would race with tracing's interest cache when
/// other tests reach the same event at the same time.
pub(crate) fn events_of(run: impl FnOnce()) -> Vec<CapturedEvent> {
    static SUBSCRIBER: Once = Once::new();
    SUBSCRIBER.call_once(|| {
        tracing::subscriber::set_global_default(CapturingSubscriber)
            .expect("no test sets another one");
    });
    EVENTS.set(Some(Vec::new()));
    run();
    EVENTS.take().expect("it was set above")
}

struct CapturingSubscriber;

impl Subscriber for CapturingSubscriber {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut captured = CapturedEvent {
            level: *metadata.level(),
            target: metadata.target(),
            fields: Vec::new(),
        };
        event.record(&mut captured);
        EVENTS.with_borrow_mut(|events| {
            if let Some(events) = events {
                events.push(captured);
            }
        });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
