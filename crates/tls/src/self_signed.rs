//! Self-signed certificates, for development.

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls_pki_types::UnixTime;
use std::time::Duration;

/// Creates a certificate and its key, both in PEM.
pub(crate) fn generate_self_signed(names: &[&str]) -> Result<(String, String), rcgen::Error> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut parameters = CertificateParams::new(names)?;
    parameters.distinguished_name.push(DnType::CommonName, "Peregrine development certificate");
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // Starts a day ago, for clients whose clocks are behind. Some clients reject certificates that
    // are valid for much longer than a year.
    let day = Duration::from_secs(86_400);
    let now = Duration::from_secs(UnixTime::now().as_secs());
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    parameters.not_before = epoch + now.saturating_sub(day);
    parameters.not_after = epoch + now + 365 * day;
    let key = KeyPair::generate()?;
    let certificate = parameters.self_signed(&key)?;
    Ok((certificate.pem(), key.serialize_pem()))
}
