//! Every event in every stage of a session, including impossible ones.

use crate::peer::{Forger, Pair, TLS13, server_and_client};
use peregrine_tls::rustls::ContentType;
use peregrine_tls::{TlsConfig, TlsConnection, TlsReadState};
use std::fmt::Write;

/// A session in a stage and, if it has keys, a forger that can write records for it.
fn session_in(stage: &str) -> (TlsConnection, Option<Forger>) {
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    let (tls, client) = server_and_client(TLS13);
    match stage {
        "opening" => (tls.new_connection(), None),
        "handshaking" => {
            let mut session = tls.new_connection();
            session.receive(&hello(), &mut plain, &mut out).unwrap();
            (session, None)
        }
        "open" => {
            let (forger, session) = Pair::connected(&tls, &client.into(), "localhost").forger();
            (session, Some(forger))
        }
        "closed" => {
            let (mut session, forger) = session_in("open");
            let mut forger = forger.unwrap();
            let close = forger.record(ContentType::Alert, &[1, 0]);
            assert_eq!(session.receive(&close, &mut plain, &mut out), Ok(TlsReadState::PeerClosed));
            (session, Some(forger))
        }
        _ => {
            let (mut session, forger) = session_in("open");
            session.receive(&[0], &mut plain, &mut out).unwrap_err();
            (session, forger)
        }
    }
}

fn hello() -> Vec<u8> {
    let (tls, client) = server_and_client(TLS13);
    Pair::new(&tls, &client.into(), "localhost").client_bytes()
}

/// The result of an event as text, and which outputs grew.
fn outcome(stage: &str, event: &str) -> String {
    let (mut session, mut forger) = session_in(stage);
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    let mut record = |kind, payload: &[u8]| match &mut forger {
        Some(forger) => forger.record(kind, payload),
        // Before there are keys, the "encrypted" record is fake.
        None => [&[23, 3, 3, 0, 32][..], &[0; 32]].concat(),
    };
    let input = match event {
        "nothing" => Vec::new(),
        "HTTP" => b"GET / HTTP/1.1\r\n".to_vec(),
        "garbage" => vec![0xff; 8],
        "hello" => hello(),
        "data" => record(ContentType::ApplicationData, b"data"),
        "close_notify" => record(ContentType::Alert, &[1, 0]),
        "partial" => record(ContentType::ApplicationData, b"data")[..10].to_vec(),
        "send" => {
            let sent = session.send(b"reply", &mut out);
            return sent.map_or_else(|error| format!("{error:?}"), |()| "sent".to_owned());
        }
        "close" => {
            session.close(&mut out);
            return (if out.is_empty() { "no output" } else { "close_notify" }).to_owned();
        }
        _ => unreachable!("{event}"),
    };
    let result = session.receive(&input, &mut plain, &mut out);
    let mut text = match result {
        Ok(state) => format!("{state:?}"),
        Err(error) => error.label().to_owned(),
    };
    if !plain.is_empty() {
        text.push_str(" +plain");
    }
    if !out.is_empty() {
        text.push_str(" +out");
    }
    text
}

#[test]
fn the_transition_table_is_unchanged() {
    let stages = ["opening", "handshaking", "open", "closed", "rejected"];
    let events =
        ["nothing", "HTTP", "garbage", "hello", "data", "close_notify", "partial", "send", "close"];
    let mut table = String::new();
    for stage in stages {
        for event in events {
            writeln!(table, "{stage:<11} | {event:<12} | {}", outcome(stage, event)).unwrap();
        }
    }
    let expected = include_str!("stages.txt");
    assert!(table == expected, "the table is now:\n{table}");
}

#[test]
fn sessions_are_send_and_configurations_are_send_and_sync() {
    fn is_send<T: Send>() {}
    fn is_sync<T: Sync>() {}
    is_send::<TlsConnection>();
    is_send::<TlsConfig>();
    is_sync::<TlsConfig>();
    assert!(size_of::<TlsConnection>() <= 64, "{}", size_of::<TlsConnection>());
}
