//! Calls that are cancelled or slow.

use crate::compare::{Case, same, wait_until};
use peregrine_grpc_tests::messages::{
    Payload, ResponseParameters, SimpleRequest, StreamingInputCallRequest,
    StreamingOutputCallRequest,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::metadata::MetadataMap;

fn set(metadata: &mut MetadataMap, what: &str) {
    metadata.insert("x-do", what.parse().expect("the header value is valid"));
}

/// Asserts that a call still gets a response.
async fn is_well(case: &Case) {
    case.client.unary(SimpleRequest::default()).await.expect("a response");
}

/// Only the order of events is the same everywhere, and the case asserts it.
fn nothing() -> Vec<String> {
    Vec::new()
}

#[test]
fn a_unary_call_that_is_cancelled_is_dropped() {
    same(async |case| {
        let client = case.client.clone();
        let call = tokio::spawn(async move {
            let mut request = Request::new(SimpleRequest::default());
            set(request.metadata_mut(), "wait");
            client.unary(request).await
        });
        wait_until("the call waits", || case.seen.waiting() == 1).await;
        assert_eq!(case.seen.left(), 0);
        call.abort();
        wait_until("the call is dropped", || case.seen.left() == 1).await;
        is_well(&case).await;
        nothing()
    });
}

#[test]
fn a_stream_of_requests_that_is_cancelled_is_dropped() {
    same(async |case| {
        for what in ["wait", "read"] {
            let before = case.seen.left();
            let client = case.client.clone();
            let (sender, receiver) = mpsc::channel::<StreamingInputCallRequest>(1);
            let call = tokio::spawn(async move {
                let mut request = Request::new(ReceiverStream::new(receiver));
                set(request.metadata_mut(), what);
                client.input(request).await
            });
            wait_until("the call waits", || case.seen.waiting() == before + 1).await;
            call.abort();
            wait_until("the call is dropped", || case.seen.left() == before + 1).await;
            drop(sender);
        }
        is_well(&case).await;
        nothing()
    });
}

#[test]
fn a_stream_of_responses_that_is_cancelled_is_dropped() {
    same(async |case| {
        let mut request = Request::new(StreamingOutputCallRequest::default());
        set(request.metadata_mut(), "endless");
        let mut stream =
            case.client.output(request).await.expect("the response begins").into_inner();
        for _ in 0..100 {
            stream.message().await.expect("the call succeeds").expect("a message");
        }
        assert_eq!(case.seen.left(), 0);
        drop(stream);
        wait_until("the stream is dropped", || case.seen.left() == 1).await;
        is_well(&case).await;
        nothing()
    });
}

#[test]
fn the_server_is_notified_of_a_cancelled_call() {
    same(async |case| {
        let (sender, receiver) = mpsc::channel(1);
        let answer = case.client.duplex(Request::new(ReceiverStream::new(receiver))).await;
        let mut stream = answer.expect("the response begins").into_inner();
        let parameters = ResponseParameters { size: 10, interval_us: 0 };
        let request = StreamingOutputCallRequest {
            response_parameters: vec![parameters],
            ..StreamingOutputCallRequest::default()
        };
        sender.send(request).await.expect("the receiver is alive");
        stream.message().await.expect("the call succeeds").expect("a message");
        assert_eq!(case.seen.left(), 0);
        drop((stream, sender));
        wait_until("the conversation is over", || case.seen.left() == 1).await;
        is_well(&case).await;
        nothing()
    });
}

#[test]
fn a_client_that_vanishes_cancels_everything() {
    same(async |case| {
        let Case { client, seen } = case;
        let calls: Vec<_> = (0..10)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move {
                    let mut request = Request::new(SimpleRequest::default());
                    set(request.metadata_mut(), "wait");
                    client.unary(request).await
                })
            })
            .collect();
        wait_until("all calls wait", || seen.waiting() == 10).await;
        drop(client);
        for call in calls {
            call.abort();
        }
        wait_until("all calls are dropped", || seen.left() == 10).await;
        nothing()
    });
}

/// Waits until `count` stops changing, and returns it.
async fn standing(count: impl Fn() -> usize) -> usize {
    let (mut last, mut times) = (usize::MAX, 0);
    while times < 20 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = count();
        times = if now == last { times + 1 } else { 0 };
        last = now;
    }
    last
}

#[test]
fn a_server_makes_no_more_than_its_client_takes() {
    same(async |case| {
        let mut request = Request::new(StreamingOutputCallRequest::default());
        set(request.metadata_mut(), "endless");
        let mut stream =
            case.client.output(request).await.expect("the response begins").into_inner();
        let made = standing(|| case.seen.messages()).await;
        // Windows and buffers are full: some megabytes of messages of 1 kB.
        assert!(made < 16_000, "{made} messages were produced without a reader");
        // Other calls are served meanwhile.
        is_well(&case).await;
        for _ in 0..made + 100 {
            stream.message().await.expect("the call succeeds").expect("a message");
        }
        assert!(case.seen.messages() > made + 100);
        nothing()
    });
}

#[test]
fn a_client_makes_no_more_than_its_server_takes() {
    same(async |case| {
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        let requests = tokio_stream::iter(0_u64..).map(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            StreamingInputCallRequest { payload: Some(Payload::new(1000)) }
        });
        let mut request = Request::new(requests);
        set(request.metadata_mut(), "wait");
        let client = case.client.clone();
        let call = tokio::spawn(async move { client.input(request).await });
        wait_until("the call waits", || case.seen.waiting() == 1).await;
        let made = standing(|| sent.load(Ordering::SeqCst)).await;
        assert!(made < 16_000, "{made} messages were received without a reader");
        call.abort();
        wait_until("the call is dropped", || case.seen.left() == 1).await;
        is_well(&case).await;
        nothing()
    });
}
