//! Determines how much memory the process may use, and how much of it each worker may use for its
//! connections.

use peregrine_server::{MemoryMax, OverloadLimits};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The minimum share of a worker, even if little memory is available.
const WORKER_BYTES_MIN: u64 = 16 << 20;

/// A worker's share is rounded down to a multiple of this, so that the reported value is easy to
/// read.
const ROUNDING_BYTES: u64 = 1 << 20;

/// The files that contain the memory limits of a cgroup, in versions 2 and 1.
const LIMITS_V2: [&str; 2] = ["memory.max", "memory.high"];
const LIMITS_V1: [&str; 1] = ["memory.limit_in_bytes"];

/// Replaces `auto` with a worker's share, if the system reports the amount of memory.
#[must_use]
pub fn resolve(limits: &OverloadLimits, workers: usize) -> OverloadLimits {
    resolve_under(Path::new("/"), limits, workers)
}

fn resolve_under(root: &Path, limits: &OverloadLimits, workers: usize) -> OverloadLimits {
    let mut limits = limits.clone();
    if limits.memory_max == MemoryMax::Auto
        && let Some(available) = available_memory(root)
    {
        limits.memory_max = MemoryMax::Bytes(share(available, workers));
    }
    limits
}

/// Formats a worker's memory limit, for [`resolve`]d `limits`. Returns an empty string if there is
/// no limit.
#[must_use]
pub fn describe(limits: &OverloadLimits) -> String {
    match limits.memory_max {
        MemoryMax::Bytes(bytes) if bytes < ROUNDING_BYTES => format!("{} KiB", bytes >> 10),
        MemoryMax::Bytes(bytes) => format!("{} MiB", bytes / ROUNDING_BYTES),
        // `auto` remains only where the amount of memory is unknown. Workers then use this default.
        MemoryMax::Auto => "1024 MiB".to_owned(),
        MemoryMax::Unlimited => String::new(),
    }
}

/// Returns a worker's share. All workers together get half of the available memory.
fn share(available: u64, workers: usize) -> u64 {
    let share = available / 2 / u64::try_from(workers).unwrap_or(u64::MAX).max(1);
    (share / ROUNDING_BYTES * ROUNDING_BYTES).max(WORKER_BYTES_MIN)
}

/// Returns the memory that the process may use, in bytes: the minimum of the machine's memory and
/// of the limits of its cgroup and the cgroup's ancestors. Returns `None` if the system reports
/// none of them.
fn available_memory(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().flat_map(|group| limits_of(root, group));
    limits.chain(total_memory(root)).min()
}

/// Returns all limits of a cgroup and its ancestors. `group` is a line of `/proc/self/cgroup`:
/// `0::/path` in version 2, `4:memory:/path` in version 1.
fn limits_of(root: &Path, group: &str) -> Vec<u64> {
    let mut parts = group.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { return Vec::new() };
    let (base, files) = match controllers {
        "" => ("sys/fs/cgroup", &LIMITS_V2[..]),
        names if names.split(',').any(|name| name == "memory") => {
            ("sys/fs/cgroup/memory", &LIMITS_V1[..])
        }
        _ => return Vec::new(),
    };
    let base = root.join(base);
    // In a container the path may be the one on the host, which does not exist here and so yields
    // no limits. The container's own cgroup is then `base` itself, which is an ancestor of every
    // path.
    let relative: PathBuf =
        Path::new(path).components().filter(|part| matches!(part, Component::Normal(_))).collect();
    let cgroups = relative.ancestors().map(|path| base.join(path));
    cgroups
        .flat_map(|directory| {
            files.iter().filter_map(move |file| read_limit(&directory.join(file)))
        })
        .collect()
}

/// Reads the limit in a file. Returns `None` for `max`, or if the file cannot be read or parsed.
fn read_limit(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn total_memory(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    /// A machine with 8 GiB.
    const MACHINE: (&str, &str) = ("proc/meminfo", "MemFree: 77 kB\nMemTotal:   8388608 kB\n");
    const V1_OFF: &str = "9223372036854771712\n";

    /// A temporary root directory with some files.
    struct Root(PathBuf);

    impl Root {
        fn with(name: &str, files: &[(&str, &str)]) -> Self {
            let name = format!("peregrine-memory-{}-{name}", std::process::id());
            let root = Self(std::env::temp_dir().join(name));
            for (file, text) in files {
                let file = root.0.join(file);
                fs::create_dir_all(file.parent().expect("the file is below the root"))
                    .expect("the temporary directory is writable");
                fs::write(file, text).expect("the directory is writable");
            }
            root
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "it is a table")]
    fn the_smallest_memory_limit_applies() {
        let v2 = "sys/fs/cgroup";
        let v1 = "sys/fs/cgroup/memory";
        type Files = Vec<(String, &'static str)>;
        let file =
            |directory: &str, name: &str, text: &'static str| (format!("{directory}/{name}"), text);
        let groups = |text: &'static str| ("proc/self/cgroup".to_owned(), text);
        let machine = (MACHINE.0.to_owned(), MACHINE.1);
        let table: [(&str, Files, Option<u64>); 11] = [
            ("nothing", vec![], None),
            ("machine", vec![machine.clone()], Some(8192)),
            (
                "container-v2",
                vec![machine.clone(), groups("0::/\n"), file(v2, "memory.max", "536870912\n")],
                Some(512),
            ),
            (
                "no-limit-v2",
                vec![machine.clone(), groups("0::/\n"), file(v2, "memory.max", "max\n")],
                Some(8192),
            ),
            (
                "service-v2",
                vec![
                    machine.clone(),
                    groups("0::/system.slice/app.service\n"),
                    file(&format!("{v2}/system.slice/app.service"), "memory.max", "max\n"),
                    file(&format!("{v2}/system.slice"), "memory.max", "1073741824\n"),
                ],
                Some(1024),
            ),
            (
                "throttled-v2",
                vec![
                    groups("0::/app\n"),
                    file(&format!("{v2}/app"), "memory.max", "1073741824\n"),
                    file(&format!("{v2}/app"), "memory.high", "268435456\n"),
                ],
                Some(256),
            ),
            (
                "more-than-there-is",
                vec![machine.clone(), groups("0::/\n"), file(v2, "memory.max", "99999999999\n")],
                Some(8192),
            ),
            (
                "container-v1",
                vec![
                    machine.clone(),
                    groups("3:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab\n1:name=systemd:/x\n"),
                    file(v1, "memory.limit_in_bytes", "134217728\n"),
                ],
                Some(128),
            ),
            (
                "service-v1",
                vec![
                    machine.clone(),
                    groups("4:memory:/app\n0::/app\n"),
                    file(v1, "memory.limit_in_bytes", V1_OFF),
                    file(&format!("{v1}/app"), "memory.limit_in_bytes", "67108864\n"),
                ],
                Some(64),
            ),
            (
                "outside-of-what-is-seen",
                vec![
                    machine.clone(),
                    groups("0::/../../elsewhere:with:colons\n"),
                    file(v2, "memory.max", "536870912\n"),
                ],
                Some(512),
            ),
            (
                "no-number",
                vec![machine, groups("0::\n\nx\n4:memory\n"), file(v2, "memory.max", "lots\n")],
                Some(8192),
            ),
        ];
        for (name, files, expected) in table {
            let files: Vec<_> = files.iter().map(|(file, text)| (&**file, *text)).collect();
            let root = Root::with(name, &files);
            assert_eq!(available_memory(&root.0), expected.map(|mib| mib * MIB), "{name}");
        }
    }

    #[test]
    fn workers_share_half_the_memory_with_a_minimum_each() {
        let table = [
            (8192, 2, 2048),
            (8192, 3, 1365),
            (512, 1, 256),
            (512, 4, 64),
            (64, 8, 16),
            (1, 1, 16),
            (8192, 0, 4096),
        ];
        for (available, workers, expected) in table {
            assert_eq!(
                share(available * MIB, workers),
                expected * MIB,
                "{available} for {workers}"
            );
        }
    }

    #[test]
    fn only_auto_reads_the_limits_of_the_system() {
        let root = Root::with("only-auto", &[MACHINE]);
        let resolve_and_describe = |memory_max, root: &Path| {
            let limits = OverloadLimits { memory_max, ..OverloadLimits::default() };
            let resolved = resolve_under(root, &limits, 4);
            (resolved.memory_max, describe(&resolved))
        };
        let (auto, missing) = (MemoryMax::Auto, Path::new("/nowhere"));
        let share = MemoryMax::Bytes(1024 * MIB);
        assert_eq!(resolve_and_describe(auto, &root.0), (share, "1024 MiB".to_owned()));
        assert_eq!(resolve_and_describe(auto, missing), (auto, "1024 MiB".to_owned()));
        let explicit = MemoryMax::Bytes(300 << 10);
        assert_eq!(resolve_and_describe(explicit, &root.0), (explicit, "300 KiB".to_owned()));
        assert_eq!(
            resolve_and_describe(MemoryMax::Unlimited, &root.0),
            (MemoryMax::Unlimited, String::new())
        );
    }
}
