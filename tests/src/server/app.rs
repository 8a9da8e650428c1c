//! The application that the cases send requests to.

use bytes::Bytes;
use futures_core::Stream;
use http::header::UPGRADE;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use peregrine::middleware::BodyLimit;
use peregrine::web::connection::ConnectionInfo;
use peregrine::web::extract::{ClientIdentity, Interim, Path, State, TlsInfo};
use peregrine::web::guard::GuardContext;
use peregrine::web::upgrade::UpgradeHandler;
use peregrine::web::{Body, BodyError, HandlerExt, Problem, Response};
use peregrine::{App, Shutdown};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit, watch};

/// State shared by a case and the handlers of its application.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Each permit lets one waiting handler continue.
    gate: Arc<Semaphore>,
    /// Handlers that have started to wait.
    pub started: Arc<Counter>,
    /// Handlers that ran to completion.
    pub finished: Arc<Counter>,
    /// Handlers that were dropped before completion.
    pub dropped: Arc<Counter>,
    /// Endless streams that have started.
    pub endless: Arc<Counter>,
    /// Bytes produced by endless streams.
    pub produced: Arc<Counter>,
    /// Request body bytes read by handlers.
    pub consumed: Arc<Counter>,
}

/// A counter shared by the case and the handlers.
#[derive(Debug, Default)]
pub struct Counter(AtomicUsize);

impl Counter {
    /// The current value.
    #[must_use]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    pub(super) fn add(&self, count: usize) {
        self.0.fetch_add(count, Ordering::SeqCst);
    }
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            gate: Arc::new(Semaphore::new(0)),
            started: Arc::default(),
            finished: Arc::default(),
            dropped: Arc::default(),
            endless: Arc::default(),
            produced: Arc::default(),
            consumed: Arc::default(),
        }
    }
}

impl Shared {
    /// Lets `count` handlers continue that wait now or later.
    pub fn open(&self, count: usize) {
        self.gate.add_permits(count);
    }

    /// Waits until the case opens the gate, and counts how the wait ends.
    pub(super) async fn wait(&self) {
        let watch = self.begin();
        self.pass().await;
        watch.finish();
    }

    /// Waits until the case opens the gate.
    pub(super) async fn pass(&self) {
        self.gate.acquire().await.expect("the semaphore is never closed").forget();
    }

    /// Counts a start now, and a completion or a drop later.
    pub(super) fn begin(&self) -> Watch {
        self.started.add(1);
        Watch { shared: self.clone(), finished: false }
    }

    /// Like `wait`, but blocks the thread, for at most `longest`.
    fn block(&self, max_duration: Duration) {
        let watch = self.begin();
        let start = Instant::now();
        while start.elapsed() < max_duration
            && self.gate.try_acquire().map(SemaphorePermit::forget).is_err()
        {
            std::thread::sleep(Duration::from_millis(2));
        }
        watch.finish();
    }

    /// A function that creates the application.
    pub fn app(&self) -> impl Fn() -> App + Clone + Send + 'static {
        let shared = self.clone();
        move || app(&shared)
    }
}

/// Counts whether it is dropped before completion.
pub(super) struct Watch {
    shared: Shared,
    finished: bool,
}

impl Watch {
    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(super) fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let count = if self.finished { &self.shared.finished } else { &self.shared.dropped };
        count.add(1);
    }
}

fn app(shared: &Shared) -> App {
    let app = App::new()
        .state(shared.clone())
        .get("/hello", || "hello")
        .get("/host", async |fields: HeaderMap| fields["host"].to_str().unwrap_or("?").to_owned())
        .get("/numbers/{number}", async |Path(number): Path<u32>| number.to_string())
        .get("/wait", wait)
        .get("/hold", async |State(shared): State<Shared>, body: Body| {
            let _watch = Watch { shared: shared.clone(), finished: false };
            shared.started.add(1);
            std::future::pending::<()>().await;
            body
        })
        .get("/wait-to-end", wait.run_to_completion())
        .get("/wait-a-moment", wait.timeout(Duration::from_millis(500)))
        .get("/sleep/{milliseconds}", sleep)
        .get("/block/{milliseconds}", async |Path(milliseconds): Path<u64>| {
            std::thread::sleep(Duration::from_millis(milliseconds));
            "blocked"
        })
        .get("/panic", || -> &'static str { panic!("on purpose") })
        .get("/panic-late", panic_late)
        .any(
            "/panic-guard",
            (|| "unseen").guard(|_: &GuardContext<'_>| -> bool { panic!("on purpose") }),
        )
        .get("/connection", connection)
        .get("/tls", async |tls: TlsInfo| format!("{} {}", tls.version, tls.resumed))
        .get("/client", async |client: Option<ClientIdentity>| {
            client.map_or("nobody".to_owned(), |client| client.subject)
        })
        .get("/client/required", async |client: ClientIdentity| client.dns_names.join(" "))
        .get("/empty", || StatusCode::NO_CONTENT)
        .get("/close", || ([("connection", "close")], "bye"));
    let app = super::websockets::websocket_handlers(super::events::event_handlers(
        super::late_bodies::late_body_handlers(app),
    ));
    let app = super::shared::shared_content_handlers(app);
    super::failing::failing_handlers(uploads(downloads(detached_work(tokio_users(app)))))
}

async fn wait(State(shared): State<Shared>) -> &'static str {
    shared.wait().await;
    "waited"
}

/// Sends interim responses before its response, and lets a task send more.
async fn hints(interim: Interim, State(shared): State<Shared>) -> String {
    let mut fields = HeaderMap::new();
    // A connection field, which the server must not forward.
    fields.insert("content-length", HeaderValue::from_static("7"));
    fields.insert("x-progress", HeaderValue::from_static("1 of 2"));
    interim
        .early_hints(["</a.css>; rel=preload", "</b.js>; rel=preload"])
        .expect("no response was sent yet");
    interim.send(StatusCode::PROCESSING, fields).expect("the buffer has room");
    let invalid_status = interim.send(StatusCode::OK, HeaderMap::new());
    shared.pass().await;
    let task_shared = shared.clone();
    let task = tokio::task::spawn_local(async move {
        interim.send(StatusCode::PROCESSING, HeaderMap::new()).expect("the buffer has room");
        task_shared.pass().await;
        for _ in 0..8 {
            interim.send(StatusCode::PROCESSING, HeaderMap::new()).expect("the buffer has room");
        }
        interim.send(StatusCode::PROCESSING, HeaderMap::new())
    });
    let buffer_full = task.await.expect("the task does not panic");
    format!("{invalid_status:?}, {buffer_full:?}")
}

async fn sleep(Path(milliseconds): Path<u64>) -> String {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
    format!("slept {milliseconds}")
}

async fn panic_late() -> &'static str {
    tokio::time::sleep(Duration::from_millis(5)).await;
    panic!("on purpose")
}

async fn connection(connection: Rc<ConnectionInfo>) -> String {
    format!("{} {}", connection.peer, connection.tls.is_some())
}

/// Handlers that use the tokio runtime they run in.
fn tokio_users(app: App) -> App {
    app.get("/spawn", async || {
        let task = tokio::spawn(async {
            tokio::task::yield_now().await;
            "spawned"
        });
        task.await.expect("the task does not panic")
    })
    .get("/spawn-many", async || {
        let sleeping = |number: u64| async move {
            tokio::time::sleep(Duration::from_millis(number % 5)).await;
            number
        };
        let tasks: Vec<_> = (0..100).map(|number| tokio::spawn(sleeping(number))).collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await.expect("the task does not panic");
        }
        sum.to_string()
    })
    .get("/spawn-blocking", async || {
        let task = tokio::task::spawn_blocking(|| "worked");
        task.await.expect("the task does not panic")
    })
    .get("/tcp", async || tcp_round_trip().await.expect("loopback works"))
}

/// State held by all handlers of the application. Dropping it notifies the application's tasks.
#[derive(Clone)]
struct Pool(Arc<watch::Sender<()>>);

/// Handlers that leave work behind. Each piece of work counts its start and its end.
fn detached_work(app: App) -> App {
    app.state(Pool(Arc::new(watch::Sender::new(()))))
        .get("/leave-task", async |State(shared): State<Shared>| {
            drop(tokio::spawn(async move { shared.wait().await }));
            "left"
        })
        .get("/leave-local-task", async |State(shared): State<Shared>| {
            let shared = Rc::new(shared);
            drop(tokio::task::spawn_local(async move { shared.wait().await }));
            "left"
        })
        .get("/leave-short-task", async |State(shared): State<Shared>| {
            drop(tokio::spawn(async move {
                let watch = shared.begin();
                tokio::time::sleep(Duration::from_millis(400)).await;
                watch.finish();
            }));
            "left"
        })
        .get("/leave-pool", async |State(shared): State<Shared>, State(pool): State<Pool>| {
            let mut receiver = pool.0.subscribe();
            drop(tokio::spawn(async move {
                let watch = shared.begin();
                while receiver.changed().await.is_ok() {}
                watch.finish();
            }));
            "left"
        })
        .get("/leave-obedient", async |State(shared): State<Shared>| {
            let shutdown = Shutdown::current();
            drop(tokio::spawn(async move {
                let watch = shared.begin();
                shutdown.requested().await;
                assert!(shutdown.is_requested() && Shutdown::current().is_requested());
                watch.finish();
            }));
            "left"
        })
        .get("/leave-function/{milliseconds}", async |State(shared): State<Shared>, Path(time)| {
            drop(tokio::task::spawn_blocking(move || shared.block(Duration::from_millis(time))));
            "left"
        })
        .get("/offload", async |State(shared): State<Shared>| {
            peregrine::spawn_blocking(move || shared.block(Duration::MAX)).await;
            "offloaded"
        })
        .get("/offload-panic", async || -> &'static str {
            peregrine::spawn_blocking(|| std::panic::resume_unwind(Box::new("on purpose"))).await
        })
        .get("/stream-to-the-end", async |State(shared): State<Shared>| {
            let shutdown = Shutdown::current();
            let mut shutdown_requested = Box::pin(async move { shutdown.requested().await });
            let mut watch = Some(shared.begin());
            stream(move |cx| match watch.take() {
                None => Poll::Ready(None),
                Some(open) if shutdown_requested.as_mut().poll(cx).is_pending() => {
                    watch = Some(open);
                    Poll::Pending
                }
                Some(open) => {
                    open.finish();
                    Poll::Ready(Some(Ok(Bytes::from_static(b"goodbye"))))
                }
            })
        })
}

/// A round trip through tokio's own sockets within one handler.
async fn tcp_round_trip() -> io::Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let echo = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await?;
        let mut bytes = [0; 5];
        socket.read_exact(&mut bytes).await?;
        socket.write_all(&bytes).await
    });
    let mut socket = tokio::net::TcpStream::connect(address).await?;
    socket.write_all(b"round").await?;
    let mut text = String::new();
    socket.read_to_string(&mut text).await?;
    echo.await??;
    Ok(text)
}

/// Handlers that read request bodies, or leave them unread.
fn uploads(app: App) -> App {
    let echo = async |body: Bytes| body;
    app.post("/echo", echo)
        .scope("/lowered", |scope| {
            let scope = scope.wrap(BodyLimit::new(50)).post("/", echo);
            scope.post("/tight", echo.body_limit(10)).post("/wide", echo.body_limit(300))
        })
        .scope("/raised", |scope| {
            let scope = scope.wrap(BodyLimit::new(200)).post("/", echo);
            scope.post("/tight", echo.body_limit(10))
        })
        .post("/echo-limited", (async |body: Bytes| body).body_limit(1000))
        .post("/echo-large", (async |body: Bytes| body).body_limit(64 << 20))
        .post("/echo-stream", async |body: Body| body)
        .post("/echo-slowly", echo_slowly.body_limit(64 << 20))
        .post("/ignore", || "ignored")
        .post("/ignore-after-wait", wait)
        .get("/hints", hints)
        .post("/read-after-wait", read_after_wait)
        .post("/sip", read_first_piece_early)
        .post("/count", count.body_limit(u64::MAX))
        .post("/trailers", trailers)
        .get("/upgrade", upgrade)
        .get("/upgrade-greeting", greeting)
        .get("/upgrade-guarded", guarded_echo)
        .get("/upgrade-handed-on", handed_off)
        .get("/upgrade-panic", || {
            let panics = UpgradeHandler::new(|mut io| async move {
                let _ = io.recv().await;
                panic!("on purpose")
            });
            Response::new(StatusCode::SWITCHING_PROTOCOLS).with_upgrade(panics)
        })
}

async fn read_after_wait(State(shared): State<Shared>, body: Bytes) -> Bytes {
    shared.wait().await;
    body
}

/// Pauses between the pieces.
async fn echo_slowly(State(shared): State<Shared>, mut body: Body) -> Result<Vec<u8>, Problem> {
    let mut all = Vec::new();
    while let Some(piece) = body.next().await {
        all.extend_from_slice(&piece?);
        shared.consumed.add(1);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(all)
}

/// Reads one piece of a body, waits, and reads the rest.
async fn read_first_piece_early(
    State(shared): State<Shared>,
    mut body: Body,
) -> Result<String, Problem> {
    let mut count = match body.next().await {
        Some(piece) => piece?.len(),
        None => 0,
    };
    shared.wait().await;
    while let Some(piece) = body.next().await {
        count += piece?.len();
    }
    Ok(count.to_string())
}

/// A body of known length with trailers.
struct WithTrailers(Option<Bytes>, Option<HeaderMap>);

impl http_body::Body for WithTrailers {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let data = self.0.take().map(Frame::data);
        Poll::Ready(data.or_else(|| self.1.take().map(Frame::trailers)).map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none() && self.1.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |data| data.len() as u64))
    }
}

/// A body that would yield more data if polled after its trailers.
struct DataAfterTrailers(u32);

impl http_body::Body for DataAfterTrailers {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0 += 1;
        Poll::Ready(Some(Ok(match self.0 {
            1 => Frame::data(Bytes::from_static(b"hello")),
            2 => Frame::trailers(checksum()),
            _ => Frame::data(Bytes::from_static(b"more")),
        })))
    }
}

fn checksum() -> HeaderMap {
    HeaderMap::from_iter([("x-checksum".parse().expect("a name"), HeaderValue::from_static("abc"))])
}

/// A body of unknown length.
struct Unsized(Body);

impl http_body::Body for Unsized {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }
}

fn with_trailers(data: &'static str) -> Body {
    let data = Some(Bytes::from_static(data.as_bytes())).filter(|data| !data.is_empty());
    Body::new(WithTrailers(data, Some(checksum())))
}

/// Counts the bytes of a body as they arrive.
async fn count(State(shared): State<Shared>, mut body: Body) -> Result<String, Problem> {
    let watch = shared.begin();
    let mut count = 0;
    while let Some(piece) = body.next().await {
        let piece = piece?;
        count += piece.len();
        shared.consumed.add(piece.len());
    }
    watch.finish();
    Ok(count.to_string())
}

async fn trailers(mut body: Body) -> Result<String, Problem> {
    let (mut length, mut trailers) = (0, HeaderMap::new());
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        match frame?.into_data() {
            Ok(data) => length += data.len(),
            Err(frame) => trailers.extend(frame.into_trailers().unwrap_or_default()),
        }
    }
    let checksum = trailers.get("x-checksum").and_then(|value| value.to_str().ok());
    Ok(format!("{length} {}", checksum.unwrap_or("none")))
}

fn upgrade() -> Response {
    let echo = UpgradeHandler::new(|mut io| async move {
        while let Ok(Some(bytes)) = io.recv().await {
            if io.send(bytes).await.is_err() {
                return;
            }
        }
    });
    let response = Response::new(StatusCode::SWITCHING_PROTOCOLS).with_upgrade(echo);
    response.with_field(UPGRADE, HeaderValue::from_static("echo"))
}

/// An echo that counts whether it completed.
fn guarded_echo(State(shared): State<Shared>) -> Response {
    let echo = UpgradeHandler::new(|mut io| async move {
        let watch = Watch { shared, finished: false };
        while let Ok(Some(bytes)) = io.recv().await {
            if io.send(bytes).await.is_err() {
                return;
            }
        }
        watch.finish();
    });
    Response::new(StatusCode::SWITCHING_PROTOCOLS).with_upgrade(echo)
}

/// A protocol whose handler returns at once and passes the connection to a task that keeps reading.
/// The task finishes when it sees the end of the connection.
fn handed_off(State(shared): State<Shared>) -> Response {
    let hand_off = UpgradeHandler::new(|mut io| async move {
        let watch = Watch { shared, finished: false };
        tokio::task::spawn_local(async move {
            while let Ok(Some(_)) = io.recv().await {}
            watch.finish();
        });
    });
    Response::new(StatusCode::SWITCHING_PROTOCOLS).with_upgrade(hand_off)
}

/// The server sends first, and is the one to end the connection.
fn greeting() -> Response {
    let protocol = UpgradeHandler::new(|mut io| async move {
        let _ = io.send(Bytes::from_static(b"welcome\n")).await;
        if let Ok(Some(name)) = io.recv().await {
            let _ = io.send(name).await;
        }
    });
    let response = Response::new(StatusCode::SWITCHING_PROTOCOLS).with_upgrade(protocol);
    response.with_field(UPGRADE, HeaderValue::from_static("greeting"))
}

/// A stream produced by a function.
struct Produced<F>(F);

impl<T, F> Stream for Produced<F>
where
    F: FnMut(&mut Context<'_>) -> Poll<Option<T>> + Unpin,
{
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        (self.0)(cx)
    }
}

pub(super) fn produced<T, F>(next: F) -> impl Stream<Item = T>
where
    F: FnMut(&mut Context<'_>) -> Poll<Option<T>> + Unpin,
{
    Produced(next)
}

pub(super) fn stream<F>(next: F) -> Body
where
    F: FnMut(&mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> + Unpin + 'static,
{
    Body::from_stream(Produced(next))
}

/// Sends an endless response, while a task reads the body once the case allows it.
async fn read_later(State(shared): State<Shared>, mut body: Body) -> Body {
    tokio::task::spawn_local(async move {
        let watch = shared.begin();
        shared.pass().await;
        while let Some(Ok(_)) = body.next().await {}
        watch.finish();
        // A task may keep the body after reading its end.
        std::future::pending::<()>().await;
    });
    stream(|_| Poll::Pending)
}

/// Handlers whose responses are streams.
fn downloads(app: App) -> App {
    app.get("/stream/{pieces}", async |Path(pieces): Path<u32>| pieces_of(pieces))
        .get("/pieces/{pieces}/{bytes}", async |Path((pieces, bytes)): Path<(u32, usize)>| {
            let (piece, mut remaining) = (Bytes::from(pattern(bytes)), 0..pieces);
            stream(move |_| Poll::Ready(remaining.next().map(|_| Ok(piece.clone()))))
        })
        .get("/large/{bytes}", async |Path(bytes): Path<usize>| pattern(bytes))
        .get("/slow/{pieces}", async |Path(pieces): Path<u32>| slow(pieces))
        .get("/slow-of-known-length/{pieces}", async |Path(pieces): Path<u32>| {
            let length = (0..pieces).map(|number| format!("piece {number}\n").len() as u64).sum();
            Body::new(Measured { body: slow(pieces), length })
        })
        .get("/gated/{pieces}", gated)
        .post("/read-later", read_later)
        .get("/endless", endless)
        .get("/endless-nothing", endless_nothing)
        .get("/endless-large/{bytes}", async |Path(bytes): Path<usize>| {
            stream(move |_| Poll::Ready(Some(Ok(pattern(bytes).into()))))
        })
        .get("/trailers", || with_trailers("hello"))
        .get("/trailers-only", || with_trailers(""))
        .get("/more-after-trailers", || Body::new(DataAfterTrailers(0)))
        .get("/stream-with-trailers", || Body::new(Unsized(with_trailers("streamed"))))
        .get("/broken", || {
            let mut remaining = 2;
            stream(move |_| {
                remaining -= 1;
                Poll::Ready(Some(match remaining {
                    0.. => Ok(Bytes::from_static(b"a piece\n")),
                    _ => Err(io::Error::other("on purpose")),
                }))
            })
        })
}

fn pieces_of(pieces: u32) -> Body {
    let mut numbers = 0..pieces;
    stream(move |_| {
        Poll::Ready(numbers.next().map(|number| Ok(format!("piece {number}\n").into())))
    })
}

/// Bytes that differ by position, up to a period after which they repeat, because some tests ask
/// for gigabytes. The period is a prime, so that it divides no buffer size.
#[must_use]
pub fn pattern(count: usize) -> Vec<u8> {
    static PERIOD: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        (0..65_521).map(|_| next()).collect()
    });
    let mut bytes = Vec::with_capacity(count);
    while bytes.len() < count {
        let more = PERIOD.len().min(count - bytes.len());
        bytes.extend_from_slice(&PERIOD[..more]);
    }
    bytes
}

/// One piece every 50 ms.
fn slow(pieces: u32) -> Body {
    let mut numbers = 0..pieces;
    let mut pause = Box::pin(tokio::time::sleep(Duration::from_millis(50)));
    stream(move |cx| {
        if pause.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        pause = Box::pin(tokio::time::sleep(Duration::from_millis(50)));
        Poll::Ready(numbers.next().map(|number| Ok(format!("piece {number}\n").into())))
    })
}

/// A body that knows its length.
struct Measured {
    body: Body,
    length: u64,
}

impl http_body::Body for Measured {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.length -= frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        polled
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length)
    }
}

/// One piece per permit of the case. Its first poll counts as a start, its drop as an end.
fn gated(State(shared): State<Shared>, Path(pieces): Path<u32>) -> Body {
    let mut numbers = 0..pieces;
    let mut watch = None;
    let mut permit: Option<Pin<Box<dyn Future<Output = ()>>>> = None;
    stream(move |cx| {
        if watch.is_none() {
            shared.started.add(1);
            watch = Some(Watch { shared: shared.clone(), finished: false });
        }
        if numbers.is_empty() {
            if let Some(watch) = watch.take() {
                watch.finish();
            }
            return Poll::Ready(None);
        }
        let gate = Arc::clone(&shared.gate);
        let waiting = permit.get_or_insert_with(|| {
            Box::pin(async move {
                gate.acquire_owned().await.expect("the semaphore is never closed").forget();
            })
        });
        if waiting.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        permit = None;
        Poll::Ready(numbers.next().map(|number| Ok(format!("piece {number}\n").into())))
    })
}

/// A stream that is always ready but yields only empty pieces.
async fn endless_nothing(State(shared): State<Shared>) -> Body {
    let watch = shared.begin();
    stream(move |_| {
        let _ = &watch;
        Poll::Ready(Some(Ok(Bytes::new())))
    })
}

async fn endless(State(shared): State<Shared>) -> Body {
    let piece = Bytes::from(pattern(1000));
    shared.endless.add(1);
    let watch = Watch { shared: shared.clone(), finished: false };
    stream(move |_| {
        watch.shared.produced.add(piece.len());
        Poll::Ready(Some(Ok(piece.clone())))
    })
}
