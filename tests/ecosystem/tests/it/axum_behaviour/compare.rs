//! One router behind three servers, and a comparison of their responses.

use crate::axum_behaviour::reply::{Ask, Reply};
use axum::Router;
use peregrine::tower::{IntoTowerHandler, tower};
use peregrine::{DriverChoice, RunningServer};
use peregrine_ecosystem_tests::start;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// How long a server may send nothing before the case fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// The function of a case.
pub(crate) type Run = fn(&mut Case);

/// A server with the router of the case.
pub(crate) struct Served {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    ending: Mutex<Option<Ending>>,
}

enum Ending {
    Reference(#[expect(dead_code, reason = "its drop is the order")] oneshot::Sender<()>),
    Ours(Box<RunningServer>),
}

impl Served {
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("the option is known");
        stream
    }

    /// Sends bytes, and returns everything received until the server closes.
    pub(crate) fn talk(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes.as_ref()).expect("the server reads");
        let mut all = Vec::new();
        if let Err(error) = stream.read_to_end(&mut all) {
            return format!("{}, then {:?}", String::from_utf8_lossy(&all), error.kind());
        }
        String::from_utf8_lossy(&all).into_owned()
    }

    /// Starts a graceful shutdown without waiting for it.
    pub(crate) fn shut_down(&self) {
        let mut ending = self.ending.lock().expect("the mutex is not poisoned");
        match &*ending {
            Some(Ending::Ours(running)) => running.handle().graceful_shutdown(),
            _ => drop(ending.take()),
        }
    }
}

/// A router's servers, and how their responses differed.
#[derive(Default)]
pub(crate) struct Case {
    servers: Vec<Served>,
    /// For each of our servers, in the order of `DRIVERS`: the request, and how the response
    /// differed.
    pub(crate) differences: [Vec<(String, String)>; 2],
    known: Vec<&'static str>,
    /// Servers whose driver the kernel refused.
    pub(crate) refused: [bool; 2],
}

const DRIVERS: [(&str, DriverChoice); 2] =
    [("tokio", DriverChoice::Tokio), ("io_uring", DriverChoice::Uring)];

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new().expect("a runtime can be made"))
}

/// Runs a case, and fails it for any difference that it did not announce.
pub(crate) fn check(run: Run) {
    let case = outcome(run);
    for (driver, differences) in case.differences.iter().enumerate() {
        let is_known = |text: &str| case.known.iter().any(|known| text.starts_with(known));
        let unknown: Vec<_> = differences.iter().filter(|(_, text)| !is_known(text)).collect();
        assert!(unknown.is_empty(), "{}: {unknown:#?}", DRIVERS[driver].0);
        for known in case.known.iter().filter(|_| !case.refused[driver]) {
            let is_there = differences.iter().any(|(_, text)| text.starts_with(known));
            assert!(is_there, "an announced difference did not occur: {known}");
        }
    }
}

pub(crate) fn outcome(run: Run) -> Case {
    let mut case = Case::default();
    run(&mut case);
    case
}

impl Case {
    /// Serves the router on all three servers.
    pub(crate) fn serve(&mut self, router: Router) {
        let reference = router.clone();
        self.begin(
            |listener, ended| {
                runtime().spawn(async move {
                    let serving = axum::serve(listener, reference);
                    serving.with_graceful_shutdown(async { drop(ended.await) }).await
                });
            },
            move || tower(router.clone()),
        );
    }

    /// The same with the address of each peer.
    pub(crate) fn serve_with_peers(&mut self, router: Router) {
        let router = router.into_make_service_with_connect_info::<SocketAddr>();
        let reference = router.clone();
        self.begin(
            |listener, ended| {
                runtime().spawn(async move {
                    let serving = axum::serve(listener, reference);
                    serving.with_graceful_shutdown(async { drop(ended.await) }).await
                });
            },
            move || router.clone().into_tower_handler(),
        );
    }

    fn begin<A, M>(
        &mut self,
        reference: impl FnOnce(tokio::net::TcpListener, oneshot::Receiver<()>),
        make: M,
    ) where
        A: peregrine::IntoBuiltApp + 'static,
        M: Fn() -> A + Clone + Send + 'static,
    {
        self.servers.clear();
        let listener = runtime().block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("loopback has a free port");
        let address = listener.local_addr().expect("the socket is bound");
        let (end, ended) = oneshot::channel();
        reference(listener, ended);
        let ending = Mutex::new(Some(Ending::Reference(end)));
        self.servers.push(Served { name: "axum::serve", address, ending });
        for (number, (name, choice)) in DRIVERS.into_iter().enumerate() {
            let Some(running) = start(choice, 1, make.clone()) else {
                self.refused[number] = true;
                continue;
            };
            let address = running.http_address().expect("the server has an HTTP listener");
            let ending = Mutex::new(Some(Ending::Ours(Box::new(running))));
            self.servers.push(Served { name, address, ending });
        }
    }

    /// The number of servers.
    pub(crate) fn servers(&self) -> usize {
        self.servers.len()
    }

    /// Announces a difference by the beginning of its text, for any request.
    pub(crate) fn differs(&mut self, known: &'static str) {
        self.known.push(known);
    }

    /// Sends the same request to all servers, and compares the responses. Returns the reference's.
    pub(crate) fn send(&mut self, ask: &Ask) -> Reply {
        self.side_by_side(
            |server| {
                let mut stream = server.connect();
                stream.write_all(&ask.bytes()).expect("the server reads");
                Reply::read(&mut stream, ask.is_head())
                    .unwrap_or_else(|error| panic!("{}: {error} after {ask:?}", server.name))
            },
            &format!("{ask:?}"),
            Reply::differences,
        )
    }

    /// Does the same with each server, and compares the results. Returns the reference's.
    pub(crate) fn each(&mut self, what: impl Fn(&Served) -> String) -> String {
        self.side_by_side(what, "conversation", |reference, ours| {
            if reference == ours { vec![] } else { vec![format!("{reference:?} is {ours:?} here")] }
        })
    }

    fn side_by_side<T>(
        &mut self,
        what: impl Fn(&Served) -> T,
        title: &str,
        differences: impl Fn(&T, &T) -> Vec<String>,
    ) -> T {
        let (reference, ours) = self.servers.split_first().expect("`serve` comes first");
        let expected = what(reference);
        for server in ours {
            let number = usize::from(server.name == DRIVERS[1].0);
            for difference in differences(&expected, &what(server)) {
                self.differences[number].push((title.to_owned(), difference));
            }
        }
        expected
    }

    pub(crate) fn get(&mut self, path: &str) -> Reply {
        self.send(&Ask::new("GET", path))
    }

    pub(crate) fn head(&mut self, path: &str) -> Reply {
        self.send(&Ask::new("HEAD", path))
    }

    pub(crate) fn ask(&mut self, method: &str, path: &str) -> Reply {
        self.send(&Ask::new(method, path))
    }

    pub(crate) fn post(&mut self, path: &str, body: &str) -> Reply {
        self.send(&Ask::new("POST", path).body(body))
    }

    pub(crate) fn post_as(&mut self, kind: &str, path: &str, body: &str) -> Reply {
        self.send(&Ask::new("POST", path).field("content-type", kind).body(body))
    }
}
