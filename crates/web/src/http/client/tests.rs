use super::forwarded::split_list_rev;
use super::*;
use crate::http::connection::ConnectionAddr;
use peregrine_proto::{Limits, RequestLine, Version};
use std::sync::Arc;

fn head(fields: &[(&str, &str)]) -> RequestHead {
    let line = RequestLine {
        method: b"GET",
        scheme: None,
        authority: b"",
        target: b"/",
        version: Version::Http11,
    };
    let host = [(&b"Host"[..], &b"own.example"[..])];
    let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    RequestHead::build(&Limits::DEFAULT, &line, host.into_iter().chain(fields)).expect("a head")
}

/// A connection from 10.0.0.1. As in the server, it has `proxies` only if they trust that address.
fn connection(proxies: TrustedProxies) -> ConnectionInfo {
    let peer = ConnectionAddr::Tcp("10.0.0.1:999".parse().expect("an address"));
    let proxies = Some(Arc::new(proxies)).filter(|proxies| proxies.trusts(&peer));
    ConnectionInfo { peer, trusted_proxies: proxies, ..ConnectionInfo::default() }
}

fn address(proxies: TrustedProxies, fields: &[(&str, &str)]) -> String {
    let (head, connection) = (head(fields), connection(proxies));
    ClientInfo::new(&head, &connection).address().expect("an address").to_string()
}

/// Trusts 10.0.0.0/8 and fd00::/8.
fn trusted_proxies() -> TrustedProxies {
    TrustedProxies::from_networks(["10.0.0.0/8", "fd00::/8"])
}

const X_FORWARDED_FOR: &str = "X-Forwarded-For";

#[test]
fn the_client_is_the_rightmost_address_that_is_not_trusted() {
    for (fields, expected) in [
        (&[][..], "10.0.0.1:999"),
        (&["192.0.2.1"], "192.0.2.1:0"),
        (&["192.0.2.1:4711"], "192.0.2.1:4711"),
        (&["2001:db8::1"], "[2001:db8::1]:0"),
        (&["[2001:db8::1]"], "[2001:db8::1]:0"),
        (&["[2001:db8::1]:4711"], "[2001:db8::1]:4711"),
        (&["192.0.2.1, 10.0.0.2, 10.0.0.3"], "192.0.2.1:0"),
        (&["192.0.2.1,10.0.0.2\t,  fd00::7"], "192.0.2.1:0"),
        // An IPv4-mapped IPv6 address is treated as IPv4.
        (&["192.0.2.1, ::ffff:10.0.0.2"], "192.0.2.1:0"),
        (&["::ffff:192.0.2.1"], "192.0.2.1:0"),
        // Several fields are one list.
        (&["192.0.2.1", "10.0.0.2", "10.0.0.3"], "192.0.2.1:0"),
        // All are trusted, so the outermost is the client.
        (&["10.0.0.9, 10.0.0.2"], "10.0.0.9:0"),
        // Entries from the client are to the left of those that the proxies append.
        (&["198.51.100.7, 192.0.2.1"], "192.0.2.1:0"),
        (&["10.0.0.9, 192.0.2.1"], "192.0.2.1:0"),
        (&["127.0.0.1, 192.0.2.1, 10.0.0.2"], "192.0.2.1:0"),
        (&["198.51.100.7", "192.0.2.1"], "192.0.2.1:0"),
        (&["junk, 192.0.2.1"], "192.0.2.1:0"),
        // An invalid entry ends the walk at the hop to its right.
        (&["junk"], "10.0.0.1:999"),
        (&["192.0.2.1, junk"], "10.0.0.1:999"),
        (&["192.0.2.1, unknown, 10.0.0.2"], "10.0.0.2:0"),
        (&["192.0.2.1, , 10.0.0.2"], "10.0.0.2:0"),
        (&["192.0.2.1,"], "10.0.0.1:999"),
        (&["192.0.2.1, 10.0.0.2 10.0.0.3"], "10.0.0.1:999"),
        (&["192.0.2.1, 010.0.0.2"], "10.0.0.1:999"),
        (&["192.0.2.1, 10.0.0.2:"], "10.0.0.1:999"),
        (&["192.0.2.1, 10.0.0.2:99999"], "10.0.0.1:999"),
        (&["192.0.2.1, 10.0.0.2:+1"], "10.0.0.1:999"),
        (&["192.0.2.1, fd00::1%eth0"], "10.0.0.1:999"),
        (&["192.0.2.1, [fd00::1"], "10.0.0.1:999"),
        (&["192.0.2.1, \"10.0.0.2\""], "10.0.0.1:999"),
        (&["192.0.2.1, 10.1"], "10.0.0.1:999"),
    ] {
        let fields: Vec<_> = fields.iter().map(|value| (X_FORWARDED_FOR, *value)).collect();
        assert_eq!(address(trusted_proxies(), &fields), expected, "{fields:?}");
    }
}

#[test]
fn ignores_the_fields_of_a_peer_that_is_not_trusted() {
    let all = [
        (X_FORWARDED_FOR, "192.0.2.1"),
        ("X-Forwarded-Proto", "https"),
        ("Forwarded", "for=192.0.2.1"),
    ];
    for proxies in [
        TrustedProxies::from_networks(["10.0.0.2", "127.0.0.0/8", "unix:"]),
        TrustedProxies::from_networks([""; 0]),
    ] {
        assert_eq!(address(proxies.clone(), &all), "10.0.0.1:999");
        let (head, connection) = (head(&all), connection(proxies));
        let client = ClientInfo::new(&head, &connection);
        assert_eq!((client.scheme(), client.hops()), ("http", 0));
    }
}

#[test]
fn trusts_a_number_of_hops_instead_of_or_besides_addresses() {
    let list = [(X_FORWARDED_FOR, "198.51.100.7, 192.0.2.1, 192.0.2.2")];
    for (proxies, expected) in [
        (TrustedProxies::hops(1), "192.0.2.2:0"),
        (TrustedProxies::hops(2), "192.0.2.1:0"),
        (TrustedProxies::hops(3), "198.51.100.7:0"),
        (TrustedProxies::hops(4), "198.51.100.7:0"),
        (trusted_proxies().hops_max(1), "192.0.2.2:0"),
    ] {
        assert_eq!(address(proxies.clone(), &list), expected, "{proxies:?}");
    }
    let all_trusted = [(X_FORWARDED_FOR, "192.0.2.1, 10.0.0.3, 10.0.0.2")];
    assert_eq!(address(trusted_proxies().hops_max(1), &all_trusted), "10.0.0.2:0");
    assert_eq!(address(trusted_proxies().hops_max(2), &all_trusted), "10.0.0.3:0");
    assert_eq!(address(trusted_proxies().hops_max(3), &all_trusted), "192.0.2.1:0");
}

#[test]
fn reads_forwarded_from_the_right_and_stops_at_a_malformed_element() {
    for (lines, expected) in [
        (&["for=192.0.2.1"][..], "192.0.2.1:0"),
        (&["For=192.0.2.1;Proto=https;By=203.0.113.43;HOST=a"], "192.0.2.1:0"),
        (&["for=\"192.0.2.1:4711\""], "192.0.2.1:4711"),
        (&["for=\"[2001:db8::1]\""], "[2001:db8::1]:0"),
        (&["for=\"[2001:db8::1]:4711\""], "[2001:db8::1]:4711"),
        (&["for=\"[2001:db8::1]:_hidden\""], "[2001:db8::1]:0"),
        (&["for=192.0.2.1, for=10.0.0.2;proto=http, for=\"[fd00::1]\""], "192.0.2.1:0"),
        (&["for=192.0.2.1; proto=https ,for=10.0.0.2"], "192.0.2.1:0"),
        (&["for=192.0.2.1", "for=10.0.0.2"], "192.0.2.1:0"),
        (&["for=198.51.100.7, for=192.0.2.1"], "192.0.2.1:0"),
        (&["for=\"192.0.2\\.1\""], "192.0.2.1:0"),
        // An unpaired quote from a client does not hide what a proxy appends.
        (&["for=\", for=192.0.2.1"], "192.0.2.1:0"),
        (&["for=\", for=\"[2001:db8::1]:4\""], "[2001:db8::1]:4"),
        (&["for=\"x\\, for=192.0.2.1"], "192.0.2.1:0"),
        (&["for=\"10.0.0.2, for=10.0.0.3\", for=192.0.2.1"], "192.0.2.1:0"),
        (&["for=10.0.0.9;x=\"", "for=192.0.2.1"], "192.0.2.1:0"),
        // A hidden address or a malformed element ends the walk.
        (&["for=192.0.2.1, for=unknown"], "10.0.0.1:999"),
        (&["for=192.0.2.1, for=_secret, for=10.0.0.2"], "10.0.0.2:0"),
        (&["for=192.0.2.1, proto=https, for=10.0.0.2"], "10.0.0.2:0"),
        (&["for=192.0.2.1, , for=10.0.0.2"], "10.0.0.2:0"),
        (&["for=192.0.2.1, for=10.0.0.2;for=10.0.0.3"], "10.0.0.1:999"),
        (&["for=192.0.2.1, for=10.0.0.2;"], "10.0.0.1:999"),
        (&["for=192.0.2.1, for = 10.0.0.2"], "10.0.0.1:999"),
        (&["for=192.0.2.1, for=fd00::1"], "10.0.0.1:999"),
        (&["for=192.0.2.1, for=[fd00::1]"], "10.0.0.1:999"),
        (&["for=192.0.2.1, for=10.0.0.2:4711"], "10.0.0.1:999"),
        (&["for=192.0.2.1, for=\"10.0.0.2"], "10.0.0.1:999"),
        (&["for=192.0.2.1, for=\"10.0.0.2:_\""], "10.0.0.1:999"),
        (&["for=192.0.2.1, =10.0.0.2"], "10.0.0.1:999"),
        (&["for=192.0.2.1, 10.0.0.2"], "10.0.0.1:999"),
        (&["for=192.0.2.1, for=10.0.0.2 proto=https"], "10.0.0.1:999"),
    ] {
        let fields: Vec<_> = lines.iter().map(|value| ("Forwarded", *value)).collect();
        assert_eq!(address(trusted_proxies().forwarded_header(), &fields), expected, "{fields:?}");
    }
}

#[test]
fn splits_a_list_from_the_right_and_yields_none_for_an_unpaired_quote() {
    for (line, expected) in [
        ("a, b ,c", &[Some("c"), Some("b"), Some("a")][..]),
        ("a=\"1,2\",b", &[Some("b"), Some("a=\"1,2\"")]),
        ("a=\"1\\\",2\",b", &[Some("b"), Some("a=\"1\\\",2\"")]),
        ("a=\"1\\\\\",b=\"2\"", &[Some("b=\"2\""), Some("a=\"1\\\\\"")]),
        ("a=\",b", &[Some("b"), None]),
        ("a=\"1\",b=\",c", &[Some("c"), None]),
        ("", &[Some("")]),
        (",", &[Some(""), Some("")]),
    ] {
        let elements: Vec<_> = split_list_rev(line.as_bytes()).take(9).collect();
        assert_eq!(elements, expected, "{line}");
    }
    assert_eq!(split_list_rev(b"a\xff,b").collect::<Vec<_>>(), [None]);
}

#[test]
fn reads_only_the_enabled_fields() {
    let both =
        [(X_FORWARDED_FOR, "192.0.2.1"), ("Forwarded", "for=198.51.100.7;proto=https;host=b")];
    assert_eq!(address(trusted_proxies(), &both), "192.0.2.1:0");
    assert_eq!(address(trusted_proxies().forwarded_header(), &both), "198.51.100.7:0");
    let all = [
        (X_FORWARDED_FOR, "192.0.2.1"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Host", "a.example"),
        ("X-Forwarded-Port", "8443"),
        ("X-Forwarded-Prefix", "/shop"),
    ];
    let origin_and_prefix = |proxies| {
        let (head, connection) = (head(&all), connection(proxies));
        let client = ClientInfo::new(&head, &connection);
        format!("{} {}", client.origin(), client.prefix())
    };
    assert_eq!(origin_and_prefix(trusted_proxies()), "https://own.example ");
    assert_eq!(origin_and_prefix(trusted_proxies().x_forwarded_host()), "https://a.example:8443 ");
    assert_eq!(
        origin_and_prefix(trusted_proxies().x_forwarded_prefix()),
        "https://own.example /shop"
    );
    assert_eq!(
        origin_and_prefix(
            trusted_proxies().forwarded_header().x_forwarded_host().x_forwarded_prefix()
        ),
        "http://own.example "
    );
}

#[test]
fn the_scheme_is_the_one_that_the_outermost_trusted_proxy_reports() {
    for (addresses, schemes, expected) in [
        ("192.0.2.1", &[][..], "http"),
        ("192.0.2.1", &["https"], "https"),
        ("192.0.2.1", &["HTTPS"], "https"),
        ("192.0.2.1", &["wss"], "https"),
        ("192.0.2.1", &["ftp"], "http"),
        ("192.0.2.1", &[""], "http"),
        // The last proxy replaced the field, or passed it on unchanged.
        ("192.0.2.1, 10.0.0.2", &["https"], "https"),
        // Each proxy appended a value.
        ("192.0.2.1, 10.0.0.2", &["https, http"], "https"),
        ("192.0.2.1, 10.0.0.2", &["https", "http"], "https"),
        // The client sent a value, too.
        ("192.0.2.1", &["https, http"], "http"),
        ("192.0.2.1, 10.0.0.2", &["https, http, http"], "http"),
        ("junk", &["https, http"], "http"),
    ] {
        let mut fields = vec![(X_FORWARDED_FOR, addresses)];
        fields.extend(schemes.iter().map(|value| ("X-Forwarded-Proto", *value)));
        let (head, connection) = (head(&fields), connection(trusted_proxies()));
        assert_eq!(ClientInfo::new(&head, &connection).scheme(), expected, "{fields:?}");
    }
    let reported = head(&[("X-Forwarded-Proto", "http")]);
    let gateway = ConnectionInfo { behind_gateway: true, ..connection(trusted_proxies()) };
    assert!(!ClientInfo::new(&reported, &gateway).is_secure(), "the field takes precedence");
    assert!(ClientInfo::new(&head(&[]), &gateway).is_secure());
}

#[test]
fn forwarded_reports_the_scheme_and_host_of_the_outermost_trusted_proxy() {
    for (line, expected) in [
        ("for=192.0.2.1;proto=https;host=a.example", "https://a.example"),
        ("for=192.0.2.1;proto=https;host=\"a.example:8443\"", "https://a.example:8443"),
        ("for=192.0.2.1;proto=https;host=a, for=10.0.0.2;proto=http;host=b", "https://a"),
        ("for=192.0.2.1, for=10.0.0.2;proto=https;host=b", "https://b"),
        ("for=1.1.1.1;proto=https;host=a, for=192.0.2.1", "http://own.example"),
        ("for=unknown;proto=https;host=a", "https://a"),
        ("proto=https", "https://own.example"),
        ("for=192.0.2.1;host=\"a b\"", "http://own.example"),
        ("for=192.0.2.1;host=\"a/b\"", "http://own.example"),
        ("for=192.0.2.1;host=\"user@b\"", "http://own.example"),
    ] {
        let (head, connection) =
            (head(&[("Forwarded", line)]), connection(trusted_proxies().forwarded_header()));
        assert_eq!(ClientInfo::new(&head, &connection).origin(), expected, "{line}");
    }
}

#[test]
fn ignores_invalid_hosts_ports_and_prefixes() {
    for (name, value, expected) in [
        ("Host", "a.example", "http://a.example "),
        ("Host", "a.example:8080", "http://a.example:8080 "),
        ("Host", "[::1]", "http://[::1] "),
        ("Host", "a.example, b.example", "http://b.example "),
        ("Host", "a b", "http://own.example "),
        ("Host", "a/b", "http://own.example "),
        ("Host", "me@a", "http://own.example "),
        ("Host", "a:99999", "http://own.example "),
        ("Port", "8080", "http://own.example:8080 "),
        ("Port", "80", "http://own.example "),
        ("Port", "443", "http://own.example:443 "),
        ("Port", "0", "http://own.example "),
        ("Port", "70000", "http://own.example "),
        ("Port", "+80", "http://own.example "),
        ("Prefix", "/shop", "http://own.example /shop"),
        ("Prefix", "/shop/eu/", "http://own.example /shop/eu"),
        ("Prefix", "/", "http://own.example "),
        ("Prefix", "shop", "http://own.example "),
        ("Prefix", "//evil.example", "http://own.example "),
        ("Prefix", "/a//b", "http://own.example "),
        ("Prefix", "/\\evil.example", "http://own.example "),
        ("Prefix", "/a/../b", "http://own.example "),
        ("Prefix", "/a b", "http://own.example "),
        ("Prefix", "/a?b", "http://own.example "),
        ("Prefix", "/a#b", "http://own.example "),
        ("Prefix", "https://evil.example/", "http://own.example "),
    ] {
        let head = head(&[(&format!("X-Forwarded-{name}"), value)]);
        let connection = connection(trusted_proxies().x_forwarded_host().x_forwarded_prefix());
        let client = ClientInfo::new(&head, &connection);
        let origin_and_prefix = format!("{} {}", client.origin(), client.prefix());
        assert_eq!(origin_and_prefix, expected, "{name} {value}");
    }
    let both = [("X-Forwarded-Host", "[::1]"), ("X-Forwarded-Port", "81")];
    let (head, connection) = (head(&both), connection(trusted_proxies().x_forwarded_host()));
    assert_eq!(ClientInfo::new(&head, &connection).host(), "[::1]:81");
}

#[test]
fn parses_networks_and_reports_invalid_ones() {
    for invalid in
        ["", "10.0.0.0/33", "10.0.0/8", "localhost", "10.0.0.0/8,::1", "unix", "fd00::/129"]
    {
        let error = Networks::parse([invalid]).config_error().map(str::to_owned).expect(invalid);
        assert!(error.contains(&format!("`{invalid}`")) && error.contains("10.0.0.0/8"), "{error}");
    }
    assert!(TrustedProxies::hops(0).config_error().is_some());
    let contains = |text: &str, address: &str| {
        let networks = Networks::parse([text]);
        assert_eq!(networks.config_error(), None, "{text}");
        networks.contains_ip(address.parse().expect("an address"))
    };
    assert!(contains("10.1.2.3/8", "10.200.0.1") && !contains("10.0.0.0/8", "11.0.0.1"));
    assert!(
        contains("10.0.0.0/8", "::ffff:10.0.0.1") && contains("::ffff:10.0.0.0/104", "10.0.0.1")
    );
    assert!(
        contains("::1", "::1") && !contains("::1", "127.0.0.1") && !contains("0.0.0.0/0", "::1")
    );
    let unix = ConnectionAddr::Unix { path: None, credentials: None };
    assert!(
        Networks::private().contains(&unix) && !Networks::parse(["10.0.0.0/8"]).contains(&unix)
    );
    assert!(!Networks::private().contains_ip([8, 8, 8, 8].into()));
}
