//! Reads the properties of a newly obtained certificate before it is put into use.

use crate::certificate::Certificate;
use crate::der::{
    TAG_BOOLEAN, TAG_OBJECT_IDENTIFIER, TAG_OCTET_STRING, TAG_SEQUENCE, context_tag, iter,
    read_tagged, skip_optional,
};
use crate::error::TlsSetupError;
use crate::protocol::ProtocolSettings;
use crate::spec::now;
use crate::status::system_time;
use crate::x509::parse_tbs_certificate;
use std::time::SystemTime;

/// A certificate that matches its key.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// Its DNS names, in lower case.
    pub names: Vec<String>,
    /// The start of its validity.
    pub not_before: SystemTime,
    /// The end of its validity.
    pub not_after: SystemTime,
    /// The bytes of its serial number.
    pub serial: Vec<u8>,
    /// The key identifier of its issuer, if the certificate contains it.
    pub authority_key_id: Option<Vec<u8>>,
}

/// Reads a chain and its key, both in PEM.
///
/// # Errors
///
/// They are incomplete, or do not match.
#[doc(hidden)]
pub fn inspect_certificate(chain: &[u8], key: &[u8]) -> Result<CertificateInfo, TlsSetupError> {
    let provider = ProtocolSettings::default().provider();
    let loaded = Certificate::from_pem(chain, key).load(&provider, None, now())?;
    let fields = parse_tbs_certificate(loaded.end_entity());
    let dates = fields.as_ref().and_then(|fields| {
        let validity = fields.validity;
        Some((system_time(validity.not_before)?, system_time(validity.not_after)?))
    });
    let (Some(fields), Some((not_before, not_after))) = (fields, dates) else {
        let error = rustls::Error::General("its dates cannot be read".to_owned());
        return Err(TlsSetupError::BadCertificate { origin: loaded.origin.clone(), error });
    };
    Ok(CertificateInfo {
        names: loaded.names.clone(),
        not_before,
        not_after,
        serial: fields.serial.to_vec(),
        authority_key_id: authority_key_identifier(fields.after_subject).map(<[u8]>::to_vec),
    })
}

// RFC 5280 §4.2.1.1: the object identifier 2.5.29.35, and the first of its fields.
const AUTHORITY_KEY_IDENTIFIER: &[u8] = &[0x55, 0x1d, 0x23];
const KEY_IDENTIFIER: u8 = 0x80;

/// Returns the key identifier in the extension authorityKeyIdentifier. `after_subject` is the part
/// of the certificate after the subject.
pub(crate) fn authority_key_identifier(after_subject: &[u8]) -> Option<&[u8]> {
    let value = find_extension(after_subject, AUTHORITY_KEY_IDENTIFIER)?;
    let (fields, _) = read_tagged(value, TAG_SEQUENCE)?;
    read_tagged(fields, KEY_IDENTIFIER).map(|(identifier, _)| identifier)
}

/// Finds an extension and returns its content. `after_subject` is the part of the certificate after
/// the subject.
pub(crate) fn find_extension<'a>(
    after_subject: &'a [u8],
    extension_oid: &[u8],
) -> Option<&'a [u8]> {
    // RFC 5280 §4.1: the subject's key, two obsolete identifiers, and the extensions, each of which
    // is an object identifier, a critical flag, and bytes.
    let (_key, _) = read_tagged(after_subject, TAG_SEQUENCE)?;
    let (_, extensions) = iter(after_subject).find(|(tag, _)| *tag == context_tag(3))?;
    let (extensions, _) = read_tagged(extensions, TAG_SEQUENCE)?;
    iter(extensions).find_map(|(_, extension)| {
        let (oid, rest) = read_tagged(extension, TAG_OBJECT_IDENTIFIER)?;
        let (value, _) = read_tagged(skip_optional(rest, TAG_BOOLEAN), TAG_OCTET_STRING)?;
        (oid == extension_oid).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::inspect_certificate;

    #[test]
    fn reads_the_properties_of_a_complete_certificate_only() {
        let issuer_key = rcgen::KeyPair::generate().unwrap();
        let mut parameters = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let identifier = parameters.key_identifier(&issuer_key);
        let issuer = rcgen::Issuer::new(parameters, issuer_key);
        let mut leaf = rcgen::CertificateParams::new(["a.test".to_owned()]).unwrap();
        leaf.serial_number = Some(rcgen::SerialNumber::from_slice(&[0x81, 2, 3]));
        leaf.use_authority_key_identifier_extension = true;
        leaf.not_after = rcgen::date_time_ymd(2060, 2, 29);
        let key = rcgen::KeyPair::generate().unwrap();
        let chain = leaf.signed_by(&key, &issuer).unwrap().pem();
        let pem = format!("{chain}{}", key.serialize_pem());
        let info = inspect_certificate(pem.as_bytes(), pem.as_bytes()).unwrap();
        assert_eq!(info.names, ["a.test"]);
        // RFC 9773 §4.1: the bytes of the integer, including the leading zero.
        assert_eq!(info.serial, [0, 0x81, 2, 3]);
        assert_eq!(info.authority_key_id, Some(identifier));
        let seconds = info.not_after.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert_eq!(seconds, 2_845_238_400);
        // A truncated file is rejected, wherever it is cut.
        for end in (0..pem.trim_end().len()).step_by(7) {
            assert!(
                inspect_certificate(&pem.as_bytes()[..end], &pem.as_bytes()[..end]).is_err(),
                "{end}"
            );
        }
    }
}
