//! What the fuzz targets run: a peer that sends anything, at any point, and certificates of any bytes.

use crate::challenge::Challenges;
use crate::config::Tls;
use crate::facts::Received;
use crate::limits::HANDSHAKE_BYTES_MAX;
use crate::made::make_self_signed;
use crate::reject::Reject;
use crate::session::Session;
use crate::{identity, inspect, staple, validity};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use std::sync::{Arc, OnceLock};

/// Feeds a session what `data` says, in one piece and in pieces, and compares the results.
///
/// The first byte chooses the point: a new connection, a changed hello of a real client, or a
/// complete handshake. The second is the length of the pieces; the rest is what the peer sends.
///
/// # Panics
///
/// If the cut makes a difference, which is what the fuzzer looks for.
#[doc(hidden)]
pub fn fuzz_one(data: &[u8]) {
    let [point, piece_bytes, data @ ..] = data else {
        return;
    };
    let setup = setup();
    let mut sent = Vec::new();
    if point % 3 == 1 {
        sent.extend_from_slice(&setup.hello);
        let (edits, rest) = data.split_at(data.len() / 2);
        for edit in edits.chunks_exact(3) {
            let position = usize::from(edit[0]) << 8 | usize::from(edit[1]);
            let position = position % sent.len();
            sent[position] ^= edit[2];
        }
        sent.extend_from_slice(rest);
    } else {
        sent.extend_from_slice(data);
    }

    let start = || match point % 3 {
        2 => setup.handshaken(),
        // While names are checked, the first record is looked at before anything is done.
        _ if point & 0x80 != 0 => setup.supplied.session(),
        _ => setup.tls.session(),
    };
    let whole = feed(start(), &sent, sent.len().max(1));
    let pieces = feed(start(), &sent, usize::from(*piece_bytes).max(1));
    // How much is too much depends on how much comes at once.
    if sent.len() <= HANDSHAKE_BYTES_MAX {
        assert_eq!(whole, pieces, "the cut makes a difference");
    }
}

/// Reads `data` as a client's certificate, as a list of revoked ones and as an OCSP response.
///
/// # Panics
///
/// If what was read of a certificate could be taken for something else.
#[doc(hidden)]
pub fn fuzz_certificate(data: &[u8]) {
    let _ = validity::next_update(data);
    let _ = staple::check(data, b"\x07", 0);
    let _ = validity::fields(data).map(|fields| inspect::issuer(fields.rest));
    let identity = identity::read(&[CertificateDer::from(data)]).expect("there is a certificate");
    assert!(!identity.subject.chars().any(char::is_control), "a name is one line");
    for name in [&identity.dns_names, &identity.uris, &identity.emails].into_iter().flatten() {
        assert!(!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()), "{name:?}");
    }
}

/// All plaintext, and how it ended.
fn feed(
    mut session: Session,
    sent: &[u8],
    piece_bytes: usize,
) -> (Vec<u8>, Result<Received, Reject>) {
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    let mut received = Ok(Received::Handshaking);
    for piece in sent.chunks(piece_bytes) {
        received = session.receive(piece, &mut plain, &mut out);
        // These must not disturb what is received, whenever they happen.
        let _ = session.send(b"reply", &mut out);
        let _ = session.facts();
    }
    session.close(&mut out);
    (plain, received)
}

struct Setup {
    tls: Tls,
    /// One whose names are being checked.
    supplied: Tls,
    client: Arc<ClientConfig>,
    hello: Vec<u8>,
}

impl Setup {
    fn connect(&self) -> ClientConnection {
        let name = ServerName::try_from("localhost").expect("a valid name");
        ClientConnection::new(self.client.clone(), name).expect("a client")
    }

    /// A session right after its handshake.
    fn handshaken(&self) -> Session {
        let (mut client, mut session) = (self.connect(), self.tls.session());
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        while session.facts().is_none() {
            let mut flight = Vec::new();
            client.write_tls(&mut flight).expect("a vector takes everything");
            session.receive(&flight, &mut plain, &mut out).expect("an honest client");
            let mut answer = std::mem::take(&mut out);
            while !answer.is_empty() {
                let taken = client.read_tls(&mut answer.as_slice()).expect("a slice to read");
                answer.drain(..taken);
                client.process_new_packets().expect("an honest server");
            }
        }
        session
    }
}

fn supplied() -> Tls {
    let challenges = Challenges::new().expect("nothing is unusual");
    let (chain, key) = make_self_signed(&["localhost"]).expect("a valid name");
    let answered = challenges.answer_name("localhost", chain.as_bytes(), key.as_bytes());
    answered.expect("it was just made");
    Tls::supplied(challenges, Arc::new(())).expect("there is randomness")
}

fn setup() -> &'static Setup {
    static SETUP: OnceLock<Setup> = OnceLock::new();
    SETUP.get_or_init(|| {
        let made = Tls::self_signed(&["localhost"]).expect("a valid name");
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_slice(made.certificate_pem.as_bytes());
        roots.add(certificate.expect("it was just made")).expect("it was just made");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has suites for both versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (client, hello) = (Arc::new(client), Vec::new());
        let mut setup = Setup { tls: made.tls, supplied: supplied(), client, hello };
        let mut hello = Vec::new();
        setup.connect().write_tls(&mut hello).expect("a vector takes everything");
        setup.hello = hello;
        setup
    })
}
