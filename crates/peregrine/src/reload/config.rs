//! Reloads the configuration while the server runs.

use peregrine_admin::AccessLogOptions;
use peregrine_admin::internal::{LogControl, Sink};
use peregrine_driver::SocketOptions;
use peregrine_restart::internal::ReloadGuard;
use peregrine_runtime::internal::{
    ReloadFn, RoutePatterns, describe_memory_max, report, report_error, resolve_memory_max,
};
use peregrine_runtime::{DriverChoice, Error, Listener};
use peregrine_server::{
    AccessLogStyle, Limits, MemoryMax, OverloadLimits, ReloadableConfig, TraceConfig,
};
use peregrine_settings::internal::{ReloadMetrics, diff, summary, wait_until_stable};
use peregrine_settings::{AccessLogConfig, ServerConfig};
use peregrine_web::TrustedProxies;
use peregrine_web::panic::{catch_subscriber_panic, drop_panic_payload};
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
    /// The names of the configured listeners, and the channels that update them.
    listeners: Vec<(String, watch::Sender<ReloadableConfig>)>,
    /// The listeners that the program added: the limits and trusted proxies that it set for each,
    /// and the channel that updates the listener.
    program_listeners:
        Vec<(Option<Limits>, Option<TrustedProxies>, watch::Sender<ReloadableConfig>)>,
    worker_count: usize,
    /// Updates the workers' overload limits.
    overload_sender: watch::Sender<OverloadLimits>,
    /// Updates the line format of the access log, if the configuration controls the log.
    style_sender: Option<watch::Sender<AccessLogStyle>>,
    /// Changes the target of the access log, if the configuration controls the log.
    log_control: Option<LogControl>,
    /// Updates the sampling settings, if the configuration controls tracing.
    traces_sender: Option<watch::Sender<TraceConfig>>,
    /// The patterns of the application's routes, set once the application is built.
    route_patterns: RoutePatterns,
    on_reload: Option<ReloadCallback>,
    /// The paths of the settings and sections that the program has overridden in code.
    set_in_code: Vec<&'static str>,
    /// The server's trusted proxies at startup. Reloads retain them if they were set in code.
    trusted_proxies: Option<TrustedProxies>,
    /// The settings in effect as text, for the admin pages.
    text: Arc<Mutex<String>>,
    metrics: Arc<ReloadMetrics>,
    quiet: bool,
}

/// The changes that a reload sends to the running parts of the server. They are prepared before any
/// of them is applied, because preparing them can fail.
struct ReloadPlan<'c> {
    listener_updates: Vec<(&'c watch::Sender<ReloadableConfig>, ReloadableConfig)>,
    overload: OverloadLimits,
    /// The new output of the access log, if its target has changed.
    sink: Option<Sink>,
    style: AccessLogStyle,
    traces: Option<TraceConfig>,
}

/// The server's settings at startup.
pub(crate) struct InitialSettings<'s> {
    pub(crate) limits: &'s Limits,
    pub(crate) trusted_proxies: Option<&'s TrustedProxies>,
    pub(crate) workers: Option<NonZeroUsize>,
    /// The actual number of workers, even if `workers` is not set.
    pub(crate) worker_count: usize,
    pub(crate) pin_workers: bool,
    pub(crate) driver: DriverChoice,
    pub(crate) socket_options: &'s SocketOptions,
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
            overload_sender: watch::Sender::default(),
            style_sender: None,
            log_control: None,
            traces_sender: None,
            route_patterns: Arc::default(),
            on_reload: None,
            set_in_code: Vec::new(),
            trusted_proxies: None,
            text: Arc::default(),
            metrics: Arc::new(ReloadMetrics::with_initial_load()),
            quiet: false,
        }
    }

    /// Calls `callback` with the configuration each time a reload has changed something.
    pub(crate) fn set_on_reload(
        &mut self,
        callback: impl Fn(&ServerConfig) + Send + Sync + 'static,
    ) {
        self.on_reload = Some(Box::new(callback));
    }

    /// Lets reloads change a configured listener, through `sender`.
    pub(crate) fn add_listener(&mut self, name: &str, sender: watch::Sender<ReloadableConfig>) {
        self.listeners.push((name.to_owned(), sender));
    }

    /// Whether the configuration was read from a source that can be read again.
    pub(crate) fn can_reload(&self) -> bool {
        self.config.source().is_some()
    }

    /// Subscribes to the workers' overload limits.
    pub(crate) fn overload_updates(&self) -> Option<watch::Receiver<OverloadLimits>> {
        self.can_reload().then(|| self.overload_sender.subscribe())
    }

    /// Returns the settings in effect, as the admin pages show them.
    pub(crate) fn text(&self) -> Arc<Mutex<String>> {
        Arc::clone(&self.text)
    }

    /// Returns the reload metrics.
    pub(crate) fn metrics(&self) -> Arc<ReloadMetrics> {
        Arc::clone(&self.metrics)
    }

    /// Sets the cell that will contain the patterns of the application's routes.
    pub(crate) fn set_route_patterns(&mut self, patterns: &RoutePatterns) {
        self.route_patterns = Arc::clone(patterns);
    }

    /// Lets reloads change the access log's settings, unless they were set in code.
    pub(crate) fn attach_access_log(&mut self, log: &mut AccessLogOptions) {
        if self.can_reload() && !self.is_set_in_code("access_log") {
            let (sender, updates) = watch::channel(self.config.access_log.style());
            log.set_style_updates(updates);
            self.style_sender = Some(sender);
        }
    }

    /// Sets the control through which a reload changes the target of the access log. Ignored unless
    /// [`attach_access_log`](Self::attach_access_log) has let reloads change the log.
    pub(crate) fn with_log_control(mut self, control: Option<LogControl>) -> Self {
        self.log_control = control.filter(|_| self.style_sender.is_some());
        self
    }

    /// Lets reloads change the tracing settings, unless they were set in code.
    pub(crate) fn attach_traces(&mut self, traces: TraceConfig) -> TraceConfig {
        if !self.can_reload() || self.is_set_in_code("traces") {
            return traces;
        }
        let (sender, updates) = watch::channel(traces.clone());
        self.traces_sender = Some(sender);
        traces.updates(updates)
    }

    /// Stores the server's settings at startup. Settings that differ from the configuration were
    /// set in code, and reloads do not change them.
    pub(crate) fn initialize(&mut self, initial: &InitialSettings<'_>) {
        let InitialSettings {
            limits,
            trusted_proxies,
            workers,
            worker_count,
            pin_workers,
            driver,
            socket_options,
            quiet,
        } = *initial;
        if *limits != self.config.limits {
            self.config.limits = limits.clone();
            self.mark_set_in_code("limits");
        }
        if self.config.to_trusted_proxies().ok().flatten().as_ref() != trusted_proxies {
            self.mark_set_in_code("trusted_proxies");
        }
        self.trusted_proxies = trusted_proxies.cloned();
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
        if self.config.socket_options() != *socket_options {
            self.config.sockets = socket_options.clone().into();
            self.set_in_code.push("sockets");
        }
        if self.config.quiet != quiet {
            self.config.quiet = quiet;
            self.set_in_code.push("quiet");
        }
        self.quiet = quiet;
        self.worker_count = worker_count;
        self.overload_sender
            .send_replace(resolve_memory_max(&self.config.limits.overload, worker_count));
        self.publish();
    }

    /// Marks a section as set in code, even if the value is the same as in the configuration.
    pub(crate) fn mark_set_in_code(&mut self, section: &'static str) {
        if !self.set_in_code.contains(&section) {
            self.set_in_code.push(section);
        }
    }

    /// For a listener that the program added: lets reloads change the settings that the program has
    /// not set on it. Must be called after [`initialize`](Self::initialize).
    pub(crate) fn attach_listener(&mut self, listener: &mut Listener) {
        // A configured listener already has a channel for updates.
        let Some((limits, proxies)) = listener.own_settings() else { return };
        let current_limits = limits.as_ref().unwrap_or(&self.config.limits).clone();
        let trusted_proxies = proxies.clone().or_else(|| self.trusted_proxies.clone());
        let (sender, updates) =
            watch::channel(ReloadableConfig { limits: current_limits, trusted_proxies });
        listener.set_updates(updates);
        self.program_listeners.push((limits, proxies, sender));
    }

    /// Starts the reload thread, and returns the function that requests a reload. Dropping the
    /// function ends the thread. After each reload of the configuration, even a failed one, the
    /// thread calls `reload_certificates`. If the configuration has no source to read again
    /// ([`can_reload`](Self::can_reload)), starts no thread and returns `reload_certificates`.
    pub(crate) fn start(
        mut self,
        reload_certificates: Option<Arc<ReloadFn>>,
    ) -> io::Result<Option<Arc<ReloadFn>>> {
        if !self.can_reload() {
            return Ok(reload_certificates);
        }
        let (sender, requests) = mpsc::channel::<ReloadGuard>();
        let run = move || {
            while let Ok(mut guard) = requests.recv() {
                // One reload serves all requests that have arrived so far.
                requests.try_iter().for_each(|other| guard.join(other));
                catch_subscriber_panic(|| {
                    if let Err(error) = self.reload() {
                        // The service manager shows this as the status of the server.
                        let message = format!("serving; the configuration is unchanged: {error}");
                        guard.set_failed(message);
                    }
                });
                // The last thread to use `guard` drops it, which reports that the reload is
                // complete.
                if let Some(reload_certificates) = &reload_certificates {
                    reload_certificates(guard);
                }
            }
        };
        thread::Builder::new().name("peregrine-config".to_owned()).spawn(run)?;
        let send_request = move |guard| {
            let _ = sender.send(guard);
        };
        Ok(Some(Arc::new(send_request)))
    }

    /// Reloads the configuration, and reports the result.
    fn reload(&mut self) -> Result<(), Error> {
        let result = self.wait_until_stable().and_then(|()| self.reread());
        self.metrics.record_reload(result.is_ok());
        match &result {
            Ok(message) => report(message, self.quiet),
            Err(error) => {
                let text = format!("peregrine: the configuration is unchanged: {error}");
                report_error(&text, self.quiet);
            }
        }
        result.map(drop)
    }

    /// Waits until the file has stopped changing.
    fn wait_until_stable(&self) -> Result<(), Error> {
        let path = self.config.source().and_then(|source| source.layers.file_path());
        path.map_or(Ok(()), |path| {
            wait_until_stable(path)
                .map_err(|error| Error::Config(format!("{}: {error}", path.display())))
        })
    }

    /// Reads the layers of the configuration (such as its file) again, and applies the changes.
    /// Returns the text for the log.
    ///
    /// # Errors
    /// A setting is invalid, or a layer cannot be read. No setting has changed.
    pub(super) fn reread(&mut self) -> Result<String, Error> {
        let Some(source) = self.config.source() else {
            return Ok("peregrine: the configuration was built in code".to_owned());
        };
        let (defaults, layers) = ((*source.defaults).clone(), source.layers.clone());
        let reread_config = ServerConfig::from_layers(defaults, layers)?;
        let next = self.merge_reloadable(&reread_config);
        let plan = self.plan(&next)?;
        let changes = diff(&self.config, &next)?;
        let mut needs_restart = diff(&next, &reread_config)?;
        needs_restart.retain(|change| !self.is_set_in_code(&change.setting));
        // No step from here on can fail, so either all changes are applied or none.
        self.apply(plan);
        self.config = next;
        self.publish();
        if let (Some(callback), false) = (&self.on_reload, changes.is_empty()) {
            let call = AssertUnwindSafe(|| callback(&self.config));
            if let Err(panic) = catch_unwind(call) {
                drop_panic_payload(panic);
                report_error("peregrine: the on_reload callback panicked", self.quiet);
            }
        }
        Ok(summary(&changes, &needs_restart))
    }

    /// Prepares the changes that a reload will apply.
    fn plan(&self, next: &ServerConfig) -> Result<ReloadPlan<'_>, Error> {
        let mut listener_updates = Vec::new();
        for (name, sender) in &self.listeners {
            let Some(listener) = next.listeners.get(name) else { continue };
            let mut value = next.to_reloadable(name, listener)?;
            if listener.trusted_proxies.is_none() && self.is_set_in_code("trusted_proxies") {
                value.trusted_proxies = self.trusted_proxies.clone();
            }
            listener_updates.push((sender, value));
        }
        for (limits, listener_proxies, sender) in &self.program_listeners {
            let proxies = match listener_proxies {
                Some(proxies) => Some(proxies.clone()),
                None if self.is_set_in_code("trusted_proxies") => self.trusted_proxies.clone(),
                None => next.to_trusted_proxies()?,
            };
            let limits = limits.as_ref().unwrap_or(&next.limits).clone();
            listener_updates.push((sender, ReloadableConfig { limits, trusted_proxies: proxies }));
        }
        let (style, traces) = (next.access_log.style(), next.traces.to_trace_config());
        if let Some(patterns) = self.route_patterns.get() {
            if self.style_sender.is_some() {
                style.validate(patterns).map_err(Error::Config)?;
            }
            if let (Some(traces), true) = (&traces, self.traces_sender.is_some()) {
                traces.validate(patterns).map_err(Error::Config)?;
            }
        }
        let is_new_target = next.access_log.target != self.config.access_log.target;
        let opens_target = self.log_control.is_some() && is_new_target;
        let sink = if opens_target { open_log(&next.access_log)? } else { None };
        let overload = resolve_memory_max(&next.limits.overload, self.worker_count);
        Ok(ReloadPlan { listener_updates, overload, sink, style, traces })
    }

    /// Applies the prepared changes.
    fn apply(&self, plan: ReloadPlan<'_>) {
        for (sender, value) in plan.listener_updates {
            send_if_changed(sender, value);
        }
        send_if_changed(&self.overload_sender, plan.overload);
        if let Some(sender) = &self.style_sender {
            send_if_changed(sender, plan.style);
        }
        if let (Some(control), Some(sink)) = (&self.log_control, plan.sink) {
            control.switch_sink(sink);
        }
        if let (Some(sender), Some(traces)) = (&self.traces_sender, plan.traces) {
            sender.send_replace(traces);
        }
    }

    /// Whether the program has overridden this setting or the section that contains it.
    fn is_set_in_code(&self, setting: &str) -> bool {
        let mut suffixes =
            self.set_in_code.iter().filter_map(|section| setting.strip_prefix(*section));
        suffixes.any(|suffix| suffix.is_empty() || suffix.starts_with('.'))
    }

    /// Returns the current settings, plus the changes in `reread_config` that need no restart and
    /// were not overridden in code.
    fn merge_reloadable(&self, reread_config: &ServerConfig) -> ServerConfig {
        let mut next = self.config.clone();
        if !self.is_set_in_code("limits") {
            next.limits = with_startup_limits_of(&next.limits, &reread_config.limits);
        }
        if !self.is_set_in_code("trusted_proxies") {
            next.trusted_proxies = reread_config.trusted_proxies.clone();
        }
        // Only the callback can apply the log level.
        if self.on_reload.is_some() {
            next.logging = reread_config.logging.clone();
        }
        if self.style_sender.is_some() {
            next.access_log = self.config.access_log.merge_reloadable(&reread_config.access_log);
        }
        if self.traces_sender.is_some() {
            next.traces = self.config.traces.merge_reloadable(&reread_config.traces);
        }
        let server_limits = &next.limits;
        for (name, listener) in &mut next.listeners {
            let Some(reread_listener) = reread_config.listeners.get(name) else { continue };
            let current = listener.limits.as_ref().unwrap_or(server_limits).clone();
            let new = reread_listener.limits.as_ref();
            listener.limits = new.map(|new| with_startup_limits_of(&current, new));
            listener.trusted_proxies = reread_listener.trusted_proxies.clone();
        }
        next
    }

    /// Updates the text that the admin pages show.
    fn publish(&self) {
        let mut text = String::new();
        for section in &self.set_in_code {
            let _ = writeln!(text, "# `{section}` is set by the program, which takes precedence.");
        }
        let memory = describe_memory_max(&self.overload_sender.borrow());
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

/// Opens the target of the access log. Returns `None` if the log is off.
fn open_log(log: &AccessLogConfig) -> Result<Option<Sink>, Error> {
    Ok(log
        .target
        .as_ref()
        .map(|target| AccessLogOptions::from_target(target).open())
        .transpose()?)
}

fn send_if_changed<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|current| {
        let has_changed = *current != value;
        *current = value;
        has_changed
    });
}

/// Returns `new`, but with those limits of `current` that are fixed when the server starts.
fn with_startup_limits_of(current: &Limits, new: &Limits) -> Limits {
    Limits {
        blocking_poll_threshold: current.blocking_poll_threshold,
        lame_duck_period: current.lame_duck_period,
        shutdown_timeout: current.shutdown_timeout,
        background_task_timeout: current.background_task_timeout,
        ..new.clone()
    }
}
