//! Builds TLS settings from the configuration.

#[cfg(feature = "acme")]
use crate::acme::{Acme, Challenge};
use crate::error::Error;
#[cfg(not(feature = "acme"))]
use crate::error::missing_feature;
#[cfg(feature = "acme")]
use peregrine_settings::{AcmeConfig, ChallengeKind};
use peregrine_settings::{ClientAuthMode, MinTlsVersion, TlsSection};
use peregrine_tls::{Certificate, ClientAuth, TicketKeys, TlsConfig, TlsVersion};

/// Builds the TLS settings from the files. `section` is the path of the section, for error
/// messages.
pub(super) fn make(config: &TlsSection, section: &str) -> Result<TlsConfig, Error> {
    let wrong = |text: String| Error::Config(format!("`{section}`: {text}"));
    let known = |label: &String| config.certificates.contains_key(label);
    if let Some(label) = config.default_certificate.as_ref().filter(|label| !known(label)) {
        return Err(wrong(format!("`default_certificate = \"{label}\"` matches no label")));
    }
    let mut tls = with_certificates(config, section)?;
    if let Some(clients) = client_auth(config).map_err(wrong)? {
        tls = tls.with_client_auth(clients)?;
    }
    if let Some(path) = &config.ticket_keys {
        tls = tls.with_ticket_keys(TicketKeys::from_file(path)?);
    }
    if config.min_version == MinTlsVersion::Tls13 {
        tls = tls.with_min_version(TlsVersion::Tls13)?;
    }
    if !config.cipher_suites.is_empty() {
        tls = tls.with_cipher_suites(&texts(&config.cipher_suites))?;
    }
    if !config.key_exchange_groups.is_empty() {
        tls = tls.with_key_exchange_groups(&texts(&config.key_exchange_groups))?;
    }
    if config.alpn != TlsSection::default().alpn {
        let alpn: Vec<&[u8]> = config.alpn.iter().map(String::as_bytes).collect();
        tls = tls.with_alpn(&alpn);
    }
    if config.check_host {
        tls = tls.with_host_check();
    }
    if config.key_log {
        tls = tls.with_key_log()?;
    }
    Ok(tls.with_expiry_warning(config.expiry_warning))
}

/// Builds TLS settings with all certificates and otherwise defaults.
fn with_certificates(config: &TlsSection, section: &str) -> Result<TlsConfig, Error> {
    let first = config.default_certificate.as_ref().or(config.certificates.keys().next());
    let (mut tls, rest) = match (config.acme.domains.is_empty(), first) {
        (false, _) => (with_acme(config, section)?, None),
        (true, Some(first)) => {
            (TlsConfig::from_certificate(certificate(config, first))?, Some(first))
        }
        (true, None) => {
            return Err(Error::Config(format!(
                "`{section}`: there is no certificate: set `certificate` and `key` in \
                 `[{section}.certificates.main]`"
            )));
        }
    };
    for label in config.certificates.keys().filter(|label| Some(*label) != rest) {
        tls = tls.with_certificate(certificate(config, label))?;
    }
    Ok(tls)
}

#[cfg(feature = "acme")]
fn with_acme(config: &TlsSection, section: &str) -> Result<TlsConfig, Error> {
    acme(&config.acme, section)
}

#[cfg(not(feature = "acme"))]
fn with_acme(_: &TlsSection, section: &str) -> Result<TlsConfig, Error> {
    Err(missing_feature(&format!("{section}.acme.domains"), "acme"))
}

fn certificate(config: &TlsSection, label: &str) -> Certificate {
    let of = &config.certificates[label];
    let certificate = Certificate::from_files(&of.certificate, &of.key).label(label);
    match &of.ocsp_response {
        Some(path) => certificate.ocsp_response_file(path),
        None => certificate,
    }
}

fn client_auth(config: &TlsSection) -> Result<Option<ClientAuth>, String> {
    let of = &config.client_auth;
    let clients = match of.mode {
        ClientAuthMode::Off if !of.ca_files.is_empty() => {
            let text = "`client_auth.ca_files` is set, but `client_auth.mode` is `off`: \
                        write `required` or `optional`";
            return Err(text.to_owned());
        }
        ClientAuthMode::Off => return Ok(None),
        ClientAuthMode::Required => ClientAuth::required(),
        ClientAuthMode::Optional => ClientAuth::optional(),
    };
    let clients = of.ca_files.iter().fold(clients, ClientAuth::roots_file);
    let clients = of.crl_files.iter().fold(clients, ClientAuth::crl_file);
    Ok(Some(match of.only_check_end_entity_revocation {
        true => clients.only_check_end_entity_revocation(),
        false => clients,
    }))
}

fn texts(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}

/// Builds the TLS settings with the certificates already stored. `section` is the path of
/// the section, for error messages.
#[cfg(feature = "acme")]
fn acme(config: &AcmeConfig, section: &str) -> Result<TlsConfig, Error> {
    let mut acme = Acme::new(&config.domains).directory_url(&config.directory_url);
    for contact in &config.contacts {
        acme = acme.contact(contact);
    }
    for path in &config.ca_files {
        acme = acme.ca_file(path);
    }
    if let Some(directory) = &config.state_dir {
        acme = acme.state_dir(directory);
    }
    if let Some(profile) = &config.profile {
        acme = acme.profile(profile);
    }
    let account = &config.external_account_binding;
    if let Some(key_id) = &account.key_id {
        acme = acme.external_account_binding(key_id, account.mac_key.expose_secret());
    }
    let kind = |kind: &ChallengeKind| match kind {
        ChallengeKind::TlsAlpn01 => Challenge::TlsAlpn01,
        ChallengeKind::Http01 => Challenge::Http01,
    };
    let kinds: Vec<_> = config.challenges.iter().map(kind).collect();
    acme.challenges(&kinds).build().map_err(|error| match Error::from(error) {
        Error::Config(text) => Error::Config(format!("`{section}.acme`: {text}")),
        error => error,
    })
}
