//! Calls that complete.

use crate::compare::{Summary, same};
use peregrine_grpc_tests::messages::{
    EchoStatus, Payload, ResponseParameters, SimpleRequest, StreamingInputCallRequest,
    StreamingOutputCallRequest, StreamingOutputCallResponse,
};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::CompressionEncoding;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Request, Response, Status, Streaming};

/// The sizes used by the interoperability tests.
const REQUESTS: [usize; 4] = [27_182, 8, 1828, 45_904];
const RESPONSES: [i32; 4] = [31_415, 9, 2653, 58_979];

/// A summary of a payload, without its bytes.
fn summarize(payload: Option<&Payload>) -> String {
    match payload {
        Some(payload) if *payload == Payload::new(payload.body.len()) => {
            format!("{} bytes", payload.body.len())
        }
        Some(payload) => format!("{} other bytes", payload.body.len()),
        None => "nothing".to_owned(),
    }
}

/// A summary of the metadata, except those that differ between any two servers.
fn summarize_metadata(metadata: &MetadataMap) -> String {
    let mut all: Vec<_> = metadata.clone().into_headers().into_iter().collect();
    all.retain(|(name, _)| name.as_ref().is_some_and(|name| name != "date"));
    all.sort_by_key(|(name, _)| name.as_ref().map(ToString::to_string));
    format!("{all:?}")
}

fn summarize_status(status: &Status) -> String {
    format!("{:?} {:?} {}", status.code(), status.message(), summarize_metadata(status.metadata()))
}

fn simple(request: usize, response: i32) -> SimpleRequest {
    let payload = Some(Payload::new(request));
    SimpleRequest { payload, response_size: response, ..SimpleRequest::default() }
}

fn outputs(sizes: &[i32]) -> StreamingOutputCallRequest {
    let parameters = sizes.iter().map(|size| ResponseParameters { size: *size, interval_us: 0 });
    StreamingOutputCallRequest {
        response_parameters: parameters.collect(),
        ..StreamingOutputCallRequest::default()
    }
}

fn echo(code: Code, message: &str) -> Option<EchoStatus> {
    Some(EchoStatus { code: code as i32, message: message.to_owned() })
}

/// Everything received on a stream: messages, how it ends, and its trailers.
async fn all(
    response: Result<Response<Streaming<StreamingOutputCallResponse>>, Status>,
) -> Summary {
    let (metadata, mut stream, _) = match response {
        Ok(response) => response.into_parts(),
        Err(status) => return vec![summarize_status(&status)],
    };
    let mut all = vec![summarize_metadata(&metadata)];
    loop {
        match stream.message().await {
            Ok(Some(message)) => all.push(summarize(message.payload.as_ref())),
            Ok(None) => break,
            Err(status) => {
                all.push(summarize_status(&status));
                break;
            }
        }
    }
    match stream.trailers().await {
        Ok(trailers) => all.extend(trailers.as_ref().map(summarize_metadata)),
        Err(status) => all.push(summarize_status(&status)),
    }
    all
}

#[test]
fn unary_calls_are_answered() {
    same(async |case| {
        let mut answers = Summary::new();
        for (request, response) in [(0, 0), (1, 1), (271_828, 314_159), (100, 1_000_000)] {
            let answer = case.client.unary(simple(request, response)).await.expect("a response");
            answers.push(summarize_metadata(answer.metadata()));
            answers.push(summarize(answer.get_ref().payload.as_ref()));
        }
        answers.push(format!("{:?}", case.client.empty("EmptyCall").await.is_ok()));
        answers
    });
}

#[test]
fn many_calls_at_a_time_are_answered() {
    same(async |case| {
        // More than the stream limit of a connection.
        let calls: Vec<_> = (0..400)
            .map(|number| {
                let client = case.client.clone();
                tokio::spawn(async move { client.unary(simple(100, number)).await })
            })
            .collect();
        let mut answers = Summary::new();
        for call in calls {
            let answer = call.await.expect("the task does not panic").expect("a response");
            answers.push(summarize(answer.get_ref().payload.as_ref()));
        }
        answers
    });
}

#[test]
fn a_client_may_stream() {
    same(async |case| {
        let requests =
            REQUESTS.map(|size| StreamingInputCallRequest { payload: Some(Payload::new(size)) });
        let mut answers = Summary::new();
        for requests in [&requests[..], &requests[..1], &[]] {
            let request = Request::new(tokio_stream::iter(requests.to_vec()));
            let answer = case.client.input(request).await.expect("a response");
            answers.push(answer.get_ref().aggregated_payload_size.to_string());
        }
        answers
    });
}

#[test]
fn a_server_may_stream() {
    same(async |case| {
        let mut answers = all(case.client.output(outputs(&RESPONSES)).await).await;
        answers.extend(all(case.client.output(outputs(&[])).await).await);
        let mut paused = outputs(&RESPONSES);
        for parameters in &mut paused.response_parameters {
            parameters.interval_us = 20_000;
        }
        answers.extend(all(case.client.output(paused).await).await);
        answers
    });
}

#[test]
fn both_may_stream_by_turns() {
    same(async |case| {
        let (sender, receiver) = mpsc::channel(1);
        let answer = case.client.duplex(Request::new(ReceiverStream::new(receiver))).await;
        let (metadata, mut stream, _) =
            answer.expect("the response begins before the request ends").into_parts();
        let mut answers = vec![summarize_metadata(&metadata)];
        for (request, response) in REQUESTS.into_iter().zip(RESPONSES) {
            let mut request_of_one = outputs(&[response]);
            request_of_one.payload = Some(Payload::new(request));
            sender.send(request_of_one).await.expect("the receiver is alive");
            let message = stream.message().await.expect("the call succeeds").expect("a message");
            answers.push(summarize(message.payload.as_ref()));
        }
        // The client ends its half, and the server sends the rest.
        sender.send(outputs(&RESPONSES)).await.expect("the receiver is alive");
        drop(sender);
        while let Some(message) = stream.message().await.expect("the call succeeds") {
            answers.push(summarize(message.payload.as_ref()));
        }
        answers
    });
}

#[test]
fn both_may_stream_at_a_time() {
    same(async |case| {
        let requests = (0..200).map(|number| {
            let mut request = outputs(&[10_000, number]);
            request.payload = Some(Payload::new(10_000));
            request
        });
        let request = Request::new(tokio_stream::iter(requests.collect::<Vec<_>>()));
        all(case.client.duplex(request).await).await
    });
}

#[test]
fn a_stream_may_be_empty() {
    same(async |case| all(case.client.duplex(Request::new(tokio_stream::empty())).await).await);
}

#[test]
fn a_call_may_end_before_its_requests_do() {
    same(async |case| {
        let mut answers = Summary::new();
        // The response is complete while the client still sends.
        for what in ["ignore", "refuse"] {
            let (sender, receiver) = mpsc::channel(1);
            let mut request = Request::new(ReceiverStream::new(receiver));
            request.metadata_mut().insert("x-do", what.parse().expect("a value"));
            answers.push(match case.client.input(request).await {
                Ok(answer) => answer.get_ref().aggregated_payload_size.to_string(),
                Err(status) => summarize_status(&status),
            });
            drop(sender);
        }
        let (sender, receiver) = mpsc::channel(1);
        let mut request = Request::new(ReceiverStream::new(receiver));
        request.metadata_mut().insert("x-do", "short".parse().expect("a value"));
        sender.send(outputs(&[5])).await.expect("the receiver is alive");
        answers.extend(all(case.client.duplex(request).await).await);
        drop(sender);
        // The connection stays open.
        let answer = case.client.unary(simple(1, 1)).await.expect("a response");
        answers.push(summarize(answer.get_ref().payload.as_ref()));
        answers
    });
}

#[test]
fn an_endless_client_hears_of_an_early_end() {
    same(async |case| {
        let payload = Payload::new(10_000);
        let requests = tokio_stream::iter(0..)
            .map(move |_: u64| StreamingInputCallRequest { payload: Some(payload.clone()) });
        let mut request = Request::new(requests);
        request.metadata_mut().insert("x-do", "refuse".parse().expect("a value"));
        let status = case.client.input(request).await.expect_err("the call fails");
        vec![summarize_status(&status)]
    });
}

#[test]
fn errors_have_their_codes_and_messages() {
    same(async |case| {
        let mut answers = Summary::new();
        for (code, message) in [
            (Code::Unknown, "test status message"),
            (Code::NotFound, ""),
            (Code::DataLoss, "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"),
        ] {
            let request = SimpleRequest { response_status: echo(code, message), ..simple(1, 1) };
            let status = case.client.unary(request).await.expect_err("the call fails");
            answers.push(summarize_status(&status));
            for sizes in [&[][..], &RESPONSES] {
                let mut request = outputs(sizes);
                request.response_status = echo(code, message);
                answers.extend(all(case.client.output(request.clone()).await).await);
                let request = Request::new(tokio_stream::once(request));
                answers.extend(all(case.client.duplex(request).await).await);
            }
        }
        answers
    });
}

#[test]
fn what_does_not_exist_is_unimplemented() {
    same(async |case| {
        let mut answers = Summary::new();
        for method in ["UnimplementedCall", "/grpc.testing.UnimplementedService/UnimplementedCall"]
        {
            let status = case.client.empty(method).await.expect_err("the call fails");
            answers.push(summarize_status(&status));
        }
        answers
    });
}

#[test]
fn metadata_come_and_go() {
    same(async |case| {
        let bytes: Vec<u8> = (0..=255).collect();
        let with_metadata = |metadata: &mut MetadataMap| {
            let value = "test_initial_metadata_value".parse().expect("a value");
            metadata.insert("x-grpc-test-echo-initial", value);
            let value = MetadataValue::from_bytes(&bytes);
            metadata.insert_bin("x-grpc-test-echo-trailing-bin", value);
        };
        let mut request = Request::new(simple(1, 1));
        with_metadata(request.metadata_mut());
        let answer = case.client.unary(request).await.expect("a response");
        let mut answers = vec![summarize_metadata(answer.metadata())];
        let back = answer
            .metadata()
            .get_bin("x-grpc-test-echo-trailing-bin")
            .expect("the field is present");
        assert_eq!(back.to_bytes().expect("the value is valid base64"), bytes);
        let mut request = Request::new(tokio_stream::once(outputs(&[1])));
        with_metadata(request.metadata_mut());
        answers.extend(all(case.client.duplex(request).await).await);
        answers
    });
}

#[test]
fn large_metadata_are_taken() {
    same(async |case| {
        let mut request = Request::new(simple(1, 1));
        let value = "v".repeat(8000).parse().expect("a value");
        request.metadata_mut().insert("x-grpc-test-echo-initial", value);
        let answer = case.client.unary(request).await.expect("a response");
        vec![summarize_metadata(answer.metadata())]
    });
}

#[test]
fn messages_may_be_compressed() {
    same(async |case| {
        let mut answers = Summary::new();
        for compression in [CompressionEncoding::Gzip, CompressionEncoding::Zstd] {
            let client = case.client.clone().compressing(compression);
            let answer = client.unary(simple(271_828, 314_159)).await.expect("a response");
            assert!(answer.metadata().get("grpc-encoding").is_some());
            answers.push(summarize_metadata(answer.metadata()));
            answers.push(summarize(answer.get_ref().payload.as_ref()));
            let requests: Vec<_> = RESPONSES.iter().map(|size| outputs(&[*size, 1])).collect();
            let request = Request::new(tokio_stream::iter(requests));
            answers.extend(all(client.duplex(request).await).await);
        }
        answers
    });
}

#[test]
fn large_messages_arrive() {
    same(async |case| {
        let answer = case.client.unary(simple(10_000_000, 10_000_000)).await.expect("a response");
        let mut answers = vec![summarize(answer.get_ref().payload.as_ref())];
        let mut request = outputs(&[5_000_000, 5_000_000]);
        request.payload = Some(Payload::new(5_000_000));
        let requests = vec![request.clone(), request];
        answers.extend(
            all(case.client.duplex(Request::new(tokio_stream::iter(requests))).await).await,
        );
        let too_large =
            case.client.unary(simple(0, 70_000_000)).await.expect_err("the message is too large");
        answers.push(summarize_status(&too_large));
        answers
    });
}

#[test]
fn a_client_s_deadline_is_kept() {
    same(async |case| {
        let mut request = Request::new(simple(1, 1));
        request.metadata_mut().insert("x-do", "wait".parse().expect("a value"));
        request.set_timeout(Duration::from_millis(300));
        let status = case.client.unary(request).await.expect_err("the call fails");
        let mut answers = vec![format!(
            "{:?}",
            matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded)
        )];
        crate::compare::wait_until("the call is dropped", || case.seen.left() == 1).await;
        // A call far from its deadline gets its response.
        let mut request = Request::new(simple(1, 1));
        request.set_timeout(Duration::from_secs(100));
        let answer = case.client.unary(request).await.expect("a response");
        answers.push(summarize(answer.get_ref().payload.as_ref()));
        answers
    });
}

#[test]
fn a_panic_fails_its_call_and_no_other() {
    // tonic's own server ends the connection.
    crate::compare::in_runtime(crate::compare::on_ours(async |case, name| {
        let mut request = Request::new(simple(1, 1));
        request.metadata_mut().insert("x-do", "panic".parse().expect("a value"));
        let status = case.client.unary(request).await.expect_err("the call fails");
        // The response is the one for every panic, a 500 with a problem, which tonic's client takes
        // for a message.
        assert!(status.message().contains("500"), "{name}: {status:?}");
        case.client.unary(simple(1, 1)).await.expect("a response");
    }));
}
