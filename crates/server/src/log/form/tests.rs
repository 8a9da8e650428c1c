use super::*;
use crate::counts::Fault;
use peregrine_proto::{Limits, Method, RequestLine};
use peregrine_web::TrustedProxies;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::trace::{Place, TraceContext};
use std::rc::Rc;
use std::sync::Arc;

/// 10 October 2000, 13:55:36 UTC, the date of Apache's documentation.
const BEGAN: Duration = Duration::new(971_186_136, 250_000_000);

fn head(target: &str, version: Version, fields: &[(&str, &[u8])]) -> Head {
    let (method, authority, target) = (&b"GET"[..], &b""[..], target.as_bytes());
    let line = RequestLine { method, scheme: None, authority, target, version };
    let fields = fields.iter().map(|(name, value)| (name.as_bytes(), *value));
    let fields = fields.chain([(&b"host"[..], &b"birds.example:8080"[..])]);
    Head::build(&Limits::default(), &line, fields).expect("it is a head")
}

fn told(head: Option<Head>, peer: &str) -> Told {
    let peer = match peer {
        "unix" => Peer::Unix { path: None, credentials: None },
        "" => Peer::None,
        address => Peer::Tcp(address.parse().expect("an address")),
    };
    let connection = ConnectionInfo { peer, ..ConnectionInfo::default() };
    Told { head, connection: Some(Rc::new(connection)), sent: 2326, ..Told::default() }
}

fn key(status: u16, version: Version) -> Key {
    Key { method: Method::Get, status, version, ..Key::default() }
}

fn line(form: Form, key: &Key, told: &Told, leaves_query_out: bool) -> String {
    let took = Duration::from_micros(1_500_042);
    let time = Time::at(BEGAN);
    let route = Some("/birds/{id}");
    let entry = Entry { key, told, began: BEGAN, took, time, route, leaves_query_out };
    let mut out = Vec::new();
    entry.write(form, &mut out);
    String::from_utf8(out).expect("every form is text")
}

#[test]
fn a_line_is_as_apache_writes_it() {
    let request = |peer: &str| told(Some(head("/apache_pb.gif", Version::Http10, &[])), peer);
    let common = |peer: &str| {
        format!(
            "{peer} - - [10/Oct/2000:13:55:36 +0000] \"GET /apache_pb.gif HTTP/1.0\" 200 2326\n"
        )
    };
    let key = key(200, Version::Http10);
    for (peer, shown) in [
        ("127.0.0.1:99", "127.0.0.1"),
        ("[2001:db8::1]:99", "2001:db8::1"),
        ("[::ffff:192.0.2.1]:99", "192.0.2.1"),
        ("unix", "unix:"),
        ("", "-"),
    ] {
        assert_eq!(line(Form::Common, &key, &request(peer), false), common(shown));
    }
    let combined = line(Form::Combined, &key, &request("127.0.0.1:99"), false);
    assert_eq!(combined, format!("{} \"-\" \"-\"\n", common("127.0.0.1").trim_end()));
}

#[test]
fn what_there_is_not_is_a_dash() {
    let mut told = told(None, "192.0.2.1:9");
    told.sent = 0;
    let nothing = key(0, Version::Http11);
    let common = line(Form::Common, &nothing, &told, false);
    assert_eq!(common, "192.0.2.1 - - [10/Oct/2000:13:55:36 +0000] \"-\" - -\n");
    let combined = line(Form::Combined, &nothing, &told, false);
    assert!(combined.ends_with(" \"-\" - - \"-\" \"-\"\n"), "{combined}");
}

#[test]
fn versions_and_targets_stand_as_they_were_sent() {
    for (target, version, shown) in [
        ("/a?b=c&d=%22", Version::Http11, "GET /a?b=c&d=%22 HTTP/1.1"),
        ("/a", Version::Http2, "GET /a HTTP/2.0"),
    ] {
        let request = told(Some(head(target, version, &[])), "192.0.2.1:9");
        let text = line(Form::Common, &key(404, version), &request, false);
        assert!(text.contains(&format!("] \"{shown}\" 404 2326\n")), "{text}");
    }
}

#[test]
fn no_query_is_in_a_line_that_is_to_have_none() {
    let fields = [("referer", &b"http://birds.example/b?secret"[..])];
    let asked = told(Some(head("/a?secret", Version::Http11, &fields)), "192.0.2.1:9");
    let refused = b"GET /a?secret HTTP/1.1".to_vec();
    let refused = Told { refused, ..told(None, "192.0.2.1:9") };
    for form in [Form::Common, Form::Combined, Form::Json] {
        for told in [&asked, &refused] {
            let whole = line(form, &key(200, Version::Http11), told, false);
            assert!(whole.contains("secret"), "{whole}");
            let text = line(form, &key(200, Version::Http11), told, true);
            assert!(!text.contains("secret") && text.contains("/a"), "{text}");
        }
    }
}

#[test]
fn no_peer_forges_a_line_or_a_place_in_it() {
    for (sent, shown) in [
        (&b"plain"[..], "plain"),
        (b"\"", "\\\""),
        (b"\\", "\\\\"),
        (b"a\" 200 1 \"-\" \"-", "a\\\" 200 1 \\\"-\\\" \\\"-"),
        (b"\\\"", "\\\\\\\""),
        (b"a\tb", "a\\tb"),
        (b"a\nb", "a\\nb"),
        (b"a\rb", "a\\rb"),
        (b"a\x08b\x0b", "a\\bb\\v"),
        (b"\x1b[2J", "\\x1b[2J"),
        (b"\0\x01\x1f\x7f", "\\x00\\x01\\x1f\\x7f"),
        ("caf\u{e9}".as_bytes(), "caf\\xc3\\xa9"),
        (b"\xff", "\\xff"),
        ("\u{85}\u{2028}".as_bytes(), "\\xc2\\x85\\xe2\\x80\\xa8"),
    ] {
        let mut out = Vec::new();
        escape(sent, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), shown);
        // What was no request stands in a line as well.
        let told = Told { refused: sent.to_vec(), ..told(None, "192.0.2.1:9") };
        let common = line(Form::Common, &key(400, Version::Http11), &told, false);
        assert!(common.contains(&format!("] \"{shown}\" 400 ")), "{common}");
        assert_eq!(common.matches('\n').count(), 1, "{common}");
        let json = line(Form::Json, &key(400, Version::Http11), &told, false);
        assert!(json.strip_suffix('\n').is_some_and(|json| {
            json.chars().all(|character| !character.is_control() && character != '\u{2028}')
        }));
        assert_eq!(unquoted(&json, "http.request.line"), String::from_utf8_lossy(sent), "{json}");
    }
}

/// The value of a member that is text, read back by the rules of JSON.
fn unquoted(json: &str, name: &str) -> String {
    let (_, rest) = json.split_once(&format!("\"{name}\":\"")).expect("the member is there");
    let (mut text, mut rest) = (String::new(), rest.chars());
    loop {
        match rest.next().expect("the string ends") {
            '"' => return text,
            '\\' => match rest.next() {
                Some('u') => {
                    let digits: String = rest.by_ref().take(4).collect();
                    let code = u32::from_str_radix(&digits, 16).expect("digits");
                    text.push(char::from_u32(code).expect("no surrogates are written"));
                }
                Some(same) => text.push(same),
                None => panic!("an escape at the end: {json}"),
            },
            other => text.push(other),
        }
    }
}

#[test]
fn fields_are_quoted_and_bounded() {
    let long = vec![b'x'; FIELD_BYTES_MAX + 1];
    for (agent, shown) in [
        (&b"curl/8 \"the\" \\"[..], "curl/8 \\\"the\\\" \\\\"),
        (b"\xe9t\xe9", "\\xe9t\\xe9"),
        (b"", "-"),
        (&long, std::str::from_utf8(&long[1..]).unwrap()),
    ] {
        let fields = [("user-agent", agent), ("referer", b"http://a/\"")];
        let request = told(Some(head("/", Version::Http11, &fields)), "192.0.2.1:9");
        let text = line(Form::Combined, &key(200, Version::Http11), &request, false);
        assert!(text.ends_with(&format!(" \"http://a/\\\"\" \"{shown}\"\n")), "{text}");
    }
}

#[test]
fn json_has_the_names_of_opentelemetry() {
    let fields = [("user-agent", &b"\"curl\"/8"[..]), ("referer", b"http://a/")];
    let trace = TraceContext::root([1; 16], [2; 8], true).map(|it| Place::Known(Rc::new(it)));
    let told = Told {
        received: 7,
        trace,
        ..told(Some(head("/birds/7?a='b", Version::Http2, &fields)), "192.0.2.1:9")
    };
    let key = Key { fault: Fault::Aborted, ..key(200, Version::Http2) };
    assert_eq!(
        line(Form::Json, &key, &told, false),
        concat!(
            "{\"time\":\"2000-10-10T13:55:36.250000Z\",\"client.address\":\"192.0.2.1\",",
            "\"http.request.method\":\"GET\",\"url.scheme\":\"http\",",
            "\"server.address\":\"birds.example\",\"server.port\":8080,",
            "\"url.path\":\"/birds/7\",\"url.query\":\"a='b\",\"network.protocol.version\":\"2\",",
            "\"user_agent.original\":\"\\\"curl\\\"/8\",\"http.request.header.referer\":\"http://a/\",",
            "\"http.route\":\"/birds/{id}\",\"http.response.status_code\":200,",
            "\"http.request.body.size\":7,\"http.response.body.size\":2326,",
            "\"http.server.request.duration\":1.500042,\"error.type\":\"aborted\",",
            "\"trace_id\":\"01010101010101010101010101010101\",\"span_id\":\"0202020202020202\"}\n",
        )
    );
}

#[test]
fn the_client_is_who_a_trusted_proxy_says() {
    let fields = [("x-forwarded-for", &b"10.0.0.1, 198.51.100.7"[..])];
    let connection = ConnectionInfo {
        peer: Peer::Tcp("192.0.2.1:9".parse().unwrap()),
        proxies: Some(Arc::new(TrustedProxies::hops(1))),
        ..ConnectionInfo::default()
    };
    let told = Told {
        connection: Some(Rc::new(connection)),
        ..told(Some(head("/", Version::Http11, &fields)), "")
    };
    let line = line(Form::Common, &key(200, Version::Http11), &told, false);
    assert!(line.starts_with("198.51.100.7 - - ["), "{line}");
}

#[test]
fn times_have_both_forms_to_the_end_of_all_months() {
    for (unix, clf, iso) in [
        (0, "01/Jan/1970:00:00:00 +0000", "1970-01-01T00:00:00"),
        (951_782_400, "29/Feb/2000:00:00:00 +0000", "2000-02-29T00:00:00"),
        (1_735_689_599, "31/Dec/2024:23:59:59 +0000", "2024-12-31T23:59:59"),
        (1_762_041_600, "02/Nov/2025:00:00:00 +0000", "2025-11-02T00:00:00"),
    ] {
        let time = Time::at(Duration::from_secs(unix));
        assert_eq!((&time.clf[..], &time.iso[..]), (clf.as_bytes(), iso.as_bytes()));
        assert!(time.is_of(Duration::new(unix, 999)) && !time.is_of(Duration::from_secs(unix + 1)));
    }
}
