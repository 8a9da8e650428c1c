//! Which hosts a connection's certificate is valid for.

use crate::peer::{BOTH_VERSIONS, Identity, Pair, client_config, identity};
use peregrine_tls::TlsConfig;
use peregrine_tls::rustls::ClientConfig;
use std::sync::Arc;

fn tls(identity: &Identity) -> TlsConfig {
    TlsConfig::from_pem(identity.certificate.as_bytes(), identity.key.as_bytes()).unwrap()
}

fn is_valid_for(pair: &mut Pair, authority: &str) -> bool {
    pair.session.certificate_names().unwrap().matches(authority)
}

#[test]
fn names_wildcards_and_addresses_are_matched_as_by_clients() {
    let server_identity =
        identity(&["localhost", "*.bird.test", "Upper.test", "192.0.2.7", "2001:db8::7"]);
    let client = Arc::new(client_config(&BOTH_VERSIONS, &[&server_identity.certificate]));
    let mut pair = Pair::connected(&tls(&server_identity).with_host_check(), &client, "localhost");
    for (authority, expected) in [
        ("localhost", true),
        ("localhost", true),
        ("localhost:", true),
        ("localhost:8443", true),
        ("LocalHost", true),
        ("localhost.", true),
        ("a.localhost", false),
        ("upper.test:1", true),
        ("kite.bird.test", true),
        ("red.kite.bird.test", false),
        ("bird.test", false),
        ("*.bird.test", false),
        (".bird.test", false),
        ("192.0.2.7", true),
        ("192.0.2.7:443", true),
        ("192.0.2.8", false),
        ("[2001:db8::7]", true),
        ("[2001:DB8:0::7]:443", true),
        ("[2001:db8::8]:443", false),
        ("[v1.x]", false),
        ("", false),
        (":443", false),
        ("localhost", true),
    ] {
        assert_eq!(is_valid_for(&mut pair, authority), expected, "{authority}");
    }
}

#[test]
fn the_chosen_certificate_is_checked_also_after_resumption() {
    let (first, second) = (identity(&["first.test"]), identity(&["second.test"]));
    let config = tls(&first)
        .with_host_check()
        .with_certificate_pem(second.certificate.as_bytes(), second.key.as_bytes())
        .unwrap();
    for version in BOTH_VERSIONS {
        let trusted = [first.certificate.as_str(), second.certificate.as_str()];
        let client: Arc<ClientConfig> = Arc::new(client_config(&[version], &trusted));
        for (name, other) in [("first.test", "second.test"), ("second.test", "first.test")] {
            for resumed in [false, true] {
                let mut pair = Pair::connected(&config, &client, name);
                assert_eq!(pair.session.handshake_info().unwrap().resumed, resumed);
                assert!(is_valid_for(&mut pair, name));
                assert!(!is_valid_for(&mut pair, other));
            }
        }
    }
}

#[test]
fn hosts_are_checked_only_if_enabled_also_with_an_external_configuration() {
    use peregrine_tls::rustls::ServerConfig;
    use peregrine_tls::rustls::server::{ClientHello, ResolvesServerCert};
    use peregrine_tls::rustls::sign::CertifiedKey;
    use rustls_pki_types::pem::PemObject;
    use rustls_pki_types::{CertificateDer, PrivateKeyDer};

    #[derive(Debug)]
    struct FixedCertificate(Arc<CertifiedKey>);
    impl ResolvesServerCert for FixedCertificate {
        fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            Some(self.0.clone())
        }
    }
    let server_identity = identity(&["localhost"]);
    let client = Arc::new(client_config(&BOTH_VERSIONS, &[&server_identity.certificate]));
    let provider = Arc::new(peregrine_tls::rustls::crypto::aws_lc_rs::default_provider());
    let key = PrivateKeyDer::from_pem_slice(server_identity.key.as_bytes()).unwrap();
    let key = provider.key_provider.load_private_key(key).unwrap();
    let chain =
        vec![CertificateDer::from_pem_slice(server_identity.certificate.as_bytes()).unwrap()];
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(FixedCertificate(Arc::new(CertifiedKey::new(chain, key)))));
    let external = TlsConfig::from_config(Arc::new(config)).unwrap();
    let mut pair = Pair::connected(&external.clone().with_host_check(), &client, "localhost");
    assert_eq!(pair.session.handshake_info().unwrap().server_name, Some("localhost"));
    assert!(is_valid_for(&mut pair, "localhost") && !is_valid_for(&mut pair, "other.test"));
    for without_check in [external, tls(&server_identity)] {
        assert!(
            Pair::connected(&without_check, &client, "localhost")
                .session
                .certificate_names()
                .is_none()
        );
    }
}
