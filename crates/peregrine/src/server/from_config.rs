//! Builds a server from the configuration.

use super::Server;
#[cfg(feature = "tls")]
use super::tls_config;
use crate::reload::ConfigReloader;
use peregrine_admin::AccessLogOptions;
use peregrine_runtime::internal::missing_feature;
use peregrine_runtime::{Admin, Error, Listener};
use peregrine_settings::{AccessLogConfig, AdminConfig, ListenerConfig, ServerConfig};
#[cfg(feature = "tls")]
use peregrine_tls::TlsConfig;
use peregrine_web::TrustedProxies;
use tokio::sync::watch;

impl Server {
    /// Creates a server from a configuration: see [`config`](crate::config). Certificates are read
    /// immediately.
    ///
    /// Methods called on the server afterwards override the configuration, and a reload does not
    /// undo them. [`listen`](Self::listen) and similar methods add to the configured listeners. An
    /// added listener without its own limits or trusted proxies follows those of the configuration,
    /// even after a reload.
    ///
    /// ```no_run
    /// use peregrine::config::ServerConfig;
    /// use peregrine::prelude::*;
    /// use std::time::Duration;
    ///
    /// fn main() -> peregrine::Result<()> {
    ///     // The file overrides these defaults.
    ///     let mut defaults = ServerConfig::default();
    ///     defaults.limits.idle_timeout = Duration::from_secs(20);
    ///     let config = ServerConfig::load_over(defaults, "/etc/app/app.toml")?;
    ///     // This listener is opened in any case. Its limits follow the file.
    ///     let server = Server::from_config(config)?.listen("127.0.0.1:8081");
    ///     server.serve(|| App::new().get("/", || "hello"))
    /// }
    /// ```
    ///
    /// # Errors
    /// A setting is invalid, or a certificate cannot be read.
    pub fn from_config(config: ServerConfig) -> Result<Self, Error> {
        config.validate()?;
        let mut server = Self::new()
            .limits(config.limits.clone())
            .driver(config.driver.kind.into())
            .driver_options(config.driver_options())
            .pin_workers(config.pin_workers);
        if let Some(workers) = config.workers {
            server = server.workers(workers);
        }
        if config.quiet {
            server = server.quiet();
        }
        if let Some(proxies) = config.to_trusted_proxies()? {
            server = server.trusted_proxies(proxies);
        }
        if let Some(admin) = build_admin(&config.admin) {
            server = server.admin(admin);
        }
        if let Some(log) = build_access_log(&config.access_log) {
            server = server.access_log(log);
        }
        if let Some(traces) = config.traces.to_trace_config() {
            server = server.traces(traces);
        }
        #[cfg(feature = "otlp")]
        if let Some(otlp) = peregrine_admin::Otlp::from_config(&config) {
            server = server.with_otlp(otlp);
        }
        server = with_file_watch(with_restart(server, &config), &config)?;
        let mut config_reloader = ConfigReloader::new(config.clone());
        #[cfg(feature = "tls")]
        let mut server_tls = None;
        for (name, listener_config) in &config.listeners {
            let mut listener = build_listener(name, listener_config)?;
            #[cfg(feature = "tls")]
            if let Some(tls) = build_tls(&config, name, listener_config, &mut server_tls)? {
                listener = listener.tls(tls);
            }
            let (sender, updates) = watch::channel(config.to_reloadable(name, listener_config)?);
            config_reloader.add_listener(name, sender);
            listener.set_updates(updates);
            server = server.listen(listener);
        }
        Ok(server.with_config_reloader(config_reloader))
    }

    /// Calls `callback` with the configuration, on the reload thread, each time a reload has
    /// changed something. Use it to apply the log level and the program's own settings: without a
    /// callback, a change of `logging.level` needs a restart. It has an effect only on a server
    /// [built from a configuration](Server::from_config).
    pub fn on_reload(mut self, callback: impl Fn(&ServerConfig) + Send + Sync + 'static) -> Self {
        if let Some(reloader) = self.config_reloader_mut() {
            reloader.set_on_reload(callback);
        }
        self
    }
}

#[cfg(all(target_os = "linux", feature = "restart"))]
fn with_restart(server: Server, config: &ServerConfig) -> Server {
    let restart = &config.restart;
    let mut options = peregrine_restart::UpgradeOptions::new().timeout(restart.upgrade_timeout);
    if let Some(program) = &restart.program {
        options = options.program(program);
    }
    if !restart.upgrade_on_sigusr2 {
        options = options.without_sigusr2();
    }
    server.upgrade_options(options)
}

#[cfg(not(all(target_os = "linux", feature = "restart")))]
fn with_restart(server: Server, _: &ServerConfig) -> Server {
    server
}

fn with_file_watch(server: Server, config: &ServerConfig) -> Result<Server, Error> {
    let tls_sections = config.listeners.values().filter_map(|listener| listener.tls.as_ref());
    let is_watched = config.tls.watch_files || tls_sections.into_iter().any(|tls| tls.watch_files);
    #[cfg(feature = "tls-watch")]
    return Ok(if is_watched { server.watch_certificates() } else { server });
    #[cfg(not(feature = "tls-watch"))]
    match is_watched {
        false => Ok(server),
        true => Err(missing_feature("tls.watch_files", "tls-watch")),
    }
}

/// Builds a listener, without TLS.
fn build_listener(name: &str, config: &ListenerConfig) -> Result<Listener, Error> {
    let path_of = |key: &str| format!("listeners.{name}.{key}");
    let mut listener =
        base_listener(config).ok_or_else(|| missing_feature(&path_of("activated"), "restart"))?;
    if let Some(limits) = &config.limits {
        listener = listener.limits(limits.clone());
    }
    if let Some(mode) = config.unix_mode {
        listener = listener.unix_mode(mode);
    }
    if let Some(user) = &config.unix_owner {
        listener = listener.unix_owner(user);
    }
    if let Some(group) = &config.unix_group {
        listener = listener.unix_group(group);
    }
    if let Some(proxies) = &config.trusted_proxies {
        // An empty section trusts no proxies, not even those that the server trusts.
        let proxies = proxies.to_trusted_proxies(&path_of("trusted_proxies"))?;
        listener = listener.trusted_proxies(
            proxies.unwrap_or_else(|| TrustedProxies::from_networks(Vec::<String>::new())),
        );
    }
    if let Some(settings) = config.proxy_protocol.to_proxy_protocol(&path_of("proxy_protocol"))? {
        listener = listener.proxy_protocol(settings);
    }
    if config.https && cfg!(not(feature = "tls")) {
        return Err(missing_feature(&path_of("https"), "tls"));
    }
    Ok(listener)
}

/// Builds the TLS settings of a listener, or returns `None` for plain HTTP. Listeners without their
/// own section share `server_tls`, which the first of them builds.
#[cfg(feature = "tls")]
fn build_tls(
    config: &ServerConfig,
    name: &str,
    listener: &ListenerConfig,
    server_tls: &mut Option<TlsConfig>,
) -> Result<Option<TlsConfig>, Error> {
    match (&listener.tls, listener.https) {
        (_, false) => Ok(None),
        (Some(section), true) => {
            tls_config::build(section, &format!("listeners.{name}.tls")).map(Some)
        }
        (None, true) => {
            if server_tls.is_none() {
                *server_tls = Some(tls_config::build(&config.tls, "tls")?);
            }
            Ok(server_tls.clone())
        }
    }
}

/// Creates a listener from `address` and `activated`. Returns `None` if `activated` is set, but
/// this build does not support it.
#[cfg(all(target_os = "linux", feature = "restart"))]
fn base_listener(config: &ListenerConfig) -> Option<Listener> {
    Some(match (&config.activated, &config.address) {
        (Some(name), Some(address)) => Listener::activated_or(name, address),
        (Some(name), None) => Listener::activated(name),
        (None, address) => Listener::bind(address.clone().unwrap_or_default()),
    })
}

#[cfg(not(all(target_os = "linux", feature = "restart")))]
fn base_listener(config: &ListenerConfig) -> Option<Listener> {
    config.activated.is_none().then(|| Listener::bind(config.address.clone().unwrap_or_default()))
}

/// Builds the admin listener. Returns `None` if it is off.
fn build_admin(config: &AdminConfig) -> Option<Admin> {
    let mut admin =
        Admin::bind(config.address.as_deref()?).liveness_threshold(config.liveness_threshold);
    if let Some(mode) = config.unix_mode {
        admin = admin.unix_mode(mode);
    }
    if let Some(user) = &config.unix_owner {
        admin = admin.unix_owner(user);
    }
    if let Some(group) = &config.unix_group {
        admin = admin.unix_group(group);
    }
    Some(admin)
}

/// Builds the options of the access log. Returns `None` if it is off.
fn build_access_log(config: &AccessLogConfig) -> Option<AccessLogOptions> {
    let log = AccessLogOptions::from_target(config.target.as_ref()?);
    let log = log.with_style(config.style()).queue_bytes_max(config.queue_bytes_max);
    Some(log.flush_timeout(config.flush_timeout))
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_runtime::internal::DEFAULT_LIVENESS_THRESHOLD;
    use peregrine_settings::ConfigError;
    use peregrine_settings::internal::layers;

    fn read(text: &str, variables: &[(&str, &str)]) -> Result<ServerConfig, ConfigError> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("app.toml");
        std::fs::write(&path, text).expect("the directory is writable");
        let layers = layers().file(path).env_vars(variables.iter().copied());
        ServerConfig::from_layers(ServerConfig::default(), layers)
    }

    #[test]
    fn config_defaults_match_the_defaults_of_the_option_types() {
        let ServerConfig { access_log, admin, .. } = ServerConfig::default();
        assert_eq!(admin.liveness_threshold, DEFAULT_LIVENESS_THRESHOLD);
        assert_eq!(access_log.queue_bytes_max, peregrine_admin::internal::DEFAULT_QUEUE_BYTES_MAX);
        assert_eq!(access_log.flush_timeout, peregrine_admin::internal::DEFAULT_FLUSH_TIMEOUT);
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table of cases")]
    fn invalid_settings_are_rejected_by_name() {
        let listen = "[listeners.a]\naddress = '127.0.0.1:0'\n";
        let https = format!("{listen}https = true\n");
        for (text, expected) in [
            (
                "[limits]\nhead_bytes_max = '1 MiB'",
                "`limits.head_bytes_max`: 1048576 is out of range",
            ),
            ("[limits]\nhead_timeout = '0s'", "`limits.head_timeout`: with a timeout of zero"),
            (
                "[limits]\nconnection_age_max = '0'",
                "`limits.connection_age_max`: zero would expire",
            ),
            ("[limits]\nblocking_poll_threshold = '0s'", "for no limit, write `off`"),
            (
                "[sockets]\ntcp_user_timeout = '0s'",
                "`sockets.tcp_user_timeout`: the kernel accepts `1s`",
            ),
            (
                "[sockets]\ntcp_user_timeout = '25d'",
                "`sockets.tcp_user_timeout`: the kernel accepts `1s`",
            ),
            (
                "[limits.http2]\nabuse_budget_max = 0",
                "`limits.http2.abuse_budget_max`: 0 is out of range",
            ),
            (
                "[limits.http2]\nconcurrent_streams_max = 0",
                "`limits.http2.concurrent_streams_max`: 0 is out of range",
            ),
            ("[listeners.a]\n", "`listeners.a.address`: set the address to listen"),
            ("[listeners.a]\nadress = ''", "did you mean `address`?"),
            (
                &format!("{listen}[listeners.a.tls]"),
                "`listeners.a.https`: the listener has a section",
            ),
            (
                &format!("{listen}[listeners.a.limits]\nfields_max = 0"),
                "`listeners.a.limits.fields_max`",
            ),
            (
                &format!("{listen}[listeners.a.limits.overload]\nrequests_max = 9"),
                "`listeners.a.limits.overload.requests_max`: it applies to the whole server: set \
                 `limits.overload.requests_max`",
            ),
            (
                &format!("{listen}[listeners.a.limits]\nshutdown_timeout = '1s'"),
                "set `limits.shutdown_timeout`",
            ),
            ("[sockets]\nbacklog = 0", "`sockets.backlog`: 0 is out of range: it must be from 1"),
            (
                "[sockets]\ntcp_keepalive = '1500ms'",
                "`sockets.tcp_keepalive`: the kernel accepts whole seconds",
            ),
            (
                "[driver]\nkind = 'epoll'",
                "`driver.kind`: `epoll` is not a valid value; expected one of `auto`",
            ),
            ("workers = 0", "`workers`: expected a whole number above 0, or `auto`"),
            (
                "[trusted_proxies]\nnetworks = ['10.0.0.0/33']",
                "`trusted_proxies.networks`: `10.0.0.0/33`",
            ),
            (
                "[trusted_proxies]\nhops = 1\nnetworks = ['::1']",
                "`trusted_proxies.hops`: set either `networks`",
            ),
            (
                "[trusted_proxies]\nnetworks = ['::1']\nheader = 'forwarded'\nx_forwarded_host = true",
                "`trusted_proxies.header`",
            ),
            (
                &format!("{listen}proxy_protocol.mode = 'optional'"),
                "`listeners.a.proxy_protocol.trusted`: `ProxyProtocol::optional()`",
            ),
            (
                "[access_log]\nformat = 'apache'",
                "`access_log.format`: `apache` is not a valid value; expected one of `common`",
            ),
            ("[access_log]\nform = 'json'", "did you mean `format`?"),
            ("[access_log]\nexcluded_routes = ['health']", "`health` is not a route pattern"),
            ("[access_log]\nqueue_bytes_max = '10'", "`access_log.queue_bytes_max`: too small"),
            ("[traces]\nsample_ratio = 1.5", "`traces.sample_ratio`: 1.5 is out of range"),
            (
                "[traces]\nroute_sample_ratios.'/a' = -1",
                "`traces.route_sample_ratios./a`: -1 is out of range",
            ),
            // Rejected because traces are off or, without the feature `otlp`, not supported.
            ("[traces.otlp]\nendpoint = 'http://a'", "traces."),
            ("[traces.otlp]\nendpoint = 'collector:4318'", "`traces.otlp.endpoint`: write a URL"),
            (
                "[traces.otlp]\nendpoint = 'http://me:word@a'",
                "a password in a URL would be printed",
            ),
            ("[traces.otlp.headers]\n'a b' = 'x'", "`traces.otlp.headers.a b`: not a valid HTTP"),
            ("[traces.otlp.headers]\na = '(hidden)'", "write the secret itself"),
            ("[tls.acme]\ndomains = ['a.test']", "`tls.acme.state_dir`: set the directory"),
            (
                "[tls.acme]\nexternal_account_binding.key_id = 'x'",
                "`key_id` and `mac_key` belong together",
            ),
            ("[tls.acme]\nchallenges = ['dns-01']", "`dns-01` is not a valid value"),
            (
                &format!("{listen}unix_mode = '0660'"),
                "`listeners.a.unix_mode`: this listener is not a Unix domain socket",
            ),
            (
                "[listeners.a]\naddress = 'unix:/x'\nunix_mode = 660",
                "`listeners.a.unix_mode`: expected the mode of a file in octal",
            ),
            ("[admin]\nunix_group = 'x'", "`admin.unix_group`: this listener is not a Unix domain"),
            #[cfg(feature = "tls")]
            (&https, "`tls`: there is no certificate: set `certificate` and `key`"),
            #[cfg(feature = "tls")]
            (
                &format!("{https}[tls.certificates.a]\ncertificate = 'none.pem'\nkey = 'none.key'"),
                "cannot read none.pem",
            ),
            #[cfg(feature = "tls")]
            (
                &format!(
                    "{https}[tls]\ndefault_certificate = 'b'\n[tls.certificates.a]\ncertificate = ''\nkey = ''"
                ),
                "`tls`: `default_certificate = \"b\"` matches no label",
            ),
        ] {
            let result = read(text, &[]).map_err(Error::from).and_then(Server::from_config);
            let error = result.map(|_| ()).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}\n{error}");
        }
    }
}
