//! Asks directories: HTTPS within limits, since what answers may be anybody's.

use crate::error::AcmeError;
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Pooled;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use peregrine_tls::rustls::crypto::aws_lc_rs;
use peregrine_tls::rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use std::error::Error as StdError;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::time::timeout;

/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// How large it may be: chains of certificates have a few kilobytes.
const BYTES_MAX: usize = 1 << 20;

/// How long a directory may ask to wait: a day.
const WAIT_MAX: Duration = Duration::from_secs(86_400);

/// When somebody who does not say so is asked again for a window.
// RFC 9773 §4.3.3: six hours.
const WINDOW_PAUSE: Duration = Duration::from_secs(6 * 3_600);

/// Who is trusted, and what was heard. Connections are made anew by each [`Client::http`].
#[derive(Clone)]
pub(crate) struct Client {
    config: ClientConfig,
    heard: Arc<Mutex<Option<SystemTime>>>,
}

impl Client {
    /// Trusts whom the system trusts, and whoever is in these files.
    pub(crate) fn new(files: &[PathBuf]) -> Result<Self, AcmeError> {
        let mut roots = RootCertStore::empty();
        for path in files {
            add(&mut roots, path)
                .map_err(|cause| AcmeError::BadRoots { path: path.clone(), cause })?;
        }
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(AcmeError::NoRoots);
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has suites for all versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { config, heard: Arc::default() })
    }

    /// Makes requests, within a runtime.
    pub(crate) fn http(&self) -> Box<dyn HttpClient> {
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(self.config.clone())
            .https_only()
            .enable_http1()
            .build();
        let pooled = Pooled::builder(TokioExecutor::new()).build(connector);
        Box::new(Http { pooled, heard: Arc::clone(&self.heard) })
    }

    /// Until when a directory has asked for patience since the last call.
    pub(crate) fn patience(&self) -> Option<SystemTime> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn add(roots: &mut RootCertStore, path: &Path) -> Result<(), String> {
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())?;
    let mut count = 0;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
        count += 1;
    }
    if count == 0 { Err("it holds no certificate".to_owned()) } else { Ok(()) }
}

struct Http {
    pooled: Pooled<HttpsConnector<HttpConnector>, BodyWrapper<Bytes>>,
    heard: Arc<Mutex<Option<SystemTime>>>,
}

type Answer = Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>>;

impl HttpClient for Http {
    fn request(&self, request: Request<BodyWrapper<Bytes>>) -> Answer {
        let place = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        // All else is asked by POST (RFC 8555, section 6.3), but directories, which need no answer to this.
        let is_for_window = request.method() == Method::GET;
        let (asked, heard) = (self.pooled.request(request), Arc::clone(&self.heard));
        Box::pin(async move {
            let fault = |cause: String| Error::Other(format!("{place}: {cause}").into());
            let late = |_| fault(format!("no answer within {} s", ANSWER_MAX.as_secs()));
            let answer = timeout(ANSWER_MAX, asked).await.map_err(late)?;
            let (mut parts, body) = answer.map_err(|error| fault(whole(&error)))?.into_parts();
            if matches!(
                parts.status,
                StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
            ) {
                let until = retry_after(&parts.headers, SystemTime::now());
                *heard.lock().unwrap_or_else(PoisonError::into_inner) = until;
            }
            bound_retry_after(&mut parts.headers, is_for_window, SystemTime::now());
            let body = timeout(ANSWER_MAX, Limited::new(body, BYTES_MAX).collect()).await;
            let body = body.map_err(late)?.map_err(|error| fault(whole(&*error)))?.to_bytes();
            Ok(BytesResponse { parts, body: Box::new(body) })
        })
    }
}

/// Until when a server asks not to be asked again.
// RFC 9110 §10.2.3: a number of seconds, or a date.
fn retry_after(fields: &HeaderMap, now: SystemTime) -> Option<SystemTime> {
    let value = fields.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = || now.checked_add(Duration::from_secs(value.parse().ok()?));
    seconds().or_else(|| httpdate::parse_http_date(value).ok())
}

/// Has an answer ask for a day of patience at most, since the protocol's client adds what it reads there to the time
/// of day, and a sum that is too large would end the thread. Without the field it would not look at a window either.
fn bound_retry_after(fields: &mut HeaderMap, is_for_window: bool, now: SystemTime) {
    let told = retry_after(fields, now);
    let told = told.map(|until| until.duration_since(now).unwrap_or_default().min(WAIT_MAX));
    match told.or_else(|| is_for_window.then_some(WINDOW_PAUSE)) {
        Some(pause) => drop(fields.insert(RETRY_AFTER, pause.as_secs().into())),
        None => drop(fields.remove(RETRY_AFTER)),
    }
}

/// An error with what caused it.
pub(crate) fn whole(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Many errors say what their cause says.
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_for_patience_says_for_how_long_or_until_when() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for (value, expected) in [
            ("120", Some(120)),
            (" 0 ", Some(0)),
            ("Sun, 09 Sep 2001 01:48:40 GMT", Some(120)),
            ("soon", None),
            ("-1", None),
            ("99999999999999999999", None),
        ] {
            let mut fields = HeaderMap::new();
            fields.insert(RETRY_AFTER, value.parse().expect("a value"));
            let expected = expected.map(|seconds| now + Duration::from_secs(seconds));
            assert_eq!(retry_after(&fields, now), expected, "{value}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn nobody_asks_for_more_than_a_day_and_a_window_is_looked_at_without_being_asked_to_wait() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for (value, is_for_window, expected) in [
            (Some("120"), false, Some("120")),
            (Some("Sun, 09 Sep 2001 01:48:40 GMT"), false, Some("120")),
            (Some("Sun, 09 Sep 2001 01:46:39 GMT"), false, Some("0")),
            (Some("86401"), true, Some("86400")),
            (Some("18446744073709551615"), false, None),
            (Some("18446744073709551615"), true, Some("21600")),
            (Some("soon"), false, None),
            (None, false, None),
            (None, true, Some("21600")),
        ] {
            let mut fields = HeaderMap::new();
            if let Some(value) = value {
                fields.insert(RETRY_AFTER, value.parse().expect("a value"));
            }
            bound_retry_after(&mut fields, is_for_window, now);
            let found = fields.get(RETRY_AFTER).map(|value| value.to_str().expect("text"));
            assert_eq!(found, expected, "{value:?} {is_for_window}");
        }
    }
}
