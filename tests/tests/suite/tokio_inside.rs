//! Tokio's facilities work in everything that a worker runs, without set-up and without leaving the
//! worker's thread: a table of places, facilities and drivers.
//!
//! [`FACILITIES`] lists what is used; [`places`] builds a route for each place it is used in. On
//! the simulated network only facilities that need neither a kernel nor threads are used.

#![expect(clippy::unwrap_used, reason = "a missing value fails the test")]

use bytes::Bytes;
use futures_core::Stream;
use http::HeaderValue;
use http::header::UPGRADE;
use peregrine::tower::Mount;
use peregrine::web::extract::{Path, State};
use peregrine::web::upgrade::UpgradeHandler;
use peregrine::web::{App, Body, Next, Request, Response};
use peregrine::{DriverChoice, Limits, Server, spawn_blocking};
use peregrine_tests::isolated;
use peregrine_tests::server::bench::{Bench, Served};
use peregrine_tests::server::peer::Peer;
use peregrine_tests::server::reply::Reply;
use peregrine_tests::server::{KernelBenches, SimulatedBenches};
use std::cell::RefCell;
use std::collections::HashSet;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::thread::{self, ThreadId};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::{self, JoinSet, spawn_local};
use tokio::time::{Instant, interval, sleep, timeout};

/// Generates a test of each case on each driver, or on each kernel driver.
macro_rules! on_drivers {
    (all: $($case:ident,)*; kernel: $($kernel:ident,)*) => {
        on_drivers! { @module on_sim, SimulatedBenches::seeds(0..8); $($case,)*; }
        on_drivers! {
            @module on_tokio, KernelBenches::tcp(DriverChoice::Tokio); $($case,)*; $($kernel,)*
        }
        on_drivers! {
            @module on_uring, KernelBenches::tcp(DriverChoice::Uring); $($case,)*; $($kernel,)*
        }
    };
    (@module $module:ident, $benches:expr; $($case:ident,)*; $($logged:ident,)*) => {
        mod $module {
            use super::*;

            $(
                #[test]
                fn $case() {
                    $benches.check(async |bench| super::$case(bench).await);
                }
            )*
            $(
                // The subscriber is process-wide.
                #[test]
                fn $logged() {
                    isolated(|| $benches.check(async |bench| super::$logged(bench).await));
                }
            )*
        }
    };
}

#[test]
fn workers_on_tokio_wake_each_other() {
    what_workers_share_wakes_handlers_of_all_of_them(DriverChoice::Tokio);
}

#[test]
fn workers_on_uring_wake_each_other() {
    what_workers_share_wakes_handlers_of_all_of_them(DriverChoice::Uring);
}

on_drivers! {
    all:
        it_works_in_a_handler,
        it_works_in_a_middleware,
        it_works_in_a_response_stream,
        it_works_in_a_spawned_task,
        it_works_in_a_local_task,
        it_works_in_a_task_that_outlives_its_request,
        it_works_after_an_upgrade,
        it_works_in_a_mounted_service,
    ;
    kernel:
        a_handler_that_blocks_is_reported_once_with_its_route_while_it_blocks,
        a_mounted_handler_that_blocks_is_reported_with_its_request,
        a_shutdown_says_how_many_tasks_it_waits_for,
}

async fn it_works_in_a_handler<B: Bench>(bench: &B) {
    check(bench, "handler").await;
}

async fn it_works_in_a_middleware<B: Bench>(bench: &B) {
    check(bench, "middleware").await;
}

async fn it_works_in_a_response_stream<B: Bench>(bench: &B) {
    check(bench, "stream").await;
}

async fn it_works_in_a_spawned_task<B: Bench>(bench: &B) {
    check(bench, "spawned").await;
}

async fn it_works_in_a_local_task<B: Bench>(bench: &B) {
    check(bench, "local").await;
}

async fn it_works_in_a_mounted_service<B: Bench>(bench: &B) {
    check(bench, "mounted").await;
}

/// Uses every facility in one place, one after the other on one connection.
async fn check<B: Bench>(bench: &B, place: &str) {
    let server = begin(bench, &Done::default());
    let mut peer = Peer::new(server.connect());
    for name in names(bench) {
        peer.get(&format!("/{place}/{name}"));
        let reply: Reply = peer.reply().await;
        assert_eq!((reply.status, reply.text()), (200, "it works"), "{name} in {place}");
    }
    server.cut();
}

async fn it_works_in_a_task_that_outlives_its_request<B: Bench>(bench: &B) {
    let done = Done::default();
    let server = begin(bench, &done);
    let mut peer = Peer::new(server.connect());
    for name in names(bench) {
        peer.get(&format!("/outliving/{name}"));
        assert_eq!(peer.reply().await.text(), "later");
    }
    // The end of the connection must work as well.
    drop(peer);
    let mut expected: Vec<_> = names(bench).collect();
    bench.wait_until("all tasks are done", || done.lock().len() == expected.len()).await;
    let mut names = done.lock().clone();
    names.sort_unstable();
    expected.sort_unstable();
    assert_eq!(names, expected);
    server.cut();
}

async fn it_works_after_an_upgrade<B: Bench>(bench: &B) {
    let server = begin(bench, &Done::default());
    for name in names(bench) {
        let mut peer = Peer::new(server.connect());
        peer.send(format!(
            "GET /upgraded/{name} HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
        ));
        assert_eq!(peer.reply().await.status, 101, "{name}");
        peer.expect("it works").await;
    }
    server.cut();
}

/// The warning names the route and the remedy, and is logged while the handler still blocks. A
/// handler that only waits causes no warning.
async fn a_handler_that_blocks_is_reported_once_with_its_route_while_it_blocks<B: Bench>(
    bench: &B,
) {
    assert!(Limits::default().blocking_poll_threshold.is_some(), "handlers are watched by default");
    let (log, number) = (Log::start(), number());
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let make = move || {
        let (released, for_stream) = (Arc::clone(&released), Arc::clone(&released));
        let block = move || {
            released.lock().unwrap().recv().unwrap();
            "blocked"
        };
        let block_stream = move || {
            let released = Arc::clone(&for_stream);
            let mut pieces = vec![Ok::<_, Infallible>(Bytes::from_static(b"streamed"))];
            Body::from_stream(Produced(move || {
                pieces.pop().inspect(|_| released.lock().unwrap().recv().unwrap())
            }))
        };
        App::new()
            .get(&format!("/block-{number}/{{id}}"), block)
            .get(&format!("/block-stream-{number}"), block_stream)
            .get(&format!("/wait-{number}-1"), wait)
            .get(&format!("/wait-{number}-2"), wait)
            .get(&format!("/wait-{number}-3"), wait)
    };
    let limits = Limits { blocking_poll_threshold: Some(BUDGET), ..Limits::default() };
    let server = bench.start(limits, None, make);
    let mut peer = Peer::new(server.connect());
    let route = format!("/block-{number}/{{id}}");
    let stream = format!("/block-stream-{number}");
    peer.get(&format!("/block-{number}/7"));
    bench.wait_until("the handler is found while it blocks", || log.count(&route) == 1).await;
    release.send(()).unwrap();
    assert_eq!(peer.reply().await.text(), "blocked");
    // There is no second warning.
    peer.get(&format!("/block-{number}/8"));
    bench.sleep(BUDGET * 3).await;
    release.send(()).unwrap();
    assert_eq!(peer.reply().await.text(), "blocked");
    peer.get(&stream);
    bench.wait_until("the stream is found while it blocks", || log.count(&stream) == 1).await;
    release.send(()).unwrap();
    assert_eq!(peer.reply().await.text(), "streamed");
    let waits = [1, 2, 3].map(|time| format!("/wait-{number}-{time}"));
    for wait in &waits {
        peer.get(wait);
        assert_eq!(peer.reply().await.text(), "waited");
    }
    drop(peer);
    server.shut_down();
    let outcome = server.ended().await;
    // A machine may stop a thread for as long as a blocking handler would.
    assert!(outcome.snapshot.blocking_polls >= 2, "{:?}", outcome.snapshot);
    assert!(
        waits.iter().any(|wait| log.count(wait) == 0),
        "a waiting handler does not block its thread"
    );
    assert_eq!((log.count(&route), log.count(&stream)), (1, 1));
    let line = log.line(&route);
    assert!(line.contains("WARN") && line.contains("peregrine::spawn_blocking"), "{line}");
}

/// The routes of a mounted service are not visible outside, so the warning names the request once
/// it is known to be the cause.
async fn a_mounted_handler_that_blocks_is_reported_with_its_request<B: Bench>(bench: &B) {
    let (log, number) = (Log::start(), number());
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let make = move || {
        let released = Arc::clone(&released);
        let block = async move || {
            released.lock().unwrap().recv().unwrap();
            "blocked"
        };
        let router = axum::Router::new()
            .route("/other", axum::routing::get(async || "done"))
            .route("/block/{id}", axum::routing::get(block));
        App::new().mount(&format!("/mounted-{number}"), router)
    };
    let limits = Limits { blocking_poll_threshold: Some(BUDGET), ..Limits::default() };
    let server = bench.start(limits, None, make);
    let mut peer = Peer::new(server.connect());
    let (route, path) =
        (format!("route=/mounted-{number}/*"), format!("path=\"/mounted-{number}/block/7\""));
    peer.get(&format!("/mounted-{number}/block/7?secret=1"));
    bench
        .wait_until("the mount is named while it blocks", || {
            log.lines().iter().any(|line| {
                line.contains("spawn_blocking") && line.contains(&format!("/mounted-{number}/*"))
            })
        })
        .await;
    assert_eq!(log.count(&path), 0, "only the worker knows its request");
    release.send(()).unwrap();
    assert_eq!(peer.reply().await.text(), "blocked");
    peer.get(&format!("/mounted-{number}/other"));
    assert_eq!(peer.reply().await.text(), "done");
    assert_eq!(log.count(&path), 1);
    let line = log.line(&path);
    assert!(line.contains("WARN") && line.contains(&route), "{line}");
    assert!(line.contains("method=\"GET\"") && !line.contains("secret"), "{line}");
    drop(peer);
    server.shut_down();
    server.ended().await;
}

/// Waits for longer than a handler may block.
async fn wait() -> &'static str {
    sleep(BUDGET * 3).await;
    "waited"
}

const BUDGET: Duration = Duration::from_millis(250);

/// The log says what the shutdown waits for, and how to avoid that.
async fn a_shutdown_says_how_many_tasks_it_waits_for<B: Bench>(bench: &B) {
    let log = Log::start();
    // A count that distinguishes the line from those of other servers.
    let tasks = 1000 + number();
    let long = Duration::from_secs(3600);
    let limits =
        Limits { shutdown_timeout: long, background_task_timeout: long, ..Limits::default() };
    let server = bench.start(limits, None, move || {
        App::new().get("/leave", move || {
            for _ in 0..tasks {
                drop(tokio::spawn(std::future::pending::<()>()));
            }
            "left"
        })
    });
    let mut peer = Peer::new(server.connect());
    peer.get("/leave");
    assert_eq!(peer.reply().await.text(), "left");
    server.shut_down();
    let field = format!("tasks={tasks} ");
    bench.wait_until("the log names the tasks", || log.count(&field) == 1).await;
    server.cut();
    assert_eq!(server.ended().await.snapshot.aborted_tasks, tasks);
    let line = log.line(&field);
    assert!(line.contains("waiting for tasks") && line.contains("Shutdown::requested"), "{line}");
}

/// A number that no other test of this process gets.
fn number() -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// A stream produced by a function that never waits.
struct Produced<F>(F);

impl<T, F: FnMut() -> Option<T> + Unpin> Stream for Produced<F> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<T>> {
        Poll::Ready((self.0)())
    }
}

/// The log of all servers in this process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Starts listening, if not yet done.
    fn start() -> Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        let start = || {
            let log = Self::default();
            let writer = log.clone();
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
            log
        };
        LOG.get_or_init(start).clone()
    }

    fn lines(&self) -> Vec<String> {
        let bytes = self.0.lock().unwrap();
        String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()
    }

    fn count(&self, text: &str) -> usize {
        self.lines().iter().filter(|line| line.contains(text)).count()
    }

    fn line(&self, text: &str) -> String {
        let lines = self.lines();
        let mut found = lines.iter().filter(|line| line.contains(text));
        found.next().unwrap_or_else(|| panic!("no `{text}` in {lines:#?}")).clone()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::Write::write(&mut *self.0.lock().unwrap(), bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Names of facilities that tasks have used to the end.
#[derive(Clone, Default)]
struct Done(Arc<Mutex<Vec<&'static str>>>);

impl Done {
    fn lock(&self) -> MutexGuard<'_, Vec<&'static str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn begin<B: Bench>(bench: &B, done: &Done) -> B::Server {
    let done = done.clone();
    bench.start(Limits::default(), None, move || places(&done))
}

fn places(done: &Done) -> App {
    let answer = "it works";
    App::new()
        .state(done.clone())
        .get("/handler/{name}", async move |Path(name): Path<String>| {
            work(&name).await;
            answer
        })
        .scope("/middleware", |scope| scope.wrap(middleware).get("/{name}", move || answer))
        .get("/stream/{name}", async |Path(name): Path<String>| {
            Body::from_stream(Worked(Some(work(&name))))
        })
        .get("/spawned/{name}", async move |Path(name): Path<String>| {
            tokio::spawn(work(&name)).await.expect("the work does not fail");
            answer
        })
        .get("/local/{name}", async move |Path(name): Path<String>| {
            let answer = Rc::new(answer);
            let local = spawn_local(async move {
                work(&name).await;
                answer
            });
            *local.await.expect("the work does not fail")
        })
        .get("/outliving/{name}", async |State(done): State<Done>, Path(name): Path<String>| {
            let (work, name) = (work(&name), facility(&name).name);
            drop(tokio::spawn(async move {
                work.await;
                done.lock().push(name);
            }));
            "later"
        })
        .get("/upgraded/{name}", async |Path(name): Path<String>| upgrade(name))
        .mount(
            "/mounted",
            axum::Router::new().route(
                "/{name}",
                axum::routing::get(
                    async move |axum::extract::Path(name): axum::extract::Path<String>| {
                        work(&name).await;
                        answer
                    },
                ),
            ),
        )
}

async fn middleware(request: Request, next: Next<'_>) -> Response {
    let name = request.path().rsplit('/').next().expect("a path has a last segment").to_owned();
    work(&name).await;
    let response = next.run(request).await;
    work(&name).await;
    response
}

fn upgrade(name: String) -> Response {
    let protocol = UpgradeHandler::new(|mut io| async move {
        work(&name).await;
        io.send(Bytes::from_static(b"it works")).await.expect("the receiver is alive");
    });
    let response = Response::new(http::StatusCode::SWITCHING_PROTOCOLS).with_upgrade(protocol);
    response.with_field(UPGRADE, HeaderValue::from_static("x"))
}

/// A body whose content is known when the work is done.
struct Worked(Option<Work>);

impl Stream for Worked {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(work) = &mut self.0 else { return Poll::Ready(None) };
        std::task::ready!(work.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(Some(Ok(Bytes::from_static(b"it works"))))
    }
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One use of a tokio facility. It panics if the result is wrong.
struct Facility {
    name: &'static str,
    /// Needs only timers, no kernel.
    is_pure: bool,
    work: fn(ThreadId) -> Work,
}

macro_rules! facilities {
    ($($name:ident: $is_pure:expr,)*) => {
        const FACILITIES: &[Facility] = &[$(Facility {
            name: stringify!($name),
            is_pure: $is_pure,
            work: |here| Box::pin($name(here)),
        },)*];
    };
}

facilities! {
    spawned: true,
    spawned_locally: true,
    sleeping: true,
    ticking: true,
    in_time: true,
    channels: true,
    a_mutex: true,
    notified: true,
    selected: true,
    a_join_set: true,
    blocking: false,
    offloaded: false,
    woken_by_a_thread: false,
    over_tcp: false,
    over_a_unix_socket: false,
    over_udp: false,
    with_files: false,
    a_process: false,
}

fn names<B: Bench>(bench: &B) -> impl Iterator<Item = &'static str> {
    let is_virtual = bench.is_virtual();
    let usable = FACILITIES.iter().filter(move |facility| facility.is_pure || !is_virtual);
    usable.map(|facility| facility.name)
}

fn facility(name: &str) -> &'static Facility {
    FACILITIES.iter().find(|facility| facility.name == name).expect("the table has it")
}

/// Uses a facility, and asserts that it stays on the caller's thread.
fn work(name: &str) -> Work {
    let here = thread::current().id();
    let work = (facility(name).work)(here);
    Box::pin(async move {
        work.await;
        stayed(here);
    })
}

#[track_caller]
fn stayed(here: ThreadId) {
    assert_eq!(thread::current().id(), here, "work has moved to another thread");
}

const MOMENT: Duration = Duration::from_millis(3);

async fn spawned(here: ThreadId) {
    let task = tokio::spawn(async move {
        stayed(here);
        tokio::task::yield_now().await;
        stayed(here);
        tokio::spawn(async move { thread::current().id() }).await
    });
    assert_eq!(task.await.unwrap().unwrap(), here);
}

async fn spawned_locally(here: ThreadId) {
    let task = spawn_local(async move {
        let local = Rc::new(RefCell::new(0));
        let other = Rc::clone(&local);
        let inner = spawn_local(async move { *other.borrow_mut() += 7 });
        inner.await.unwrap();
        stayed(here);
        *local.borrow()
    });
    assert_eq!(task.await.unwrap(), 7);
}

async fn sleeping(here: ThreadId) {
    let start = Instant::now();
    sleep(MOMENT).await;
    stayed(here);
    tokio::time::sleep_until(start + MOMENT * 2).await;
    assert!(start.elapsed() >= MOMENT * 2);
}

async fn ticking(here: ThreadId) {
    let start = Instant::now();
    let mut interval = interval(MOMENT);
    for _ in 0..4 {
        interval.tick().await;
        stayed(here);
    }
    assert!(start.elapsed() >= MOMENT * 3);
}

async fn in_time(here: ThreadId) {
    timeout(MOMENT, std::future::pending::<()>()).await.unwrap_err();
    stayed(here);
    assert_eq!(timeout(Duration::from_secs(3600), async { 7 }).await.unwrap(), 7);
}

async fn channels(here: ThreadId) {
    let (sender, mut receiver) = mpsc::channel(1);
    let (announcer, mut listener) = broadcast::channel(8);
    let (answer, answered) = oneshot::channel();
    let sum = tokio::spawn(async move {
        let mut sum = 0;
        while let Some(number) = receiver.recv().await {
            stayed(here);
            sum += number;
        }
        answer.send(sum).unwrap();
        listener.recv().await.unwrap()
    });
    for number in 0..20 {
        // The channel holds one, so the sender waits for the receiver.
        sender.send(number).await.unwrap();
        stayed(here);
    }
    drop(sender);
    assert_eq!(answered.await.unwrap(), 190);
    announcer.send("the end").unwrap();
    assert_eq!(sum.await.unwrap(), "the end");
}

async fn a_mutex(here: ThreadId) {
    let list = Arc::new(tokio::sync::Mutex::new(Vec::new()));
    let tasks = (0..5).map(|number| {
        let list = Arc::clone(&list);
        tokio::spawn(async move {
            let mut list = list.lock().await;
            // The other tasks wait meanwhile.
            tokio::task::yield_now().await;
            stayed(here);
            list.push(number);
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let mut list = list.lock().await.clone();
    list.sort_unstable();
    assert_eq!(list, [0, 1, 2, 3, 4]);
}

async fn notified(here: ThreadId) {
    let (ping, pong) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (task_ping, task_pong) = (Arc::clone(&ping), Arc::clone(&pong));
    let task = tokio::spawn(async move {
        task_ping.notified().await;
        stayed(here);
        task_pong.notify_one();
    });
    ping.notify_one();
    pong.notified().await;
    task.await.unwrap();
}

async fn selected(here: ThreadId) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let task = tokio::spawn(async move {
        for number in 0..3 {
            sleep(MOMENT).await;
            sender.send(number).unwrap();
        }
        // Longer than any test waits.
        sleep(Duration::from_secs(3600)).await;
    });
    let mut numbers = Vec::new();
    let mut late = std::pin::pin!(sleep(Duration::from_secs(1800)));
    while numbers.len() < 3 {
        tokio::select! {
            number = receiver.recv() => numbers.push(number.unwrap()),
            () = &mut late => panic!("the numbers are received first"),
        }
        stayed(here);
    }
    assert_eq!(numbers, [0, 1, 2]);
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
}

async fn a_join_set(here: ThreadId) {
    let mut set = JoinSet::new();
    for number in 0..10_u64 {
        set.spawn(async move {
            sleep(Duration::from_millis(number % 4)).await;
            stayed(here);
            number
        });
        set.spawn_local(async { 1 });
    }
    let mut sum = 0;
    while let Some(number) = set.join_next().await {
        stayed(here);
        sum += number.unwrap();
    }
    assert_eq!(sum, 45 + 10);
}

async fn blocking(here: ThreadId) {
    let elsewhere = task::spawn_blocking(|| {
        thread::sleep(MOMENT);
        thread::current().id()
    });
    assert_ne!(elsewhere.await.unwrap(), here);
}

async fn offloaded(here: ThreadId) {
    assert_ne!(spawn_blocking(|| thread::current().id()).await, here);
}

async fn woken_by_a_thread(here: ThreadId) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let thread = thread::spawn(move || {
        for number in 0..3 {
            thread::sleep(MOMENT);
            sender.send(number).unwrap();
        }
    });
    let mut numbers = Vec::new();
    while let Some(number) = receiver.recv().await {
        stayed(here);
        numbers.push(number);
    }
    assert_eq!(numbers, [0, 1, 2]);
    thread.join().unwrap();
}

/// Echoes everything up to the end.
async fn echo(
    mut socket: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut bytes = [0; 16];
    loop {
        let length = socket.read(&mut bytes).await?;
        if length == 0 {
            return socket.shutdown().await;
        }
        socket.write_all(&bytes[..length]).await?;
    }
}

async fn round_trip(
    mut socket: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    here: ThreadId,
) {
    for round in 0..3_u8 {
        socket.write_all(&[round; 10]).await.unwrap();
        let mut bytes = [0; 10];
        socket.read_exact(&mut bytes).await.unwrap();
        stayed(here);
        assert_eq!(bytes, [round; 10]);
    }
    socket.shutdown().await.unwrap();
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"");
}

async fn over_tcp(here: ThreadId) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { echo(listener.accept().await?.0).await });
    round_trip(tokio::net::TcpStream::connect(address).await.unwrap(), here).await;
    server.await.unwrap().unwrap();
}

#[cfg(unix)]
async fn over_a_unix_socket(here: ThreadId) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("echo.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let server = tokio::spawn(async move { echo(listener.accept().await?.0).await });
    round_trip(tokio::net::UnixStream::connect(path).await.unwrap(), here).await;
    server.await.unwrap().unwrap();
    let (one, other) = tokio::net::UnixStream::pair().unwrap();
    let server = spawn_local(echo(other));
    round_trip(one, here).await;
    server.await.unwrap().unwrap();
}

#[cfg(not(unix))]
async fn over_a_unix_socket(_here: ThreadId) {}

async fn over_udp(here: ThreadId) {
    let bind = || tokio::net::UdpSocket::bind("127.0.0.1:0");
    let (one, other) = (bind().await.unwrap(), bind().await.unwrap());
    let address = other.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let mut bytes = [0; 16];
        let (length, peer) = other.recv_from(&mut bytes).await.unwrap();
        other.send_to(&bytes[..length], peer).await.unwrap();
    });
    one.send_to(b"datagram", address).await.unwrap();
    let mut bytes = [0; 16];
    let length = one.recv(&mut bytes).await.unwrap();
    stayed(here);
    assert_eq!(&bytes[..length], b"datagram");
    server.await.unwrap();
}

async fn with_files(here: ThreadId) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    tokio::fs::write(&path, "written").await.unwrap();
    let mut file = tokio::fs::File::options().append(true).open(&path).await.unwrap();
    file.write_all(b" twice").await.unwrap();
    file.flush().await.unwrap();
    stayed(here);
    assert_eq!(tokio::fs::read_to_string(&path).await.unwrap(), "written twice");
    let mut entries = tokio::fs::read_dir(folder.path()).await.unwrap();
    assert_eq!(entries.next_entry().await.unwrap().unwrap().file_name(), "text");
    tokio::fs::remove_file(&path).await.unwrap();
    assert!(!tokio::fs::try_exists(&path).await.unwrap());
}

#[cfg(unix)]
async fn a_process(here: ThreadId) {
    let output = tokio::process::Command::new("echo").arg("hello").output().await.unwrap();
    stayed(here);
    assert!(output.status.success());
    assert_eq!(output.stdout, b"hello\n");
}

#[cfg(not(unix))]
async fn a_process(_here: ThreadId) {}

/// A broadcast wakes waiting handlers on all workers.
fn what_workers_share_wakes_handlers_of_all_of_them(choice: DriverChoice) {
    const LISTENERS: usize = 32;
    let (sender, _) = broadcast::channel::<u32>(8);
    let threads = Arc::new(Mutex::new(HashSet::new()));
    let make = {
        let (sender, threads) = (sender.clone(), Arc::clone(&threads));
        move || {
            let (sender, threads) = (sender.clone(), Arc::clone(&threads));
            App::new().get("/listen", move || {
                let (mut receiver, threads) = (sender.subscribe(), Arc::clone(&threads));
                async move {
                    let here = thread::current().id();
                    threads.lock().unwrap().insert(here);
                    let heard = receiver.recv().await.unwrap();
                    stayed(here);
                    heard.to_string()
                }
            })
        }
    };
    let workers = NonZeroUsize::new(2).unwrap();
    let server = Server::bind("127.0.0.1:0").driver(choice).workers(workers).quiet();
    let running = match server.start(make) {
        Err(error @ peregrine::Error::Driver { .. }) => return eprintln!("skipped: {error}"),
        running => running.unwrap(),
    };
    let address = running.http_address().unwrap();
    let listen = |_| {
        thread::spawn(move || {
            use std::io::{Read, Write};
            let mut socket = std::net::TcpStream::connect(address).unwrap();
            let request = "GET /listen HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
            socket.write_all(request.as_bytes()).unwrap();
            let mut reply = String::new();
            socket.read_to_string(&mut reply).unwrap();
            reply
        })
    };
    let listeners: Vec<_> = (0..LISTENERS).map(listen).collect();
    while sender.receiver_count() < LISTENERS {
        thread::sleep(MOMENT);
    }
    sender.send(7).unwrap();
    for listener in listeners {
        let reply = listener.join().unwrap();
        assert!(reply.ends_with("\r\n\r\n7"), "{reply}");
    }
    // The kernel distributes connections randomly: all on one worker happens once in two billion
    // runs.
    assert_eq!(threads.lock().unwrap().len(), 2);
    running.graceful_shutdown().unwrap();
}
