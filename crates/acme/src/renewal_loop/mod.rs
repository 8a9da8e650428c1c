//! The background work and its schedule. None of it runs on threads that serve requests.

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

/// How long another instance may hold the lock without result before that is a failure.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(3_600);

/// The time limit of an order, less than its lease.
const ORDER_TIMEOUT: Duration = Duration::from_secs(600);

const _: () = assert!(ORDER_TIMEOUT.as_secs() * 3 / 2 <= LOCK_LEASE.as_secs());

/// The time limit for delays requested by the authority, which leaves time for the rest of the
/// order.
const ORDER_RETRY_AFTER_MAX: Duration = Duration::from_secs(450);

/// A random number from 0 to 1.
fn random_jitter() -> f64 {
    let mut bytes = [0; 4];
    // Without randomness, all instances act at the same time, which is better than not at all.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX)
}

/// The work for one server.
pub(crate) struct RenewalLoop {
    shared: Arc<AcmeShared>,
    configs: Vec<TlsConfig>,
    schedule: RenewalSchedule,
    account: Option<Account>,
    /// Whether the account was found or created for orders, and matches the settings.
    account_ready: bool,
    /// Certificates that are served but could not be stored.
    unstored: HashMap<String, Vec<u8>>,
    /// Certificates that are not served because they are not valid yet, by this machine's clock.
    not_yet_valid: HashMap<String, StoredCertificate>,
    /// Since when another instance has held the lock.
    locked_since: Option<Instant>,
    /// The step in progress, to report if it panics.
    current_action: Option<RenewalAction>,
    /// The number of panics outside steps since the last success.
    panics: u32,
}

impl RenewalLoop {
    pub(crate) fn new(shared: Arc<AcmeShared>, served: Vec<TlsConfig>) -> Self {
        let (book, unsaved, early) = (RenewalSchedule::default(), HashMap::new(), HashMap::new());
        Self {
            shared,
            configs: served,
            schedule: book,
            account: None,
            account_ready: false,
            unstored: unsaved,
            not_yet_valid: early,
            locked_since: None,
            current_action: None,
            panics: 0,
        }
    }

    /// Works until it is dropped, even after panics.
    pub(crate) async fn run(&mut self) {
        loop {
            let Err(panic) = CatchUnwind::new(self.run_once()).await;
            // Logging the panic may panic too, if the log cannot be written.
            let pause = catch_unwind(AssertUnwindSafe(|| self.on_panic(&panic)));
            sleep(pause.unwrap_or(self.shared.settings.retry_backoff.1)).await;
        }
    }

    /// Reports a panic, and returns the delay before the work continues.
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
                    "asking the authority when to renew a certificate panicked; it is tried again later");
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
            let step = self.schedule.next_action(now);
            self.current_action = Some(step.clone());
            self.publish_status();
            match step {
                RenewalAction::Order(name) => {
                    self.order(&name).await;
                    // Yield, so that changes by handles during the order are processed.
                    tokio::task::yield_now().await;
                }
                RenewalAction::FetchRenewalInfo(name) => self.fetch_renewal_info(&name).await,
                RenewalAction::Sleep(until) => {
                    let is_calm = self.unstored.is_empty() && self.not_yet_valid.is_empty();
                    let most = if is_calm { STORAGE_SYNC_INTERVAL } else { STORE_RETRY_INTERVAL };
                    let pause = until.map_or(most, |until| {
                        until.duration_since(now).unwrap_or_default().min(most)
                    });
                    tokio::select! {
                        () = sleep(pause) => self.sync_storage(),
                        () = self.shared.changed.notified() => {}
                    }
                    self.panics = 0;
                }
            }
        }
    }

    /// Applies the changes that handles have made.
    fn apply_requested_changes(&mut self) {
        let (names, hurried) = {
            let mut wanted = lock(&self.shared.requested);
            (wanted.domains.clone(), std::mem::take(&mut wanted.renew_now))
        };
        let gone = self.schedule.entries().iter().filter(|entry| !names.contains(&entry.domain));
        for name in gone.map(|entry| entry.domain.clone()).collect::<Vec<_>>() {
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
                let read = self.shared.settings.storage.certificate(&name);
                let present = read.map(|read| {
                    self.install(&name, &read);
                    read.current
                });
                self.schedule.add(&name, present, SystemTime::now(), random_jitter());
            }
        }
        for name in hurried {
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
                    let cause = "another instance holds the lock of the storage without any \
                        result; stop the process that holds it";
                    self.on_failed(name, OrderFailure::new(FailureReason::Locked, cause));
                } else {
                    let pause = LOCK_RETRY_INTERVAL
                        .min(shared.settings.retry_backoff.0)
                        .mul_f64(1.0 + random_jitter());
                    tracing::debug!(target: "peregrine", name, "another instance is ordering");
                    self.schedule.defer(name, SystemTime::now(), pause);
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
        // Drop earlier results: they concern earlier requests.
        let _ = shared.settings.client.take_refusal();
        let until = Instant::now() + ORDER_RETRY_AFTER_MAX;
        let obtained = timeout(ORDER_TIMEOUT, async {
            match self.obtain(name, until).await {
                // The directory was reset and does not know the account: retry with a new one.
                Err(failure) if failure.is_unknown_account => {
                    let account = self.account.take();
                    self.forget_account();
                    remove_account(&shared.settings.storage, account.as_ref().map(Account::id));
                    self.obtain(name, until).await
                }
                result => result,
            }
        });
        match obtained.await {
            Ok(Ok(read)) => self.on_issued(name, read),
            Ok(Err(failure)) => self.on_failed(name, failure),
            Err(_) => {
                let text = format!("the order took longer than {} s", ORDER_TIMEOUT.as_secs());
                self.on_failed(name, OrderFailure::new(FailureReason::Timeout, text));
            }
        }
    }

    /// Whether another instance has held the lock for too long. Called each time the lock is taken.
    fn check_lock_overdue(&mut self) -> bool {
        let is_long = self.locked_since.is_some_and(|since| since.elapsed() >= LOCK_WAIT_MAX);
        if is_long || self.locked_since.is_none() {
            self.locked_since = Some(Instant::now());
        }
        is_long
    }

    async fn obtain(
        &mut self,
        name: &str,
        until: Instant,
    ) -> Result<StoredCertificate, OrderFailure> {
        let shared = Arc::clone(&self.shared);
        // An account that was only loaded to ask for a window has not been compared with the
        // settings.
        if !self.account_ready {
            self.account = load_or_create_account(&shared.settings, true).await?;
            self.account_ready = true;
        }
        let no_account = || OrderFailure::new(FailureReason::Account, "there is no account");
        let account = self.account.as_ref().ok_or_else(no_account)?;
        let entry = self.schedule.entry(name);
        let ordering = OrderContext {
            settings: &shared.settings,
            challenges: &shared.challenges,
            domain: name,
            failures: entry.map_or(0, |entry| entry.failures),
            current: entry.and_then(|entry| entry.current.as_ref()),
            deadline: until,
        };
        ordering.run(account).await
    }

    /// Serves a certificate that was issued, whether or not it can be stored.
    fn on_issued(&mut self, name: &str, read: StoredCertificate) {
        self.install(name, &read);
        let stored = &self.shared.settings.storage;
        match stored.store_certificate(name, &read.pem) {
            Ok(()) => {
                self.unstored.remove(name);
                // If this fails, the leftover order is later found to be complete.
                let _ = stored.remove_pending_order(name);
            }
            Err(error) => {
                tracing::error!(target: "peregrine", name, %error,
                    "a new certificate is served, but cannot be stored; storing it is retried");
                self.unstored.insert(name.to_owned(), read.pem);
            }
        }
        let until = remaining(read.current.not_after);
        tracing::info!(target: "peregrine", name, days = until.as_secs() / 86_400,
            "a certificate was issued");
        let pauses = self.shared.settings.retry_backoff;
        self.schedule.on_issued(name, read.current, SystemTime::now(), random_jitter(), pauses);
        if self.schedule.entry(name).is_some_and(|entry| entry.premature_renewals > 0) {
            tracing::warn!(target: "peregrine", name,
                "a certificate was due for renewal as soon as it was issued; the next order is delayed; check the clock");
        }
        // Publish the status before the counter, so that a reader of the counter sees the result.
        self.publish_status();
        lock(&self.shared.status).issued += 1;
    }

    /// Records a failed order. The present certificate stays.
    fn on_failed(
        &mut self,
        name: &str,
        OrderFailure { reason, message: error, retry_after: until, .. }: OrderFailure,
    ) {
        // The cause may be the account, or the directory may have moved.
        self.forget_account();
        let now = SystemTime::now();
        let (first, max) = self.shared.settings.retry_backoff;
        let entry = self.schedule.entry(name);
        let failures = entry.map_or(0, |entry| entry.failures).saturating_add(1);
        let left = entry.and_then(|entry| entry.current.as_ref()).map(|present| present.not_after);
        let refused = self.check_retry_after(now);
        let is_busy = refused.is_some() && reason != FailureReason::Panic;
        let reason = if is_busy { FailureReason::RateLimited } else { reason };
        let until = until.max(refused.flatten());
        let patience = until.map_or(Duration::ZERO, |until| timing::retry_after_delay(until, now));
        let pause = timing::backoff(failures, first, max, random_jitter()).max(patience);
        match left.map(remaining) {
            Some(left) => {
                tracing::error!(target: "peregrine", name, error, %reason, failures, retry = ?pause,
                days_left = left.as_secs() / 86_400,
                "a certificate could not be renewed; the present one stays")
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

    /// Whether the directory has rejected a request for now, and until when. If it rejects all
    /// requests, none are made until then.
    fn check_retry_after(&mut self, now: SystemTime) -> Option<Option<SystemTime>> {
        let patience = self.shared.settings.client.take_refusal()?;
        if let Some(until) = patience.retry_at.filter(|until| patience.is_global && *until > now) {
            tracing::info!(target: "peregrine", seconds = timing::retry_after_delay(until, now).as_secs(),
                "the authority requests a pause of all requests");
            self.schedule.back_off(until);
        }
        Some(patience.retry_at)
    }

    fn forget_account(&mut self) {
        (self.account, self.account_ready) = (None, false);
    }

    /// Asks the authority when to renew the certificate.
    async fn fetch_renewal_info(&mut self, name: &str) {
        let present = self.schedule.entry(name).and_then(|entry| entry.current.clone());
        let answer = match present.as_ref().and_then(ari_certificate_id) {
            Some(identifier) => self.renewal_window(identifier).await,
            None => Ok(None),
        };
        let now = SystemTime::now();
        match answer {
            Ok(Some((start, end, again))) => {
                self.schedule.set_ari_window(name, (start, end), again, now, random_jitter());
            }
            Ok(None) => self.schedule.ari_unsupported(name),
            Err(error) => {
                tracing::debug!(target: "peregrine", name, error,
                    "the authority did not say when to renew the certificate");
                self.forget_account();
                let until = self.check_retry_after(now).flatten();
                let patience =
                    until.map_or(Duration::ZERO, |until| timing::retry_after_delay(until, now));
                self.schedule.ari_failed(name, now, patience);
            }
        }
    }

    /// The renewal window suggested by the authority, and when to ask again; `None` if it does not
    /// support windows.
    async fn renewal_window(
        &mut self,
        identifier: CertificateIdentifier<'static>,
    ) -> Result<Option<(SystemTime, SystemTime, Duration)>, String> {
        if self.account.is_none() {
            let found = load_or_create_account(&self.shared.settings, false).await;
            self.account = found.map_err(|failure| failure.message)?;
        }
        let account = self.account.as_ref().ok_or("there is no account")?;
        match account.renewal_info(&identifier).await {
            Ok((info, again)) => {
                let window = info.suggested_window;
                let time = |seconds: i64| {
                    let seconds = u64::try_from(seconds).ok()?;
                    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
                };
                let start =
                    time(window.start.unix_timestamp()).ok_or("the window is not a valid time")?;
                let end =
                    time(window.end.unix_timestamp()).ok_or("the window is not a valid time")?;
                Ok(Some((start, end, again)))
            }
            Err(Error::Unsupported(_)) => Ok(None),
            Err(error) => Err(crate::http_client::error_chain(&error)),
        }
    }

    /// Publishes the status to handles.
    fn publish_status(&self) {
        let names = self.schedule.entries().iter().map(|entry| DomainStatus {
            domain: entry.domain.clone(),
            not_after: entry.current.as_ref().map(|present: &CurrentCertificate| present.not_after),
            renew_at: Some(entry.due_at()).filter(|due| *due > SystemTime::UNIX_EPOCH),
            failures: entry.failures,
            last_error: entry.last_error.clone(),
        });
        lock(&self.shared.status).domains = names.collect();
    }
}

fn remaining(until: SystemTime) -> Duration {
    until.duration_since(SystemTime::now()).unwrap_or_default()
}
