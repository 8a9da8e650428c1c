//! Tests what a reload changes, and what it leaves unchanged.

use super::config::{ConfigReloader, InitialSettings};
use crate::{DriverChoice, Limits, Server, SocketOptions, TrustedProxies};
use peregrine_settings::ServerConfig;
use peregrine_settings::internal::layers;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

/// Writes `text` to a file in a temporary directory.
fn temp_file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("app.toml");
    std::fs::write(&path, text).expect("the directory is writable");
    (directory, path)
}

fn initial_settings<'s>(
    limits: &'s Limits,
    trusted_proxies: Option<&'s TrustedProxies>,
    workers: Option<NonZeroUsize>,
    socket_options: &'s SocketOptions,
) -> InitialSettings<'s> {
    let driver = DriverChoice::Auto;
    let worker_count = workers.map_or(1, NonZeroUsize::get);
    InitialSettings {
        limits,
        trusted_proxies,
        workers,
        worker_count,
        pin_workers: false,
        driver,
        socket_options,
        quiet: true,
    }
}

#[test]
fn a_reload_reports_what_changed_and_what_needs_a_restart() {
    let (_directory, path) = temp_file("workers = 2\n[listeners.a]\naddress = '127.0.0.1:0'\n");
    let no_vars: [(&str, &str); 0] = [];
    let layers = layers().file(&path).env_vars(no_vars);
    let config = ServerConfig::from_layers(ServerConfig::default(), layers).expect("valid config");
    let mut reloader = ConfigReloader::new(config.clone());
    let (sender, mut updates) = tokio::sync::watch::channel(
        config.to_reloadable("a", &config.listeners["a"]).expect("valid config"),
    );
    reloader.add_listener("a", sender);
    reloader.initialize(&initial_settings(
        &config.limits,
        None,
        config.workers,
        &SocketOptions::default(),
    ));
    let mut reread = |text: &str| {
        std::fs::write(&path, text).expect("the file exists");
        reloader.reread().map_err(|error| error.to_string())
    };
    let listener = "[listeners.a]\naddress = '127.0.0.1:0'\n";

    let text = reread(&format!("workers = 2\n{listener}")).expect("valid config");
    assert_eq!(text, "peregrine: configuration reloaded: nothing changed");
    assert!(!updates.has_changed().expect("the sender exists"));

    let text_with_changes =
        format!("workers = 4\n{listener}[limits]\nidle_timeout = '5s'\nlame_duck_period = '1s'\n");
    assert_eq!(
        reread(&text_with_changes).expect("valid config"),
        "peregrine: configuration reloaded: limits.idle_timeout \"75s\" -> \"5s\"; a restart is needed for \
         limits.lame_duck_period \"0s\" -> \"1s\", workers 2 -> 4"
    );
    assert_eq!(updates.borrow_and_update().limits.idle_timeout, Duration::from_secs(5));

    // An error anywhere prevents all changes.
    for invalid in [
        format!("{text_with_changes}head_timeout = 'soon'\n"),
        format!("{text_with_changes}[trusted_proxies]\nnetworks = ['here']\n"),
        "[limits]\nidle_timeout = '6s'\n[".to_owned(),
    ] {
        let error = reread(&invalid.replace("'5s'", "'6s'")).expect_err("it is invalid");
        assert!(
            error.contains("soon") || error.contains("here") || error.contains("TOML"),
            "{error}"
        );
        assert!(!updates.has_changed().expect("the sender exists"));
    }
    // Settings that need a restart are reported again on each reload; applied settings are not.
    assert_eq!(
        reread(&text_with_changes).expect("valid config"),
        "peregrine: configuration reloaded: nothing changed; a restart is needed for limits.lame_duck_period \"0s\" -> \
         \"1s\", workers 2 -> 4"
    );
    let text = reread(&format!("workers = 2\n{listener}[trusted_proxies]\nnetworks = ['::1']\n"));
    assert_eq!(
        text.expect("valid config"),
        "peregrine: configuration reloaded: limits.idle_timeout \"5s\" -> \"75s\", trusted_proxies.networks [] -> \
         [\"::1\"]"
    );
    let current = updates.borrow_and_update().clone();
    assert_eq!(current.trusted_proxies, Some(["::1"].into()));
    assert_eq!(current.limits, Limits::default());
}

#[test]
fn overload_limits_are_reloaded_although_a_listener_has_its_own_limits() {
    let text = |requests_max: usize| {
        format!(
            "[listeners.a]\naddress = '127.0.0.1:0'\nlimits.fields_max = 7\n\
             [limits.overload]\nrequests_max = {requests_max}\n"
        )
    };
    let (_directory, path) = temp_file(&text(5));
    let no_vars: [(&str, &str); 0] = [];
    let layers = layers().file(&path).env_vars(no_vars);
    let config = ServerConfig::from_layers(ServerConfig::default(), layers).expect("valid config");
    let mut reloader = ConfigReloader::new(config.clone());
    reloader.initialize(&initial_settings(&config.limits, None, None, &SocketOptions::default()));
    std::fs::write(&path, text(6)).expect("the file exists");
    let message = reloader.reread().expect("valid config");
    assert!(message.contains("limits.overload.requests_max 5 -> 6"), "{message}");
    assert!(!message.contains("a restart is needed"), "{message}");
    let text_in_effect = reloader.text();
    let text_in_effect = text_in_effect.lock().expect("not poisoned");
    assert!(!text_in_effect.contains("requests_max = 5"), "{text_in_effect}");
}

#[test]
fn a_reload_does_not_change_settings_overridden_in_code() {
    let (_directory, path) =
        temp_file("[limits]\nidle_timeout = '5s'\n[listeners.a]\naddress = '127.0.0.1:0'\n");
    let no_vars: [(&str, &str); 0] = [];
    let layers = layers().file(&path).env_vars(no_vars);
    let config = ServerConfig::from_layers(ServerConfig::default(), layers).expect("valid config");
    let mut reloader = ConfigReloader::new(config.clone());
    let initial = config.to_reloadable("a", &config.listeners["a"]).expect("valid config");
    let (sender, updates) = tokio::sync::watch::channel(initial);
    reloader.add_listener("a", sender);
    let limits = Limits { idle_timeout: Duration::from_secs(9), ..Limits::default() };
    let proxies = ["10.0.0.0/8"].into();
    let sockets = SocketOptions { backlog: 7, ..SocketOptions::default() };
    reloader.initialize(&initial_settings(&limits, Some(&proxies), None, &sockets));
    std::fs::write(
        &path,
        "[limits]\nidle_timeout = '6s'\n[listeners.a]\naddress = '127.0.0.1:0'\n",
    )
    .expect("the file exists");
    let text = reloader.reread().expect("valid config");
    assert_eq!(text, "peregrine: configuration reloaded: nothing changed");
    let current = updates.borrow().clone();
    assert_eq!((current.limits, current.trusted_proxies), (limits, Some(proxies)));
    let text_in_effect = reloader.text();
    let text_in_effect = text_in_effect.lock().expect("not poisoned");
    assert!(
        text_in_effect.contains("# `limits` is set by the program")
            && text_in_effect.contains("\"9s\""),
        "{text_in_effect}"
    );
    assert!(
        text_in_effect.contains("# `sockets` is set by") && text_in_effect.contains("backlog = 7"),
        "{text_in_effect}"
    );
}

#[test]
fn settings_overridden_in_code_stay_even_if_the_values_were_equal() {
    let (_directory, path) = temp_file("[listeners.a]\naddress = '127.0.0.1:0'\n");
    let no_vars: [(&str, &str); 0] = [];
    let layers = layers().file(&path).env_vars(no_vars);
    let config = ServerConfig::from_layers(ServerConfig::default(), layers).expect("valid config");
    let server = Server::from_config(config).expect("valid config");
    let mut server = server.limits(Limits::default());
    let reloader = server.config_reloader_mut().expect("built from a configuration");
    let sockets = SocketOptions::default();
    reloader.initialize(&initial_settings(&Limits::default(), None, None, &sockets));
    std::fs::write(
        &path,
        "[listeners.a]\naddress = '127.0.0.1:0'\n[limits]\nidle_timeout = '5s'\n",
    )
    .expect("the file exists");
    let text = reloader.reread().expect("valid config");
    assert_eq!(text, "peregrine: configuration reloaded: nothing changed");
}
