//! Servers on the simulated network: virtual time, and a run for every seed.

use crate::server::any_bench::{AnyBench, Case};
use crate::server::bench::{Bench, Got, Outcome, Served, ServerOptions, Wire};
use crate::simulated::multiplied;
use peregrine::{IntoBuiltApp, Limits};
use peregrine_driver::{Driver, Options};
use peregrine_driver_sim::{Client, Faults, Network, Sim, SocketBuffers};
use peregrine_server::{
    AccessLogStyle, BoundListener, Instrumentation, Lifecycle, WorkerAccessLog, WorkerMetrics,
    WorkerReport,
};
use peregrine_tls::TlsConfig;
use std::cell::Cell;
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// Repeats each case for every seed of a range, on a network that splits and delays data, but loses
/// nothing.
#[derive(Clone, Debug)]
pub struct SimulatedBenches {
    seeds: Range<u64>,
}

impl SimulatedBenches {
    /// One run per seed.
    #[must_use]
    pub fn seeds(seeds: Range<u64>) -> Self {
        Self { seeds: multiplied(seeds) }
    }

    /// Runs `case` with each seed. A panic in it fails the test.
    ///
    /// # Panics
    /// If the case fails, or resources are leaked.
    pub fn check(&self, case: impl AsyncFn(&AnyBench)) {
        self.run(&case, false);
    }

    pub(super) fn run(&self, case: &dyn Case, is_mounted: bool) {
        for seed in self.seeds.clone() {
            // Seed 0 has no faults: a failure there is unrelated to them.
            let faults = if seed == 0 { Faults::none() } else { Faults::harmless() };
            let faults = Faults { socket_buffers: sockets(seed), ..faults };
            let network = Network::new(seed, faults);
            let in_flight = network
                .run(&Options::default(), async |driver| {
                    let is_calm = Cell::new(seed == 0);
                    let bench = SimulatedBench { driver: driver.clone(), is_calm };
                    case.run(&AnyBench::from_simulated(bench, is_mounted)).await;
                    driver.stats().in_flight
                })
                .expect("a runtime without I/O starts");
            assert_eq!(in_flight, 0, "seed {seed}: an operation is still in flight");
            assert_eq!(network.outstanding_chunks(), 0, "seed {seed}: a buffer is lost");
            assert_eq!(network.connections(), 0, "seed {seed}: a connection is lost");
            assert_eq!(network.panics(), 0, "seed {seed}: a task panicked");
        }
    }
}

/// For cases that are only for the simulated network.
#[derive(Clone, Debug)]
pub struct SimulatedOnly(pub SimulatedBenches);

impl SimulatedOnly {
    /// Runs `case` with each seed. A panic in it fails the test.
    ///
    /// # Panics
    /// If the case fails, or resources are leaked.
    pub fn check(&self, case: impl AsyncFn(&SimulatedBench)) {
        self.0.check(async |bench| case(bench.simulated()).await);
    }
}

/// Buffers like those of a real machine, of which drivers use only a little in advance.
pub(super) const LARGE: SocketBuffers = SocketBuffers {
    send_bytes_max: 4 << 20,
    notsent_lowat_bytes: 16 << 10,
    receive_bytes_max: 64 << 10,
    window_update_bytes: 16 << 10,
};

/// Half of the seeds use socket buffers, from tiny to large.
fn sockets(seed: u64) -> Option<SocketBuffers> {
    let sizes = [20, 100, 500, 4_096, 65_536];
    let size = sizes[usize::try_from(seed / 2).expect("seeds are small") % sizes.len()];
    (seed % 2 == 1).then(|| SocketBuffers::with_size(size))
}

/// One simulated network with its run.
pub struct SimulatedBench {
    driver: Sim,
    is_calm: Cell<bool>,
}

impl SimulatedBench {
    /// The network below.
    pub(super) fn network(&self) -> &Network {
        self.driver.network()
    }

    /// Stops all faults from now on, and uses the buffers of `sockets`.
    pub fn calm_with(&self, sockets: SocketBuffers) {
        self.network().set_faults(Faults { socket_buffers: Some(sockets), ..Faults::none() });
        self.is_calm.set(true);
    }
}

impl Bench for SimulatedBench {
    type Server = SimulatedServer;
    type Wire = SimulatedWire;

    fn start_behind<A, M>(
        &self,
        server_options: ServerOptions,
        limits: Limits,
        tls: Option<TlsConfig>,
        make: M,
    ) -> SimulatedServer
    where
        A: IntoBuiltApp + 'static,
        M: Fn() -> A + Clone + Send + 'static,
    {
        let network = self.network().clone();
        let http_listener = network.bind();
        let http_port = http_listener.id();
        let ServerOptions { proxy_protocol, proxies, limits: listener_limits, log, traces } =
            server_options;
        let mut listeners = vec![BoundListener {
            limits: listener_limits,
            proxy_protocol: proxy_protocol.clone(),
            trusted_proxies: proxies.clone(),
            ..BoundListener::new(http_listener)
        }];
        let mut https_port = None;
        if let Some(tls) = tls {
            let https_listener = network.bind();
            https_port = Some(https_listener.id());
            let defaults = BoundListener::new(https_listener);
            listeners.push(BoundListener {
                tls: Some(tls),
                proxy_protocol,
                trusted_proxies: proxies,
                ..defaults
            });
        }
        let application = make().into_built_app().expect("the application is valid");
        let (lifecycle, receiver) = watch::channel(Lifecycle::Serving);
        let (sender, report) = oneshot::channel();
        let driver = self.driver.clone();
        let metrics = Arc::new(WorkerMetrics::with_request_histograms());
        let instrumentation = Instrumentation::with_metrics(Arc::default(), Arc::clone(&metrics));
        let log = log.map(|(form, lines)| {
            let lines = Box::new(lines);
            let (_, style) =
                watch::channel(AccessLogStyle { format: form, ..AccessLogStyle::default() });
            WorkerAccessLog { style, sink: lines }
        });
        let instrumentation = Rc::new(instrumentation.with_access_log(log).with_tracing(traces));
        network.spawn(async move {
            let serving = peregrine_server::run_worker(
                driver,
                listeners,
                application,
                limits,
                instrumentation,
                receiver,
                None,
            );
            let report = serving.await.expect("the simulated network has free addresses");
            metrics.assert_idle();
            let _ = sender.send(report);
        });
        SimulatedServer { network, http_port, https_port, lifecycle, report }
    }

    async fn sleep(&self, time: Duration) {
        self.network().sleep(time).await;
    }

    fn now(&self) -> Duration {
        self.network().now()
    }

    fn calm(&self) {
        self.network().set_faults(Faults::none());
        self.is_calm.set(true);
    }

    fn calm_with_large_buffers(&self) {
        self.calm_with(LARGE);
    }

    fn is_calm(&self) -> bool {
        self.is_calm.get()
    }

    fn is_virtual(&self) -> bool {
        true
    }

    fn run_out_of_descriptors(&self) {
        let faults = Faults { accept_error_per_mille: 700, ..Faults::harmless() };
        self.network().set_faults(faults);
    }

    fn chunks_on_loan(&self) -> Option<u32> {
        Some(self.network().outstanding_chunks())
    }

    fn bytes_of_the_closed(&self, _: &SimulatedServer) -> Option<usize> {
        Some(self.network().orphaned_bytes())
    }

    fn choose(&self, limit: usize) -> usize {
        let limit = u64::try_from(limit).expect("a length has at most 64 bits");
        usize::try_from(self.network().random_below(limit)).expect("the value fits in a usize")
    }
}

/// A server on a simulated network.
pub struct SimulatedServer {
    network: Network,
    http_port: u64,
    https_port: Option<u64>,
    lifecycle: watch::Sender<Lifecycle>,
    report: oneshot::Receiver<WorkerReport>,
}

impl SimulatedServer {
    /// The address for clients that are separate tasks.
    pub(super) fn port(&self) -> u64 {
        self.http_port
    }
}

impl Served for SimulatedServer {
    type Wire = SimulatedWire;

    fn connect(&self) -> SimulatedWire {
        let client = self.network.connect_to(self.http_port);
        SimulatedWire::new(Rc::new(client), &self.network)
    }

    fn connect_secure(&self) -> SimulatedWire {
        let port = self.https_port.expect("the server was started with TLS");
        let client = self.network.connect_to(port);
        SimulatedWire::new(Rc::new(client), &self.network)
    }

    fn shut_down(&self) {
        self.lifecycle.send_replace(Lifecycle::Draining);
    }

    fn cut(&self) {
        self.lifecycle.send_replace(Lifecycle::ForceClosing);
    }

    async fn ended(self) -> Outcome {
        let report = self.report.await.expect("the server's task runs to its end");
        Outcome { snapshot: report.stats, cut: report.force_closed }
    }
}

/// A client of the simulated network.
pub struct SimulatedWire {
    client: Rc<Client>,
    network: Network,
}

impl SimulatedWire {
    /// A wire for a client that other code also holds.
    pub(super) fn new(client: Rc<Client>, network: &Network) -> Self {
        Self { client, network: network.clone() }
    }
}

/// Polls `work` once, so that it starts in the background.
fn begin(work: impl Future) {
    let _ = pin!(work).poll(&mut Context::from_waker(Waker::noop()));
}

impl Wire for SimulatedWire {
    fn send(&mut self, bytes: &[u8]) {
        begin(self.client.send(bytes));
    }

    fn half_close(&mut self) {
        begin(self.client.half_close());
    }

    async fn recv(&mut self, timeout: Duration) -> Got {
        self.recv_at_most(usize::MAX, timeout).await
    }

    async fn recv_at_most(&mut self, bytes_max: usize, timeout: Duration) -> Got {
        let receiving = self.client.recv_at_most(bytes_max);
        match crate::first_of(receiving, self.network.sleep(timeout)).await {
            None => Got::Nothing,
            Some(Ok(bytes)) if bytes.is_empty() => Got::End,
            Some(Ok(bytes)) => Got::Bytes(bytes),
            Some(Err(_)) => Got::Broken,
        }
    }

    fn reset(self) {
        self.client.reset();
    }
}
