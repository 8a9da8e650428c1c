//! Files that are wrong: each is refused with its key, the cause and the fix.

use std::fs;
use std::path::Path;

use peregrine_lab_scenario::{Scenario, ScenarioError};

const RIGHT: &str = r#"name = "right"
title = "A title"
about = "What it shows."
published = ["a-page/A1"]
kind = "load"

[request]
method = "POST"
target = "/upload/{id=random:1..9}"
fields = { X-Number = "{id}" }
body = "abc"

[reply]
fields = { content-type = "application/json" }
upload = true

[[probe]]
name = "other"
request = { target = "/other" }
reply = { status = 404 }

[load]
connections = [1, 64]
tls = "resumed"
pipeline = 2
requests_per_connection = 10
"#;

const MESSAGES: &str = r#"name = "right"
title = "A title"
about = "What it shows."
kind = "load"
[request]
target = "/ws"
websocket = true
body = "hi"
[reply]
text = "hi"
[[probe]]
name = "other"
request = { target = "/other" }
reply = { status = 404 }
[load]
connections = [1]
"#;

const MICRO: &str = r#"name = "right"
title = "A title"
about = "What it shows."
kind = "micro"
[micro]
command = ["true"]
folder = "."
result_variable = "RESULT"
"#;

fn read(folder: &Path, text: &str) -> Result<Scenario, ScenarioError> {
    let file = folder.join("right.toml");
    fs::write(&file, text).unwrap();
    Scenario::read(&file)
}

/// Changes to a right file, the key that the error names, and a word of its cause or fix.
type Change = (&'static str, &'static str, &'static str, &'static str);

fn assert_refused(right: &str, changes: &[Change]) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("bad.json"), b"\xff{").unwrap();
    read(folder.path(), right).unwrap_or_else(|error| panic!("{error}"));
    for (from, to, key, words) in changes {
        assert!(right.contains(from), "{from:?} is not in the right file");
        let error = read(folder.path(), &right.replacen(from, to, 1)).expect_err(to);
        assert_eq!(error.key, *key, "{to:?}: {error}");
        let text = error.to_string();
        assert!(text.contains(words), "{to:?}: {text}");
        assert!(text.contains("right.toml: ") && !error.fix.is_empty(), "{text}");
    }
}

#[test]
fn a_key_that_is_unknown_or_missing_is_named() {
    assert_refused(
        RIGHT,
        &[
            ("title =", "titel =", "titel", "line 2"),
            ("title = \"A title\"\n", "", "title", "add the key"),
            ("method =", "methd =", "methd", "expected one of"),
            ("upload =", "uplaod =", "uplaod", "remove it"),
            ("[load]", "[laod]", "laod", "unknown field"),
            ("pipeline", "pipelining", "pipelining", "README"),
            ("connections = [1, 64]\n", "", "connections", "missing"),
            ("target = \"/other\"", "", "target", "missing"),
            ("kind = \"load\"", "kind = \"laod\"", "kind", "unknown variant"),
            ("pipeline = 2", "pipeline = \"2\"", "pipeline", "invalid type"),
            ("pipeline = 2", "pipeline = -2", "pipeline", "line 25"),
            ("tls = \"resumed\"", "tls = true", "tls", "line 24"),
            ("kind = \"load\"", "kind = ", "kind", "line 5"),
        ],
    );
}

#[test]
fn names_and_texts_are_checked() {
    assert_refused(
        RIGHT,
        &[
            ("name = \"right\"", "name = \"wrong\"", "name", "same name"),
            ("name = \"right\"", "name = \"Right\"", "name", "lower-case"),
            ("name = \"right\"", "name = \"\"", "name", "no name"),
            ("A title", " ", "title", "empty"),
            ("What it shows.", "", "about", "empty"),
            ("a-page/A1", "a page", "published", "no published figure"),
            ("a-page/A1", "a/b/c", "published", "claim file"),
        ],
    );
}

#[test]
fn requests_and_replies_are_checked() {
    assert_refused(
        RIGHT,
        &[
            ("\"POST\"", "\"\"", "request.method", "no method"),
            ("\"POST\"", "\"PO ST\"", "request.method", "such as GET"),
            ("\"/upload/", "\"upload/", "request.target", "begin with /"),
            ("\"/upload/", "\"/up load/", "request.target", "%20"),
            ("X-Number =", "Host =", "request.fields.Host", "client writes"),
            ("X-Number =", "content-length =", "request.fields.content-length", "client writes"),
            ("X-Number =", "\"X Number\" =", "request.fields.X Number", "letters"),
            ("\"{id}\"", "\"a\\nb\"", "request.fields.X-Number", "visible"),
            ("random:1..9", "rnadom:1..9", "request.target", "{id=rnadom:1..9}"),
            ("random:1..9}", "random:1..9", "request.target", "no end"),
            ("\"{id}\"", "\"{no}\"", "request.fields.X-Number", "{no}"),
            ("\"abc\"", "\"{counte}\"", "request.body", "double the brace"),
            ("body = \"abc\"", "body_size = 16777217", "request.body_size", "16777216"),
            ("body = \"abc\"", "form_file_size = 33554433", "request.form_file_size", "33554432"),
            ("\"abc\"", "\"abc\"\nform_file_size = 1", "request.body", "keep one"),
            ("body = \"abc\"", "body_file = \"none.bin\"", "request.body_file", "none.bin"),
            ("\"abc\"", "\"abc\"\nbody_size = 1", "request.body", "keep one"),
            ("body = \"abc\"", "fields_total = 1", "request.fields_total", "from 2 to 1000"),
            ("body = \"abc\"", "fields_total = 1001", "request.fields_total", "from 2"),
            ("body = \"abc\"", "", "reply.upload", "without placeholders"),
            ("\"abc\"", "\"{id}\"", "reply.upload", "fixed body"),
            ("upload = true", "upload = false", "reply", "can be judged"),
            ("upload = true", "", "reply", "add one of"),
            ("upload = true", "upload = true\nlength = 1", "reply.text", "keep one"),
            ("upload = true", "json = '{'", "reply.json", "no JSON"),
            ("upload = true", "json_file = 'bad.json'", "reply.json_file", "UTF-8"),
            ("upload = true", "length = 16777217", "reply.length", "16777216"),
            ("upload = true", "text = '{unknown}'", "reply", "{unknown}"),
            ("upload = true", "status = 100\nupload = true", "reply.status", "200 to 599"),
            ("content-type =", "\"a:b\" =", "reply.fields.a:b", "no field"),
            ("upload = true", "lines = 1677722", "reply.lines", "at most 1677721"),
            ("upload = true", "lines = 3\ntext = ''", "reply.text", "keep one"),
            (
                "upload = true",
                "text = ''\ntrailers = { 'a:b' = '' }",
                "reply.trailers.a:b",
                "no field",
            ),
        ],
    );
}

#[test]
fn messages_of_a_websocket_are_checked() {
    let load = "connections = [1]";
    assert_refused(
        MESSAGES,
        &[
            ("body = \"hi\"", "body = \"hi\"\nmethod = \"POST\"", "request.websocket", "by GET"),
            ("body = \"hi\"", "", "request.websocket", "message as body"),
            (
                "body = \"hi\"",
                "body = \"hi\"\nfields = { Upgrade = \"x\" }",
                "request.fields.Upgrade",
                "client writes",
            ),
            ("text = \"hi\"", "text = \"hi\"\nstatus = 101", "reply", "text alone"),
            ("text = \"hi\"", "text = \"hi\"\nfields = { A = \"b\" }", "reply", "text alone"),
            ("text = \"hi\"", "json = '1'", "reply", "text alone"),
            ("kind = \"load\"", "kind = \"shutdown\"", "request.websocket", "about requests"),
            (
                load,
                "connections = [1]\nrequests_per_connection = 5",
                "load.requests_per_connection",
                "stays",
            ),
        ],
    );
    let folder = tempfile::tempdir().unwrap();
    let scenario = read(folder.path(), MESSAGES).unwrap();
    let workload = scenario.workload().unwrap();
    assert!(workload.is_websocket && !workload.is_http2);
    let error = scenario.over_http2(None).unwrap_err().to_string();
    assert!(error.contains("opened over HTTP/1.1"), "{error}");
}

#[test]
fn probes_are_checked_as_the_request_is() {
    let two = "[[probe]]\nname = \"other\"\nrequest = { target = \"/\" }\nreply = {}\n[load]";
    let probe = "[[probe]]\nname = \"other\"\nrequest = { target = \"/other\" }\n\
                 reply = { status = 404 }\n";
    assert_refused(
        RIGHT,
        &[
            (probe, "", "probe", "believes any server"),
            ("[load]", two, "probe", "name of its own"),
            ("\"/other\"", "\"other\"", "probe 1.request.target", "begin with /"),
            ("404", "99", "probe 1.reply.status", "200 to 599"),
        ],
    );
}

#[test]
fn the_limits_of_the_generator_hold_in_files() {
    let load = "connections = [1, 64]";
    let whole = RIGHT.split_once("[load]").unwrap().1;
    assert_refused(
        RIGHT,
        &[
            (load, "connections = []", "load.connections", "list 1 to 32"),
            (load, "connections = [0]", "load.connections", "from 1 to 100000"),
            (load, "connections = [100001]", "load.connections", "out of range"),
            (load, "connections = [64, 64]", "load.connections", "rise"),
            ("pipeline = 2", "pipeline = 0", "load.pipeline", "from 1 to 1024"),
            ("pipeline = 2", "pipeline = 1025", "load.pipeline", "out of range"),
            ("connection = 10", "connection = 0", "load.requests_per_connection", "from 1"),
            ("pipeline = 2", "idle_connections = 1", "load.idle_connections", "kind = \"idle\""),
            (
                "pipeline = 2",
                "sent_again_share_max = 1.5",
                "load.sent_again_share_max",
                "a part of 1",
            ),
            ("pipeline = 2", "sent_again_share_max = nan", "load.sent_again_share_max", "no share"),
            ("pipeline = 2", "shares = [0.5]", "load.shares", "kind = \"latency\""),
            ("pipeline = 2", "factor = 2.0", "load.factor", "kind = \"overload\""),
            (
                "[load]",
                "[micro]\ncommand = []\nfolder = ''\nresult_variable = ''\n[load]",
                "micro",
                "only a micro",
            ),
            ("kind = \"load\"", "kind = \"idle\"", "load.idle_connections", "held open"),
        ],
    );
    let with = |kind: &str, line: &str| {
        let text = RIGHT.replace("kind = \"load\"", &format!("kind = \"{kind}\""));
        text.replace("pipeline = 2", line)
    };
    let cases = [
        (with("latency", "shares = []"), "load.shares"),
        (with("latency", "shares = [0.5, 1.5]"), "load.shares"),
        (with("latency", "shares = [0.0]"), "load.shares"),
        (with("overload", "factor = 1.0"), "load.factor"),
        (with("overload", "factor = nan"), "load.factor"),
        (with("overload", "factor = 101"), "load.factor"),
        (with("idle", "idle_connections = 99937"), "load.connections"),
        (RIGHT.replace(&format!("[load]{whole}"), ""), "load"),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (text, key) in cases {
        assert_eq!(read(folder.path(), &text).expect_err(key).key, key, "{text}");
    }
    for (kind, line) in [("latency", ""), ("overload", ""), ("idle", "idle_connections = 99936")] {
        read(folder.path(), &with(kind, line)).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn a_micro_benchmark_has_a_command_and_nothing_else() {
    let exchange = "\n[request]\ntarget = '/'\n[reply]\ntext = ''";
    let folder = tempfile::tempdir().unwrap();
    assert_refused(
        MICRO,
        &[
            ("command = [\"true\"]", "command = []", "micro.command", "program to run"),
            ("\"RESULT\"", "\"A=B\"", "micro.result_variable", "letters"),
            ("[micro]", "[load]\nconnections = [1]\n[micro]", "load", "no connections"),
            ("folder = \".\"\n", "", "folder", "missing"),
        ],
    );
    let without = MICRO.split_once("[micro]").unwrap().0;
    assert_eq!(read(folder.path(), without).unwrap_err().key, "micro");
    let asking = MICRO.replace("\"RESULT\"", &format!("\"RESULT\"{exchange}"));
    let error = read(folder.path(), &asking).unwrap_err();
    assert_eq!(error.key, "request", "{error}");
}

#[test]
fn half_an_exchange_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let text = RIGHT.replace("[reply]\nfields = { content-type = \"application/json\" }\n", "");
    let error = read(folder.path(), &text.replace("upload = true\n", "")).unwrap_err();
    assert_eq!(error.key, "request", "{error}");
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    let folder = tempfile::tempdir().unwrap();
    read(folder.path(), RIGHT).unwrap();
    fs::write(folder.path().join("README.md"), "").unwrap();
    assert_eq!(Scenario::find(folder.path(), "right").unwrap().name, "right");
    let path = folder.path().join("right.toml");
    assert_eq!(Scenario::find(Path::new("."), path.to_str().unwrap()).unwrap().name, "right");
    let error = Scenario::find(folder.path(), "wrong").unwrap_err().to_string();
    assert!(error.contains("\"wrong\"") && error.contains("known are right"), "{error}");
    assert!(!error.contains("README"));
    let missing = Scenario::find(folder.path(), "./missing.toml").unwrap_err().to_string();
    assert!(missing.contains("missing.toml") && missing.contains("readable"), "{missing}");
    let nowhere = Scenario::all(&folder.path().join("nowhere")).unwrap_err().to_string();
    assert!(nowhere.contains("nowhere") && nowhere.contains("folder"), "{nowhere}");
}

#[test]
fn the_hash_is_that_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = read(folder.path(), RIGHT).unwrap();
    let hash = <sha2::Sha256 as sha2::Digest>::digest(RIGHT);
    let text: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(scenario.sha256, text);
    assert!(scenario.fixtures.is_empty());
}
