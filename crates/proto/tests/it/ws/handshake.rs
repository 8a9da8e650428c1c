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

/// Validates a valid request after one field was replaced or removed.
fn validate_with(name: &str, value: Option<&str>) -> Result<HandshakeKey, HandshakeError> {
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
fn a_handshake_requires_an_upgrade_a_version_and_a_key() {
    let key = validate_with("Host", None).unwrap();
    assert_eq!(key.as_str(), KEY);
    assert_eq!(key, HandshakeKey::new(*b"the sample nonce"));
    assert_eq!(&key.derive_accept(), b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert!(validate_with("Upgrade", Some("h2c, WebSocket")).is_ok());
    for (name, value, error) in [
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
        assert_eq!(validate_with(name, value), Err(error), "{name}: {value:?}");
    }
    let fields = [("Upgrade", "websocket"), ("Connection", "Upgrade")];
    let fields = || fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    let result = validate_http1(Method::Post, Version::Http11, fields());
    assert_eq!(result, Err(HandshakeError::MethodNotGet));
    let result = validate_http1(Method::Get, Version::Http10, fields());
    assert_eq!(result, Err(HandshakeError::MissingUpgrade));
}

#[test]
fn has_token_ignores_case_and_compares_whole_tokens() {
    let lists = || [&b"a, Upgrade ,b"[..], b"c"].into_iter();
    assert!(has_token(lists(), "upgrade") && has_token(lists(), "C"));
    assert!(!has_token(lists(), "up") && !has_token(lists(), ""));
}

#[test]
fn choose_protocol_returns_the_first_offer_that_is_supported() {
    let offers = || [&b"soap, wamp"[..], b"chat"].into_iter();
    assert_eq!(choose_protocol(offers(), &["chat", "wamp"]), Some("wamp"));
    assert_eq!(choose_protocol(offers(), &["Wamp"]), None);
    assert_eq!(choose_protocol(offers(), &[]), None);
}

fn hexadecimal(digest: [u8; 20]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn sha_1_matches_the_examples_of_rfc_3174() {
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

fn negotiate_text(offer: &str, config: &DeflateConfig) -> Option<String> {
    negotiate([offer.as_bytes()], config).map(|params| params.to_string())
}

/// The config of a server without preferences that supports everything.
fn full_config() -> DeflateConfig {
    DeflateConfig {
        server_no_context_takeover: false,
        client_no_context_takeover: false,
        server_max_window_bits: 9..=15,
        client_max_window_bits: 15,
    }
}

#[test]
fn negotiate_responds_with_what_both_ends_support() {
    let prefers_resets = DeflateConfig {
        server_no_context_takeover: true,
        client_no_context_takeover: true,
        ..full_config()
    };
    let small_windows = DeflateConfig {
        server_max_window_bits: 9..=11,
        client_max_window_bits: 10,
        ..full_config()
    };
    let only_15 = DeflateConfig { server_max_window_bits: 15..=15, ..full_config() };
    for (offer, config, expected) in [
        ("permessage-deflate", full_config(), Some("")),
        ("Permessage-Deflate", full_config(), Some("")),
        (
            "permessage-deflate",
            prefers_resets.clone(),
            Some("; server_no_context_takeover; client_no_context_takeover"),
        ),
        (
            "permessage-deflate; server_no_context_takeover",
            full_config(),
            Some("; server_no_context_takeover"),
        ),
        (
            "permessage-deflate;client_no_context_takeover",
            full_config(),
            Some("; client_no_context_takeover"),
        ),
        (
            "permessage-deflate; server_max_window_bits=10",
            full_config(),
            Some("; server_max_window_bits=10"),
        ),
        (
            "permessage-deflate; server_max_window_bits=\"10\"",
            full_config(),
            Some("; server_max_window_bits=10"),
        ),
        ("permessage-deflate; server_max_window_bits=15", full_config(), Some("")),
        ("permessage-deflate; server_max_window_bits=8", full_config(), None),
        ("permessage-deflate; server_max_window_bits=10", only_15.clone(), None),
        ("permessage-deflate; server_max_window_bits=10, permessage-deflate", only_15, Some("")),
        ("permessage-deflate", small_windows.clone(), Some("; server_max_window_bits=11")),
        (
            "permessage-deflate; client_max_window_bits",
            small_windows.clone(),
            Some("; server_max_window_bits=11; client_max_window_bits=10"),
        ),
        (
            "permessage-deflate; client_max_window_bits=9",
            small_windows,
            Some("; server_max_window_bits=11; client_max_window_bits=9"),
        ),
        (
            "permessage-deflate; client_max_window_bits=9",
            full_config(),
            Some("; client_max_window_bits=9"),
        ),
        ("permessage-deflate; client_max_window_bits", full_config(), Some("")),
        ("x-webkit-deflate-frame, permessage-deflate", full_config(), Some("")),
        ("foo; a=\"x, permessage-deflate\"", full_config(), None),
        ("foo; a=\"\\\", permessage-deflate\", , permessage-deflate", full_config(), Some("")),
        ("", full_config(), None),
        ("permessage-bzip2", full_config(), None),
    ] {
        let expected = expected.map(|parameters| format!("permessage-deflate{parameters}"));
        assert_eq!(negotiate_text(offer, &config), expected, "{offer}");
    }
}

#[test]
fn malformed_offers_are_declined() {
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
        assert_eq!(negotiate_text(&offer, &full_config()), None, "{offer}");
        let followed_by_valid = format!("permessage-deflate{parameters}, permessage-deflate");
        let is_unterminated = parameters.contains('"') && !parameters.ends_with('"');
        assert_eq!(
            negotiate_text(&followed_by_valid, &full_config()).is_some(),
            !is_unterminated,
            "{followed_by_valid}"
        );
    }
}

#[test]
fn parse_response_rejects_a_response_that_does_not_match_the_offer() {
    let parse = |offer: &Offer, text: &str| offer.parse_response([text.as_bytes()]);
    let (plain, restricted) = (
        Offer::default(),
        Offer {
            server_max_window_bits: Some(10),
            client_max_window_bits_min: Some(9),
            server_no_context_takeover: true,
            ..Offer::default()
        },
    );
    let largest_windows = DeflateParams {
        server_no_context_takeover: false,
        client_no_context_takeover: false,
        server_max_window_bits: 15,
        client_max_window_bits: 15,
    };
    assert_eq!(parse(&plain, ""), Ok(None));
    assert_eq!(parse(&plain, "permessage-deflate"), Ok(Some(largest_windows)));
    let response = "permessage-deflate; server_no_context_takeover; server_max_window_bits=10";
    let params = DeflateParams {
        server_no_context_takeover: true,
        server_max_window_bits: 10,
        ..largest_windows
    };
    assert_eq!(parse(&restricted, response), Ok(Some(params)));
    for (offer, text) in [
        (plain, "permessage-deflate; client_max_window_bits=10"),
        (plain, "permessage-bzip2"),
        (plain, "permessage-deflate, permessage-deflate"),
        (plain, "permessage-deflate; server_max_window_bits"),
        (restricted, "permessage-deflate"),
        (restricted, "permessage-deflate; server_max_window_bits=10"),
        (restricted, "permessage-deflate; server_no_context_takeover"),
        (restricted, &format!("{response}; client_max_window_bits=8")),
        (restricted, &format!("{response}; client_max_window_bits")),
    ] {
        assert_eq!(parse(&offer, text), Err(InvalidResponse), "{text}");
    }
}

fn offers() -> impl Strategy<Value = Offer> {
    let bits = || proptest::option::of(8..=15_u8);
    (any::<bool>(), any::<bool>(), bits(), bits()).prop_map(
        |(server_resets, client_resets, server_window_bits, client_window_bits_min)| Offer {
            server_no_context_takeover: server_resets,
            client_no_context_takeover: client_resets,
            server_max_window_bits: server_window_bits,
            client_max_window_bits_min: client_window_bits_min,
        },
    )
}

proptest! {
    #[test]
    fn sha_1_matches_another_implementation(
        message in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let digest: [u8; 20] = Sha1::digest(&message).into();
        prop_assert_eq!(sha1(&message), digest);
    }

    #[test]
    fn clients_accept_the_responses_of_servers(
        offer in offers(),
        server_resets: bool,
        client_resets: bool,
        bits_min in 8..=15_u8,
        client_window_bits in 8..=15_u8,
    ) {
        let config = DeflateConfig {
            server_no_context_takeover: server_resets,
            client_no_context_takeover: client_resets,
            server_max_window_bits: bits_min..=15,
            client_max_window_bits: client_window_bits,
        };
        let text = offer.to_string();
        let params = negotiate([text.as_bytes()], &config);
        let response = params.map(|params| params.to_string()).unwrap_or_default();
        let result = offer.parse_response([response.as_bytes()]);
        let client_bits_min = offer.client_max_window_bits_min;
        let is_too_small = client_bits_min.is_some_and(|bits_min| client_window_bits < bits_min);
        if params.is_some() && is_too_small {
            prop_assert_eq!(result, Err(InvalidResponse));
        } else {
            prop_assert_eq!(result, Ok(params));
        }
    }
}
