//! Builds the TLS settings from the configuration.

#[cfg(feature = "acme")]
use crate::acme::{Acme, Challenge};
use peregrine_runtime::Error;
#[cfg(not(feature = "acme"))]
use peregrine_runtime::internal::missing_feature;
#[cfg(feature = "acme")]
use peregrine_settings::{AcmeConfig, ChallengeKind};
use peregrine_settings::{ClientAuthMode, MinTlsVersion, TlsSection};
use peregrine_tls::{Certificate, ClientAuth, TicketKeys, TlsConfig, TlsVersion};

/// Builds the TLS settings, and reads the files that `config` names. `section` is the path of the
/// section, for error messages.
pub(super) fn build(config: &TlsSection, section: &str) -> Result<TlsConfig, Error> {
    let config_error = |text: String| Error::Config(format!("`{section}`: {text}"));
    let has_certificate = |label: &String| config.certificates.contains_key(label);
    if let Some(label) = config.default_certificate.as_ref().filter(|label| !has_certificate(label))
    {
        return Err(config_error(format!("`default_certificate = \"{label}\"` matches no label")));
    }
    let mut tls = with_certificates(config, section)?;
    if let Some(auth) = build_client_auth(config).map_err(config_error)? {
        tls = tls.with_client_auth(auth)?;
    }
    if let Some(path) = &config.ticket_keys {
        tls = tls.with_ticket_keys(TicketKeys::from_file(path)?);
    }
    if config.min_version == MinTlsVersion::Tls13 {
        tls = tls.with_min_version(TlsVersion::Tls13)?;
    }
    if !config.cipher_suites.is_empty() {
        tls = tls.with_cipher_suites(&as_strs(&config.cipher_suites))?;
    }
    if !config.key_exchange_groups.is_empty() {
        tls = tls.with_key_exchange_groups(&as_strs(&config.key_exchange_groups))?;
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

/// Builds TLS settings with all certificates, and with defaults for everything else.
fn with_certificates(config: &TlsSection, section: &str) -> Result<TlsConfig, Error> {
    let first_label = config.default_certificate.as_ref().or(config.certificates.keys().next());
    let (mut tls, loaded_label) = match (config.acme.domains.is_empty(), first_label) {
        (false, _) => (with_acme(config, section)?, None),
        (true, Some(label)) => {
            (TlsConfig::from_certificate(build_certificate(config, label))?, Some(label))
        }
        (true, None) => {
            return Err(Error::Config(format!(
                "`{section}`: there is no certificate: set `certificate` and `key` in \
                 `[{section}.certificates.main]`"
            )));
        }
    };
    for label in config.certificates.keys().filter(|label| Some(*label) != loaded_label) {
        tls = tls.with_certificate(build_certificate(config, label))?;
    }
    Ok(tls)
}

#[cfg(feature = "acme")]
fn with_acme(config: &TlsSection, section: &str) -> Result<TlsConfig, Error> {
    build_acme(&config.acme, section)
}

#[cfg(not(feature = "acme"))]
fn with_acme(_: &TlsSection, section: &str) -> Result<TlsConfig, Error> {
    Err(missing_feature(&format!("{section}.acme.domains"), "acme"))
}

fn build_certificate(config: &TlsSection, label: &str) -> Certificate {
    let files = &config.certificates[label];
    let certificate = Certificate::from_files(&files.certificate, &files.key).label(label);
    match &files.ocsp_response {
        Some(path) => certificate.ocsp_response_file(path),
        None => certificate,
    }
}

fn build_client_auth(config: &TlsSection) -> Result<Option<ClientAuth>, String> {
    let section = &config.client_auth;
    let auth = match section.mode {
        ClientAuthMode::Off if !section.ca_files.is_empty() => {
            let text = "`client_auth.ca_files` is set, but `client_auth.mode` is `off`: \
                        write `required` or `optional`";
            return Err(text.to_owned());
        }
        ClientAuthMode::Off => return Ok(None),
        ClientAuthMode::Required => ClientAuth::required(),
        ClientAuthMode::Optional => ClientAuth::optional(),
    };
    let auth = section.ca_files.iter().fold(auth, ClientAuth::roots_file);
    let auth = section.crl_files.iter().fold(auth, ClientAuth::crl_file);
    Ok(Some(match section.only_check_end_entity_revocation {
        true => auth.only_check_end_entity_revocation(),
        false => auth,
    }))
}

fn as_strs(strings: &[String]) -> Vec<&str> {
    strings.iter().map(String::as_str).collect()
}

/// Builds TLS settings whose certificates an ACME client obtains while the server runs. At first
/// they have the certificates that it has stored in earlier runs. `section` is the path of the
/// section, for error messages.
#[cfg(feature = "acme")]
fn build_acme(config: &AcmeConfig, section: &str) -> Result<TlsConfig, Error> {
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
    let binding = &config.external_account_binding;
    if let Some(key_id) = &binding.key_id {
        acme = acme.external_account_binding(key_id, binding.mac_key.expose_secret());
    }
    let to_challenge = |kind: &ChallengeKind| match kind {
        ChallengeKind::TlsAlpn01 => Challenge::TlsAlpn01,
        ChallengeKind::Http01 => Challenge::Http01,
    };
    let challenges: Vec<_> = config.challenges.iter().map(to_challenge).collect();
    acme.challenges(&challenges).build().map_err(|error| match Error::from(error) {
        Error::Config(text) => Error::Config(format!("`{section}.acme`: {text}")),
        error => error,
    })
}
