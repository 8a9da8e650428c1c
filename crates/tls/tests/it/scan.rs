//! The probes of a scanner for weak TLS. Their ClientHellos are assembled here, because current
//! libraries do not send them.

use crate::peer::{Identity, Pair, TLS12, TLS13, client_config, identity};
use peregrine_tls::rustls::ContentType;
use peregrine_tls::{TlsConfig, TlsConnectionError, TlsReadState, TlsSetupError, TlsVersion};

/// The parts of a ClientHello that these tests change.
struct Hello {
    record: [u8; 2],
    version: [u8; 2],
    suites: Vec<u16>,
    compression: Vec<u8>,
    /// In addition to groups, point formats and signature schemes.
    extensions: Vec<(u16, Vec<u8>)>,
}

impl Hello {
    fn new(version: [u8; 2], suites: &[u16]) -> Self {
        Self {
            record: [3, 1],
            version,
            suites: suites.to_vec(),
            compression: vec![0],
            extensions: Vec::new(),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut extensions = vec![
            (10, vec![0, 6, 0, 29, 0, 23, 0, 24]),
            (11, vec![1, 0]),
            (13, vec![0, 14, 4, 3, 5, 3, 8, 4, 8, 5, 4, 1, 5, 1, 2, 1]),
        ];
        extensions.extend(self.extensions.iter().cloned());
        let extensions: Vec<u8> = extensions
            .into_iter()
            .flat_map(|(extension_type, body): (u16, Vec<u8>)| {
                [&extension_type.to_be_bytes()[..], &length_bytes(body.len()), &body].concat()
            })
            .collect();
        let suites: Vec<u8> = self.suites.iter().flat_map(|suite| suite.to_be_bytes()).collect();
        let body = [
            &self.version[..],
            &[7; 32],
            &[0],
            &length_bytes(suites.len()),
            &suites,
            &[u8::try_from(self.compression.len()).unwrap()],
            &self.compression,
            &length_bytes(extensions.len()),
            &extensions,
        ]
        .concat();
        let message = [&[1, 0][..], &length_bytes(body.len()), &body].concat();
        [&[22][..], &self.record, &length_bytes(message.len()), &message].concat()
    }

    /// The error and the alert; `None` if the server accepts the ClientHello.
    fn rejection_by(&self, tls: &TlsConfig) -> Option<(TlsConnectionError, u8)> {
        let (mut session, mut plain, mut out) = (tls.new_connection(), Vec::new(), Vec::new());
        let error = session.receive(&self.bytes(), &mut plain, &mut out).err()?;
        // An alert in clear text: type, version, length, fatal, description.
        let [21, 3, _, 0, 2, 2, alert] = out[..] else { panic!("{error:?}: {out:?}") };
        Some((error, alert))
    }
}

fn length_bytes(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap().to_be_bytes()
}

/// Servers with a key of each kind, so that no suite fails for lack of a key.
fn servers() -> [TlsConfig; 2] {
    [identity(&["localhost"]), rsa_identity()].map(|identity| {
        TlsConfig::from_pem(identity.certificate.as_bytes(), identity.key.as_bytes()).unwrap()
    })
}

fn rsa_identity() -> Identity {
    let size = rcgen::RsaKeySize::_2048;
    let key = rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size).unwrap();
    let parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = parameters.self_signed(&key).unwrap();
    Identity { certificate: certificate.pem(), key: key.serialize_pem() }
}

const STRONG_SUITES: [u16; 6] = [0xc02b, 0xc02c, 0xc02f, 0xc030, 0xcca8, 0xcca9];

const PROTOCOL_VERSION: u8 = 70;
const HANDSHAKE_FAILURE: u8 = 40;

#[test]
fn versions_before_1_2_are_rejected() {
    let suites: Vec<u16> = [&STRONG_SUITES[..], &[0xc009, 0xc013, 0x002f, 0x000a, 0x0005]].concat();
    for tls in servers() {
        for version in [[3, 0], [3, 1], [3, 2]] {
            for record in [[3, 0], [3, 1], version] {
                let hello = Hello { record, ..Hello::new(version, &suites) };
                let (error, alert) = hello.rejection_by(&tls).expect("an old version is rejected");
                assert!(matches!(error, TlsConnectionError::PeerIncompatible(_)), "{error:?}");
                assert_eq!(alert, PROTOCOL_VERSION, "{version:?}");
            }
        }
        assert_eq!(Hello::new([3, 3], &STRONG_SUITES).rejection_by(&tls), None);
        // A ClientHello that looks new but offers only old versions.
        let mut hello = Hello::new([3, 3], &STRONG_SUITES);
        hello.extensions.push((43, vec![4, 3, 2, 3, 1]));
        assert_eq!(hello.rejection_by(&tls).unwrap().1, PROTOCOL_VERSION);
    }
}

#[test]
fn weak_cipher_suites_are_rejected() {
    let weak: [(&str, &[u16]); 9] = [
        ("without encryption", &[0x0000, 0x0001, 0x0002, 0x003b, 0xc006, 0xc010]),
        ("for export", &[0x0003, 0x0006, 0x0008, 0x0014, 0x0062, 0x0064]),
        ("RC4", &[0x0004, 0x0005, 0x0018, 0xc007, 0xc011]),
        ("DES and triple DES", &[0x0009, 0x000a, 0x0016, 0xc008, 0xc012]),
        ("no authentication", &[0x0034, 0x006c, 0x00a6, 0xc015, 0xc018, 0xc019]),
        ("RSA key exchange", &[0x002f, 0x0035, 0x003c, 0x003d, 0x009c, 0x009d]),
        ("CBC", &[0xc009, 0xc00a, 0xc013, 0xc014, 0xc023, 0xc024, 0xc027, 0xc028]),
        ("finite-field Diffie-Hellman", &[0x0033, 0x0039, 0x0067, 0x009e, 0x009f]),
        ("a short tag", &[0xc0a0, 0xc0a2, 0xc0a8, 0xc0ae]),
    ];
    for tls in servers() {
        for (kind, suites) in &weak {
            let (error, alert) = Hello::new([3, 3], suites).rejection_by(&tls).expect(kind);
            assert!(matches!(error, TlsConnectionError::PeerIncompatible(_)), "{kind}: {error:?}");
            assert_eq!(alert, HANDSHAKE_FAILURE, "{kind}");
            // None of them is chosen, even if it is listed first.
            let all_suites: Vec<u16> = suites.iter().copied().chain(STRONG_SUITES).collect();
            assert_eq!(Hello::new([3, 3], &all_suites).rejection_by(&tls), None, "{kind}");
        }
    }
}

#[test]
fn compression_and_heartbeats_are_not_negotiated() {
    let [tls, _] = servers();
    let mut hello = Hello::new([3, 3], &STRONG_SUITES);
    hello.compression = vec![1, 0];
    hello.extensions.push((15, vec![1]));
    let (mut session, mut plain, mut out) = (tls.new_connection(), Vec::new(), Vec::new());
    session.receive(&hello.bytes(), &mut plain, &mut out).unwrap();
    // A handshake record: ServerHello, version, random, session ID.
    assert_eq!((out[0], out[5], &out[9..11]), (22, 2, &[3, 3][..]));
    let session_id_bytes = usize::from(out[43]);
    let after_session_id = &out[44 + session_id_bytes..];
    let (suite, compression) =
        (u16::from_be_bytes([after_session_id[0], after_session_id[1]]), after_session_id[2]);
    assert!(STRONG_SUITES.contains(&suite));
    assert_eq!(compression, 0);
    let extensions_bytes =
        usize::from(u16::from_be_bytes([after_session_id[3], after_session_id[4]]));
    let mut extensions = &after_session_id[5..5 + extensions_bytes];
    while let [high, low, length_high, length_low, after_header @ ..] = extensions {
        assert_ne!(u16::from_be_bytes([*high, *low]), 15, "a heartbeat");
        extensions = &after_header[usize::from(u16::from_be_bytes([*length_high, *length_low]))..];
    }
    // Without the null compression method, there is nothing to negotiate.
    hello.compression = vec![1];
    assert!(hello.rejection_by(&tls).is_some());
}

#[test]
fn renegotiation_is_not_accepted() {
    let hello = Hello::new([3, 3], &STRONG_SUITES).bytes();
    for version in [TLS12, TLS13] {
        let (mut forger, mut session) = Pair::of_version(version).forger();
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        let record = forger.record(ContentType::Handshake, &hello[5..]);
        let result = session.receive(&record, &mut plain, &mut out);
        match result {
            // RFC 5246 §7.2.2: a server that does not renegotiate may send a warning and continue.
            Ok(TlsReadState::Established) => assert!(out.is_empty() || out[0] == 21, "{out:?}"),
            Err(error) => {
                assert_eq!(error, TlsConnectionError::InappropriateMessage, "{version:?}")
            }
            state => panic!("{state:?}"),
        }
        assert!(out.len() < 64, "the output contains no ServerHello");
    }
}

#[test]
fn a_client_can_detect_a_downgrade() {
    // RFC 7507 §3: TLS_FALLBACK_SCSV means that the client fell back. Versions before 1.2 are
    // rejected anyway, and a fallback to 1.2 is visible in the server's random (RFC 8446 §4.1.3).
    let [tls, _] = servers();
    let fallback: Vec<u16> = STRONG_SUITES.iter().copied().chain([0x5600]).collect();
    let (mut session, mut plain, mut out) = (tls.new_connection(), Vec::new(), Vec::new());
    session.receive(&Hello::new([3, 3], &fallback).bytes(), &mut plain, &mut out).unwrap();
    assert_eq!(&out[35..43], b"DOWNGRD\x01");
}

#[test]
fn configured_versions_suites_and_groups_are_negotiated() {
    let self_signed = TlsConfig::self_signed(&["localhost"]).unwrap();
    let trusted = [self_signed.certificate_pem.as_str()];
    let negotiate = |tls: &TlsConfig, version| {
        let mut pair = Pair::new(tls, &client_config(&[version], &trusted).into(), "localhost");
        pair.try_exchange().ok()?;
        let suite = pair.client.negotiated_cipher_suite().map(|suite| suite.suite());
        let group = pair.client.negotiated_key_exchange_group().map(|group| group.name());
        Some((format!("{:?}", suite?), format!("{:?}", group?)))
    };
    let tls13_only = self_signed.tls.clone().with_min_version(TlsVersion::Tls13).unwrap();
    assert!(negotiate(&tls13_only, TLS12).is_none() && negotiate(&tls13_only, TLS13).is_some());
    let (rejection, alert) = Hello::new([3, 3], &STRONG_SUITES).rejection_by(&tls13_only).unwrap();
    assert!(matches!(rejection, TlsConnectionError::PeerIncompatible(_)), "{rejection:?}");
    assert_eq!(alert, PROTOCOL_VERSION);

    let suites = ["TLS_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"];
    let restricted = self_signed.tls.clone().with_cipher_suites(&suites).unwrap();
    let restricted = restricted.with_key_exchange_groups(&["P-384"]).unwrap();
    let group = "secp384r1".to_owned();
    let suite = "TLS13_CHACHA20_POLY1305_SHA256".to_owned();
    assert_eq!(negotiate(&restricted, TLS13), Some((suite, group.clone())));
    let suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384".to_owned();
    assert_eq!(negotiate(&restricted, TLS12), Some((suite, group)));
    // A reload keeps these settings.
    restricted.reload().unwrap();
    assert!(negotiate(&restricted, TLS12).is_some());

    let tls12_only = self_signed.tls.clone().with_cipher_suites(&suites[1..]).unwrap();
    assert!(negotiate(&tls12_only, TLS12).is_some() && negotiate(&tls12_only, TLS13).is_none());
    let error = tls12_only.with_min_version(TlsVersion::Tls13).unwrap_err();
    assert!(matches!(error, TlsSetupError::NoCipherSuite { .. }), "{error:?}");
}
