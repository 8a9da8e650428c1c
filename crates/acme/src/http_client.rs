//! The HTTP client for directories: HTTPS, with limits, since the server may be malicious.

use crate::error::AcmeSetupError;
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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::time::timeout;

/// The time limit of a request.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// The size limit of a response: certificate chains have a few kilobytes.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// The maximum delay that a directory may request: one day.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(86_400);

/// When to request the renewal window again if the server does not specify it.
// RFC 9773 §4.3.3: six hours.
const ARI_INTERVAL_DEFAULT: Duration = Duration::from_secs(6 * 3_600);

/// The trusted roots, and the delays requested by the server. Each [`AcmeHttpClient::http`] opens
/// new connections.
#[derive(Clone)]
pub(crate) struct AcmeHttpClient {
    config: ClientConfig,
    retry_after: Arc<Mutex<RetryAfterState>>,
}

/// The delays that the directory requested.
#[derive(Debug, Default)]
struct RetryAfterState {
    /// The rejection of a request since this was last taken, if any.
    rejection: Option<RetryAfter>,
    /// The time that the last response specified, if any.
    last_retry_after: Option<SystemTime>,
}

/// A rejection that applies for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryAfter {
    /// Its end, if the server specified one.
    pub(crate) retry_at: Option<SystemTime>,
    /// Whether it applies to all requests, not only to those of this kind.
    pub(crate) is_global: bool,
}

impl RetryAfterState {
    fn record(&mut self, status: StatusCode, retry_at: Option<SystemTime>) {
        self.last_retry_after = retry_at;
        // RFC 9110 §15.6.4 and RFC 6585 §4: the server is unavailable, or there were too many
        // requests of this kind.
        let is_global = status == StatusCode::SERVICE_UNAVAILABLE;
        if is_global || status == StatusCode::TOO_MANY_REQUESTS {
            let previous = self.rejection.take();
            self.rejection = Some(RetryAfter {
                retry_at: retry_at.max(previous.and_then(|retry_after| retry_after.retry_at)),
                is_global: is_global || previous.is_some_and(|retry_after| retry_after.is_global),
            });
        }
    }
}

impl AcmeHttpClient {
    /// Trusts the system's roots and those in these files.
    pub(crate) fn new(files: &[PathBuf]) -> Result<Self, AcmeSetupError> {
        let mut roots = RootCertStore::empty();
        for path in files {
            add_root_file(&mut roots, path)
                .map_err(|cause| AcmeSetupError::BadRoots { path: path.clone(), cause })?;
        }
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(AcmeSetupError::NoRoots);
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has suites for all versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { config, retry_after: Arc::default() })
    }

    /// Creates an HTTP client, which must be used within a runtime.
    pub(crate) fn http(&self) -> Box<dyn HttpClient> {
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(self.config.clone())
            .https_only()
            .enable_http1()
            .build();
        let pooled = Pooled::builder(TokioExecutor::new()).build(connector);
        Box::new(HttpClientAdapter { pooled, retry_after: Arc::clone(&self.retry_after) })
    }

    /// Returns the rejection since the last call, if any.
    pub(crate) fn take_rejection(&self) -> Option<RetryAfter> {
        self.retry_after_state().rejection.take()
    }

    /// Returns the time of the next request, if the last response specified one.
    pub(crate) fn last_retry_after(&self) -> Option<SystemTime> {
        self.retry_after_state().last_retry_after.take()
    }

    fn retry_after_state(&self) -> MutexGuard<'_, RetryAfterState> {
        self.retry_after.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add_root_file(roots: &mut RootCertStore, path: &Path) -> Result<(), String> {
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())?;
    let mut count = 0;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
        count += 1;
    }
    if count == 0 { Err("it contains no certificate".to_owned()) } else { Ok(()) }
}

struct HttpClientAdapter {
    pooled: Pooled<HttpsConnector<HttpConnector>, BodyWrapper<Bytes>>,
    retry_after: Arc<Mutex<RetryAfterState>>,
}

type HttpResponseFuture = Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>>;

impl HttpClient for HttpClientAdapter {
    fn request(&self, request: Request<BodyWrapper<Bytes>>) -> HttpResponseFuture {
        let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        // All requests are POSTs (RFC 8555, section 6.3), except those for renewal windows and for
        // the directory itself, for which the default is not needed but harmless.
        let is_renewal_info = request.method() == Method::GET;
        let (response, retry_after_state) =
            (self.pooled.request(request), Arc::clone(&self.retry_after));
        Box::pin(async move {
            let to_error = |cause: String| Error::Other(format!("{authority}: {cause}").into());
            let on_timeout =
                |_| to_error(format!("no response within {} s", RESPONSE_TIMEOUT.as_secs()));
            let response = timeout(RESPONSE_TIMEOUT, response).await.map_err(on_timeout)?;
            let (mut parts, body) =
                response.map_err(|error| to_error(error_chain(&error)))?.into_parts();
            let now = SystemTime::now();
            let retry_at = retry_after(&parts.headers, now);
            retry_after_state
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .record(parts.status, retry_at);
            replace_retry_after(&mut parts.headers, retry_at, is_renewal_info, now);
            let body =
                timeout(RESPONSE_TIMEOUT, Limited::new(body, RESPONSE_BYTES_MAX).collect()).await;
            let body = body
                .map_err(on_timeout)?
                .map_err(|error| to_error(error_chain(&*error)))?
                .to_bytes();
            Ok(BytesResponse { parts, body: Box::new(body) })
        })
    }
}

/// Returns the time before which the server requests not to be contacted, at most a day from now.
// RFC 9110 §10.2.3: a number of seconds, or a date.
fn retry_after(fields: &HeaderMap, now: SystemTime) -> Option<SystemTime> {
    let value = fields.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let delay = if is_number {
        // A number that overflows is more than the maximum.
        value.parse().map_or(RETRY_AFTER_MAX, Duration::from_secs)
    } else {
        let until = httpdate::parse_http_date(value).ok()?;
        until.duration_since(now).unwrap_or_default()
    };
    now.checked_add(delay.min(RETRY_AFTER_MAX))
}

/// Replaces the value of `Retry-After` with the one computed here. The ACME library adds any number
/// to the current time, and would panic on overflow. For renewal windows, it also requires the
/// field.
fn replace_retry_after(
    fields: &mut HeaderMap,
    retry_at: Option<SystemTime>,
    is_renewal_info: bool,
    now: SystemTime,
) {
    let delay = retry_at.map(|retry_at| retry_at.duration_since(now).unwrap_or_default());
    match delay.or_else(|| is_renewal_info.then_some(ARI_INTERVAL_DEFAULT)) {
        Some(delay) => drop(fields.insert(RETRY_AFTER, delay.as_secs().into())),
        None => drop(fields.remove(RETRY_AFTER)),
    }
}

/// Formats an error with its causes.
pub(crate) fn error_chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Many errors include the text of their cause.
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
    fn retry_after_is_parsed_and_limited_to_a_day() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for (value, seconds, renewal_info_seconds) in [
            (Some("120"), Some(120), 120),
            (Some(" 0 "), Some(0), 0),
            (Some("Sun, 09 Sep 2001 01:48:40 GMT"), Some(120), 120),
            (Some("Sun, 09 Sep 2001 01:46:39 GMT"), Some(0), 0),
            (Some("Fri, 31 Dec 9999 23:59:59 GMT"), Some(86_400), 86_400),
            (Some("86401"), Some(86_400), 86_400),
            (Some("18446744073709551615"), Some(86_400), 86_400),
            (Some("18446744073709551616"), Some(86_400), 86_400),
            (Some("99999999999999999999999999999999999999999"), Some(86_400), 86_400),
            (Some("soon"), None, 21_600),
            (Some("-1"), None, 21_600),
            (Some("+1"), None, 21_600),
            (Some("1.5"), None, 21_600),
            (Some(""), None, 21_600),
            (None, None, 21_600),
        ] {
            let mut fields = HeaderMap::new();
            if let Some(value) = value {
                fields.insert(RETRY_AFTER, value.parse().expect("the value is valid"));
            }
            let retry_at = retry_after(&fields, now);
            let expected = seconds.map(|seconds| now + Duration::from_secs(seconds));
            assert_eq!(retry_at, expected, "{value:?}");
            for (is_renewal_info, expected) in
                [(false, seconds), (true, Some(renewal_info_seconds))]
            {
                let mut fields = fields.clone();
                replace_retry_after(&mut fields, retry_at, is_renewal_info, now);
                let replaced =
                    fields.get(RETRY_AFTER).map(|value| value.to_str().expect("the value is text"));
                let expected = expected.map(|seconds| seconds.to_string());
                assert_eq!(replaced, expected.as_deref(), "{value:?} {is_renewal_info}");
            }
        }
    }

    #[test]
    fn a_rejection_is_kept_until_it_is_taken() {
        let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        let mut state = RetryAfterState::default();
        state.record(StatusCode::OK, at(5));
        assert_eq!((state.rejection, state.last_retry_after), (None, at(5)));
        state.record(StatusCode::TOO_MANY_REQUESTS, at(9));
        state.record(StatusCode::TOO_MANY_REQUESTS, at(7));
        state.record(StatusCode::OK, None);
        let rejection = |until, is_global| Some(RetryAfter { retry_at: until, is_global });
        assert_eq!((state.rejection, state.last_retry_after), (rejection(at(9), false), None));
        state.record(StatusCode::SERVICE_UNAVAILABLE, None);
        state.record(StatusCode::TOO_MANY_REQUESTS, None);
        assert_eq!(state.rejection, rejection(at(9), true));
    }
}
