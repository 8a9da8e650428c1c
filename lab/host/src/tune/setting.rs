//! The settings that tuning knows: where each lies, what it should be, and how a change of it is
//! told.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::root::Root;

const CPU_FOLDER: &str = "/sys/devices/system/cpu/cpu";
const GOVERNOR_FILE: &str = "/cpufreq/scaling_governor";
const QUEUE: &str = "/proc/sys/net/core/somaxconn";
const HANDSHAKES: &str = "/proc/sys/net/ipv4/tcp_max_syn_backlog";
const PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// The governor that never lowers the frequency.
pub(super) const GOVERNOR: &str = "performance";

/// How long the queues of listeners shall be at least. Older kernels take no more.
const QUEUE_MIN: u64 = 65_535;

/// The first and last port that connections shall be given at least. Lower ones need rights.
const PORTS_MIN: (u16, u16) = (1024, 65_535);

/// A setting of the kernel. In a record it is its path; no other path is ever written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(super) enum Setting {
    /// The frequency governor of this CPU.
    Governor(usize),
    /// The length of a listener's queue.
    Queue,
    /// How many handshakes may be in progress.
    Handshakes,
    /// The ports that connections are given.
    Ports,
}

impl From<Setting> for String {
    fn from(setting: Setting) -> String {
        setting.path()
    }
}

impl TryFrom<String> for Setting {
    type Error = String;

    fn try_from(path: String) -> Result<Setting, String> {
        let cpu = || {
            let middle = path.strip_prefix(CPU_FOLDER)?.strip_suffix(GOVERNOR_FILE)?;
            middle.parse().ok().map(Setting::Governor)
        };
        let settings = [Setting::Queue, Setting::Handshakes, Setting::Ports];
        let found = settings.into_iter().find(|setting| setting.path() == path).or_else(cpu);
        found.ok_or_else(|| format!("{path} is no setting that this program changes"))
    }
}

impl Setting {
    pub(super) fn path(self) -> String {
        match self {
            Setting::Governor(cpu) => format!("{CPU_FOLDER}{cpu}{GOVERNOR_FILE}"),
            Setting::Queue => QUEUE.to_owned(),
            Setting::Handshakes => HANDSHAKES.to_owned(),
            Setting::Ports => PORTS.to_owned(),
        }
    }

    /// The value, or nothing where the kernel has no such setting.
    pub(super) fn read(self, root: &Root) -> Option<String> {
        words(root, &self.path())
    }

    /// What it should be instead of `now`, or nothing if it may stay or is not understood.
    pub(super) fn wanted(self, now: &str) -> Option<String> {
        match self {
            Setting::Governor(_) => (now != GOVERNOR).then(|| GOVERNOR.to_owned()),
            Setting::Queue | Setting::Handshakes => now
                .parse::<u64>()
                .is_ok_and(|length| length < QUEUE_MIN)
                .then(|| QUEUE_MIN.to_string()),
            Setting::Ports => {
                let (first, last) = now.split_once(' ')?;
                let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
                // A range that reaches further on one side keeps that side.
                let (low, high) = (first.min(PORTS_MIN.0), last.max(PORTS_MIN.1));
                ((low, high) != (first, last)).then(|| format!("{low} {high}"))
            }
        }
    }

    /// What it is called in a sentence.
    pub(super) fn name(self) -> String {
        match self {
            Setting::Governor(cpu) => format!("the frequency governor of CPU {cpu}"),
            Setting::Queue => "net.core.somaxconn".to_owned(),
            Setting::Handshakes => "net.ipv4.tcp_max_syn_backlog".to_owned(),
            Setting::Ports => "net.ipv4.ip_local_port_range".to_owned(),
        }
    }
}

/// The governors that a CPU can have, or nothing if the kernel does not say.
pub(super) fn governors(root: &Root, cpu: usize) -> Option<String> {
    words(root, &format!("{CPU_FOLDER}{cpu}/cpufreq/scaling_available_governors"))
}

/// Whether a CPU prefers speed or saving. Some drivers change it along with the governor, and it
/// cannot be read back from the governor.
pub(super) fn preference_path(cpu: usize) -> String {
    format!("{CPU_FOLDER}{cpu}/cpufreq/energy_performance_preference")
}

/// A file's first line with one space between its words; the kernel puts tabs between numbers.
pub(super) fn words(root: &Root, path: &str) -> Option<String> {
    let line = root.line(path)?;
    Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Writes a value as a shell would: in one piece, and only to a file that is there.
pub(super) fn write(path: &Path, value: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
    file.write_all(format!("{value}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_values_that_are_too_low_are_raised() {
        for setting in [Setting::Queue, Setting::Handshakes] {
            assert_eq!(setting.wanted("128").as_deref(), Some("65535"));
            assert_eq!(setting.wanted("65535"), None);
            assert_eq!(setting.wanted("100000"), None);
            assert_eq!(setting.wanted("many"), None);
        }
    }

    #[test]
    fn a_range_of_ports_is_only_ever_widened() {
        let wanted = |now| Setting::Ports.wanted(now);
        assert_eq!(wanted("32768 60999").as_deref(), Some("1024 65535"));
        assert_eq!(wanted("512 60999").as_deref(), Some("512 65535"));
        assert_eq!(wanted("2048 65535").as_deref(), Some("1024 65535"));
        for enough in ["1024 65535", "1 65535", "", "1024", "a b", "1024 70000"] {
            assert_eq!(wanted(enough), None, "{enough}");
        }
    }

    #[test]
    fn a_record_can_name_no_other_file() {
        for setting in [Setting::Governor(12), Setting::Queue, Setting::Handshakes, Setting::Ports]
        {
            assert_eq!(Setting::try_from(setting.path()), Ok(setting));
        }
        for path in [
            "/etc/passwd",
            "/sys/devices/system/cpu/cpu/cpufreq/scaling_governor",
            "/sys/devices/system/cpu/cpu0/../cpu1/cpufreq/scaling_governor",
            "/proc/sys/net/core/somaxconn/",
        ] {
            assert!(Setting::try_from(path.to_owned()).is_err(), "{path}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("setting");
        assert!(write(&path, "1").is_err());
        assert!(!path.exists());
    }
}
