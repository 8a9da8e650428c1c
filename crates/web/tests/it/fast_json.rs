//! `SimdJson` and `Json` accept the same documents and read the same values.

use peregrine_web::App;
use peregrine_web::extract::{Json, SimdJson};
use peregrine_web::testing::TestClient;
use proptest::prelude::*;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "only its Debug output is compared")]
struct Bird {
    name: String,
    #[serde(default)]
    size: Option<f64>,
    #[serde(default)]
    eggs: u8,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only its Debug output is compared")]
struct Strict {
    a: i32,
    b: Option<Box<Strict>>,
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "only its Debug output is compared")]
enum Kind {
    A,
    B(u8),
    C { x: i8 },
    D(u8, String),
}

#[derive(Debug, Deserialize)]
#[serde(tag = "t")]
#[expect(dead_code, reason = "only its Debug output is compared")]
enum Tagged {
    A { x: f64 },
    B,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its Debug output is compared")]
enum Any {
    Number(u64),
    Float(f64),
    Text(String),
    Rest(serde_json::Value),
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "only its Debug output is compared")]
struct Flat {
    a: u8,
    #[serde(flatten)]
    rest: BTreeMap<String, serde_json::Value>,
}

type Route = (&'static str, fn(App) -> App);

/// Adds two routes that respond with the value as read by each of the two extractors.
fn routes<T: DeserializeOwned + Debug + 'static>(app: App, name: &str) -> App {
    app.post(&format!("/json/{name}"), |Json(value): Json<T>| format!("{value:?}"))
        .post(&format!("/fast/{name}"), |SimdJson(value): SimdJson<T>| format!("{value:?}"))
}

macro_rules! types {
    ($($name:literal $T:ty;)*) => {
        const TYPES: &[Route] = &[$(($name, |app| routes::<$T>(app, $name)),)*];
    };
}

types! {
    "value" serde_json::Value;
    "f64" f64;
    "f32" f32;
    "u64" u64;
    "i64" i64;
    "u8" u8;
    "i128" i128;
    "u128" u128;
    "text" String;
    "char" char;
    "bool" bool;
    "unit" ();
    "option" Option<Option<u8>>;
    "pair" (u8, u8);
    "array" [f64; 2];
    "list" Vec<f64>;
    "lists" Vec<Vec<i64>>;
    "map" BTreeMap<String, i64>;
    "numbers" BTreeMap<u32, bool>;
    "signed" BTreeMap<i64, bool>;
    "bools" BTreeMap<bool, u8>;
    "bird" Bird;
    "strict" Strict;
    "kind" Kind;
    "kinds" Vec<Kind>;
    "tagged" Tagged;
    "any" Any;
    "flat" Flat;
    "ignored" serde::de::IgnoredAny;
    "number" serde_json::Number;
}

fn client() -> TestClient {
    TYPES.iter().fold(App::new(), |app, (_, add)| add(app)).test()
}

/// The types for which the two extractors read the document differently.
fn differences(client: &TestClient, document: &[u8]) -> Vec<String> {
    let read = |reader: &str, name: &str| {
        let request = client.post(&format!("/{reader}/{name}"));
        let request = request.header("content-type", "application/json").body(document.to_vec());
        let response = request.send_blocking();
        (response.status().as_u16(), response.text())
    };
    let differing = TYPES.iter().filter_map(|(name, _)| {
        let (json, fast) = (read("json", name), read("fast", name));
        (json != fast).then(|| {
            format!("{} as {name}: {json:?} but {fast:?}", String::from_utf8_lossy(document))
        })
    });
    differing.collect()
}

/// Whether another crate of this build enables the feature `float_roundtrip` of `serde_json`. With
/// it, `Json` is exact to the last bit, and rejects numbers that overflow an `f32`.
fn json_is_exact() -> bool {
    serde_json::from_str::<f64>("9007199254740993.0").expect("a number") == 9_007_199_254_740_992.0
}

/// Numbers that overflow an `f32`.
const F32_OVERFLOWS: [&str; 3] = ["1.7976931348623157e308", "3.4028236e38", "1e39"];

/// Numbers, literals, lists, objects and strings, some of which are not valid JSON.
const DOCUMENTS: &[&str] = &[
    "-0",
    "-0.0",
    "0",
    "1e400",
    "-1e400",
    "1e-400",
    "5e-324",
    "0.1",
    "1.7976931348623159e308",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "340282366920938463463374607431768211455",
    "340282366920938463463374607431768211456",
    "-170141183460469231731687303715884105728",
    "1.0",
    "1e2",
    "1E+2",
    "01",
    "-01",
    "+1",
    ".5",
    "1.",
    "1.e5",
    "-",
    "1e",
    "0x10",
    "NaN",
    "Infinity",
    "nul",
    "null ",
    "nulll",
    "tru",
    "true",
    "false",
    "256",
    "-1",
    "300",
    "123456789012345678901234567890",
    "0.30000000000000004",
    "8.5",
    "9007199254740993",
    "[1,2]",
    "[1,2,3]",
    "[1,]",
    "[,1]",
    "[1 2]",
    "[]",
    "{}",
    "{,}",
    r#"{"a":1,"a":2}"#,
    r#"{"name":"x","name":"y"}"#,
    r#"{"a":1,}"#,
    r#"{"a" 1}"#,
    r#"{a:1}"#,
    r#"{"a":1} x"#,
    r#"{"a":1}{"#,
    "1 2",
    "1,",
    "[1]]",
    "\"a\"b",
    "\u{feff}1",
    r#""\ud800""#,
    r#""\udc00""#,
    r#""\ud800\udc00""#,
    r#""\ud800\u0041""#,
    r#""\ud800x""#,
    r#""\uD83D\uDE00""#,
    r#""\u0000""#,
    r#""\x""#,
    r#""\u12""#,
    r#""\u+123""#,
    "\"a\nb\"",
    "\"a\tb\"",
    "\"\u{7f}\"",
    "\"\u{0}\"",
    r#"{"\ud800":1}"#,
    r#"{"\u0061":1}"#,
    r#"{"1":true}"#,
    r#"{"+1":true}"#,
    r#"{"01":true}"#,
    r#"{" 1":true}"#,
    r#"{"1.0":true}"#,
    r#"{"-1":true}"#,
    r#"{"1e1":true}"#,
    r#"{"-0":true}"#,
    r#"{"true":1}"#,
    r#"{"TRUE":1}"#,
    r#"{"99999999999":true}"#,
    r#""A""#,
    r#"{"A":null}"#,
    r#"{"A":1}"#,
    r#"{"B":1}"#,
    r#"{"B":1,"C":2}"#,
    r#"{"B":1,"B":2}"#,
    r#"{"C":{"x":1}}"#,
    r#"{"C":[1]}"#,
    r#"{"C":{"x":1,"x":2}}"#,
    r#"{"D":[1,"a"]}"#,
    r#"{"D":[1,"a",2]}"#,
    r#"{"D":[1]}"#,
    r#""B""#,
    r#"[{"B":1},"A"]"#,
    r#"[{"B":1,"A":null}]"#,
    r#"{"t":"A","x":1}"#,
    r#"{"x":-0,"t":"A"}"#,
    r#"{"t":"B"}"#,
    r#"{"t":"B","t":"A"}"#,
    r#"["B"]"#,
    r#"["A",1]"#,
    r#"["x",1.5,2]"#,
    r#"["x",1.5,2,3]"#,
    r#"{"name":"x","size":-0,"eggs":1}"#,
    r#"{"name":"x","size":null,"eggs":-0}"#,
    r#"{"name":"x","other":[{"a":1e400}]}"#,
    r#"{"name":"x","other":"\ud800"}"#,
    r#"{"a":1,"b":{"a":2,"b":null}}"#,
    r#"{"a":1,"c":1}"#,
    r#"{"a":1,"b":-0}"#,
    r#"{"a":256}"#,
    "\"\"",
    "\"ab\"",
    "\"\u{1F600}\"",
    " \t\r\n1\t\r\n ",
    "1\u{a0}",
    "1\u{0c}",
    "1\0",
    "/**/1",
    "[-0, 0, -0.0]",
    "[[-0]]",
    "[1.0]",
];

/// Documents that are not UTF-8.
const INVALID_UTF8: [&[u8]; 9] = [
    b"\"\xff\"",
    b"\"\xc0\x80\"",
    b"\"\xed\xa0\x80\"",
    b"\"\xf4\x90\x80\x80\"",
    b"\"\xe2\x82\"",
    b"\xff",
    b"1\xff",
    b"{\"\xff\":1}",
    b"{\"name\":\"x\",\"y\":\"\xff\"}",
];

#[test]
fn both_extractors_read_the_same_values() {
    let client = client();
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let objects = |depth: usize| format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
    let mut documents: Vec<Vec<u8>> =
        DOCUMENTS.iter().map(|text| text.as_bytes().to_vec()).collect();
    for depth in [126, 127, 128, 129, 130, 1000] {
        documents.push(nested(depth).into_bytes());
        documents.push(objects(depth).into_bytes());
    }
    documents.extend(INVALID_UTF8.map(<[u8]>::to_vec));
    if !json_is_exact() {
        documents.extend(F32_OVERFLOWS.map(|text| text.as_bytes().to_vec()));
    }
    let found: Vec<_> =
        documents.iter().flat_map(|document| differences(&client, document)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The documented differences are the only ones. Which ones apply depends on [`json_is_exact`].
#[test]
fn the_extractors_differ_only_as_documented() {
    let client = client();
    for (document, json, fast) in [
        ("9007199254740993.0", "9007199254740994.0", "9007199254740992.0"),
        ("1.00000000000000011102230246251565", "1.0000000000000002", "1.0"),
    ] {
        let found = differences(&client, document.as_bytes());
        assert_eq!(found.is_empty(), json_is_exact(), "{document}: differs from the documentation");
        assert!(
            found.iter().all(|difference| difference.contains(json) && difference.contains(fast)),
            "{found:?}"
        );
    }
    for document in F32_OVERFLOWS {
        let found = differences(&client, document.as_bytes());
        assert_eq!(
            !found.is_empty(),
            json_is_exact(),
            "{document}: differs from the documentation"
        );
        assert!(
            found
                .iter()
                .all(|difference| difference.contains("as f32") && difference.contains("inf")),
            "{found:?}"
        );
    }
    let found = differences(&client, b"[1]");
    assert!(found.len() == 1 && found[0].contains("as tagged"), "{found:?}");
}

/// Fragments of valid and invalid documents.
const FRAGMENTS: [&str; 44] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\"\"",
    "\"a\"",
    "\"b\":",
    "\"name\":",
    "\"t\":",
    "\"A\"",
    "\"x\":",
    "\"eggs\":",
    "null",
    "true",
    "false",
    "0",
    "-0",
    "1",
    "-1",
    "255",
    "256",
    "1.5",
    "-2.5e3",
    "1e400",
    "18446744073709551616",
    "9223372036854775808",
    " ",
    "\n",
    "\\u0041",
    "\\ud83d\\ude00",
    "\\ud800",
    "\\udc00",
    "\\n",
    "\\q",
    "\u{0}",
    "\t",
    "\u{e9}",
    "\u{1f600}",
    "[[",
    "]]",
    "{\"a\":1}",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn both_extractors_read_documents_of_fragments_alike(
        fragments in prop::collection::vec(prop::sample::select(&FRAGMENTS[..]), 0..9),
        (index, byte) in (any::<prop::sample::Index>(), prop::option::of(any::<u8>())),
    ) {
        let mut document = fragments.concat().into_bytes();
        if let Some(byte) = byte.filter(|_| !document.is_empty()) {
            let index = index.index(document.len());
            document[index] = byte;
        }
        let found = differences(&client(), &document);
        let is_documented = |difference: &&String| difference.contains(" as tagged: ");
        let found: Vec<_> = found.iter().filter(|difference| !is_documented(difference)).collect();
        prop_assert!(found.is_empty(), "{:?}", found);
    }

    /// Valid documents, written by `serde_json`, with numbers of up to 15 digits.
    #[test]
    fn both_extractors_read_valid_documents_alike(
        numbers in prop::collection::vec(-999_999_999_999_i64..999_999_999_999, 0..20),
        texts in prop::collection::vec(any::<String>(), 0..6),
        scale in 0..4_i32,
    ) {
        let floats: Vec<_> =
            numbers.iter().map(|number| *number as f64 / 10_f64.powi(scale)).collect();
        let document = serde_json::json!({ "a": 1, "floats": floats, "numbers": numbers, "texts": texts });
        let found = differences(&client(), document.to_string().as_bytes());
        prop_assert!(found.is_empty(), "{:?}", found);
    }
}
