//! Other routes on the same port, and commonly mounted services.

use crate::compare::{DRIVERS, Summary, http1_client, in_runtime, same, wait_until};
use peregrine::tower::tower;
use peregrine::{App, Http2Limits, Limits};
use peregrine_grpc_tests::client::Client;
use peregrine_grpc_tests::messages::{
    Payload, ResponseParameters, SimpleRequest, StreamingInputCallRequest,
    StreamingOutputCallRequest,
};
use peregrine_grpc_tests::serve::{Ours, Theirs, channel, routes};
use peregrine_grpc_tests::service::TestService;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

async fn health_and_reflection(channel: Channel) -> Summary {
    let mut health = HealthClient::new(channel.clone());
    let mut answers = Summary::new();
    for service in ["", "test", "nothing"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let answer = health.check(request.clone()).await.map(tonic::Response::into_inner);
        answers.push(format!("{:?}", answer.map_err(|status| status.code())));
        answers.push(match health.watch(request).await {
            Ok(watched) => {
                let first = watched.into_inner().message().await;
                format!("{:?}", first.map_err(|status| status.code()))
            }
            Err(status) => format!("{:?}", status.code()),
        });
    }
    let mut reflection = ServerReflectionClient::new(channel);
    let requests = [
        MessageRequest::ListServices(String::new()),
        MessageRequest::FileContainingSymbol("grpc.health.v1.Health".to_owned()),
        MessageRequest::FileContainingSymbol("no.such.Thing".to_owned()),
    ];
    let requests = requests.map(|message_request| ServerReflectionRequest {
        message_request: Some(message_request),
        ..ServerReflectionRequest::default()
    });
    let requests = tokio_stream::iter(requests);
    let stream = reflection.server_reflection_info(requests).await.expect("the response begins");
    let mut stream = stream.into_inner();
    while let Some(answer) = stream.next().await {
        answers.push(match answer.map(|answer| answer.message_response) {
            Ok(Some(MessageResponse::ListServicesResponse(list))) => {
                let mut names: Vec<_> = list.service.into_iter().map(|one| one.name).collect();
                names.sort();
                format!("{names:?}")
            }
            Ok(Some(MessageResponse::FileDescriptorResponse(files))) => {
                format!("{} files", files.file_descriptor_proto.len())
            }
            Ok(other) => format!("{other:?}"),
            Err(status) => format!("{:?}", status.code()),
        });
    }
    answers
}

#[test]
fn health_and_reflection_are_answered() {
    in_runtime(async {
        let theirs = Theirs::start().await;
        let expected = health_and_reflection(channel(theirs.address()).await).await;
        assert!(expected.len() > 6, "{expected:?}");
        for driver in DRIVERS {
            let Some(ours) = Ours::start(driver, Limits::default()) else { continue };
            assert_eq!(health_and_reflection(ours.plain().await).await, expected);
            assert_eq!(health_and_reflection(ours.secure().await).await, expected);
        }
    });
}

/// Our own routes and an axum router share the port, also over HTTP/1.1.
#[test]
fn all_share_one_port() {
    in_runtime(async {
        for driver in DRIVERS {
            let Some(ours) = Ours::start(driver, Limits::default()) else { continue };
            let client = http1_client();
            let call = Client::new(ours.plain().await);
            for (path, text) in [("/hello", "hello"), ("/axum/hello", "hello from axum")] {
                let url = format!("http://{}{path}", ours.address());
                let answer = client.get(url).send().await.expect("a response");
                assert_eq!(answer.text().await.expect("a text"), text);
                call.unary(SimpleRequest::default()).await.expect("a response");
            }
        }
    });
}

fn word() -> StreamingOutputCallRequest {
    let parameters = ResponseParameters { size: 4, interval_us: 0 };
    StreamingOutputCallRequest {
        response_parameters: vec![parameters],
        ..StreamingOutputCallRequest::default()
    }
}

/// A client may be silent for much longer than an upload may, even if its service has not begun to
/// respond.
#[test]
fn a_client_may_be_silent_in_a_call() {
    in_runtime(async {
        let slack = Duration::from_millis(300);
        let http2 = Http2Limits { keep_alive_interval: Some(slack), ..Http2Limits::default() };
        let limits = Limits { transfer_rate_grace: slack, http2, ..Limits::default() };
        for driver in DRIVERS {
            let Some(ours) = Ours::start(driver, limits.clone()) else { continue };
            let client = Client::new(ours.plain().await);
            let (sender, receiver) = mpsc::channel(1);
            let both = client.duplex(Request::new(ReceiverStream::new(receiver))).await;
            let mut both = both.expect("the response begins").into_inner();
            let (requests, receiver) = mpsc::channel(1);
            let of_client = client.clone();
            let input = tokio::spawn(async move {
                of_client.input(Request::new(ReceiverStream::new(receiver))).await
            });
            for _ in 0..3 {
                sender.send(word()).await.expect("the receiver is alive");
                both.message().await.expect("the call succeeds").expect("a message");
                let payload = Some(Payload::new(4));
                let request = StreamingInputCallRequest { payload };
                requests.send(request).await.expect("the receiver is alive");
                tokio::time::sleep(slack * 4).await;
            }
            drop((sender, requests));
            assert_eq!(both.message().await.expect("the call succeeds"), None);
            let answer = input.await.expect("the task does not panic").expect("a response");
            assert_eq!(answer.get_ref().aggregated_payload_size, 12);
        }
    });
}

/// A drain lets calls complete, and accepts no more calls on that connection.
#[test]
fn a_drain_finishes_calls() {
    in_runtime(async {
        for driver in DRIVERS {
            let Some(ours) = Ours::start(driver, Limits::default()) else { continue };
            let client = Client::new(ours.plain().await);
            let (sender, receiver) = mpsc::channel(1);
            let both = client.duplex(Request::new(ReceiverStream::new(receiver))).await;
            let mut both = both.expect("the response begins").into_inner();
            ours.order();
            for _ in 0..3 {
                sender.send(word()).await.expect("the receiver is alive");
                both.message().await.expect("the call succeeds").expect("a message");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            drop(sender);
            assert_eq!(both.message().await.expect("the call succeeds"), None);
            assert!(both.trailers().await.expect("the call succeeds").is_some());
            tokio::task::spawn_blocking(|| ours.end())
                .await
                .expect("the server shuts down cleanly");
        }
    });
}

/// The server enforces a call's deadline itself, whatever the client does.
#[test]
fn a_server_keeps_a_call_s_deadline() {
    in_runtime(async {
        for driver in DRIVERS {
            let Some(ours) = Ours::start(driver, Limits::default()) else { continue };
            // This client does not know about deadlines.
            let url = format!("http://{}/grpc.testing.TestService/UnaryCall", ours.address());
            let call = http1_client().post(url).header("content-type", "application/grpc");
            let call = call.header("grpc-timeout", "200m").header("x-do", "wait");
            let answer = call.body(vec![0; 5]).send().await.expect("a response");
            assert_eq!(answer.status(), 200);
            assert_eq!(answer.headers()["content-type"], "application/grpc");
            assert_eq!(answer.headers()["grpc-status"], "4");
            wait_until("the call is dropped", || ours.seen.left() == 1).await;
        }
    });
}

/// A limit of the mount is reported as a gRPC status.
#[test]
fn a_body_limit_ends_its_call_only() {
    in_runtime(async {
        for driver in DRIVERS {
            let routes = routes(TestService::default());
            let make = move || App::new().subtree("/", tower(routes.clone()).body_limit(1000));
            let Some(ours) = Ours::with(driver, Limits::default(), make) else { continue };
            let client = Client::new(ours.plain().await);
            let payload = Some(Payload::new(100_000));
            let request = SimpleRequest { payload, ..SimpleRequest::default() };
            client.unary(request).await.expect_err("the message is too large");
            client.unary(SimpleRequest::default()).await.expect("a response");
        }
    });
}

/// Thousands of calls on one connection leak nothing.
#[test]
fn a_connection_takes_thousands_of_calls() {
    same(async |case| {
        let calls: Vec<_> = (0..32)
            .map(|_| {
                let client = case.client.clone();
                tokio::spawn(async move {
                    for _ in 0..150 {
                        client.unary(SimpleRequest::default()).await.expect("a response");
                    }
                })
            })
            .collect();
        for call in calls {
            call.await.expect("every call gets a response");
        }
        Summary::new()
    });
}
