//! The handshake's fields, and the negotiation of compression.

use peregrine_proto::ws::deflate::{
    DeflateConfig, DeflateParams, InvalidResponse, Offer, negotiate,
};
use peregrine_proto::ws::handshake::{HandshakeError, choose_protocol, has_token, validate_http1};
use peregrine_proto::ws::key::{HandshakeKey, sha1};
use peregrine_proto::{Method, Version};
use proptest::prelude::*;
use sha1::{Digest, Sha1};

const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

/// A valid request's fields, one of them replaced.
fn judge(name: &str, value: Option<&str>) -> Result<HandshakeKey, HandshakeError> {
    let mut fields = vec![
        ("Host", "a"),
        ("Upgrade", "websocket"),
        ("Connection", "keep-alive, Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", KEY),
    ];
    fields.retain(|field| field.0 != name);
    fields.extend(value.map(|value| (name, value)));
    let bytes = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    validate_http1(Method::Get, Version::Http11, bytes)
}

#[test]
fn a_handshake_has_an_upgrade_a_version_and_a_key() {
    let key = judge("Host", None).unwrap();
    assert_eq!(key.as_str(), KEY);
    assert_eq!(key, HandshakeKey::new(*b"the sample nonce"));
    assert_eq!(&key.derive_accept(), b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert!(judge("Upgrade", Some("h2c, WebSocket")).is_ok());
    for (name, value, refusal) in [
        ("Upgrade", None, HandshakeError::MissingUpgrade),
        ("Upgrade", Some("h2c"), HandshakeError::MissingUpgrade),
        ("Connection", None, HandshakeError::MissingUpgrade),
        ("Connection", Some("keep-alive"), HandshakeError::MissingUpgrade),
        ("Sec-WebSocket-Version", None, HandshakeError::UnsupportedVersion),
        ("Sec-WebSocket-Version", Some("8"), HandshakeError::UnsupportedVersion),
        ("Sec-WebSocket-Version", Some("13, 8"), HandshakeError::UnsupportedVersion),
        ("Sec-WebSocket-Key", None, HandshakeError::InvalidKey),
        ("Sec-WebSocket-Key", Some(""), HandshakeError::InvalidKey),
        ("Sec-WebSocket-Key", Some("dGhlIHNhbXBsZSBub25jZQ="), HandshakeError::InvalidKey),
        ("Sec-WebSocket-Key", Some("dGhlIHNhbXBsZSBub25jZQAA"), HandshakeError::InvalidKey),
        ("Sec-WebSocket-Key", Some("dGhlIHNhbXBsZSBub25j_Q=="), HandshakeError::InvalidKey),
        ("sec-websocket-version", Some("13"), HandshakeError::UnsupportedVersion),
        ("sec-websocket-key", Some(KEY), HandshakeError::InvalidKey),
    ] {
        assert_eq!(judge(name, value), Err(refusal), "{name}: {value:?}");
    }
    let fields = [("Upgrade", "websocket"), ("Connection", "Upgrade")];
    let fields = || fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    let judged = validate_http1(Method::Post, Version::Http11, fields());
    assert_eq!(judged, Err(HandshakeError::MethodNotGet));
    let judged = validate_http1(Method::Get, Version::Http10, fields());
    assert_eq!(judged, Err(HandshakeError::MissingUpgrade));
}

#[test]
fn lists_are_searched_by_token() {
    let lists = || [&b"a, Upgrade ,b"[..], b"c"].into_iter();
    assert!(has_token(lists(), "upgrade") && has_token(lists(), "C"));
    assert!(!has_token(lists(), "up") && !has_token(lists(), ""));
}

#[test]
fn the_first_protocol_of_the_clients_that_the_server_supports_is_chosen() {
    let offers = || [&b"soap, wamp"[..], b"chat"].into_iter();
    assert_eq!(choose_protocol(offers(), &["chat", "wamp"]), Some("wamp"));
    assert_eq!(choose_protocol(offers(), &["Wamp"]), None);
    assert_eq!(choose_protocol(offers(), &[]), None);
}

fn hexadecimal(digest: [u8; 20]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn sha_1_has_the_digests_of_its_standard() {
    // RFC 3174 §7.3.
    for (message, digest) in [
        (b"abc".to_vec(), "a9993e364706816aba3e25717850c26c9cd0d89d"),
        (
            b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq".to_vec(),
            "84983e441c3bd26ebaae4aa1f95129e5e54670f1",
        ),
        (b"a".repeat(1_000_000), "34aa973cd4c4daa4f61eeb2bdbad27316534016f"),
        (b"0123456701234567".repeat(40), "dea356a2cddd90c7a7ecedc5ebb563934f460452"),
    ] {
        assert_eq!(hexadecimal(sha1(&message)), digest);
    }
}

fn answer(offer: &str, wishes: &DeflateConfig) -> Option<String> {
    negotiate([offer.as_bytes()], wishes).map(|agreed| agreed.to_string())
}

/// A server without preferences that supports everything.
fn all() -> DeflateConfig {
    DeflateConfig {
        server_no_context_takeover: false,
        client_no_context_takeover: false,
        server_max_window_bits: 9..=15,
        client_max_window_bits: 15,
    }
}

#[test]
fn offers_are_answered_by_what_both_can() {
    let wants_all = DeflateConfig {
        server_no_context_takeover: true,
        client_no_context_takeover: true,
        ..all()
    };
    let small =
        DeflateConfig { server_max_window_bits: 9..=11, client_max_window_bits: 10, ..all() };
    let only_15 = DeflateConfig { server_max_window_bits: 15..=15, ..all() };
    for (offer, wishes, expected) in [
        ("permessage-deflate", all(), Some("")),
        ("Permessage-Deflate", all(), Some("")),
        (
            "permessage-deflate",
            wants_all.clone(),
            Some("; server_no_context_takeover; client_no_context_takeover"),
        ),
        (
            "permessage-deflate; server_no_context_takeover",
            all(),
            Some("; server_no_context_takeover"),
        ),
        (
            "permessage-deflate;client_no_context_takeover",
            all(),
            Some("; client_no_context_takeover"),
        ),
        (
            "permessage-deflate; server_max_window_bits=10",
            all(),
            Some("; server_max_window_bits=10"),
        ),
        (
            "permessage-deflate; server_max_window_bits=\"10\"",
            all(),
            Some("; server_max_window_bits=10"),
        ),
        ("permessage-deflate; server_max_window_bits=15", all(), Some("")),
        ("permessage-deflate; server_max_window_bits=8", all(), None),
        ("permessage-deflate; server_max_window_bits=10", only_15.clone(), None),
        ("permessage-deflate; server_max_window_bits=10, permessage-deflate", only_15, Some("")),
        ("permessage-deflate", small.clone(), Some("; server_max_window_bits=11")),
        (
            "permessage-deflate; client_max_window_bits",
            small.clone(),
            Some("; server_max_window_bits=11; client_max_window_bits=10"),
        ),
        (
            "permessage-deflate; client_max_window_bits=9",
            small,
            Some("; server_max_window_bits=11; client_max_window_bits=9"),
        ),
        ("permessage-deflate; client_max_window_bits=9", all(), Some("; client_max_window_bits=9")),
        ("permessage-deflate; client_max_window_bits", all(), Some("")),
        ("x-webkit-deflate-frame, permessage-deflate", all(), Some("")),
        ("foo; a=\"x, permessage-deflate\"", all(), None),
        ("foo; a=\"\\\", permessage-deflate\", , permessage-deflate", all(), Some("")),
        ("", all(), None),
        ("permessage-bzip2", all(), None),
    ] {
        let expected = expected.map(|rest| format!("permessage-deflate{rest}"));
        assert_eq!(answer(offer, &wishes), expected, "{offer}");
    }
}

#[test]
fn offers_that_break_a_rule_are_declined() {
    for parameters in [
        "; server_max_window_bits",
        "; server_max_window_bits=",
        "; server_max_window_bits=7",
        "; server_max_window_bits=16",
        "; server_max_window_bits=010",
        "; server_max_window_bits=1 0",
        "; server_max_window_bits=10; server_max_window_bits=10",
        "; client_max_window_bits=7",
        "; client_max_window_bits=",
        "; client_max_window_bits; client_max_window_bits=10",
        "; server_no_context_takeover=1",
        "; server_no_context_takeover; server_no_context_takeover",
        "; client_no_context_takeover=\"\"",
        "; client_no_context_takeover; client_no_context_takeover",
        "; unknown",
        "; unknown=1",
        ";",
        ";; server_no_context_takeover",
        "; =1",
        " x",
        "; \"server_no_context_takeover",
    ] {
        let offer = format!("permessage-deflate{parameters}");
        assert_eq!(answer(&offer, &all()), None, "{offer}");
        let with_another = format!("permessage-deflate{parameters}, permessage-deflate");
        let is_cut = parameters.contains('"') && !parameters.ends_with('"');
        assert_eq!(answer(&with_another, &all()).is_some(), !is_cut, "{with_another}");
    }
}

#[test]
fn an_answer_must_fit_the_offer() {
    let read = |offer: &Offer, text: &str| offer.parse_response([text.as_bytes()]);
    let (plain, bits) = (
        Offer::default(),
        Offer {
            server_max_window_bits: Some(10),
            client_max_window_bits_min: Some(9),
            server_no_context_takeover: true,
            ..Offer::default()
        },
    );
    let most = DeflateParams {
        server_no_context_takeover: false,
        client_no_context_takeover: false,
        server_max_window_bits: 15,
        client_max_window_bits: 15,
    };
    assert_eq!(read(&plain, ""), Ok(None));
    assert_eq!(read(&plain, "permessage-deflate"), Ok(Some(most)));
    let right = "permessage-deflate; server_no_context_takeover; server_max_window_bits=10";
    let agreed =
        DeflateParams { server_no_context_takeover: true, server_max_window_bits: 10, ..most };
    assert_eq!(read(&bits, right), Ok(Some(agreed)));
    for (offer, answer) in [
        (plain, "permessage-deflate; client_max_window_bits=10"),
        (plain, "permessage-bzip2"),
        (plain, "permessage-deflate, permessage-deflate"),
        (plain, "permessage-deflate; server_max_window_bits"),
        (bits, "permessage-deflate"),
        (bits, "permessage-deflate; server_max_window_bits=10"),
        (bits, "permessage-deflate; server_no_context_takeover"),
        (bits, &format!("{right}; client_max_window_bits=8")),
        (bits, &format!("{right}; client_max_window_bits")),
    ] {
        assert_eq!(read(&offer, answer), Err(InvalidResponse), "{answer}");
    }
}

fn offers() -> impl Strategy<Value = Offer> {
    let bits = || proptest::option::of(8..=15_u8);
    (any::<bool>(), any::<bool>(), bits(), bits()).prop_map(
        |(server_forgets, client_forgets, server_window_bits, client_window_bits_min)| Offer {
            server_no_context_takeover: server_forgets,
            client_no_context_takeover: client_forgets,
            server_max_window_bits: server_window_bits,
            client_max_window_bits_min: client_window_bits_min,
        },
    )
}

proptest! {
    #[test]
    fn sha_1_is_as_another_has_it(message in proptest::collection::vec(any::<u8>(), 0..300)) {
        let digest: [u8; 20] = Sha1::digest(&message).into();
        prop_assert_eq!(sha1(&message), digest);
    }

    #[test]
    fn what_a_server_answers_the_client_understands(
        offer in offers(),
        server_forgets: bool,
        client_forgets: bool,
        least in 8..=15_u8,
        client_window_bits in 8..=15_u8,
    ) {
        let wishes = DeflateConfig {
            server_no_context_takeover: server_forgets,
            client_no_context_takeover: client_forgets,
            server_max_window_bits: least..=15,
            client_max_window_bits: client_window_bits,
        };
        let text = offer.to_string();
        let agreed = negotiate([text.as_bytes()], &wishes);
        let answer = agreed.map(|agreed| agreed.to_string()).unwrap_or_default();
        let read = offer.parse_response([answer.as_bytes()]);
        let too_small = offer.client_max_window_bits_min.is_some_and(|least| client_window_bits < least);
        if agreed.is_some() && too_small {
            prop_assert_eq!(read, Err(InvalidResponse));
        } else {
            prop_assert_eq!(read, Ok(agreed));
        }
    }
}
