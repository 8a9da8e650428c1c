//! The cost of a request's records and of handshakes. Handshakes include the client's side.

use criterion::{Criterion, criterion_group, criterion_main};
use peregrine_tls::rustls::client::Resumption;
use peregrine_tls::rustls::crypto::aws_lc_rs;
use peregrine_tls::rustls::{ClientConfig, ClientConnection, RootCertStore, version};
use peregrine_tls::{TlsConfig, TlsConnection};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use std::hint::black_box;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

const REQUEST_BYTES: usize = 205;
const REPLY_BYTES: usize = 150;

fn setup() -> (TlsConfig, ClientConfig) {
    let self_signed = TlsConfig::self_signed(&["localhost"]).expect("the name is valid");
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(self_signed.certificate_pem.as_bytes());
    roots
        .add(certificate.expect("the PEM was just generated"))
        .expect("the root was just generated");
    let client = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&version::TLS13])
        .expect("the provider has suites for it")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (self_signed.tls, client)
}

/// Completes a handshake. Also returns the time spent on the server's side.
fn connect(
    tls: &TlsConfig,
    config: &Arc<ClientConfig>,
) -> (ClientConnection, TlsConnection, Duration) {
    let name = ServerName::try_from("localhost").expect("the name is valid");
    let mut client =
        ClientConnection::new(config.clone(), name).expect("the client configuration is valid");
    let mut session = tls.new_connection();
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    let mut time = Duration::ZERO;
    while session.handshake_info().is_none() {
        let mut flight = Vec::new();
        client.write_tls(&mut flight).expect("writing to a vector cannot fail");
        let start = Instant::now();
        session.receive(&flight, &mut plain, &mut out).expect("the peer follows the protocol");
        time += start.elapsed();
        client.read_tls(&mut out.as_slice()).expect("reading from a slice cannot fail");
        client.process_new_packets().expect("the peer follows the protocol");
        out.clear();
    }
    (client, session, time)
}

/// Decrypts requests and encrypts replies.
fn records(criterion: &mut Criterion) {
    let (tls, client) = setup();
    let (mut client, mut session, _) = connect(&tls, &Arc::new(client));
    client.set_buffer_limit(None);
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    criterion.bench_function("decrypt 205 B, encrypt 150 B", |bencher| {
        bencher.iter_custom(|rounds| {
            let mut time = Duration::ZERO;
            let mut remaining = rounds;
            while remaining > 0 {
                let batch = remaining.min(1_000);
                remaining -= batch;
                let requests: Vec<Vec<u8>> = (0..batch).map(|_| request(&mut client)).collect();
                let start = Instant::now();
                for request in &requests {
                    session.receive(request, &mut plain, &mut out).expect("the record is valid");
                    session.send(&[b'a'; REPLY_BYTES], &mut out).expect("the session is open");
                    black_box((&plain, &out));
                    plain.clear();
                    out.clear();
                }
                time += start.elapsed();
            }
            time
        });
    });
}

fn request(client: &mut ClientConnection) -> Vec<u8> {
    client.writer().write_all(&[b'q'; REQUEST_BYTES]).expect("the buffer is unlimited");
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("writing to a vector cannot fail");
    bytes
}

/// The server's side of handshakes.
fn handshakes(criterion: &mut Criterion) {
    let (tls, client) = setup();
    let mut without_resumption = client.clone();
    without_resumption.resumption = Resumption::disabled();
    for (name, client, resumed) in [
        ("full handshake, server side", Arc::new(without_resumption), false),
        ("resumed handshake, server side", Arc::new(client), true),
    ] {
        connect(&tls, &client);
        criterion.bench_function(name, |bencher| {
            bencher.iter_custom(|rounds| {
                (0..rounds)
                    .map(|_| {
                        let (_client, session, time) = connect(&tls, &client);
                        assert_eq!(
                            session.handshake_info().map(|info| info.resumed),
                            Some(resumed)
                        );
                        time
                    })
                    .sum()
            });
        });
    }
}

criterion_group!(benches, records, handshakes);
criterion_main!(benches);
