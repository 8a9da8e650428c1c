//! Tokens signed by test issuers, with a test clock.

mod published;

use super::{ClaimRule, Jwt, JwtKeyError, JwtKeys, JwtVerifier};
use crate::{Authenticate, User};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, encode, get_current_timestamp};
use peregrine_web::App;
use peregrine_web::testing::{TestClient, block_on};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

const ISSUER: &str = "https://id.example";

#[derive(Clone, Debug, Deserialize, PartialEq)]
struct Claims {
    sub: String,
}

/// An issuer's key pair.
struct Signer {
    algorithm: Algorithm,
    encoding: EncodingKey,
    jwk: Value,
}

impl Signer {
    fn es256(id: &str) -> Self {
        let rng = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &rng).expect("a key");
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref()).expect("a key");
        let point = pair.public_key().as_ref();
        let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let jwk = json!({
            "kty": "EC", "crv": "P-256", "kid": id, "use": "sig",
            "x": part(&point[1..33]), "y": part(&point[33..]),
        });
        let encoding = EncodingKey::from_ec_der(document.as_ref());
        Self { algorithm: Algorithm::ES256, encoding, jwk }
    }

    fn ed25519(id: &str) -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).expect("a key");
        let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
        let jwk = json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": x, "alg": "EdDSA"});
        let encoding = EncodingKey::from_ed_der(document.as_ref());
        Self { algorithm: Algorithm::EdDSA, encoding, jwk }
    }

    fn header(&self) -> Header {
        let mut header = Header::new(self.algorithm);
        header.kid = self.jwk["kid"].as_str().map(str::to_owned);
        header
    }

    fn sign(&self, claims: &Value) -> String {
        self.sign_with(&self.header(), claims)
    }

    fn sign_with(&self, header: &Header, claims: &Value) -> String {
        encode(header, claims, &self.encoding).expect("the key signs")
    }
}

fn jwks_document(signers: &[&Signer]) -> String {
    let keys: Vec<_> = signers.iter().map(|signer| &signer.jwk).collect();
    json!({ "keys": keys }).to_string()
}

/// Valid claims with these changes; null removes a claim.
fn claims(changes: Value) -> Value {
    let now = get_current_timestamp();
    let mut claims = json!({"sub": "alice", "iss": ISSUER, "aud": "birds", "exp": now + 300});
    for (name, value) in changes.as_object().expect("an object") {
        match value {
            Value::Null => drop(claims.as_object_mut().and_then(|claims| claims.remove(name))),
            value => claims[name] = value.clone(),
        }
    }
    claims
}

fn verify(verifier: &JwtVerifier, token: &str) -> Result<Claims, (u16, String)> {
    let result = block_on(verifier.verify::<Claims>(token));
    result.map_err(|problem| (problem.status.as_u16(), problem.detail.into_owned()))
}

fn accepted() -> Result<Claims, (u16, String)> {
    Ok(Claims { sub: "alice".to_owned() })
}

fn rejected(detail: &str) -> Result<Claims, (u16, String)> {
    Err((401, detail.to_owned()))
}

#[test]
fn tokens_must_be_current_and_for_this_service() {
    let signer = Signer::es256("1");
    let keys = JwtKeys::from_jwks(&jwks_document(&[&signer])).expect("a set");
    let verifier = JwtVerifier::new(keys, [ISSUER, "https://other.example"], "birds");
    let now = get_current_timestamp();
    let missing_claim = "The token lacks one of exp, iss and aud.";
    for (changes, expected) in [
        (json!({}), accepted()),
        (json!({"iss": "https://other.example"}), accepted()),
        (json!({"aud": ["fish", "birds"]}), accepted()),
        (json!({"nbf": now - 1}), accepted()),
        (json!({"exp": now - 10}), accepted()),
        (json!({"nbf": now + 10}), accepted()),
        (json!({"exp": now - 100}), rejected("The token has expired.")),
        (json!({"exp": 0}), rejected("The token has expired.")),
        (json!({"nbf": now + 100}), rejected("The token is not valid yet.")),
        (json!({"iss": "https://id.example.evil"}), rejected("The token is from another issuer.")),
        (json!({"aud": "fish"}), rejected("The token is for another audience.")),
        (json!({"aud": []}), rejected("The token is for another audience.")),
        (json!({"exp": null}), rejected(missing_claim)),
        (json!({"iss": null}), rejected(missing_claim)),
        (json!({"aud": null}), rejected(missing_claim)),
        (json!({"exp": "tomorrow"}), rejected(missing_claim)),
        (json!({"aud": 7}), rejected(missing_claim)),
        (json!({"sub": 7}), rejected("The token's claims do not have the expected form.")),
    ] {
        assert_eq!(
            verify(&verifier, &signer.sign(&claims(changes.clone()))),
            expected,
            "{changes}"
        );
    }
    let strict = verifier.leeway(Duration::ZERO);
    let expired = signer.sign(&claims(json!({"exp": now - 10})));
    assert_eq!(verify(&strict, &expired), rejected("The token has expired."));
    let keys = JwtKeys::from_jwks(&jwks_document(&[&signer])).expect("a set");
    let any = JwtVerifier::new(keys, ClaimRule::Any, ClaimRule::Any);
    let unnamed = claims(json!({"iss": null, "aud": null}));
    assert_eq!(verify(&any, &signer.sign(&unnamed)), accepted());
    assert_eq!(verify(&any, &signer.sign(&claims(json!({"aud": "fish"})))), accepted());
    assert_eq!(verify(&any, &signer.sign(&claims(json!({"exp": null})))), rejected(missing_claim));
}

#[test]
fn a_token_cannot_choose_its_own_verification() {
    let (signer, other) = (Signer::es256("1"), Signer::es256("1"));
    let document = jwks_document(&[&signer]);
    let keys = JwtKeys::from_jwks(&document).expect("a set");
    let verifier = JwtVerifier::new(keys, ISSUER, "birds");
    let valid_claims = claims(json!({}));
    assert_eq!(verify(&verifier, &signer.sign(&valid_claims)), accepted());
    let bad_signature = rejected("The token's signature is wrong.");
    assert_eq!(verify(&verifier, &other.sign(&valid_claims)), bad_signature);

    // The public key, which everyone has, as the secret of HS256.
    let mut header = Header::new(Algorithm::HS256);
    header.kid = Some("1".to_owned());
    for secret in [document.as_bytes(), &URL_SAFE_NO_PAD.decode("AAAA").expect("base64")] {
        let forged =
            encode(&header, &valid_claims, &EncodingKey::from_secret(secret)).expect("signed");
        assert_eq!(verify(&verifier, &forged), rejected("No key of the issuer fits the token."));
    }
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    for algorithm in ["none", "None", "", "HS257"] {
        let header = part(&json!({"alg": algorithm, "kid": "1"}));
        for signature in ["", "AAAA"] {
            let forged = format!("{header}.{}.{signature}", part(&valid_claims));
            assert_eq!(verify(&verifier, &forged), rejected("The token is not a signed JWT."));
        }
    }
    // The token carries its own key in its header.
    let mut header = other.header();
    header.jwk = serde_json::from_value(other.jwk.clone()).expect("a key");
    header.jku = Some("https://evil.example/keys".to_owned());
    assert_eq!(verify(&verifier, &other.sign_with(&header, &valid_claims)), bad_signature);

    let mut header = signer.header();
    header.crit = Some(vec!["exp".to_owned()]);
    let critical = rejected("The token has unknown critical extensions.");
    assert_eq!(verify(&verifier, &signer.sign_with(&header, &valid_claims)), critical);

    let restricted = verifier.clone().algorithms([Algorithm::EdDSA]);
    let other_algorithm = rejected("The token's algorithm is not accepted here.");
    assert_eq!(verify(&restricted, &signer.sign(&valid_claims)), other_algorithm);

    let access = verifier.typ("at+jwt");
    assert_eq!(
        verify(&access, &signer.sign(&valid_claims)),
        rejected("The token has another type.")
    );
    for typ in ["at+jwt", "AT+JWT", "application/at+jwt"] {
        let mut header = signer.header();
        header.typ = Some(typ.to_owned());
        assert_eq!(verify(&access, &signer.sign_with(&header, &valid_claims)), accepted(), "{typ}");
    }
}

#[test]
fn rejects_malformed_tokens() {
    let signer = Signer::es256("1");
    let keys = JwtKeys::from_jwks(&jwks_document(&[&signer])).expect("a set");
    let verifier = JwtVerifier::new(keys, ISSUER, "birds");
    let token = signer.sign(&claims(json!({})));
    let parts: Vec<_> = token.split('.').collect();
    let (header, content, signature) = (parts[0], parts[1], parts[2]);
    for broken in [
        String::new(),
        ".".to_owned(),
        "..".to_owned(),
        "...".to_owned(),
        header.to_owned(),
        format!("{header}.{content}"),
        format!("{header}.{content}."),
        format!("{header}..{signature}"),
        format!(".{content}.{signature}"),
        format!("{header}.{content}.{signature}.{signature}"),
        format!("{header}.{content}.{signature}="),
        format!("{header}.{content}.{}", &signature[..40]),
        format!("{header}.{content}x.{signature}"),
        format!("{header}.{}.{signature}", URL_SAFE_NO_PAD.encode("[]")),
        format!("{}.{content}.{signature}", URL_SAFE_NO_PAD.encode("{}")),
        format!("{}.{content}.{signature}", URL_SAFE_NO_PAD.encode("\u{0}")),
        "a".repeat(100_000),
        format!("{}.{}.{}", "a".repeat(30_000), "b".repeat(30_000), "c".repeat(30_000)),
    ] {
        assert_eq!(verify(&verifier, &broken).map_err(|(status, _)| status), Err(401), "{broken}");
    }
    assert_eq!(verify(&verifier, &token), accepted());
}

#[test]
fn selects_the_matching_key_and_ignores_unusable_ones() {
    let (first, second, third) = (Signer::es256("1"), Signer::es256("2"), Signer::ed25519("3"));
    let mut encryption = Signer::es256("4");
    encryption.jwk["use"] = json!("enc");
    let mut wrapping = Signer::es256("5");
    wrapping.jwk["key_ops"] = json!(["wrapKey"]);
    let mut document: Value =
        serde_json::from_str(&jwks_document(&[&first, &second, &third, &encryption, &wrapping]))
            .expect("JSON");
    let secret = URL_SAFE_NO_PAD.encode([9; 32]);
    for unusable in [
        json!({"kty": "oct", "kid": "6", "k": secret}),
        json!({"kty": "AKP", "kid": "7", "alg": "ML-DSA-44", "pub": "AAAA"}),
        json!({"kty": "EC", "crv": "secp256k1", "kid": "8", "x": "AA", "y": "AA"}),
        json!({"kty": "EC", "crv": "P-256", "alg": "ES384", "kid": "9", "x": "AA", "y": "AA"}),
        json!(7),
    ] {
        document["keys"].as_array_mut().expect("a list").insert(0, unusable);
    }
    let keys = JwtKeys::from_jwks(&document.to_string()).expect("a set");
    let verifier = JwtVerifier::new(keys, ISSUER, "birds");
    let valid_claims = claims(json!({}));
    for signer in [&first, &second, &third] {
        assert_eq!(verify(&verifier, &signer.sign(&valid_claims)), accepted());
    }
    let unknown = rejected("No key of the issuer fits the token.");
    for signer in [&encryption, &wrapping] {
        assert_eq!(verify(&verifier, &signer.sign(&valid_claims)), unknown);
    }
    let mut header = Header::new(Algorithm::HS256);
    header.kid = Some("6".to_owned());
    let token =
        encode(&header, &valid_claims, &EncodingKey::from_secret(&[9; 32])).expect("signed");
    assert_eq!(verify(&verifier, &token), unknown);
    // A token without a key ID matches only if one key fits its algorithm.
    let nameless =
        |signer: &Signer| signer.sign_with(&Header { kid: None, ..signer.header() }, &valid_claims);
    assert_eq!(verify(&verifier, &nameless(&third)), accepted());
    assert_eq!(verify(&verifier, &nameless(&first)), unknown);

    for (document, word) in [
        ("", "not a key set"),
        ("[]", "no `keys` array"),
        (r#"{"keys":7}"#, "no `keys` array"),
        (r#"{"keys":[]}"#, "no public key"),
        (r#"{"keys":[{"kty":"oct","k":"AAAA"}]}"#, "no public key"),
    ] {
        let error = JwtKeys::from_jwks(document).expect_err("rejected").to_string();
        assert!(error.contains(word), "{document}: {error}");
    }
}

#[test]
fn a_key_with_the_id_of_the_token_precedes_one_without_an_id() {
    let (nameless, named) = (Signer::es256(""), Signer::es256("named"));
    let mut first = nameless.jwk.clone();
    first.as_object_mut().expect("an object").remove("kid");
    let document = json!({ "keys": [first, named.jwk] }).to_string();
    let keys = JwtKeys::from_jwks(&document).expect("a set");
    let verifier = JwtVerifier::new(keys, ISSUER, "birds");
    assert_eq!(verify(&verifier, &named.sign(&claims(json!({})))), accepted());
    let mut header = nameless.header();
    header.kid = Some("other".to_owned());
    let token = nameless.sign_with(&header, &claims(json!({})));
    assert_eq!(verify(&verifier, &token), accepted(), "the key without an ID matches unknown IDs");
}

#[test]
fn rejects_short_secrets_and_mismatched_algorithms() {
    let keys = JwtKeys::secret(Algorithm::HS256, [1; 32]).expect("long enough");
    let verifier = JwtVerifier::new(keys, ISSUER, "birds");
    let sign = |algorithm, secret: &[u8]| {
        encode(&Header::new(algorithm), &claims(json!({})), &EncodingKey::from_secret(secret))
            .expect("signed")
    };
    assert_eq!(verify(&verifier, &sign(Algorithm::HS256, &[1; 32])), accepted());
    let bad_signature = rejected("The token's signature is wrong.");
    assert_eq!(verify(&verifier, &sign(Algorithm::HS256, &[2; 32])), bad_signature);
    let no_key = rejected("No key of the issuer fits the token.");
    assert_eq!(verify(&verifier, &sign(Algorithm::HS384, &[1; 32])), no_key);
    for (algorithm, length, bytes_min) in
        [(Algorithm::HS256, 31, 32), (Algorithm::HS384, 47, 48), (Algorithm::HS512, 63, 64)]
    {
        let error = JwtKeys::secret(algorithm, vec![1; length]).expect_err("too short");
        assert_eq!(error, JwtKeyError::SecretTooShort { bytes_min });
        assert!(JwtKeys::secret(algorithm, vec![1; bytes_min]).is_ok());
    }
    let assert_wrong_algorithm = |result: Result<JwtKeys, JwtKeyError>| {
        assert_eq!(result.expect_err("rejected"), JwtKeyError::WrongAlgorithm);
    };
    assert_wrong_algorithm(JwtKeys::secret(Algorithm::ES256, [1; 64]));
    assert_wrong_algorithm(JwtKeys::public(Algorithm::HS256, DecodingKey::from_secret(&[1; 64])));
    assert_wrong_algorithm(JwtKeys::public(Algorithm::ES256, DecodingKey::from_ed_der(&[1; 32])));
}

fn client_with(verifier: &JwtVerifier) -> TestClient {
    App::new()
        .state(verifier.clone())
        .get("/", |Jwt(claims): Jwt<Claims>| claims.sub)
        .get("/maybe", |claims: Option<Jwt<Claims>>| claims.is_some().to_string())
        .scope("/in", |scope| {
            let authenticate = Authenticate::jwt::<Claims>(verifier.clone());
            scope.wrap(authenticate).get("/", |User(claims): User<Claims>| claims.sub)
        })
        .test()
}

#[test]
fn handlers_get_the_claims_and_clients_the_reason_for_a_401() {
    let signer = Signer::es256("1");
    let keys = JwtKeys::from_jwks(&jwks_document(&[&signer])).expect("a set");
    let client = client_with(&JwtVerifier::new(keys, ISSUER, "birds"));
    let send = |path: &str, token: &str| {
        client.get(path).header("authorization", format!("Bearer {token}")).send_blocking()
    };
    let token = signer.sign(&claims(json!({})));
    assert_eq!([send("/", &token).text(), send("/in", &token).text()], ["alice", "alice"]);
    assert_eq!(send("/maybe", &token).text(), "true");
    assert_eq!(client.get("/maybe").send_blocking().text(), "false");
    for path in ["/", "/in"] {
        let missing = client.get(path).send_blocking();
        assert_eq!(missing.status(), 401);
        assert_eq!(missing.header("www-authenticate"), Some(r#"Bearer realm="restricted""#));
    }
    let keys = JwtKeys::from_jwks(&jwks_document(&[&signer])).expect("a set");
    let named = client_with(&JwtVerifier::new(keys, ISSUER, "birds").realm("a \"cage\""));
    for path in ["/", "/in"] {
        for (value, error) in [
            ("x", ""),
            ("Bearer a b", ", error=\"invalid_request\""),
            ("Bearer a", ", error=\"invalid_token\""),
        ] {
            let rejected = named.get(path).header("authorization", value).send_blocking();
            let challenge = rejected.header("www-authenticate").unwrap_or_default();
            assert!(
                challenge.starts_with(&format!(r#"Bearer realm="a \"cage\""{error}"#)),
                "{challenge}"
            );
        }
    }
    let expired = signer.sign(&claims(json!({"exp": 1})));
    for path in ["/", "/in", "/maybe"] {
        let rejected = send(path, &expired);
        assert_eq!(rejected.status(), 401);
        assert!(rejected.text().contains("/problems/invalid-token"), "{}", rejected.text());
        let challenge = rejected.header("www-authenticate").expect("a challenge");
        assert_eq!(
            challenge,
            r#"Bearer realm="restricted", error="invalid_token", error_description="the token has expired""#
        );
    }
    assert_eq!(send("/maybe", "a b").status(), 400);
}

#[test]
fn building_fails_without_a_verifier() {
    let app = App::new().get("/", |Jwt(claims): Jwt<Claims>| claims.sub);
    let error = app.build().expect_err("the application has no verifier").to_string();
    assert!(error.contains("JwtVerifier"), "{error}");
}

#[test]
fn debug_output_contains_no_secret() {
    let keys = JwtKeys::secret(Algorithm::HS256, [0x41; 32]).expect("long enough");
    let output = format!("{:?}", JwtVerifier::new(keys, ISSUER, "birds"));
    assert!(
        !output.contains("AAAA") && !output.contains("65, 65") && output.contains(ISSUER),
        "{output}"
    );
}
