//! What the lab tells a contender, by environment variables.

use std::env;
use std::fs;
use std::sync::Arc;
use std::thread;

use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

pub struct Settings {
    pub port: u16,
    pub workers: usize,
    pub tls: Option<Tls>,
}

pub struct Tls {
    pub port: u16,
    pub config: Arc<ServerConfig>,
}

impl Settings {
    pub fn from_environment() -> Settings {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Settings {
            port: number("PORT").unwrap_or(8080),
            workers: number("WORKERS").filter(|&workers| workers > 0).unwrap_or(cores),
            tls: Tls::from_environment(),
        }
    }
}

impl Tls {
    fn from_environment() -> Option<Tls> {
        let certificates = text("TLS_CERT")?;
        let key = text("TLS_KEY")?;
        let port = number("TLS_PORT").unwrap_or(8443);
        let certificates = fs::read(certificates).expect("TLS_CERT names a readable file");
        let certificates = CertificateDer::pem_slice_iter(&certificates)
            .collect::<Result<Vec<_>, _>>()
            .expect("TLS_CERT holds PEM certificates");
        let key = fs::read(key).expect("TLS_KEY names a readable file");
        let key = PrivateKeyDer::from_pem_slice(&key).expect("TLS_KEY holds a PEM key");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider knows TLS 1.3")
            .with_no_client_auth()
            .with_single_cert(certificates, key)
            .expect("the key belongs to the certificate");
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Some(Tls { port, config: Arc::new(config) })
    }
}

fn text(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    text(name)?.parse().ok()
}
