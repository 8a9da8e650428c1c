//! Many idle connections and a few active ones: what an idle one costs in memory, and whether the
//! active ones notice the others.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use peregrine_lab_load::client::fault::Faults;
use peregrine_lab_load::client::{Client, Group, Stop, Target, tls};
use peregrine_lab_load::workload::Workload;
use peregrine_lab_model::RunFile;
use peregrine_lab_model::block::MemoryReading;
use peregrine_lab_model::check::{Check, Outcome};
use peregrine_lab_model::plan::Schedule;
use peregrine_lab_model::verdict::Measure;

use super::separate;
use crate::asker::{Asked, Asker, Generated};
use crate::error::RunError;
use crate::progress::Progress;
use crate::record;
use crate::session::Level;
use crate::stage::Up;

/// How many connections are open at the first reading, so that what a server allocates once, for
/// its pools and its allocator, is not counted per connection.
const WARMUP_CONNECTIONS: usize = 256;

/// How many connections are opened and asked at a time. All at once would measure what the
/// allocator keeps from the burst, too.
const STEP_CONNECTIONS: usize = 16;

/// How long a server may rest before each reading.
const REST_TIME: Duration = Duration::from_millis(500);

pub(super) fn measure(
    level: &mut Level<'_>,
    progress: &mut dyn Progress,
) -> Result<RunFile, RunError> {
    let scenario = &level.wanted.scenario;
    let idle = scenario.load.idle_connections;
    let exchange = scenario
        .exchange
        .as_ref()
        .ok_or_else(|| RunError::Invalid(format!("{} asks no server", scenario.name)))?;
    let workload = exchange
        .workload(&scenario.name, 1, level.is_tls())
        .map_err(|error| RunError::Invalid(error.to_string()))?;
    let workload = Arc::new(workload);
    let readings: RefCell<Vec<MemoryReading>> = RefCell::default();
    let file = level.file("", Schedule::Closed { depth: 1 });
    let measures = [Measure::ServerCpu, Measure::Memory];
    let (mut file, _) = separate::turns(level, file, &measures, progress, |level, up| {
        let plan = level.plan(up)?;
        let held = Held::open(up, &workload, idle)?;
        readings.borrow_mut().extend(held.readings(&up.name));
        let active = Generated::new(vec![up.name.clone()], vec![plan.clone()]);
        Ok((plan, Box::new(WithIdle { held, active, name: up.name.clone() })))
    })?;
    file.memory = readings.into_inner();
    Ok(file)
}

/// Connections that are open and ask nothing.
struct Held {
    client: Client,
    groups: Vec<Group>,
    wanted: usize,
    faults: Faults,
    before_bytes: Option<u64>,
    after_bytes: Option<u64>,
}

impl Held {
    fn open(up: &Up, workload: &Arc<Workload>, wanted: usize) -> Result<Held, RunError> {
        let failed = || RunError::io(format!("holding connections to {}", up.name));
        let mut client = Client::new(None).map_err(failed())?;
        let address = up.address(workload.is_tls);
        let target = Target { address, tls: workload.is_tls.then(tls::config) };
        // These stay open: memory that they gave back would serve the first of those that count.
        let first = client.group(target, workload.clone(), WARMUP_CONNECTIONS.min(wanted));
        let mut faults = client.run(first, Stop::Once).map_err(failed())?.faults;
        client.idle(REST_TIME).map_err(failed())?;
        let before_bytes = up.holdings(true).exact_anonymous_bytes;
        let mut groups = Vec::with_capacity(wanted / STEP_CONNECTIONS + 1);
        let mut left = wanted;
        while left > 0 {
            let step = left.min(STEP_CONNECTIONS);
            left -= step;
            let group = client.group_like(first, step);
            faults.add(&client.run(group, Stop::Once).map_err(failed())?.faults);
            groups.push(group);
        }
        client.idle(REST_TIME).map_err(failed())?;
        let after_bytes = up.holdings(true).exact_anonymous_bytes;
        Ok(Held { client, groups, wanted, faults, before_bytes, after_bytes })
    }

    /// How many are open as far as the client knows, after a look at those that ended.
    fn count(&mut self) -> Result<usize, RunError> {
        let ended = self.client.idle(Duration::from_millis(20));
        ended.map_err(RunError::io("looking at idle connections"))?;
        Ok(self.groups.iter().map(|&group| self.client.open(group)).sum())
    }

    /// Memory without and with the idle connections: their difference is theirs. None if one of
    /// them is missing, because what the server kept of it cannot be told from what others need.
    fn readings(&self, name: &str) -> Vec<MemoryReading> {
        let (Some(before), Some(after)) = (self.before_bytes, self.after_bytes) else {
            return Vec::new();
        };
        if self.faults.total() > 0 {
            return Vec::new();
        }
        let reading = |connections: usize, bytes| MemoryReading {
            contender: name.to_owned(),
            connections: connections as u32,
            bytes,
        };
        vec![reading(0, before), reading(self.wanted, after)]
    }
}

/// Active connections beside idle ones.
struct WithIdle {
    held: Held,
    active: Generated,
    name: String,
}

impl Asker for WithIdle {
    fn ask(&mut self, arm: usize, at_warm: &(dyn Fn() + Sync)) -> Result<Asked, RunError> {
        let mut asked = self.active.ask(arm, at_warm)?;
        let open = self.held.count()?;
        let is_whole = open == self.held.wanted && self.held.faults.total() == 0;
        let check = Check {
            name: "idle connections stay open".to_owned(),
            contender: Some(self.name.clone()),
            outcome: if is_whole { Outcome::Passed } else { Outcome::Warned },
            detail: format!(
                "{open} of {} were open afterwards; faults while opening: {}",
                self.held.wanted, self.held.faults
            ),
        };
        record::merge_checks(&mut asked.checks, vec![check]);
        Ok(asked)
    }

    fn client_name(&self) -> String {
        self.active.client_name()
    }
}
