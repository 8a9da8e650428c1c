//! After the handshake: data in any pieces, key updates, closing.

use crate::peer::{self, BOTH_VERSIONS, Pair, TLS12, TLS13};
use peregrine_tls::rustls::{AlertDescription, ContentType, Error, InvalidMessage, PeerMisbehaved};
use peregrine_tls::{
    HANDSHAKE_BYTES_MAX, RECORD_PLAINTEXT_BYTES_MAX, TlsConnectionError, TlsReadState, TlsSendError,
};
use proptest::prelude::*;
use std::io::Write;

const HANDSHAKE: ContentType = ContentType::Handshake;
const APPLICATION_DATA: ContentType = ContentType::ApplicationData;

/// Encrypts the client's text in records of the given lengths.
fn client_records(pair: &mut Pair, text: &[u8], lengths: &[usize]) -> Vec<u8> {
    let (mut bytes, mut unsent, mut lengths) = (Vec::new(), text, lengths.iter().cycle());
    while !unsent.is_empty() {
        let length = (*lengths.next().unwrap()).clamp(1, unsent.len());
        pair.client.writer().write_all(&unsent[..length]).unwrap();
        unsent = &unsent[length..];
        bytes.extend(pair.client_bytes());
    }
    bytes
}

fn text(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8).collect()
}

#[test]
fn long_content_arrives_in_both_directions() {
    for version in BOTH_VERSIONS {
        let mut pair = Pair::of_version(version);
        let content = text(200_000);
        // The size of a ring's buffers.
        pair.piece_bytes = 4_096;
        let bytes = client_records(&mut pair, &content, &[RECORD_PLAINTEXT_BYTES_MAX]);
        assert_eq!(pair.deliver(&bytes), Ok(TlsReadState::Established));
        assert!(pair.plain == content);

        pair.session.send(&content, &mut pair.out).unwrap();
        pair.session.send(b"", &mut pair.out).unwrap();
        let mut received = Vec::new();
        let out = std::mem::take(&mut pair.out);
        for piece in out.chunks(1_000) {
            pair.out = piece.to_vec();
            pair.deliver_output().unwrap();
            received.extend(pair.client_received());
        }
        assert!(received == content);
    }
}

#[test]
fn sent_records_hold_at_most_16_kib() {
    for version in BOTH_VERSIONS {
        let mut pair = Pair::of_version(version);
        pair.out.extend_from_slice(b"before");
        pair.session.send(&text(40_000), &mut pair.out).unwrap();
        assert!(pair.out.starts_with(b"before"), "existing bytes in the buffer are kept");
        let (mut unparsed, mut record_count) = (&pair.out[6..], 0);
        while let [23, 3, 3, high, low, after @ ..] = unparsed {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            assert!(length <= RECORD_PLAINTEXT_BYTES_MAX + 24, "{length}");
            unparsed = &after[length..];
            record_count += 1;
        }
        assert!(unparsed.is_empty());
        assert_eq!(record_count, 3);
    }
}

#[test]
fn empty_content_produces_no_record() {
    let mut pair = Pair::of_version(TLS13);
    pair.session.send(b"", &mut pair.out).unwrap();
    assert_eq!(pair.out, b"");
}

#[test]
fn a_session_can_send_while_a_received_record_is_incomplete() {
    for version in BOTH_VERSIONS {
        let mut pair = Pair::of_version(version);
        let bytes = client_records(&mut pair, b"question", &[100]);
        for (index, byte) in bytes.iter().enumerate() {
            assert_eq!(pair.deliver(&[*byte]), Ok(TlsReadState::Established));
            pair.session.send(&[index as u8], &mut pair.out).unwrap();
        }
        assert_eq!(pair.plain, b"question");
        pair.deliver_output().unwrap();
        let expected: Vec<u8> = (0..bytes.len() as u8).collect();
        assert_eq!(pair.client_received(), expected);
    }
}

#[test]
fn keys_can_be_updated_by_the_client() {
    let mut pair = Pair::of_version(TLS13);
    for round in 0..50_u8 {
        pair.client.refresh_traffic_keys().unwrap();
        pair.piece_bytes = usize::from(round) + 1;
        pair.client_send(&[round]);
        // The response to a key update is sent before the next data.
        pair.session.send(&[round], &mut pair.out).unwrap();
        pair.exchange();
        assert_eq!(pair.client_received(), [round]);
    }
    assert_eq!(pair.plain, (0..50).collect::<Vec<u8>>());
}

#[test]
fn a_key_update_in_two_records_is_reassembled_while_data_is_sent() {
    let (mut forger, mut session) = Pair::of_version(TLS13).forger();
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    // RFC 8446 §4.6.3: a KeyUpdate (24) of one byte, which does not request a response.
    let first = forger.record(HANDSHAKE, &[24, 0, 0]);
    let second = forger.record(HANDSHAKE, &[1, 0]);
    session.receive(&first, &mut plain, &mut out).unwrap();
    session.send(b"in between", &mut out).unwrap();
    assert_eq!(session.receive(&second, &mut plain, &mut out), Ok(TlsReadState::Established));
    session.send(b"after", &mut out).unwrap();
    // The forger does not have the new key.
    let stale = forger.record(APPLICATION_DATA, b"stale");
    assert_eq!(
        session.receive(&stale, &mut plain, &mut out),
        Err(TlsConnectionError::DecryptError)
    );
}

#[test]
fn data_between_the_parts_of_a_handshake_message_is_rejected() {
    let (mut forger, mut session) = Pair::of_version(TLS13).forger();
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    let bytes = [forger.record(HANDSHAKE, &[24, 0]), forger.record(APPLICATION_DATA, b"data")];
    session.receive(&bytes[0], &mut plain, &mut out).unwrap();
    let error = PeerMisbehaved::MessageInterleavedWithHandshakeMessage;
    assert_eq!(
        session.receive(&bytes[1], &mut plain, &mut out),
        Err(TlsConnectionError::PeerMisbehaved(error))
    );
    assert_eq!(session.send(b"reply", &mut out), Err(TlsSendError::Closed));
    assert_eq!(plain, b"");
}

#[test]
fn a_handshake_message_that_never_ends_is_rejected() {
    for version in BOTH_VERSIONS {
        let (mut forger, mut session) = Pair::of_version(version).forger();
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        let mut received_bytes = 0;
        let error = loop {
            // A header that announces the longest message, then one byte per record.
            let payload: &[u8] = if received_bytes == 0 { &[24, 0, 0xff, 0xff] } else { &[0] };
            let record = forger.record(HANDSHAKE, payload);
            received_bytes += record.len();
            match session.receive(&record, &mut plain, &mut out) {
                Ok(read_state) => assert_eq!(read_state, TlsReadState::Established),
                Err(error) => break error,
            }
        };
        assert_eq!(error, TlsConnectionError::HandshakeTooLong);
        assert!(received_bytes < HANDSHAKE_BYTES_MAX + 100, "{received_bytes}");
    }
}

#[test]
fn renegotiation_is_rejected() {
    let (mut forger, mut session) = Pair::of_version(TLS12).forger();
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    let (tls, client) = peer::server_and_client(TLS12);
    let hello = Pair::new(&tls, &client.into(), "localhost").client_bytes();
    // RFC 5246 §7.2.2: the response "no_renegotiation" is a warning. A second attempt is fatal.
    let first = forger.record(HANDSHAKE, &hello[5..]);
    assert_eq!(session.receive(&first, &mut plain, &mut out), Ok(TlsReadState::Established));
    assert_eq!(out[0], 21, "an alert");
    session.send(b"continued", &mut out).unwrap();
    let second = forger.record(HANDSHAKE, &hello[5..]);
    let error = PeerMisbehaved::TooManyRenegotiationRequests;
    assert_eq!(
        session.receive(&second, &mut plain, &mut out),
        Err(TlsConnectionError::PeerMisbehaved(error))
    );
}

#[test]
fn a_second_hello_in_tls_1_3_is_rejected() {
    let (mut forger, mut session) = Pair::of_version(TLS13).forger();
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    let (tls, client) = peer::server_and_client(TLS13);
    let hello = Pair::new(&tls, &client.into(), "localhost").client_bytes();
    let record = forger.record(HANDSHAKE, &hello[5..]);
    assert_eq!(
        session.receive(&record, &mut plain, &mut out),
        Err(TlsConnectionError::InappropriateMessage)
    );
    assert_eq!(out[0], 23, "an encrypted alert");
}

#[test]
fn an_altered_record_is_rejected_with_an_alert() {
    for version in BOTH_VERSIONS {
        for position in [5, 10, 20] {
            let mut pair = Pair::of_version(version);
            let intact = client_records(&mut pair, b"good", &[100]);
            let mut altered = client_records(&mut pair, b"a record to alter", &[100]);
            altered[position] ^= 1;
            let bytes = [intact, altered].concat();
            assert_eq!(pair.deliver(&bytes), Err(TlsConnectionError::DecryptError), "{position}");
            assert_eq!(pair.plain, b"good", "earlier data is kept");
            let alert = AlertDescription::BadRecordMac;
            assert_eq!(pair.deliver_output(), Err(Error::AlertReceived(alert)));
            assert_eq!(
                pair.deliver(b"more"),
                Err(TlsConnectionError::DecryptError),
                "the session stays rejected"
            );
            assert_eq!(pair.session.send(b"reply", &mut pair.out), Err(TlsSendError::Closed));
            assert_eq!(pair.session.handshake_info(), None);
            pair.session.close(&mut pair.out);
            assert_eq!(pair.out, b"", "nothing is sent after an alert");
        }
    }
}

#[test]
fn a_record_header_with_an_excessive_length_is_rejected() {
    for version in BOTH_VERSIONS {
        let mut pair = Pair::of_version(version);
        pair.piece_bytes = 1;
        // 2^14 + 2048 + 1 bytes.
        let error = InvalidMessage::MessageTooLarge;
        assert_eq!(
            pair.deliver(&[23, 3, 3, 0x48, 0x01]),
            Err(TlsConnectionError::InvalidMessage(error))
        );
        let alert = AlertDescription::DecodeError;
        assert_eq!(pair.deliver_output(), Err(Error::AlertReceived(alert)));
    }
}

#[test]
fn a_record_with_too_much_plaintext_is_rejected() {
    for version in BOTH_VERSIONS {
        for (length, is_accepted) in
            [(RECORD_PLAINTEXT_BYTES_MAX, true), (RECORD_PLAINTEXT_BYTES_MAX + 1, false)]
        {
            let (mut forger, mut session) = Pair::of_version(version).forger();
            let (mut plain, mut out) = (Vec::new(), Vec::new());
            let record = forger.record(APPLICATION_DATA, &text(length));
            let result = session.receive(&record, &mut plain, &mut out);
            if is_accepted {
                assert_eq!(result, Ok(TlsReadState::Established));
                assert!(plain == text(length));
            } else {
                assert_eq!(result, Err(TlsConnectionError::RecordTooLarge));
                assert_ne!(out, b"");
            }
        }
    }
}

#[test]
fn endless_empty_records_are_rejected() {
    let (mut forger, mut session) = Pair::of_version(TLS13).forger();
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    let error = (0..1_000)
        .find_map(|_| {
            let record = forger.record(APPLICATION_DATA, b"");
            session.receive(&record, &mut plain, &mut out).err()
        })
        .unwrap();
    assert_eq!(error, TlsConnectionError::PeerMisbehaved(PeerMisbehaved::TooManyEmptyFragments));
}

#[test]
fn the_client_can_close_first() {
    for version in BOTH_VERSIONS {
        let mut pair = Pair::of_version(version);
        pair.client.writer().write_all(b"last words").unwrap();
        pair.client.send_close_notify();
        let bytes = pair.client_bytes();
        assert_eq!(pair.deliver(&bytes), Ok(TlsReadState::PeerClosed));
        assert_eq!(pair.plain, b"last words");
        // Half-closed: the reply is still sent.
        pair.session.send(b"reply", &mut pair.out).unwrap();
        pair.session.close(&mut pair.out);
        pair.deliver_output().unwrap();
        assert_eq!(pair.client_received(), b"reply");
        assert!(pair.client.process_new_packets().unwrap().peer_has_closed());
    }
}

#[test]
fn the_server_can_close_first_and_still_receives() {
    for version in BOTH_VERSIONS {
        let mut pair = Pair::of_version(version);
        pair.session.close(&mut pair.out);
        let alert_bytes = pair.out.len();
        assert!(alert_bytes > 0);
        pair.session.close(&mut pair.out);
        assert_eq!(pair.out.len(), alert_bytes, "close_notify is sent once");
        assert_eq!(pair.session.send(b"more", &mut pair.out), Err(TlsSendError::Closed));
        let bytes = client_records(&mut pair, b"in flight", &[4]);
        assert_eq!(pair.deliver(&bytes), Ok(TlsReadState::Established));
        assert_eq!(pair.plain, b"in flight");
        pair.deliver_output().unwrap();
        assert!(pair.client.process_new_packets().unwrap().peer_has_closed());
        pair.client.send_close_notify();
        let bytes = pair.client_bytes();
        assert_eq!(pair.deliver(&bytes), Ok(TlsReadState::PeerClosed));
        assert_eq!(pair.out, b"");
    }
}

#[test]
fn data_after_close_notify_is_ignored() {
    for version in BOTH_VERSIONS {
        let (mut forger, mut session) = Pair::of_version(version).forger();
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        let mut bytes = forger.record(APPLICATION_DATA, b"data");
        bytes.extend(forger.record(ContentType::Alert, &[1, 0]));
        bytes.extend(forger.record(APPLICATION_DATA, b"ignored"));
        bytes.extend_from_slice(b"\xff\xff and garbage");
        for piece in [&bytes[..], b"garbage alone", &[23, 3, 3, 0xff, 0xff]] {
            assert_eq!(session.receive(piece, &mut plain, &mut out), Ok(TlsReadState::PeerClosed));
            assert_eq!(plain, b"data");
        }
        session.send(b"reply", &mut out).unwrap();
    }
}

#[test]
fn an_end_without_close_notify_leaves_the_session_open() {
    let mut pair = Pair::of_version(TLS13);
    let bytes = client_records(&mut pair, b"cut off", &[100]);
    let cut = &bytes[..bytes.len() - 1];
    assert_eq!(pair.deliver(cut), Ok(TlsReadState::Established));
    assert_eq!(pair.plain, b"", "an incomplete record is not authenticated");
}

#[test]
fn a_fatal_alert_ends_the_session_without_a_response() {
    for version in BOTH_VERSIONS {
        let (mut forger, mut session) = Pair::of_version(version).forger();
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        let alert = forger.record(ContentType::Alert, &[2, 80]);
        let expected = TlsConnectionError::AlertReceived(AlertDescription::InternalError);
        assert_eq!(session.receive(&alert, &mut plain, &mut out), Err(expected));
        assert_eq!(out, b"");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_plaintext_does_not_depend_on_how_bytes_are_split(
        is_tls12: bool,
        bytes in 0_usize..60_000,
        records in prop::collection::vec(1_usize..20_000, 1..6),
        pieces in prop::collection::vec(1_usize..9_000, 1..12),
    ) {
        let mut pair = Pair::of_version(if is_tls12 { TLS12 } else { TLS13 });
        let content = text(bytes);
        let encrypted = client_records(&mut pair, &content, &records);
        let (mut unsent, mut pieces) = (&encrypted[..], pieces.iter().cycle());
        while !unsent.is_empty() {
            let (piece, after) = unsent.split_at((*pieces.next().unwrap()).min(unsent.len()));
            prop_assert_eq!(pair.deliver(piece), Ok(TlsReadState::Established));
            unsent = after;
        }
        prop_assert!(pair.plain == content);
        prop_assert!(pair.out.is_empty());
    }

    #[test]
    fn a_handshake_succeeds_however_it_is_split(
        is_tls12: bool,
        piece_bytes in 1_usize..700,
    ) {
        let version = if is_tls12 { TLS12 } else { TLS13 };
        let (tls, client) = peer::server_and_client(version);
        let mut pair = Pair::new(&tls, &client.into(), "localhost");
        pair.piece_bytes = piece_bytes;
        pair.exchange();
        pair.client_send(b"hello");
        prop_assert_eq!(&pair.plain, b"hello");
    }
}
