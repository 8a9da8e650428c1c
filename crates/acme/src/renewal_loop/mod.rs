//! The loop that orders and renews certificates. It never runs on threads that serve requests.

mod storage_sync;

use crate::account::{load_or_create_account, remove_account};
use crate::catch_unwind::CatchUnwind;
use crate::failure::{FailureReason, OrderFailure};
use crate::handle::DomainStatus;
use crate::order::{OrderContext, ari_certificate_id};
use crate::schedule::{CurrentCertificate, RenewalAction, RenewalSchedule};
use crate::scoped_storage::{LOCK_LEASE, StoredCertificate};
use crate::shared::{AcmeShared, lock};
use crate::timing;
use instant_acme::{Account, CertificateIdentifier, Error};
use peregrine_tls::TlsConfig;
use std::collections::HashMap;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::time::{sleep, timeout};

/// How often to check the storage for changes by other instances, and the clock for jumps.
const STORAGE_SYNC_INTERVAL: Duration = Duration::from_secs(3_600);

/// The retry interval for data that could not be stored.
const STORE_RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// The polling interval while another instance is ordering.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// How long another instance can hold the lock without a result before that is a failure.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(3_600);

/// The time limit of an order, less than its lease.
const ORDER_TIMEOUT: Duration = Duration::from_secs(600);

const _: () = assert!(ORDER_TIMEOUT.as_secs() * 3 / 2 <= LOCK_LEASE.as_secs());

/// The time limit for delays requested by the authority, which leaves time for the rest of the
/// order.
const ORDER_RETRY_AFTER_MAX: Duration = Duration::from_secs(450);

/// Returns a random number from 0 to 1.
fn random_jitter() -> f64 {
    let mut bytes = [0; 4];
    // Without randomness, all instances act at the same time, which is better than not at all.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX)
}

/// Orders and renews the certificates of one server.
pub(crate) struct RenewalLoop {
    shared: Arc<AcmeShared>,
    configs: Vec<TlsConfig>,
    schedule: RenewalSchedule,
    account: Option<Account>,
    /// Whether the account was found or created for orders, and matches the settings.
    is_account_ready: bool,
    /// Certificates that are served but could not be stored.
    unstored: HashMap<String, Vec<u8>>,
    /// Certificates that are not served because they are not valid yet, by this machine's clock.
    not_yet_valid: HashMap<String, StoredCertificate>,
    /// The time since which another instance has held the lock.
    locked_since: Option<Instant>,
    /// The action in progress, to report if it panics.
    current_action: Option<RenewalAction>,
    /// The number of panics outside of actions since the last success.
    panics: u32,
}

impl RenewalLoop {
    pub(crate) fn new(shared: Arc<AcmeShared>, configs: Vec<TlsConfig>) -> Self {
        let (schedule, unstored, not_yet_valid) =
            (RenewalSchedule::default(), HashMap::new(), HashMap::new());
        Self {
            shared,
            configs,
            schedule,
            account: None,
            is_account_ready: false,
            unstored,
            not_yet_valid,
            locked_since: None,
            current_action: None,
            panics: 0,
        }
    }

    /// Runs until it is dropped, even after panics.
    pub(crate) async fn run(&mut self) {
        loop {
            let Err(panic) = CatchUnwind::new(self.run_once()).await;
            // Logging the panic can panic too, if the log cannot be written.
            let delay = catch_unwind(AssertUnwindSafe(|| self.on_panic(&panic)));
            sleep(delay.unwrap_or(self.shared.settings.retry_backoff.1)).await;
        }
    }

    /// Reports a panic, and returns the delay before the loop continues.
    fn on_panic(&mut self, panic: &str) -> Duration {
        lock(&self.shared.status).panics += 1;
        // The account may be in an inconsistent state.
        self.forget_account();
        match self.current_action.take() {
            Some(RenewalAction::Order(name)) => {
                self.on_failed(
                    &name,
                    OrderFailure::new(FailureReason::Panic, format!("the order panicked: {panic}")),
                );
                Duration::ZERO
            }
            Some(RenewalAction::FetchRenewalInfo(name)) => {
                tracing::error!(target: "peregrine", name, panic,
                    "the request for a renewal window panicked; it is retried later");
                self.schedule.ari_failed(&name, SystemTime::now(), Duration::ZERO);
                Duration::ZERO
            }
            Some(RenewalAction::Sleep(_)) | None => {
                self.panics = self.panics.saturating_add(1);
                let (first, max) = self.shared.settings.retry_backoff;
                let pause = timing::backoff(self.panics, first, max, random_jitter());
                tracing::error!(target: "peregrine", panic, retry = ?pause,
                    "the thread that obtains certificates panicked; it continues after a pause");
                pause
            }
        }
    }

    async fn run_once(&mut self) -> Infallible {
        loop {
            self.current_action = None;
            self.apply_requested_changes();
            let now = SystemTime::now();
            let action = self.schedule.next_action(now);
            self.current_action = Some(action.clone());
            self.publish_status();
            match action {
                RenewalAction::Order(name) => {
                    self.order(&name).await;
                    // Yield, so that changes by handles during the order are processed.
                    tokio::task::yield_now().await;
                }
                RenewalAction::FetchRenewalInfo(name) => self.fetch_renewal_info(&name).await,
                RenewalAction::Sleep(wake_at) => {
                    let is_settled = self.unstored.is_empty() && self.not_yet_valid.is_empty();
                    let sleep_max =
                        if is_settled { STORAGE_SYNC_INTERVAL } else { STORE_RETRY_INTERVAL };
                    let delay = wake_at.map_or(sleep_max, |wake_at| {
                        wake_at.duration_since(now).unwrap_or_default().min(sleep_max)
                    });
                    tokio::select! {
                        () = sleep(delay) => self.sync_storage(),
                        () = self.shared.changed.notified() => {}
                    }
                    self.panics = 0;
                }
            }
        }
    }

    /// Applies the changes that handles have made.
    fn apply_requested_changes(&mut self) {
        let (names, renew_now) = {
            let mut requested = lock(&self.shared.requested);
            (requested.domains.clone(), std::mem::take(&mut requested.renew_now))
        };
        let removed = self.schedule.entries().iter().filter(|entry| !names.contains(&entry.domain));
        for name in removed.map(|entry| entry.domain.clone()).collect::<Vec<_>>() {
            self.schedule.remove(&name);
            self.unstored.remove(&name);
            self.not_yet_valid.remove(&name);
            for tls in &self.configs {
                if let Err(error) = tls.remove_certificate(&name) {
                    tracing::error!(target: "peregrine", name, %error, "a certificate cannot be removed");
                }
            }
        }
        for name in names {
            if self.schedule.entry(&name).is_none() {
                let stored = self.shared.settings.storage.certificate(&name);
                let current = stored.map(|stored| {
                    self.install(&name, &stored);
                    stored.current
                });
                self.schedule.add(&name, current, SystemTime::now(), random_jitter());
            }
        }
        for name in renew_now {
            self.schedule.order_now(&name, SystemTime::now());
        }
    }

    /// Obtains a certificate, unless another instance does or has done so.
    async fn order(&mut self, name: &str) {
        let shared = Arc::clone(&self.shared);
        let _lock = match shared.settings.storage.try_lock() {
            Ok(Some(lock)) => {
                self.locked_since = None;
                lock
            }
            Ok(None) => {
                if self.adopt_stored(name) {
                    self.locked_since = None;
                } else if self.check_lock_overdue() {
                    let cause = "another instance holds the lock of the storage without a \
                        result; stop the process that holds it";
                    self.on_failed(name, OrderFailure::new(FailureReason::Locked, cause));
                } else {
                    let delay = LOCK_RETRY_INTERVAL
                        .min(shared.settings.retry_backoff.0)
                        .mul_f64(1.0 + random_jitter());
                    tracing::debug!(target: "peregrine", name, "another instance is ordering");
                    self.schedule.defer(name, SystemTime::now(), delay);
                }
                return;
            }
            Err(error) => {
                let text = format!("the storage cannot be locked: {error}");
                return self.on_failed(name, OrderFailure::new(FailureReason::Storage, text));
            }
        };
        if self.adopt_stored(name) {
            return;
        }
        // Drop an earlier rejection: it concerns earlier requests.
        let _ = shared.settings.client.take_rejection();
        let deadline = Instant::now() + ORDER_RETRY_AFTER_MAX;
        let attempt = timeout(ORDER_TIMEOUT, async {
            match self.obtain(name, deadline).await {
                // The directory was reset and does not know the account: retry with a new one.
                Err(failure) if failure.is_unknown_account => {
                    let account = self.account.take();
                    self.forget_account();
                    remove_account(&shared.settings.storage, account.as_ref().map(Account::id));
                    self.obtain(name, deadline).await
                }
                result => result,
            }
        });
        match attempt.await {
            Ok(Ok(certificate)) => self.on_issued(name, certificate),
            Ok(Err(failure)) => self.on_failed(name, failure),
            Err(_) => {
                let text = format!("the order took longer than {} s", ORDER_TIMEOUT.as_secs());
                self.on_failed(name, OrderFailure::new(FailureReason::Timeout, text));
            }
        }
    }

    /// Whether another instance has held the lock for too long. Called each time the lock turns out
    /// to be held.
    fn check_lock_overdue(&mut self) -> bool {
        let is_overdue = self.locked_since.is_some_and(|since| since.elapsed() >= LOCK_WAIT_MAX);
        if is_overdue || self.locked_since.is_none() {
            self.locked_since = Some(Instant::now());
        }
        is_overdue
    }

    async fn obtain(
        &mut self,
        name: &str,
        deadline: Instant,
    ) -> Result<StoredCertificate, OrderFailure> {
        let shared = Arc::clone(&self.shared);
        // An account that was only loaded to request a renewal window has not been compared with
        // the settings.
        if !self.is_account_ready {
            self.account = load_or_create_account(&shared.settings, true).await?;
            self.is_account_ready = true;
        }
        let missing_account = || OrderFailure::new(FailureReason::Account, "there is no account");
        let account = self.account.as_ref().ok_or_else(missing_account)?;
        let entry = self.schedule.entry(name);
        let order = OrderContext {
            settings: &shared.settings,
            challenges: &shared.challenges,
            domain: name,
            failures: entry.map_or(0, |entry| entry.failures),
            current: entry.and_then(|entry| entry.current.as_ref()),
            deadline,
        };
        order.run(account).await
    }

    /// Serves a certificate that was issued, whether or not it can be stored.
    fn on_issued(&mut self, name: &str, certificate: StoredCertificate) {
        self.install(name, &certificate);
        let storage = &self.shared.settings.storage;
        match storage.store_certificate(name, &certificate.pem) {
            Ok(()) => {
                self.unstored.remove(name);
                // If this fails, the leftover order is later found to be complete.
                let _ = storage.remove_pending_order(name);
            }
            Err(error) => {
                tracing::error!(target: "peregrine", name, %error,
                    "a new certificate is served, but cannot be stored; storing it is retried");
                self.unstored.insert(name.to_owned(), certificate.pem);
            }
        }
        let remaining = time_until(certificate.current.not_after);
        tracing::info!(target: "peregrine", name, days = remaining.as_secs() / 86_400,
            "a certificate was issued");
        let retry_backoff = self.shared.settings.retry_backoff;
        self.schedule.on_issued(
            name,
            certificate.current,
            SystemTime::now(),
            random_jitter(),
            retry_backoff,
        );
        if self.schedule.entry(name).is_some_and(|entry| entry.premature_renewals > 0) {
            tracing::warn!(target: "peregrine", name,
                "a certificate was due for renewal as soon as it was issued; the next order is delayed; check the clock");
        }
        // Publish the status before the counter, so that a reader of the counter sees the result.
        self.publish_status();
        lock(&self.shared.status).issued += 1;
    }

    /// Records a failed order. The current certificate stays in use.
    fn on_failed(
        &mut self,
        name: &str,
        OrderFailure { reason, message: error, retry_after, .. }: OrderFailure,
    ) {
        // The cause may be the account, or a moved directory.
        self.forget_account();
        let now = SystemTime::now();
        let (first, max) = self.shared.settings.retry_backoff;
        let entry = self.schedule.entry(name);
        let failures = entry.map_or(0, |entry| entry.failures).saturating_add(1);
        let not_after =
            entry.and_then(|entry| entry.current.as_ref()).map(|current| current.not_after);
        let rejection = self.check_retry_after(now);
        let is_rejected = rejection.is_some() && reason != FailureReason::Panic;
        let reason = if is_rejected { FailureReason::RateLimited } else { reason };
        let retry_after = retry_after.max(rejection.flatten());
        let retry_delay = retry_after
            .map_or(Duration::ZERO, |retry_after| timing::retry_after_delay(retry_after, now));
        let pause = timing::backoff(failures, first, max, random_jitter()).max(retry_delay);
        match not_after.map(time_until) {
            Some(remaining) => {
                tracing::error!(target: "peregrine", name, error, %reason, failures, retry = ?pause,
                days_left = remaining.as_secs() / 86_400,
                "a certificate could not be renewed; the current one stays in use")
            }
            None => {
                tracing::error!(target: "peregrine", name, error, %reason, failures, retry = ?pause,
                "a certificate could not be obtained; clients that request the name are rejected or get \
                 another certificate")
            }
        }
        self.schedule.on_failed(name, error, now, pause);
        self.publish_status();
        let mut status = lock(&self.shared.status);
        status.failures += 1;
        *status.failures_by_reason.entry(reason).or_default() += 1;
    }

    /// Returns whether the directory has temporarily rejected a request, and the time until which
    /// it does so. If it rejects all requests, the schedule sends none until then.
    fn check_retry_after(&mut self, now: SystemTime) -> Option<Option<SystemTime>> {
        let rejection = self.shared.settings.client.take_rejection()?;
        if let Some(retry_at) =
            rejection.retry_at.filter(|retry_at| rejection.is_global && *retry_at > now)
        {
            tracing::info!(target: "peregrine", seconds = timing::retry_after_delay(retry_at, now).as_secs(),
                "the authority requests a pause of all requests");
            self.schedule.back_off(retry_at);
        }
        Some(rejection.retry_at)
    }

    fn forget_account(&mut self) {
        (self.account, self.is_account_ready) = (None, false);
    }

    /// Requests the renewal window of the certificate from the authority (ARI).
    async fn fetch_renewal_info(&mut self, name: &str) {
        let current = self.schedule.entry(name).and_then(|entry| entry.current.clone());
        let window = match current.as_ref().and_then(ari_certificate_id) {
            Some(identifier) => self.renewal_window(identifier).await,
            None => Ok(None),
        };
        let now = SystemTime::now();
        match window {
            Ok(Some((start, end, poll_interval))) => {
                self.schedule.set_ari_window(
                    name,
                    (start, end),
                    poll_interval,
                    now,
                    random_jitter(),
                );
            }
            Ok(None) => self.schedule.ari_unsupported(name),
            Err(error) => {
                tracing::debug!(target: "peregrine", name, error,
                    "the authority did not return a renewal window");
                self.forget_account();
                let retry_at = self.check_retry_after(now).flatten();
                let delay = retry_at
                    .map_or(Duration::ZERO, |retry_at| timing::retry_after_delay(retry_at, now));
                self.schedule.ari_failed(name, now, delay);
            }
        }
    }

    /// Requests the renewal window from the authority. Returns its start and end, and how soon to
    /// request it again, or `None` if the authority does not support windows.
    async fn renewal_window(
        &mut self,
        identifier: CertificateIdentifier<'static>,
    ) -> Result<Option<(SystemTime, SystemTime, Duration)>, String> {
        if self.account.is_none() {
            let result = load_or_create_account(&self.shared.settings, false).await;
            self.account = result.map_err(|failure| failure.message)?;
        }
        let account = self.account.as_ref().ok_or("there is no account")?;
        match account.renewal_info(&identifier).await {
            Ok((info, poll_interval)) => {
                let window = info.suggested_window;
                let to_system_time = |seconds: i64| {
                    let seconds = u64::try_from(seconds).ok()?;
                    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
                };
                let start = to_system_time(window.start.unix_timestamp())
                    .ok_or("the window is not a valid time")?;
                let end = to_system_time(window.end.unix_timestamp())
                    .ok_or("the window is not a valid time")?;
                Ok(Some((start, end, poll_interval)))
            }
            Err(Error::Unsupported(_)) => Ok(None),
            Err(error) => Err(crate::http_client::error_chain(&error)),
        }
    }

    /// Publishes the status to handles.
    fn publish_status(&self) {
        let domains = self.schedule.entries().iter().map(|entry| DomainStatus {
            domain: entry.domain.clone(),
            not_after: entry.current.as_ref().map(|current: &CurrentCertificate| current.not_after),
            renew_at: Some(entry.due_at()).filter(|due_at| *due_at > SystemTime::UNIX_EPOCH),
            failures: entry.failures,
            last_error: entry.last_error.clone(),
        });
        lock(&self.shared.status).domains = domains.collect();
    }
}

fn time_until(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::now()).unwrap_or_default()
}
