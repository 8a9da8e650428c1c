//! The schedule: each name's certificate, and the next action. It has no clock, randomness or
//! network access.

use crate::timing;
use std::time::{Duration, SystemTime};

/// The schedule of all names.
#[derive(Debug, Default)]
pub(crate) struct RenewalSchedule {
    entries: Vec<ScheduledDomain>,
    /// The time before which no requests are sent, because the authority requested that.
    backoff_until: Option<SystemTime>,
}

/// The maximum pause of all requests. It also bounds the effect of a clock that was set back.
const BACKOFF_MAX: Duration = Duration::from_secs(86_400);

/// The schedule of one name.
#[derive(Debug)]
pub(crate) struct ScheduledDomain {
    pub(crate) domain: String,
    /// The served certificate.
    pub(crate) current: Option<CurrentCertificate>,
    /// When the current certificate is renewed, if no order has failed.
    renew_at: SystemTime,
    /// The window suggested by the authority.
    ari_window: Option<(SystemTime, SystemTime)>,
    /// When to request the window; `None` if the authority does not support windows.
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

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RenewalAction {
    /// Obtain a certificate.
    Order(String),
    /// Request the renewal window from the authority.
    FetchRenewalInfo(String),
    /// Sleep until this time; `None` if nothing is scheduled.
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
        current: Option<CurrentCertificate>,
        now: SystemTime,
        jitter: f64,
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
        if let Some(current) = current {
            self.set_current(name, current, now, jitter);
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.entries.retain(|entry| entry.domain != name);
    }

    /// Replaces the certificate of a name.
    pub(crate) fn set_current(
        &mut self,
        name: &str,
        current: CurrentCertificate,
        now: SystemTime,
        jitter: f64,
    ) {
        let Some(entry) = self.entry_mut(name) else { return };
        entry.renew_at =
            timing::default_renewal_time(current.not_before, current.not_after, jitter);
        // Without an issuer, the authority cannot identify the certificate.
        entry.ari_check_at = current.issuer.is_some().then_some(now);
        (entry.ari_window, entry.ari_failures) = (None, 0);
        (entry.failures, entry.last_error, entry.retry_at) = (0, None, None);
        entry.current = Some(current);
    }

    /// Records an issued certificate. If certificates are due as soon as they are issued, because
    /// the clock is wrong or the authority requests it, the delays between orders double. This
    /// avoids an endless series of orders.
    pub(crate) fn on_issued(
        &mut self,
        name: &str,
        current: CurrentCertificate,
        now: SystemTime,
        jitter: f64,
        (first, max): (Duration, Duration),
    ) {
        let Some(entry) = self.entry_mut(name) else { return };
        let is_premature = entry.issued_at.is_some_and(|at| entry.renew_at <= at + first);
        entry.premature_renewals =
            if is_premature { entry.premature_renewals.saturating_add(1) } else { 0 };
        entry.issued_at = Some(now);
        entry.earliest_order_at =
            now + timing::backoff(entry.premature_renewals.saturating_add(1), first, max, jitter);
        self.set_current(name, current, now, jitter);
    }

    /// Records a failed order, which is retried after `delay`.
    pub(crate) fn on_failed(
        &mut self,
        name: &str,
        error: String,
        now: SystemTime,
        delay: Duration,
    ) {
        let Some(entry) = self.entry_mut(name) else { return };
        entry.failures = entry.failures.saturating_add(1);
        entry.last_error = Some(error);
        entry.retry_at = Some(now + delay);
    }

    /// Delays the order, because another instance is ordering.
    pub(crate) fn defer(&mut self, name: &str, now: SystemTime, delay: Duration) {
        let Some(entry) = self.entry_mut(name) else { return };
        entry.retry_at = Some(now + delay);
    }

    /// Schedules an order now.
    pub(crate) fn order_now(&mut self, name: &str, now: SystemTime) {
        let Some(entry) = self.entry_mut(name) else { return };
        entry.retry_at = Some(now);
        // The user requested this order explicitly.
        self.backoff_until = None;
    }

    /// Sends no requests before `until`, because the authority requested it.
    pub(crate) fn back_off(&mut self, until: SystemTime) {
        self.backoff_until = self.backoff_until.max(Some(until));
    }

    /// Records the window suggested by the authority, and how soon to request it again.
    pub(crate) fn set_ari_window(
        &mut self,
        name: &str,
        window: (SystemTime, SystemTime),
        poll_interval: Duration,
        now: SystemTime,
        jitter: f64,
    ) {
        let Some(entry) = self.entry_mut(name) else { return };
        let Some(current) = &entry.current else { return };
        // RFC 9773 §4.2: a window that ends before it begins is ignored.
        let Some(renew_at) = timing::pick_in_window(window.0, window.1, jitter) else {
            return self.ari_failed(name, now, Duration::ZERO);
        };
        // The chosen time stays the same as long as the window does.
        if entry.ari_window != Some(window) {
            entry.renew_at =
                renew_at.min(timing::latest_renewal_time(current.not_before, current.not_after));
            entry.ari_window = Some(window);
        }
        entry.ari_failures = 0;
        entry.ari_check_at = Some(now + timing::ari_interval(poll_interval));
    }

    /// Records that the authority did not return a window. The next request is sent after
    /// `retry_after` at the earliest.
    pub(crate) fn ari_failed(&mut self, name: &str, now: SystemTime, retry_after: Duration) {
        let Some(entry) = self.entry_mut(name) else { return };
        entry.ari_failures = entry.ari_failures.saturating_add(1);
        let backoff = timing::ari_backoff(entry.ari_failures);
        entry.ari_check_at = Some(now + backoff.max(retry_after));
    }

    /// Records that the authority does not support windows.
    pub(crate) fn ari_unsupported(&mut self, name: &str) {
        let Some(entry) = self.entry_mut(name) else { return };
        entry.ari_check_at = None;
    }

    /// Returns the action that is due now: the order that has been due for longest, so that failing
    /// orders do not delay others, or else the first request for a renewal window.
    pub(crate) fn next_action(&self, now: SystemTime) -> RenewalAction {
        let backoff_until =
            self.backoff_until.filter(|until| *until > now && *until <= now + BACKOFF_MAX);
        if backoff_until.is_some() {
            return RenewalAction::Sleep(backoff_until);
        }
        let due = self.entries.iter().filter(|entry| entry.due_at() <= now);
        if let Some(entry) = due.min_by_key(|entry| entry.due_at()) {
            return RenewalAction::Order(entry.domain.clone());
        }
        let is_ari_due =
            |entry: &&ScheduledDomain| entry.ari_due_at(now).is_some_and(|at| at <= now);
        if let Some(entry) = self.entries.iter().find(is_ari_due) {
            return RenewalAction::FetchRenewalInfo(entry.domain.clone());
        }
        let order_times = self.entries.iter().map(ScheduledDomain::due_at);
        let ari_times = self.entries.iter().filter_map(|entry| entry.ari_due_at(now));
        RenewalAction::Sleep(order_times.chain(ari_times).min())
    }
}

impl ScheduledDomain {
    /// Returns when a certificate is ordered.
    pub(crate) fn due_at(&self) -> SystemTime {
        match (&self.current, self.retry_at) {
            (_, Some(retry_at)) => retry_at,
            (None, None) => SystemTime::UNIX_EPOCH,
            (Some(_), None) => self.renew_at.max(self.earliest_order_at),
        }
    }

    /// Returns when to request the window from the authority.
    fn ari_due_at(&self, now: SystemTime) -> Option<SystemTime> {
        // RFC 9773 §4.3.3: no requests for certificates that have expired or are about to be
        // replaced.
        let current = self.current.as_ref()?;
        self.ari_check_at.filter(|_| now < current.not_after && self.retry_at.is_none())
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

    fn certificate(from: u32, to: u32) -> CurrentCertificate {
        let (issuer, serial) = (Some(vec![1]), vec![2]);
        CurrentCertificate { not_before: day(from), not_after: day(to), issuer, serial }
    }

    fn order() -> RenewalAction {
        RenewalAction::Order("a.test".to_owned())
    }

    fn fetch_renewal_info() -> RenewalAction {
        RenewalAction::FetchRenewalInfo("a.test".to_owned())
    }

    fn sleep(until: SystemTime) -> RenewalAction {
        RenewalAction::Sleep(Some(until))
    }

    fn schedule_with(current: Option<CurrentCertificate>, now: SystemTime) -> RenewalSchedule {
        let mut schedule = RenewalSchedule::default();
        schedule.add("a.test", current, now, 0.0);
        schedule
    }

    #[test]
    fn a_missing_or_expired_certificate_is_ordered_at_once() {
        let now = day(100);
        assert_eq!(schedule_with(None, now).next_action(now), order());
        assert_eq!(schedule_with(Some(certificate(1, 91)), now).next_action(now), order());
        assert_eq!(RenewalSchedule::default().next_action(now), RenewalAction::Sleep(None));
    }

    #[test]
    fn without_a_window_a_certificate_is_renewed_after_two_thirds_of_its_lifetime() {
        let mut schedule = schedule_with(Some(certificate(100, 190)), day(100));
        assert_eq!(schedule.next_action(day(100)), fetch_renewal_info());
        schedule.ari_unsupported("a.test");
        assert_eq!(schedule.next_action(day(100)), sleep(day(160)));
        assert_eq!(schedule.next_action(day(160)), order());
        // A clock that was set back has no effect; with a clock that was set ahead, an order is
        // due.
        assert_eq!(schedule.next_action(day(1)), sleep(day(160)));
        assert_eq!(schedule.next_action(day(5_000)), order());
    }

    #[test]
    fn a_window_sets_the_renewal_time_once() {
        let mut schedule = schedule_with(Some(certificate(100, 190)), day(100));
        schedule.set_ari_window("a.test", (day(170), day(172)), HOUR, day(100), 0.5);
        assert_eq!(schedule.next_action(day(100)), sleep(day(100) + HOUR));
        assert_eq!(schedule.next_action(day(100) + HOUR), fetch_renewal_info());
        // With the same window and another random number, nothing changes.
        schedule.set_ari_window("a.test", (day(170), day(172)), HOUR * 24 * 80, day(101), 0.9);
        assert_eq!(schedule.entry("a.test").expect("the name exists").due_at(), day(171));
        assert_eq!(
            schedule.next_action(day(102)),
            fetch_renewal_info(),
            "the maximum interval is a day"
        );
        // A new window in the past: replace the certificate now.
        schedule.set_ari_window("a.test", (day(90), day(91)), HOUR, day(102), 0.5);
        assert_eq!(schedule.next_action(day(102)), order());
        // A window after the expiry must not let the certificate expire.
        schedule.set_ari_window("a.test", (day(200), day(201)), HOUR, day(103), 0.5);
        let due = schedule.entry("a.test").expect("the name exists").due_at();
        assert!(due < day(190) && due > day(185));
    }

    #[test]
    fn an_invalid_or_missing_window_only_delays_the_next_request() {
        let mut schedule = schedule_with(Some(certificate(100, 190)), day(100));
        for (index, hours) in [1, 2, 4, 8, 16, 24, 24].into_iter().enumerate() {
            if index % 2 == 0 {
                schedule.ari_failed("a.test", day(100), HOUR / 2);
            } else {
                schedule.set_ari_window("a.test", (day(150), day(150)), HOUR, day(100), 0.5);
            }
            assert_eq!(schedule.next_action(day(100)), sleep(day(100) + HOUR * hours));
        }
        assert_eq!(schedule.entry("a.test").expect("the name exists").due_at(), day(160));
    }

    #[test]
    fn no_window_is_requested_for_an_expired_or_unidentifiable_certificate() {
        let mut expired = schedule_with(Some(certificate(100, 190)), day(191));
        expired.on_failed("a.test", "no".to_owned(), day(191), DAY);
        assert_eq!(expired.next_action(day(191)), sleep(day(192)));
        let without_issuer = CurrentCertificate { issuer: None, ..certificate(100, 190) };
        assert_eq!(
            schedule_with(Some(without_issuer), day(100)).next_action(day(100)),
            sleep(day(160))
        );
    }

    #[test]
    fn a_failed_order_is_delayed_and_does_not_delay_other_names() {
        let now = day(100);
        let mut schedule = schedule_with(None, now);
        schedule.add("b.test", None, now, 0.0);
        schedule.on_failed("a.test", "no".to_owned(), now, HOUR);
        assert_eq!(schedule.next_action(now), RenewalAction::Order("b.test".to_owned()));
        schedule.set_current("b.test", certificate(100, 190), now, 0.0);
        schedule.ari_unsupported("b.test");
        assert_eq!(schedule.next_action(now), sleep(now + HOUR));
        assert_eq!(schedule.next_action(now + HOUR), order());
        let failed = schedule.entry("a.test").expect("the name exists");
        assert_eq!((failed.failures, failed.last_error.as_deref()), (1, Some("no")));
        schedule.set_current("a.test", certificate(100, 190), now, 0.0);
        let renewed = schedule.entry("a.test").expect("the name exists");
        assert_eq!(
            (renewed.failures, renewed.last_error.as_deref(), renewed.due_at()),
            (0, None, day(160))
        );
    }

    #[test]
    fn the_order_that_has_been_due_for_longest_comes_first() {
        let now = day(100);
        let mut schedule = schedule_with(None, now);
        schedule.add("b.test", Some(certificate(1, 91)), now, 0.0);
        schedule.on_failed("a.test", "no".to_owned(), now, HOUR);
        assert_eq!(schedule.next_action(now + HOUR * 2), RenewalAction::Order("b.test".to_owned()));
    }

    #[test]
    fn premature_renewals_are_ordered_with_growing_delays() {
        let (mut schedule, retry_backoff) = (schedule_with(None, day(100)), (HOUR, HOUR * 4));
        for hours in [1, 2, 4, 4] {
            // The certificate has expired already.
            schedule.on_issued("a.test", certificate(1, 2), day(100), 1.0, retry_backoff);
            assert_eq!(schedule.next_action(day(100)), sleep(day(100) + HOUR * hours));
            assert_eq!(schedule.next_action(day(100) + HOUR * hours), order());
        }
        // An explicit request does not wait.
        schedule.order_now("a.test", day(100));
        assert_eq!(schedule.next_action(day(100)), order());
        // A certificate with a normal lifetime ends the delays.
        schedule.on_issued("a.test", certificate(100, 190), day(100), 0.0, retry_backoff);
        schedule.ari_unsupported("a.test");
        assert_eq!(schedule.next_action(day(100)), sleep(day(160)));
        schedule.on_issued("a.test", certificate(160, 161), day(160), 1.0, retry_backoff);
        assert_eq!(schedule.entry("a.test").expect("the name exists").premature_renewals, 0);
    }

    #[test]
    fn only_an_explicit_order_ignores_a_backoff_of_all_requests() {
        let now = day(100);
        let mut schedule = schedule_with(None, now);
        schedule.add("b.test", Some(certificate(100, 190)), now, 0.0);
        schedule.back_off(now + HOUR * 2);
        schedule.back_off(now + HOUR);
        assert_eq!(schedule.next_action(now), sleep(now + HOUR * 2));
        assert_eq!(schedule.next_action(now + HOUR * 2), order());
        // With a clock that was set back, the delay would be too long, so it is ignored.
        assert_eq!(schedule.next_action(day(1)), order());
        assert_eq!(schedule.next_action(now), sleep(now + HOUR * 2));
        schedule.order_now("b.test", now);
        assert_eq!(schedule.next_action(now), order());
        // Requests for a single renewal window may be delayed too.
        schedule.set_current("a.test", certificate(100, 190), now, 0.0);
        schedule.set_current("b.test", certificate(100, 190), now, 0.0);
        schedule.ari_unsupported("b.test");
        schedule.ari_failed("a.test", now, HOUR * 20);
        assert_eq!(schedule.next_action(now), sleep(now + HOUR * 20));
    }

    #[test]
    fn a_deferred_order_is_not_a_failure() {
        let mut schedule = schedule_with(None, day(1));
        schedule.defer("a.test", day(1), HOUR);
        assert_eq!(schedule.next_action(day(1)), sleep(day(1) + HOUR));
        schedule.order_now("a.test", day(1));
        assert_eq!(schedule.next_action(day(1)), order());
        assert_eq!(schedule.entry("a.test").expect("the name exists").failures, 0);
        schedule.remove("a.test");
        assert_eq!(schedule.next_action(day(1)), RenewalAction::Sleep(None));
    }
}
