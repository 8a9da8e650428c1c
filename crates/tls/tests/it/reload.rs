//! Changes while the server runs: valid changes apply as a whole, invalid ones not at all.

use crate::peer::{
    self, Authority, BOTH_VERSIONS, Identity, Pair, der, identity, lenient_client,
    presented_certificate,
};
use peregrine_tls::rustls::ClientConfig;
use peregrine_tls::rustls::crypto::aws_lc_rs::cipher_suite as suite;
use peregrine_tls::{Certificate, OcspError, TicketKeys, TlsConfig, TlsSetupError, TlsWarning};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A directory with a certificate and its key, used by a server.
struct Files {
    folder: tempfile::TempDir,
    tls: TlsConfig,
}

impl Files {
    fn new(first: &Identity) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let [certificate, key] = Self::paths_in(dir.path());
        write(&certificate, &key, first);
        let tls = TlsConfig::from_pem_files(certificate, key).unwrap();
        Self { folder: dir, tls }
    }

    fn paths_in(dir: &Path) -> [PathBuf; 2] {
        ["tls.crt", "tls.key"].map(|name| dir.join(name))
    }

    fn paths(&self) -> [PathBuf; 2] {
        Self::paths_in(self.folder.path())
    }

    fn write(&self, identity: &Identity) {
        let [certificate, key] = self.paths();
        write(&certificate, &key, identity);
    }
}

fn write(certificate: &Path, key: &Path, identity: &Identity) {
    std::fs::write(certificate, &identity.certificate).unwrap();
    std::fs::write(key, &identity.key).unwrap();
}

fn client() -> Arc<ClientConfig> {
    Arc::new(lenient_client(&[suite::TLS13_AES_128_GCM_SHA256]))
}

/// The certificate that a new client receives.
fn certificate_for(tls: &TlsConfig, name: &str) -> Vec<u8> {
    presented_certificate(&Pair::connected(tls, &client(), name))
}

fn identity_valid(from_year: i32, until_year: i32) -> Identity {
    Authority::new("a").issue(&["localhost"], |parameters| {
        parameters.not_before = rcgen::date_time_ymd(from_year, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(until_year, 1, 1);
    })
}

#[test]
fn a_reload_applies_only_to_new_handshakes() {
    let (old, new) = (identity(&["localhost"]), identity(&["localhost"]));
    let files = Files::new(&old);
    let mut established = Pair::connected(&files.tls, &client(), "localhost");
    let mut handshaking = Pair::new(&files.tls, &client(), "localhost");
    let hello = handshaking.client_bytes();
    handshaking.deliver(&hello[..hello.len() / 2]).unwrap();
    files.write(&new);
    // Reload from another thread, as after a signal.
    let handle = files.tls.clone();
    let report = std::thread::spawn(move || handle.reload()).join().unwrap().unwrap();
    assert_eq!(report.certificates, [files.paths()[0].display().to_string()]);
    handshaking.deliver(&hello[hello.len() / 2..]).unwrap();
    handshaking.exchange();
    assert_eq!(presented_certificate(&handshaking), der(&old.certificate));
    established.client_send(b"still here");
    assert_eq!(established.plain, b"still here");
    assert_eq!(certificate_for(&files.tls, "localhost"), der(&new.certificate));
    assert!(!files.tls.reload().unwrap().has_changes());
    assert_eq!(files.tls.status().reloads, 2);
}

#[test]
fn a_failed_reload_changes_nothing_and_is_reported() {
    let (old, new, other) = (identity(&["a.test"]), identity(&["a.test"]), identity(&["b.test"]));
    let files = Files::new(&old);
    let [certificate, key] = files.paths();
    let mut failures = 0;
    let mut assert_fails = |variant: &str, remedy: &str| {
        let error = files.tls.reload().unwrap_err();
        assert!(format!("{error:?}").starts_with(variant), "{error:?} is not {variant}");
        assert!(error.to_string().contains(remedy), "{error}");
        failures += 1;
        let status = files.tls.status();
        assert_eq!((status.reloads, status.failed_reloads), (0, failures));
        assert_eq!(status.last_error, Some(error.to_string()));
        assert!(status.failed_at.is_some() && files.tls.is_reload_due());
        assert_eq!(certificate_for(&files.tls, "a.test"), der(&old.certificate));
    };
    files.write(&other);
    std::fs::write(&key, &new.key).unwrap();
    assert_fails("KeyMismatch", "does not belong");
    files.write(&identity_valid(2000, 2001));
    assert_fails("OutsideValidity", "expired");
    files.write(&identity_valid(2990, 2999));
    assert_fails("OutsideValidity", "becomes valid");
    files.write(&new);
    std::fs::remove_file(&key).unwrap();
    assert_fails("Unreadable", "tls.key");
    std::fs::write(&key, "").unwrap();
    assert_fails("NoKey", "tls.key");
    std::fs::remove_file(&certificate).unwrap();
    assert_fails("Unreadable", "tls.crt");
    files.write(&new);
    assert!(files.tls.reload().unwrap().has_changes());
    let status = files.tls.status();
    assert_eq!((status.reloads, status.last_error), (1, None));
    assert!(!files.tls.is_reload_due());
    assert_eq!(certificate_for(&files.tls, "a.test"), der(&new.certificate));
}

#[test]
fn a_truncated_file_is_rejected_at_every_length() {
    let (old, new) = (identity(&["localhost"]), identity(&["localhost"]));
    let files = Files::new(&old);
    let [certificate, key] = files.paths();
    for (path, text) in [(&key, &new.key), (&certificate, &new.certificate)] {
        // Cutting only the final line break is not an error.
        for end in (0..text.trim_end().len()).step_by(17) {
            std::fs::write(path, &text[..end]).unwrap();
            files.tls.reload().unwrap_err();
        }
        std::fs::write(path, text).unwrap();
    }
    assert_eq!(certificate_for(&files.tls, "localhost"), der(&old.certificate));
    files.tls.reload().unwrap();
    assert_eq!(certificate_for(&files.tls, "localhost"), der(&new.certificate));
}

#[test]
fn an_expired_certificate_in_use_does_not_prevent_reloads() {
    let files = Files::new(&identity_valid(2000, 2001));
    assert!(matches!(files.tls.status().warnings[..], [TlsWarning::Expired { .. }]));
    assert!(!files.tls.reload().unwrap().has_changes());
    files.write(&identity(&["localhost"]));
    assert!(files.tls.reload().unwrap().has_changes());
    assert!(files.tls.status().warnings.is_empty());
}

#[test]
fn a_reload_replaces_all_certificates_or_none() {
    let old_identities = [identity(&["a.test"]), identity(&["b.test"])];
    let new_identities = [identity(&["a.test"]), identity(&["b.test", "c.test"])];
    let (first, second) = (Files::new(&old_identities[0]), Files::new(&old_identities[1]));
    let [certificate, key] = second.paths();
    let tls = first.tls.clone().with_certificate_files(&certificate, &key).unwrap();
    first.write(&new_identities[0]);
    std::fs::write(&certificate, &new_identities[1].certificate).unwrap();
    tls.reload().unwrap_err();
    for (name, old) in [
        ("a.test", &old_identities[0]),
        ("b.test", &old_identities[1]),
        ("c.test", &old_identities[0]),
    ] {
        assert_eq!(certificate_for(&tls, name), der(&old.certificate), "{name}");
    }
    second.write(&new_identities[1]);
    assert_eq!(tls.reload().unwrap().certificates.len(), 2);
    for (name, new) in [
        ("a.test", &new_identities[0]),
        ("b.test", &new_identities[1]),
        ("c.test", &new_identities[1]),
    ] {
        assert_eq!(certificate_for(&tls, name), der(&new.certificate), "{name}");
    }
    assert_eq!(tls.files().len(), 4);
}

#[cfg(unix)]
#[test]
fn a_replaced_symlink_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (identity(&["localhost"]), identity(&["localhost"]));
    // The way Kubernetes mounts secrets.
    for (version, identity) in [("..1", &old), ("..2", &new)] {
        let version = dir.path().join(version);
        std::fs::create_dir(&version).unwrap();
        let [certificate, key] = Files::paths_in(&version);
        write(&certificate, &key, identity);
    }
    let link = |target: &str, name: &str| {
        std::os::unix::fs::symlink(target, dir.path().join(name)).unwrap();
    };
    link("..1", "..data");
    link("..data/tls.crt", "tls.crt");
    link("..data/tls.key", "tls.key");
    let [certificate, key] = Files::paths_in(dir.path());
    let tls = TlsConfig::from_pem_files(certificate, key).unwrap();
    link("..2", "..tmp");
    std::fs::rename(dir.path().join("..tmp"), dir.path().join("..data")).unwrap();
    assert!(tls.reload().unwrap().has_changes());
    assert_eq!(certificate_for(&tls, "localhost"), der(&new.certificate));
}

#[test]
fn certificates_can_be_added_and_removed_at_run_time() {
    let identities = ["default.test", "a.test", "b.test"].map(|name| identity(&[name]));
    let [default, a, b] = &identities;
    let pem = |identity: &Identity| {
        Certificate::from_pem(identity.certificate.as_bytes(), identity.key.as_bytes())
    };
    let tls = TlsConfig::from_certificate(pem(default)).unwrap();
    let assert_presented = |name: &str, identity: &Identity| {
        assert_eq!(certificate_for(&tls, name), der(&identity.certificate), "{name}");
    };
    tls.upsert_certificate(pem(a).label("a")).unwrap();
    tls.upsert_certificate(pem(b)).unwrap();
    assert_presented("a.test", a);
    assert_presented("b.test", b);
    assert_presented("other.test", default);
    let labels = |tls: &TlsConfig| -> Vec<_> {
        tls.status().certificates.into_iter().map(|certificate| certificate.label).collect()
    };
    assert_eq!(labels(&tls), ["default.test", "a", "b.test"]);
    // The same label replaces the certificate in place.
    let renewed = identity(&["a.test"]);
    tls.upsert_certificate(pem(&renewed).label("a")).unwrap();
    assert_presented("a.test", &renewed);
    assert_eq!(labels(&tls), ["default.test", "a", "b.test"]);
    assert!(tls.remove_certificate("a").unwrap());
    assert!(!tls.remove_certificate("a").unwrap());
    assert_presented("a.test", default);
    let mismatched = Certificate::from_pem(a.certificate.as_bytes(), b.key.as_bytes());
    assert!(matches!(tls.upsert_certificate(mismatched), Err(TlsSetupError::KeyMismatch { .. })));
    // The default can be removed, but not the last one.
    assert!(tls.remove_certificate("default.test").unwrap());
    assert_presented("other.test", b);
    let error = tls.remove_certificate("b.test").unwrap_err();
    assert!(matches!(error, TlsSetupError::LastCertificate { .. }), "{error:?}");
    assert_presented("b.test", b);
    assert!(!tls.reload().unwrap().has_changes());
}

#[test]
fn a_derived_configuration_does_not_share_certificates() {
    let (first, second) = (identity(&["a.test"]), identity(&["b.test"]));
    let tls = TlsConfig::from_pem(first.certificate.as_bytes(), first.key.as_bytes()).unwrap();
    let other = tls.clone().with_expiry_warning(Duration::ZERO);
    assert!(!tls.ptr_eq(&other) && tls.ptr_eq(&tls.clone()));
    other
        .upsert_certificate(Certificate::from_pem(
            second.certificate.as_bytes(),
            second.key.as_bytes(),
        ))
        .unwrap();
    assert_eq!(certificate_for(&tls, "b.test"), der(&first.certificate));
}

#[test]
fn sessions_are_resumed_across_reloads() {
    let (old, new) = (identity(&["localhost"]), identity(&["localhost"]));
    for version in BOTH_VERSIONS {
        let files = Files::new(&old);
        let trusted = [old.certificate.as_str(), &new.certificate];
        let client = Arc::new(peer::client_config(&[version], &trusted));
        let first = Pair::connected(&files.tls, &client, "localhost");
        assert!(!first.session.handshake_info().unwrap().resumed);
        files.write(&new);
        assert!(files.tls.reload().unwrap().has_changes());
        let second = Pair::connected(&files.tls, &client, "localhost");
        assert!(second.session.handshake_info().unwrap().resumed);
    }
}

#[test]
fn sessions_are_resumed_by_servers_with_the_same_ticket_keys() {
    let server_identity = identity(&["localhost"]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tickets.keys");
    let server = || {
        let tls = TlsConfig::from_pem(
            server_identity.certificate.as_bytes(),
            server_identity.key.as_bytes(),
        )
        .unwrap();
        tls.with_ticket_keys(TicketKeys::from_file(&path).unwrap())
    };
    let line = |byte: u8| format!("{byte:02x}").repeat(32);
    for version in BOTH_VERSIONS {
        std::fs::write(&path, line(1)).unwrap();
        let client = Arc::new(peer::client_config(&[version], &[&server_identity.certificate]));
        let is_resumed = |tls: &TlsConfig| {
            let pair = Pair::connected(tls, &client, "localhost");
            pair.session.handshake_info().unwrap().resumed
        };
        let first = server();
        assert!(!is_resumed(&first));
        let second = server();
        assert!(is_resumed(&second), "another instance or the next process resumes");
        // The keys can be passed on as well.
        let shared_keys = TicketKeys::from_secrets(first.ticket_keys().unwrap().secrets()).unwrap();
        assert!(is_resumed(&server().with_ticket_keys(shared_keys)));
        // Insert a new key before the old one.
        std::fs::write(&path, format!("{}\n{}\n", line(2), line(1))).unwrap();
        let report = first.reload().unwrap();
        assert!(report.tickets && report.certificates.is_empty());
        assert!(is_resumed(&first));
        std::fs::write(&path, line(2)).unwrap();
        first.reload().unwrap();
        assert!(is_resumed(&first), "its last ticket was sealed with the new key");
        // Invalid keys change nothing.
        std::fs::write(&path, &line(3)[1..]).unwrap();
        assert!(matches!(first.reload(), Err(TlsSetupError::BadTicketKeys { line: Some(1), .. })));
        assert!(is_resumed(&first));
        std::fs::write(&path, line(3)).unwrap();
        first.reload().unwrap();
        assert!(!is_resumed(&first));
    }
}

#[test]
fn no_handshake_fails_while_certificates_are_reloaded() {
    let identities = [identity(&["localhost"]), identity(&["localhost"])];
    let files = Files::new(&identities[0]);
    let is_done = AtomicBool::new(false);
    let certificates = identities.each_ref().map(|identity| der(&identity.certificate));
    let (succeeded, failed) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut handshakes = 0;
                    while !is_done.load(Ordering::Relaxed) || handshakes < 20 {
                        assert!(certificates.contains(&certificate_for(&files.tls, "localhost")));
                        handshakes += 1;
                    }
                })
            })
            .collect();
        let (mut succeeded, mut failed) = (0, 0);
        for round in 0..60 {
            // In every third round the key does not match.
            files.write(&identities[round % 2]);
            if round % 3 == 0 {
                std::fs::write(&files.paths()[1], &identities[1 - round % 2].key).unwrap();
            }
            match files.tls.reload() {
                Ok(_) => succeeded += 1,
                Err(_) => failed += 1,
            }
        }
        is_done.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().unwrap());
        (succeeded, failed)
    });
    assert_eq!((succeeded, failed), (40, 20));
    let status = files.tls.status();
    assert_eq!((status.reloads, status.failed_reloads), (40, 20));
}

#[test]
fn status_reports_validity_and_warns_before_expiry() {
    let day = Duration::from_secs(86_400);
    let tls = TlsConfig::self_signed(&["localhost"]).unwrap().tls;
    let status = tls.status();
    let [certificate] = &status.certificates[..] else { panic!("{status:?}") };
    assert_eq!(
        (certificate.label.as_str(), &certificate.names[..]),
        ("localhost", &["localhost".to_owned()][..])
    );
    let (not_before, not_after) = (certificate.not_before.unwrap(), certificate.not_after.unwrap());
    assert_eq!(not_after.duration_since(not_before).unwrap(), 366 * day);
    assert!(status.warnings.is_empty());
    let warnings = tls.with_expiry_warning(366 * day).status().warnings;
    let [TlsWarning::ExpiresSoon { days, .. }] = warnings[..] else { panic!("{warnings:?}") };
    assert!((364..=365).contains(&days), "{days}");
    assert!(warnings[0].to_string().contains("expires in"), "{}", warnings[0]);
}

#[test]
fn an_unusable_ocsp_response_is_not_stapled_and_does_not_prevent_reloads() {
    let (old, new) = (identity(&["localhost"]), identity(&["localhost"]));
    let files = Files::new(&old);
    let [certificate, key] = files.paths();
    let ocsp_path = files.folder.path().join("ocsp.der");
    let with_ocsp = Certificate::from_files(&certificate, &key).ocsp_response_file(&ocsp_path);
    let tls = TlsConfig::from_certificate(with_ocsp).unwrap();
    let ocsp_error = |tls: &TlsConfig| match tls.status().warnings[..] {
        [TlsWarning::OcspNotStapled { reason, .. }] => reason,
        ref warnings => panic!("{warnings:?}"),
    };
    assert_eq!(ocsp_error(&tls), OcspError::Unreadable);
    std::fs::write(&ocsp_path, "nothing").unwrap();
    assert!(tls.reload().unwrap().has_changes());
    assert_eq!(ocsp_error(&tls), OcspError::InvalidResponse);
    files.write(&new);
    assert!(tls.reload().unwrap().has_changes());
    assert_eq!(certificate_for(&tls, "localhost"), der(&new.certificate));
    assert_eq!(ocsp_error(&tls), OcspError::InvalidResponse);
}

#[test]
fn a_reload_without_files_changes_nothing() {
    let server_identity = identity(&["localhost"]);
    let tls =
        TlsConfig::from_pem(server_identity.certificate.as_bytes(), server_identity.key.as_bytes())
            .unwrap();
    assert!(!tls.reload().unwrap().has_changes());
    assert!(tls.files().is_empty());
}
