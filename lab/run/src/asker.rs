//! Who asks: one slice of load on one arm, whatever the design.

use std::sync::Arc;
use std::time::Duration;

use peregrine_lab_load::client::fault::Faults;
use peregrine_lab_load::client::{Client, EngineKind, Group, Stop, Target, tls};
use peregrine_lab_load::generator::{self, Plan, Watch};
use peregrine_lab_load::workload::Workload;
use peregrine_lab_model::check::Check;
use peregrine_lab_model::histogram::Histogram;

use crate::error::RunError;
use crate::record;
use crate::stage::Up;

/// What one slice saw.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// Right replies.
    pub requests: u64,
    /// Requests sent.
    pub sent: u64,
    /// Open loop: sent later than intended by more than the generator allows.
    pub late: u64,
    /// Open loop: never sent, because no connection was free.
    pub dropped: u64,
    /// From the first request to the last reply.
    pub wall: Duration,
    /// The client's CPU time.
    pub client_cpu: Duration,
    /// Bytes of right replies, heads included, without TLS.
    pub wire_bytes: u64,
    /// Bytes of their bodies.
    pub body_bytes: u64,
    /// Latency, where it is measured.
    pub latency: Option<Histogram>,
    /// Everything that was wrong.
    pub faults: Faults,
    /// Rules that this slice was held against.
    pub checks: Vec<Check>,
}

/// Asks one arm for one slice. Arms are numbered as they were declared.
pub trait Asker {
    /// Asks arm `arm`. Where it is warmed up first, `at_warm` is called when what counts begins.
    ///
    /// # Errors
    ///
    /// Only what keeps the client from going on.
    fn ask(&mut self, arm: usize, at_warm: &(dyn Fn() + Sync)) -> Result<Asked, RunError>;

    /// How it talks to the kernel, for the run file.
    fn client_name(&self) -> String;
}

/// Kept connections and fixed requests: the cheapest client, for slices of some milliseconds. It
/// measures no latency.
pub struct Kept {
    client: Client,
    groups: Vec<Group>,
    slice: Duration,
    /// Bytes of one right reply of each arm, and of its body.
    reply_bytes: Vec<(f64, f64)>,
}

impl Kept {
    /// A client for these arms, each with its own workload and `connections`.
    ///
    /// # Errors
    ///
    /// The kernel's, if it refuses every way to talk to it.
    pub fn new(
        ups: &[Up],
        workloads: Vec<Workload>,
        connections: usize,
        slice: Duration,
    ) -> Result<Kept, RunError> {
        let mut client = Client::new(None).map_err(RunError::io("making a client"))?;
        // The same bytes are kept once.
        let mut shared: Vec<Arc<Workload>> = Vec::new();
        let groups = ups
            .iter()
            .zip(workloads)
            .map(|(up, workload)| {
                let known = shared.iter().find(|one| one.name == workload.name).cloned();
                let workload = known.unwrap_or_else(|| {
                    shared.push(Arc::new(workload));
                    shared[shared.len() - 1].clone()
                });
                let address = up.address(workload.is_tls);
                let config = if workload.is_http2 { tls::http2_config } else { tls::config };
                let target = Target { address, tls: workload.is_tls.then(config) };
                client.group(target, workload, connections)
            })
            .collect();
        Ok(Kept { client, groups, slice, reply_bytes: vec![(0.0, 0.0); ups.len()] })
    }

    /// Says how long right replies are, as a longer look at each arm found. All replies to a fixed
    /// request are as long, so that bytes need not be counted again.
    pub fn set_reply_bytes(&mut self, arm: usize, wire: f64, body: f64) {
        self.reply_bytes[arm] = (wire, body);
    }
}

impl Asker for Kept {
    fn ask(&mut self, arm: usize, _: &(dyn Fn() + Sync)) -> Result<Asked, RunError> {
        let tally = self
            .client
            .run(self.groups[arm], Stop::After(self.slice))
            .map_err(RunError::io("asking"))?;
        let (wire, body) = self.reply_bytes[arm];
        let bytes = |each: f64| (tally.replies as f64 * each).round() as u64;
        Ok(Asked {
            requests: tally.replies,
            sent: tally.replies + tally.faults.total(),
            wall: tally.wall,
            client_cpu: tally.client_cpu,
            wire_bytes: bytes(wire),
            body_bytes: bytes(body),
            faults: tally.faults,
            ..Asked::default()
        })
    }

    fn client_name(&self) -> String {
        engine_name(Some(self.client.kind()))
    }
}

/// A whole run of the generator for each slice: connections are made anew, requests may vary,
/// loops may be open, and every rule of the generator is checked.
pub struct Generated {
    plans: Vec<Plan>,
    names: Vec<String>,
    watch: Watch,
    engine: Option<EngineKind>,
}

impl Generated {
    /// One plan for each arm, in the order of the arms.
    #[must_use]
    pub fn new(names: Vec<String>, plans: Vec<Plan>) -> Generated {
        Generated { plans, names, watch: Watch::default(), engine: None }
    }
}

impl Asker for Generated {
    fn ask(&mut self, arm: usize, at_warm: &(dyn Fn() + Sync)) -> Result<Asked, RunError> {
        let plan = &self.plans[arm];
        let watch = Watch::stopped_by(&self.watch);
        let outcome = match plan.warmup.is_zero() {
            // Connections that are made anew are part of what is asked, the first ones too.
            true => generator::run(plan, &watch),
            false => generator::run_counted(plan, &watch, at_warm),
        };
        let outcome = outcome.map_err(RunError::io("asking"))?;
        self.engine = outcome.engine.or(self.engine);
        Ok(record::asked(&self.names[arm], plan, &outcome))
    }

    fn client_name(&self) -> String {
        engine_name(self.engine)
    }
}

/// The client's name in a run file.
#[must_use]
pub fn engine_name(engine: Option<EngineKind>) -> String {
    match engine {
        Some(EngineKind::Ring) => "lab, io_uring".to_owned(),
        Some(EngineKind::Epoll) => "lab, epoll".to_owned(),
        None => "lab".to_owned(),
    }
}
