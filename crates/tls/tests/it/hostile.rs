//! Peers that do not speak TLS, or misuse it.

use crate::peer::{BOTH_VERSIONS, Pair, TLS13, server_and_client};
use peregrine_tls::rustls::{AlertDescription, InvalidMessage, PeerIncompatible};
use peregrine_tls::{
    HANDSHAKE_BYTES_MAX, PLAIN_HTTP_REPLY, TlsConfig, TlsConnectionError, TlsReadState,
    TlsSendError, fuzz_one,
};
use proptest::prelude::*;

fn tls() -> TlsConfig {
    TlsConfig::self_signed(&["localhost"]).unwrap().tls
}

#[test]
fn a_clear_text_request_gets_a_clear_text_response() {
    let tls = tls();
    for request in [
        &b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..],
        b"POST /form HTTP/1.0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        for piece_bytes in 1..=request.len() {
            let (mut session, mut plain, mut out) = (tls.new_connection(), Vec::new(), Vec::new());
            let error = request
                .chunks(piece_bytes)
                .find_map(|piece| session.receive(piece, &mut plain, &mut out).err());
            assert_eq!(error, Some(TlsConnectionError::PlainHttp));
            assert_eq!(out, PLAIN_HTTP_REPLY);
            assert_eq!(plain, b"");
            let second_result = session.receive(b"x", &mut plain, &mut out);
            assert_eq!(second_result, Err(TlsConnectionError::PlainHttp));
            assert_eq!(out, PLAIN_HTTP_REPLY, "only one response is sent");
            assert_eq!(session.send(b"x", &mut out), Err(TlsSendError::Closed));
        }
    }
}

#[test]
fn other_protocols_are_rejected_with_an_alert() {
    let tls = tls();
    for input in [&b"SSH-2.0-OpenSSH_9.6\r\n"[..], b"\x00", b"\x80\x2e\x01\x03\x01", b"{}", b"EHLO"]
    {
        let (mut session, mut plain, mut out) = (tls.new_connection(), Vec::new(), Vec::new());
        let result = session.receive(input, &mut plain, &mut out);
        if input == b"EHLO" {
            assert_eq!(result, Ok(TlsReadState::Handshaking), "it may be the start of a method");
            assert_eq!(out, b"");
            continue;
        }
        assert_eq!(result, Err(TlsConnectionError::NotTls), "{}", input.escape_ascii());
        assert_eq!(out, [21, 3, 3, 0, 2, 2, 10]);
    }
}

#[test]
fn records_that_may_not_come_first_are_rejected() {
    let tls = tls();
    let table: [(&[u8], TlsConnectionError); 5] = [
        (&[23, 3, 3, 0, 1, 0], TlsConnectionError::InappropriateMessage),
        (&[20, 3, 3, 0, 1, 1], TlsConnectionError::InappropriateMessage),
        (
            &[21, 3, 3, 0, 2, 2, 40],
            TlsConnectionError::AlertReceived(AlertDescription::HandshakeFailure),
        ),
        (
            &[22, 9, 9, 0, 1, 1],
            TlsConnectionError::InvalidMessage(InvalidMessage::UnknownProtocolVersion),
        ),
        (
            &[22, 3, 1, 0, 0],
            TlsConnectionError::InvalidMessage(InvalidMessage::InvalidEmptyPayload),
        ),
    ];
    for (record, expected) in table {
        let (mut session, mut plain, mut out) = (tls.new_connection(), Vec::new(), Vec::new());
        let is_alert = matches!(expected, TlsConnectionError::AlertReceived(_));
        let result = session.receive(record, &mut plain, &mut out);
        assert_eq!(result, Err(expected));
        assert_eq!(out.is_empty(), is_alert, "an alert is sent for an error, but not for an alert");
    }
}

#[test]
fn a_client_with_only_old_versions_gets_a_protocol_version_alert() {
    let (tls, client) = server_and_client(TLS13);
    let mut hello = Pair::new(&tls, &client.into(), "localhost").client_bytes();
    // Changes the extension supported_versions (43), which lists only 3.4, to list 3.2 (TLS 1.1).
    let supported_versions = [0, 43, 0, 3, 2, 3, 4];
    let position = hello.windows(7).position(|window| window == supported_versions).unwrap();
    hello[position + 6] = 2;
    let (mut session, mut plain, mut out) = (tls.new_connection(), Vec::new(), Vec::new());
    let error = session.receive(&hello, &mut plain, &mut out).unwrap_err();
    assert!(
        matches!(
            error,
            TlsConnectionError::PeerIncompatible(PeerIncompatible::Tls12NotOfferedOrEnabled)
                | TlsConnectionError::PeerIncompatible(_)
        ),
        "{error:?}"
    );
    assert_eq!(out, [21, 3, 3, 0, 2, 2, 70], "protocol_version");
}

#[test]
fn an_endless_handshake_is_rejected_at_the_limit() {
    let tls = tls();
    let (mut session, mut plain, mut out) = (tls.new_connection(), Vec::new(), Vec::new());
    // A ClientHello of nearly 64 KiB, in records of one byte.
    let mut sent = 0;
    let mut payloads = [1, 0, 0xff, 0xff].into_iter().chain(std::iter::repeat(0));
    let error = loop {
        let record = [22, 3, 1, 0, 1, payloads.next().unwrap()];
        sent += record.len();
        match session.receive(&record, &mut plain, &mut out) {
            Ok(state) => assert_eq!(state, TlsReadState::Handshaking),
            Err(error) => break error,
        }
    };
    assert_eq!(error, TlsConnectionError::HandshakeTooLong);
    assert!((HANDSHAKE_BYTES_MAX..HANDSHAKE_BYTES_MAX + 10).contains(&sent), "{sent}");
}

#[test]
fn a_handshake_message_beyond_64_kib_is_rejected_by_its_header() {
    let (mut session, mut plain, mut out) = (tls().new_connection(), Vec::new(), Vec::new());
    let record = [22, 3, 1, 0, 4, 1, 1, 0, 0];
    let error = InvalidMessage::HandshakePayloadTooLarge;
    assert_eq!(
        session.receive(&record, &mut plain, &mut out),
        Err(TlsConnectionError::InvalidMessage(error))
    );
}

#[test]
fn a_truncated_client_hello_waits_for_more() {
    for version in BOTH_VERSIONS {
        let (tls, client) = server_and_client(version);
        let hello = Pair::new(&tls, &client.into(), "localhost").client_bytes();
        for end in 0..hello.len() {
            let (mut session, mut plain, mut out) = (tls.new_connection(), Vec::new(), Vec::new());
            let result = session.receive(&hello[..end], &mut plain, &mut out);
            assert_eq!(result, Ok(TlsReadState::Handshaking));
            assert_eq!(out, b"");
        }
    }
}

#[test]
fn the_alert_for_an_altered_server_flight_is_reported() {
    let (tls, client) = server_and_client(TLS13);
    let mut pair = Pair::new(&tls, &client.into(), "localhost");
    let hello = pair.client_bytes();
    pair.deliver(&hello).unwrap();
    let last = pair.out.len() - 1;
    pair.out[last] ^= 1;
    pair.deliver_output().unwrap_err();
    let alert = pair.client_bytes();
    let expected = TlsConnectionError::AlertReceived(AlertDescription::BadRecordMac);
    assert_eq!(pair.deliver(&alert), Err(expected));
}

#[test]
fn an_invalid_record_header_is_rejected_at_once() {
    for (header, error) in [
        (&[25][..], InvalidMessage::InvalidContentType),
        (&[23, 4, 0], InvalidMessage::UnknownProtocolVersion),
        (&[22, 3, 3, 0, 0], InvalidMessage::InvalidEmptyPayload),
    ] {
        for version in BOTH_VERSIONS {
            let mut pair = Pair::of_version(version);
            pair.piece_bytes = 1;
            assert_eq!(pair.deliver(header), Err(TlsConnectionError::InvalidMessage(error)));
        }
    }
}

#[test]
fn changed_bytes_of_a_client_hello_cause_no_panic() {
    // Covers all positions, in addition to the random ones below.
    for position in 0..400_u16 {
        let [high, low] = position.to_be_bytes();
        fuzz_one(&[1, 7, high, low, 0xff, 0, 0, 0]);
        fuzz_one(&[1, 50, high, low, 0x01, 0, 0, 0]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn arbitrary_bytes_cause_no_panic_of_a_session(data: Vec<u8>) {
        fuzz_one(&data);
    }

    #[test]
    fn arbitrary_records_cause_no_panic(
        stage: u8,
        piece_bytes: u8,
        records in prop::collection::vec(
            (20_u8..25, prop::collection::vec(any::<u8>(), 0..40)), 0..8),
    ) {
        let mut data = vec![stage - stage % 3, piece_bytes];
        if stage % 2 == 0 {
            // A session that has completed its handshake.
            data[0] = 2;
        }
        for (content_type, payload) in records {
            data.extend_from_slice(&[content_type, 3, 3, 0, payload.len() as u8]);
            data.extend_from_slice(&payload);
        }
        fuzz_one(&data);
    }
}
