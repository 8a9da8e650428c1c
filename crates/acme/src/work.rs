//! The background work and its schedule. None of it runs on threads that serve requests.

use crate::account::{account, forget};
use crate::book::{Book, Present, Step};
use crate::caught::Caught;
use crate::failure::{Failure, FailureReason};
use crate::handle::NameStatus;
use crate::order::{Ordering, identifier};
use crate::shared::{Shared, lock};
use crate::stored::{LEASE, Read};
use crate::when;
use instant_acme::{Account, CertificateIdentifier, Error};
use peregrine_tls::{Certificate, Tls, TlsError};
use std::collections::HashMap;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::time::{sleep, timeout};

/// How often to check the storage for changes by other instances, and the clock for jumps.
const LOOK_PAUSE: Duration = Duration::from_secs(3_600);

/// The retry interval for data that could not be stored.
const SAVE_PAUSE: Duration = Duration::from_secs(60);

/// The polling interval while another instance is ordering.
const LOCK_PAUSE: Duration = Duration::from_secs(5);

/// How long another instance may hold the lock without result before that is a failure.
const LOCKED_MAX: Duration = Duration::from_secs(3_600);

/// The time limit of an order, less than its lease.
const ORDER_MAX: Duration = Duration::from_secs(600);

const _: () = assert!(ORDER_MAX.as_secs() * 3 / 2 <= LEASE.as_secs());

/// The time limit for delays requested by the authority, which leaves time for the rest of the
/// order.
const ORDER_REST_MAX: Duration = Duration::from_secs(450);

/// A random number from 0 to 1.
fn throw() -> f64 {
    let mut bytes = [0; 4];
    // Without randomness, all instances act at the same time, which is better than not at all.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX)
}

/// The work for one server.
pub(crate) struct Work {
    shared: Arc<Shared>,
    served: Vec<Tls>,
    book: Book,
    account: Option<Account>,
    /// Whether the account was found or created for orders, and matches the settings.
    may_order: bool,
    /// Certificates that are served but could not be stored.
    unsaved: HashMap<String, Vec<u8>>,
    /// Certificates that are not served because they are not valid yet, by this machine's clock.
    early: HashMap<String, Read>,
    /// Since when another instance has held the lock.
    locked_since: Option<Instant>,
    /// The step in progress, to report if it panics.
    step: Option<Step>,
    /// The number of panics outside steps since the last success.
    panics: u32,
}

impl Work {
    pub(crate) fn new(shared: Arc<Shared>, served: Vec<Tls>) -> Self {
        let (book, unsaved, early) = (Book::default(), HashMap::new(), HashMap::new());
        Self {
            shared,
            served,
            book,
            account: None,
            may_order: false,
            unsaved,
            early,
            locked_since: None,
            step: None,
            panics: 0,
        }
    }

    /// Works until it is dropped, even after panics.
    pub(crate) async fn run(&mut self) {
        loop {
            let Err(panic) = Caught::new(self.work()).await;
            // Logging the panic may panic too, if the log cannot be written.
            let pause = catch_unwind(AssertUnwindSafe(|| self.panicked(&panic)));
            sleep(pause.unwrap_or(self.shared.settings.pauses.1)).await;
        }
    }

    /// Reports a panic, and returns the delay before the work continues.
    fn panicked(&mut self, panic: &str) -> Duration {
        lock(&self.shared.status).panics += 1;
        // The account may be in an inconsistent state.
        self.forget_account();
        match self.step.take() {
            Some(Step::Order(name)) => {
                self.fail(
                    &name,
                    Failure::new(FailureReason::Panic, format!("the order panicked: {panic}")),
                );
                Duration::ZERO
            }
            Some(Step::Ask(name)) => {
                tracing::error!(target: "peregrine", name, panic,
                    "asking the authority when to renew a certificate panicked; it is tried again later");
                self.book.untold(&name, SystemTime::now(), Duration::ZERO);
                Duration::ZERO
            }
            Some(Step::Sleep(_)) | None => {
                self.panics = self.panics.saturating_add(1);
                let (first, max) = self.shared.settings.pauses;
                let pause = when::pause(self.panics, first, max, throw());
                tracing::error!(target: "peregrine", panic, retry = ?pause,
                    "the thread that obtains certificates panicked; it continues after a pause");
                pause
            }
        }
    }

    async fn work(&mut self) -> Infallible {
        loop {
            self.step = None;
            self.follow();
            let now = SystemTime::now();
            let step = self.book.next(now);
            self.step = Some(step.clone());
            self.tell();
            match step {
                Step::Order(name) => {
                    self.order(&name).await;
                    // Yield, so that changes by handles during the order are processed.
                    tokio::task::yield_now().await;
                }
                Step::Ask(name) => self.ask(&name).await,
                Step::Sleep(until) => {
                    let is_calm = self.unsaved.is_empty() && self.early.is_empty();
                    let most = if is_calm { LOOK_PAUSE } else { SAVE_PAUSE };
                    let pause = until.map_or(most, |until| {
                        until.duration_since(now).unwrap_or_default().min(most)
                    });
                    tokio::select! {
                        () = sleep(pause) => self.look(),
                        () = self.shared.changed.notified() => {}
                    }
                    self.panics = 0;
                }
            }
        }
    }

    /// Applies the changes that handles have made.
    fn follow(&mut self) {
        let (names, hurried) = {
            let mut wanted = lock(&self.shared.wanted);
            (wanted.names.clone(), std::mem::take(&mut wanted.hurried))
        };
        let gone = self.book.entries().iter().filter(|entry| !names.contains(&entry.name));
        for name in gone.map(|entry| entry.name.clone()).collect::<Vec<_>>() {
            self.book.remove(&name);
            self.unsaved.remove(&name);
            self.early.remove(&name);
            for tls in &self.served {
                if let Err(error) = tls.remove_certificate(&name) {
                    tracing::error!(target: "peregrine", name, %error, "a certificate cannot be removed");
                }
            }
        }
        for name in names {
            if self.book.entry(&name).is_none() {
                let read = self.shared.settings.stored.certificate(&name);
                let present = read.map(|read| {
                    self.serve(&name, &read);
                    read.present
                });
                self.book.add(&name, present, SystemTime::now(), throw());
            }
        }
        for name in hurried {
            self.book.hurry(&name, SystemTime::now());
        }
    }

    /// Serves a certificate from the next handshake on, or once it becomes valid.
    fn serve(&mut self, name: &str, read: &Read) {
        self.early.remove(name);
        let is_early = read.present.not_before > SystemTime::now();
        let names = self.shared.names();
        // Clients that send no name get the first name's certificate.
        let later =
            names.iter().position(|known| known == name).map_or(&[][..], |at| &names[at + 1..]);
        for tls in &self.served {
            let certificate = Certificate::from_pem(&read.pem, &read.pem).labelled(name);
            match tls.put_certificate_ahead(certificate, later) {
                Ok(()) => {}
                Err(TlsError::NotValidNow { .. }) if is_early => {
                    tracing::warn!(target: "peregrine", name,
                        "a certificate is not valid yet, and is served once it is; check the clock");
                    self.early.insert(name.to_owned(), read.clone());
                }
                // An expired certificate is served already if it was stored at the start.
                Err(TlsError::NotValidNow { .. }) => {}
                Err(error) => tracing::error!(target: "peregrine", name, %error,
                    "an issued certificate cannot be served"),
            }
        }
    }

    /// Checks the storage for certificates of other instances, and retries to store unsaved ones.
    fn look(&mut self) {
        let stored = &self.shared.settings.stored;
        self.unsaved.retain(|name, pem| {
            let kept = stored.keep_certificate(name, pem);
            if kept.is_ok() {
                tracing::info!(target: "peregrine", name, "the certificate was stored");
            }
            kept.is_err()
        });
        let now = SystemTime::now();
        let valid = self.early.extract_if(|_, read| read.present.not_before <= now);
        for (name, read) in valid.collect::<Vec<_>>() {
            self.serve(&name, &read);
        }
        for name in self.shared.names() {
            if !self.unsaved.contains_key(&name) {
                self.take(&name);
            }
        }
    }

    /// Takes over a certificate that another instance has stored, if it is better than the served
    /// one.
    fn take(&mut self, name: &str) -> bool {
        let Some(entry) = self.book.entry(name) else { return false };
        let Some(read) = self.shared.settings.stored.certificate(name) else { return false };
        let now = SystemTime::now();
        let is_better = read.present.not_after > now
            && entry.present.as_ref().is_none_or(|present| {
                read.present != *present && read.present.not_before > present.not_before
            });
        if is_better {
            tracing::info!(target: "peregrine", name,
                "a certificate stored by another instance was loaded");
            self.serve(name, &read);
            self.book.has(name, read.present, now, throw());
            self.tell();
            lock(&self.shared.status).taken += 1;
        }
        is_better
    }

    /// Obtains a certificate, unless another instance does or has done so.
    async fn order(&mut self, name: &str) {
        let shared = Arc::clone(&self.shared);
        let _lock = match shared.settings.stored.try_lock() {
            Ok(Some(lock)) => {
                self.locked_since = None;
                lock
            }
            Ok(None) => {
                if self.take(name) {
                    self.locked_since = None;
                } else if self.is_locked_out() {
                    let cause = "another instance holds the lock of the storage without any \
                        result; stop the process that holds it";
                    self.fail(name, Failure::new(FailureReason::Locked, cause));
                } else {
                    let pause = LOCK_PAUSE.min(shared.settings.pauses.0).mul_f64(1.0 + throw());
                    tracing::debug!(target: "peregrine", name, "another instance is ordering");
                    self.book.wait(name, SystemTime::now(), pause);
                }
                return;
            }
            Err(error) => {
                let text = format!("the storage cannot be locked: {error}");
                return self.fail(name, Failure::new(FailureReason::Storage, text));
            }
        };
        if self.take(name) {
            return;
        }
        // Drop earlier results: they concern earlier requests.
        let _ = shared.settings.client.patience();
        let until = Instant::now() + ORDER_REST_MAX;
        let obtained = timeout(ORDER_MAX, async {
            match self.obtain(name, until).await {
                // The directory was reset and does not know the account: retry with a new one.
                Err(failure) if failure.is_unknown_account => {
                    let account = self.account.take();
                    self.forget_account();
                    forget(&shared.settings.stored, account.as_ref().map(Account::id));
                    self.obtain(name, until).await
                }
                result => result,
            }
        });
        match obtained.await {
            Ok(Ok(read)) => self.finish(name, read),
            Ok(Err(failure)) => self.fail(name, failure),
            Err(_) => {
                let text = format!("the order took longer than {} s", ORDER_MAX.as_secs());
                self.fail(name, Failure::new(FailureReason::Timeout, text));
            }
        }
    }

    /// Whether another instance has held the lock for too long. Called each time the lock is taken.
    fn is_locked_out(&mut self) -> bool {
        let is_long = self.locked_since.is_some_and(|since| since.elapsed() >= LOCKED_MAX);
        if is_long || self.locked_since.is_none() {
            self.locked_since = Some(Instant::now());
        }
        is_long
    }

    async fn obtain(&mut self, name: &str, until: Instant) -> Result<Read, Failure> {
        let shared = Arc::clone(&self.shared);
        // An account that was only loaded to ask for a window has not been compared with the
        // settings.
        if !self.may_order {
            self.account = account(&shared.settings, true).await?;
            self.may_order = true;
        }
        let no_account = || Failure::new(FailureReason::Account, "there is no account");
        let account = self.account.as_ref().ok_or_else(no_account)?;
        let entry = self.book.entry(name);
        let ordering = Ordering {
            settings: &shared.settings,
            challenges: &shared.challenges,
            name,
            failures: entry.map_or(0, |entry| entry.failures),
            present: entry.and_then(|entry| entry.present.as_ref()),
            until,
        };
        ordering.run(account).await
    }

    /// Serves a certificate that was issued, whether or not it can be stored.
    fn finish(&mut self, name: &str, read: Read) {
        self.serve(name, &read);
        let stored = &self.shared.settings.stored;
        match stored.keep_certificate(name, &read.pem) {
            Ok(()) => {
                self.unsaved.remove(name);
                // If this fails, the leftover order is later found to be complete.
                let _ = stored.forget_begun(name);
            }
            Err(error) => {
                tracing::error!(target: "peregrine", name, %error,
                    "a new certificate is served, but cannot be stored; storing it is retried");
                self.unsaved.insert(name.to_owned(), read.pem);
            }
        }
        let until = rest(read.present.not_after);
        tracing::info!(target: "peregrine", name, days = until.as_secs() / 86_400,
            "a certificate was issued");
        let pauses = self.shared.settings.pauses;
        self.book.issued(name, read.present, SystemTime::now(), throw(), pauses);
        if self.book.entry(name).is_some_and(|entry| entry.hasty > 0) {
            tracing::warn!(target: "peregrine", name,
                "a certificate was due for renewal as soon as it was issued; the next order is delayed; check the clock");
        }
        // Publish the status before the counter, so that a reader of the counter sees the result.
        self.tell();
        lock(&self.shared.status).issued += 1;
    }

    /// Records a failed order. The present certificate stays.
    fn fail(&mut self, name: &str, Failure { reason, text: error, until, .. }: Failure) {
        // The cause may be the account, or the directory may have moved.
        self.forget_account();
        let now = SystemTime::now();
        let (first, max) = self.shared.settings.pauses;
        let entry = self.book.entry(name);
        let failures = entry.map_or(0, |entry| entry.failures).saturating_add(1);
        let left = entry.and_then(|entry| entry.present.as_ref()).map(|present| present.not_after);
        let refused = self.patience(now);
        let is_busy = refused.is_some() && reason != FailureReason::Panic;
        let reason = if is_busy { FailureReason::Busy } else { reason };
        let until = until.max(refused.flatten());
        let patience = until.map_or(Duration::ZERO, |until| when::patience(until, now));
        let pause = when::pause(failures, first, max, throw()).max(patience);
        match left.map(rest) {
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
        self.book.failed(name, error, now, pause);
        self.tell();
        let mut status = lock(&self.shared.status);
        status.failed += 1;
        *status.failed_by.entry(reason).or_default() += 1;
    }

    /// Whether the directory has rejected a request for now, and until when. If it rejects all
    /// requests, none are made until then.
    fn patience(&mut self, now: SystemTime) -> Option<Option<SystemTime>> {
        let patience = self.shared.settings.client.patience()?;
        if let Some(until) = patience.until.filter(|until| patience.is_for_all && *until > now) {
            tracing::info!(target: "peregrine", seconds = when::patience(until, now).as_secs(),
                "the authority requests a pause of all requests");
            self.book.keep_quiet(until);
        }
        Some(patience.until)
    }

    fn forget_account(&mut self) {
        (self.account, self.may_order) = (None, false);
    }

    /// Asks the authority when to renew the certificate.
    async fn ask(&mut self, name: &str) {
        let present = self.book.entry(name).and_then(|entry| entry.present.clone());
        let answer = match present.as_ref().and_then(identifier) {
            Some(identifier) => self.window(identifier).await,
            None => Ok(None),
        };
        let now = SystemTime::now();
        match answer {
            Ok(Some((start, end, again))) => {
                self.book.told(name, (start, end), again, now, throw());
            }
            Ok(None) => self.book.never_told(name),
            Err(error) => {
                tracing::debug!(target: "peregrine", name, error,
                    "the authority did not say when to renew the certificate");
                self.forget_account();
                let until = self.patience(now).flatten();
                let patience = until.map_or(Duration::ZERO, |until| when::patience(until, now));
                self.book.untold(name, now, patience);
            }
        }
    }

    /// The renewal window suggested by the authority, and when to ask again; `None` if it does not
    /// support windows.
    async fn window(
        &mut self,
        identifier: CertificateIdentifier<'static>,
    ) -> Result<Option<(SystemTime, SystemTime, Duration)>, String> {
        if self.account.is_none() {
            let found = account(&self.shared.settings, false).await;
            self.account = found.map_err(|failure| failure.text)?;
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
            Err(error) => Err(crate::client::whole(&error)),
        }
    }

    /// Publishes the status to handles.
    fn tell(&self) {
        let names = self.book.entries().iter().map(|entry| NameStatus {
            name: entry.name.clone(),
            not_after: entry.present.as_ref().map(|present: &Present| present.not_after),
            renew_at: Some(entry.due()).filter(|due| *due > SystemTime::UNIX_EPOCH),
            failures: entry.failures,
            last_error: entry.last_error.clone(),
        });
        lock(&self.shared.status).names = names.collect();
    }
}

fn rest(until: SystemTime) -> Duration {
    until.duration_since(SystemTime::now()).unwrap_or_default()
}
