//! Client certificates: identities, and which clients are rejected.

use crate::peer::{Authority, BOTH_VERSIONS, Identity, Pair, TLS12, TLS13, der, identity};
use peregrine_tls::rustls::{
    AlertDescription, ClientConfig, Error, RootCertStore, SupportedProtocolVersion,
};
use peregrine_tls::{ClientAuth, TlsConfig, TlsConnectionError, TlsSetupError, TlsWarning};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A server for `localhost`, and the roots that its clients trust.
struct Server {
    tls: TlsConfig,
    certificate: String,
}

fn server(client_auth: ClientAuth) -> Server {
    let server_identity = identity(&["localhost"]);
    let tls =
        TlsConfig::from_pem(server_identity.certificate.as_bytes(), server_identity.key.as_bytes())
            .unwrap();
    Server {
        tls: tls.with_client_auth(client_auth).unwrap(),
        certificate: server_identity.certificate,
    }
}

impl Server {
    /// A client that presents this certificate, if any.
    fn client(
        &self,
        version: &'static SupportedProtocolVersion,
        client_identity: Option<&Identity>,
    ) -> Arc<ClientConfig> {
        let provider = peregrine_tls::rustls::crypto::aws_lc_rs::default_provider();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match client_identity {
            None => builder.with_no_client_auth(),
            Some(client_identity) => {
                let chain = CertificateDer::pem_slice_iter(client_identity.certificate.as_bytes());
                let chain = chain.collect::<Result<_, _>>().unwrap();
                let key = PrivateKeyDer::from_pem_slice(client_identity.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        })
    }

    /// The server's error, and the alert that the client receives.
    fn reject(&self, client: &Arc<ClientConfig>) -> (TlsConnectionError, Option<AlertDescription>) {
        let mut pair = Pair::new(&self.tls, client, "localhost");
        loop {
            let bytes = pair.client_bytes();
            assert!(!bytes.is_empty() || !pair.out.is_empty(), "neither side rejected the other");
            let server_result =
                if bytes.is_empty() { Ok(()) } else { pair.deliver(&bytes).map(drop) };
            let client_result = pair.deliver_output();
            if let Err(error) = server_result {
                return match client_result {
                    Err(Error::AlertReceived(alert)) => (error, Some(alert)),
                    _ => (error, None),
                };
            }
        }
    }
}

fn pem(authority: &Authority) -> &[u8] {
    authority.certificate.as_bytes()
}

#[test]
fn the_client_identity_is_available_also_after_resumption() {
    let authority = Authority::new("clients");
    let alice = authority.issue(&["alice.test"], |parameters| {
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters.distinguished_name.push(rcgen::DnType::OrganizationName, "Example");
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "alice");
        let id = "spiffe://example.test/alice".try_into().unwrap();
        parameters.subject_alt_names.push(rcgen::SanType::URI(id));
    });
    let server = server(ClientAuth::required().roots_pem(pem(&authority)));
    for version in BOTH_VERSIONS {
        let client = server.client(version, Some(&alice));
        for resumed in [false, true, true] {
            let pair = Pair::connected(&server.tls, &client, "localhost");
            assert_eq!(pair.session.handshake_info().unwrap().resumed, resumed);
            let identity = pair.session.peer_certificate().unwrap();
            assert_eq!(identity.subject, "CN=alice,O=Example");
            assert_eq!(identity.common_name.as_deref(), Some("alice"));
            assert_eq!(identity.dns_names, ["alice.test"]);
            assert_eq!(identity.uris, ["spiffe://example.test/alice"]);
            assert_eq!(identity.chain, [der(&alice.certificate)]);
        }
    }
}

#[test]
fn a_client_without_a_certificate_is_rejected_only_if_one_is_required() {
    let authority = Authority::new("clients");
    let alice = authority.issue(&["alice.test"], |_| {});
    let required = server(ClientAuth::required().roots_pem(pem(&authority)));
    for (version, alert) in [
        (TLS13, AlertDescription::CertificateRequired),
        (TLS12, AlertDescription::CertificateRequired),
    ] {
        let (error, received_alert) = required.reject(&required.client(version, None));
        assert_eq!(error, TlsConnectionError::NoClientCertificate);
        assert_eq!(error.client_certificate_error(), Some("client-certificate-missing"));
        assert_eq!(received_alert, Some(alert), "{version:?}");
    }
    let optional = server(ClientAuth::optional().roots_pem(pem(&authority)));
    for version in BOTH_VERSIONS {
        for (client_identity, is_known) in [(None, false), (Some(&alice), true)] {
            let client = optional.client(version, client_identity);
            for _ in 0..2 {
                let pair = Pair::connected(&optional.tls, &client, "localhost");
                assert_eq!(pair.session.peer_certificate().is_some(), is_known);
            }
        }
    }
}

#[test]
fn an_invalid_client_certificate_is_rejected_even_if_optional() {
    let (authority, other_authority) = (Authority::new("clients"), Authority::new("strangers"));
    let crl = authority.revocation_list(&[7], 2999);
    let with_serial = |serial: u64| {
        authority.issue(&["a.test"], |parameters| {
            parameters.serial_number = Some(serial.into());
        })
    };
    let with_validity = |from: i32, until: i32| {
        authority.issue(&["a.test"], |parameters| {
            parameters.not_before = rcgen::date_time_ymd(from, 1, 1);
            parameters.not_after = rcgen::date_time_ymd(until, 1, 1);
        })
    };
    let server_certificate = authority.issue(&["a.test"], |parameters| {
        parameters.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    });
    let table = [
        (with_validity(2000, 2001), "expired", AlertDescription::CertificateExpired),
        (with_validity(2990, 2999), "expired", AlertDescription::CertificateExpired),
        (other_authority.issue(&["a.test"], |_| {}), "unknown", AlertDescription::UnknownCA),
        (with_serial(7), "revoked", AlertDescription::CertificateRevoked),
        (server_certificate, "refused", AlertDescription::UnsupportedCertificate),
    ];
    for client_auth in [ClientAuth::required(), ClientAuth::optional()] {
        let server = server(client_auth.roots_pem(pem(&authority)).crl(crl.as_bytes()));
        for version in BOTH_VERSIONS {
            for (client_identity, suffix, alert) in &table {
                let (error, received_alert) =
                    server.reject(&server.client(version, Some(client_identity)));
                let suffix = format!("client-certificate-{suffix}");
                assert_eq!(error.client_certificate_error(), Some(&*suffix), "{error:?}");
                assert_eq!(received_alert, Some(*alert), "{error:?}");
            }
            Pair::connected(
                &server.tls,
                &server.client(version, Some(&with_serial(8))),
                "localhost",
            );
        }
    }
}

#[test]
fn an_expired_crl_rejects_clients_and_causes_a_warning() {
    let authority = Authority::new("clients");
    let alice = authority.issue(&["alice.test"], |_| {});
    let expired_crl = authority.revocation_list(&[7], 2001);
    let server =
        server(ClientAuth::required().roots_pem(pem(&authority)).crl(expired_crl.as_bytes()));
    assert!(matches!(server.tls.warnings(), [TlsWarning::RevocationListExpired { .. }]));
    let (error, alert) = server.reject(&server.client(TLS13, Some(&alice)));
    assert_eq!(error.client_certificate_error(), Some("client-certificate-unchecked"));
    assert_eq!(alert, Some(AlertDescription::UnknownCA));
}

#[test]
fn an_intermediate_issuer_needs_a_crl_unless_only_end_entities_are_checked() {
    let root = Authority::new("root");
    let intermediate = root.issue_authority("between");
    let alice = intermediate.issue(&["alice.test"], |_| {});
    let chain = Identity {
        certificate: [alice.certificate.as_str(), &intermediate.certificate].concat(),
        key: alice.key,
    };
    let crl = intermediate.revocation_list(&[7], 2999);
    let client_auth = || ClientAuth::required().roots_pem(pem(&root)).crl(crl.as_bytes());
    let strict = server(client_auth());
    let (error, _) = strict.reject(&strict.client(TLS13, Some(&chain)));
    assert_eq!(error.client_certificate_error(), Some("client-certificate-unchecked"));
    let lenient = server(client_auth().only_check_end_entity_revocation());
    let pair = Pair::connected(&lenient.tls, &lenient.client(TLS13, Some(&chain)), "localhost");
    assert_eq!(pair.session.peer_certificate().unwrap().chain.len(), 2);
}

#[test]
fn a_client_revoked_or_distrusted_by_a_reload_cannot_resume() {
    let dir = tempfile::tempdir().unwrap();
    let (roots, crl) = (dir.path().join("roots.pem"), dir.path().join("revoked.pem"));
    let authority = Authority::new("clients");
    let alice = authority.issue(&["alice.test"], |parameters| {
        parameters.serial_number = Some(7_u64.into());
    });
    for version in BOTH_VERSIONS {
        std::fs::write(&roots, &authority.certificate).unwrap();
        std::fs::write(&crl, authority.revocation_list(&[], 2999)).unwrap();
        let server = server(ClientAuth::required().roots_file(&roots).crl_file(&crl));
        let client = server.client(version, Some(&alice));
        let mut established = Pair::connected(&server.tls, &client, "localhost");
        let resumed = Pair::connected(&server.tls, &client, "localhost");
        assert!(resumed.session.handshake_info().unwrap().resumed);
        // A list that is malformed or has expired changes nothing.
        std::fs::write(&crl, "nothing").unwrap();
        assert!(matches!(server.tls.reload(), Err(TlsSetupError::NoRevocationList { .. })));
        std::fs::write(&crl, authority.revocation_list(&[7], 2001)).unwrap();
        assert!(matches!(server.tls.reload(), Err(TlsSetupError::ExpiredRevocationList { .. })));
        let resumed = Pair::connected(&server.tls, &client, "localhost");
        assert!(resumed.session.handshake_info().unwrap().resumed);
        std::fs::write(&crl, authority.revocation_list(&[7], 2999)).unwrap();
        assert!(server.tls.reload().unwrap().client_auth);
        let (error, _) = server.reject(&client);
        assert_eq!(error.client_certificate_error(), Some("client-certificate-revoked"));
        established.client_send(b"still here");
        assert_eq!(established.plain, b"still here", "an open connection stays");
        // With other roots.
        let client = server.client(version, Some(&alice));
        std::fs::write(&crl, authority.revocation_list(&[], 2999)).unwrap();
        server.tls.reload().unwrap();
        Pair::connected(&server.tls, &client, "localhost");
        std::fs::write(&roots, Authority::new("others").certificate).unwrap();
        server.tls.reload().unwrap();
        let (error, _) = server.reject(&client);
        assert_eq!(error.client_certificate_error(), Some("client-certificate-unknown"));
    }
}

#[test]
fn a_ticket_issued_without_client_auth_does_not_bypass_it() {
    let authority = Authority::new("clients");
    let server_identity = identity(&["localhost"]);
    let without_auth =
        TlsConfig::from_pem(server_identity.certificate.as_bytes(), server_identity.key.as_bytes())
            .unwrap();
    let client_auth = ClientAuth::required().roots_pem(pem(&authority));
    // The same ticket keys, as two listeners of a server may have them.
    let with_auth = without_auth.clone().with_client_auth(client_auth).unwrap();
    assert_eq!(
        without_auth.ticket_keys().unwrap().secrets(),
        with_auth.ticket_keys().unwrap().secrets()
    );
    for version in BOTH_VERSIONS {
        let server =
            Server { tls: with_auth.clone(), certificate: server_identity.certificate.clone() };
        let client = server.client(version, None);
        Pair::connected(&without_auth, &client, "localhost");
        let (error, _) = server.reject(&client);
        assert_eq!(error, TlsConnectionError::NoClientCertificate);
    }
}

#[test]
fn a_ticket_expires_with_the_client_certificate() {
    let authority = Authority::new("clients");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let not_after = now + 4;
    let alice = authority.issue(&["alice.test"], |parameters| {
        parameters.not_after = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(not_after);
    });
    let server = server(ClientAuth::required().roots_pem(pem(&authority)));
    let clients = BOTH_VERSIONS.map(|version| server.client(version, Some(&alice)));
    for client in &clients {
        // The second ticket is issued for a resumed session.
        for _ in 0..2 {
            Pair::connected(&server.tls, client, "localhost");
        }
    }
    while SystemTime::now() < SystemTime::UNIX_EPOCH + Duration::from_secs(not_after + 1) {
        std::thread::sleep(Duration::from_millis(50));
    }
    for client in &clients {
        let (error, alert) = server.reject(client);
        assert_eq!(error.client_certificate_error(), Some("client-certificate-expired"));
        assert_eq!(alert, Some(AlertDescription::CertificateExpired));
    }
}

#[test]
fn invalid_client_auth_settings_are_reported_with_the_fix() {
    let server_identity = identity(&["localhost"]);
    let tls =
        TlsConfig::from_pem(server_identity.certificate.as_bytes(), server_identity.key.as_bytes())
            .unwrap();
    let error = |client_auth: ClientAuth| tls.clone().with_client_auth(client_auth).unwrap_err();
    let authority = Authority::new("clients");
    let invalid_certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let invalid_crl = "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n";
    let required = ClientAuth::required;
    for (error, variant, remedy) in [
        (error(required()), "NoRoots", "roots_file"),
        (error(required().roots_file("no-such.pem")), "Unreadable", "no-such.pem"),
        (error(required().roots_pem(b"")), "NoCertificate", "BEGIN CERTIFICATE"),
        (
            error(required().roots_pem(invalid_certificate.as_bytes())),
            "BadRoot",
            "client certificate issuers",
        ),
        (error(required().roots_pem(pem(&authority)).crl(b"")), "NoRevocationList", "X509 CRL"),
        (
            error(required().roots_pem(pem(&authority)).crl(invalid_crl.as_bytes())),
            "BadRevocationList",
            "get a new one",
        ),
    ] {
        let (debug, text) = (format!("{error:?}"), error.to_string());
        assert!(debug.starts_with(variant), "{debug} is not {variant}");
        assert!(text.contains(remedy), "{text} lacks {remedy}");
    }
}
