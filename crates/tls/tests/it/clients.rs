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

fn server(clients: ClientAuth) -> Server {
    let own = identity(&["localhost"]);
    let tls = TlsConfig::from_pem(own.certificate.as_bytes(), own.key.as_bytes()).unwrap();
    Server { tls: tls.with_client_auth(clients).unwrap(), certificate: own.certificate }
}

impl Server {
    /// A client that presents this certificate, if any.
    fn client(
        &self,
        version: &'static SupportedProtocolVersion,
        own: Option<&Identity>,
    ) -> Arc<ClientConfig> {
        let provider = peregrine_tls::rustls::crypto::aws_lc_rs::default_provider();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let chain = CertificateDer::pem_slice_iter(own.certificate.as_bytes());
                let chain = chain.collect::<Result<_, _>>().unwrap();
                let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        })
    }

    /// The server's reject, and the alert that the client receives.
    fn refuses(
        &self,
        client: &Arc<ClientConfig>,
    ) -> (TlsConnectionError, Option<AlertDescription>) {
        let mut pair = Pair::new(&self.tls, client, "localhost");
        loop {
            let bytes = pair.client_bytes();
            assert!(!bytes.is_empty() || !pair.out.is_empty(), "neither side rejected the other");
            let delivered = if bytes.is_empty() { Ok(()) } else { pair.deliver(&bytes).map(drop) };
            let answered = pair.answer();
            if let Err(reject) = delivered {
                return match answered {
                    Err(Error::AlertReceived(alert)) => (reject, Some(alert)),
                    _ => (reject, None),
                };
            }
        }
    }
}

fn pem(authority: &Authority) -> &[u8] {
    authority.certificate.as_bytes()
}

#[test]
fn who_the_client_is_is_known_and_known_again_when_it_resumes() {
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
fn a_client_without_a_certificate_is_refused_where_one_is_required_only() {
    let authority = Authority::new("clients");
    let alice = authority.issue(&["alice.test"], |_| {});
    let required = server(ClientAuth::required().roots_pem(pem(&authority)));
    for (version, alert) in [
        (TLS13, AlertDescription::CertificateRequired),
        (TLS12, AlertDescription::CertificateRequired),
    ] {
        let (reject, told) = required.refuses(&required.client(version, None));
        assert_eq!(reject, TlsConnectionError::NoClientCertificate);
        assert_eq!(reject.client_certificate_error(), Some("client-certificate-missing"));
        assert_eq!(told, Some(alert), "{version:?}");
    }
    let optional = server(ClientAuth::optional().roots_pem(pem(&authority)));
    for version in BOTH_VERSIONS {
        for (own, is_known) in [(None, false), (Some(&alice), true)] {
            let client = optional.client(version, own);
            for _ in 0..2 {
                let pair = Pair::connected(&optional.tls, &client, "localhost");
                assert_eq!(pair.session.peer_certificate().is_some(), is_known);
            }
        }
    }
}

#[test]
fn a_certificate_that_is_not_good_is_refused_with_its_alert_even_where_none_is_required() {
    let (authority, stranger) = (Authority::new("clients"), Authority::new("strangers"));
    let lists = authority.revokes(&[7], 2999);
    let numbered = |number: u64| {
        authority.issue(&["a.test"], |parameters| {
            parameters.serial_number = Some(number.into());
        })
    };
    let dated = |from: i32, until: i32| {
        authority.issue(&["a.test"], |parameters| {
            parameters.not_before = rcgen::date_time_ymd(from, 1, 1);
            parameters.not_after = rcgen::date_time_ymd(until, 1, 1);
        })
    };
    let for_servers = authority.issue(&["a.test"], |parameters| {
        parameters.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    });
    let table = [
        (dated(2000, 2001), "expired", AlertDescription::CertificateExpired),
        (dated(2990, 2999), "expired", AlertDescription::CertificateExpired),
        (stranger.issue(&["a.test"], |_| {}), "unknown", AlertDescription::UnknownCA),
        (numbered(7), "revoked", AlertDescription::CertificateRevoked),
        (for_servers, "refused", AlertDescription::UnsupportedCertificate),
    ];
    for clients in [ClientAuth::required(), ClientAuth::optional()] {
        let server = server(clients.roots_pem(pem(&authority)).crl(lists.as_bytes()));
        for version in BOTH_VERSIONS {
            for (own, fault, alert) in &table {
                let (reject, told) = server.refuses(&server.client(version, Some(own)));
                let fault = format!("client-certificate-{fault}");
                assert_eq!(reject.client_certificate_error(), Some(&*fault), "{reject:?}");
                assert_eq!(told, Some(*alert), "{reject:?}");
            }
            Pair::connected(&server.tls, &server.client(version, Some(&numbered(8))), "localhost");
        }
    }
}

#[test]
fn a_list_that_is_too_old_refuses_its_clients_and_is_warned_of() {
    let authority = Authority::new("clients");
    let alice = authority.issue(&["alice.test"], |_| {});
    let old = authority.revokes(&[7], 2001);
    let server = server(ClientAuth::required().roots_pem(pem(&authority)).crl(old.as_bytes()));
    assert!(matches!(server.tls.warnings(), [TlsWarning::RevocationListExpired { .. }]));
    let (reject, alert) = server.refuses(&server.client(TLS13, Some(&alice)));
    assert_eq!(reject.client_certificate_error(), Some("client-certificate-unchecked"));
    assert_eq!(alert, Some(AlertDescription::UnknownCA));
}

#[test]
fn an_issuer_between_must_be_on_a_list_unless_only_clients_are_asked_for() {
    let root = Authority::new("root");
    let between = root.issue_authority("between");
    let alice = between.issue(&["alice.test"], |_| {});
    let chain = Identity {
        certificate: [alice.certificate.as_str(), &between.certificate].concat(),
        key: alice.key,
    };
    let list = between.revokes(&[7], 2999);
    let clients = || ClientAuth::required().roots_pem(pem(&root)).crl(list.as_bytes());
    let strict = server(clients());
    let (reject, _) = strict.refuses(&strict.client(TLS13, Some(&chain)));
    assert_eq!(reject.client_certificate_error(), Some("client-certificate-unchecked"));
    let lenient = server(clients().only_check_end_entity_revocation());
    let pair = Pair::connected(&lenient.tls, &lenient.client(TLS13, Some(&chain)), "localhost");
    assert_eq!(pair.session.peer_certificate().unwrap().chain.len(), 2);
}

#[test]
fn what_a_reload_revokes_or_trusts_no_more_is_not_resumed_either() {
    let folder = tempfile::tempdir().unwrap();
    let (roots, lists) = (folder.path().join("roots.pem"), folder.path().join("revoked.pem"));
    let authority = Authority::new("clients");
    let alice = authority.issue(&["alice.test"], |parameters| {
        parameters.serial_number = Some(7_u64.into());
    });
    for version in BOTH_VERSIONS {
        std::fs::write(&roots, &authority.certificate).unwrap();
        std::fs::write(&lists, authority.revokes(&[], 2999)).unwrap();
        let server = server(ClientAuth::required().roots_file(&roots).crl_file(&lists));
        let client = server.client(version, Some(&alice));
        let mut open = Pair::connected(&server.tls, &client, "localhost");
        let again = Pair::connected(&server.tls, &client, "localhost");
        assert!(again.session.handshake_info().unwrap().resumed);
        // A list that is malformed or has expired changes nothing.
        std::fs::write(&lists, "nothing").unwrap();
        assert!(matches!(server.tls.reload(), Err(TlsSetupError::NoRevocationList { .. })));
        std::fs::write(&lists, authority.revokes(&[7], 2001)).unwrap();
        assert!(matches!(server.tls.reload(), Err(TlsSetupError::ExpiredRevocationList { .. })));
        let again = Pair::connected(&server.tls, &client, "localhost");
        assert!(again.session.handshake_info().unwrap().resumed);
        std::fs::write(&lists, authority.revokes(&[7], 2999)).unwrap();
        assert!(server.tls.reload().unwrap().client_auth);
        let (reject, _) = server.refuses(&client);
        assert_eq!(reject.client_certificate_error(), Some("client-certificate-revoked"));
        open.client_says(b"still here");
        assert_eq!(open.plain, b"still here", "an open connection stays");
        // With other roots.
        let client = server.client(version, Some(&alice));
        std::fs::write(&lists, authority.revokes(&[], 2999)).unwrap();
        server.tls.reload().unwrap();
        Pair::connected(&server.tls, &client, "localhost");
        std::fs::write(&roots, Authority::new("others").certificate).unwrap();
        server.tls.reload().unwrap();
        let (reject, _) = server.refuses(&client);
        assert_eq!(reject.client_certificate_error(), Some("client-certificate-unknown"));
    }
}

#[test]
fn a_ticket_from_before_certificates_were_required_is_no_way_around_them() {
    let authority = Authority::new("clients");
    let own = identity(&["localhost"]);
    let open = TlsConfig::from_pem(own.certificate.as_bytes(), own.key.as_bytes()).unwrap();
    let clients = ClientAuth::required().roots_pem(pem(&authority));
    // The same ticket keys, as two listeners of a server may have them.
    let closed = open.clone().with_client_auth(clients).unwrap();
    assert_eq!(open.ticket_keys().unwrap().secrets(), closed.ticket_keys().unwrap().secrets());
    for version in BOTH_VERSIONS {
        let server = Server { tls: closed.clone(), certificate: own.certificate.clone() };
        let client = server.client(version, None);
        Pair::connected(&open, &client, "localhost");
        let (reject, _) = server.refuses(&client);
        assert_eq!(reject, TlsConnectionError::NoClientCertificate);
    }
}

#[test]
fn no_ticket_outlives_the_certificate_of_its_client() {
    let authority = Authority::new("clients");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let end = now + 4;
    let alice = authority.issue(&["alice.test"], |parameters| {
        parameters.not_after = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(end);
    });
    let server = server(ClientAuth::required().roots_pem(pem(&authority)));
    let clients = BOTH_VERSIONS.map(|version| server.client(version, Some(&alice)));
    for client in &clients {
        // The second ticket is issued for a resumed session.
        for _ in 0..2 {
            Pair::connected(&server.tls, client, "localhost");
        }
    }
    while SystemTime::now() < SystemTime::UNIX_EPOCH + Duration::from_secs(end + 1) {
        std::thread::sleep(Duration::from_millis(50));
    }
    for client in &clients {
        let (reject, alert) = server.refuses(client);
        assert_eq!(reject.client_certificate_error(), Some("client-certificate-expired"));
        assert_eq!(alert, Some(AlertDescription::CertificateExpired));
    }
}

#[test]
fn what_is_wrong_with_the_settings_is_said() {
    let own = identity(&["localhost"]);
    let tls = TlsConfig::from_pem(own.certificate.as_bytes(), own.key.as_bytes()).unwrap();
    let error = |clients: ClientAuth| tls.clone().with_client_auth(clients).unwrap_err();
    let good = Authority::new("clients");
    let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let bad_list = "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n";
    let required = ClientAuth::required;
    for (error, variant, remedy) in [
        (error(required()), "NoRoots", "roots_file"),
        (error(required().roots_file("no-such.pem")), "Unreadable", "no-such.pem"),
        (error(required().roots_pem(b"")), "NoCertificate", "BEGIN CERTIFICATE"),
        (error(required().roots_pem(nonsense.as_bytes())), "BadRoot", "client certificate issuers"),
        (error(required().roots_pem(pem(&good)).crl(b"")), "NoRevocationList", "X509 CRL"),
        (
            error(required().roots_pem(pem(&good)).crl(bad_list.as_bytes())),
            "BadRevocationList",
            "get a new one",
        ),
    ] {
        let (debug, text) = (format!("{error:?}"), error.to_string());
        assert!(debug.starts_with(variant), "{debug} is not {variant}");
        assert!(text.contains(remedy), "{text} lacks {remedy}");
    }
}
