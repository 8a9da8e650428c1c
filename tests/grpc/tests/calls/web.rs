//! grpc-web, with tonic-web, over HTTP/1.1 and HTTP/2.

use crate::compare::{DRIVERS, http1_client, http2_client, in_runtime};
use peregrine::tower::tower;
use peregrine::{App, Limits};
use peregrine_grpc_tests::messages::{Payload, SimpleRequest, SimpleResponse};
use peregrine_grpc_tests::serve::Ours;
use peregrine_grpc_tests::service::TestService;
use prost::Message;
use tonic::service::LayerExt;
use tonic_web::GrpcWebLayer;

/// A gRPC frame: a flag, a length, a message.
fn frame(message: &impl Message) -> Vec<u8> {
    let mut frame = vec![0];
    frame.extend(u32::try_from(message.encoded_len()).expect("the value is small").to_be_bytes());
    message.encode(&mut frame).expect("the buffer has room");
    frame
}

/// The frames of a response, with their flags.
fn frames(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    while let [flag, a, b, c, d, rest @ ..] = bytes {
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        frames.push((*flag, rest[..length].to_vec()));
        bytes = &rest[length..];
    }
    frames
}

#[test]
fn calls_of_the_web_are_answered_over_http_1_1() {
    are_answered(&http1_client(), reqwest::Version::HTTP_11);
}

#[test]
fn calls_of_the_web_are_answered_over_http_2() {
    are_answered(&http2_client(), reqwest::Version::HTTP_2);
}

fn are_answered(client: &reqwest::Client, version: reqwest::Version) {
    in_runtime(async {
        for driver in DRIVERS {
            let make = || {
                let service = tower::ServiceBuilder::new()
                    .layer(GrpcWebLayer::new())
                    .into_inner()
                    .named_layer(TestService::default());
                App::new().subtree("/", tower(tonic::service::Routes::new(service)))
            };
            let Some(ours) = Ours::with(driver, Limits::default(), make) else { continue };
            let url = format!("http://{}/grpc.testing.TestService/UnaryCall", ours.address());
            for size in [0, 10, 100_000] {
                let request = SimpleRequest { response_size: size, ..SimpleRequest::default() };
                let request = client
                    .post(&url)
                    .header("content-type", "application/grpc-web+proto")
                    .header("x-grpc-web", "1")
                    .body(frame(&request));
                let answer = request.send().await.expect("a response");
                assert_eq!((answer.version(), answer.status().as_u16()), (version, 200));
                assert_eq!(answer.headers()["content-type"], "application/grpc-web+proto");
                let frames = frames(&answer.bytes().await.expect("the body is complete"));
                let [(0, message), (0x80, trailers)] = &frames[..] else { panic!("{frames:?}") };
                let message = SimpleResponse::decode(&message[..]).expect("a message");
                let expected = Payload::new(usize::try_from(size).expect("the value is small"));
                assert_eq!(message.payload, Some(expected));
                let trailers = String::from_utf8_lossy(trailers);
                assert!(trailers.contains("grpc-status:0"), "{trailers}");
            }
        }
    });
}
