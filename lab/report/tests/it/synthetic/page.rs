//! What a reproduction writes: a file about the page, runs of servers, and a benchmark.

use peregrine_lab_model::RunFile;
use peregrine_lab_model::block::{Excluded, MemoryReading};
use peregrine_lab_model::check::{Check, Outcome};
use peregrine_lab_model::claim::{Audit, ClaimResult, Finding};
use peregrine_lab_model::contender::Contender;
use peregrine_lab_model::micro::Operation;
use peregrine_lab_model::verdict::{Decision, Measure, Ratio, Verdict};

use super::{Server, Shape, machine, run};

const SERVERS: [Server; 3] =
    [Server("hyper", 6.18, 1.17), Server("peregrine", 4.63, 0.1), Server("axum", 7.42, 1.47)];

fn shape<'a>(name: &'a str, scenario: &'a str, servers: &'a [Server]) -> Shape<'a> {
    Shape { name, scenario, connections: 64, rate: None, servers, blocks: 24 }
}

fn about(name: &str, check: &str, outcome: Outcome, detail: &str) -> Check {
    Check { name: check.into(), contender: Some(name.into()), outcome, detail: detail.into() }
}

/// The page, a run in which the client was the limit for everybody, an overload, idle connections,
/// shutdowns, a benchmark inside a process, and a run that guards voided.
pub(crate) fn reproduction() -> Vec<RunFile> {
    vec![page(), bound(), overload(), idle(), shutdown(), micro(), voided()]
}

/// Nothing but the page, as a reproduction writes it that could test nothing.
pub(crate) fn page() -> RunFile {
    let mut file = RunFile::new("claims");
    file.started_unix_s = 1_795_170_000;
    file.machine = machine();
    file.machine.load_before = Some([6.0, 5.0, 4.0]);
    file.plan.scenario = "alos-https".into();
    file.plan.description = "ALOS HTTP: Benchmarks (HTTPS, Ubuntu 24 bare metal)".into();
    file.claims = claims();
    file.beside = vec![
        "ALOS published ×1.24 against Fiber (requests per second at 30 connections). net/http \
         stands in for ALOS, because both are Go. Here net/http against Fiber: ×0.81 (95 % \
         interval 0.79 to 0.83). This does not test the published number."
            .into(),
    ];
    file.audits = audits();
    file
}

fn claims() -> Vec<ClaimResult> {
    let claim =
        |claim: &str, published: &str, here: Option<(&str, &str)>, finding, detail: &str| {
            ClaimResult {
                source: "ALOS HTTP: Benchmarks (HTTPS, Ubuntu 24 bare metal)".into(),
                claim: claim.into(),
                published: published.into(),
                as_published: here.map(|here| here.0.into()),
                corrected: here.map(|here| here.1.into()),
                finding,
                detail: detail.into(),
            }
        };
    let versions = "Today's versions: axum 0.8.9 (the page's: not printed), hyper 1.12.0 (the \
                    page's: 0.14, which the page does not print). The page's 50 threads on 30 \
                    connections are refused by its own tool: 4 threads were used.";
    let missing = "ALOS cannot be had here: when this recipe was written, the module proxy did \
                   not give its module, so there is no program for it yet. Its published figures \
                   still stand in the audit.";
    let figures = (
        "×1.41 (152,310 against 108,020 requests/s, wrk, 4 threads, 500 connections)",
        "×1.20 (95 % interval 1.18 to 1.22; 161,800 against 134,800 requests per second of CPU)",
    );
    vec![
        claim(
            "hyper against axum, requests per second at 500 connections",
            "×1.46",
            Some(figures),
            Finding::Smaller,
            versions,
        ),
        claim(
            "hyper against axum, mean latency at 30 connections",
            "×0.73",
            Some(("×0.70", "×0.98 (95 % interval 0.96 to 1.01)")),
            Finding::NotReproduced,
            "",
        ),
        claim(
            "peregrine against hyper, requests per second at 500 connections",
            "×1.05",
            Some(("×1.31", "×1.33 (95 % interval 1.31 to 1.35)")),
            Finding::Confirmed,
            versions,
        ),
        claim(
            "axum against hyper, bytes of a reply",
            "×0.96",
            Some(("×1.10", "×1.10")),
            Finding::Reversed,
            "",
        ),
        claim(
            "ALOS against Fiber, requests per second at 30 connections",
            "×1.24",
            None,
            Finding::NotTestable,
            missing,
        ),
        claim(
            "ALOS against Gin, requests per second at 30 connections",
            "×1.58",
            None,
            Finding::NotTestable,
            missing,
        ),
    ]
}

fn audits() -> Vec<Audit> {
    let audit = |subject: &str, test: &str, outcome, detail: &str| Audit {
        source: "alos-https.toml".into(),
        subject: subject.into(),
        test: test.into(),
        published: String::new(),
        bound: String::new(),
        outcome,
        detail: detail.into(),
    };
    let rows = "A1/actix-web, A1/fiber, A1/gin, A1/echo, A1/iris, A2/gin, A2/echo";
    vec![
        audit(
            rows,
            "Little's law",
            Outcome::Failed,
            "impossible: 7 rows keep more requests under way than they have connections. A1/actix-web: 42.7 on 30 connections.",
        ),
        audit(
            "A1",
            "threads",
            Outcome::Failed,
            "impossible: wrk refuses 50 threads on 30 connections.",
        ),
        audit(
            "A2/alos",
            "timeouts",
            Outcome::Warned,
            "misleading: a maximum of 2.00 s is the client's own timeout.",
        ),
        audit("the page", "hardware", Outcome::Skipped, "missing: the CPU is not named."),
        audit("the page", "tool", Outcome::Passed, "note: the tool has no open loop."),
    ]
}

/// The client was the limit for everybody, and what is judged by rates is void for it.
fn bound() -> RunFile {
    let mut file = run(&shape("json-c64", "json", &SERVERS));
    let all: Vec<String> = file.contenders.iter().map(|one| one.name.clone()).collect();
    for name in &all {
        file.checks.push(about(name, "client headroom", Outcome::ClientBound, &format!("{name} answered 158130 requests/s, the client alone can do 244793 (1.5x, 2x needed)")));
        file.checks.push(about(
            name,
            "each reply is a handler's call",
            Outcome::Skipped,
            "the contender does not count its calls",
        ));
    }
    for name in ["hyper", "axum"] {
        file.checks.push(about(
            name,
            "conduct: a request without Host is refused",
            Outcome::Warned,
            "the replies were [200]",
        ));
    }
    for server in &SERVERS[1..] {
        let ratio = Ratio { estimate: 1.1, low: 1.09, high: 1.11 };
        file.verdicts.push(Verdict {
            contender: server.0.into(),
            reference: "hyper".into(),
            measure: Measure::Throughput,
            ratio,
            decision: Decision::Void,
            blocks: 24,
            p_value: None,
            more_blocks: None,
            note: "the client was the limit, so rates say nothing about the server".into(),
        });
        file.verdicts.push(Verdict {
            contender: server.0.into(),
            reference: "hyper".into(),
            measure: Measure::Memory,
            ratio,
            decision: Decision::Slower,
            blocks: 24,
            p_value: Some(0.0004),
            more_blocks: None,
            note: String::new(),
        });
    }
    let reason = "not obtainable here: when this recipe was written, the module proxy did not give \
                  example.org/anvil, so that there is no program for it yet (`go list -m \
                  example.org/anvil@latest`: reading the list of versions: 403 Forbidden)";
    file.contenders.push(Contender {
        name: "anvil".into(),
        skipped: Some(reason.into()),
        ..Contender::default()
    });
    file.contenders.push(Contender {
        name: "alos".into(),
        skipped: Some(
            "not obtainable here: the module proxy does not give its module\n$ go list -m \
             example.org/alos@latest\nnot found: repository does not exist"
                .into(),
        ),
        ..Contender::default()
    });
    file
}

fn overload() -> RunFile {
    let mut file =
        run(&Shape { rate: Some(270_000.0), ..shape("overload-2x-c64", "overload-2x", &SERVERS) });
    for (name, outcome, share) in [
        ("hyper", Outcome::Passed, 98),
        ("peregrine", Outcome::Passed, 99),
        ("axum", Outcome::Warned, 61),
    ] {
        let detail = format!(
            "270000 requests/s offered, capacity 135000, {share} % of it answered rightly; 412 were never sent because no connection was free"
        );
        file.checks.push(about(name, "goodput under overload", outcome, &detail));
    }
    file
}

fn idle() -> RunFile {
    let mut file = run(&shape("idle-10000-c16", "idle-10000", &SERVERS));
    for (server, per_connection) in SERVERS.iter().zip([13_500, 144, 25_500]) {
        for round in 0..3_u64 {
            for connections in [0_u32, 10_000] {
                file.memory.push(MemoryReading {
                    contender: server.0.into(),
                    connections,
                    bytes: 4_000_000 + u64::from(connections) * per_connection + round * 90_000,
                });
            }
        }
        let detail = "10000 of 10000 were open afterwards; faults while opening: 0";
        file.checks.push(about(server.0, "idle connections stay open", Outcome::Passed, detail));
    }
    file
}

/// Servers are ended in the middle of a load: nothing is timed.
fn shutdown() -> RunFile {
    let mut file = run(&Shape { blocks: 3, ..shape("shutdown-c64", "shutdown", &SERVERS) });
    file.contenders.truncate(SERVERS.len());
    file.blocks.retain(|block| SERVERS.iter().any(|server| server.0 == block.contender));
    for block in &mut file.blocks {
        block.server_cpu_ns = 0;
        block.server_user_ns = None;
        if block.contender == "axum" {
            block.errors.insert("reset".into(), 5);
        }
    }
    (file.again, file.verdicts) = (None, Vec::new());
    for (name, outcome, lost) in [
        ("hyper", Outcome::Passed, 0),
        ("peregrine", Outcome::Passed, 0),
        ("axum", Outcome::Warned, 5),
    ] {
        let detail = format!(
            "2,380 sent, {lost} without a reply, the others right; exit status: 0 after 51 ms"
        );
        file.checks.push(about(name, "shutdown under load", outcome, &detail));
    }
    file
}

fn micro() -> RunFile {
    let mut file = RunFile::new("router");
    file.started_unix_s = 1_795_170_900;
    file.tool = run(&shape("", "json", &SERVERS)).tool;
    file.machine = machine();
    file.plan.scenario = "router".into();
    file.plan.description = "The router alone: nanoseconds per lookup, in the process".into();
    for (mode, rise) in [("match", 0.0), ("read", 6.0)] {
        for (operation, base) in
            [("static hot", 9.0), ("2 parameters hot", 21.0), ("2 parameters random", 38.0)]
        {
            for (contender, factor) in [("peregrine", 1.0), ("matchit 0.8", 1.03), ("HashMap", 2.2)]
            {
                if mode == "read" && contender == "HashMap" {
                    continue;
                }
                file.operations.push(Operation {
                    operation: operation.into(),
                    mode: mode.into(),
                    contender: contender.into(),
                    nanoseconds: base * factor + rise,
                });
            }
        }
    }
    file
}

/// A busy machine: every block was voided.
fn voided() -> RunFile {
    let mut file = run(&shape("hello-c64", "hello", &SERVERS));
    file.blocks.clear();
    file.verdicts.clear();
    file.again = None;
    file.excluded = (0..18)
        .map(|number| Excluded {
            number,
            contender: String::new(),
            reason: "strangers used 61.1 % of the server's CPUs (a compiler, 120 ms)".into(),
            is_repeated: number < 17,
        })
        .collect();
    file
}
