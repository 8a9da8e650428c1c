//! Events that servers emit through `tracing`, for cases that check the access log.
//!
//! One subscriber serves all cases of a process and records only the access log. A case finds its
//! own events by the IDs of its requests.

use peregrine::middleware::access_log::ACCESS_LOG_TARGET;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, Once, PoisonError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The fields of an event.
pub type EventFields = BTreeMap<&'static str, String>;

static EVENTS: Mutex<Vec<EventFields>> = Mutex::new(Vec::new());

/// Installs the subscriber, once per process.
///
/// # Panics
/// If the program has another subscriber.
pub fn listen() {
    static LISTENER: Once = Once::new();
    LISTENER.call_once(|| {
        tracing::subscriber::set_global_default(Listener).expect("no other test sets a subscriber");
    });
}

/// Removes and returns the events of the request with this ID, in order.
pub fn take(request_id: &str) -> Vec<EventFields> {
    let mut events = EVENTS.lock().unwrap_or_else(PoisonError::into_inner);
    let (matching, others) = events.drain(..).partition(|fields: &EventFields| {
        fields.get("request_id").is_some_and(|id| id == request_id)
    });
    *events = others;
    matching
}

struct Fields(EventFields);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == ACCESS_LOG_TARGET
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(EventFields::new());
        event.record(&mut fields);
        fields.0.insert("level", event.metadata().level().to_string());
        EVENTS.lock().unwrap_or_else(PoisonError::into_inner).push(fields.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
