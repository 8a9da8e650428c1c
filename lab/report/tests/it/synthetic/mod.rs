//! Invented run files that look like real ones, the same on every machine.

pub(crate) mod page;

use std::collections::BTreeMap;

use peregrine_lab_model::block::{Block, Excluded, MemoryReading};
use peregrine_lab_model::check::{Check, Outcome};
use peregrine_lab_model::claim::{Audit, ClaimResult, Finding};
use peregrine_lab_model::contender::{Class, Contender};
use peregrine_lab_model::histogram::Histogram;
use peregrine_lab_model::machine::Machine;
use peregrine_lab_model::plan::{Design, Plan, Schedule};
use peregrine_lab_model::verdict::{Again, Decision, Measure, Ratio, Verdict};
use peregrine_lab_model::{Calibration, RunFile, Tool};

const KINDS: [&str; 6] = ["connect", "malformed", "reset", "timeout", "wrong body", "wrong status"];

/// A multiplicative generator: its numbers only have to look uneven.
struct Noise(u64);

impl Noise {
    /// Below the bound.
    fn below(&mut self, bound: u64) -> u64 {
        ((self.next() + 1.0) / 2.0 * bound as f64) as u64
    }

    /// Around zero, within one.
    fn next(&mut self) -> f64 {
        let mut sum = 0.0;
        for _ in 0..3 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            sum += (self.0 >> 40) as f64 / (1_u64 << 24) as f64 - 0.5;
        }
        sum / 1.5
    }
}

/// A server: its name, and what it costs in microseconds per request, all and in user code.
#[derive(Clone, Copy)]
pub(crate) struct Server(pub(crate) &'static str, pub(crate) f64, pub(crate) f64);

pub(crate) struct Shape<'a> {
    pub(crate) name: &'a str,
    pub(crate) scenario: &'a str,
    pub(crate) connections: u32,
    pub(crate) rate: Option<f64>,
    pub(crate) servers: &'a [Server],
    pub(crate) blocks: u32,
}

pub(crate) fn machine() -> Machine {
    Machine {
        cpu: "AMD EPYC 9965 192-Core Processor".into(),
        cpus: 2,
        memory_bytes: 16 << 30,
        system: "Debian GNU/Linux 12".into(),
        kernel: "6.18.5 #1 SMP PREEMPT_DYNAMIC".into(),
        governor: "none".into(),
        turbo: "unknown".into(),
        smt: "notsupported".into(),
        mitigations: vec![
            "spectre_v1: Mitigation: usercopy/swapgs barriers".into(),
            "spectre_v2: Mitigation: Enhanced / Automatic IBRS".into(),
        ],
        clock_source: "tsc".into(),
        is_virtual: true,
        limits: [("open files".into(), "1048576".into()), ("somaxconn".into(), "4096".into())]
            .into(),
        tuned: Vec::new(),
        network: "loopback, MTU 65536".into(),
        server_cpus: vec![0],
        client_cpus: vec![1],
        load_before: Some([0.12, 0.2, 0.31]),
        load_after: Some([1.4, 0.9, 0.5]),
        stolen_share: Some(0.013),
        foreign_share: Some(0.002),
    }
}

fn hash(seed: u64) -> String {
    format!("{:016x}", seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).repeat(4)
}

fn contender(server: &Server, index: usize) -> Contender {
    let name = server.0;
    let program = format!("target/release/lab-contender-{name}");
    Contender {
        name: name.into(),
        class: if index % 4 == 3 { Class::Tuned } else { Class::Stock },
        version: format!("{}.{}.0", index % 5, index * 3 % 11),
        toolchain: "rustc 1.95.0".into(),
        allocator: "mimalloc 0.1.48".into(),
        build: ["cargo", "build", "--release", "--locked"].map(String::from).into(),
        run: vec![program],
        environment: [("PORT", "18080"), ("WORKERS", "1")]
            .map(|(name, value)| (name.into(), value.into()))
            .into(),
        lock_sha256: hash(index as u64 + 7),
        program_sha256: hash(index as u64 + 103),
        workers: 1,
        skipped: None,
    }
}

/// Latencies with a tail, in classes that rise by a tenth.
fn latency(samples: f64, base_ns: f64, tail: f64, noise: &mut Noise) -> Histogram {
    let mut left = samples;
    let mut value = base_ns * 0.7;
    let mut values = Vec::new();
    for step in 0..60 {
        let share = if step < 6 { 0.25 } else { 1.0 - tail };
        let count = (left * (share + 0.05 * noise.next())).max(0.0).floor();
        values.push((value as u64, count as u64));
        left -= count;
        value *= 1.1;
    }
    Histogram::new(values)
}

fn block(
    shape: &Shape<'_>,
    server: &Server,
    number: u32,
    place: usize,
    noise: &mut Noise,
) -> Block {
    let wall_ns = 40_000_000.0;
    // The machine slows down by 6 % during the run, and every contender with it.
    let drift = 1.0 + 0.06 * f64::from(number) / f64::from(shape.blocks);
    let cost_us = server.1 * drift * (1.0 + 0.02 * noise.next());
    let capacity = 1e6 / cost_us * 0.97;
    let rate = shape.rate.map_or(capacity, |rate| rate.min(capacity));
    let requests = (rate * wall_ns / 1e9).round();
    let used = shape.rate.map_or(0.5, |rate| (rate / capacity).min(0.999));
    let tail = 0.55 - 0.35 * used;
    let base_ns = if shape.rate.is_some() {
        (20.0 + server.1) * 1e3 / (1.02 - used)
    } else {
        f64::from(shape.connections) * 1e9 / rate
    };
    let mut errors: BTreeMap<String, u64> = KINDS.map(|kind| (kind.to_owned(), 0)).into();
    if server.0 == "flaky" {
        errors.insert("timeout".into(), u64::from(number % 3));
        errors.insert("wrong status".into(), 2);
    }
    let servers = shape.servers.len() as u32 + 1;
    Block {
        number,
        contender: server.0.into(),
        started_ns: u64::from(number * servers + place as u32) * 41_000_000,
        wall_ns: wall_ns as u64,
        requests: requests as u64,
        sent: requests as u64,
        late: 0,
        dropped: shape.rate.map_or(0, |rate| ((rate - capacity).max(0.0) * 0.04) as u64),
        server_cpu_ns: (requests * cost_us * 1e3) as u64,
        server_user_ns: Some((requests * server.2 * drift * 1e3) as u64),
        server_busiest_ns: None,
        server_wait_ns: 40_000,
        client_cpu_ns: (requests * 4_700.0 * (1.0 + 0.01 * noise.next())) as u64,
        body_bytes: requests as u64 * 27,
        wire_bytes: requests as u64 * (131 + server.0.len() as u64),
        context_switches: Some((requests / 40.0) as u64 + place as u64),
        memory_peak_bytes: Some(3_500_000 + (server.1 * 900_000.0) as u64),
        latency: Some(latency(requests * 30.0, base_ns, tail, noise)),
        quantiles: None,
        errors,
        guards: Vec::new(),
    }
}

fn decision(ratio: Ratio, band: f64) -> Decision {
    if ratio.high < 1.0 / (1.0 + band) {
        Decision::Faster
    } else if ratio.low > 1.0 + band {
        Decision::Slower
    } else if ratio.high < 1.0 + 2.0 * band && ratio.low > 1.0 - 2.0 * band {
        Decision::Equivalent
    } else {
        Decision::CannotTell
    }
}

fn verdict(shape: &Shape<'_>, server: &Server, reference: &Server, width: f64) -> Verdict {
    let estimate = server.1 / reference.1;
    let ratio = Ratio { estimate, low: estimate * (1.0 - width), high: estimate * (1.0 + width) };
    let decision = if server.0 == "flaky" { Decision::Void } else { decision(ratio, 0.012) };
    Verdict {
        contender: server.0.into(),
        reference: reference.0.into(),
        measure: Measure::ServerCpu,
        ratio,
        decision,
        blocks: shape.blocks,
        p_value: Some(if decision == Decision::CannotTell { 0.21 } else { 0.0004 }),
        more_blocks: (decision == Decision::CannotTell).then_some(34),
        note: match decision {
            Decision::Void => "2 wrong statuses in every block".into(),
            _ => String::new(),
        },
    }
}

fn checks(shape: &Shape<'_>) -> Vec<Check> {
    let check = |name: &str, contender: Option<&str>, outcome, detail: &str| Check {
        name: name.into(),
        contender: contender.map(String::from),
        outcome,
        detail: detail.into(),
    };
    let mut checks = vec![
        check("sends equal replies", None, Outcome::Passed, "1,204,112 sent, 1,204,112 answered"),
        check("idle servers rest", None, Outcome::Passed, "at most 0.1 % of a CPU"),
    ];
    for server in shape.servers {
        let name = Some(server.0);
        checks.push(check("Little's law", name, Outcome::Passed, "in flight 63.4 of 64"));
        checks.push(check("Date moves", name, Outcome::Passed, "12 values in 12 s"));
        if shape.scenario == "https-json" && server.1 < 8.0 {
            let detail = "the null server reached 1.2 times this rate";
            checks.push(check("client headroom", name, Outcome::ClientBound, detail));
        }
    }
    checks
}

/// A run with an A/A arm of the first server, which is also the reference.
pub(crate) fn run(shape: &Shape<'_>) -> RunFile {
    let mut noise = Noise(u64::from(shape.connections) * 77 + shape.blocks as u64);
    let reference = &shape.servers[0];
    let second = Server("the first, once more", reference.1 * 1.003, reference.2);
    let mut blocks = Vec::new();
    for number in 0..shape.blocks {
        for (place, server) in shape.servers.iter().chain([&second]).enumerate() {
            blocks.push(block(shape, server, number, place, &mut noise));
        }
    }
    let mut contenders: Vec<Contender> =
        shape.servers.iter().enumerate().map(|(index, server)| contender(server, index)).collect();
    contenders.push(Contender { name: second.0.into(), ..contender(reference, 0) });
    let rivals = shape.servers[1..].iter();
    let verdicts = rivals.enumerate().map(|(index, server)| {
        verdict(shape, server, reference, 0.006 + 0.004 * (index % 5) as f64)
    });
    let is_compared = shape.rate.is_none();
    RunFile {
        started_unix_s: 1_795_170_724,
        took_s: 61.0,
        tool: Tool {
            version: "0.1.0".into(),
            commit: "3f5adc3a9c1e".into(),
            is_modified: false,
            command: ["lab", "run", "scenarios/all.toml"].map(String::from).into(),
        },
        machine: machine(),
        plan: Plan {
            streams: None,
            scenario: shape.scenario.into(),
            description: "A small request and its reply, verified byte by byte.".into(),
            scenario_sha256: hash(1),
            connections: shape.connections,
            is_tls: shape.scenario.starts_with("https"),
            schedule: shape.rate.map_or(Schedule::Closed { depth: 1 }, |rate_per_s| {
                Schedule::Poisson { rate_per_s }
            }),
            design: Design::Paired,
            reference: reference.0.into(),
            seed: 20_261_120,
            blocks: shape.blocks,
            block_ns: 40_000_000,
            warmup_ns: 2_000_000_000,
            budget_s: Some(900.0),
            effect_min: Some(0.02),
            timeout_ns: Some(2_000_000_000),
            client: "lab, io_uring".into(),
        },
        contenders,
        blocks,
        calibration: Some(Calibration {
            requests_per_s: 231_000.0,
            client_cpu_ns_per_request: 4_200.0,
        }),
        again: is_compared.then(|| Again {
            contender: reference.0.into(),
            second: second.0.into(),
            ratio: Ratio { estimate: 1.003, low: 0.995, high: 1.012 },
            band: 0.012,
        }),
        verdicts: if is_compared { verdicts.collect() } else { Vec::new() },
        checks: checks(shape),
        ..RunFile::new(shape.name)
    }
}

/// One contender, compared with nobody.
pub(crate) fn one() -> Vec<RunFile> {
    let servers = [Server("peregrine", 4.63, 0.1)];
    let shape = Shape {
        name: "get-json-64",
        scenario: "get-json",
        connections: 64,
        rate: None,
        servers: &servers,
        blocks: 40,
    };
    let mut file = run(&shape);
    // Alone means alone: not even itself once more.
    file.contenders.truncate(1);
    file.blocks.retain(|block| block.contender == "peregrine");
    file.again = None;
    vec![file]
}

/// A few short blocks whose times end in no round digits, as on a busy machine.
pub(crate) fn uneven(seed: u64) -> RunFile {
    let servers = [Server("hyper", 6.18, 1.17), Server("peregrine", 4.63, 0.1)];
    let shape = Shape {
        name: "uneven",
        scenario: "get-json",
        connections: 4,
        rate: None,
        servers: &servers,
        blocks: 6,
    };
    let mut file = run(&shape);
    let mut noise = Noise(seed);
    for block in &mut file.blocks {
        block.started_ns += noise.below(1_000_000);
        block.server_wait_ns = noise.below(10_000);
        block.requests = 1 + noise.below(40);
        block.server_cpu_ns = 20_000 + noise.below(200_000);
        block.server_user_ns = Some(noise.below(block.server_cpu_ns));
        block.server_busiest_ns = Some(noise.below(block.server_cpu_ns));
        block.latency = (noise.below(3) > 0).then(|| {
            let values = (0..noise.below(30)).map(|_| (noise.below(3_000_000), noise.below(9)));
            let mut latency = Histogram::new(values.collect::<Vec<_>>());
            latency.censored = noise.below(2);
            latency
        });
    }
    file
}

/// Five contenders, several scenarios, and everything that a report can hold.
pub(crate) fn five() -> Vec<RunFile> {
    let json = [
        Server("hyper", 6.18, 1.17),
        Server("peregrine", 4.63, 0.1),
        Server("actix-web", 6.67, 1.24),
        Server("axum", 7.42, 1.47),
        Server("ntex", 6.21, 1.18),
    ];
    let work = [
        Server("hyper", 7.75, 2.6),
        Server("peregrine", 6.9, 2.1),
        Server("actix-web", 9.44, 4.1),
        Server("axum", 9.71, 4.2),
        Server("flaky", 8.5, 3.1),
    ];
    let tls = [
        Server("hyper", 7.18, 1.73),
        Server("peregrine", 6.6, 1.4),
        Server("actix-web", 7.48, 2.11),
        Server("axum", 7.56, 2.17),
        Server("ntex", 7.54, 2.1),
    ];
    let closed = |name, scenario, connections, servers| {
        run(&Shape { name, scenario, connections, rate: None, servers, blocks: 24 })
    };
    let mut files = vec![closed("get-json-64", "get-json", 64, &json)];
    let names = ["rate-40k", "rate-80k", "rate-110k", "rate-140k", "rate-170k", "rate-200k"];
    let rates = [40_000.0, 80_000.0, 110_000.0, 140_000.0, 170_000.0, 200_000.0];
    for (name, rate) in names.into_iter().zip(rates) {
        let mut file = run(&Shape {
            name,
            scenario: "get-json",
            connections: 64,
            rate: Some(rate),
            servers: &json,
            blocks: 4,
        });
        file.contenders.truncate(json.len());
        file.blocks.retain(|block| json.iter().any(|server| server.0 == block.contender));
        files.push(file);
    }
    files.push(closed("project-work-64", "post-project-work", 64, &work));
    files.push(closed("https-json-500", "https-json", 500, &tls));
    for (server, per_connection) in json.iter().zip([13_500, 144, 9_300, 25_500, 16_000]) {
        for connections in [100, 1_000, 2_500, 5_000] {
            files[0].memory.push(MemoryReading {
                contender: server.0.into(),
                connections,
                bytes: 4_000_000 + u64::from(connections) * per_connection,
            });
        }
    }
    left_out(&mut files);
    published(&mut files[0]);
    files
}

/// Contenders that were skipped and blocks that do not count.
fn left_out(files: &mut [RunFile]) {
    let skip = |name: &str, reason: &str| Contender {
        name: name.into(),
        skipped: Some(reason.into()),
        ..Contender::default()
    };
    files[0].contenders.push(skip("fiber", "no Go toolchain on this machine"));
    files[0].contenders.push(skip("alos", "not obtainable: the module path is not public"));
    files[7].excluded = vec![
        Excluded {
            number: 7,
            contender: String::new(),
            reason: "another program used 4.1 % of the servers' CPU".into(),
            is_repeated: true,
        },
        Excluded {
            number: 19,
            contender: "axum".into(),
            reason: "the host took 6.0 % of the slice".into(),
            is_repeated: true,
        },
    ];
}

fn published(file: &mut RunFile) {
    let source = "https://example.org/benchmarks/https";
    let claim = |claim: &str, published: &str, corrected: Option<&str>, finding| ClaimResult {
        source: source.into(),
        claim: claim.into(),
        published: published.into(),
        as_published: corrected.map(|_| "1.31x".into()),
        corrected: corrected.map(String::from),
        finding,
        detail: String::new(),
    };
    let claims = [
        (
            "hyper answers more than axum at 64 connections",
            "1.46x",
            Some("1.20x"),
            Finding::Smaller,
        ),
        ("actix-web answers more than hyper", "1.05x", Some("0.93x"), Finding::Reversed),
        ("hyper answers more than actix-web", "1.08x", Some("1.08x"), Finding::Confirmed),
        ("ALOS answers more than Fiber over TLS", "1.24x", None, Finding::NotTestable),
    ];
    file.claims = claims.map(|(text, figure, here, word)| claim(text, figure, here, word)).into();
    let audit =
        |subject: &str, test: &str, published: &str, bound: &str, outcome, detail: &str| Audit {
            source: source.into(),
            subject: subject.into(),
            test: test.into(),
            published: published.into(),
            bound: bound.into(),
            outcome,
            detail: detail.into(),
        };
    file.audits = vec![
        audit(
            "Actix, 30 connections",
            "Little's law",
            "272 µs mean",
            "191 µs",
            Outcome::Failed,
            "30 connections cannot hold 42.7 requests under way",
        ),
        audit(
            "ALOS, 30 connections",
            "Little's law",
            "88 µs mean",
            "181 µs",
            Outcome::Passed,
            "the client spent half of each cycle itself",
        ),
        audit(
            "all rows",
            "flags",
            "50 threads, 30 connections",
            "",
            Outcome::Failed,
            "wrk refuses fewer connections than threads",
        ),
        audit("all rows", "timeouts", "maximum 2.00 s", "2.00 s", Outcome::Warned, "cut off there"),
    ];
}

/// As many contenders as the field has.
pub(crate) fn twenty() -> Vec<RunFile> {
    let names = [
        "peregrine",
        "peregrine-tokio",
        "may_minihttp",
        "xitca-web-io_uring",
        "Tako",
        "hyper",
        "ntex",
        "actix-web",
        "xitca-web",
        "warp",
        "axum",
        "poem",
        "salvo",
        "gotham",
        "fasthttp",
        "Fiber",
        "Rocket",
        "net/http",
        "Echo",
        "Gin with its default middleware and logger",
    ];
    let servers: Vec<Server> = names
        .into_iter()
        .zip(0_u32..)
        .map(|(name, index)| {
            let cost = 4.63 + 0.09 * f64::from(index * index) / 2.6 + 0.2 * f64::from(index % 3);
            Server(name, cost, cost - 4.4)
        })
        .collect();
    let shape = Shape {
        name: "get-json-64",
        scenario: "get-json",
        connections: 64,
        rate: None,
        servers: &servers,
        blocks: 20,
    };
    vec![run(&shape)]
}
