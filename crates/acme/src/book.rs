//! The schedule: each name's certificate, and the next step. It has no clock, randomness or network
//! access.

use crate::when;
use std::time::{Duration, SystemTime};

/// All names.
#[derive(Debug, Default)]
pub(crate) struct Book {
    entries: Vec<Entry>,
    /// The authority wants no requests before this time.
    quiet_until: Option<SystemTime>,
}

/// The maximum pause of all requests. It also bounds the effect of a clock that was set back.
const QUIET_MAX: Duration = Duration::from_secs(86_400);

/// One name.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The served certificate.
    pub(crate) present: Option<Present>,
    /// When the present certificate is renewed, if no order has failed.
    renew_at: SystemTime,
    /// The window suggested by the authority.
    window: Option<(SystemTime, SystemTime)>,
    /// When to ask for the window; `None` if the authority does not support windows.
    ask_at: Option<SystemTime>,
    ask_failures: u32,
    /// The number of consecutive failed orders.
    pub(crate) failures: u32,
    pub(crate) last_error: Option<String>,
    /// The next attempt after a failure, or while another instance is ordering.
    retry_at: Option<SystemTime>,
    /// When the last certificate was issued, and the earliest time of the next regular order.
    issued_at: Option<SystemTime>,
    not_until: SystemTime,
    /// The number of consecutive certificates that were due as soon as they were issued.
    pub(crate) hasty: u32,
}

/// A served certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Present {
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
    /// The key identifier of its issuer and its serial number, which identify it for the authority.
    pub(crate) issuer: Option<Vec<u8>>,
    pub(crate) serial: Vec<u8>,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Obtain a certificate.
    Order(String),
    /// Ask the authority when to renew the certificate.
    Ask(String),
    /// Wait until then; `None` if nothing is scheduled.
    Sleep(Option<SystemTime>),
}

impl Book {
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(crate) fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    fn entry_mut(&mut self, name: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.name == name)
    }

    /// Adds a name, with the certificate that it already has.
    pub(crate) fn add(
        &mut self,
        name: &str,
        present: Option<Present>,
        now: SystemTime,
        throw: f64,
    ) {
        self.entries.push(Entry {
            name: name.to_owned(),
            present: None,
            renew_at: now,
            window: None,
            ask_at: None,
            ask_failures: 0,
            failures: 0,
            last_error: None,
            retry_at: None,
            issued_at: None,
            not_until: SystemTime::UNIX_EPOCH,
            hasty: 0,
        });
        if let Some(present) = present {
            self.has(name, present, now, throw);
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.entries.retain(|entry| entry.name != name);
    }

    /// Replaces the certificate of a name.
    pub(crate) fn has(&mut self, name: &str, present: Present, now: SystemTime, throw: f64) {
        let Some(entry) = self.entry_mut(name) else { return };
        entry.renew_at = when::at_two_thirds(present.not_before, present.not_after, throw);
        // Without an issuer, the authority cannot identify the certificate.
        entry.ask_at = present.issuer.is_some().then_some(now);
        (entry.window, entry.ask_failures) = (None, 0);
        (entry.failures, entry.last_error, entry.retry_at) = (0, None, None);
        entry.present = Some(present);
    }

    /// Records an issued certificate. If certificates are due as soon as they are issued, because
    /// the clock is wrong or the authority says so, the pauses between orders double, to avoid
    /// ordering endlessly.
    pub(crate) fn issued(
        &mut self,
        name: &str,
        present: Present,
        now: SystemTime,
        throw: f64,
        (first, max): (Duration, Duration),
    ) {
        let Some(entry) = self.entry_mut(name) else { return };
        let is_hasty = entry.issued_at.is_some_and(|at| entry.renew_at <= at + first);
        entry.hasty = if is_hasty { entry.hasty.saturating_add(1) } else { 0 };
        entry.issued_at = Some(now);
        entry.not_until = now + when::pause(entry.hasty.saturating_add(1), first, max, throw);
        self.has(name, present, now, throw);
    }

    /// Records a failed order, which is not retried before `pause` has passed.
    pub(crate) fn failed(&mut self, name: &str, error: String, now: SystemTime, pause: Duration) {
        let Some(entry) = self.entry_mut(name) else { return };
        entry.failures = entry.failures.saturating_add(1);
        entry.last_error = Some(error);
        entry.retry_at = Some(now + pause);
    }

    /// Waits for another instance that is ordering.
    pub(crate) fn wait(&mut self, name: &str, now: SystemTime, pause: Duration) {
        let Some(entry) = self.entry_mut(name) else { return };
        entry.retry_at = Some(now + pause);
    }

    /// Schedules an order now.
    pub(crate) fn hurry(&mut self, name: &str, now: SystemTime) {
        let Some(entry) = self.entry_mut(name) else { return };
        entry.retry_at = Some(now);
        // The user asked for this order explicitly.
        self.quiet_until = None;
    }

    /// The authority wants no requests before this time.
    pub(crate) fn keep_quiet(&mut self, until: SystemTime) {
        self.quiet_until = self.quiet_until.max(Some(until));
    }

    /// Records the window suggested by the authority, and when to ask again.
    pub(crate) fn told(
        &mut self,
        name: &str,
        window: (SystemTime, SystemTime),
        again: Duration,
        now: SystemTime,
        throw: f64,
    ) {
        let Some(entry) = self.entry_mut(name) else { return };
        let Some(present) = &entry.present else { return };
        // RFC 9773 §4.2: a window that ends before it begins is ignored.
        let Some(at) = when::within(window.0, window.1, throw) else {
            return self.untold(name, now, Duration::ZERO);
        };
        // The chosen time stays the same as long as the window does.
        if entry.window != Some(window) {
            entry.renew_at = at.min(when::at_last(present.not_before, present.not_after));
            entry.window = Some(window);
        }
        entry.ask_failures = 0;
        entry.ask_at = Some(now + when::ask_again(again));
    }

    /// Records that the authority did not answer; it is not asked again before `patience` has
    /// passed.
    pub(crate) fn untold(&mut self, name: &str, now: SystemTime, patience: Duration) {
        let Some(entry) = self.entry_mut(name) else { return };
        entry.ask_failures = entry.ask_failures.saturating_add(1);
        let pause = when::ask_again_after_failure(entry.ask_failures);
        entry.ask_at = Some(now + pause.max(patience));
    }

    /// Records that the authority does not support windows.
    pub(crate) fn never_told(&mut self, name: &str) {
        let Some(entry) = self.entry_mut(name) else { return };
        entry.ask_at = None;
    }

    /// The step that is due now: the order that has been due for longest, so that failing orders do
    /// not delay others, or else the first question.
    pub(crate) fn next(&self, now: SystemTime) -> Step {
        let quiet = self.quiet_until.filter(|until| *until > now && *until <= now + QUIET_MAX);
        if quiet.is_some() {
            return Step::Sleep(quiet);
        }
        let due = self.entries.iter().filter(|entry| entry.due() <= now);
        if let Some(entry) = due.min_by_key(|entry| entry.due()) {
            return Step::Order(entry.name.clone());
        }
        let asks = |entry: &&Entry| entry.asks(now).is_some_and(|at| at <= now);
        if let Some(entry) = self.entries.iter().find(asks) {
            return Step::Ask(entry.name.clone());
        }
        let dues = self.entries.iter().map(Entry::due);
        let asks = self.entries.iter().filter_map(|entry| entry.asks(now));
        Step::Sleep(dues.chain(asks).min())
    }
}

impl Entry {
    /// When a certificate is ordered.
    pub(crate) fn due(&self) -> SystemTime {
        match (&self.present, self.retry_at) {
            (_, Some(retry_at)) => retry_at,
            (None, None) => SystemTime::UNIX_EPOCH,
            (Some(_), None) => self.renew_at.max(self.not_until),
        }
    }

    /// When to ask the authority for its window.
    fn asks(&self, now: SystemTime) -> Option<SystemTime> {
        // RFC 9773 §4.3.3: no requests for certificates that have expired or are about to be
        // replaced.
        let present = self.present.as_ref()?;
        self.ask_at.filter(|_| now < present.not_after && self.retry_at.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const DAY: Duration = Duration::from_secs(86_400);

    fn day(number: u32) -> SystemTime {
        SystemTime::UNIX_EPOCH + DAY * number
    }

    fn present(from: u32, to: u32) -> Present {
        let (issuer, serial) = (Some(vec![1]), vec![2]);
        Present { not_before: day(from), not_after: day(to), issuer, serial }
    }

    fn order() -> Step {
        Step::Order("a.test".to_owned())
    }

    fn ask() -> Step {
        Step::Ask("a.test".to_owned())
    }

    fn sleep(until: SystemTime) -> Step {
        Step::Sleep(Some(until))
    }

    fn book(present: Option<Present>, now: SystemTime) -> Book {
        let mut book = Book::default();
        book.add("a.test", present, now, 0.0);
        book
    }

    #[test]
    fn a_name_without_a_certificate_is_ordered_at_once_and_one_that_has_expired_too() {
        let now = day(100);
        assert_eq!(book(None, now).next(now), order());
        assert_eq!(book(Some(present(1, 91)), now).next(now), order());
        assert_eq!(Book::default().next(now), Step::Sleep(None));
    }

    #[test]
    fn without_advice_it_is_renewed_after_two_thirds_of_its_life() {
        let mut book = book(Some(present(100, 190)), day(100));
        assert_eq!(book.next(day(100)), ask());
        book.never_told("a.test");
        assert_eq!(book.next(day(100)), sleep(day(160)));
        assert_eq!(book.next(day(160)), order());
        // A clock that jumps back has no effect; one that jumps ahead makes it due.
        assert_eq!(book.next(day(1)), sleep(day(160)));
        assert_eq!(book.next(day(5_000)), order());
    }

    #[test]
    fn advice_counts_from_when_it_is_given_and_its_choice_stays() {
        let mut book = book(Some(present(100, 190)), day(100));
        book.told("a.test", (day(170), day(172)), HOUR, day(100), 0.5);
        assert_eq!(book.next(day(100)), sleep(day(100) + HOUR));
        assert_eq!(book.next(day(100) + HOUR), ask());
        // With the same window and another random number, nothing changes.
        book.told("a.test", (day(170), day(172)), HOUR * 24 * 80, day(101), 0.9);
        assert_eq!(book.entry("a.test").expect("the name exists").due(), day(171));
        assert_eq!(book.next(day(102)), ask(), "the maximum interval is a day");
        // A new window in the past: replace the certificate now.
        book.told("a.test", (day(90), day(91)), HOUR, day(102), 0.5);
        assert_eq!(book.next(day(102)), order());
        // A window that comes too late must not let it expire.
        book.told("a.test", (day(200), day(201)), HOUR, day(103), 0.5);
        let due = book.entry("a.test").expect("the name exists").due();
        assert!(due < day(190) && due > day(185));
    }

    #[test]
    fn a_window_that_is_none_changes_nothing_but_when_it_is_asked_again() {
        let mut book = book(Some(present(100, 190)), day(100));
        for (number, hours) in [1, 2, 4, 8, 16, 24, 24].into_iter().enumerate() {
            if number % 2 == 0 {
                book.untold("a.test", day(100), HOUR / 2);
            } else {
                book.told("a.test", (day(150), day(150)), HOUR, day(100), 0.5);
            }
            assert_eq!(book.next(day(100)), sleep(day(100) + HOUR * hours));
        }
        assert_eq!(book.entry("a.test").expect("the name exists").due(), day(160));
    }

    #[test]
    fn nobody_is_asked_about_what_has_expired_or_cannot_be_named() {
        let mut expired = book(Some(present(100, 190)), day(191));
        expired.failed("a.test", "no".to_owned(), day(191), DAY);
        assert_eq!(expired.next(day(191)), sleep(day(192)));
        let nameless = Present { issuer: None, ..present(100, 190) };
        assert_eq!(book(Some(nameless), day(100)).next(day(100)), sleep(day(160)));
    }

    #[test]
    fn a_failure_waits_and_holds_up_no_other_name() {
        let now = day(100);
        let mut book = book(None, now);
        book.add("b.test", None, now, 0.0);
        book.failed("a.test", "no".to_owned(), now, HOUR);
        assert_eq!(book.next(now), Step::Order("b.test".to_owned()));
        book.has("b.test", present(100, 190), now, 0.0);
        book.never_told("b.test");
        assert_eq!(book.next(now), sleep(now + HOUR));
        assert_eq!(book.next(now + HOUR), order());
        let failed = book.entry("a.test").expect("the name exists");
        assert_eq!((failed.failures, failed.last_error.as_deref()), (1, Some("no")));
        book.has("a.test", present(100, 190), now, 0.0);
        let done = book.entry("a.test").expect("the name exists");
        assert_eq!((done.failures, done.last_error.as_deref(), done.due()), (0, None, day(160)));
    }

    #[test]
    fn who_has_waited_for_longest_comes_first() {
        let now = day(100);
        let mut book = book(None, now);
        book.add("b.test", Some(present(1, 91)), now, 0.0);
        book.failed("a.test", "no".to_owned(), now, HOUR);
        assert_eq!(book.next(now + HOUR * 2), Step::Order("b.test".to_owned()));
    }

    #[test]
    fn certificates_that_are_due_at_once_are_ordered_less_and_less_often() {
        let (mut book, pauses) = (book(None, day(100)), (HOUR, HOUR * 4));
        for hours in [1, 2, 4, 4] {
            // By this clock, it has expired.
            book.issued("a.test", present(1, 2), day(100), 1.0, pauses);
            assert_eq!(book.next(day(100)), sleep(day(100) + HOUR * hours));
            assert_eq!(book.next(day(100) + HOUR * hours), order());
        }
        // An explicit request does not wait.
        book.hurry("a.test", day(100));
        assert_eq!(book.next(day(100)), order());
        // A certificate with a normal lifetime ends the delays.
        book.issued("a.test", present(100, 190), day(100), 0.0, pauses);
        book.never_told("a.test");
        assert_eq!(book.next(day(100)), sleep(day(160)));
        book.issued("a.test", present(160, 161), day(160), 1.0, pauses);
        assert_eq!(book.entry("a.test").expect("the name exists").hasty, 0);
    }

    #[test]
    fn an_authority_that_wants_quiet_is_asked_nothing_but_what_somebody_asks_for() {
        let now = day(100);
        let mut book = book(None, now);
        book.add("b.test", Some(present(100, 190)), now, 0.0);
        book.keep_quiet(now + HOUR * 2);
        book.keep_quiet(now + HOUR);
        assert_eq!(book.next(now), sleep(now + HOUR * 2));
        assert_eq!(book.next(now + HOUR * 2), order());
        // With a clock that was set back, the pause would be too long.
        assert_eq!(book.next(day(1)), order());
        assert_eq!(book.next(now), sleep(now + HOUR * 2));
        book.hurry("b.test", now);
        assert_eq!(book.next(now), order());
        // A single question may have to wait too.
        book.has("a.test", present(100, 190), now, 0.0);
        book.has("b.test", present(100, 190), now, 0.0);
        book.never_told("b.test");
        book.untold("a.test", now, HOUR * 20);
        assert_eq!(book.next(now), sleep(now + HOUR * 20));
    }

    #[test]
    fn who_waits_for_another_instance_has_not_failed() {
        let mut book = book(None, day(1));
        book.wait("a.test", day(1), HOUR);
        assert_eq!(book.next(day(1)), sleep(day(1) + HOUR));
        book.hurry("a.test", day(1));
        assert_eq!(book.next(day(1)), order());
        assert_eq!(book.entry("a.test").expect("the name exists").failures, 0);
        book.remove("a.test");
        assert_eq!(book.next(day(1)), Step::Sleep(None));
    }
}
