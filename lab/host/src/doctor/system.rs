//! Checks of the kernel and of the programs that contenders need.

use super::Measure::IoUring;
use super::{Check, Facts, Found};

/// Below this the fastest ways of `io_uring` are missing.
const KERNEL_MIN: (u64, u64) = (6, 1);

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "kernel",
        why: "Most of a small request's cost is the kernel's; before 6.1 the ring's best flags are \
              missing.",
        mend: "use a kernel of 6.1 or later",
        look: kernel,
    },
    Check {
        name: "io-uring",
        why: "Where it is refused, contenders that need it are skipped, and the client falls back \
              to epoll.",
        mend: "sysctl -w kernel.io_uring_disabled=0",
        look: ring,
    },
    Check {
        name: "perf-events",
        why: "Instructions and cycles can be counted only where the kernel lets us.",
        mend: "sysctl -w kernel.perf_event_paranoid=2",
        look: perf_events,
    },
    Check {
        name: "address-randomisation",
        why: "A program's layout changes its speed by some percent; fresh processes with random \
              layouts average that out, one fixed layout does not.",
        mend: "sysctl -w kernel.randomize_va_space=2",
        look: randomisation,
    },
    Check {
        name: "container",
        why: "Containers bring limits, seccomp filters and network paths that a reader must know of.",
        mend: "",
        look: container,
    },
    Check {
        name: "rust",
        why: "Rust contenders are built from source; without a toolchain they are skipped.",
        mend: "install it from https://rustup.rs",
        look: rust,
    },
    Check {
        name: "go",
        why: "Go contenders are built from source; without a toolchain they are skipped.",
        mend: "install it from https://go.dev/dl",
        look: go,
    },
];

fn kernel(facts: &Facts<'_>) -> Found {
    let Some(release) = facts.root.line("/proc/sys/kernel/osrelease") else {
        return Found::note(format!("not Linux but {}", std::env::consts::OS));
    };
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u64>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    Found::ok_if(version >= KERNEL_MIN, release)
}

fn ring(facts: &Facts<'_>) -> Found {
    match facts.root.number("/proc/sys/kernel/io_uring_disabled") {
        // Kernels before 6.6 have no such switch.
        None if facts.root.exists("/proc/sys/kernel/osrelease") => {
            Found::ok("no switch in this kernel; a filter may still refuse it")
        }
        None => Found::unknown(),
        Some(0) => Found::ok("0: allowed; a filter may still refuse it"),
        Some(1) => Found::warning("1: for privileged processes only", &[IoUring]),
        Some(value) => Found::warning(format!("{value}: refused"), &[IoUring]),
    }
}

fn perf_events(facts: &Facts<'_>) -> Found {
    let Some(line) = facts.root.line("/proc/sys/kernel/perf_event_paranoid") else {
        return Found::unknown();
    };
    Found::ok_if(line.parse::<i64>().is_ok_and(|level| level <= 2), line)
}

fn randomisation(facts: &Facts<'_>) -> Found {
    match facts.root.number("/proc/sys/kernel/randomize_va_space") {
        None => Found::unknown(),
        Some(level) => Found::ok_if(level == 2, level.to_string()),
    }
}

fn container(facts: &Facts<'_>) -> Found {
    let signs = ["/.dockerenv", "/run/.containerenv", "/run/systemd/container"];
    let sign = signs.into_iter().find(|sign| facts.root.exists(sign)).map(str::to_owned);
    let groups = facts.root.text("/proc/1/cgroup").unwrap_or_default();
    let names = ["docker", "kubepods", "containerd", "libpod", "lxc"];
    let named = names.into_iter().find(|name| groups.contains(name));
    match sign.or_else(|| named.map(|name| format!("{name} in /proc/1/cgroup"))) {
        Some(sign) => Found::note(format!("yes: {sign}")),
        None if groups.is_empty() => Found::unknown(),
        None => Found::ok("none seen"),
    }
}

fn rust(facts: &Facts<'_>) -> Found {
    program(facts, "cargo")
}

fn go(facts: &Facts<'_>) -> Found {
    program(facts, "go")
}

fn program(facts: &Facts<'_>, name: &str) -> Found {
    let paths = facts.program_folders.iter().map(|folder| format!("{folder}/{name}"));
    match paths.into_iter().find(|path| facts.root.exists(path)) {
        Some(path) => Found::ok(path),
        None => Found::note(format!("no {name} in PATH")),
    }
}
