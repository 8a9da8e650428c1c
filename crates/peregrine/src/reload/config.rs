//! Reloads the configuration while the server runs.

use crate::error::Error;
use crate::listen::listener::Listener;
use crate::runtime::console::{complain, tell};
use crate::runtime::driver_choice::DriverChoice;
use crate::runtime::handle::{Reload, Reloading};
use crate::runtime::memory_limits;
use crate::runtime::worker::Patterns;
use peregrine_admin::Log;
use peregrine_admin::internal::{Place, Sink};
use peregrine_driver::SocketOptions;
use peregrine_server::{Limits, Live, MemoryMax, OverloadLimits, Style, Traces};
use peregrine_settings::internal::{Figures, changes, settle, summary};
use peregrine_settings::{AccessLogConfig, ServerConfig};
use peregrine_web::TrustedProxies;
use peregrine_web::panics::{contained, discard};
use std::fmt::Write as _;
use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use tokio::sync::watch;

/// The configuration of a running server, and the channels that apply its changes.
pub(crate) struct Configured {
    /// The settings in effect.
    config: ServerConfig,
    /// The listeners of the configuration, and the channels that update them.
    listeners: Vec<(String, watch::Sender<Live>)>,
    /// The listeners that the program added, each with its own limits and proxies, if set, and its
    /// channel.
    added: Vec<(Option<Limits>, Option<TrustedProxies>, watch::Sender<Live>)>,
    /// The number of workers, and the channel that updates their overload limits.
    workers: usize,
    overload: watch::Sender<OverloadLimits>,
    /// The line format and the target of the access log, if the configuration controls the log.
    style: Option<watch::Sender<Style>>,
    place: Option<Place>,
    /// The sampling settings, if the configuration controls the traces.
    traces: Option<watch::Sender<Traces>>,
    /// The patterns of the application's routes, set once it is built.
    patterns: Patterns,
    follower: Option<Follower>,
    /// Settings and sections that the program has overridden in code.
    in_code: Vec<&'static str>,
    /// The trusted proxies set in code.
    proxies: Option<TrustedProxies>,
    /// The settings in effect as text, for the admin listener.
    text: Arc<Mutex<String>>,
    figures: Arc<Figures>,
    quiet: bool,
}

/// The changes that a reload applies in addition to the new configuration.
struct Next<'c> {
    lives: Vec<(&'c watch::Sender<Live>, Live)>,
    overload: OverloadLimits,
    sink: Option<Sink>,
    style: Style,
    traces: Option<Traces>,
}

/// The settings that a server starts with.
pub(crate) struct Began<'s> {
    pub(crate) limits: &'s Limits,
    pub(crate) proxies: Option<&'s TrustedProxies>,
    pub(crate) workers: Option<NonZeroUsize>,
    /// The actual number of workers.
    pub(crate) count: usize,
    pub(crate) pin_workers: bool,
    pub(crate) driver: DriverChoice,
    pub(crate) sockets: &'s SocketOptions,
    pub(crate) quiet: bool,
}

type Follower = Box<dyn Fn(&ServerConfig) + Send + Sync>;

impl std::fmt::Debug for Configured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Configured").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Configured {
    pub(crate) fn new(config: ServerConfig) -> Self {
        Self {
            config,
            listeners: Vec::new(),
            added: Vec::new(),
            workers: 1,
            overload: watch::Sender::default(),
            style: None,
            place: None,
            traces: None,
            patterns: Arc::default(),
            follower: None,
            in_code: Vec::new(),
            proxies: None,
            text: Arc::default(),
            figures: Arc::new(Figures::begin()),
            quiet: false,
        }
    }

    /// Calls `follow` with the configuration each time a reload has changed something.
    pub(crate) fn followed_by(&mut self, follow: impl Fn(&ServerConfig) + Send + Sync + 'static) {
        self.follower = Some(Box::new(follow));
    }

    pub(crate) fn follow(&mut self, name: &str, live: watch::Sender<Live>) {
        self.listeners.push((name.to_owned(), live));
    }

    /// Whether the configuration was read from a source that can be read again.
    pub(crate) fn is_read(&self) -> bool {
        self.config.source().is_some()
    }

    /// Subscribes to the overload limits of workers.
    pub(crate) fn overload(&self) -> Option<watch::Receiver<OverloadLimits>> {
        self.is_read().then(|| self.overload.subscribe())
    }

    /// The settings in effect, as shown by the admin listener.
    pub(crate) fn text(&self) -> Arc<Mutex<String>> {
        Arc::clone(&self.text)
    }

    /// The reload metrics.
    pub(crate) fn figures(&self) -> Arc<Figures> {
        Arc::clone(&self.figures)
    }

    /// Sets where the patterns of the application's routes will be found.
    pub(crate) fn knows(&mut self, patterns: &Patterns) {
        self.patterns = Arc::clone(patterns);
    }

    /// Makes the access log follow the configuration, unless it was set in code.
    pub(crate) fn include_log(&mut self, log: &mut Log) {
        if self.is_read() && !self.is_in_code("access_log") {
            let (change, style) = watch::channel(self.config.access_log.style());
            log.follow(style);
            self.style = Some(change);
        }
    }

    /// Stores the target of the access log, which has started.
    pub(crate) fn logging_at(mut self, place: Option<Place>) -> Self {
        self.place = place.filter(|_| self.style.is_some());
        self
    }

    /// Makes traces follow the configuration, unless they were set in code.
    pub(crate) fn include_traces(&mut self, traces: Traces) -> Traces {
        if !self.is_read() || self.is_in_code("traces") {
            return traces;
        }
        let (change, live) = watch::channel(traces.clone());
        self.traces = Some(change);
        traces.live(live)
    }

    /// Takes over the server's actual settings. What was set in code after loading is not reloaded.
    pub(crate) fn begin(&mut self, began: &Began<'_>) {
        let Began { limits, proxies, workers, count, pin_workers, driver, sockets, quiet } = *began;
        if *limits != self.config.limits {
            self.config.limits = limits.clone();
            self.set_by_program("limits");
        }
        if self.config.proxies().ok().flatten().as_ref() != proxies {
            self.set_by_program("trusted_proxies");
        }
        self.proxies = proxies.cloned();
        if self.config.workers != workers {
            self.config.workers = workers;
            self.in_code.push("workers");
        }
        if self.config.pin_workers != pin_workers {
            self.config.pin_workers = pin_workers;
            self.in_code.push("pin_workers");
        }
        if DriverChoice::from(self.config.driver.kind) != driver {
            self.config.driver.kind = driver.into();
            self.in_code.push("driver.kind");
        }
        if self.config.socket_options() != *sockets {
            self.config.sockets = sockets.clone().into();
            self.in_code.push("sockets");
        }
        if self.config.quiet != quiet {
            self.config.quiet = quiet;
            self.in_code.push("quiet");
        }
        self.quiet = quiet;
        self.workers = count;
        self.overload.send_replace(memory_limits::settled(&self.config.limits.overload, count));
        self.show();
    }

    /// Marks a section as overridden in code, even if the value is the same as in the
    /// configuration.
    pub(crate) fn set_by_program(&mut self, section: &'static str) {
        if !self.in_code.contains(&section) {
            self.in_code.push(section);
        }
    }

    /// Makes a listener that the program added follow all settings that the program has not set for
    /// it. Call it after [`begin`](Self::begin).
    pub(crate) fn include(&mut self, listener: &mut Listener) {
        let Some((limits, proxies)) = listener.own() else { return };
        let present = limits.as_ref().unwrap_or(&self.config.limits).clone();
        let trusted = proxies.clone().or_else(|| self.proxies.clone());
        let (live, changes) = watch::channel(Live { limits: present, proxies: trusted });
        listener.follow(changes);
        self.added.push((limits, proxies, live));
    }

    /// Starts the reload thread, and returns the function that requests a reload. Dropping the
    /// function ends the thread. `certificates` reloads the certificates.
    pub(crate) fn start(
        mut self,
        certificates: Option<Arc<Reload>>,
    ) -> io::Result<Option<Arc<Reload>>> {
        if !self.is_read() {
            return Ok(certificates);
        }
        let (sender, wakes) = mpsc::channel::<Reloading>();
        let keep = move || {
            while let Ok(mut reloading) = wakes.recv() {
                // One reload serves all requests received until now.
                wakes.try_iter().for_each(|other| reloading.join(other));
                contained(|| {
                    if let Err(error) = self.reload() {
                        let why = format!("serving; the configuration is unchanged: {error}");
                        reloading.fails(why);
                    }
                });
                // The reload is complete when `reloading` is dropped.
                if let Some(reload) = &certificates {
                    reload(reloading);
                }
            }
        };
        thread::Builder::new().name("peregrine-config".to_owned()).spawn(keep)?;
        let wake = move |one| {
            let _ = sender.send(one);
        };
        Ok(Some(Arc::new(wake)))
    }

    fn reload(&mut self) -> Result<(), Error> {
        let read = self.settle().and_then(|()| self.read());
        self.figures.reloaded(read.is_ok());
        match &read {
            Ok(told) => tell(told, self.quiet),
            Err(error) => {
                let text = format!("peregrine: the configuration is unchanged: {error}");
                complain(&text, self.quiet);
            }
        }
        read.map(drop)
    }

    /// Waits until the file has stopped changing.
    fn settle(&self) -> Result<(), Error> {
        let path = self.config.source().and_then(|source| source.layers.path());
        path.map_or(Ok(()), |path| {
            settle(path).map_err(|error| Error::Config(format!("{}: {error}", path.display())))
        })
    }

    /// Reads the layers again and applies the changes. Returns the text for the log. On error,
    /// nothing has changed.
    pub(super) fn read(&mut self) -> Result<String, Error> {
        let Some(source) = self.config.source() else {
            return Ok("peregrine: the configuration was built in code".to_owned());
        };
        let read = ServerConfig::read((*source.code).clone(), source.layers.clone())?;
        let next = self.as_far_as_possible(&read);
        let effect = self.effect(&next)?;
        let changed = changes(&self.config, &next)?;
        let mut waiting = changes(&next, &read)?;
        waiting.retain(|change| !self.is_in_code(&change.setting));
        // Nothing can fail from here on.
        self.take(effect);
        self.config = next;
        self.show();
        if let (Some(follower), false) = (&self.follower, changed.is_empty()) {
            let follow = AssertUnwindSafe(|| follower(&self.config));
            if let Err(panic) = catch_unwind(follow) {
                discard(panic);
                complain(
                    "peregrine: the function that follows the configuration panicked",
                    self.quiet,
                );
            }
        }
        Ok(summary(&changed, &waiting))
    }

    /// Prepares what a reload will apply, without changing anything.
    fn effect(&self, next: &ServerConfig) -> Result<Next<'_>, Error> {
        let mut lives = Vec::new();
        for (name, live) in &self.listeners {
            let Some(of) = next.listeners.get(name) else { continue };
            let mut value = next.live(name, of)?;
            if of.trusted_proxies.is_none() && self.is_in_code("trusted_proxies") {
                value.proxies = self.proxies.clone();
            }
            lives.push((live, value));
        }
        for (limits, own, live) in &self.added {
            let proxies = match own {
                Some(own) => Some(own.clone()),
                None if self.is_in_code("trusted_proxies") => self.proxies.clone(),
                None => next.proxies()?,
            };
            let limits = limits.as_ref().unwrap_or(&next.limits).clone();
            lives.push((live, Live { limits, proxies }));
        }
        let (style, traces) = (next.access_log.style(), next.traces.made());
        if let Some(known) = self.patterns.get() {
            if self.style.is_some() {
                style.check(known).map_err(Error::Config)?;
            }
            if let (Some(traces), true) = (&traces, self.traces.is_some()) {
                traces.check(known).map_err(Error::Config)?;
            }
        }
        let is_elsewhere = next.access_log.target != self.config.access_log.target;
        let opens = self.place.is_some() && is_elsewhere;
        let sink = if opens { open(&next.access_log)? } else { None };
        let overload = memory_limits::settled(&next.limits.overload, self.workers);
        Ok(Next { lives, overload, sink, style, traces })
    }

    fn take(&self, next: Next<'_>) {
        for (live, value) in next.lives {
            replace(live, value);
        }
        replace(&self.overload, next.overload);
        if let Some(style) = &self.style {
            replace(style, next.style);
        }
        if let (Some(place), Some(sink)) = (&self.place, next.sink) {
            place.switch(sink);
        }
        if let (Some(change), Some(traces)) = (&self.traces, next.traces) {
            change.send_replace(traces);
        }
    }

    /// Whether the program has overridden this setting or the section that contains it.
    fn is_in_code(&self, setting: &str) -> bool {
        let mut rests = self.in_code.iter().filter_map(|own| setting.strip_prefix(*own));
        rests.any(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// The current settings with all changes in `read` that can be applied without a restart.
    fn as_far_as_possible(&self, read: &ServerConfig) -> ServerConfig {
        let mut next = self.config.clone();
        if !self.is_in_code("limits") {
            // Workers also receive new overload limits.
            let overload = read.limits.overload.clone();
            next.limits = Limits { overload, ..for_connections(&read.limits, &next.limits) };
        }
        if !self.is_in_code("trusted_proxies") {
            next.trusted_proxies = read.trusted_proxies.clone();
        }
        if self.follower.is_some() {
            next.logs = read.logs.clone();
        }
        if self.style.is_some() {
            next.access_log = self.config.access_log.changed_to(&read.access_log);
        }
        if self.traces.is_some() {
            next.traces = self.config.traces.changed_to(&read.traces);
        }
        let of_server = &next.limits;
        for (name, listener) in &mut next.listeners {
            let Some(read) = read.listeners.get(name) else { continue };
            let before = listener.limits.as_ref().unwrap_or(of_server).clone();
            // Overload limits apply to the whole server: a listener's copy only follows them.
            listener.limits = read.limits.as_ref().map(|new| Limits {
                overload: new.overload.clone(),
                ..for_connections(new, &before)
            });
            listener.trusted_proxies = read.trusted_proxies.clone();
        }
        next
    }

    fn show(&self) {
        let mut text = String::new();
        for section in &self.in_code {
            let _ = writeln!(text, "# `{section}` is set by the program, which takes precedence.");
        }
        let memory = memory_limits::text(&self.overload.borrow());
        if self.config.limits.overload.memory_max == MemoryMax::Auto {
            let setting = "limits.overload.memory_max";
            let _ =
                writeln!(text, "# `{setting}` is {memory} for each of {} workers.", self.workers);
        }
        let _ = write!(text, "{}", self.config);
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}

/// Opens the target.
fn open(log: &AccessLogConfig) -> Result<Option<Sink>, Error> {
    Ok(log.target.as_ref().map(|target| Log::target(target).open()).transpose()?)
}

fn replace<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|present| {
        let is_new = *present != value;
        *present = value;
        is_new
    });
}

/// The limits of `new` that apply per connection, with the process-wide limits of `began`.
fn for_connections(new: &Limits, began: &Limits) -> Limits {
    Limits {
        poll_budget: began.poll_budget,
        lame_duck: began.lame_duck,
        shutdown_timeout: began.shutdown_timeout,
        background_timeout: began.background_timeout,
        overload: began.overload.clone(),
        ..new.clone()
    }
}
