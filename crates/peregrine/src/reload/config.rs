//! Reloads the configuration while the server runs.

use crate::error::Error;
use crate::listen::listener::Listener;
use crate::runtime::console::{report, report_error};
use crate::runtime::driver_choice::DriverChoice;
use crate::runtime::handle::{ReloadFn, ReloadGuard};
use crate::runtime::memory_limits;
use crate::runtime::worker::RoutePatterns;
use peregrine_admin::AccessLogOptions;
use peregrine_admin::internal::{LogControl, Sink};
use peregrine_driver::SocketOptions;
use peregrine_server::{
    AccessLogStyle, Limits, MemoryMax, OverloadLimits, ReloadableConfig, TraceConfig,
};
use peregrine_settings::internal::{ReloadMetrics, diff, summary, wait_until_stable};
use peregrine_settings::{AccessLogConfig, ServerConfig};
use peregrine_web::TrustedProxies;
use peregrine_web::panic::{catch_log_panic, drop_panic_payload};
use std::fmt::Write as _;
use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use tokio::sync::watch;

/// The configuration of a running server, and the channels that apply its changes.
pub(crate) struct ConfigReloader {
    /// The settings in effect.
    config: ServerConfig,
    /// The listeners of the configuration, and the channels that update them.
    listeners: Vec<(String, watch::Sender<ReloadableConfig>)>,
    /// The listeners that the program added, each with its own limits and proxies, if set, and its
    /// channel.
    program_listeners:
        Vec<(Option<Limits>, Option<TrustedProxies>, watch::Sender<ReloadableConfig>)>,
    /// The number of workers, and the channel that updates their overload limits.
    worker_count: usize,
    overload: watch::Sender<OverloadLimits>,
    /// The line format and the target of the access log, if the configuration controls the log.
    log_style: Option<watch::Sender<AccessLogStyle>>,
    log_control: Option<LogControl>,
    /// The sampling settings, if the configuration controls the traces.
    traces: Option<watch::Sender<TraceConfig>>,
    /// The patterns of the application's routes, set once it is built.
    route_patterns: RoutePatterns,
    on_reload: Option<ReloadCallback>,
    /// Settings and sections that the program has overridden in code.
    set_in_code: Vec<&'static str>,
    /// The trusted proxies set in code.
    trusted_proxies: Option<TrustedProxies>,
    /// The settings in effect as text, for the admin listener.
    text: Arc<Mutex<String>>,
    metrics: Arc<ReloadMetrics>,
    quiet: bool,
}

/// The changes that a reload applies in addition to the new configuration.
struct ReloadPlan<'c> {
    listener_updates: Vec<(&'c watch::Sender<ReloadableConfig>, ReloadableConfig)>,
    overload: OverloadLimits,
    sink: Option<Sink>,
    style: AccessLogStyle,
    traces: Option<TraceConfig>,
}

/// The settings that a server starts with.
pub(crate) struct InitialSettings<'s> {
    pub(crate) limits: &'s Limits,
    pub(crate) trusted_proxies: Option<&'s TrustedProxies>,
    pub(crate) workers: Option<NonZeroUsize>,
    /// The actual number of workers.
    pub(crate) worker_count: usize,
    pub(crate) pin_workers: bool,
    pub(crate) driver: DriverChoice,
    pub(crate) sockets: &'s SocketOptions,
    pub(crate) quiet: bool,
}

type ReloadCallback = Box<dyn Fn(&ServerConfig) + Send + Sync>;

impl std::fmt::Debug for ConfigReloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConfigReloader").field("config", &self.config).finish_non_exhaustive()
    }
}

impl ConfigReloader {
    pub(crate) fn new(config: ServerConfig) -> Self {
        Self {
            config,
            listeners: Vec::new(),
            program_listeners: Vec::new(),
            worker_count: 1,
            overload: watch::Sender::default(),
            log_style: None,
            log_control: None,
            traces: None,
            route_patterns: Arc::default(),
            on_reload: None,
            set_in_code: Vec::new(),
            trusted_proxies: None,
            text: Arc::default(),
            metrics: Arc::new(ReloadMetrics::with_initial_load()),
            quiet: false,
        }
    }

    /// Calls `follow` with the configuration each time a reload has changed something.
    pub(crate) fn set_on_reload(&mut self, follow: impl Fn(&ServerConfig) + Send + Sync + 'static) {
        self.on_reload = Some(Box::new(follow));
    }

    pub(crate) fn add_listener(&mut self, name: &str, live: watch::Sender<ReloadableConfig>) {
        self.listeners.push((name.to_owned(), live));
    }

    /// Whether the configuration was read from a source that can be read again.
    pub(crate) fn can_reload(&self) -> bool {
        self.config.source().is_some()
    }

    /// Subscribes to the overload limits of workers.
    pub(crate) fn overload(&self) -> Option<watch::Receiver<OverloadLimits>> {
        self.can_reload().then(|| self.overload.subscribe())
    }

    /// The settings in effect, as shown by the admin listener.
    pub(crate) fn text(&self) -> Arc<Mutex<String>> {
        Arc::clone(&self.text)
    }

    /// The reload metrics.
    pub(crate) fn metrics(&self) -> Arc<ReloadMetrics> {
        Arc::clone(&self.metrics)
    }

    /// Sets where the patterns of the application's routes will be found.
    pub(crate) fn set_route_patterns(&mut self, patterns: &RoutePatterns) {
        self.route_patterns = Arc::clone(patterns);
    }

    /// Makes the access log follow the configuration, unless it was set in code.
    pub(crate) fn attach_access_log(&mut self, log: &mut AccessLogOptions) {
        if self.can_reload() && !self.is_set_in_code("access_log") {
            let (change, style) = watch::channel(self.config.access_log.style());
            log.set_style_updates(style);
            self.log_style = Some(change);
        }
    }

    /// Stores the target of the access log, which has started.
    pub(crate) fn with_log_control(mut self, place: Option<LogControl>) -> Self {
        self.log_control = place.filter(|_| self.log_style.is_some());
        self
    }

    /// Makes traces follow the configuration, unless they were set in code.
    pub(crate) fn attach_traces(&mut self, traces: TraceConfig) -> TraceConfig {
        if !self.can_reload() || self.is_set_in_code("traces") {
            return traces;
        }
        let (change, live) = watch::channel(traces.clone());
        self.traces = Some(change);
        traces.updates(live)
    }

    /// Takes over the server's actual settings. What was set in code after loading is not reloaded.
    pub(crate) fn initialize(&mut self, began: &InitialSettings<'_>) {
        let InitialSettings {
            limits,
            trusted_proxies: proxies,
            workers,
            worker_count: count,
            pin_workers,
            driver,
            sockets,
            quiet,
        } = *began;
        if *limits != self.config.limits {
            self.config.limits = limits.clone();
            self.mark_set_in_code("limits");
        }
        if self.config.to_trusted_proxies().ok().flatten().as_ref() != proxies {
            self.mark_set_in_code("trusted_proxies");
        }
        self.trusted_proxies = proxies.cloned();
        if self.config.workers != workers {
            self.config.workers = workers;
            self.set_in_code.push("workers");
        }
        if self.config.pin_workers != pin_workers {
            self.config.pin_workers = pin_workers;
            self.set_in_code.push("pin_workers");
        }
        if DriverChoice::from(self.config.driver.kind) != driver {
            self.config.driver.kind = driver.into();
            self.set_in_code.push("driver.kind");
        }
        if self.config.socket_options() != *sockets {
            self.config.sockets = sockets.clone().into();
            self.set_in_code.push("sockets");
        }
        if self.config.quiet != quiet {
            self.config.quiet = quiet;
            self.set_in_code.push("quiet");
        }
        self.quiet = quiet;
        self.worker_count = count;
        self.overload.send_replace(memory_limits::resolve(&self.config.limits.overload, count));
        self.publish();
    }

    /// Marks a section as overridden in code, even if the value is the same as in the
    /// configuration.
    pub(crate) fn mark_set_in_code(&mut self, section: &'static str) {
        if !self.set_in_code.contains(&section) {
            self.set_in_code.push(section);
        }
    }

    /// Makes a listener that the program added follow all settings that the program has not set for
    /// it. Call it after [`initialize`](Self::initialize).
    pub(crate) fn attach_listener(&mut self, listener: &mut Listener) {
        let Some((limits, proxies)) = listener.own_settings() else { return };
        let present = limits.as_ref().unwrap_or(&self.config.limits).clone();
        let trusted = proxies.clone().or_else(|| self.trusted_proxies.clone());
        let (live, changes) =
            watch::channel(ReloadableConfig { limits: present, trusted_proxies: trusted });
        listener.set_updates(changes);
        self.program_listeners.push((limits, proxies, live));
    }

    /// Starts the reload thread, and returns the function that requests a reload. Dropping the
    /// function ends the thread. `certificates` reloads the certificates.
    pub(crate) fn start(
        mut self,
        certificates: Option<Arc<ReloadFn>>,
    ) -> io::Result<Option<Arc<ReloadFn>>> {
        if !self.can_reload() {
            return Ok(certificates);
        }
        let (sender, wakes) = mpsc::channel::<ReloadGuard>();
        let keep = move || {
            while let Ok(mut reloading) = wakes.recv() {
                // One reload serves all requests received until now.
                wakes.try_iter().for_each(|other| reloading.join(other));
                catch_log_panic(|| {
                    if let Err(error) = self.reload() {
                        let why = format!("serving; the configuration is unchanged: {error}");
                        reloading.set_failed(why);
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
        let read = self.wait_until_stable().and_then(|()| self.reread());
        self.metrics.record_reload(read.is_ok());
        match &read {
            Ok(told) => report(told, self.quiet),
            Err(error) => {
                let text = format!("peregrine: the configuration is unchanged: {error}");
                report_error(&text, self.quiet);
            }
        }
        read.map(drop)
    }

    /// Waits until the file has stopped changing.
    fn wait_until_stable(&self) -> Result<(), Error> {
        let path = self.config.source().and_then(|source| source.layers.file_path());
        path.map_or(Ok(()), |path| {
            wait_until_stable(path)
                .map_err(|error| Error::Config(format!("{}: {error}", path.display())))
        })
    }

    /// Reads the layers again and applies the changes. Returns the text for the log. On error,
    /// nothing has changed.
    pub(super) fn reread(&mut self) -> Result<String, Error> {
        let Some(source) = self.config.source() else {
            return Ok("peregrine: the configuration was built in code".to_owned());
        };
        let read = ServerConfig::from_layers((*source.defaults).clone(), source.layers.clone())?;
        let next = self.merge_reloadable(&read);
        let effect = self.plan(&next)?;
        let changed = diff(&self.config, &next)?;
        let mut waiting = diff(&next, &read)?;
        waiting.retain(|change| !self.is_set_in_code(&change.setting));
        // Nothing can fail from here on.
        self.apply(effect);
        self.config = next;
        self.publish();
        if let (Some(follower), false) = (&self.on_reload, changed.is_empty()) {
            let follow = AssertUnwindSafe(|| follower(&self.config));
            if let Err(panic) = catch_unwind(follow) {
                drop_panic_payload(panic);
                report_error(
                    "peregrine: the function that follows the configuration panicked",
                    self.quiet,
                );
            }
        }
        Ok(summary(&changed, &waiting))
    }

    /// Prepares what a reload will apply, without changing anything.
    fn plan(&self, next: &ServerConfig) -> Result<ReloadPlan<'_>, Error> {
        let mut lives = Vec::new();
        for (name, live) in &self.listeners {
            let Some(of) = next.listeners.get(name) else { continue };
            let mut value = next.to_reloadable(name, of)?;
            if of.trusted_proxies.is_none() && self.is_set_in_code("trusted_proxies") {
                value.trusted_proxies = self.trusted_proxies.clone();
            }
            lives.push((live, value));
        }
        for (limits, own, live) in &self.program_listeners {
            let proxies = match own {
                Some(own) => Some(own.clone()),
                None if self.is_set_in_code("trusted_proxies") => self.trusted_proxies.clone(),
                None => next.to_trusted_proxies()?,
            };
            let limits = limits.as_ref().unwrap_or(&next.limits).clone();
            lives.push((live, ReloadableConfig { limits, trusted_proxies: proxies }));
        }
        let (style, traces) = (next.access_log.style(), next.traces.to_trace_config());
        if let Some(known) = self.route_patterns.get() {
            if self.log_style.is_some() {
                style.validate(known).map_err(Error::Config)?;
            }
            if let (Some(traces), true) = (&traces, self.traces.is_some()) {
                traces.validate(known).map_err(Error::Config)?;
            }
        }
        let is_elsewhere = next.access_log.target != self.config.access_log.target;
        let opens = self.log_control.is_some() && is_elsewhere;
        let sink = if opens { open(&next.access_log)? } else { None };
        let overload = memory_limits::resolve(&next.limits.overload, self.worker_count);
        Ok(ReloadPlan { listener_updates: lives, overload, sink, style, traces })
    }

    fn apply(&self, next: ReloadPlan<'_>) {
        for (live, value) in next.listener_updates {
            send_if_changed(live, value);
        }
        send_if_changed(&self.overload, next.overload);
        if let Some(style) = &self.log_style {
            send_if_changed(style, next.style);
        }
        if let (Some(place), Some(sink)) = (&self.log_control, next.sink) {
            place.switch_sink(sink);
        }
        if let (Some(change), Some(traces)) = (&self.traces, next.traces) {
            change.send_replace(traces);
        }
    }

    /// Whether the program has overridden this setting or the section that contains it.
    fn is_set_in_code(&self, setting: &str) -> bool {
        let mut rests = self.set_in_code.iter().filter_map(|own| setting.strip_prefix(*own));
        rests.any(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// The current settings with all changes in `read` that can be applied without a restart.
    fn merge_reloadable(&self, read: &ServerConfig) -> ServerConfig {
        let mut next = self.config.clone();
        if !self.is_set_in_code("limits") {
            // Workers also receive new overload limits.
            let overload = read.limits.overload.clone();
            next.limits = Limits { overload, ..connection_limits(&read.limits, &next.limits) };
        }
        if !self.is_set_in_code("trusted_proxies") {
            next.trusted_proxies = read.trusted_proxies.clone();
        }
        if self.on_reload.is_some() {
            next.logging = read.logging.clone();
        }
        if self.log_style.is_some() {
            next.access_log = self.config.access_log.merge_reloadable(&read.access_log);
        }
        if self.traces.is_some() {
            next.traces = self.config.traces.merge_reloadable(&read.traces);
        }
        let of_server = &next.limits;
        for (name, listener) in &mut next.listeners {
            let Some(read) = read.listeners.get(name) else { continue };
            let before = listener.limits.as_ref().unwrap_or(of_server).clone();
            // Overload limits apply to the whole server: a listener's copy only follows them.
            listener.limits = read.limits.as_ref().map(|new| Limits {
                overload: new.overload.clone(),
                ..connection_limits(new, &before)
            });
            listener.trusted_proxies = read.trusted_proxies.clone();
        }
        next
    }

    fn publish(&self) {
        let mut text = String::new();
        for section in &self.set_in_code {
            let _ = writeln!(text, "# `{section}` is set by the program, which takes precedence.");
        }
        let memory = memory_limits::describe(&self.overload.borrow());
        if self.config.limits.overload.memory_max == MemoryMax::Auto {
            let setting = "limits.overload.memory_max";
            let _ = writeln!(
                text,
                "# `{setting}` is {memory} for each of {} workers.",
                self.worker_count
            );
        }
        let _ = write!(text, "{}", self.config);
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}

/// Opens the target.
fn open(log: &AccessLogConfig) -> Result<Option<Sink>, Error> {
    Ok(log
        .target
        .as_ref()
        .map(|target| AccessLogOptions::from_target(target).open())
        .transpose()?)
}

fn send_if_changed<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|present| {
        let is_new = *present != value;
        *present = value;
        is_new
    });
}

/// The limits of `new` that apply per connection, with the process-wide limits of `began`.
fn connection_limits(new: &Limits, began: &Limits) -> Limits {
    Limits {
        blocking_poll_threshold: began.blocking_poll_threshold,
        lame_duck_period: began.lame_duck_period,
        shutdown_timeout: began.shutdown_timeout,
        background_task_timeout: began.background_task_timeout,
        overload: began.overload.clone(),
        ..new.clone()
    }
}
