//! Measures one request, from its head to the end of its response.

use super::access_log::{Logger, Told};
use super::metrics::{Counts, Fault, Key};
use super::trace::Tracing;
use http::StatusCode;
use peregrine_proto::{Method, Version};
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::head::Head;
use peregrine_web::trace::Place;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How much of the first line of an invalid request is kept for the access log.
const REFUSED_BYTES_MAX: usize = 1024;
/// The buffer of requests that ended in a turn keeps room for this many.
const ENDED_KEPT: usize = 1024;

/// What a worker needs to measure its requests: counters, clock, access log and traces.
pub(crate) struct Meters {
    counts: Arc<Counts>,
    clock: Box<dyn Fn() -> Duration>,
    log: Option<Logger>,
    tracing: Option<Tracing>,
    /// Whether [`Meters::end_turn`] is called at the end of each turn.
    has_turns: Cell<bool>,
    /// Requests that ended in this turn. They are counted at the end of the turn, so that the clock
    /// is read once for all of them.
    ended: RefCell<Vec<Measures>>,
}

/// Identical requests that ended one after the other. Their end time is not known yet.
struct Measures {
    of_each: Measure,
    count: u64,
}

/// One request that ended. Its end time is not known yet.
#[derive(PartialEq)]
struct Measure {
    key: Key,
    began: Duration,
    received: u64,
    sent: u64,
}

/// The measurements of a request in progress. The request is counted once: at the end of its
/// response, or when it ends without a response.
#[derive(Default)]
pub(crate) struct Tally {
    /// `None` if no request is in progress, or requests are not measured.
    meters: Option<Rc<Meters>>,
    began: Duration,
    key: Key,
    told: Told,
}

impl Meters {
    /// `clock` reads the driver's clock without caching.
    pub(crate) fn new(
        counts: &Arc<Counts>,
        clock: impl Fn() -> Duration + 'static,
        log: Option<Logger>,
        tracing: Option<Tracing>,
    ) -> Rc<Self> {
        Rc::new(Self {
            counts: Arc::clone(counts),
            clock: Box::new(clock),
            log,
            tracing,
            has_turns: Cell::new(false),
            ended: RefCell::default(),
        })
    }

    /// Announces that [`end_turn`](Self::end_turn) will be called at the end of each turn.
    pub(crate) fn expect_turns(&self) {
        self.has_turns.set(true);
    }

    /// Counts the requests that ended in this turn. `now` is the end of the turn, when their
    /// responses are sent.
    pub(crate) fn end_turn(&self, now: Duration) {
        let mut ended = self.ended.borrow_mut();
        if ended.is_empty() {
            return;
        }
        for Measures { of_each, count } in ended.drain(..) {
            self.measure(&of_each, count, now.saturating_sub(of_each.began));
        }
        ended.shrink_to(ENDED_KEPT);
    }

    fn count(&self, tally: &Tally) {
        let Tally { began, key, told, .. } = tally;
        let (began, received, sent) = (*began, told.received, told.sent);
        self.counts.active[usize::from(key.is_secure)][key.method as usize].add(-1);
        let measure = Measure { key: *key, began, received, sent };
        if self.has_turns.get() && self.log.is_none() {
            let mut ended = self.ended.borrow_mut();
            // A busy worker answers many identical requests per turn, and all of them count from
            // the beginning of the turn.
            match ended.last_mut().filter(|last| last.of_each == measure) {
                Some(last) => last.count += 1,
                None => ended.push(Measures { of_each: measure, count: 1 }),
            }
            return;
        }
        let took = (self.clock)().saturating_sub(began);
        if let Some(log) = &self.log {
            log.write(key, told, took);
        }
        self.measure(&measure, 1, took);
    }

    fn measure(&self, measure: &Measure, count: u64, took: Duration) {
        let Some(measured) = self.counts.measured.get() else { return };
        // Avoids the 128-bit multiplication of `as_nanos`. A `u64` holds 584 years.
        let took = took.as_secs().saturating_mul(1_000_000_000) + u64::from(took.subsec_nanos());
        let key = &measure.key;
        let durations = measured.durations.entry(key.pack());
        durations.note_times(count, took, &super::metrics::DURATION_BOUNDS);
        let sizes = measured.sizes.entry(key.pack_route());
        sizes.received.note_times(count, measure.received, &crate::observe::metrics::SIZE_BOUNDS);
        sizes.sent.note_times(count, measure.sent, &crate::observe::metrics::SIZE_BOUNDS);
    }
}

impl Drop for Meters {
    fn drop(&mut self) {
        let now = (self.clock)();
        self.end_turn(now);
    }
}

impl Tally {
    /// Begins to measure a request. `head` is `None` if it was invalid. `now` may return the time
    /// when the worker's turn began, because the request has waited since then.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        meters: Option<&Rc<Meters>>,
        head: Option<&Head>,
        (version, connection): (Version, &Rc<ConnectionInfo>),
        now: impl FnOnce() -> Duration,
    ) {
        let Some(meters) = meters else { return };
        self.end();
        let is_secure = connection.tls.is_some();
        let method = head.map_or(Method::Extension, |head| head.index().method);
        meters.counts.active[usize::from(is_secure)][method as usize].add(1);
        // `told` is updated in place. The end of the previous request dropped the facts about that
        // request.
        self.key = Key { method, version, is_secure, ..Key::default() };
        (self.told.received, self.told.sent) = (0, 0);
        if meters.log.is_some() {
            self.told.connection = Some(Rc::clone(connection));
        }
        self.began = now();
        self.meters = Some(Rc::clone(meters));
    }

    /// Keeps the request's head for the access log, if there is an access log. The head must not
    /// change afterwards.
    #[inline]
    pub(crate) fn keep(&mut self, head: &Head) {
        if self.is_logged() {
            self.told.head = Some(head.share());
        }
    }

    /// Keeps the first line of an invalid request for the access log.
    #[cold]
    pub(crate) fn keep_refused(&mut self, bytes: &[u8]) {
        if self.is_logged() {
            let most = &bytes[..bytes.len().min(REFUSED_BYTES_MAX)];
            let line = most.split(|byte| matches!(byte, b'\r' | b'\n')).next();
            self.told.refused = line.unwrap_or_default().to_vec();
        }
    }

    fn is_logged(&self) -> bool {
        self.meters.as_ref().is_some_and(|meters| meters.log.is_some())
    }

    /// The traces of the worker, if they are enabled.
    #[inline]
    pub(crate) fn tracing(&self) -> Option<&Tracing> {
        self.meters.as_ref()?.tracing.as_ref()
    }

    /// Keeps the request's span context for the access log.
    pub(crate) fn trace(&mut self, place: &Place) {
        if self.is_logged() {
            self.told.trace = Some(place.clone());
        }
    }

    /// The attributes of the request, and the bytes of content received and written.
    pub(crate) fn known(&self) -> (&Key, u64, u64) {
        (&self.key, self.told.received, self.told.sent)
    }

    /// Returns whether a request is being measured.
    pub(crate) fn is_begun(&self) -> bool {
        self.meters.is_some()
    }

    /// Records the route of the request.
    #[inline]
    pub(crate) fn route(&mut self, route: Option<u32>) {
        self.key.route = route;
    }

    /// Records the status of the response.
    #[inline]
    pub(crate) fn answer(&mut self, status: StatusCode) {
        self.key.status = status.as_u16();
    }

    /// Records a fault that the status does not show.
    pub(crate) fn fail(&mut self, fault: Fault) {
        self.key.fault = fault;
    }

    /// Counts received content of the request.
    #[inline]
    pub(crate) fn receive(&mut self, bytes: usize) {
        self.told.received += bytes as u64;
    }

    /// Counts written content of the response.
    #[inline]
    pub(crate) fn send(&mut self, bytes: usize) {
        self.told.sent += bytes as u64;
    }

    /// Counts the request, because its response is complete.
    #[inline]
    pub(crate) fn finish(&mut self) {
        if let Some(meters) = self.meters.take() {
            meters.count(self);
            // Drop everything that belongs to the request: `begin` relies on that.
            if meters.log.is_some() {
                self.told = Told::default();
            }
        }
    }

    /// Counts the request, if its response did not do so already.
    #[inline]
    pub(crate) fn end(&mut self) {
        if self.meters.is_some() {
            self.break_off();
            self.finish();
        }
    }

    /// Records that the request ends before its response is complete.
    #[cold]
    pub(crate) fn break_off(&mut self) {
        if self.key.fault == Fault::None {
            let has_begun = self.key.status != 0;
            self.key.fault = if has_begun { Fault::Aborted } else { Fault::Cancelled };
        }
    }
}

impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tally").field("key", &self.key).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_metrics::Buckets;
    use peregrine_web::App;

    struct Bench {
        counts: Arc<Counts>,
        meters: Rc<Meters>,
        now: Rc<Cell<u64>>,
    }

    fn bench() -> Bench {
        let (counts, now) = (Arc::new(Counts::measuring()), Rc::new(Cell::new(0)));
        counts.prepare(&App::new().get("/a", || "a").build().unwrap());
        let clock = Rc::clone(&now);
        let clock = move || Duration::from_millis(clock.get());
        let meters = Meters::new(&counts, clock, None, None);
        Bench { counts, meters, now }
    }

    impl Bench {
        fn begin(&self) -> Tally {
            let mut tally = Tally::default();
            let connection = Rc::default();
            let facts = (Version::Http11, &connection);
            tally.begin(Some(&self.meters), None, facts, || Duration::from_millis(self.now.get()));
            tally
        }

        fn counted(&self) -> Vec<(Key, u64)> {
            let measured = self.counts.measured.get().unwrap();
            let read = |(key, histogram): (u64, &peregrine_metrics::Histogram<14>)| {
                let mut buckets = Buckets::default();
                histogram.read(&mut buckets);
                (Key::unpack(key), buckets.count())
            };
            let mut all: Vec<_> = measured.durations.entries().map(read).collect();
            all.sort_by_key(|(key, _)| key.pack());
            all
        }

        fn active(&self) -> i64 {
            self.counts.active.iter().flatten().map(peregrine_metrics::Level::get).sum()
        }
    }

    #[test]
    fn a_request_is_counted_once_however_often_it_ends() {
        let bench = bench();
        let mut tally = bench.begin();
        assert_eq!(bench.active(), 1);
        tally.answer(StatusCode::OK);
        tally.finish();
        tally.end();
        tally.finish();
        assert_eq!(bench.active(), 0);
        let key = Key {
            method: Method::Extension,
            version: Version::Http11,
            status: 200,
            ..Key::default()
        };
        assert_eq!(bench.counted(), [(key, 1)]);
    }

    #[test]
    fn what_ends_in_a_turn_is_counted_at_its_end() {
        let bench = bench();
        bench.meters.expect_turns();
        let end = |status| {
            let mut tally = bench.begin();
            tally.answer(status);
            tally.finish();
        };
        let count = || bench.counted().iter().map(|(_, count)| count).sum::<u64>();
        (0..3).for_each(|_| end(StatusCode::OK));
        assert_eq!((count(), bench.active()), (0, 0));
        bench.meters.end_turn(Duration::from_millis(30));
        assert_eq!(count(), 3);
        let mut took = Buckets::default();
        let measured = bench.counts.measured.get().unwrap();
        measured.durations.entries().for_each(|(_, histogram)| histogram.read(&mut took));
        assert_eq!(took.sum, 90_000_000);
        // Identical requests are combined. Different ones stay separate.
        for status in [200, 200, 404, 200] {
            end(StatusCode::from_u16(status).unwrap());
        }
        assert_eq!(bench.meters.ended.borrow().len(), 3);
        bench.meters.end_turn(Duration::from_millis(30));
        let counts: Vec<_> =
            bench.counted().iter().map(|(key, count)| (key.status, *count)).collect();
        assert_eq!(counts, [(200, 6), (404, 1)]);
        // Requests that end after the last turn are counted as well.
        end(StatusCode::NOT_FOUND);
        let Bench { counts, meters, .. } = bench;
        drop(meters);
        assert_eq!(counts.measured.get().unwrap().durations.entries().count(), 2);
    }

    #[test]
    fn what_breaks_off_says_how_far_it_was() {
        let bench = bench();
        bench.begin().end();
        let mut begun = bench.begin();
        begun.answer(StatusCode::OK);
        begun.end();
        let faults: Vec<_> =
            bench.counted().iter().map(|(key, _)| (key.status, key.fault)).collect();
        assert_eq!(faults, [(0, Fault::Cancelled), (200, Fault::Aborted)]);
    }

    #[test]
    fn a_request_that_nobody_measures_leaves_nothing() {
        let mut tally = Tally::default();
        let facts = (Version::Http11, &Rc::default());
        tally.begin(None, None, facts, || unreachable!("no clock is read"));
        tally.receive(1);
        tally.finish();
        tally.end();
        assert!(tally.meters.is_none());
    }

    #[test]
    fn times_and_sizes_are_those_of_the_request() {
        let bench = bench();
        let mut tally = bench.begin();
        tally.receive(3);
        tally.send(5000);
        bench.now.set(30);
        tally.answer(StatusCode::OK);
        tally.finish();
        let measured = bench.counts.measured.get().unwrap();
        let (mut took, mut received, mut sent) = <(Buckets, Buckets, Buckets)>::default();
        measured.durations.entries().for_each(|(_, histogram)| histogram.read(&mut took));
        for (_, sizes) in measured.sizes.entries() {
            sizes.received.read(&mut received);
            sizes.sent.read(&mut sent);
        }
        assert_eq!((took.sum, received.sum, sent.sum), (30_000_000, 3, 5000));
        assert_eq!((took.counts[3], received.counts[1], sent.counts[3]), (1, 1, 1));
    }
}
