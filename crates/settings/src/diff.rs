//! Lists the settings that a reload changes, for the log.

use super::{ConfigError, ServerConfig};
use peregrine_config::to_value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The maximum number of settings named in one log line.
const CHANGES_SHOWN_MAX: usize = 40;

/// The maximum length of a value in the log line.
const TEXT_CHARS_MAX: usize = 80;

/// A setting whose value differs between two configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingChange {
    /// The full name of the setting.
    pub setting: String,
    /// The previous value, as text.
    pub old: String,
    /// The new value, as text.
    pub new: String,
}

/// Lists the settings that differ between two configurations.
///
/// # Errors
/// A configuration cannot be converted to values.
pub fn diff(old: &ServerConfig, new: &ServerConfig) -> Result<Vec<SettingChange>, ConfigError> {
    let (old, new) = (to_value(old)?, to_value(new)?);
    // The values are compared, not their text, because all secrets have the same text.
    let mut new: BTreeMap<_, _> = new.leaves().into_iter().collect();
    let to_text = |value: Option<&peregrine_config::ConfigValue>| {
        value.map_or_else(|| "(nothing)".to_owned(), ToString::to_string)
    };
    let mut changes = Vec::new();
    for (setting, old) in old.leaves() {
        let new = new.remove(&setting);
        if new != Some(old) {
            changes.push(SettingChange { setting, old: to_text(Some(old)), new: to_text(new) });
        }
    }
    let added = new.into_iter();
    let added = added.map(|(setting, new)| SettingChange {
        setting,
        old: to_text(None),
        new: to_text(Some(new)),
    });
    changes.extend(added);
    changes.sort_by(|left, right| left.setting.cmp(&right.setting));
    Ok(changes)
}

/// Formats the log line about a reload.
#[must_use]
pub fn summary(changes: &[SettingChange], needs_restart: &[SettingChange]) -> String {
    let mut text = "peregrine: configuration reloaded: ".to_owned();
    match changes {
        [] => text.push_str("nothing changed"),
        changes => write_changes(&mut text, changes),
    }
    if !needs_restart.is_empty() {
        text.push_str("; a restart is needed for ");
        write_changes(&mut text, needs_restart);
    }
    text
}

fn write_changes(text: &mut String, changes: &[SettingChange]) {
    for (index, SettingChange { setting, old, new }) in
        changes.iter().take(CHANGES_SHOWN_MAX).enumerate()
    {
        let separator = if index == 0 { "" } else { ", " };
        // Writing to a string never fails.
        let _ = write!(text, "{separator}{setting} {} -> {}", truncate(old), truncate(new));
    }
    if let Some(more) = changes.len().checked_sub(CHANGES_SHOWN_MAX).filter(|more| *more > 0) {
        let _ = write!(text, " and {more} more");
    }
}

fn truncate(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
