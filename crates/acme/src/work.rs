//! What is done and when: nothing of it runs where requests are served.

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

/// How often it looks whether another instance has stored something, and whether the clock has jumped.
const LOOK_PAUSE: Duration = Duration::from_secs(3_600);

/// How often it tries to store what could not be stored.
const SAVE_PAUSE: Duration = Duration::from_secs(60);

/// How long it waits for another instance that is ordering.
const LOCK_PAUSE: Duration = Duration::from_secs(5);

/// How long another instance may have the lock while nothing comes of it, before that is a failure.
const LOCKED_MAX: Duration = Duration::from_secs(3_600);

/// How long an order may take in all: less than its lease.
const ORDER_MAX: Duration = Duration::from_secs(600);

const _: () = assert!(ORDER_MAX.as_secs() * 3 / 2 <= LEASE.as_secs());

/// How long it may wait for what its authority asks for, so that there is time for the rest of it.
const ORDER_REST_MAX: Duration = Duration::from_secs(450);

/// A number from 0 to 1.
fn throw() -> f64 {
    let mut bytes = [0; 4];
    // Without randomness everything happens at once, which is better than not at all.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX)
}

/// The work of one server.
pub(crate) struct Work {
    shared: Arc<Shared>,
    served: Vec<Tls>,
    book: Book,
    account: Option<Account>,
    /// The account was found or made for orders, and is as the settings are.
    may_order: bool,
    /// Certificates that are served and could not be stored.
    unsaved: HashMap<String, Vec<u8>>,
    /// Certificates that are not served, since they are not valid yet by this machine's clock.
    early: HashMap<String, Read>,
    /// Since when another instance has had the lock.
    locked_since: Option<Instant>,
    /// What is being done, for when it panics.
    step: Option<Step>,
    /// How often something else has panicked, since it did not.
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

    /// Works until it is dropped, whatever panics meanwhile.
    pub(crate) async fn run(&mut self) {
        loop {
            let Err(panic) = Caught::new(self.work()).await;
            // To tell of it may panic as well, where the log can be written nowhere.
            let pause = catch_unwind(AssertUnwindSafe(|| self.panicked(&panic)));
            sleep(pause.unwrap_or(self.shared.settings.pauses.1)).await;
        }
    }

    /// Something panicked: it is done again after a pause.
    fn panicked(&mut self, panic: &str) -> Duration {
        lock(&self.shared.status).panics += 1;
        // It may be what is in disorder.
        self.forget_account();
        match self.step.take() {
            Some(Step::Order(name)) => {
                self.fail(
                    &name,
                    Failure::new(FailureReason::Panic, format!("it panicked: {panic}")),
                );
                Duration::ZERO
            }
            Some(Step::Ask(name)) => {
                tracing::error!(target: "peregrine", name, panic,
                    "to ask when a certificate should be renewed panicked; it is tried again later");
                self.book.untold(&name, SystemTime::now(), Duration::ZERO);
                Duration::ZERO
            }
            Some(Step::Sleep(_)) | None => {
                self.panics = self.panics.saturating_add(1);
                let (first, max) = self.shared.settings.pauses;
                let pause = when::pause(self.panics, first, max, throw());
                tracing::error!(target: "peregrine", panic, retry = ?pause,
                    "what gets certificates panicked; it goes on after a pause");
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
                    // The TLS of others is on other threads; what was asked of this one meanwhile is looked at.
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

    /// Follows what handles have changed.
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
                    tracing::error!(target: "peregrine", name, %error, "a certificate stays");
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

    /// Serves a certificate from the next handshake on, or from when it is valid on.
    fn serve(&mut self, name: &str, read: &Read) {
        self.early.remove(name);
        let is_early = read.present.not_before > SystemTime::now();
        let names = self.shared.names();
        // The first name's certificate is for clients that ask for none.
        let later =
            names.iter().position(|known| known == name).map_or(&[][..], |at| &names[at + 1..]);
        for tls in &self.served {
            let certificate = Certificate::from_pem(&read.pem, &read.pem).labelled(name);
            match tls.put_certificate_ahead(certificate, later) {
                Ok(()) => {}
                Err(TlsError::NotValidNow { .. }) if is_early => {
                    tracing::warn!(target: "peregrine", name,
                        "a certificate is not valid yet, and waits until it is; is the clock right?");
                    self.early.insert(name.to_owned(), read.clone());
                }
                // One that has expired is there already, if it was stored at the start.
                Err(TlsError::NotValidNow { .. }) => {}
                Err(error) => tracing::error!(target: "peregrine", name, %error,
                    "a certificate that was issued is not served"),
            }
        }
    }

    /// Looks at what other instances have stored, and stores what could not be stored.
    fn look(&mut self) {
        let stored = &self.shared.settings.stored;
        self.unsaved.retain(|name, pem| {
            let kept = stored.keep_certificate(name, pem);
            if kept.is_ok() {
                tracing::info!(target: "peregrine", name, "the certificate is stored now");
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

    /// Takes a certificate that another instance has stored, if it is better than the one that is served.
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
                "a certificate was taken that another instance has stored");
            self.serve(name, &read);
            self.book.has(name, read.present, now, throw());
            self.tell();
            lock(&self.shared.status).taken += 1;
        }
        is_better
    }

    /// Gets a certificate, unless another instance does or has done so.
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
                    let cause = "another instance has the lock of the storage, and nothing comes of \
                        it; end the process that has it";
                    self.fail(name, Failure::new(FailureReason::Locked, cause));
                } else {
                    let pause = LOCK_PAUSE.min(shared.settings.pauses.0).mul_f64(1.0 + throw());
                    tracing::debug!(target: "peregrine", name, "another instance is ordering");
                    self.book.wait(name, SystemTime::now(), pause);
                }
                return;
            }
            Err(error) => {
                let text = format!("the lock of the storage cannot be had: {error}");
                return self.fail(name, Failure::new(FailureReason::Storage, text));
            }
        };
        if self.take(name) {
            return;
        }
        // What was said before is about what was asked before.
        let _ = shared.settings.client.patience();
        let until = Instant::now() + ORDER_REST_MAX;
        let obtained = timeout(ORDER_MAX, async {
            match self.obtain(name, until).await {
                // The account was there before, and the directory was set up anew: with another one it may do.
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
                let text = format!("it took longer than {} s", ORDER_MAX.as_secs());
                self.fail(name, Failure::new(FailureReason::Timeout, text));
            }
        }
    }

    /// Has another instance had the lock for too long? That is asked each time that it has it.
    fn is_locked_out(&mut self) -> bool {
        let is_long = self.locked_since.is_some_and(|since| since.elapsed() >= LOCKED_MAX);
        if is_long || self.locked_since.is_none() {
            self.locked_since = Some(Instant::now());
        }
        is_long
    }

    async fn obtain(&mut self, name: &str, until: Instant) -> Result<Read, Failure> {
        let shared = Arc::clone(&self.shared);
        // One that was found to ask for a window was not brought in line with the settings.
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

    /// A certificate was issued. It is served whether or not it can be stored.
    fn finish(&mut self, name: &str, read: Read) {
        self.serve(name, &read);
        let stored = &self.shared.settings.stored;
        match stored.keep_certificate(name, &read.pem) {
            Ok(()) => {
                self.unsaved.remove(name);
                // What is left over is found to be done.
                let _ = stored.forget_begun(name);
            }
            Err(error) => {
                tracing::error!(target: "peregrine", name, %error,
                    "a new certificate is served, but cannot be stored; that is tried again");
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
                "a certificate was due as soon as it was issued; the next one waits; is the clock right?");
        }
        // Whoever sees the count sees what came of it.
        self.tell();
        lock(&self.shared.status).issued += 1;
    }

    /// An order failed. The certificate that is there stays.
    fn fail(&mut self, name: &str, Failure { reason, text: error, until, .. }: Failure) {
        // It may be the account, or the directory may have moved.
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
                "a certificate could not be got; clients that ask for the name are refused, or get \
                 another one")
            }
        }
        self.book.failed(name, error, now, pause);
        self.tell();
        let mut status = lock(&self.shared.status);
        status.failed += 1;
        *status.failed_by.entry(reason).or_default() += 1;
    }

    /// Whether the directory has refused something for now, and until when it wants to be left alone. Where that is
    /// about all that it is asked, nothing is.
    fn patience(&mut self, now: SystemTime) -> Option<Option<SystemTime>> {
        let patience = self.shared.settings.client.patience()?;
        if let Some(until) = patience.until.filter(|until| patience.is_for_all && *until > now) {
            tracing::info!(target: "peregrine", seconds = when::patience(until, now).as_secs(),
                "the authority wants to be asked nothing for a while");
            self.book.keep_quiet(until);
        }
        Some(patience.until)
    }

    fn forget_account(&mut self) {
        (self.account, self.may_order) = (None, false);
    }

    /// Asks when the certificate should be renewed.
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
                    "the authority does not say when to renew the certificate");
                self.forget_account();
                let until = self.patience(now).flatten();
                let patience = until.map_or(Duration::ZERO, |until| when::patience(until, now));
                self.book.untold(name, now, patience);
            }
        }
    }

    /// The window in which the authority suggests to renew, and when to ask again; `None` if it knows of none.
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
                let start = time(window.start.unix_timestamp()).ok_or("its window is no time")?;
                let end = time(window.end.unix_timestamp()).ok_or("its window is no time")?;
                Ok(Some((start, end, again)))
            }
            Err(Error::Unsupported(_)) => Ok(None),
            Err(error) => Err(crate::client::whole(&error)),
        }
    }

    /// Tells handles how things stand.
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
