//! Tests of reading, and of error messages.

use super::ConfigLoader;
use crate::value::SourceLocation;
use crate::{ByteSize, HumanDuration, OptionalDuration};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Tree {
    count: u16,
    is_on: bool,
    names: Vec<String>,
    kind: Choice,
    limits: Limits,
    places: BTreeMap<String, Place>,
    ratio: f64,
    extra: Option<Limits>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Choice {
    #[default]
    Auto,
    ByHand,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Limits {
    #[serde(with = "HumanDuration")]
    idle_timeout: Duration,
    #[serde(with = "OptionalDuration")]
    age_max: Option<Duration>,
    #[serde(with = "ByteSize")]
    bytes_max: u16,
}

impl Default for Limits {
    fn default() -> Self {
        Self { idle_timeout: Duration::from_secs(75), age_max: None, bytes_max: 512 }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Place {
    address: String,
}

/// A file with this text, in a temporary directory.
fn temp_file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.toml");
    std::fs::write(&path, text).unwrap();
    (directory, path)
}

fn load(text: &str, variables: &[(&str, &str)]) -> Result<Tree, String> {
    let (_directory, path) = temp_file(text);
    let layers = ConfigLoader::new("APP_").file(&path).env_vars(variables.iter().copied());
    let path_text = format!("{}", path.display());
    layers.load(&Tree::default()).map_err(|error| error.to_string().replace(&path_text, "app.toml"))
}

#[test]
fn each_layer_overrides_the_previous_one() {
    let code = Tree {
        count: 1,
        is_on: true,
        limits: Limits { bytes_max: 64, ..Limits::default() },
        ..Tree::default()
    };
    let (_directory, path) =
        temp_file("count = 2\n[limits]\nidle_timeout = '2m'\n[places.main]\naddress = 'a'");
    let variables = [
        ("APP_LIMITS__AGE_MAX", "1h"),
        ("APP_COUNT", "3"),
        ("APP_PLACES__MAIN__ADDRESS", "b"),
        ("APP_NAMES", "one, two,,three"),
        ("APP_KIND", "by-hand"),
        ("APP_RATIO", "0.5"),
        ("OTHER_COUNT", "9"),
    ];
    let tree: Tree = ConfigLoader::new("APP_").file(path).env_vars(variables).load(&code).unwrap();
    let limits = Limits {
        idle_timeout: Duration::from_secs(120),
        age_max: Some(Duration::from_secs(3600)),
        bytes_max: 64,
    };
    let places = BTreeMap::from([("main".to_owned(), Place { address: "b".to_owned() })]);
    let names = ["one", "two", "three"].map(ToOwned::to_owned).to_vec();
    let kind = Choice::ByHand;
    let expected =
        Tree { count: 3, is_on: true, names, kind, limits, places, ratio: 0.5, extra: None };
    assert_eq!(tree, expected);
}

#[test]
fn errors_in_a_file_name_the_line_the_setting_and_the_expected_value() {
    for (text, expected) in [
        (
            "count = 1\n[limits]\n  idle_timout = '75s'",
            "app.toml:3:3: `limits.idle_timout`: there is no such setting; did you mean `idle_timeout`?",
        ),
        (
            "[limits]\nidle_timeout = 75",
            "app.toml:2:16: `limits.idle_timeout`: expected a duration with its unit, such as `75s`, `2m` or \
             `1h 30m`, found the number 75",
        ),
        (
            "[limits]\nidle_timeout = '75 parsec'",
            "app.toml:2:16: `limits.idle_timeout`: expected a duration with its unit, such as `75s`, `2m` or \
             `1h 30m`, found `75 parsec`",
        ),
        (
            "[limits]\nbytes_max = '64 KiB'",
            "app.toml:2:13: `limits.bytes_max`: expected a size in bytes, such as `64 KiB`, `2 MB` or `512`, in \
             the range of its limit, found `64 KiB`",
        ),
        (
            "count = 70000",
            "app.toml:1:9: `count`: expected a whole number from 0 to 65535, found the number 70000",
        ),
        (
            "count = -1",
            "app.toml:1:9: `count`: expected a whole number from 0 to 65535, found the number -1",
        ),
        (
            "count = '1'",
            "app.toml:1:9: `count`: expected a whole number from 0 to 65535, found `1`",
        ),
        ("is_on = 'yes'", "app.toml:1:9: `is_on`: expected `true` or `false`, found `yes`"),
        ("names = 'a'", "app.toml:1:9: `names`: expected a list, found `a`"),
        (
            "names = ['a', 1]",
            "app.toml:1:15: `names.1`: expected a text in quotes, found the number 1",
        ),
        (
            "kind = 'byhand'",
            "app.toml:1:8: `kind`: `byhand` is not a valid value; did you mean `by-hand`?",
        ),
        ("limits = 3", "app.toml:1:10: `limits`: expected a table, found the number 3"),
        (
            "[places.main]\nadress = ''",
            "app.toml:2:1: `places.main.adress`: there is no such setting; did you mean `address`?",
        ),
    ] {
        assert_eq!(load(text, &[]).unwrap_err(), expected);
    }
    for (text, prefix) in [
        ("count = 1\ncount = 2", "app.toml:2:1: invalid TOML: duplicate key"),
        ("count == 1", "app.toml:1:8: invalid TOML: "),
        ("[limits", "app.toml:1:"),
    ] {
        let error = load(text, &[]).unwrap_err();
        assert!(error.starts_with(prefix), "{error}");
    }
}

#[test]
fn errors_in_a_variable_name_the_variable() {
    for (name, text, expected) in [
        (
            "APP_LIMITS__IDEL_TIMEOUT",
            "75s",
            "the variable APP_LIMITS__IDEL_TIMEOUT: `limits.idel_timeout`: there is no such setting; did you mean \
             `idle_timeout`?",
        ),
        (
            "APP_COUNT",
            "many",
            "the variable APP_COUNT: `count`: expected a whole number from 0 to 65535, found `many`",
        ),
        (
            "APP_LIMITS__IDLE_TIMEOUT__X",
            "1",
            "the variable APP_LIMITS__IDLE_TIMEOUT__X: `limits.idle_timeout`: expected a duration with its unit, \
             such as `75s`, `2m` or `1h 30m`, found a table",
        ),
        (
            "APP___X",
            "1",
            "the variable APP___X: separate the parts of a setting's path with two underscores",
        ),
    ] {
        assert_eq!(load("", &[(name, text)]).unwrap_err(), expected);
    }
    // As set by Kubernetes for a service called `app`.
    let unrelated =
        [("APP_SERVICE_HOST", "10.0.0.1"), ("APP_PORT", "tcp://10.0.0.1:80"), ("APP_LIMITS", "x")];
    assert_eq!(load("", &unrelated).unwrap(), Tree::default());
}

#[test]
fn variables_match_settings_regardless_of_case_and_hyphens() {
    let tree =
        load("[places.Web-1]\naddress = 'a'", &[("APP_PLACES__WEB_1__ADDRESS", "b")]).unwrap();
    let place = Place { address: "b".to_owned() };
    assert_eq!(tree.places, BTreeMap::from([("Web-1".to_owned(), place)]));
}

#[test]
fn an_unreadable_file_is_named_in_the_error() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("none.toml");
    let error = ConfigLoader::new("APP_").file(&missing).load(&Tree::default()).unwrap_err();
    assert!(error.to_string().starts_with("cannot read "), "{error}");
    assert!(error.to_string().contains("none.toml"), "{error}");
    let (_directory, path) = temp_file(&"#\n".repeat(1 << 20));
    let error = ConfigLoader::new("APP_").file(&path).load(&Tree::default()).unwrap_err();
    assert!(error.to_string().ends_with("it is longer than 1 MiB"), "{error}");
    std::fs::write(&path, b"a = '\xff'").unwrap();
    let error = ConfigLoader::new("APP_").file(&path).load(&Tree::default()).unwrap_err();
    assert!(error.to_string().ends_with("it is not UTF-8"), "{error}");
}

#[test]
fn errors_have_a_location_and_a_key() {
    let (_directory, path) = temp_file("count = 'x'");
    let error = ConfigLoader::new("APP_").file(&path).load(&Tree::default()).unwrap_err();
    let expected = SourceLocation::File { path: path.into(), line: 1, column: 9 };
    assert_eq!((error.location(), &*error.key()), (Some(&expected), "count"));
}

fn limits() -> impl Strategy<Value = Limits> {
    let duration = || any::<Duration>();
    (duration(), proptest::option::of(duration()), any::<u16>())
        .prop_map(|(idle_timeout, age_max, bytes_max)| Limits { idle_timeout, age_max, bytes_max })
}

fn trees() -> impl Strategy<Value = Tree> {
    let place = "\\PC*".prop_map(|address| Place { address });
    let kind = prop_oneof![Just(Choice::Auto), Just(Choice::ByHand)];
    let names = proptest::collection::vec(any::<String>(), 0..4);
    let places = proptest::collection::btree_map(any::<String>(), place, 0..4);
    let extra = proptest::option::of(limits());
    let ratio = -1e9..1e9_f64;
    (any::<u16>(), any::<bool>(), names, kind, limits(), places, ratio, extra).prop_map(
        |(count, is_on, names, kind, limits, places, ratio, extra)| Tree {
            count,
            is_on,
            names,
            kind,
            limits,
            places,
            ratio,
            extra,
        },
    )
}

proptest! {
    #[test]
    fn printed_settings_parse_to_the_same_value(tree in trees()) {
        let text = crate::to_toml_string(&tree).unwrap();
        let value = super::parse_toml(&text, "app.toml".as_ref());
        let value = value.map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        let read: Tree = crate::de::from_value(&value)
            .map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        prop_assert_eq!(read, tree);
    }

    #[test]
    fn loading_any_text_does_not_panic(text in "[\\[\\]a-z0-9_ =.'\"#{},\n-]*", name in "[A-Z_]*", value in "\\PC*") {
        let _ = load(&text, &[(&format!("APP_{name}"), &value)]);
    }
}

#[test]
fn a_single_underscore_in_place_of_two_is_an_error() {
    for (name, suggestion) in [
        ("APP_LIMITS_IDLE_TIMEOUT", Some("APP_LIMITS__IDLE_TIMEOUT")),
        ("APP_LIMITS_IDEL_TIMEOUT", Some("APP_LIMITS__IDLE_TIMEOUT")),
        ("APP_limits_idle-timeout", Some("APP_LIMITS__IDLE_TIMEOUT")),
        ("APP_LIMITS_NOTHING_OF_THE_KIND", None),
        ("APP_IDLE_TIMEOUT", None),
        ("APP_SERVICE_HOST", None),
        ("APP_PORT_80_TCP_ADDR", None),
        ("APP_LIMITS", None),
        ("OTHER_LIMITS_IDLE_TIMEOUT", None),
    ] {
        let result = ConfigLoader::new("APP_").env_vars([(name, "75s")]).load(&Tree::default());
        match (result, suggestion) {
            (Ok(_), None) => {}
            (Err(error), Some(suggestion)) => {
                let text = error.to_string();
                assert!(
                    text.starts_with(&format!("the variable {name}: two underscores")),
                    "{text}"
                );
                assert!(text.ends_with(&format!("did you mean {suggestion}?")), "{text}");
            }
            (result, _) => panic!("{name}: {:?}", result.err().map(|error| error.to_string())),
        }
    }
}
