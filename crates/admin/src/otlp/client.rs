//! A small blocking HTTP/1.1 client for the thread that sends spans to a collector.
//!
//! The client needs no runtime and no other HTTP implementation. Batches are sent only every few
//! seconds, so each request uses a new connection.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use opentelemetry_http::{HttpClient, HttpError};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::pin::Pin;
use std::time::{Duration, Instant};

/// The maximum size of a response head.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The maximum size of a response body that is read. Collectors send only a few words.
const BODY_BYTES_MAX: usize = 1 << 20;

/// The maximum number of responses, including interim responses (RFC 9110 §15.2).
const RESPONSES_MAX: usize = 8;

/// The client that sends spans to a collector.
#[derive(Debug)]
pub(super) struct CollectorClient {
    /// The timeout of a whole request, from connecting to the end of the response. Only the lookup
    /// of the collector's name can exceed it; the request then fails afterwards.
    pub(super) timeout: Duration,
}

type ResponseFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>;

impl HttpClient for CollectorClient {
    fn send_bytes<'a, 'f>(&'a self, request: Request<Bytes>) -> ResponseFuture<'f>
    where
        'a: 'f,
        Self: 'f,
    {
        Box::pin(async move { self.send(&request).map_err(Into::into) })
    }
}

impl CollectorClient {
    fn send(&self, request: &Request<Bytes>) -> io::Result<Response<Bytes>> {
        let deadline = super::deadline_in(self.timeout);
        let uri = request.uri();
        let host = uri.host().ok_or_else(|| invalid_data("the collector's address has no host"))?;
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let stream = DeadlineStream { stream: connect(name, port, deadline)?, deadline };
        if is_tls {
            send_request(&mut connect_tls(name, stream)?, request)
        } else {
            send_request(&mut { stream }, request)
        }
    }
}

fn invalid_data(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

fn timeout_error() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the collector did not respond in time")
}

fn time_left(deadline: Instant) -> io::Result<Duration> {
    let remaining = deadline.saturating_duration_since(Instant::now());
    if remaining.is_zero() { Err(timeout_error()) } else { Ok(remaining) }
}

fn connect(host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    let mut last_error =
        io::Error::new(io::ErrorKind::NotFound, "the collector's name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, time_left(deadline)?) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

/// A connection whose reads and writes fail after a deadline.
struct DeadlineStream {
    stream: TcpStream,
    deadline: Instant,
}

/// Converts the errors with which different systems report a socket timeout to one error.
fn as_timeout<T>(result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => timeout_error(),
        _ => error,
    })
}

impl Read for DeadlineStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(time_left(self.deadline)?))?;
        as_timeout(self.stream.read(bytes))
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(time_left(self.deadline)?))?;
        as_timeout(self.stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

trait ReadWrite: Read + Write {}

impl<S: Read + Write> ReadWrite for S {}

/// Wraps a connection in TLS, with the system's root certificates.
#[cfg(feature = "tls")]
fn connect_tls(host: &str, stream: DeadlineStream) -> io::Result<impl ReadWrite> {
    use peregrine_tls::rustls::crypto::aws_lc_rs;
    use peregrine_tls::rustls::pki_types::ServerName;
    use peregrine_tls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
    use std::sync::{Arc, OnceLock};
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    let config = CONFIG.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has suites for all versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Arc::new(config)
    });
    let name =
        ServerName::try_from(host.to_owned()).map_err(|error| invalid_data(&error.to_string()))?;
    let session = ClientConnection::new(Arc::clone(config), name);
    Ok(StreamOwned::new(session.map_err(|error| invalid_data(&error.to_string()))?, stream))
}

#[cfg(not(feature = "tls"))]
fn connect_tls(_: &str, stream: DeadlineStream) -> io::Result<impl ReadWrite> {
    // The annotation is only needed to give `impl ReadWrite` a concrete type.
    let error: io::Result<DeadlineStream> = Err(invalid_data(
        "`https` needs the feature `tls` of `peregrine`, which this program was built without",
    ));
    drop(stream);
    error
}

fn send_request(
    stream: &mut impl ReadWrite,
    request: &Request<Bytes>,
) -> io::Result<Response<Bytes>> {
    stream.write_all(&encode_request(request))?;
    stream.flush()?;
    let mut bytes = Vec::new();
    for _ in 0..RESPONSES_MAX {
        let head_len = read_head(stream, &mut bytes)?;
        let (status, headers) = parse_head(&bytes[..head_len])?;
        bytes.drain(..head_len);
        if !status.is_informational() {
            let body = read_body(stream, bytes, &headers)?;
            let mut response = Response::new(body);
            *response.status_mut() = status;
            *response.headers_mut() = headers;
            return Ok(response);
        }
    }
    Err(invalid_data("the collector sent too many interim responses"))
}

/// Returns the bytes of the request.
fn encode_request(request: &Request<Bytes>) -> Vec<u8> {
    let uri: &Uri = request.uri();
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    let host = uri.authority().map_or("", |authority| authority.as_str());
    // RFC 9110 §7.2: `Host` excludes user and password.
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let mut bytes = format!(
        "{} {target} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {}\r\nconnection: close\r\n",
        request.method(),
        request.body().len()
    )
    .into_bytes();
    let generated =
        [header::HOST, header::CONTENT_LENGTH, header::CONNECTION, header::TRANSFER_ENCODING];
    for (name, value) in request.headers().iter().filter(|(name, _)| !generated.contains(name)) {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(request.body());
    bytes
}

/// Reads until the head is complete, and returns its length.
fn read_head(stream: &mut impl Read, bytes: &mut Vec<u8>) -> io::Result<usize> {
    const END: &[u8] = b"\r\n\r\n";
    loop {
        if let Some(index) = bytes.windows(END.len()).position(|window| window == END) {
            return Ok(index + END.len());
        }
        if bytes.len() > HEAD_BYTES_MAX {
            return Err(invalid_data("the head of the collector's response is too long"));
        }
        read_more(stream, bytes)?;
    }
}

fn read_more(stream: &mut impl Read, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut chunk = [0; 4096];
    let count = loop {
        match stream.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => break result?,
        }
    };
    bytes.extend_from_slice(&chunk[..count]);
    if count == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

fn parse_head(bytes: &[u8]) -> io::Result<(StatusCode, HeaderMap)> {
    let not_http = || invalid_data("the server at the collector's address does not speak HTTP/1.1");
    let text = std::str::from_utf8(bytes).map_err(|_| not_http())?;
    let mut lines = text.split("\r\n");
    let status_line = lines.next().and_then(|line| line.strip_prefix("HTTP/1."));
    let status = status_line.and_then(|line| line.get(2..5)).ok_or_else(not_http)?;
    let status = StatusCode::from_bytes(status.as_bytes()).map_err(|_| not_http())?;
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value.trim()).ok()?))
    };
    Ok((status, lines.filter_map(field).collect()))
}

/// Reads the body if the response has a `Content-Length`. Otherwise the body is ignored: the caller
/// needs only the status.
fn read_body(stream: &mut impl Read, mut bytes: Vec<u8>, headers: &HeaderMap) -> io::Result<Bytes> {
    let is_chunked = headers.contains_key(header::TRANSFER_ENCODING);
    let length = headers.get(header::CONTENT_LENGTH).filter(|_| !is_chunked);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let Some(length) = length.filter(|length| *length <= BODY_BYTES_MAX) else {
        return Ok(Bytes::new());
    };
    while bytes.len() < length {
        read_more(stream, &mut bytes)?;
    }
    bytes.truncate(length);
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, TcpListener};
    use std::thread;

    const TIMEOUT: Duration = Duration::from_secs(30);

    /// Sends `response` to one request, and then waits for the client to close the connection. The
    /// thread returns the request.
    fn collector(response: &'static [u8]) -> (SocketAddr, thread::JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let serve = move || {
            let (mut stream, _) = listener.accept().expect("a client connects");
            let mut request = Vec::new();
            while !request.ends_with(b"spans") {
                read_more(&mut stream, &mut request).expect("a whole request");
            }
            stream.write_all(response).expect("connected");
            let _ = stream.read_to_end(&mut Vec::new());
            request
        };
        (address, thread::spawn(serve))
    }

    fn send(response: &'static [u8], timeout: Duration) -> (io::Result<Response<Bytes>>, String) {
        let (address, server) = collector(response);
        let request = Request::post(format!("http://{address}/v1/traces?a=b"))
            .header("x-tenant", "birds")
            .header("host", "elsewhere");
        let request = request.body(Bytes::from_static(b"spans")).expect("a valid request");
        let result = CollectorClient { timeout }.send(&request);
        let request = server.join().expect("no panic");
        let text = String::from_utf8(request).expect("text").replace(&address.to_string(), "at");
        (result, text)
    }

    #[test]
    fn a_timeout_beyond_the_range_of_the_clock_never_expires() {
        let (result, _) = send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", Duration::MAX);
        assert_eq!(result.expect("a response").status(), 200);
    }

    #[test]
    fn requests_are_complete_and_each_kind_of_response_is_read() {
        for (response_bytes, status, body) in [
            (&b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"[..], 200, "ok"),
            (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n", 202, ""),
            (b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbusy", 503, ""),
            (b"HTTP/1.0 400 Bad\r\n\r\nno", 400, ""),
        ] {
            let (result, request) = send(response_bytes, TIMEOUT);
            let response = result.expect("a response");
            assert_eq!((response.status().as_u16(), &response.body()[..]), (status, body.as_bytes()));
            assert_eq!(
                request,
                "POST /v1/traces?a=b HTTP/1.1\r\nhost: at\r\ncontent-length: 5\r\nconnection: close\r\nx-tenant: \
                 birds\r\n\r\nspans"
            );
        }
    }

    #[test]
    fn an_invalid_or_missing_response_is_an_error() {
        for (response, expected) in [
            (&b"SSH-2.0-OpenSSH\r\n\r\n"[..], "does not speak HTTP"),
            (b"HTTP/1.1 9\r\n\r\n", "does not speak HTTP"),
        ] {
            let error = send(response, TIMEOUT).0.expect_err("not HTTP").to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error = send(b"HTTP/1.1 200", Duration::from_millis(300)).0.expect_err("a hang");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }
}
