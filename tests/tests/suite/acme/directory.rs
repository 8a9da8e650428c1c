//! A test certificate authority. It does not verify account signatures, and validates names as a
//! real one does, by connecting to the server.

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use peregrine::prelude::*;
use peregrine::{DriverChoice, RunningServer};
use peregrine_tls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use peregrine_tls::rustls::crypto::aws_lc_rs::default_provider;
use peregrine_tls::rustls::{
    self, ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// A running authority.
pub(crate) struct Directory {
    running: Option<RunningServer>,
    state: Arc<Mutex<State>>,
    folder: tempfile::TempDir,
    url: String,
}

/// Its state, and its configured behaviour.
pub(crate) struct State {
    base: String,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    /// Its own certificate, in PEM.
    pub(crate) root: String,
    /// The addresses where names are validated over TLS and over HTTP.
    pub(crate) tls: Option<SocketAddr>,
    pub(crate) http: Option<SocketAddr>,
    /// The accounts; `None` for one that the authority has forgotten.
    pub(crate) accounts: Vec<Option<Account>>,
    pub(crate) orders: Vec<Order>,
    /// The lifetime of certificates.
    pub(crate) life: Duration,
    /// Does not respond to requests for certificates that are ready.
    pub(crate) is_holding: bool,
    /// Recommends immediate renewal while fewer certificates than this were issued.
    pub(crate) impatient_below: usize,
    /// Issues certificates for another name while fewer than this were issued.
    pub(crate) mistaken_below: usize,
    /// Does not offer renewal windows.
    pub(crate) has_no_windows: bool,
    /// Refuses order requests with this status and Retry-After.
    pub(crate) is_busy: Option<(StatusCode, String)>,
    /// After an order is finalized, asks the client to retry after this many seconds, and has the
    /// certificate ready then.
    pub(crate) is_slow: Option<u64>,
    ready_at: Option<Instant>,
    /// The requests, in order.
    pub(crate) asked: Vec<String>,
}

/// An account.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    thumb: String,
    pub(crate) contacts: Value,
    /// The external account that it is bound to.
    pub(crate) external: Option<String>,
}

/// An order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    pub(crate) name: String,
    pub(crate) replaces: Option<String>,
    account: usize,
    /// The method and the result of each validation.
    pub(crate) checked: Vec<(String, Result<(), String>)>,
    is_checking: bool,
    pub(crate) chain: Option<String>,
}

impl Directory {
    pub(crate) fn new() -> Self {
        let mut parameters =
            rcgen::CertificateParams::new(Vec::new()).expect("an empty list of names is valid");
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().expect("the system provides randomness");
        let root = parameters.self_signed(&key).expect("signing succeeds").pem();
        let state = Arc::new(Mutex::new(State {
            base: String::new(),
            issuer: rcgen::Issuer::new(parameters, key),
            root,
            tls: None,
            http: None,
            accounts: Vec::new(),
            orders: Vec::new(),
            life: Duration::from_secs(90 * 86_400),
            is_holding: false,
            impatient_below: 0,
            mistaken_below: 0,
            has_no_windows: false,
            is_busy: None,
            is_slow: None,
            ready_at: None,
            asked: Vec::new(),
        }));
        let made = TlsConfig::self_signed(&["localhost"]).expect("the name is valid");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("root.pem"), &made.certificate_pem)
            .expect("the file exists");
        let shared = Arc::clone(&state);
        let app = move || {
            let (got, posted) = (Arc::clone(&shared), Arc::clone(&shared));
            let get = move |Path(path): Path<String>| answer(&got, &path, None);
            let post = move |Path(path): Path<String>, body: Bytes| {
                let body = serde_json::from_slice(&body).expect("the text is JSON");
                answer(&posted, &path, Some(&body))
            };
            App::new().get("/{*path}", get).post("/{*path}", post)
        };
        let one = NonZeroUsize::new(1).expect("the value is not zero");
        let server = Server::new().listen_tls("127.0.0.1:0", made.tls).workers(one).quiet();
        let running = server.driver(DriverChoice::Tokio).start(app).expect("the server starts");
        let port = running.https_address().expect("the server has an HTTPS listener").port();
        let base = format!("https://localhost:{port}");
        lock(&state).base.clone_from(&base);
        Self { running: Some(running), state, folder, url: format!("{base}/directory") }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The path of its HTTPS listener's certificate.
    pub(crate) fn root_file(&self) -> PathBuf {
        self.folder.path().join("root.pem")
    }

    /// A temporary folder that is removed with it.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Stops responding.
    pub(crate) fn leave(&mut self) {
        self.running = None;
    }

    /// How many certificates it has issued.
    pub(crate) fn issued(&self) -> usize {
        self.state().issued()
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("the mutex is not poisoned")
}

impl State {
    fn issued(&self) -> usize {
        self.orders.iter().filter(|order| order.chain.is_some()).count()
    }

    fn is_late(&self) -> bool {
        self.ready_at.is_some_and(|at| Instant::now() < at)
    }

    fn order(&self, number: usize) -> Value {
        let (base, order) = (&self.base, &self.orders[number]);
        let status = match order.checked.last() {
            _ if order.chain.is_some() && (self.is_holding || self.is_late()) => "processing",
            _ if order.chain.is_some() => "valid",
            Some((_, Ok(()))) => "ready",
            Some((_, Err(_))) => "invalid",
            None => "pending",
        };
        let mut value = json!({
            "status": status,
            "identifiers": [{"type": "dns", "value": order.name}],
            "authorizations": [format!("{base}/authorization/{number}")],
            "finalize": format!("{base}/finalize/{number}"),
        });
        if status == "valid" {
            value["certificate"] = format!("{base}/certificate/{number}").into();
        }
        if let Some(replaces) = &order.replaces {
            value["replaces"] = replaces.as_str().into();
        }
        value
    }

    fn authorization(&self, number: usize) -> Value {
        let order = &self.orders[number];
        let status = match order.checked.last() {
            Some((_, Ok(()))) => "valid",
            Some((_, Err(_))) => "invalid",
            None => "pending",
        };
        let challenge = |kind: &str| {
            let mut value = json!({
                "type": kind,
                "url": format!("{}/challenge/{number}/{kind}", self.base),
                "token": token(number),
                "status": if order.is_checking { "processing" } else { "pending" },
            });
            if let Some((checked, Err(error))) = order.checked.last()
                && checked == kind
            {
                value["error"] = json!({"type": "urn:ietf:params:acme:error:unauthorized",
                    "detail": error});
            }
            value
        };
        let mut challenges = Vec::new();
        challenges.extend(self.tls.map(|_| challenge("tls-alpn-01")));
        challenges.extend(self.http.map(|_| challenge("http-01")));
        challenges.push(challenge("dns-01"));
        json!({"status": status, "identifier": {"type": "dns", "value": order.name},
            "challenges": challenges})
    }

    /// The certificate chain for a request.
    fn issue(&self, name: &str, request: &[u8]) -> String {
        struct Point(Vec<u8>);
        impl rcgen::PublicKeyData for Point {
            fn der_bytes(&self) -> &[u8] {
                &self.0
            }
            fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
                &rcgen::PKCS_ECDSA_P256_SHA256
            }
        }
        // The key is a bit string of 66 bytes: no unused bits, and an uncompressed point.
        let mark = [3, 0x42, 0, 4];
        let at = request
            .windows(4)
            .position(|window| window == mark)
            .expect("the key is in the request");
        let point = Point(request[at + 3..at + 68].to_vec());
        let mut parameters =
            rcgen::CertificateParams::new([name.to_owned()]).expect("the name is valid");
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        parameters.not_before = epoch + now - Duration::from_secs(1);
        parameters.not_after = epoch + now + self.life;
        parameters.use_authority_key_identifier_extension = true;
        parameters.signed_by(&point, &self.issuer).expect("signing succeeds").pem() + &self.root
    }
}

fn token(number: usize) -> String {
    format!("token-{number}_of-the-test")
}

#[expect(clippy::too_many_lines, reason = "a table: one response per path")]
fn answer(state: &Arc<Mutex<State>>, path: &str, body: Option<&Value>) -> Response {
    let mut known = lock(state);
    known.asked.push(path.split('/').next().unwrap_or_default().to_owned());
    let part = |key: &str| {
        let text = body.and_then(|body| body[key].as_str()).unwrap_or_default();
        serde_json::from_slice::<Value>(&decoded(text)).unwrap_or(Value::Null)
    };
    let (protected, payload) = (part("protected"), part("payload"));
    let parts: Vec<&str> = path.split('/').collect();
    let number = parts.get(1).and_then(|number| number.parse::<usize>().ok()).unwrap_or(0);
    let base = known.base.clone();
    match parts[0] {
        "directory" => {
            let mut value = json!({
                "newNonce": format!("{base}/nonce"),
                "newAccount": format!("{base}/account"),
                "newOrder": format!("{base}/new-order"),
                "revokeCert": format!("{base}/revoke"),
            });
            if !known.has_no_windows {
                value["renewalInfo"] = format!("{base}/window").into();
            }
            reply(StatusCode::OK, "", &value)
        }
        "nonce" => reply(StatusCode::OK, "", &Value::Null),
        "account" if parts.len() == 1 => {
            let bound = payload["externalAccountBinding"]["protected"].as_str().map(decoded);
            let bound = bound.and_then(|text| serde_json::from_slice::<Value>(&text).ok());
            known.accounts.push(Some(Account {
                thumb: thumb(&protected["jwk"]),
                contacts: payload["contact"].clone(),
                external: bound.and_then(|bound| bound["kid"].as_str().map(str::to_owned)),
            }));
            let place = format!("{base}/account/{}", known.accounts.len() - 1);
            reply(StatusCode::CREATED, &place, &json!({"status": "valid"}))
        }
        "account" => match &mut known.accounts[number] {
            Some(account) => {
                account.contacts = payload["contact"].clone();
                reply(StatusCode::OK, "", &json!({"status": "valid"}))
            }
            None => unknown_account(),
        },
        "new-order" => {
            if let Some((status, patience)) = &known.is_busy {
                let problem = json!({"type": "urn:ietf:params:acme:error:rateLimited"});
                let patience = HeaderValue::from_str(patience).expect("the header value is valid");
                return reply(*status, "", &problem).with_field(RETRY_AFTER, patience);
            }
            let account = protected["kid"].as_str().and_then(|kid| kid.rsplit('/').next());
            let account: usize =
                account.and_then(|account| account.parse().ok()).expect("the text is a number");
            if known.accounts[account].is_none() {
                return unknown_account();
            }
            let name =
                payload["identifiers"][0]["value"].as_str().expect("the identifier has a value");
            let replaces = payload["replaces"].as_str().map(str::to_owned);
            let order = Order { name: name.to_owned(), replaces, account, ..Order::default() };
            known.orders.push(order);
            let number = known.orders.len() - 1;
            let place = format!("{base}/order/{number}");
            reply(StatusCode::CREATED, &place, &known.order(number))
        }
        "order" => reply(StatusCode::OK, "", &known.order(number)),
        "authorization" => reply(StatusCode::OK, "", &known.authorization(number)),
        "challenge" => {
            known.orders[number].is_checking = true;
            check(Arc::clone(state), &known, number, parts[2]);
            let all = known.authorization(number);
            let challenges = all["challenges"].as_array().expect("the JSON is a list");
            let one = challenges.iter().find(|challenge| challenge["type"] == parts[2]);
            reply(StatusCode::OK, "", one.expect("the challenge was offered"))
        }
        "finalize" => {
            let request = decoded(payload["csr"].as_str().expect("the payload has a CSR"));
            let is_mistaken = known.issued() < known.mistaken_below;
            let name = if is_mistaken { "other.test" } else { known.orders[number].name.as_str() };
            let chain = known.issue(name, &request);
            known.orders[number].chain = Some(chain);
            let Some(seconds) = known.is_slow else {
                return reply(StatusCode::OK, "", &known.order(number));
            };
            known.ready_at = Some(Instant::now() + Duration::from_secs(seconds));
            let response = reply(StatusCode::OK, "", &known.order(number));
            response.with_field(RETRY_AFTER, seconds.into())
        }
        "certificate" => known.orders[number].chain.clone().unwrap_or_default().into_response(),
        "window" => {
            let year = if known.issued() < known.impatient_below { 2020 } else { 2090 };
            let window = json!({"start": format!("{year}-01-01T00:00:00Z"),
                "end": format!("{year}-01-02T00:00:00Z")});
            let response = reply(StatusCode::OK, "", &json!({"suggestedWindow": window}));
            response.with_field(RETRY_AFTER, 21_600_u64.into())
        }
        _ => reply(StatusCode::NOT_FOUND, "", &json!({"detail": "there is no such thing"})),
    }
}

fn unknown_account() -> Response {
    let problem = json!({"type": "urn:ietf:params:acme:error:accountDoesNotExist"});
    reply(StatusCode::BAD_REQUEST, "", &problem)
}

fn reply(status: StatusCode, place: &str, value: &Value) -> Response {
    let fields = [
        ("replay-nonce", "nonce".to_owned()),
        ("location", place.to_owned()),
        ("content-type", "application/json".to_owned()),
    ];
    (status, fields, value.to_string()).into_response()
}

/// Validates a name from outside, as authorities do.
fn check(state: Arc<Mutex<State>>, known: &State, number: usize, kind: &str) {
    let order = &known.orders[number];
    let (name, kind) = (order.name.clone(), kind.to_owned());
    let account = known.accounts[order.account].as_ref().expect("the account placed this order");
    let expected = format!("{}.{}", token(number), account.thumb);
    let place = if kind == "http-01" { known.http } else { known.tls };
    thread::spawn(move || {
        let place = place.expect("the challenge was offered");
        let result = match kind.as_str() {
            "http-01" => by_http(place, &name, &token(number), &expected),
            _ => by_tls(place, &name, &expected),
        };
        let result = result.map_err(|error| error.to_string());
        lock(&state).orders[number].checked.push((kind, result));
    });
}

pub(crate) fn by_http(
    place: SocketAddr,
    name: &str,
    token: &str,
    expected: &str,
) -> io::Result<()> {
    let mut stream = TcpStream::connect(place)?;
    stream.set_read_timeout(Some(super::PATIENCE))?;
    let path = format!("/.well-known/acme-challenge/{token}");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    match text.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") && body == expected => Ok(()),
        _ => Err(io::Error::other(text)),
    }
}

pub(crate) fn by_tls(place: SocketAddr, name: &str, expected: &str) -> io::Result<()> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustsAnything))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"acme-tls/1".to_vec()];
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    let client = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let stream = TcpStream::connect(place)?;
    stream.set_read_timeout(Some(super::PATIENCE))?;
    let mut stream = StreamOwned::new(client, stream);
    stream.conn.complete_io(&mut stream.sock)?;
    let shown = stream.conn.peer_certificates().map(|chain| chain[0].to_vec()).unwrap_or_default();
    let has = |bytes: &[u8]| shown.windows(bytes.len()).any(|window| window == bytes);
    // The OID of acmeIdentifier, 1.3.6.1.5.5.7.1.31, and the digest.
    let is_right = has(&[6, 8, 0x2b, 6, 1, 5, 5, 7, 1, 31])
        && has(digest(&SHA256, expected.as_bytes()).as_ref())
        && stream.conn.alpn_protocol() == Some(b"acme-tls/1");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest)?;
    if is_right && rest.is_empty() { Ok(()) } else { Err(io::Error::other("a wrong certificate")) }
}

// RFC 7638 §3: the digest of the required members, in order.
fn thumb(key: &Value) -> String {
    let text =
        json!({"crv": key["crv"], "kty": key["kty"], "x": key["x"], "y": key["y"]}).to_string();
    encoded(digest(&SHA256, text.as_bytes()).as_ref())
}

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn encoded(bytes: &[u8]) -> String {
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - three.len()));
        for place in 0..=three.len() {
            text.push(char::from(LETTERS[(bits >> (18 - 6 * place)) as usize & 63]));
        }
    }
    text
}

fn decoded(text: &str) -> Vec<u8> {
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for letter in text.bytes() {
        let value =
            LETTERS.iter().position(|known| *known == letter).expect("the text is base64url");
        bits = bits << 6 | value as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

#[derive(Debug)]
struct TrustsAnything;

impl ServerCertVerifier for TrustsAnything {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// The files of a folder and its subfolders.
pub(crate) fn files(folder: &FilePath) -> Vec<String> {
    let mut all = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                all.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
    }
    all.sort();
    all
}
