//! Events that servers emit through `tracing`, for cases that check the access log.
//!
//! One subscriber, that of [`traced`], serves all cases of a process. A case finds its own events
//! by the IDs of its requests.

use super::traced;
use peregrine::middleware::access_log::ACCESS_LOG_TARGET;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata};

/// The fields of an event.
pub type Told = BTreeMap<&'static str, String>;

static TOLD: Mutex<Vec<Told>> = Mutex::new(Vec::new());

/// Installs the subscriber, once per process.
///
/// # Panics
/// If the program has another subscriber.
pub fn listen() {
    traced::listen();
}

/// Whether the subscriber passes such events to [`record`].
pub(super) fn is_wanted(metadata: &Metadata<'_>) -> bool {
    metadata.target() == ACCESS_LOG_TARGET
}

pub(super) fn record(event: &Event<'_>) {
    let mut fields = Fields(Told::new());
    event.record(&mut fields);
    fields.0.insert("level", event.metadata().level().to_string());
    TOLD.lock().unwrap_or_else(PoisonError::into_inner).push(fields.0);
}

/// Removes and returns the events of the request with this ID, in order.
pub fn take(request_id: &str) -> Vec<Told> {
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    let (of, others) = told
        .drain(..)
        .partition(|fields: &Told| fields.get("request_id").is_some_and(|id| id == request_id));
    *told = others;
    of
}

struct Fields(Told);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}
