//! Metrics of the process, with the names that Prometheus' client libraries use. They are available
//! on Linux only.

use peregrine_metrics::{Exposition, MetricFamily, MetricType};
#[cfg(target_os = "linux")]
use std::fs;

/// Clock ticks per second in `/proc` (`USER_HZ`).
#[cfg(target_os = "linux")]
const CLOCK_TICKS_PER_SECOND: f64 = 100.0;

const fn family(
    name: &'static str,
    kind: MetricType,
    unit: &'static str,
    help: &'static str,
) -> MetricFamily<'static> {
    MetricFamily { name, metric_type: kind, unit, help }
}

/// The families, in the order of the values that [`read`] returns.
pub(crate) const FAMILIES: &[MetricFamily<'static>] = &[
    family("process_cpu_seconds", MetricType::Counter, "seconds", "CPU time of the process."),
    family("process_resident_memory_bytes", MetricType::Gauge, "bytes", "Resident memory."),
    family("process_virtual_memory_bytes", MetricType::Gauge, "bytes", "Virtual memory."),
    family("process_open_fds", MetricType::Gauge, "", "Open file descriptors."),
    family("process_max_fds", MetricType::Gauge, "", "The limit on open file descriptors."),
    family(
        "process_start_time_seconds",
        MetricType::Gauge,
        "seconds",
        "Start time of the process, since the Unix epoch.",
    ),
];

/// Writes the values that the system provides.
pub(crate) fn write(page: &mut Exposition) {
    for (family, value) in FAMILIES.iter().zip(read()) {
        page.begin_family(family);
        if let Some(value) = value {
            page.sample(&[], value);
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn read() -> [Option<f64>; 6] {
    [None; 6]
}

#[cfg(target_os = "linux")]
fn read() -> [Option<f64>; 6] {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The process name in parentheses may contain any characters, including spaces and parentheses.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    // Fields are numbered as in proc_pid_stat(5), where the first field after the name is field 3.
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    let cpu = || Some((field(14)? + field(15)?) / CLOCK_TICKS_PER_SECOND);
    let started = || Some(boot_time()? + field(22)? / CLOCK_TICKS_PER_SECOND);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = number_after(&status, "VmRSS:").map(|kib| kib * 1024.0);
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let max_fds = number_after(&limits, "Max open files");
    [cpu(), resident, field(23), count_fds(), max_fds, started()]
}

/// Returns the first number on the line that starts with `name`.
#[cfg(target_os = "linux")]
fn number_after(text: &str, name: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Returns the machine's boot time, in seconds since the Unix epoch.
#[cfg(target_os = "linux")]
fn boot_time() -> Option<f64> {
    number_after(&fs::read_to_string("/proc/stat").ok()?, "btime")
}

/// Returns the number of open file descriptors.
#[cfg(target_os = "linux")]
fn count_fds() -> Option<f64> {
    // Since Linux 6.2, the directory's size is the number of descriptors. Older kernels report 0,
    // so the descriptors must be listed.
    let size = fs::metadata("/proc/self/fd").ok()?.len();
    let count = if size > 0 { size } else { fs::read_dir("/proc/self/fd").ok()?.count() as u64 };
    Some(count as f64)
}

/// Returns how long a thread of this process has run, and how long it has waited for a CPU, in
/// seconds.
#[cfg(target_os = "linux")]
pub(crate) fn schedstat(tid: u32) -> Option<(f64, f64)> {
    let text = fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).ok()?;
    let mut fields = text.split_whitespace().map(|field| field.parse::<u64>().ok());
    let mut next = || Some(fields.next()?? as f64 / 1e9);
    Some((next()?, next()?))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn schedstat(_: u32) -> Option<(f64, f64)> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_system_provides_every_value() {
        let values = read();
        assert!(values.iter().all(Option::is_some), "{values:?}");
        let [_, resident, virtual_memory, open_fds, max_fds, started] =
            values.map(Option::unwrap_or_default);
        assert!(resident > 100_000.0 && virtual_memory >= resident);
        assert!((3.0..=max_fds).contains(&open_fds), "{open_fds} of {max_fds}");
        assert!(started > 1e9, "{started}");
    }
}
