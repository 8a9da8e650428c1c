//! One scenario, measured at every level: from what a user wants to run files on the disk.
//!
//! A journal beside the run files keeps what is finished, so that the same command after a crash
//! or Ctrl-C goes on where it was: at the next level, and for fresh processes at the next block.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use peregrine_lab_host::guard::Tolerances;
use peregrine_lab_host::interrupt::is_interrupted;
use peregrine_lab_host::journal::Journal;
use peregrine_lab_load::calibration::calibrate;
use peregrine_lab_load::generator::{Ceiling, Plan, Watch};
use peregrine_lab_model::block::Block;
use peregrine_lab_model::check::{Check, Outcome};
use peregrine_lab_model::plan::{Design, Plan as Planned, Schedule};
use peregrine_lab_model::verdict::Measure;
use peregrine_lab_model::{Calibration, RunFile};
use peregrine_lab_scenario::{Kind, Scenario, TlsMode};
use serde::{Deserialize, Serialize};

use crate::arms::Lineup;
use crate::error::RunError;
use crate::facts::{self, Facts, now_unix_s};
use crate::judge::judge;
use crate::kinds;
use crate::progress::Progress;
use crate::record;
use crate::rotation::{Measured, Turns};
use crate::stage::{Stage, Up};
use crate::verify;
use crate::wanted::{Settled, Wanted};

/// Where and for whom something is measured.
pub struct Session<'a> {
    /// CPUs, certificate, counters.
    pub stage: &'a Stage,
    /// The machine and the lab.
    pub facts: &'a Facts,
    /// Where run files and the journal go; none: nowhere.
    pub folder: Option<&'a Path>,
    /// Who is told how far it is.
    pub progress: &'a mut dyn Progress,
}

/// What came out.
#[derive(Debug, Default)]
pub struct Done {
    /// A run file for each level, and for each rate of an open loop.
    pub files: Vec<RunFile>,
    /// Contenders that the gate turned away.
    pub refused: BTreeSet<String>,
    /// Contenders that were not heard of in time.
    pub unmeasured: BTreeSet<String>,
    /// Whether Ctrl-C ended it early.
    pub is_partial: bool,
    /// Whether guards left nothing of a level.
    pub is_voided: bool,
}

/// One level of one scenario, ready to be measured.
pub(crate) struct Level<'a> {
    pub(crate) stage: &'a Stage,
    pub(crate) facts: &'a Facts,
    pub(crate) wanted: &'a Wanted,
    pub(crate) settled: &'a Settled,
    pub(crate) connections: usize,
    pub(crate) slice: std::time::Duration,
    pub(crate) lineup: Lineup,
    /// Blocks of fresh processes that are finished already, with what was checked in each.
    pub(crate) finished: Vec<(Block, Vec<Check>)>,
    pub(crate) keep: Keep,
}

/// Keeps finished blocks: on the disk, if there is a journal.
#[derive(Default)]
pub(crate) struct Keep {
    journal: Option<Journal>,
}

/// A line of a journal.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Entry {
    /// A block of a fresh process at this level, and what was checked in it.
    Block(usize, Box<Block>, Vec<Check>),
    /// A level whose run files are written.
    Level(usize, Vec<PathBuf>),
}

impl Keep {
    pub(crate) fn block(
        &mut self,
        connections: usize,
        block: &Block,
        checks: &[Check],
    ) -> Result<(), RunError> {
        self.entry(&Entry::Block(connections, Box::new(block.clone()), checks.to_vec()))
    }

    fn entry(&mut self, entry: &Entry) -> Result<(), RunError> {
        match &mut self.journal {
            Some(journal) => journal.append(entry).map_err(RunError::io("writing the journal")),
            None => Ok(()),
        }
    }
}

/// Measures everything that is wanted. What is finished of an earlier, broken run of the same is
/// not measured again.
///
/// # Errors
///
/// A [`RunError`]; what was finished before it is on the disk.
pub fn measure(session: &mut Session<'_>, wanted: &Wanted) -> Result<Done, RunError> {
    let Session { stage, facts, folder, progress } = session;
    wanted.check_beside()?;
    let first = Lineup::of(wanted, &stage.target)?;
    let settled = wanted.settle(first.arms.len())?;
    let (mut keep, entries, path) = open_journal(*folder, (wanted, facts), &settled, &first)?;
    let name = &wanted.scenario.name;
    let steps = steps(wanted, &settled, first.arms.len());
    progress.say(&format!("{name}: {}", settled.sentence()));
    for skipped in first.contenders.iter().filter(|one| one.skipped.is_some()) {
        let reason = skipped.skipped.as_deref().unwrap_or_default();
        progress.say(&format!("  without {}: {reason}", skipped.name));
    }
    progress.begin(name, steps, settled.duration);
    let mut done = Done::default();
    for (index, &connections) in settled.connections.iter().enumerate() {
        if let Some(files) = finished_level(&entries, connections)? {
            done.files.extend(files);
            continue;
        }
        let mut level = Level {
            stage,
            facts,
            wanted,
            settled: &settled,
            connections,
            slice: settled.slices[index],
            lineup: first.clone(),
            finished: finished_blocks(&entries, connections, &wanted.scenario.kind),
            keep,
        };
        let files = match kinds::measure(&mut level, *progress) {
            // Of this level there is nothing yet; those before it stand.
            Err(RunError::Interrupted) => {
                done.is_partial = true;
                keep = level.keep;
                break;
            }
            files => files?,
        };
        done.refused.extend(level.lineup.refused.iter().cloned());
        done.unmeasured.extend(level.lineup.unmeasured.iter().cloned());
        keep = level.keep;
        let is_partial = files.iter().any(|file| file.is_partial);
        for file in files.iter().filter(|file| file.blocks.is_empty() && !is_partial) {
            let reason = file.excluded.last().map_or("nobody answered", |one| &one.reason);
            progress.say(&format!(
                "{}: every block was voided ({reason}); make the machine quiet, or count them all \
                 the same with --tolerate-noise",
                file.run
            ));
            done.is_voided = true;
        }
        let paths = write(*folder, &files)?;
        if let (Some(folder), Kind::Latency { .. }) = (*folder, &wanted.scenario.kind) {
            remove_other_rates(folder, name, connections, &paths)?;
        }
        done.files.extend(files);
        if is_partial || is_interrupted() {
            done.is_partial = true;
            break;
        }
        keep.entry(&Entry::Level(connections, paths))?;
    }
    progress.end();
    drop(keep);
    if let (Some(path), false) = (path, done.is_partial) {
        // It is finished; the same command shall measure anew.
        fs::remove_file(&path).map_err(RunError::io(path.display().to_string()))?;
    }
    Ok(done)
}

fn steps(wanted: &Wanted, settled: &Settled, arms: usize) -> u64 {
    let per_level = match (&wanted.scenario.kind, wanted.is_fresh()) {
        (_, true) => settled.blocks * arms,
        (Kind::Latency { rates }, false) => settled.blocks * rates.len(),
        _ => settled.blocks,
    };
    (per_level * settled.connections.len()) as u64
}

type Opened = (Keep, Vec<Entry>, Option<PathBuf>);

fn open_journal(
    folder: Option<&Path>,
    (wanted, facts): (&Wanted, &Facts),
    settled: &Settled,
    lineup: &Lineup,
) -> Result<Opened, RunError> {
    let Some(folder) = folder else { return Ok((Keep::default(), Vec::new(), None)) };
    fs::create_dir_all(folder).map_err(RunError::io(folder.display().to_string()))?;
    let path = folder.join(format!("{}.journal", wanted.scenario.name));
    let slices: Vec<u128> = settled.slices.iter().map(std::time::Duration::as_millis).collect();
    let header = serde_json::json!({
        // Blocks of a tuned host and of the same host untuned are not one run.
        "is_tuned": !facts.machine.tuned.is_empty(),
        "scenario": wanted.scenario.sha256,
        "beside": wanted.beside.as_ref().map(|beside| &beside.sha256),
        "arms": lineup.names(),
        "programs": lineup.contenders.iter().map(|one| &one.program_sha256).collect::<Vec<_>>(),
        "connections": settled.connections,
        "streams": wanted.scenario.load.is_http2.then_some(wanted.scenario.load.pipeline),
        "design": wanted.design,
        "blocks": settled.blocks,
        "slices_ms": slices,
        "seed": wanted.seed,
    });
    let opened = Journal::open::<_, Entry>(&path, &header)
        .map_err(|error| RunError::Invalid(error.to_string()))?;
    Ok((Keep { journal: Some(opened.journal) }, opened.entries, Some(path)))
}

fn finished_level(entries: &[Entry], connections: usize) -> Result<Option<Vec<RunFile>>, RunError> {
    let found = entries.iter().find_map(|entry| match entry {
        Entry::Level(level, paths) if *level == connections => Some(paths),
        _ => None,
    });
    let Some(paths) = found else { return Ok(None) };
    let read = |path: &PathBuf| {
        let name = path.display().to_string();
        let text = fs::read_to_string(path).map_err(RunError::io(name.clone()))?;
        RunFile::read(&text).map_err(|error| RunError::Invalid(format!("{name}: {error}")))
    };
    paths.iter().map(read).collect::<Result<_, _>>().map(Some)
}

fn finished_blocks(entries: &[Entry], connections: usize, kind: &Kind) -> Vec<(Block, Vec<Check>)> {
    // Those of other kinds come with more than blocks: memory, capacities, the manner of an end.
    if !matches!(kind, Kind::Load) {
        return Vec::new();
    }
    let own = entries.iter().filter_map(|entry| match entry {
        Entry::Block(level, block, checks) if *level == connections => {
            Some(((**block).clone(), checks.clone()))
        }
        _ => None,
    });
    own.collect()
}

/// Writes each run file under its own name, by a rename so that a crash leaves no half of one.
fn write(folder: Option<&Path>, files: &[RunFile]) -> Result<Vec<PathBuf>, RunError> {
    let Some(folder) = folder else { return Ok(Vec::new()) };
    files.iter().map(|file| write_file(folder, file)).collect()
}

/// Takes away the files of an earlier run of this level, as other kinds of runs overwrite theirs:
/// its rates, and so its names, were a little different.
fn remove_other_rates(
    folder: &Path,
    scenario: &str,
    connections: usize,
    keep: &[PathBuf],
) -> Result<(), RunError> {
    let failed = || RunError::io(folder.display().to_string());
    let begin = format!("{scenario}-c{connections}-r");
    for entry in fs::read_dir(folder).map_err(failed())? {
        let path = entry.map_err(failed())?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let rate = name.strip_prefix(&begin).and_then(|name| name.strip_suffix(".json"));
        let is_rate = rate.is_some_and(|rate| rate.bytes().all(|byte| byte.is_ascii_digit()));
        if is_rate && !keep.contains(&path) {
            fs::remove_file(&path).map_err(failed())?;
        }
    }
    Ok(())
}

/// Writes one run file into the folder, named after the run.
///
/// # Errors
///
/// The file system's.
pub fn write_file(folder: &Path, file: &RunFile) -> Result<PathBuf, RunError> {
    let path = folder.join(format!("{}.json", file.run));
    let draft = folder.join(format!(".{}.json", file.run));
    let mut bytes = serde_json::to_vec(file)
        .map_err(|error| RunError::Invalid(format!("{}: {error}", path.display())))?;
    bytes.push(b'\n');
    fs::write(&draft, bytes)
        .and_then(|()| fs::rename(&draft, &path))
        .map_err(RunError::io(path.display().to_string()))?;
    Ok(path)
}

impl Level<'_> {
    pub(crate) fn is_tls(&self) -> bool {
        self.wanted.scenario.load.tls.is_some()
    }

    /// The plan's blocks, each after `warmup` slices of every arm.
    pub(crate) fn turns(&self, warmup: usize) -> Turns {
        let mut tolerances = Tolerances::default();
        if let Some(share) = self.wanted.scenario.load.sent_again_share_max {
            tolerances.sent_again_share_max = share;
        }
        Turns {
            blocks: self.settled.blocks,
            warmup,
            seed: self.wanted.seed,
            is_noise_tolerated: self.wanted.is_noise_tolerated,
            tolerances,
        }
    }

    /// What this server is asked, and whether that is the scenario beside.
    pub(crate) fn scenario_of(&self, up: &Up) -> (&Scenario, bool) {
        match self.lineup.arms.iter().find(|arm| arm.name == up.name) {
            Some(arm) => (arm.scenario(self.wanted), arm.is_beside),
            None => (&self.wanted.scenario, false),
        }
    }

    /// The generator's plan for this level against a server.
    pub(crate) fn plan(&self, up: &Up) -> Result<Plan, RunError> {
        let (scenario, _) = self.scenario_of(up);
        let exchange = scenario
            .exchange
            .as_ref()
            .ok_or_else(|| RunError::Invalid(format!("{} asks no server", scenario.name)))?;
        let address = up.address(scenario.load.tls.is_some());
        let question = exchange
            .question(&format!("localhost:{}", address.port()), self.wanted.seed)
            .map_err(|error| RunError::Invalid(error.to_string()))?;
        let load = &scenario.load;
        let cpus = self.stage.client_cpus();
        Ok(Plan {
            tls: load.tls.map(|mode| verify::secured(mode == TlsMode::Resumed)),
            connections: self.connections,
            depth: load.pipeline,
            is_http2: load.is_http2,
            requests_per_connection: load.requests_per_connection,
            duration: self.slice,
            threads: cpus.len().min(self.connections),
            cpus,
            seed: self.wanted.seed,
            ..Plan::new(address, question.into())
        })
    }

    /// What the client alone can do with the load of this level; none where that cannot be known.
    pub(crate) fn ceiling(&self, plan: &Plan) -> Option<Ceiling> {
        // A failure here is told as a check: what the client can do is then unknown.
        calibrate(plan, &self.stage.server_cpus(), &Watch::default()).ok().flatten()
    }

    /// A run file with everything that is known before the first request.
    pub(crate) fn file(&self, suffix: &str, schedule: Schedule) -> RunFile {
        let (wanted, scenario) = (self.wanted, &self.wanted.scenario);
        let mut file = RunFile::new(format!("{}-c{}{suffix}", scenario.name, self.connections));
        file.started_unix_s = now_unix_s();
        file.tool = self.facts.tool.clone();
        file.machine = self.facts.machine.clone();
        file.plan = Planned {
            scenario: scenario.name.clone(),
            description: scenario.title.clone(),
            scenario_sha256: scenario.sha256.clone(),
            connections: self.connections as u32,
            streams: scenario.load.is_http2.then_some(scenario.load.pipeline as u32),
            is_tls: self.is_tls(),
            schedule,
            design: if wanted.is_fresh() { Design::Separate } else { Design::Paired },
            reference: self.lineup.reference().to_owned(),
            seed: wanted.seed,
            blocks: self.settled.blocks as u32,
            block_ns: nanoseconds(self.slice),
            warmup_ns: nanoseconds(self.settled.warmup),
            budget_s: wanted.budget.map(|budget| budget.as_secs_f64()),
            effect_min: wanted.effect_min,
            timeout_ns: None,
            client: String::new(),
        };
        file
    }

    /// Puts what was measured into the file and judges it.
    pub(crate) fn fill(
        &self,
        file: &mut RunFile,
        mut measured: Measured,
        measures: &[Measure],
        began: Instant,
    ) {
        let (mut blocks, finished): (Vec<Block>, Vec<Vec<Check>>) =
            self.finished.iter().cloned().unzip();
        blocks.append(&mut measured.blocks);
        for checks in finished {
            record::merge_checks(&mut measured.checks, checks);
        }
        file.blocks = blocks;
        file.excluded = measured.excluded;
        file.is_partial = measured.is_partial;
        file.contenders.clone_from(&self.lineup.contenders);
        let mut checks = self.lineup.checks.clone();
        checks.append(&mut file.checks);
        checks.append(&mut measured.checks);
        file.checks = checks;
        file.machine.stolen_share = measured.used.stolen_share();
        file.machine.foreign_share = measured.used.foreign_share();
        file.machine.load_after = facts::load(&self.stage.root);
        file.took_s = began.elapsed().as_secs_f64();
        // At SIGTERM a lost request is what is looked for, and no figure depends on it.
        if !matches!(self.wanted.scenario.kind, Kind::Shutdown) {
            note_wrong_answers(file);
        }
        if let Some((first, second)) = &self.lineup.pair {
            judge(file, (first, second), measures);
        }
    }
}

/// A failed check for each arm that did not answer rightly while it was timed.
fn note_wrong_answers(file: &mut RunFile) {
    let mut wrong: BTreeMap<String, u64> = BTreeMap::new();
    for block in file.blocks.iter().filter(|block| block.errors_total() > 0) {
        *wrong.entry(block.contender.clone()).or_default() += block.errors_total();
    }
    for (contender, count) in wrong {
        file.checks.push(Check {
            name: "every answer is right".to_owned(),
            contender: Some(contender),
            outcome: Outcome::Failed,
            detail: format!("{count} requests were not answered rightly while it was timed"),
        });
    }
}

/// The client's limit as a run file keeps it, or a remark that it is not known.
pub(crate) fn note_ceiling(file: &mut RunFile, ceiling: Option<&Ceiling>) {
    match ceiling {
        Some(ceiling) => {
            file.calibration = Some(Calibration {
                requests_per_s: ceiling.rate,
                client_cpu_ns_per_request: ceiling.client_us_per_reply * 1e3,
            });
        }
        None => file.checks.push(Check {
            name: "client headroom".to_owned(),
            contender: None,
            outcome: Outcome::Skipped,
            detail: "the null server cannot give this scenario's reply".to_owned(),
        }),
    }
}

pub(crate) fn nanoseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a run is shorter than 500 years")
}
