//! Changes while the server runs: valid changes apply as a whole, invalid ones not at all.

use crate::peer::{
    self, Authority, BOTH_VERSIONS, Identity, Pair, der, identity, lenient_client, shown,
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
        let folder = tempfile::tempdir().unwrap();
        let [certificate, key] = Self::paths_in(folder.path());
        write(&certificate, &key, first);
        let tls = TlsConfig::from_pem_files(certificate, key).unwrap();
        Self { folder, tls }
    }

    fn paths_in(folder: &Path) -> [PathBuf; 2] {
        ["tls.crt", "tls.key"].map(|name| folder.join(name))
    }

    fn paths(&self) -> [PathBuf; 2] {
        Self::paths_in(self.folder.path())
    }

    fn write(&self, new: &Identity) {
        let [certificate, key] = self.paths();
        write(&certificate, &key, new);
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
fn shown_to(tls: &TlsConfig, name: &str) -> Vec<u8> {
    shown(&Pair::connected(tls, &client(), name))
}

fn out_of_time(from: i32, until: i32) -> Identity {
    Authority::new("a").issue(&["localhost"], |parameters| {
        parameters.not_before = rcgen::date_time_ymd(from, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(until, 1, 1);
    })
}

#[test]
fn a_reload_counts_for_new_handshakes_and_disturbs_no_other() {
    let (old, new) = (identity(&["localhost"]), identity(&["localhost"]));
    let files = Files::new(&old);
    let mut open = Pair::connected(&files.tls, &client(), "localhost");
    let mut under_way = Pair::new(&files.tls, &client(), "localhost");
    let hello = under_way.client_bytes();
    under_way.deliver(&hello[..hello.len() / 2]).unwrap();
    files.write(&new);
    // Reload from another thread, as after a signal.
    let handle = files.tls.clone();
    let reloaded = std::thread::spawn(move || handle.reload()).join().unwrap().unwrap();
    assert_eq!(reloaded.certificates, [files.paths()[0].display().to_string()]);
    under_way.deliver(&hello[hello.len() / 2..]).unwrap();
    under_way.exchange();
    assert_eq!(shown(&under_way), der(&old.certificate));
    open.client_says(b"still here");
    assert_eq!(open.plain, b"still here");
    assert_eq!(shown_to(&files.tls, "localhost"), der(&new.certificate));
    assert!(!files.tls.reload().unwrap().has_changes());
    assert_eq!(files.tls.status().reloads, 2);
}

#[test]
fn what_is_broken_changes_nothing_and_is_told_until_it_is_mended() {
    let (old, new, other) = (identity(&["a.test"]), identity(&["a.test"]), identity(&["b.test"]));
    let files = Files::new(&old);
    let [certificate, key] = files.paths();
    let mut failures = 0;
    let mut fails = |variant: &str, remedy: &str| {
        let error = files.tls.reload().unwrap_err();
        assert!(format!("{error:?}").starts_with(variant), "{error:?} is not {variant}");
        assert!(error.to_string().contains(remedy), "{error}");
        failures += 1;
        let status = files.tls.status();
        assert_eq!((status.reloads, status.failed_reloads), (0, failures));
        assert_eq!(status.last_error, Some(error.to_string()));
        assert!(status.failed_at.is_some() && files.tls.is_reload_due());
        assert_eq!(shown_to(&files.tls, "a.test"), der(&old.certificate));
    };
    files.write(&other);
    std::fs::write(&key, &new.key).unwrap();
    fails("KeyMismatch", "does not belong");
    files.write(&out_of_time(2000, 2001));
    fails("OutsideValidity", "expired");
    files.write(&out_of_time(2990, 2999));
    fails("OutsideValidity", "becomes valid");
    files.write(&new);
    std::fs::remove_file(&key).unwrap();
    fails("Unreadable", "tls.key");
    std::fs::write(&key, "").unwrap();
    fails("NoKey", "tls.key");
    std::fs::remove_file(&certificate).unwrap();
    fails("Unreadable", "tls.crt");
    files.write(&new);
    assert!(files.tls.reload().unwrap().has_changes());
    let status = files.tls.status();
    assert_eq!((status.reloads, status.last_error), (1, None));
    assert!(!files.tls.is_reload_due());
    assert_eq!(shown_to(&files.tls, "a.test"), der(&new.certificate));
}

#[test]
fn a_file_that_is_half_written_counts_at_no_length() {
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
    assert_eq!(shown_to(&files.tls, "localhost"), der(&old.certificate));
    files.tls.reload().unwrap();
    assert_eq!(shown_to(&files.tls, "localhost"), der(&new.certificate));
}

#[test]
fn an_expired_certificate_that_is_in_use_keeps_nothing_else_from_being_reloaded() {
    let files = Files::new(&out_of_time(2000, 2001));
    assert!(matches!(files.tls.status().warnings[..], [TlsWarning::Expired { .. }]));
    assert!(!files.tls.reload().unwrap().has_changes());
    files.write(&identity(&["localhost"]));
    assert!(files.tls.reload().unwrap().has_changes());
    assert!(files.tls.status().warnings.is_empty());
}

#[test]
fn all_names_change_together_or_none_does() {
    let olds = [identity(&["a.test"]), identity(&["b.test"])];
    let news = [identity(&["a.test"]), identity(&["b.test", "c.test"])];
    let (first, second) = (Files::new(&olds[0]), Files::new(&olds[1]));
    let [certificate, key] = second.paths();
    let tls = first.tls.clone().with_certificate_files(&certificate, &key).unwrap();
    first.write(&news[0]);
    std::fs::write(&certificate, &news[1].certificate).unwrap();
    tls.reload().unwrap_err();
    for (name, old) in [("a.test", &olds[0]), ("b.test", &olds[1]), ("c.test", &olds[0])] {
        assert_eq!(shown_to(&tls, name), der(&old.certificate), "{name}");
    }
    second.write(&news[1]);
    assert_eq!(tls.reload().unwrap().certificates.len(), 2);
    for (name, new) in [("a.test", &news[0]), ("b.test", &news[1]), ("c.test", &news[1])] {
        assert_eq!(shown_to(&tls, name), der(&new.certificate), "{name}");
    }
    assert_eq!(tls.files().len(), 4);
}

#[cfg(unix)]
#[test]
fn a_swapped_link_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (identity(&["localhost"]), identity(&["localhost"]));
    // The way Kubernetes mounts secrets.
    for (version, identity) in [("..1", &old), ("..2", &new)] {
        let version = folder.path().join(version);
        std::fs::create_dir(&version).unwrap();
        let [certificate, key] = Files::paths_in(&version);
        write(&certificate, &key, identity);
    }
    let link = |target: &str, name: &str| {
        std::os::unix::fs::symlink(target, folder.path().join(name)).unwrap();
    };
    link("..1", "..data");
    link("..data/tls.crt", "tls.crt");
    link("..data/tls.key", "tls.key");
    let [certificate, key] = Files::paths_in(folder.path());
    let tls = TlsConfig::from_pem_files(certificate, key).unwrap();
    link("..2", "..tmp");
    std::fs::rename(folder.path().join("..tmp"), folder.path().join("..data")).unwrap();
    assert!(tls.reload().unwrap().has_changes());
    assert_eq!(shown_to(&tls, "localhost"), der(&new.certificate));
}

#[test]
fn names_come_and_go_while_the_server_runs() {
    let all = ["default.test", "a.test", "b.test"].map(|name| identity(&[name]));
    let [default, a, b] = &all;
    let pem = |identity: &Identity| {
        Certificate::from_pem(identity.certificate.as_bytes(), identity.key.as_bytes())
    };
    let tls = TlsConfig::from_certificate(pem(default)).unwrap();
    let is_shown = |name: &str, identity: &Identity| {
        assert_eq!(shown_to(&tls, name), der(&identity.certificate), "{name}");
    };
    tls.upsert_certificate(pem(a).label("a")).unwrap();
    tls.upsert_certificate(pem(b)).unwrap();
    is_shown("a.test", a);
    is_shown("b.test", b);
    is_shown("other.test", default);
    let labels = |tls: &TlsConfig| -> Vec<_> {
        tls.status().certificates.into_iter().map(|certificate| certificate.label).collect()
    };
    assert_eq!(labels(&tls), ["default.test", "a", "b.test"]);
    // The same label replaces the certificate in place.
    let renewed = identity(&["a.test"]);
    tls.upsert_certificate(pem(&renewed).label("a")).unwrap();
    is_shown("a.test", &renewed);
    assert_eq!(labels(&tls), ["default.test", "a", "b.test"]);
    assert!(tls.remove_certificate("a").unwrap());
    assert!(!tls.remove_certificate("a").unwrap());
    is_shown("a.test", default);
    let mixed = Certificate::from_pem(a.certificate.as_bytes(), b.key.as_bytes());
    assert!(matches!(tls.upsert_certificate(mixed), Err(TlsSetupError::KeyMismatch { .. })));
    // The default can be removed, but not the last one.
    assert!(tls.remove_certificate("default.test").unwrap());
    is_shown("other.test", b);
    let error = tls.remove_certificate("b.test").unwrap_err();
    assert!(matches!(error, TlsSetupError::LastCertificate { .. }), "{error:?}");
    is_shown("b.test", b);
    assert!(!tls.reload().unwrap().has_changes());
}

#[test]
fn a_certificate_that_is_made_of_another_shares_nothing_with_it() {
    let (one, two) = (identity(&["a.test"]), identity(&["b.test"]));
    let tls = TlsConfig::from_pem(one.certificate.as_bytes(), one.key.as_bytes()).unwrap();
    let other = tls.clone().with_expiry_warning(Duration::ZERO);
    assert!(!tls.ptr_eq(&other) && tls.ptr_eq(&tls.clone()));
    other
        .upsert_certificate(Certificate::from_pem(two.certificate.as_bytes(), two.key.as_bytes()))
        .unwrap();
    assert_eq!(shown_to(&tls, "b.test"), der(&one.certificate));
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
fn sessions_are_resumed_by_who_has_the_same_ticket_keys() {
    let own = identity(&["localhost"]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tickets.keys");
    let server = || {
        let tls = TlsConfig::from_pem(own.certificate.as_bytes(), own.key.as_bytes()).unwrap();
        tls.with_ticket_keys(TicketKeys::from_file(&path).unwrap())
    };
    let line = |byte: u8| format!("{byte:02x}").repeat(32);
    for version in BOTH_VERSIONS {
        std::fs::write(&path, line(1)).unwrap();
        let client = Arc::new(peer::client_config(&[version], &[&own.certificate]));
        let is_resumed = |tls: &TlsConfig| {
            let pair = Pair::connected(tls, &client, "localhost");
            pair.session.handshake_info().unwrap().resumed
        };
        let one = server();
        assert!(!is_resumed(&one));
        let other = server();
        assert!(is_resumed(&other), "another instance or the next process resumes");
        // The keys can be passed on as well.
        let handed = TicketKeys::from_secrets(one.ticket_keys().unwrap().secrets()).unwrap();
        assert!(is_resumed(&server().with_ticket_keys(handed)));
        // Insert a new key before the old one.
        std::fs::write(&path, format!("{}\n{}\n", line(2), line(1))).unwrap();
        let reloaded = one.reload().unwrap();
        assert!(reloaded.tickets && reloaded.certificates.is_empty());
        assert!(is_resumed(&one));
        std::fs::write(&path, line(2)).unwrap();
        one.reload().unwrap();
        assert!(is_resumed(&one), "its last ticket was sealed with the new key");
        // Invalid keys change nothing.
        std::fs::write(&path, &line(3)[1..]).unwrap();
        assert!(matches!(one.reload(), Err(TlsSetupError::BadTicketKeys { line: Some(1), .. })));
        assert!(is_resumed(&one));
        std::fs::write(&path, line(3)).unwrap();
        one.reload().unwrap();
        assert!(!is_resumed(&one));
    }
}

#[test]
fn no_handshake_fails_while_certificates_are_reloaded() {
    let all = [identity(&["localhost"]), identity(&["localhost"])];
    let files = Files::new(&all[0]);
    let is_over = AtomicBool::new(false);
    let known = all.each_ref().map(|identity| der(&identity.certificate));
    let (good, bad) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut handshakes = 0;
                    while !is_over.load(Ordering::Relaxed) || handshakes < 20 {
                        assert!(known.contains(&shown_to(&files.tls, "localhost")));
                        handshakes += 1;
                    }
                })
            })
            .collect();
        let (mut good, mut bad) = (0, 0);
        for round in 0..60 {
            // In every third round the key does not match.
            files.write(&all[round % 2]);
            if round % 3 == 0 {
                std::fs::write(&files.paths()[1], &all[1 - round % 2].key).unwrap();
            }
            match files.tls.reload() {
                Ok(_) => good += 1,
                Err(_) => bad += 1,
            }
        }
        is_over.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().unwrap());
        (good, bad)
    });
    assert_eq!((good, bad), (40, 20));
    let status = files.tls.status();
    assert_eq!((status.reloads, status.failed_reloads), (40, 20));
}

#[test]
fn the_dates_of_certificates_are_known_and_the_end_is_warned_of_in_time() {
    let day = Duration::from_secs(86_400);
    let made = TlsConfig::self_signed(&["localhost"]).unwrap().tls;
    let status = made.status();
    let [certificate] = &status.certificates[..] else { panic!("{status:?}") };
    assert_eq!(
        (certificate.label.as_str(), &certificate.names[..]),
        ("localhost", &["localhost".to_owned()][..])
    );
    let (begin, end) = (certificate.not_before.unwrap(), certificate.not_after.unwrap());
    assert_eq!(end.duration_since(begin).unwrap(), 366 * day);
    assert!(status.warnings.is_empty());
    let soon = made.with_expiry_warning(366 * day).status().warnings;
    let [TlsWarning::ExpiresSoon { days, .. }] = soon[..] else { panic!("{soon:?}") };
    assert!((364..=365).contains(&days), "{days}");
    assert!(soon[0].to_string().contains("expires in"), "{}", soon[0]);
}

#[test]
fn a_response_that_does_not_fit_is_not_stapled_and_keeps_nothing_else_back() {
    let (old, new) = (identity(&["localhost"]), identity(&["localhost"]));
    let files = Files::new(&old);
    let [certificate, key] = files.paths();
    let staple = files.folder.path().join("ocsp.der");
    let stapled = Certificate::from_files(&certificate, &key).ocsp_response_file(&staple);
    let tls = TlsConfig::from_certificate(stapled).unwrap();
    let fault = |tls: &TlsConfig| match tls.status().warnings[..] {
        [TlsWarning::OcspNotStapled { reason: fault, .. }] => fault,
        ref other => panic!("{other:?}"),
    };
    assert_eq!(fault(&tls), OcspError::Unreadable);
    std::fs::write(&staple, "nothing").unwrap();
    assert!(tls.reload().unwrap().has_changes());
    assert_eq!(fault(&tls), OcspError::InvalidResponse);
    files.write(&new);
    assert!(tls.reload().unwrap().has_changes());
    assert_eq!(shown_to(&tls, "localhost"), der(&new.certificate));
    assert_eq!(fault(&tls), OcspError::InvalidResponse);
}

#[test]
fn what_is_in_memory_has_nothing_to_reload() {
    let own = identity(&["localhost"]);
    let tls = TlsConfig::from_pem(own.certificate.as_bytes(), own.key.as_bytes()).unwrap();
    assert!(!tls.reload().unwrap().has_changes());
    assert!(tls.files().is_empty());
}
