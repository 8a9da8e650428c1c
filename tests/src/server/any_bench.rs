//! A bench, a server and a wire of either kind. The cases are compiled only for these types,
//! instead of once for each kind, which would take most of the time that the suite needs to
//! compile.

use crate::server::bench::{Bench, Got, Outcome, Served, ServerOptions, Wire};
use crate::server::kernel::{KernelBench, KernelServer, SocketWire};
use crate::server::mounted::Mounted;
use crate::server::simulated::{SimulatedBench, SimulatedServer, SimulatedWire};
use peregrine::web::BuildError;
use peregrine::web::built::BuiltApp;
use peregrine::{IntoBuiltApp, Limits};
use peregrine_tls::TlsConfig;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// A case, without its type.
pub(super) trait Case {
    fn run<'a>(&'a self, bench: &'a AnyBench) -> Pin<Box<dyn Future<Output = ()> + 'a>>;
}

impl<C: AsyncFn(&AnyBench)> Case for C {
    fn run<'a>(&'a self, bench: &'a AnyBench) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
        Box::pin(self(bench))
    }
}

/// A bench of either kind.
pub struct AnyBench {
    kind: Kind,
    /// Whether applications are mounted; see [`Mounted`].
    is_mounted: bool,
}

enum Kind {
    Simulated(SimulatedBench),
    Kernel(KernelBench),
}

impl AnyBench {
    pub(super) fn from_simulated(bench: SimulatedBench, is_mounted: bool) -> Self {
        Self { kind: Kind::Simulated(bench), is_mounted }
    }

    pub(super) fn from_kernel(bench: KernelBench, is_mounted: bool) -> Self {
        Self { kind: Kind::Kernel(bench), is_mounted }
    }

    /// The simulated bench.
    ///
    /// # Panics
    /// If the bench is of the other kind.
    #[must_use]
    pub fn simulated(&self) -> &SimulatedBench {
        match &self.kind {
            Kind::Simulated(bench) => bench,
            Kind::Kernel(_) => panic!("the case needs the simulated network"),
        }
    }
}

/// Calls a method of whichever kind it is.
macro_rules! of_either {
    ($kind:expr, $name:ident => $call:expr) => {
        match $kind {
            Kind::Simulated($name) => $call,
            Kind::Kernel($name) => $call,
        }
    };
}

impl Bench for AnyBench {
    type Server = AnyServer;
    type Wire = AnyWire;

    fn start_behind<A, M>(
        &self,
        server_options: ServerOptions,
        limits: Limits,
        tls: Option<TlsConfig>,
        make: M,
    ) -> AnyServer
    where
        A: IntoBuiltApp + 'static,
        M: Fn() -> A + Clone + Send + 'static,
    {
        let make = if self.is_mounted {
            let limits = limits.clone();
            ErasedMake::new(move || Mounted(make(), limits.clone()))
        } else {
            ErasedMake::new(make)
        };
        self.start_erased(server_options, limits, tls, make)
    }

    async fn sleep(&self, time: Duration) {
        of_either!(&self.kind, bench => bench.sleep(time).await);
    }

    fn now(&self) -> Duration {
        of_either!(&self.kind, bench => bench.now())
    }

    fn calm(&self) {
        of_either!(&self.kind, bench => bench.calm());
    }

    fn calm_with_large_buffers(&self) {
        of_either!(&self.kind, bench => bench.calm_with_large_buffers());
    }

    fn is_calm(&self) -> bool {
        of_either!(&self.kind, bench => bench.is_calm())
    }

    fn is_virtual(&self) -> bool {
        of_either!(&self.kind, bench => bench.is_virtual())
    }

    fn run_out_of_descriptors(&self) {
        of_either!(&self.kind, bench => bench.run_out_of_descriptors());
    }

    fn chunks_on_loan(&self) -> Option<u32> {
        of_either!(&self.kind, bench => bench.chunks_on_loan())
    }

    fn bytes_of_the_closed(&self, server: &AnyServer) -> Option<usize> {
        match (&self.kind, server) {
            (Kind::Simulated(bench), AnyServer::Simulated(server)) => {
                bench.bytes_of_the_closed(server)
            }
            (Kind::Kernel(bench), AnyServer::Kernel(server)) => bench.bytes_of_the_closed(server),
            _ => panic!("the server was started by another bench"),
        }
    }

    fn has_resets(&self) -> bool {
        of_either!(&self.kind, bench => bench.has_resets())
    }

    fn choose(&self, limit: usize) -> usize {
        of_either!(&self.kind, bench => bench.choose(limit))
    }
}

impl AnyBench {
    /// Starts a server. Not generic, so that it is compiled once.
    fn start_erased(
        &self,
        server_options: ServerOptions,
        limits: Limits,
        tls: Option<TlsConfig>,
        make: ErasedMake,
    ) -> AnyServer {
        let make = move || make.make_app();
        match &self.kind {
            Kind::Simulated(bench) => {
                AnyServer::Simulated(bench.start_behind(server_options, limits, tls, make))
            }
            Kind::Kernel(bench) => {
                AnyServer::Kernel(bench.start_behind(server_options, limits, tls, make))
            }
        }
    }
}

/// A function that makes applications, without its type.
struct ErasedMake(Box<dyn CloneMake>);

impl ErasedMake {
    fn new<A, M>(make: M) -> Self
    where
        A: IntoBuiltApp + 'static,
        M: Fn() -> A + Clone + Send + 'static,
    {
        Self(Box::new(make))
    }

    fn make_app(&self) -> ErasedApp {
        self.0.make_app()
    }
}

impl Clone for ErasedMake {
    fn clone(&self) -> Self {
        Self(self.0.clone_boxed())
    }
}

trait CloneMake: Send {
    fn make_app(&self) -> ErasedApp;
    fn clone_boxed(&self) -> Box<dyn CloneMake>;
}

impl<A, M> CloneMake for M
where
    A: IntoBuiltApp + 'static,
    M: Fn() -> A + Clone + Send + 'static,
{
    fn make_app(&self) -> ErasedApp {
        ErasedApp(self().into_built_app())
    }

    fn clone_boxed(&self) -> Box<dyn CloneMake> {
        Box::new(self.clone())
    }
}

/// An application that is already built.
struct ErasedApp(Result<BuiltApp, BuildError>);

impl IntoBuiltApp for ErasedApp {
    fn into_built_app(self) -> Result<BuiltApp, BuildError> {
        self.0
    }
}

/// A server of either kind.
#[expect(clippy::large_enum_variant, reason = "a case starts few servers")]
pub enum AnyServer {
    /// On the simulated network.
    Simulated(SimulatedServer),
    /// On the machine's own sockets.
    Kernel(KernelServer),
}

impl Served for AnyServer {
    type Wire = AnyWire;

    fn connect(&self) -> AnyWire {
        match self {
            Self::Simulated(server) => AnyWire::Simulated(server.connect()),
            Self::Kernel(server) => AnyWire::Kernel(server.connect()),
        }
    }

    fn connect_secure(&self) -> AnyWire {
        match self {
            Self::Simulated(server) => AnyWire::Simulated(server.connect_secure()),
            Self::Kernel(server) => AnyWire::Kernel(server.connect_secure()),
        }
    }

    fn shut_down(&self) {
        match self {
            Self::Simulated(server) => server.shut_down(),
            Self::Kernel(server) => server.shut_down(),
        }
    }

    fn cut(&self) {
        match self {
            Self::Simulated(server) => server.cut(),
            Self::Kernel(server) => server.cut(),
        }
    }

    async fn ended(self) -> Outcome {
        match self {
            Self::Simulated(server) => server.ended().await,
            Self::Kernel(server) => server.ended().await,
        }
    }
}

/// A connection of either kind.
pub enum AnyWire {
    /// Over the simulated network.
    Simulated(SimulatedWire),
    /// Over a socket of the machine.
    Kernel(SocketWire),
}

impl Wire for AnyWire {
    fn send(&mut self, bytes: &[u8]) {
        match self {
            Self::Simulated(wire) => wire.send(bytes),
            Self::Kernel(wire) => wire.send(bytes),
        }
    }

    fn half_close(&mut self) {
        match self {
            Self::Simulated(wire) => wire.half_close(),
            Self::Kernel(wire) => wire.half_close(),
        }
    }

    async fn recv(&mut self, timeout: Duration) -> Got {
        match self {
            Self::Simulated(wire) => wire.recv(timeout).await,
            Self::Kernel(wire) => wire.recv(timeout).await,
        }
    }

    async fn recv_at_most(&mut self, bytes_max: usize, timeout: Duration) -> Got {
        match self {
            Self::Simulated(wire) => wire.recv_at_most(bytes_max, timeout).await,
            Self::Kernel(wire) => wire.recv_at_most(bytes_max, timeout).await,
        }
    }

    fn reset(self) {
        match self {
            Self::Simulated(wire) => wire.reset(),
            Self::Kernel(wire) => wire.reset(),
        }
    }
}
