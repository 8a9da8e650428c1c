//! The scenarios that the lab ships.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use peregrine_lab_load::client::fault::Fault;
use peregrine_lab_load::client::reply::{Parsed, parse_reply};
use peregrine_lab_load::generator::Plan;
use peregrine_lab_load::question::{Question, Wording};
use peregrine_lab_scenario::{
    Exchange, Kind, OPEN_RATES, OpenRate, Scenario, TlsMode, WorkloadError,
};
use sha2::{Digest, Sha256};

fn lab() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn folder() -> PathBuf {
    lab().join("scenarios")
}

fn all() -> Vec<Scenario> {
    Scenario::all(&folder()).unwrap_or_else(|error| panic!("{error}"))
}

/// Those of the contenders that serve nothing else.
fn batteries() -> Vec<Scenario> {
    Scenario::all(&folder().join("batteries")).unwrap_or_else(|error| panic!("{error}"))
}

fn scenario(name: &str) -> Scenario {
    Scenario::find(&folder(), name).unwrap_or_else(|error| panic!("{error}"))
}

fn timed(name: &str) -> Exchange {
    scenario(name).exchange.expect("the scenario asks a server")
}

fn question(exchange: &Exchange) -> Question {
    exchange.question("localhost", 7).expect("the file was checked")
}

fn judge(question: &Question, number: u64, reply: &[u8]) -> Result<(), Fault> {
    match parse_reply(reply, question.is_head)? {
        Parsed::Whole(used, parsed) if used == reply.len() => {
            question.expected.check(&parsed, question.values(), number, &mut Vec::new())
        }
        other => panic!("not one whole reply: {other:?}"),
    }
}

fn rendered(exchange: &Exchange, number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    question(exchange).render(number, false, &mut Vec::new(), &mut out);
    out
}

/// The head without its empty line, and the body.
fn split(message: &[u8]) -> (String, &[u8]) {
    let end = message.windows(4).position(|four| four == b"\r\n\r\n").expect("a head ends");
    (String::from_utf8(message[..end].to_vec()).unwrap(), &message[end + 4..])
}

fn every_exchange(scenario: &Scenario) -> impl Iterator<Item = &Exchange> {
    scenario.exchange.iter().chain(&scenario.probes)
}

#[test]
fn all_scenarios_that_the_lab_promises_are_there() {
    let names: Vec<String> = all().into_iter().map(|scenario| scenario.name).collect();
    let promised = [
        "churn",
        "download",
        "echo",
        "example",
        "few-connections",
        "files-10m",
        "files-1k",
        "files-300k",
        "grpc-unary",
        "headers-100",
        "headers-30",
        "headers-5",
        "hello",
        "hello-12",
        "https-json",
        "idle-10000",
        "json",
        "json-complex",
        "json-sort",
        "large-json",
        "latency-json",
        "one-connection",
        "overload-2x",
        "pipelined",
        "project-work",
        "relay",
        "router",
        "routes-400",
        "shutdown",
        "sleep",
        "slow-mix",
        "spawn",
        "tls-handshakes-full",
        "tls-handshakes-resumed",
        "upload",
        "ws-echo",
    ];
    let sorted: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(sorted, BTreeSet::from(promised));
}

#[test]
fn every_exchange_accepts_its_own_answer_and_refuses_others() {
    for scenario in all().into_iter().chain(batteries()) {
        assert_eq!(scenario.probes.is_empty(), scenario.exchange.is_none(), "{}", scenario.name);
        for exchange in every_exchange(&scenario) {
            let name = format!("{}: {}", scenario.name, exchange.name);
            let question = question(exchange);
            for number in 0..20 {
                let right = question.expected.example(question.values(), number, false);
                let mut reply = right.expect("no scenario knows only a hash");
                assert_eq!(judge(&question, number, &reply), Ok(()), "{name}");
                let status = reply[9..12].to_vec();
                reply[9..12].copy_from_slice(b"299");
                assert_eq!(judge(&question, number, &reply), Err(Fault::WrongStatus), "{name}");
                reply[9..12].copy_from_slice(&status);
                if !exchange.is_open() {
                    // The last digit or letter of the value; an empty list has none.
                    let start = reply.len() - split(&reply).1.len();
                    let place = reply[start..].iter().rposition(u8::is_ascii_alphanumeric);
                    let place = start + place.unwrap_or(0);
                    reply[place] = if reply[place] == b'1' { b'2' } else { b'1' };
                    // Trailers stand behind the body.
                    let fault = match question.expected.trailers.is_empty() {
                        true => Fault::WrongBody,
                        false => Fault::WrongTrailer,
                    };
                    assert_eq!(judge(&question, number, &reply), Err(fault), "{name}");
                }
            }
        }
    }
}

#[test]
fn every_missing_field_of_an_answer_is_noticed() {
    for scenario in all() {
        for exchange in every_exchange(&scenario) {
            let question = question(exchange);
            let reply = question.expected.example(question.values(), 0, false).unwrap();
            let (head, body) = split(&reply);
            for (field, _) in &exchange.wording.expected_fields {
                let lines = head.split("\r\n").filter(|line| !line.starts_with(field.as_str()));
                let mut cut = lines.collect::<Vec<_>>().join("\r\n").into_bytes();
                cut.extend_from_slice(b"\r\n\r\n");
                cut.extend_from_slice(body);
                assert_eq!(judge(&question, 0, &cut), Err(Fault::WrongHeader), "{}", scenario.name);
            }
        }
    }
}

#[test]
fn every_timed_answer_names_its_media_type_and_every_probe_differs() {
    for scenario in all().into_iter().chain(batteries()) {
        let Some(exchange) = &scenario.exchange else { continue };
        let fields = &exchange.wording.expected_fields;
        let has_type = fields.iter().any(|(name, _)| name == "content-type");
        assert!(has_type || exchange.wording.is_websocket, "{}", scenario.name);
        for probe in &scenario.probes {
            let texts = |exchange: &Exchange| {
                let Wording { method, target, fields, body, .. } = exchange.wording.clone();
                (method, target, fields, body)
            };
            assert!(texts(probe) != texts(exchange), "{}: {}", scenario.name, probe.name);
        }
        // gRPC refuses what it does not know with the status 12.
        let is_refusal = |probe: &Exchange| {
            let unknown = ("grpc-status".to_owned(), Some("12".to_owned()));
            let is_unknown = probe.wording.expected_fields.contains(&unknown);
            is_unknown || probe.wording.expected_status == Some(404)
        };
        let has_refusal = scenario.probes.iter().any(is_refusal);
        assert!(has_refusal, "{}: a server that answers alike everywhere", scenario.name);
    }
}

#[test]
fn every_level_of_every_scenario_is_a_plan_that_the_generator_takes() {
    let address: SocketAddr = "127.0.0.1:1".parse().unwrap();
    for scenario in all() {
        let Some(exchange) = &scenario.exchange else { continue };
        let load = &scenario.load;
        assert!(!load.connections.is_empty());
        for &connections in &load.connections {
            let mut plan = Plan::new(address, Arc::new(question(exchange)));
            plan.connections = connections + load.idle_connections;
            plan.depth = load.pipeline;
            plan.requests_per_connection = load.requests_per_connection;
            assert_eq!(plan.check(), Ok(()), "{}", scenario.name);
        }
    }
}

#[test]
fn requests_have_as_many_fields_as_their_names_say() {
    for count in [5, 30, 100] {
        let request = rendered(&timed(&format!("headers-{count}")), 0);
        let (head, body) = split(&request);
        let names: BTreeSet<&str> =
            head.lines().skip(1).map(|line| line.split_once(": ").unwrap().0).collect();
        assert_eq!((names.len(), head.lines().count() - 1, body.len()), (count, count, 0));
        assert!(names.contains("Host") && names.contains("X-Lab-Field-001"));
    }
}

#[test]
fn an_upload_is_answered_with_the_hash_of_what_was_sent() {
    let scenario = scenario("upload");
    let lengths = [1 << 20, 3, 65_537, 4 << 20];
    for (exchange, length) in every_exchange(&scenario).zip(lengths) {
        let request = rendered(exchange, 0);
        let (head, body) = split(&request);
        assert_eq!(body.len(), length);
        assert!(head.contains(&format!("Content-Length: {length}")));
        let hash: String = Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
        let answer = format!(r#"{{"bytes":{length},"sha256":"{hash}"}}"#);
        let reply = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{answer}",
            answer.len()
        );
        assert_eq!(judge(&question(exchange), 0, reply.as_bytes()), Ok(()));
        let other = reply.replace(&hash[..8], "00000000");
        assert_eq!(judge(&question(exchange), 0, other.as_bytes()), Err(Fault::WrongBody));
    }
}

#[test]
fn a_form_is_answered_with_the_hash_of_its_file() {
    let scenario = Scenario::read(&folder().join("batteries/battery-form.toml")).unwrap();
    let exchange = scenario.probes.iter().find(|probe| probe.name.contains("hash")).unwrap();
    let request = rendered(exchange, 0);
    let (head, body) = split(&request);
    let boundary = between(&head, "Content-Type: multipart/form-data; boundary=", "\r\n");
    assert!(head.contains(&format!("Content-Length: {}", body.len())));
    let end = format!("\r\n--{boundary}--\r\n");
    let file = body.strip_suffix(end.as_bytes()).expect("the form ends as forms do");
    let file = &file[file.len() - 1_000_003..];
    let before = &body[..body.len() - end.len() - file.len()];
    assert!(before.starts_with(format!("--{boundary}\r\n").as_bytes()));
    assert!(before.ends_with(b"Content-Type: video/mp4\r\n\r\n"));
    let hash: String = Sha256::digest(file).iter().map(|byte| format!("{byte:02x}")).collect();
    let question = question(exchange);
    let reply = question.expected.example(question.values(), 0, false).unwrap();
    assert!(String::from_utf8(reply).unwrap().contains(&hash));
}

/// The part of a text between two others.
fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let start = text.find(from).unwrap_or_else(|| panic!("{text} has no {from}")) + from.len();
    &text[start..start + text[start..].find(to).unwrap()]
}

#[test]
fn the_checksums_of_project_work_are_those_of_its_rule() {
    let mut checked = 0;
    for exchange in every_exchange(&scenario("project-work")) {
        if exchange.wording.expected_status != Some(201) {
            continue;
        }
        let request = rendered(exchange, 0);
        let (head, body) = split(&request);
        let event: serde_json::Value = serde_json::from_slice(body).unwrap();
        let project = between(&head, "/projects/", "/events");
        let tenant = between(&head, "tenant=", "&");
        let id = between(&head, "X-Request-ID: ", "\r\n");
        let (name, quantity) = (event["name"].as_str().unwrap(), event["quantity"].as_u64());
        let text = format!("{project}|{tenant}|{id}|{name}|{}", quantity.unwrap());
        let hash: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        let question = question(exchange);
        let reply = question.expected.example(question.values(), 0, false).unwrap();
        let answer: serde_json::Value = serde_json::from_slice(split(&reply).1).unwrap();
        assert_eq!(
            answer,
            serde_json::json!({
                "projectID": project, "tenant": tenant, "requestID": id, "name": name,
                "quantity": quantity, "checksum": hash
            })
        );
        checked += 1;
    }
    assert_eq!(checked, 3);
}

#[test]
fn fixtures_are_what_the_contract_says() {
    let read = |name: &str| -> serde_json::Value {
        let text = std::fs::read(folder().join("fixtures").join(name)).unwrap();
        serde_json::from_slice(&text).unwrap()
    };
    let mut numbers = read("numbers.json").as_array().unwrap().clone();
    numbers.sort_by_key(|number| number.as_u64().unwrap());
    assert_eq!(numbers.len(), 64);
    assert_eq!(read("numbers-sorted.json"), serde_json::Value::Array(numbers));
    let large = read("large.json");
    assert_eq!(large["count"], 1000);
    for index in 0..1000 {
        let expected = serde_json::json!({
            "id": index, "name": format!("item {index}"), "price_cents": index * 37 % 10_000,
            "tags": ["alpha", "beta", "gamma"], "in_stock": index % 3 != 0
        });
        assert_eq!(large["items"][index], expected);
    }
    assert!(large["items"].get(1000).is_none());
    let example = read("example.json");
    let pairs: serde_json::Map<_, _> =
        (0..16).map(|key| (format!("key{key:02}"), key.into())).collect();
    let expected = serde_json::json!({
        "a": "a string of some length", "b": 4_294_967_295_u32, "c": 9_007_199_254_740_991_u64,
        "d": 2.5, "e": 1234.0625,
        "f": (0..16).map(|n| n * 1000).collect::<Vec<_>>(),
        "g": (0..16).map(|n| f64::from(n) + 0.25).collect::<Vec<_>>(),
        "h": (0..16).map(|n| format!("item {n}")).collect::<Vec<_>>(),
        "j": pairs
    });
    assert_eq!(example, expected);
    let fixtures = scenario("large-json").fixtures;
    assert_eq!(fixtures.len(), 1);
    assert_eq!(fixtures[0].path, PathBuf::from("fixtures/large.json"));
}

#[test]
fn routes_vary_in_method_version_resource_and_id() {
    let exchange = timed("routes-400");
    let mut seen: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for number in 0..500 {
        let request = rendered(&exchange, number);
        let (head, _) = split(&request);
        let words: Vec<&str> = head.split([' ', '/']).collect();
        for (part, word) in ["method", "", "version", "resource", "id"].into_iter().zip(words) {
            seen.entry(part).or_default().insert(word.to_owned());
        }
    }
    assert_eq!((seen["method"].len(), seen["version"].len(), seen["resource"].len()), (4, 5, 10));
    assert!(seen["id"].len() > 450);
}

#[test]
fn about_one_in_twenty_of_the_slow_mix_waits() {
    let exchange = timed("slow-mix");
    let is_slow = |number: &u64| rendered(&exchange, *number).starts_with(b"GET /sleep/10 ");
    let slow = (0..2000).filter(is_slow).count();
    assert!((60..=140).contains(&slow), "{slow} of 2000");
}

#[test]
fn kinds_carry_what_the_names_say() {
    assert_eq!(scenario("overload-2x").kind, Kind::Overload { factor: 2.0 });
    assert_eq!(
        scenario("latency-json").kind,
        Kind::Latency { rates: [0.5, 0.8, 0.95].map(OpenRate::Share).to_vec() }
    );
    assert_eq!(scenario("shutdown").kind, Kind::Shutdown);
    let idle = scenario("idle-10000");
    assert_eq!((idle.kind, idle.load.idle_connections), (Kind::Idle, 10_000));
    assert_eq!(scenario("pipelined").load.pipeline, 16);
    assert_eq!(scenario("churn").load.requests_per_connection, Some(10));
    for (name, mode) in [("full", TlsMode::Full), ("resumed", TlsMode::Resumed)] {
        let load = scenario(&format!("tls-handshakes-{name}")).load;
        assert_eq!((load.tls, load.requests_per_connection), (Some(mode), Some(1)));
    }
    assert_eq!(scenario("https-json").load.connections, [30, 500, 5000, 8000]);
    assert_eq!(scenario("one-connection").load.connections, [1]);
    assert_eq!(scenario("few-connections").load.connections, [8]);
    let Kind::Micro(micro) = scenario("router").kind else { panic!("the router is timed alone") };
    assert_eq!(micro.result_variable, "PEREGRINE_BENCH_JSON");
    assert!(micro.folder.join("lab/scenarios/router.toml").is_file());
}

#[test]
fn a_scenario_over_tls_or_opened_asks_the_same_under_another_name_and_load() {
    for plain in all() {
        let (base, kind, tls) = (plain.name.clone(), plain.kind.clone(), plain.load.tls);
        let is_micro = matches!(kind, Kind::Micro(_));
        let Ok(secure) = plain.clone().over_tls() else {
            assert!(is_micro, "{base}");
            assert!(plain.opened(&[]).unwrap_err().to_string().contains("only a closed loop"));
            continue;
        };
        let name = if tls.is_some() { base.clone() } else { format!("{base}-tls") };
        assert_eq!((&secure.name, &secure.base, &secure.kind), (&name, &base, &kind));
        assert_eq!(secure.load.tls, tls.or(Some(TlsMode::Full)));
        assert_eq!(
            (secure.sha256.as_str(), secure.load.pipeline),
            (&*plain.sha256, plain.load.pipeline)
        );
        let rates = [OpenRate::PerSecond(2_000.0)];
        if let Ok(slow) = secure.clone().opened(&rates) {
            assert_eq!(slow.kind, Kind::Latency { rates: rates.to_vec() });
        }
        match (secure.opened(&[]), kind) {
            (Ok(open), Kind::Load) => {
                assert_eq!((open.name, open.base), (format!("{name}-open"), base));
                assert_eq!(open.kind, Kind::Latency { rates: OPEN_RATES.to_vec() });
            }
            (Ok(open), kind @ Kind::Latency { .. }) => {
                assert_eq!((open.name, open.kind), (name, kind));
            }
            (Err(error), Kind::Load | Kind::Latency { .. }) => panic!("{error}"),
            (opened, _) => assert_eq!(opened.unwrap_err().scenario, name),
        }
    }
}

#[test]
fn the_answers_of_spawn_are_one_more_than_what_is_asked() {
    for exchange in every_exchange(&scenario("spawn")) {
        let question = question(exchange);
        for number in 0..50 {
            let request = rendered(exchange, number);
            let (head, _) = split(&request);
            let target = head.split(' ').nth(1).unwrap();
            let Some(asked) = target.strip_prefix("/spawn/") else { continue };
            let asked: u32 = asked.parse().expect("the contract's numbers have 32 bits");
            let reply = question.expected.example(question.values(), number, false).unwrap();
            let answer: u64 = String::from_utf8_lossy(split(&reply).1).parse().unwrap();
            assert_eq!(answer, u64::from(asked) + 1);
        }
    }
}

#[test]
fn only_what_says_so_must_pass_through_the_echo_server() {
    let relayed: Vec<String> =
        all().into_iter().filter(|scenario| scenario.is_relayed).map(|one| one.name).collect();
    assert_eq!(relayed, ["relay"]);
    // The check of the bytes that were echoed knows bodies that are the texts themselves.
    for exchange in every_exchange(&scenario("relay")) {
        let request = rendered(exchange, 3);
        let (head, _) = split(&request);
        let Some(text) = head.split(' ').nth(1).and_then(|target| target.strip_prefix("/relay/"))
        else {
            continue;
        };
        let question = question(exchange);
        let reply = question.expected.example(question.values(), 3, false).unwrap();
        assert_eq!(split(&reply).1, text.as_bytes());
        assert!((1..=64).contains(&text.len()), "{text}");
    }
}

#[test]
fn closed_loops_have_a_paired_form_with_the_same_bytes() {
    for scenario in all() {
        let is_paired =
            scenario.kind == Kind::Load && scenario.load.requests_per_connection.is_none();
        let workload = match scenario.workload() {
            Ok(workload) if is_paired => workload,
            Err(WorkloadError::Unpaired(_)) if !is_paired => continue,
            other => panic!("{}: {other:?}", scenario.name),
        };
        let exchange = scenario.exchange.expect("a closed loop asks");
        let seeded = exchange.question("localhost", exchange.wording.seed).unwrap();
        let varying = ["echo", "grpc-unary", "relay", "routes-400", "slow-mix", "spawn", "ws-echo"];
        let varies = varying.contains(&scenario.name.as_str());
        assert_eq!(workload.others.len(), if varies { 1023 } else { 0 }, "{}", scenario.name);
        assert_eq!(workload.depth, scenario.load.pipeline);
        assert_eq!(workload.is_tls, scenario.load.tls.is_some());
        for number in 0..40 {
            let mut request = Vec::new();
            let place = if varies { number } else { 0 };
            seeded.render(place, false, &mut Vec::new(), &mut request);
            let at = usize::try_from(number).unwrap();
            assert!(workload.request_at(at) == request, "{}", scenario.name);
            let reply = workload.answer_at(at).example();
            let Ok(Parsed::Whole(_, reply)) = parse_reply(&reply, false) else { panic!() };
            let judged = seeded.expected.check(&reply, seeded.values(), place, &mut Vec::new());
            assert_eq!(judged, Ok(()), "{}", scenario.name);
        }
    }
}

#[test]
fn a_download_is_a_million_bytes_of_which_none_may_differ() {
    let question = question(&timed("download"));
    let reply = question.expected.example(question.values(), 0, false).unwrap();
    let (_, body) = split(&reply);
    assert_eq!(body.len(), 1_000_000);
    assert!(body.starts_with(b"000000000\n000000001\n") && body.ends_with(b"\n000099999\n"));
    for place in [0, 499_999, 999_999] {
        let mut other = reply.clone();
        let start = reply.len() - body.len();
        other[start + place] ^= 1;
        assert_eq!(judge(&question, 0, &other), Err(Fault::WrongBody), "at {place}");
    }
    let mut pieces = reply.clone();
    let start = reply.len() - 500_000;
    pieces[start..start + 20_000].rotate_left(10_000);
    assert_eq!(judge(&question, 0, &pieces), Err(Fault::WrongBody));
}

#[test]
fn echoes_have_32_bytes_as_requests_and_as_messages() {
    let (request, message) = (timed("echo"), timed("ws-echo"));
    assert!(!request.wording.is_websocket && message.wording.is_websocket);
    for number in 0..100 {
        let mut texts = [&request, &message].map(|exchange| {
            let mut text = Vec::new();
            question(exchange).render_body(number, &mut text);
            text
        });
        assert_eq!(texts[0], texts[1]);
        assert_eq!(texts[0].len(), 32);
        // The longest form of the value is the usual one.
        texts[0].truncate(17);
        assert_eq!(texts[0], b"echo of the lab: ");
    }
    assert_eq!(scenario("echo").load.connections, scenario("ws-echo").load.connections);
    assert!(scenario("ws-echo").over_http2(None).unwrap_err().reason.contains("HTTP/1.1"));
}

#[test]
fn messages_of_grpc_have_the_lengths_that_they_say() {
    for exchange in every_exchange(&scenario("grpc-unary")) {
        let question = question(exchange);
        for number in 0..50 {
            let mut request = Vec::new();
            question.render_body(number, &mut request);
            let mut messages = vec![request];
            if !exchange.is_open() {
                let reply = question.expected.example(question.values(), number, false).unwrap();
                let Ok(Parsed::Whole(_, reply)) = parse_reply(&reply, false) else { panic!() };
                assert_eq!(reply.trailer("grpc-status"), Some(&b"0"[..]));
                messages.push(reply.body.to_vec());
            }
            for message in messages {
                let length = message.len() - 5;
                assert_eq!(message[..5], [0, 0, 0, 0, u8::try_from(length).unwrap()]);
                if length > 0 {
                    assert_eq!(message[5..7], [10, u8::try_from(length - 2).unwrap()]);
                }
            }
        }
    }
}

#[test]
fn every_published_figure_has_one_scenario_that_repeats_it() {
    let mut repeated: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for scenario in all() {
        for figure in scenario.published {
            repeated.entry(figure).or_default().push(scenario.name.clone());
        }
    }
    for (figure, names) in &repeated {
        assert_eq!(names.len(), 1, "{figure} is repeated by {names:?}");
    }
    let mut printed = BTreeSet::new();
    for entry in std::fs::read_dir(lab().join("claims")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let page: toml::Table = toml::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let tables = [("scenarios", "id"), ("microbenchmarks", "scenario")];
        for (table, key) in tables {
            let rows = page.get(table).and_then(toml::Value::as_array);
            for row in rows.into_iter().flatten() {
                let id = row[key].as_str().unwrap();
                printed.insert(format!("{}/{id}", page["id"].as_str().unwrap()));
            }
        }
    }
    // A client of ours does not see where a request ends and the response begins.
    let untestable = ["rust-compare-2021/E5-request", "rust-compare-2021/E5-response"];
    let expected: BTreeSet<String> =
        printed.into_iter().filter(|id| !untestable.contains(&id.as_str())).collect();
    assert_eq!(repeated.into_keys().collect::<BTreeSet<_>>(), expected);
}
