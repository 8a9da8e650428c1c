//! Client identity behind proxies on every driver: PROXY headers, forwarded fields, and limits of
//! one listener.

use crate::server::bench::{Bench, Got, Served, ServerOptions, Wire};
use crate::server::client::{Client, Way};
use crate::server::peer::Peer;
use crate::server::secure::server_tls;
use peregrine::prelude::*;
use peregrine::web::app::TrailingSlash;
use peregrine::{Limits, ProxyProtocol, TrustedProxies};
use peregrine_proto::proxy_protocol::tlv_type;
use std::time::Duration;

#[path = "../../../crates/proto/tests/it/proxy/wire.rs"]
pub(super) mod header;

use header::{binary, line, proxied, ssl, value};

/// Every address on every network.
const ALL_NETWORKS: [&str; 3] = ["0.0.0.0/0", "::/0", "unix:"];

/// A timeout that expires soon.
const SHORT: Duration = Duration::from_millis(700);

/// A wire that sends a PROXY header together with its first bytes.
pub struct ProxyHeaderWire<W> {
    wire: W,
    header: Vec<u8>,
}

impl<W: Wire> Wire for ProxyHeaderWire<W> {
    fn send(&mut self, bytes: &[u8]) {
        let header = std::mem::take(&mut self.header);
        self.wire.send(&[&header, bytes].concat());
    }

    fn half_close(&mut self) {
        self.wire.half_close();
    }

    async fn recv(&mut self, timeout: Duration) -> Got {
        self.wire.recv(timeout).await
    }

    fn reset(self) {
        self.wire.reset();
    }
}

fn limits() -> Limits {
    Limits { shutdown_timeout: Duration::from_secs(20), ..Limits::default() }
}

fn required_header() -> ServerOptions {
    let settings = ProxyProtocol::required().trust(ALL_NETWORKS);
    ServerOptions { proxy_protocol: Some(settings), ..ServerOptions::default() }
}

fn optional_header() -> ServerOptions {
    let settings = ProxyProtocol::optional().trust(ALL_NETWORKS);
    ServerOptions { proxy_protocol: Some(settings), ..ServerOptions::default() }
}

fn trusting(proxies: impl Into<TrustedProxies>) -> ServerOptions {
    ServerOptions { proxies: Some(proxies.into()), ..ServerOptions::default() }
}

fn address(text: &str) -> std::net::SocketAddr {
    text.parse().expect("an address")
}

fn header_of(source: &str) -> Vec<u8> {
    let source = address(source);
    proxied(source, source, &[])
}

/// An application that reports what it knows about the client.
fn app() -> App {
    App::new()
        .wrap(SecurityHeaders::new())
        .get("/hello", || "hello")
        .get("/end", async |request: Request| {
            let info = request.parts.connection();
            let Some(proxy) = &info.proxy_protocol else { return format!("{} direct", info.peer) };
            let tls = proxy.tls.clone().unwrap_or_default();
            format!(
                "{} {} v{} {} {} {} {:?} {}",
                info.peer,
                info.local,
                proxy.version,
                proxy.authority.as_deref().unwrap_or("-"),
                tls.version.as_deref().unwrap_or("-"),
                tls.common_name.as_deref().unwrap_or("-"),
                proxy.tlvs,
                info.is_secure(),
            )
        })
        .get("/client", async |address: Option<ClientIp>, request: Request| {
            let address = address.map_or("-".to_owned(), |ClientIp(ip)| ip.to_string());
            let client = request.client();
            format!("{address} {} {}", client.origin(), client.hops())
        })
        .get("/slash/", || "slash")
        .trailing_slash(TrailingSlash::Redirect)
}

struct Site<B: Bench> {
    server: B::Server,
    way: Way,
}

fn begin<B: Bench>(bench: &B, way: Way, server_options: ServerOptions) -> Site<B> {
    begin_with(bench, way, server_options, limits())
}

fn begin_with<B: Bench>(
    bench: &B,
    way: Way,
    server_options: ServerOptions,
    limits: Limits,
) -> Site<B> {
    let tls = way.is_secure().then(server_tls);
    Site { server: bench.start_behind(server_options, limits, tls, app), way }
}

impl<B: Bench> Site<B> {
    /// A client whose first bytes are sent together with `header`.
    async fn client(&self, header: &[u8]) -> Client<ProxyHeaderWire<B::Wire>> {
        let wire = ProxyHeaderWire { wire: self.way.wire(&self.server), header: header.to_vec() };
        self.way.speak(wire).await
    }

    /// A client that sends and receives raw bytes.
    fn peer(&self) -> Peer<B::Wire> {
        Peer::new(self.way.wire(&self.server))
    }

    /// Ends the server and asserts how its connections ended.
    async fn end(self, endings: &[(&'static str, u64)]) {
        self.server.shut_down();
        let outcome = self.server.ended().await;
        assert_eq!(outcome.cut, [], "{:?}", self.way);
        assert_eq!(outcome.endings(), endings, "{:?}", self.way);
    }
}

async fn get_text<W: Wire>(client: &mut Client<W>, path: &str, fields: &[(&str, &str)]) -> String {
    let id = client.ask("GET", path, fields);
    client.answer(id).await.text().to_owned()
}

/// Handlers see the addresses from the PROXY header, whatever data arrives together with it.
pub async fn a_proxy_header_provides_the_addresses<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way, required_header());
    let (v4, v6) = (address("192.0.2.1:5000"), address("[2001:db8::1]:5000"));
    let (local_v4, local_v6) = (address("203.0.113.9:443"), address("[2001:db8::9]:443"));
    let tls_values =
        [value(tlv_type::SSL_VERSION, b"TLSv1.3"), value(tlv_type::SSL_COMMON_NAME, b"me")];
    let values = [
        value(tlv_type::ALPN, b"h2"),
        value(tlv_type::AUTHORITY, b"a.example"),
        ssl(1, 0, &tls_values.concat()),
        value(0xea, b"x"),
    ];
    let is_secure = way.is_secure();
    let no_values = format!("- - - [] {is_secure}");
    for (header, expected) in [
        (line(v4, local_v4), format!("{v4} {local_v4} v1 {no_values}")),
        (line(v6, local_v6), format!("{v6} {local_v6} v1 {no_values}")),
        (proxied(v4, local_v4, &[]), format!("{v4} {local_v4} v2 {no_values}")),
        (
            proxied(v6, local_v6, &values.concat()),
            format!("{v6} {local_v6} v2 a.example TLSv1.3 me [(234, [120])] true"),
        ),
    ] {
        let mut client = site.client(&header).await;
        for _ in 0..2 {
            assert_eq!(get_text(&mut client, "/end", &[]).await, expected);
        }
        client.close().await;
    }
    site.end(&[]).await;
}

/// Handlers, redirects and extractors use the client address from a trusted proxy's fields.
pub async fn fields_of_trusted_proxies_provide_the_client<B: Bench>(bench: &B, way: Way) {
    let proxies = TrustedProxies::from_networks(ALL_NETWORKS)
        .hops_max(1)
        .x_forwarded_host()
        .x_forwarded_prefix();
    let site = begin(bench, way, trusting(proxies));
    let mut client = site.client(b"").await;
    client.set_host("own.example");
    let fields = [
        ("x-forwarded-for", "198.51.100.66, 192.0.2.1"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-prefix", "/shop"),
        ("forwarded", "for=1.1.1.1"),
    ];
    assert_eq!(get_text(&mut client, "/client", &fields).await, "192.0.2.1 https://own.example 1");
    // The next request on the same connection comes from another client.
    let other_fields = [("x-forwarded-for", "2001:db8::7"), ("x-forwarded-host", "b.example")];
    let scheme = if way.is_secure() { "https" } else { "http" };
    let expected = format!("2001:db8::7 {scheme}://b.example 1");
    assert_eq!(get_text(&mut client, "/client", &other_fields).await, expected);
    let id = client.ask("GET", "/slash", &fields);
    let response = client.answer(id).await;
    assert_eq!((response.status(), response.field("location")), (308, Some("/shop/slash/")));
    assert!(response.field("strict-transport-security").is_some(), "the client used TLS");
    client.set_host("localhost");
    client.close().await;
    site.end(&[]).await;
}

/// Forwarded fields of untrusted peers are ignored.
pub async fn fields_of_untrusted_peers_are_ignored<B: Bench>(bench: &B, way: Way) {
    for server_options in [trusting(["192.0.2.200", "fd00::/8"]), ServerOptions::default()] {
        let site = begin(bench, way, server_options);
        let mut client = site.client(b"").await;
        let without_fields = get_text(&mut client, "/client", &[]).await;
        let fields = [
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-proto", if way.is_secure() { "http" } else { "https" }),
            ("x-forwarded-host", "b.example"),
            ("forwarded", "for=192.0.2.1;proto=https;host=b.example"),
        ];
        assert_eq!(get_text(&mut client, "/client", &fields).await, without_fields);
        assert!(without_fields.ends_with("://localhost 0"), "{without_fields}");
        client.close().await;
        site.end(&[]).await;
    }
}

/// The address in the PROXY header decides whether forwarded fields are trusted.
pub async fn fields_are_used_if_the_address_in_the_proxy_header_is_trusted<B: Bench>(
    bench: &B,
    way: Way,
) {
    let server_options =
        ServerOptions { proxies: Some(["192.0.2.0/24"].into()), ..required_header() };
    let site = begin(bench, way, server_options);
    for (source, expected) in [("192.0.2.1:50", "198.51.100.7"), ("203.0.113.1:50", "203.0.113.1")]
    {
        let mut client = site.client(&header_of(source)).await;
        let text = get_text(&mut client, "/client", &[("x-forwarded-for", "198.51.100.7")]).await;
        assert!(text.starts_with(&format!("{expected} ")), "{text}");
        client.close().await;
    }
    site.end(&[]).await;
}

/// A trusted proxy may request `https` on a plain connection, as it does over HTTP/2.
pub async fn a_trusted_proxy_may_request_https<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way, trusting(ALL_NETWORKS));
    let mut client = site.client(b"").await;
    let id = client.get_by("https", "/client");
    let response = client.answer(id).await;
    assert_eq!(response.status(), 200);
    assert!(response.text().contains("https://"), "{}", response.text());
    client.close().await;
    site.end(&[]).await;
}

/// Where a PROXY header is optional, connections without one are served unchanged.
pub async fn an_optional_proxy_header_may_be_omitted<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way, optional_header());
    let mut client = site.client(&header_of("192.0.2.1:50")).await;
    assert!(get_text(&mut client, "/end", &[]).await.starts_with("192.0.2.1:50 "));
    client.close().await;
    let mut client = site.client(b"").await;
    assert!(get_text(&mut client, "/end", &[]).await.ends_with(" direct"));
    client.close().await;
    site.end(&[]).await;
}

/// A header may arrive in pieces of any size, and long before the request.
pub async fn a_proxy_header_may_arrive_slowly<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way, required_header());
    for header in [
        line(address("192.0.2.1:50"), address("192.0.2.2:80")),
        header_of("192.0.2.1:50"),
        header_of("[2001:db8::1]:50"),
    ] {
        let mut wire = way.wire(&site.server);
        for byte in &header {
            wire.send(&[*byte]);
            bench.sleep(Duration::from_millis(1)).await;
        }
        bench.sleep(Duration::from_millis(50)).await;
        let mut client = way.speak(wire).await;
        let text = get_text(&mut client, "/end", &[]).await;
        assert!(text.contains(":50 ") && !text.contains("direct"), "{text}");
        client.close().await;
    }
    site.end(&[]).await;
}

/// A header that never completes is ended by the timeout for the first request, however it is
/// sent.
pub async fn an_incomplete_proxy_header_times_out<B: Bench>(bench: &B, way: Way) {
    let timeouts = Limits { first_byte_timeout: SHORT, handshake_timeout: SHORT, ..limits() };
    let site = begin_with(bench, way, required_header(), timeouts);
    let header = header_of("192.0.2.1:50");
    for count in [0, 1, 6, 20, header.len()] {
        let start = bench.now();
        let mut peer = site.peer();
        peer.send(&header[..count]);
        assert_eq!(peer.rest().await, b"", "nothing is sent");
        // The server measures from the loop iteration in which it accepted, which may have begun a
        // little earlier.
        assert!(bench.now() - start >= SHORT / 2, "the timeout has passed");
    }
    // One byte now and then does not extend the timeout.
    let mut peer = site.peer();
    peer.send("PROXY UNKNOWN ");
    let mut pieces = 0;
    while pieces < 50 && peer.more(SHORT / 10).await.is_ok() {
        peer.send("x");
        pieces += 1;
    }
    assert!(pieces < 50, "the connection ends before the line is too long");
    let timeout_name = if way.is_secure() { "handshake-timeout" } else { "first-byte-timeout" };
    site.end(&[(timeout_name, 6)]).await;
}

/// A malformed header ends the connection without a response.
pub async fn a_malformed_proxy_header_ends_the_connection<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way, required_header());
    let mut too_long = header_of("192.0.2.1:50");
    too_long[14..16].copy_from_slice(&[0xff, 0xff]);
    let mut too_short = header_of("192.0.2.1:50");
    too_short[15] = 11;
    let malformed_headers = [
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n".to_vec(),
        b"PROXY TCP4 ::1 ::1 1 2\r\nGET /hello HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        [&b"PROXY UNKNOWN "[..], &[b'x'; 3000]].concat(),
        too_long,
        too_short,
        binary(1, 0x11, &[0; 12], &value(tlv_type::CRC32C, &[1, 2, 3, 4])),
        binary(1, 0x11, &[0; 12], &[1, 0xff, 0xff, 0]),
        binary(1, 0x11, &[0; 12], &value(0xe0, &[0; 5000])),
        binary(7, 0x11, &[0; 12], &[]),
        // No header at all.
        b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
    ];
    for bytes in &malformed_headers {
        let mut peer = site.peer();
        peer.send(bytes);
        assert_eq!(peer.rest().await, b"", "{}", bytes.escape_ascii());
    }
    site.end(&[("proxy-header-rejected", malformed_headers.len() as u64)]).await;
}

/// A peer that is not trusted to send a PROXY header is disconnected where one is required;
/// elsewhere its own address is used.
pub async fn proxy_headers_of_untrusted_peers_are_not_used<B: Bench>(bench: &B, way: Way) {
    let untrusted = ["192.0.2.200"];
    let settings = ProxyProtocol::required().trust(untrusted);
    let server_options =
        ServerOptions { proxy_protocol: Some(settings), ..ServerOptions::default() };
    let site = begin(bench, way, server_options);
    let mut peer = site.peer();
    peer.send(header_of("192.0.2.1:50"));
    assert_eq!(peer.rest().await, b"");
    site.end(&[("untrusted-proxy", 1)]).await;
    let settings = ProxyProtocol::optional().trust(untrusted);
    let server_options =
        ServerOptions { proxy_protocol: Some(settings), ..ServerOptions::default() };
    let site = begin(bench, way, server_options);
    let mut client = site.client(b"").await;
    assert!(get_text(&mut client, "/end", &[]).await.ends_with(" direct"));
    client.close().await;
    let mut peer = site.peer();
    peer.send(line(address("192.0.2.1:50"), address("192.0.2.2:80")));
    let received = peer.rest().await;
    assert!(!received.windows(7).any(|seven| seven == b"200 OK\r"), "{}", received.escape_ascii());
    site.end(&[(if way.is_secure() { "plaintext-on-tls-port" } else { "rejected" }, 1)]).await;
}

/// A proxy's health check uses the proxy's own address, and may disconnect at once.
pub async fn a_proxy_may_send_its_own_requests<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way, required_header());
    for header in [binary(0, 0, &[], &[]), binary(0, 0x11, &[1; 12], &[9; 30])] {
        let mut client = site.client(&header).await;
        assert!(get_text(&mut client, "/end", &[]).await.ends_with(" direct"));
        client.close().await;
        let mut peer = site.peer();
        peer.send(&header);
        peer.half_close();
        assert_eq!(peer.rest().await, b"");
    }
    let mut client = site.client(b"PROXY UNKNOWN\r\n").await;
    assert!(
        get_text(&mut client, "/end", &[]).await.contains(" v1 "),
        "the address is the socket's"
    );
    client.close().await;
    site.end(&[]).await;
}

/// Empty lines before a request, which also start a version 2 header, are not taken for a header.
pub async fn empty_lines_are_not_taken_for_a_header<B: Bench>(bench: &B) {
    let site = begin(bench, Way::HTTP1, optional_header());
    for request in ["\r\nGET /hello HTTP/1.1\r\nHost: a\r\n\r\n", "P"] {
        let mut peer = site.peer();
        peer.send(request);
        if request == "P" {
            bench.sleep(Duration::from_millis(20)).await;
            peer.send("UT /hello HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(peer.reply().await.status, 405);
        } else {
            assert_eq!(peer.reply().await.text(), "hello");
        }
    }
    site.end(&[]).await;
}

/// A listener with its own limits has its own connection limit, and its limits apply to its request
/// heads.
pub async fn a_listener_may_have_its_own_limits<B: Bench>(bench: &B) {
    let listener_limits = Limits { connections_max: 1, head_bytes_max: 600, ..limits() };
    let server_options =
        ServerOptions { limits: Some(listener_limits), ..ServerOptions::default() };
    let others = Limits { connections_max: 2, ..limits() };
    let site = begin_with(bench, Way::HTTP1_TLS, server_options, others);
    let mut first = Peer::new(site.server.connect());
    first.expect_alive().await;
    let mut second = Peer::new(site.server.connect());
    second.get("/hello");
    second.expect_nothing(Duration::from_millis(100)).await;
    // The other listener has room for two connections.
    let mut third = site.client(b"").await;
    third.expect_alive().await;
    let mut fourth = site.client(b"").await;
    let large = "x".repeat(700);
    let id = fourth.ask("GET", "/hello", &[("x-large", &large)]);
    assert_eq!(fourth.answer(id).await.status(), 200);
    first.send(format!("GET /hello HTTP/1.1\r\nHost: a\r\nx-large: {large}\r\n\r\n"));
    assert_eq!(first.reply().await.status, 431);
    drop(first);
    assert_eq!(second.reply().await.text(), "hello");
    third.close().await;
    fourth.close().await;
    drop(second);
    site.end(&[("rejected", 1)]).await;
}

/// When a listener has a shorter connection lifetime than others, the response in progress
/// announces the close.
pub async fn a_listener_may_limit_the_connection_age<B: Bench>(bench: &B) {
    bench.calm();
    let age_max = Duration::from_secs(1);
    let listener_limits = Limits { connection_age_max: Some(age_max), ..limits() };
    let server_options =
        ServerOptions { limits: Some(listener_limits), ..ServerOptions::default() };
    let site = begin_with(bench, Way::HTTP1, server_options, limits());
    let mut peer = site.peer();
    peer.expect_alive().await;
    peer.send("GET /hello HTTP/1.1\r\nHost: a\r\n");
    bench.sleep(age_max * 3 / 2).await;
    peer.send("\r\n");
    let reply = peer.reply().await;
    assert!(reply.closes(), "{reply:?}");
    drop(peer);
    site.end(&[("connection-close", 1)]).await;
}

/// Tests client identity on a driver: `callers!(name, benches)` generates the module `name`, with
/// each case over HTTP/1.1 and HTTP/2, plain and with TLS. `callers!(@plain name, benches)` leaves
/// TLS out.
#[macro_export]
macro_rules! callers {
    ($name:ident, $benches:expr) => {
        $crate::callers!(
            @ways $name, $benches,
            [http1 = HTTP1, http1_tls = HTTP1_TLS, http2 = HTTP2, http2_tls = HTTP2_TLS],
            once [
                empty_lines_are_not_taken_for_a_header,
                a_listener_may_have_its_own_limits,
                a_listener_may_limit_the_connection_age,
            ],
        );
    };
    (@plain $name:ident, $benches:expr) => {
        $crate::callers!(@ways $name, $benches, [http1 = HTTP1, http2 = HTTP2], once [],);
    };
    (@ways $name:ident, $benches:expr, $ways:tt, once $once:tt,) => {
        $crate::suite!(
            callers, $name, $benches, $ways,
            each [
                a_proxy_header_provides_the_addresses,
                fields_of_trusted_proxies_provide_the_client,
                fields_of_untrusted_peers_are_ignored,
                fields_are_used_if_the_address_in_the_proxy_header_is_trusted,
                a_trusted_proxy_may_request_https,
                an_optional_proxy_header_may_be_omitted,
                a_proxy_header_may_arrive_slowly,
                an_incomplete_proxy_header_times_out,
                a_malformed_proxy_header_ends_the_connection,
                proxy_headers_of_untrusted_peers_are_not_used,
                a_proxy_may_send_its_own_requests,
            ],
            once $once,
        );
    };
}
