//! The schedule: each name's certificate, and the next step. It has no clock, randomness or network
//! access.

use crate::timing;
use std::time::{Duration, SystemTime};

/// All names.
#[derive(Debug, Default)]
pub(crate) struct RenewalSchedule {
    entries: Vec<ScheduledDomain>,
    /// The authority wants no requests before this time.
    backoff_until: Option<SystemTime>,
}

/// The maximum pause of all requests. It also bounds the effect of a clock that was set back.
const BACKOFF_MAX: Duration = Duration::from_secs(86_400);

/// One name.
#[derive(Debug)]
pub(crate) struct ScheduledDomain {
    pub(crate) domain: String,
    /// The served certificate.
    pub(crate) current: Option<CurrentCertificate>,
    /// When the present certificate is renewed, if no order has failed.
    renew_at: SystemTime,
    /// The window suggested by the authority.
    ari_window: Option<(SystemTime, SystemTime)>,
    /// When to ask for the window; `None` if the authority does not support windows.
    ari_check_at: Option<SystemTime>,
    ari_failures: u32,
    /// The number of consecutive failed orders.
    pub(crate) failures: u32,
    pub(crate) last_error: Option<String>,
    /// The next attempt after a failure, or while another instance is ordering.
    retry_at: Option<SystemTime>,
    /// When the last certificate was issued, and the earliest time of the next regular order.
    issued_at: Option<SystemTime>,
    earliest_order_at: SystemTime,
    /// The number of consecutive certificates that were due as soon as they were issued.
    pub(crate) premature_renewals: u32,
}

/// A served certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CurrentCertificate {
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
    /// The key identifier of its issuer and its serial number, which identify it for the authority.
    pub(crate) issuer: Option<Vec<u8>>,
    pub(crate) serial: Vec<u8>,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RenewalAction {
    /// Obtain a certificate.
    Order(String),
    /// Ask the authority when to renew the certificate.
    FetchRenewalInfo(String),
    /// Wait until then; `None` if nothing is scheduled.
    Sleep(Option<SystemTime>),
}

impl RenewalSchedule {
    pub(crate) fn entries(&self) -> &[ScheduledDomain] {
        &self.entries
    }

    pub(crate) fn entry(&self, name: &str) -> Option<&ScheduledDomain> {
        self.entries.iter().find(|entry| entry.domain == name)
    }

    fn entry_mut(&mut self, name: &str) -> Option<&mut ScheduledDomain> {
        self.entries.iter_mut().find(|entry| entry.domain == name)
    }

    /// Adds a name, with the certificate that it already has.
    pub(crate) fn add(
        &mut self,
        name: &str,
        present: Option<CurrentCertificate>,
        now: SystemTime,
        throw: f64,
    ) {
        self.entries.push(ScheduledDomain {
            domain: name.to_owned(),
            current: None,
            renew_at: now,
            ari_window: None,
            ari_check_at: None,
            ari_failures: 0,
            failures: 0,
            last_error: None,
            retry_at: None,
            issued_at: None,
            earliest_order_at: SystemTime::UNIX_EPOCH,
            premature_renewals: 0,
        });
        if let Some(present) = present {
            self.set_current(name, present, now, throw);
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.entries.retain(|entry| entry.domain != name);
    }

    /// Replaces the certificate of a name.
    pub(crate) fn set_current(
        &mut self,
        name: &str,
        present: CurrentCertificate,
        now: SystemTime,
        throw: f64,
    ) {
        let Some(entry) = self.entry_mut(name) else { return };
        entry.renew_at = timing::default_renewal_time(present.not_before, present.not_after, throw);
        // Without an issuer, the authority cannot identify the certificate.
        entry.ari_check_at = present.issuer.is_some().then_some(now);
        (entry.ari_window, entry.ari_failures) = (None, 0);
        (entry.failures, entry.last_error, entry.retry_at) = (0, None, None);
        entry.current = Some(present);
    }

    /// Records an issued certificate. If certificates are due as soon as they are issued, because
    /// the clock is wrong or the authority says so, the pauses between orders double, to avoid
    /// ordering endlessly.
    pub(crate) fn on_issued(
        &mut self,
        name: &str,
        present: CurrentCertificate,
        now: SystemTime,
        throw: f64,
        (first, max): (Duration, Duration),
    ) {
        let Some(entry) = self.entry_mut(name) else { return };
        let is_hasty = entry.issued_at.is_some_and(|at| entry.renew_at <= at + first);
        entry.premature_renewals =
            if is_hasty { entry.premature_renewals.saturating_add(1) } else { 0 };
        entry.issued_at = Some(now);
        entry.earliest_order_at =
            now + timing::backoff(entry.premature_renewals.saturating_add(1), first, max, throw);
        self.set_current(name, present, now, throw);
    }

    /// Records a failed order, which is not retried before `pause` has passed.
    pub(crate) fn on_failed(
        &mut self,
        name: &str,
        error: String,
        now: SystemTime,
        pause: Duration,
    ) {
        let Some(entry) = self.entry_mut(name) else { return };
        entry.failures = entry.failures.saturating_add(1);
        entry.last_error = Some(error);
        entry.retry_at = Some(now + pause);
    }

    /// Waits for another instance that is ordering.
    pub(crate) fn defer(&mut self, name: &str, now: SystemTime, pause: Duration) {
        let Some(entry) = self.entry_mut(name) else { return };
        entry.retry_at = Some(now + pause);
    }

    /// Schedules an order now.
    pub(crate) fn order_now(&mut self, name: &str, now: SystemTime) {
        let Some(entry) = self.entry_mut(name) else { return };
        entry.retry_at = Some(now);
        // The user asked for this order explicitly.
        self.backoff_until = None;
    }

    /// The authority wants no requests before this time.
    pub(crate) fn back_off(&mut self, until: SystemTime) {
        self.backoff_until = self.backoff_until.max(Some(until));
    }

    /// Records the window suggested by the authority, and when to ask again.
    pub(crate) fn set_ari_window(
        &mut self,
        name: &str,
        window: (SystemTime, SystemTime),
        again: Duration,
        now: SystemTime,
        throw: f64,
    ) {
        let Some(entry) = self.entry_mut(name) else { return };
        let Some(present) = &entry.current else { return };
        // RFC 9773 §4.2: a window that ends before it begins is ignored.
        let Some(at) = timing::pick_in_window(window.0, window.1, throw) else {
            return self.ari_failed(name, now, Duration::ZERO);
        };
        // The chosen time stays the same as long as the window does.
        if entry.ari_window != Some(window) {
            entry.renew_at =
                at.min(timing::latest_renewal_time(present.not_before, present.not_after));
            entry.ari_window = Some(window);
        }
        entry.ari_failures = 0;
        entry.ari_check_at = Some(now + timing::ari_interval(again));
    }

    /// Records that the authority did not answer; it is not asked again before `patience` has
    /// passed.
    pub(crate) fn ari_failed(&mut self, name: &str, now: SystemTime, patience: Duration) {
        let Some(entry) = self.entry_mut(name) else { return };
        entry.ari_failures = entry.ari_failures.saturating_add(1);
        let pause = timing::ari_backoff(entry.ari_failures);
        entry.ari_check_at = Some(now + pause.max(patience));
    }

    /// Records that the authority does not support windows.
    pub(crate) fn ari_unsupported(&mut self, name: &str) {
        let Some(entry) = self.entry_mut(name) else { return };
        entry.ari_check_at = None;
    }

    /// The step that is due now: the order that has been due for longest, so that failing orders do
    /// not delay others, or else the first question.
    pub(crate) fn next_action(&self, now: SystemTime) -> RenewalAction {
        let quiet = self.backoff_until.filter(|until| *until > now && *until <= now + BACKOFF_MAX);
        if quiet.is_some() {
            return RenewalAction::Sleep(quiet);
        }
        let due = self.entries.iter().filter(|entry| entry.due_at() <= now);
        if let Some(entry) = due.min_by_key(|entry| entry.due_at()) {
            return RenewalAction::Order(entry.domain.clone());
        }
        let asks = |entry: &&ScheduledDomain| entry.ari_due_at(now).is_some_and(|at| at <= now);
        if let Some(entry) = self.entries.iter().find(asks) {
            return RenewalAction::FetchRenewalInfo(entry.domain.clone());
        }
        let dues = self.entries.iter().map(ScheduledDomain::due_at);
        let asks = self.entries.iter().filter_map(|entry| entry.ari_due_at(now));
        RenewalAction::Sleep(dues.chain(asks).min())
    }
}

impl ScheduledDomain {
    /// When a certificate is ordered.
    pub(crate) fn due_at(&self) -> SystemTime {
        match (&self.current, self.retry_at) {
            (_, Some(retry_at)) => retry_at,
            (None, None) => SystemTime::UNIX_EPOCH,
            (Some(_), None) => self.renew_at.max(self.earliest_order_at),
        }
    }

    /// When to ask the authority for its window.
    fn ari_due_at(&self, now: SystemTime) -> Option<SystemTime> {
        // RFC 9773 §4.3.3: no requests for certificates that have expired or are about to be
        // replaced.
        let present = self.current.as_ref()?;
        self.ari_check_at.filter(|_| now < present.not_after && self.retry_at.is_none())
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

    fn present(from: u32, to: u32) -> CurrentCertificate {
        let (issuer, serial) = (Some(vec![1]), vec![2]);
        CurrentCertificate { not_before: day(from), not_after: day(to), issuer, serial }
    }

    fn order() -> RenewalAction {
        RenewalAction::Order("a.test".to_owned())
    }

    fn ask() -> RenewalAction {
        RenewalAction::FetchRenewalInfo("a.test".to_owned())
    }

    fn sleep(until: SystemTime) -> RenewalAction {
        RenewalAction::Sleep(Some(until))
    }

    fn book(present: Option<CurrentCertificate>, now: SystemTime) -> RenewalSchedule {
        let mut book = RenewalSchedule::default();
        book.add("a.test", present, now, 0.0);
        book
    }

    #[test]
    fn a_name_without_a_certificate_is_ordered_at_once_and_one_that_has_expired_too() {
        let now = day(100);
        assert_eq!(book(None, now).next_action(now), order());
        assert_eq!(book(Some(present(1, 91)), now).next_action(now), order());
        assert_eq!(RenewalSchedule::default().next_action(now), RenewalAction::Sleep(None));
    }

    #[test]
    fn without_advice_it_is_renewed_after_two_thirds_of_its_life() {
        let mut book = book(Some(present(100, 190)), day(100));
        assert_eq!(book.next_action(day(100)), ask());
        book.ari_unsupported("a.test");
        assert_eq!(book.next_action(day(100)), sleep(day(160)));
        assert_eq!(book.next_action(day(160)), order());
        // A clock that jumps back has no effect; one that jumps ahead makes it due.
        assert_eq!(book.next_action(day(1)), sleep(day(160)));
        assert_eq!(book.next_action(day(5_000)), order());
    }

    #[test]
    fn advice_counts_from_when_it_is_given_and_its_choice_stays() {
        let mut book = book(Some(present(100, 190)), day(100));
        book.set_ari_window("a.test", (day(170), day(172)), HOUR, day(100), 0.5);
        assert_eq!(book.next_action(day(100)), sleep(day(100) + HOUR));
        assert_eq!(book.next_action(day(100) + HOUR), ask());
        // With the same window and another random number, nothing changes.
        book.set_ari_window("a.test", (day(170), day(172)), HOUR * 24 * 80, day(101), 0.9);
        assert_eq!(book.entry("a.test").expect("the name exists").due_at(), day(171));
        assert_eq!(book.next_action(day(102)), ask(), "the maximum interval is a day");
        // A new window in the past: replace the certificate now.
        book.set_ari_window("a.test", (day(90), day(91)), HOUR, day(102), 0.5);
        assert_eq!(book.next_action(day(102)), order());
        // A window that comes too late must not let it expire.
        book.set_ari_window("a.test", (day(200), day(201)), HOUR, day(103), 0.5);
        let due = book.entry("a.test").expect("the name exists").due_at();
        assert!(due < day(190) && due > day(185));
    }

    #[test]
    fn a_window_that_is_none_changes_nothing_but_when_it_is_asked_again() {
        let mut book = book(Some(present(100, 190)), day(100));
        for (number, hours) in [1, 2, 4, 8, 16, 24, 24].into_iter().enumerate() {
            if number % 2 == 0 {
                book.ari_failed("a.test", day(100), HOUR / 2);
            } else {
                book.set_ari_window("a.test", (day(150), day(150)), HOUR, day(100), 0.5);
            }
            assert_eq!(book.next_action(day(100)), sleep(day(100) + HOUR * hours));
        }
        assert_eq!(book.entry("a.test").expect("the name exists").due_at(), day(160));
    }

    #[test]
    fn nobody_is_asked_about_what_has_expired_or_cannot_be_named() {
        let mut expired = book(Some(present(100, 190)), day(191));
        expired.on_failed("a.test", "no".to_owned(), day(191), DAY);
        assert_eq!(expired.next_action(day(191)), sleep(day(192)));
        let nameless = CurrentCertificate { issuer: None, ..present(100, 190) };
        assert_eq!(book(Some(nameless), day(100)).next_action(day(100)), sleep(day(160)));
    }

    #[test]
    fn a_failure_waits_and_holds_up_no_other_name() {
        let now = day(100);
        let mut book = book(None, now);
        book.add("b.test", None, now, 0.0);
        book.on_failed("a.test", "no".to_owned(), now, HOUR);
        assert_eq!(book.next_action(now), RenewalAction::Order("b.test".to_owned()));
        book.set_current("b.test", present(100, 190), now, 0.0);
        book.ari_unsupported("b.test");
        assert_eq!(book.next_action(now), sleep(now + HOUR));
        assert_eq!(book.next_action(now + HOUR), order());
        let failed = book.entry("a.test").expect("the name exists");
        assert_eq!((failed.failures, failed.last_error.as_deref()), (1, Some("no")));
        book.set_current("a.test", present(100, 190), now, 0.0);
        let done = book.entry("a.test").expect("the name exists");
        assert_eq!((done.failures, done.last_error.as_deref(), done.due_at()), (0, None, day(160)));
    }

    #[test]
    fn who_has_waited_for_longest_comes_first() {
        let now = day(100);
        let mut book = book(None, now);
        book.add("b.test", Some(present(1, 91)), now, 0.0);
        book.on_failed("a.test", "no".to_owned(), now, HOUR);
        assert_eq!(book.next_action(now + HOUR * 2), RenewalAction::Order("b.test".to_owned()));
    }

    #[test]
    fn certificates_that_are_due_at_once_are_ordered_less_and_less_often() {
        let (mut book, pauses) = (book(None, day(100)), (HOUR, HOUR * 4));
        for hours in [1, 2, 4, 4] {
            // By this clock, it has expired.
            book.on_issued("a.test", present(1, 2), day(100), 1.0, pauses);
            assert_eq!(book.next_action(day(100)), sleep(day(100) + HOUR * hours));
            assert_eq!(book.next_action(day(100) + HOUR * hours), order());
        }
        // An explicit request does not wait.
        book.order_now("a.test", day(100));
        assert_eq!(book.next_action(day(100)), order());
        // A certificate with a normal lifetime ends the delays.
        book.on_issued("a.test", present(100, 190), day(100), 0.0, pauses);
        book.ari_unsupported("a.test");
        assert_eq!(book.next_action(day(100)), sleep(day(160)));
        book.on_issued("a.test", present(160, 161), day(160), 1.0, pauses);
        assert_eq!(book.entry("a.test").expect("the name exists").premature_renewals, 0);
    }

    #[test]
    fn an_authority_that_wants_quiet_is_asked_nothing_but_what_somebody_asks_for() {
        let now = day(100);
        let mut book = book(None, now);
        book.add("b.test", Some(present(100, 190)), now, 0.0);
        book.back_off(now + HOUR * 2);
        book.back_off(now + HOUR);
        assert_eq!(book.next_action(now), sleep(now + HOUR * 2));
        assert_eq!(book.next_action(now + HOUR * 2), order());
        // With a clock that was set back, the pause would be too long.
        assert_eq!(book.next_action(day(1)), order());
        assert_eq!(book.next_action(now), sleep(now + HOUR * 2));
        book.order_now("b.test", now);
        assert_eq!(book.next_action(now), order());
        // A single question may have to wait too.
        book.set_current("a.test", present(100, 190), now, 0.0);
        book.set_current("b.test", present(100, 190), now, 0.0);
        book.ari_unsupported("b.test");
        book.ari_failed("a.test", now, HOUR * 20);
        assert_eq!(book.next_action(now), sleep(now + HOUR * 20));
    }

    #[test]
    fn who_waits_for_another_instance_has_not_failed() {
        let mut book = book(None, day(1));
        book.defer("a.test", day(1), HOUR);
        assert_eq!(book.next_action(day(1)), sleep(day(1) + HOUR));
        book.order_now("a.test", day(1));
        assert_eq!(book.next_action(day(1)), order());
        assert_eq!(book.entry("a.test").expect("the name exists").failures, 0);
        book.remove("a.test");
        assert_eq!(book.next_action(day(1)), RenewalAction::Sleep(None));
    }
}
