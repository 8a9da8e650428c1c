//! Tests what a reload changes, and what it leaves unchanged.

use super::config::{ConfigReloader, InitialSettings};
use crate::{DriverChoice, Limits, Server, SocketOptions, TrustedProxies};
use peregrine_settings::ServerConfig;
use peregrine_settings::internal::layers;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

/// A file with this text in a temporary folder.
fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("app.toml");
    std::fs::write(&path, text).expect("a new file");
    (folder, path)
}

fn began<'s>(
    limits: &'s Limits,
    proxies: Option<&'s TrustedProxies>,
    workers: Option<NonZeroUsize>,
    sockets: &'s SocketOptions,
) -> InitialSettings<'s> {
    let driver = DriverChoice::Auto;
    let count = workers.map_or(1, NonZeroUsize::get);
    InitialSettings {
        limits,
        trusted_proxies: proxies,
        workers,
        worker_count: count,
        pin_workers: false,
        driver,
        sockets,
        quiet: true,
    }
}

#[test]
fn a_reload_names_what_changed_and_what_needs_a_restart() {
    let (_folder, path) = file("workers = 2\n[listeners.a]\naddress = '127.0.0.1:0'\n");
    let none: [(&str, &str); 0] = [];
    let layers = layers().file(&path).env_vars(none);
    let config = ServerConfig::from_layers(ServerConfig::default(), layers).expect("valid config");
    let mut configured = ConfigReloader::new(config.clone());
    let (live, mut changed) = tokio::sync::watch::channel(
        config.to_reloadable("a", &config.listeners["a"]).expect("it is valid"),
    );
    configured.add_listener("a", live);
    configured.initialize(&began(&config.limits, None, config.workers, &SocketOptions::default()));
    let mut read = |text: &str| {
        std::fs::write(&path, text).expect("the file exists");
        configured.reread().map_err(|error| error.to_string())
    };
    let listener = "[listeners.a]\naddress = '127.0.0.1:0'\n";

    let text = read(&format!("workers = 2\n{listener}")).expect("valid config");
    assert_eq!(text, "peregrine: configuration reloaded: nothing changed");
    assert!(!changed.has_changed().expect("the sender exists"));

    let next =
        format!("workers = 4\n{listener}[limits]\nidle_timeout = '5s'\nlame_duck_period = '1s'\n");
    assert_eq!(
        read(&next).expect("valid config"),
        "peregrine: configuration reloaded: limits.idle_timeout \"75s\" -> \"5s\"; a restart is needed for \
         limits.lame_duck_period \"0s\" -> \"1s\", workers 2 -> 4"
    );
    assert_eq!(changed.borrow_and_update().limits.idle_timeout, Duration::from_secs(5));

    // An error anywhere prevents all changes.
    for wrong in [
        format!("{next}head_timeout = 'soon'\n"),
        format!("{next}[trusted_proxies]\nnetworks = ['here']\n"),
        "[limits]\nidle_timeout = '6s'\n[".to_owned(),
    ] {
        let error = read(&wrong.replace("'5s'", "'6s'")).expect_err("it is invalid");
        assert!(
            error.contains("soon") || error.contains("here") || error.contains("TOML"),
            "{error}"
        );
        assert!(!changed.has_changed().expect("the sender exists"));
    }
    // Settings that need a restart are reported again on each reload; applied settings are not.
    assert_eq!(
        read(&next).expect("valid config"),
        "peregrine: configuration reloaded: nothing changed; a restart is needed for limits.lame_duck_period \"0s\" -> \
         \"1s\", workers 2 -> 4"
    );
    let text = read(&format!("workers = 2\n{listener}[trusted_proxies]\nnetworks = ['::1']\n"));
    assert_eq!(
        text.expect("valid config"),
        "peregrine: configuration reloaded: limits.idle_timeout \"5s\" -> \"75s\", trusted_proxies.networks [] -> \
         [\"::1\"]"
    );
    let live = changed.borrow_and_update().clone();
    assert_eq!(live.trusted_proxies, Some(["::1"].into()));
    assert_eq!(live.limits, Limits::default());
}

#[test]
fn what_workers_take_on_waits_for_no_restart_though_a_listener_has_limits_of_its_own() {
    let text = |most: usize| {
        format!(
            "[listeners.a]\naddress = '127.0.0.1:0'\nlimits.fields_max = 7\n\
             [limits.overload]\nrequests_max = {most}\n"
        )
    };
    let (_folder, path) = file(&text(5));
    let none: [(&str, &str); 0] = [];
    let layers = layers().file(&path).env_vars(none);
    let config = ServerConfig::from_layers(ServerConfig::default(), layers).expect("valid config");
    let mut configured = ConfigReloader::new(config.clone());
    configured.initialize(&began(&config.limits, None, None, &SocketOptions::default()));
    std::fs::write(&path, text(6)).expect("the file exists");
    let told = configured.reread().expect("valid config");
    assert!(told.contains("limits.overload.requests_max 5 -> 6"), "{told}");
    assert!(!told.contains("a restart is needed"), "{told}");
    let shown = configured.text();
    let shown = shown.lock().expect("not poisoned");
    assert!(!shown.contains("requests_max = 5"), "{shown}");
}

#[test]
fn what_the_program_sets_after_the_tree_stays() {
    let (_folder, path) =
        file("[limits]\nidle_timeout = '5s'\n[listeners.a]\naddress = '127.0.0.1:0'\n");
    let none: [(&str, &str); 0] = [];
    let layers = layers().file(&path).env_vars(none);
    let config = ServerConfig::from_layers(ServerConfig::default(), layers).expect("valid config");
    let mut configured = ConfigReloader::new(config.clone());
    let first = config.to_reloadable("a", &config.listeners["a"]).expect("valid config");
    let (live, changed) = tokio::sync::watch::channel(first);
    configured.add_listener("a", live);
    let limits = Limits { idle_timeout: Duration::from_secs(9), ..Limits::default() };
    let proxies = ["10.0.0.0/8"].into();
    let sockets = SocketOptions { backlog: 7, ..SocketOptions::default() };
    configured.initialize(&began(&limits, Some(&proxies), None, &sockets));
    std::fs::write(
        &path,
        "[limits]\nidle_timeout = '6s'\n[listeners.a]\naddress = '127.0.0.1:0'\n",
    )
    .expect("the file exists");
    let text = configured.reread().expect("valid config");
    assert_eq!(text, "peregrine: configuration reloaded: nothing changed");
    let live = changed.borrow().clone();
    assert_eq!((live.limits, live.trusted_proxies), (limits, Some(proxies)));
    let shown = configured.text();
    let shown = shown.lock().expect("not poisoned");
    assert!(
        shown.contains("# `limits` is set by the program") && shown.contains("\"9s\""),
        "{shown}"
    );
    assert!(shown.contains("# `sockets` is set by") && shown.contains("backlog = 7"), "{shown}");
}

#[test]
fn what_the_program_sets_stays_though_the_tree_said_the_same_at_first() {
    let (_folder, path) = file("[listeners.a]\naddress = '127.0.0.1:0'\n");
    let none: [(&str, &str); 0] = [];
    let layers = layers().file(&path).env_vars(none);
    let config = ServerConfig::from_layers(ServerConfig::default(), layers).expect("valid config");
    let server = Server::from_config(config).expect("valid config");
    let mut server = server.limits(Limits::default());
    let configured = server.config_reloader_mut().expect("built from a configuration");
    let sockets = SocketOptions::default();
    configured.initialize(&began(&Limits::default(), None, None, &sockets));
    std::fs::write(
        &path,
        "[listeners.a]\naddress = '127.0.0.1:0'\n[limits]\nidle_timeout = '5s'\n",
    )
    .expect("the file exists");
    let text = configured.reread().expect("valid config");
    assert_eq!(text, "peregrine: configuration reloaded: nothing changed");
}
