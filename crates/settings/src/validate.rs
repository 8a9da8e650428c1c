//! Checks the values of settings.

use super::server::{AdminConfig, ListenerConfig, ServerConfig, SocketsConfig};
use super::tls::TlsSection;
use peregrine_config::{ConfigError, ConfigValue, SourceLocation};
use peregrine_server::Limits;
use std::time::Duration;

impl ServerConfig {
    /// Checks for invalid settings: numbers out of range, and settings that contradict each other.
    /// [`load`](Self::load) and `Server::from_config` call this method.
    ///
    /// # Errors
    /// A [`ConfigError`] names the setting and its allowed values.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check_limits("limits", &self.limits)?;
        self.check_access_log()?;
        self.check_traces()?;
        check_acme("tls", &self.tls)?;
        for (name, listener) in &self.listeners {
            let path_of = |section: &str| format!("listeners.{name}.{section}");
            if let Some(limits) = &listener.limits {
                check_limits(&path_of("limits"), limits)?;
            }
            if listener.address.is_none() && listener.activated.is_none() {
                let text = "set the address to listen on: `address = \"127.0.0.1:8080\"`";
                return Err(ConfigError::for_key(&path_of("address"), text));
            }
            let ListenerConfig { unix_mode, unix_owner, unix_group, .. } = listener;
            let are_set = [unix_mode.is_some(), unix_owner.is_some(), unix_group.is_some()];
            check_socket_file(&path_of(""), listener.address.as_deref(), are_set)?;
            if let Some(tls) = &listener.tls {
                check_acme(&path_of("tls"), tls)?;
            }
            if listener.tls.is_some() && !listener.https {
                let text = "the listener has a section `tls`, but no `https = true`";
                return Err(ConfigError::for_key(&path_of("https"), text));
            }
        }
        let AdminConfig { unix_mode, unix_owner, unix_group, .. } = &self.admin;
        let are_set = [unix_mode.is_some(), unix_owner.is_some(), unix_group.is_some()];
        check_socket_file("admin.", self.admin.address.as_deref(), are_set)?;
        let (driver, sockets) = (&self.driver, &self.sockets);
        let kib = |count: u64| count * 1024;
        for (setting, value, min, max) in [
            ("workers", self.workers.map_or(1, |workers| workers.get() as u64), 1, 4096),
            ("driver.receive_buffers", driver.receive_buffers.into(), 16, 32_768),
            ("driver.receive_buffer_bytes", driver.receive_buffer_bytes as u64, 512, kib(64)),
            ("driver.read_ahead_buffers_max", driver.read_ahead_buffers_max as u64, 1, 32_768),
            ("driver.large_receive_bytes", driver.large_receive_bytes as u64, kib(4), kib(1024)),
            ("sockets.backlog", sockets.backlog.into(), 1, i32::MAX as u64),
            ("sockets.notsent_lowat_bytes", sockets.notsent_lowat_bytes.into(), 1, i32::MAX as u64),
            ("sockets.tcp_keepalive_retries", sockets.tcp_keepalive_retries.into(), 1, 127),
            (
                "sockets.receive_buffer_bytes",
                sockets.receive_buffer_bytes.map_or(kib(4), |bytes| bytes as u64),
                1,
                i32::MAX as u64,
            ),
            (
                "sockets.send_buffer_bytes",
                sockets.send_buffer_bytes.map_or(kib(4), |bytes| bytes as u64),
                1,
                i32::MAX as u64,
            ),
        ] {
            check_range(setting, value, min, max)?;
        }
        check_socket_times(sockets)?;
        if driver.busy_poll > Duration::from_secs(1) {
            let text = "busy polling must not exceed `1s`";
            return Err(ConfigError::for_key("driver.busy_poll", text));
        }
        Ok(())
    }
}

fn check_socket_times(sockets: &SocketsConfig) -> Result<(), ConfigError> {
    // Linux accepts keep-alive times in whole seconds, from 1 to 32,767.
    let second = Duration::from_secs(1);
    let max = Duration::from_secs(32_767);
    for (setting, duration) in [
        ("sockets.tcp_keepalive", sockets.tcp_keepalive.unwrap_or(second)),
        ("sockets.tcp_keepalive_interval", sockets.tcp_keepalive_interval),
    ] {
        if !(second..=max).contains(&duration) || duration.subsec_nanos() > 0 {
            let text = "the kernel accepts whole seconds, from `1s` to `32767s`";
            return Err(ConfigError::for_key(setting, text));
        }
    }
    let max = Duration::from_millis(i32::MAX as u64);
    if !(second..=max).contains(&sockets.tcp_user_timeout.unwrap_or(second)) {
        let text = "the kernel accepts `1s` to `24d`";
        return Err(ConfigError::for_key("sockets.tcp_user_timeout", text));
    }
    Ok(())
}

fn check_range(setting: &str, value: u64, min: u64, max: u64) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    let text = format!("{value} is out of range: it must be from {min} to {max}");
    Err(ConfigError::for_key(setting, text))
}

fn check_limits(section: &str, limits: &Limits) -> Result<(), ConfigError> {
    let path_of = |name: &str| format!("{section}.{name}");
    let http2 = &limits.http2;
    let table_max = u64::from(u16::MAX);
    let window_max = (1 << 31) - 1;
    for (name, value, min, max) in [
        ("head_bytes_max", limits.head_bytes_max as u64, 64, u64::from(u16::MAX)),
        ("request_line_bytes_max", limits.request_line_bytes_max as u64, 16, u64::MAX),
        ("field_bytes_max", limits.field_bytes_max as u64, 16, u64::MAX),
        ("fields_max", limits.fields_max as u64, 1, u64::MAX),
        ("connections_max", limits.connections_max as u64, 1, u64::MAX),
        ("handshakes_max", limits.handshakes_max as u64, 1, u64::MAX),
        ("write_buffer_bytes_max", limits.write_buffer_bytes_max as u64, 1, u64::MAX),
        ("body_buffer_bytes_max", limits.body_buffer_bytes_max as u64, 1, u64::MAX),
        ("http2.concurrent_streams_max", http2.concurrent_streams_max.into(), 1, 32_768),
        ("http2.initial_stream_window", http2.initial_stream_window.into(), 1, window_max),
        ("http2.stream_window_max", http2.stream_window_max.into(), 1, window_max),
        (
            "http2.initial_connection_window",
            http2.initial_connection_window.into(),
            table_max,
            window_max,
        ),
        ("http2.connection_window_max", http2.connection_window_max.into(), table_max, window_max),
        (
            "http2.hpack_decoder_table_bytes_max",
            http2.hpack_decoder_table_bytes_max.into(),
            0,
            table_max,
        ),
        (
            "http2.hpack_encoder_table_bytes_max",
            http2.hpack_encoder_table_bytes_max.into(),
            0,
            table_max,
        ),
        ("http2.header_block_bytes_max", http2.header_block_bytes_max.into(), 64, u64::MAX),
        ("http2.abuse_budget_max", http2.abuse_budget_max.into(), 1, u64::MAX),
        ("http2.pending_control_frames_max", http2.pending_control_frames_max.into(), 1, u64::MAX),
    ] {
        check_range(&path_of(name), value, min, max)?;
    }
    for (name, time) in [
        ("first_byte_timeout", limits.first_byte_timeout),
        ("head_timeout", limits.head_timeout),
        ("handshake_timeout", limits.handshake_timeout),
        ("transfer_rate_grace", limits.transfer_rate_grace),
    ] {
        if time.is_zero() {
            let text = "with a timeout of zero, no client could be served";
            return Err(ConfigError::for_key(&path_of(name), text));
        }
    }
    if let Some(error) = limits.overload.config_error() {
        return Err(ConfigError::for_key(&path_of("overload"), error));
    }
    // In other servers, zero often means no limit. Here, such a timeout would expire immediately.
    for (name, time) in [
        ("exchange_timeout", limits.exchange_timeout),
        ("connection_age_max", limits.connection_age_max),
        ("upgraded_idle_timeout", limits.upgraded_idle_timeout),
        ("blocking_poll_threshold", limits.blocking_poll_threshold),
        ("http2.keep_alive_interval", http2.keep_alive_interval),
    ] {
        if time.is_some_and(|time| time.is_zero()) {
            let text = "zero would expire immediately; for no limit, write `off`";
            return Err(ConfigError::for_key(&path_of(name), text));
        }
    }
    Ok(())
}

/// Returns an error if a limit that applies only to the whole server is set for one listener
/// (`ListenerConfig::limits`).
pub(crate) fn check_server_wide(tree: &ConfigValue) -> Option<ConfigError> {
    const SETTINGS: [&str; 5] = [
        "blocking_poll_threshold",
        "lame_duck_period",
        "shutdown_timeout",
        "background_task_timeout",
        "overload",
    ];
    let leaves = tree.leaves();
    leaves.iter().find_map(|(name, value)| {
        let (_, setting) = name.strip_prefix("listeners.")?.split_once(".limits.")?;
        let section = setting.split('.').next()?;
        if value.location == SourceLocation::Default || !SETTINGS.contains(&section) {
            return None;
        }
        // A printed configuration repeats the server's values for each listener, so equal values
        // are allowed.
        let server_setting = format!("limits.{setting}");
        if leaves.iter().any(|(name, other)| *name == server_setting && other.kind == value.kind) {
            return None;
        }
        let text = format!("it applies to the whole server: set `limits.{setting}`");
        Some(ConfigError::for_key(name, text).with_location(&value.location))
    })
}

/// Checks that the settings of a socket's file are used only for Unix domain sockets. `are_set` is
/// whether the mode, the owner and the group are set.
fn check_socket_file(
    prefix: &str,
    address: Option<&str>,
    are_set: [bool; 3],
) -> Result<(), ConfigError> {
    let is_unix = address.is_some_and(|address| address.starts_with("unix:"));
    for (name, is_set) in ["unix_mode", "unix_owner", "unix_group"].into_iter().zip(are_set) {
        if is_set && !is_unix {
            let text = "this listener is not a Unix domain socket: remove the setting, or write \
                        `address = \"unix:/run/app.sock\"`";
            return Err(ConfigError::for_key(&format!("{prefix}{name}"), text));
        }
    }
    Ok(())
}

fn check_acme(section: &str, tls: &TlsSection) -> Result<(), ConfigError> {
    let acme = &tls.acme;
    let fail =
        |name: &str, text: &str| Err(ConfigError::for_key(&format!("{section}.{name}"), text));
    let binding = &acme.external_account_binding;
    if binding.key_id.is_some() == binding.mac_key.expose_secret().is_empty() {
        let text = "`key_id` and `mac_key` belong together: set both or none";
        return fail("acme.external_account_binding", text);
    }
    if acme.domains.is_empty() {
        return Ok(());
    }
    if acme.state_dir.is_none() {
        let text = "set the directory that stores the account and the certificates: authorities \
                    limit how many certificates they issue";
        return fail("acme.state_dir", text);
    }
    if acme.challenges.is_empty() {
        return fail(
            "acme.challenges",
            "list `tls-alpn-01` or `http-01`: without a challenge there is no proof",
        );
    }
    if tls.default_certificate.is_some() {
        let text = "with `acme`, the certificate of its first domain is the default";
        return fail("default_certificate", text);
    }
    Ok(())
}
