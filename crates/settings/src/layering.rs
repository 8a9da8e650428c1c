//! Merges the settings in code, the file and the environment variables into one configuration.

use peregrine_config::{ConfigError, ConfigLoader, ConfigValue, SourceLocation, ValueKind};

/// The prefix of environment variables.
const ENV_PREFIX: &str = "PEREGRINE_";

/// Adds the location of the setting to the error, unless the setting was set in code.
pub(crate) fn with_location(error: ConfigError, tree: Option<&ConfigValue>) -> ConfigError {
    let setting = error.key();
    let leaves = tree.map(ConfigValue::leaves).unwrap_or_default();
    match leaves.into_iter().find(|(name, _)| *name == setting) {
        Some((_, value)) if value.location != SourceLocation::Default => {
            error.with_location(&value.location)
        }
        _ => error,
    }
}

/// Creates the layers without a file: environment variables with the standard prefix.
#[must_use]
pub fn layers() -> ConfigLoader {
    ConfigLoader::new(ENV_PREFIX).env_alias("PEREGRINE_DRIVER", "driver.kind")
}

/// Adds the server's settings to the sections of a listener that omit them.
pub(crate) fn inherit_server_sections(tree: &mut ConfigValue) {
    let sections = ["limits", "tls", "trusted_proxies"];
    let server_sections = sections.map(|name| (name, tree.get(name).cloned()));
    let Some(listeners) = tree.get_mut("listeners") else { return };
    let names: Vec<_> = listeners.entries().iter().map(|entry| entry.key.clone()).collect();
    for name in names {
        let Some(listener) = listeners.get_mut(&name) else { continue };
        for (section, server_section) in &server_sections {
            if let (Some(listener_section), Some(server_section)) =
                (listener.get_mut(section), server_section)
            {
                // A section that is not a table is ignored here, and the loader reports it.
                if matches!(listener_section.kind, ValueKind::Table(_)) {
                    let overrides = std::mem::replace(listener_section, server_section.clone());
                    // A listener with its own certificates inherits none of the server's.
                    let has_certificates = overrides.get("certificates").is_some();
                    let has_domains =
                        overrides.get("acme").is_some_and(|acme| acme.get("domains").is_some());
                    let dropped: &[&str] = match (has_certificates, has_domains) {
                        (false, false) => &[],
                        (true, false) => &["certificates", "default_certificate", "acme"],
                        (_, true) => &["certificates", "default_certificate"],
                    };
                    for name in dropped {
                        if let Some(value) = listener_section.get_mut(name) {
                            value.kind = ValueKind::Nil;
                        }
                    }
                    listener_section.merge(overrides, true);
                }
            }
        }
    }
}

/// Replaces underscores with hyphens in the names of header fields that are set by environment
/// variables, because a variable's name cannot contain hyphens.
pub(crate) fn normalize_header_names(tree: &mut ConfigValue) {
    let headers =
        tree.get_mut("traces").and_then(|traces| traces.get_mut("otlp")?.get_mut("headers"));
    if let Some(ConfigValue { kind: ValueKind::Table(entries), .. }) = headers {
        for entry in
            entries.iter_mut().filter(|item| matches!(item.key_location, SourceLocation::EnvVar(_)))
        {
            entry.key = entry.key.replace('_', "-");
        }
    }
}
