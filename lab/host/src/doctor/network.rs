//! Checks of the network stack and of limits that scenarios with many connections meet.

use super::Measure::ManyConnections;
use super::{Check, Facts, Found};

/// Both ends of 10,000 connections lie in processes of their own, with something to spare.
const DESCRIPTORS_MIN: u64 = 12_000;

/// As many connections wait in a listener's queue when a scenario opens thousands at once.
const QUEUE_MIN: u64 = 4096;

/// Ports of one side for 10,000 connections to one server address, and those that still rest from
/// the run before.
const PORTS_MIN: u64 = 20_000;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "somaxconn",
        why: "A listener's queue is cut to this length; bursts of new connections beyond it wait a \
              second and more.",
        mend: "run with --tune, which puts it back afterwards, or sysctl -w net.core.somaxconn=4096",
        look: queue_length,
    },
    Check {
        name: "tcp-max-syn-backlog",
        why: "Handshakes in progress beyond it are dropped or answered with cookies.",
        mend: "run with --tune, which puts it back afterwards, or \
               sysctl -w net.ipv4.tcp_max_syn_backlog=4096",
        look: handshakes,
    },
    Check {
        name: "ip-local-port-range",
        why: "Each connection of the client to one server address needs a port of its own.",
        mend: "run with --tune, which puts it back afterwards, or \
               sysctl -w net.ipv4.ip_local_port_range='1024 65535'",
        look: ports,
    },
    Check {
        name: "tcp-tw-reuse",
        why: "Closed connections hold their ports for a minute unless they may be used again.",
        mend: "sysctl -w net.ipv4.tcp_tw_reuse=1",
        look: reuse,
    },
    Check {
        name: "loopback-mtu",
        why: "A small packet size cuts replies into more segments than loopback usually does.",
        mend: "ip link set lo mtu 65536",
        look: packet_size,
    },
    Check {
        name: "open-files",
        why: "Every connection is a descriptor; at the limit accepting stops. A soft limit can be \
              raised to the hard one without rights, and is.",
        mend: "raise nofile in /etc/security/limits.conf, or start with ulimit -n 65536",
        look: descriptors,
    },
];

fn at_least(facts: &Facts<'_>, path: &str, least: u64) -> Found {
    match facts.root.number(path) {
        None => Found::unknown(),
        Some(value) if value < least => Found::warning(value.to_string(), &[ManyConnections]),
        Some(value) => Found::ok(value.to_string()),
    }
}

fn queue_length(facts: &Facts<'_>) -> Found {
    at_least(facts, "/proc/sys/net/core/somaxconn", QUEUE_MIN)
}

fn handshakes(facts: &Facts<'_>) -> Found {
    match facts.root.number("/proc/sys/net/ipv4/tcp_max_syn_backlog") {
        None => Found::unknown(),
        // Cookies and loopback's quick handshakes make a short queue bearable.
        Some(length) => Found::ok_if(length >= 1024, length.to_string()),
    }
}

fn ports(facts: &Facts<'_>) -> Found {
    let line = facts.root.line("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut words = line.split_whitespace().map(str::parse::<u64>);
    let (Some(Ok(first)), Some(Ok(last))) = (words.next(), words.next()) else {
        return Found::unknown();
    };
    let count = (last + 1).saturating_sub(first);
    let read = format!("{first}-{last}: {count} ports");
    if count < PORTS_MIN { Found::warning(read, &[ManyConnections]) } else { Found::ok(read) }
}

fn reuse(facts: &Facts<'_>) -> Found {
    match facts.root.number("/proc/sys/net/ipv4/tcp_tw_reuse") {
        None => Found::unknown(),
        Some(0) => Found::warning("0: never", &[ManyConnections]),
        Some(1) => Found::ok("1: always"),
        Some(2) => Found::ok("2: on loopback"),
        Some(other) => Found::note(other.to_string()),
    }
}

fn packet_size(facts: &Facts<'_>) -> Found {
    match facts.root.number("/sys/class/net/lo/mtu") {
        None => Found::unknown(),
        Some(bytes) => Found::ok_if(bytes == 65_536, format!("{bytes} bytes")),
    }
}

fn descriptors(facts: &Facts<'_>) -> Found {
    let Some(line) = facts.root.field("/proc/self/limits", "Max open files") else {
        return Found::unknown();
    };
    let number = |word: &str| if word == "unlimited" { Some(u64::MAX) } else { word.parse().ok() };
    let mut words = line.split_whitespace();
    let (Some(soft), Some(hard)) = (words.next(), words.next()) else { return Found::unknown() };
    let read = format!("{soft} soft, {hard} hard");
    match (number(soft), number(hard)) {
        (Some(soft), Some(_)) if soft >= DESCRIPTORS_MIN => Found::ok(read),
        (Some(_), Some(hard)) if hard >= DESCRIPTORS_MIN => Found::note(read),
        (Some(_), Some(_)) => Found::warning(read, &[ManyConnections]),
        _ => Found::unknown(),
    }
}
