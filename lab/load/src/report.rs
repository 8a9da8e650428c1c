//! Run files, and the report as a pure function of them.

use std::fmt::Write as _;

use peregrine_lab_stats::estimates::{log_ratios, median, quantile};
use peregrine_lab_stats::intervals::{self, Interval};
use peregrine_lab_stats::verdicts::{
    Judgement, Ratio, SMALLEST_EFFECT, Verdict, judge, noise_band, ratio,
};
use serde::Serialize;

use crate::client::EngineKind;
use crate::client::fault::Faults;
use crate::contender::Command;
use crate::forms::{self, IntervalForm, RatioForm};
use crate::machine::Machine;
use crate::slices::{Measured, Plan, Slice};

/// The version of the run file's form.
pub const SCHEMA: u32 = 1;

/// The share of a slice that an idle server may use before the report says so.
const IDLE_SHARE_MAX: f64 = 0.01;

/// The share of a slice that a server has to be busy to count as loaded to its limit.
const BUSY_SHARE_MIN: f64 = 0.90;

/// The share of its slices that a server may wait for its CPU before the report says so.
const WAIT_SHARE_MAX: f64 = 0.02;

/// The fewest ticks that tell user from system time to about 5 %.
const SPLIT_TICKS_MIN: u64 = 100;

/// Everything needed to redo the report.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// The version of this form: [`SCHEMA`].
    pub schema: u32,
    /// When it began, in seconds since 1970.
    pub started_unix_s: u64,
    /// The command line of the lab itself.
    pub command: Vec<String>,
    /// The machine.
    pub machine: Machine,
    /// The workload's name.
    pub workload: String,
    /// Connections per server.
    pub connections: usize,
    /// How the client talks to the kernel.
    pub engine: EngineKind,
    /// The CPUs of the servers.
    pub server_cpus: Vec<usize>,
    /// The CPUs of the client.
    pub client_cpus: Vec<usize>,
    /// The design.
    pub plan: Plan,
    /// The contenders, in the order of their numbers.
    pub contenders: Vec<Entry>,
    /// Which contender the others are compared with.
    pub reference: usize,
    /// Which contender is the first one started once more; none if there is no A/A arm.
    pub again: Option<usize>,
    /// Ticks that the servers' CPUs spent on anything, and on the servers, during the run.
    pub busy_ticks: u64,
    /// Ticks that the host kept from the servers' CPUs during the run.
    pub stolen_ticks: u64,
    /// What was measured.
    pub measured: Measured,
}

/// A contender in a run file.
#[derive(Debug, Clone, Serialize)]
pub struct Entry {
    /// Its name in the report.
    pub name: String,
    /// How it was started.
    pub command: Command,
}

/// What a run says about one contender.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Its name.
    pub name: String,
    /// Server CPU time per request in microseconds: the median over its slices.
    pub server_us: f64,
    /// The middle half of its slices.
    #[serde(with = "IntervalForm")]
    pub server_us_quartiles: Interval,
    /// The 95 % bootstrap interval of the median.
    #[serde(with = "IntervalForm")]
    pub server_us_interval: Interval,
    /// The part of `server_us` spent in the program itself, by ticks.
    pub user_us: f64,
    /// The part of `server_us` spent in the kernel, by ticks.
    pub system_us: f64,
    /// Right replies per second of its slices: the median.
    pub requests_per_s: f64,
    /// Client CPU time per request in microseconds: the median.
    pub client_us: f64,
    /// How busy the server was in its slices, as a share of the time: the median. Above 1 if it
    /// has more than one CPU.
    pub busy_share: f64,
    /// How long it waited in its slices for a CPU that ran something else, as a share of the time:
    /// the median.
    pub wait_share: f64,
    /// How much CPU it used in the slices of others, as a share of their time.
    pub idle_share: f64,
    /// Everything that was wrong, by kind.
    pub faults: Faults,
    /// Its cost against the reference.
    #[serde(with = "RatioForm")]
    pub ratio: Ratio,
    /// What may be said about that ratio; nothing for the reference and for a contender with
    /// faults.
    #[serde(serialize_with = "forms::judgement")]
    pub judgement: Option<Judgement>,
}

impl Summary {
    /// The verdict of the judgement, if there is one.
    #[must_use]
    pub fn verdict(&self) -> Option<Verdict> {
        self.judgement.map(|judgement| judgement.verdict)
    }
}

impl Run {
    /// The differences that count as noise in this run, as a share. Infinite without an A/A arm.
    #[must_use]
    pub fn band(&self) -> f64 {
        self.again.map_or(f64::INFINITY, |again| {
            noise_band(ratio(&self.log_ratios(again, 0), self.plan.seed), SMALLEST_EFFECT)
        })
    }

    /// What the run says about each contender, in the order of their numbers.
    #[must_use]
    pub fn summaries(&self) -> Vec<Summary> {
        let judgements = self.judgements();
        judgements
            .into_iter()
            .enumerate()
            .map(|(contender, judgement)| self.summary(contender, judgement))
            .collect()
    }

    /// The judgements on all contenders that may be judged, those with a claim to be tested as one
    /// family. The A/A arm against its own program makes no claim, so it is judged alone.
    fn judgements(&self) -> Vec<Option<Judgement>> {
        let (band, seed) = (self.band(), self.plan.seed);
        let mut judgements = vec![None; self.contenders.len()];
        let (alone, family): (Vec<usize>, Vec<usize>) = (0..self.contenders.len())
            .filter(|&contender| contender != self.reference)
            .filter(|&contender| self.faults(contender).total() == 0)
            .partition(|&contender| self.is_own_arm(contender));
        for members in [alone, family] {
            let ratios: Vec<Vec<f64>> = members
                .iter()
                .map(|&contender| self.log_ratios(contender, self.reference))
                .collect();
            let ratios: Vec<&[f64]> = ratios.iter().map(Vec::as_slice).collect();
            for (contender, judgement) in members.into_iter().zip(judge(&ratios, band, seed)) {
                judgements[contender] = Some(judgement);
            }
        }
        judgements
    }

    /// Whether the contender is the reference itself, started once more.
    fn is_own_arm(&self, contender: usize) -> bool {
        self.again == Some(contender) && self.reference == 0
    }

    fn faults(&self, contender: usize) -> Faults {
        let mut faults = Faults::default();
        self.slices(contender).for_each(|slice| faults.add(&slice.faults));
        faults
    }

    fn summary(&self, contender: usize, judgement: Option<Judgement>) -> Summary {
        let slices: Vec<&Slice> = self.slices(contender).collect();
        let over = |value: &dyn Fn(&Slice) -> f64| -> Vec<f64> {
            slices.iter().map(|slice| value(slice)).filter(|value| value.is_finite()).collect()
        };
        let costs = over(&Slice::server_us_per_request);
        let server_us = median(&costs);
        let ticks = self.measured.ticks[contender];
        let user_share = ticks.user as f64 / (ticks.user + ticks.system) as f64;
        Summary {
            name: self.contenders[contender].name.clone(),
            server_us,
            server_us_quartiles: Interval {
                low: quantile(&costs, 0.25),
                high: quantile(&costs, 0.75),
            },
            server_us_interval: intervals::percentile(&costs, self.plan.seed, median),
            user_us: server_us * user_share,
            system_us: server_us * (1.0 - user_share),
            requests_per_s: median(&over(&|slice| {
                slice.requests as f64 * 1e9 / slice.wall_ns as f64
            })),
            client_us: median(&over(&|slice| {
                slice.client_cpu_ns as f64 / 1e3 / slice.requests as f64
            })),
            busy_share: median(&over(&|slice| slice.server_cpu_ns as f64 / slice.wall_ns as f64)),
            wait_share: median(&over(&|slice| slice.server_wait_ns as f64 / slice.wall_ns as f64)),
            idle_share: self.idle_share(contender),
            faults: self.faults(contender),
            ratio: judgement.map_or_else(
                || ratio(&self.log_ratios(contender, self.reference), self.plan.seed),
                |judgement| judgement.ratio,
            ),
            judgement,
        }
    }

    fn slices(&self, contender: usize) -> impl Iterator<Item = &Slice> {
        self.measured.slices.iter().filter(move |slice| slice.contender == contender)
    }

    fn idle_share(&self, contender: usize) -> f64 {
        let others = self.measured.slices.iter().filter(|slice| slice.contender != contender);
        let (used, wall) = others.fold((0, 0), |(used, wall), slice| {
            (used + slice.all_cpu_ns[contender], wall + slice.wall_ns)
        });
        if wall == 0 { 0.0 } else { used as f64 / wall as f64 }
    }

    fn log_ratios(&self, contender: usize, reference: usize) -> Vec<f64> {
        let costs = |wanted: usize| -> Vec<f64> {
            let mut costs = vec![f64::NAN; self.plan.slices];
            for slice in self.slices(wanted) {
                costs[slice.block] = slice.server_us_per_request();
            }
            costs
        };
        log_ratios(&costs(contender), &costs(reference))
    }

    /// The report in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let summaries = self.summaries();
        let mut text = String::new();
        self.write_head(&mut text);
        write_costs(&mut text, &summaries);
        self.write_ratios(&mut text, &summaries);
        self.write_guards(&mut text, &summaries);
        text
    }

    fn write_head(&self, text: &mut String) {
        let Run { workload, connections, plan, machine, .. } = self;
        let Plan { slices, slice_ms, seed, .. } = plan;
        let virtual_word = if machine.is_virtual { ", virtual" } else { "" };
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "## {workload}, {connections} connections per server\n\n\
             {slices} paired slices of {slice_ms} ms each, seed {seed}; client over {engine}; \
             server CPUs {server:?}, client CPUs {client:?}.\n\
             {cpu} ({cpus} CPUs{virtual_word}), kernel {kernel}, governor {governor}.\n\n",
            engine = match self.engine {
                EngineKind::Ring => "io_uring",
                EngineKind::Epoll => "epoll",
            },
            server = self.server_cpus,
            client = self.client_cpus,
            cpu = machine.cpu,
            cpus = machine.cpus,
            kernel = machine.kernel,
            governor = machine.governor,
        );
    }

    fn write_ratios(&self, text: &mut String, summaries: &[Summary]) {
        let reference = &self.contenders[self.reference].name;
        let _ = writeln!(
            text,
            "\n| contender | cost against {reference} | 95 % interval | p | verdict |\n\
             |---|---|---|---|---|"
        );
        for (contender, summary) in summaries.iter().enumerate() {
            if contender == self.reference {
                continue;
            }
            let Ratio { estimate, interval } = summary.ratio;
            let (p, verdict) = match summary.judgement {
                Some(_) if self.is_own_arm(contender) => ("-".to_owned(), "A/A arm".to_owned()),
                Some(judgement) => (probability(judgement.p_adjusted), judgement.verdict.words()),
                None => ("-".to_owned(), "void: faults".to_owned()),
            };
            let _ = writeln!(
                text,
                "| {} | {estimate:.3} | {:.3} to {:.3} | {p} | {verdict} |",
                summary.name, interval.low, interval.high
            );
        }
        let band = self.band();
        let _ = if band.is_finite() {
            let percent = band * 100.0;
            writeln!(
                text,
                "\nDifferences up to {percent:.1} % count as noise in this run (A/A). Estimates are \
                 Hodges-Lehmann over paired blocks with BCa intervals; p is that of Wilcoxon's \
                 signed-rank test for no difference beyond the noise, after Holm's correction."
            )
        } else {
            writeln!(text, "\nNo A/A arm, so no difference can be told from noise.")
        };
    }

    fn write_guards(&self, text: &mut String, summaries: &[Summary]) {
        let server_ticks: u64 =
            self.measured.ticks.iter().map(|ticks| ticks.user + ticks.system).sum();
        let foreign = self.busy_ticks.saturating_sub(server_ticks);
        let all = (self.busy_ticks + self.stolen_ticks).max(1) as f64;
        let _ = writeln!(
            text,
            "On the servers' CPUs, {:.1} % of the busy time was not the servers' and {:.1} % was \
             stolen by the host.",
            foreign as f64 * 100.0 / all,
            self.stolen_ticks as f64 * 100.0 / all,
        );
        for summary in summaries {
            let name = &summary.name;
            if summary.idle_share > IDLE_SHARE_MAX {
                let share = summary.idle_share * 100.0;
                let _ = writeln!(
                    text,
                    "Guard: {name} used {share:.1} % of a CPU in the slices of others."
                );
            }
            let (busy, wait) = (summary.busy_share, summary.wait_share);
            if busy + wait < BUSY_SHARE_MIN {
                let _ = writeln!(
                    text,
                    "Guard: {name} was busy for {:.0} % of its slices only, so its requests per \
                     second are the client's limit, not its own.",
                    busy * 100.0
                );
            }
            if wait > WAIT_SHARE_MAX {
                let _ = writeln!(
                    text,
                    "Guard: {name} waited for {:.0} % of its slices while others used its CPU, so \
                     its requests per second say little.",
                    wait * 100.0
                );
            }
        }
        let fewest = self.measured.ticks.iter().map(|ticks| ticks.user + ticks.system).min();
        if let Some(fewest) = fewest.filter(|&ticks| ticks < SPLIT_TICKS_MIN) {
            let _ = writeln!(
                text,
                "Guard: the split between user and system rests on {fewest} ticks only."
            );
        }
    }
}

/// A probability as a report prints it.
fn probability(p: f64) -> String {
    if p < 0.0001 { "< 0.0001".to_owned() } else { format!("{p:.4}") }
}

fn write_costs(text: &mut String, summaries: &[Summary]) {
    let _ = writeln!(
        text,
        "| contender | server CPU us/request | p25 to p75 | 95 % interval | user | system | \
         requests/s | client CPU us/request | server busy | faults |\n\
         |---|---|---|---|---|---|---|---|---|---|"
    );
    for summary in summaries {
        let Summary { name, server_us, server_us_quartiles, server_us_interval, .. } = summary;
        let _ = writeln!(
            text,
            "| {name} | {server_us:.2} | {:.2} to {:.2} | {:.2} to {:.2} | {:.2} | {:.2} | {:.0} | \
             {:.2} | {:.0} % | {} |",
            server_us_quartiles.low,
            server_us_quartiles.high,
            server_us_interval.low,
            server_us_interval.high,
            summary.user_us,
            summary.system_us,
            summary.requests_per_s,
            summary.client_us,
            summary.busy_share * 100.0,
            summary.faults,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fault::Fault;
    use crate::process::Ticks;

    /// A run of `costs.len()` contenders whose requests cost that many nanoseconds, the last one
    /// being the A/A arm of the first, on a machine that drifts by a fifth.
    fn run(costs: &[u64]) -> Run {
        let blocks = 40;
        let mut measured = Measured::default();
        for block in 0..blocks {
            for (contender, cost) in costs.iter().enumerate() {
                // The drift is shared by a block; the noise of 0.2 % is each slice's own.
                let noise = ((block * 7 + contender * 5) % 11) as u64;
                let server_cpu_ns =
                    cost * 1000 * (1000 + 5 * block as u64) / 1000 + cost * 1000 * noise / 5000;
                let mut all_cpu_ns = vec![0; costs.len()];
                all_cpu_ns[contender] = server_cpu_ns;
                measured.slices.push(Slice {
                    block,
                    contender,
                    requests: 1000,
                    wall_ns: server_cpu_ns * 100 / 98,
                    server_cpu_ns,
                    server_wait_ns: 0,
                    client_cpu_ns: 4_000_000,
                    all_cpu_ns,
                    faults: Faults::default(),
                });
            }
        }
        measured.ticks = vec![Ticks { user: 25, system: 75 }; costs.len()];
        let command = Command { words: Vec::new(), environment: [].into(), folder: ".".into() };
        let entries = (0..costs.len())
            .map(|number| Entry { name: format!("server {number}"), command: command.clone() });
        Run {
            schema: SCHEMA,
            started_unix_s: 0,
            command: Vec::new(),
            machine: Machine::read(),
            workload: "get-json".into(),
            connections: 64,
            engine: EngineKind::Ring,
            server_cpus: vec![0],
            client_cpus: vec![1],
            plan: Plan { slices: blocks, slice_ms: 40, warmup_slices: 0, seed: 5 },
            contenders: entries.collect(),
            reference: 0,
            again: Some(costs.len() - 1),
            busy_ticks: 1000,
            stolen_ticks: 0,
            measured,
        }
    }

    #[test]
    fn differences_beyond_the_noise_are_found_through_a_larger_drift() {
        let run = run(&[5000, 4700, 5300, 5010, 5000]);
        let verdicts: Vec<_> = run.summaries().iter().map(|summary| summary.verdict()).collect();
        let expected = [
            None,
            Some(Verdict::Faster),
            Some(Verdict::Slower),
            Some(Verdict::Equivalent),
            Some(Verdict::Equivalent),
        ];
        assert_eq!(verdicts, expected);
        let text = run.markdown();
        assert!(text.contains("| server 1 | 0.940 |"), "{text}");
        assert!(text.contains("| < 0.0001 | faster |"), "{text}");
        assert!(text.contains("| 1.0000 | equivalent |"), "{text}");
        assert!(text.contains("| - | A/A arm |"), "{text}");
        assert!(text.contains("up to 1.0 % count as noise"), "{text}");
        assert!(!text.contains("Guard:"), "{text}");
    }

    #[test]
    fn a_summary_holds_what_was_put_in() {
        let summary = &run(&[5000, 5000]).summaries()[0];
        assert!((summary.server_us - 5.5).abs() < 0.1, "{}", summary.server_us);
        assert!((summary.user_us / summary.server_us - 0.25).abs() < 1e-9);
        assert!((summary.client_us - 4.0).abs() < 1e-9);
        assert!((summary.busy_share - 0.98).abs() < 1e-3);
        assert!(summary.server_us_quartiles.low < summary.server_us);
        assert!(summary.server_us_interval.high < summary.server_us_quartiles.high);
    }

    #[test]
    fn one_fault_voids_the_verdict() {
        let mut run = run(&[5000, 4000, 5000]);
        run.measured.slices[1].faults.record(Fault::WrongBody);
        assert_eq!(run.summaries()[1].verdict(), None);
        let text = run.markdown();
        assert!(text.contains("| void: faults |") && text.contains("| 1 wrong body |"), "{text}");
    }

    #[test]
    fn without_an_arm_of_the_same_program_nothing_can_be_told() {
        let mut run = run(&[5000, 2000, 5000]);
        run.again = None;
        let unknown = Verdict::CannotTell { blocks_needed: None };
        assert_eq!(run.summaries()[1].verdict(), Some(unknown));
        assert!(run.markdown().contains("No A/A arm"));
    }

    #[test]
    fn a_run_that_cannot_tell_says_how_many_blocks_it_lacks() {
        let mut run = run(&[5000, 5070, 5000]);
        let mut random = peregrine_lab_stats::random::Random::new(1);
        for slice in &mut run.measured.slices {
            let noise = random.below(80) as u64;
            slice.server_cpu_ns = slice.server_cpu_ns * (1000 + noise) / 1000;
        }
        let Some(Verdict::CannotTell { blocks_needed: Some(more) }) = run.summaries()[1].verdict()
        else {
            panic!("{}", run.markdown())
        };
        assert!(more > 0);
        let text = run.markdown();
        assert!(text.contains("cannot tell (needs about"), "{text}");
    }

    #[test]
    fn a_summary_can_be_written_as_json() {
        let summaries = serde_json::to_value(run(&[5000, 4700, 5000]).summaries()).unwrap();
        assert_eq!(summaries[0]["judgement"], serde_json::Value::Null);
        assert_eq!(summaries[1]["judgement"]["verdict"], "faster");
        assert!(summaries[1]["ratio"]["interval"]["high"].as_f64().unwrap() < 0.95);
    }

    #[test]
    fn an_idle_server_that_works_and_a_loaded_one_that_rests_are_named() {
        let mut run = run(&[5000, 5000, 5000]);
        for slice in &mut run.measured.slices {
            if slice.contender == 0 {
                slice.all_cpu_ns[1] = slice.wall_ns / 10;
            } else {
                slice.wall_ns *= 2;
            }
        }
        let text = run.markdown();
        assert!(text.contains("Guard: server 1 used"), "{text}");
        assert!(!text.contains("Guard: server 0 used"), "{text}");
        assert!(text.contains("Guard: server 2 was busy for 49 %"), "{text}");

        for slice in &mut run.measured.slices {
            slice.server_wait_ns = slice.wall_ns / 2;
        }
        run.measured.ticks[2] = Ticks { user: 3, system: 4 };
        let text = run.markdown();
        assert!(!text.contains("server 2 was busy"), "{text}");
        assert!(text.contains("Guard: server 2 waited for 50 %"), "{text}");
        assert!(text.contains("rests on 7 ticks only"), "{text}");
    }
}
