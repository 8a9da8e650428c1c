//! Tests that the configuration is complete, that its text reads back, and that sources combine.

use super::diff::{diff, summary};
use super::layering::layers;
use super::{ConfigError, ListenerConfig, ServerConfig, TlsSection};
use peregrine_config::{ValueKind, to_value};
use peregrine_driver::SocketOptions;
use peregrine_server::{Http1Limits, Http2Limits, Limits};
use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

/// A file with this text in a temporary folder.
fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("app.toml");
    std::fs::write(&path, text).expect("a new file");
    (folder, path)
}

fn read(text: &str, variables: &[(&str, &str)]) -> Result<ServerConfig, ConfigError> {
    let (_folder, path) = file(text);
    let layers = layers().file(path).env_vars(variables.iter().copied());
    ServerConfig::from_layers(ServerConfig::default(), layers)
}

/// A configuration with all optional parts present.
fn whole() -> ServerConfig {
    let mut config = ServerConfig::default();
    let listener = ListenerConfig {
        address: Some("127.0.0.1:0".to_owned()),
        https: true,
        tls: Some(TlsSection::default()),
        limits: Some(Limits::default()),
        trusted_proxies: Some(super::TrustedProxiesConfig::default()),
        ..ListenerConfig::default()
    };
    config.listeners.insert("main".to_owned(), listener);
    let certificate = super::CertificateConfig {
        certificate: "a.pem".to_owned(),
        key: "a.key".to_owned(),
        ocsp_response: None,
    };
    config.tls.certificates.insert("a".to_owned(), certificate);
    config
}

#[test]
fn every_limit_is_in_the_tree_as_people_write_it() {
    // `Limits` itself is part of the configuration, so none of its fields can be missing.
    let tree = to_value(&whole()).expect("it serializes");
    for (setting, value) in tree.leaves() {
        let name = setting.rsplit('.').next().expect("a name");
        assert!(
            name != "secs" && name != "nanos",
            "`{setting}` is a duration: add `serde(with = \"HumanDuration\")`, or `OptionalDuration`"
        );
        let is_size = name.contains("bytes") || name.contains("window");
        let is_number = matches!(value.kind, ValueKind::Integer(_));
        assert!(!(is_size && is_number), "`{setting}` is a size: add `serde(with = \"ByteSize\")`");
        assert!(value.kind != ValueKind::Nil, "`{setting}` is not printed when unset");
    }
    let of = |name: &str| tree.get("limits").and_then(|limits| limits.get(name));
    let shown = |name: &str| of(name).expect("a limit").to_string();
    assert_eq!(shown("idle_timeout"), "\"75s\"");
    assert_eq!(shown("exchange_timeout"), "\"off\"");
    assert_eq!(shown("head_bytes_max"), "\"32 KiB\"");
    assert_eq!(shown("connections_max"), "16384");
}

#[test]
fn what_is_printed_reads_back_as_the_same() {
    for config in [ServerConfig::default(), whole()] {
        let text = config.to_string();
        let again = read(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
        // The source of a configuration is not a setting.
        assert_eq!(again.to_string(), text);
        assert_eq!(diff(&config, &again).expect("both serialize"), []);
    }
}

#[test]
fn the_environment_is_stronger_than_the_file_and_that_than_the_program() {
    let (_folder, path) = file(
        "workers = 3\n[limits]\nidle_timeout = '2m'\nhead_timeout = '3s'\n[limits.http2]\nconcurrent_streams_max = 7\n\
         [limits.http1]\nhalf_close = true\n[sockets]\ntcp_keepalive = 'off'\n[listeners.web]\naddress = '127.0.0.1:0'\nlimits.head_timeout = '4s'\n",
    );
    let mut code = ServerConfig::default();
    code.limits.idle_timeout = Duration::from_secs(1);
    code.limits.fields_max = 55;
    let variables = [
        ("PEREGRINE_LIMITS__IDLE_TIMEOUT", "75s"),
        ("PEREGRINE_DRIVER", "tokio"),
        ("PEREGRINE_TRUSTED_PROXIES__NETWORKS", "10.0.0.0/8, unix:"),
        ("PEREGRINE_LISTENERS__WEB__PROXY_PROTOCOL__MODE", "required"),
        ("PEREGRINE_LIMITS__UPGRADED_IDLE_TIMEOUT", "off"),
        ("PEREGRINE_SOCKETS__TCP_USER_TIMEOUT", "200s"),
    ];
    let config = ServerConfig::from_layers(code, layers().file(path).env_vars(variables));
    let config = config.expect("valid config");
    let limits = Limits {
        idle_timeout: Duration::from_secs(75),
        head_timeout: Duration::from_secs(3),
        fields_max: 55,
        upgraded_idle_timeout: None,
        http1: Http1Limits { half_close: true },
        http2: Http2Limits { concurrent_streams_max: 7, ..Http2Limits::default() },
        ..Limits::default()
    };
    assert_eq!(config.limits, limits);
    assert_eq!(config.workers.map(NonZeroUsize::get), Some(3));
    let sockets = SocketOptions {
        tcp_keepalive: None,
        tcp_user_timeout: Some(Duration::from_secs(200)),
        ..SocketOptions::default()
    };
    assert_eq!(config.socket_options(), sockets);
    assert_eq!(config.driver.kind, super::DriverKind::Tokio);
    assert_eq!(config.trusted_proxies.networks, ["10.0.0.0/8", "unix:"]);
    let web = &config.listeners["web"];
    assert_eq!(web.proxy_protocol.mode, super::ProxyProtocolMode::Required);
    let own = Limits { head_timeout: Duration::from_secs(4), ..limits };
    assert_eq!(web.limits.as_ref(), Some(&own), "other limits are inherited");
}

#[test]
fn a_listener_that_names_certificates_has_none_of_the_server_s() {
    let text = "[tls]\ndefault_certificate = 'a'\ncheck_host = true\n\
                [tls.certificates.a]\ncertificate = 'a.pem'\nkey = 'a.key'\n\
                [listeners.l]\naddress = '127.0.0.1:0'\nhttps = true\n";
    let of_listener = |own: &str| {
        let config = read(&format!("{text}{own}"), &[]).expect("valid config");
        config.listeners["l"].tls.clone().expect("a `tls` section")
    };
    let own = "[listeners.l.tls.certificates.b]\ncertificate = 'b.pem'\nkey = 'b.key'\n";
    let tls = of_listener(own);
    assert_eq!(tls.certificates.keys().collect::<Vec<_>>(), ["b"]);
    assert_eq!((tls.default_certificate, tls.check_host), (None, true));
    let tls = of_listener("[listeners.l.tls]\ncheck_host = false\n");
    assert_eq!(tls.certificates.keys().collect::<Vec<_>>(), ["a"]);
    assert_eq!((tls.default_certificate.as_deref(), tls.check_host), (Some("a"), false));
}

#[test]
fn what_is_out_of_range_is_told_with_its_place() {
    let text = "[limits]\nfields_max = 0\n[listeners.a]\naddress = '127.0.0.1:0'\n";
    let error = read(text, &[]).expect_err("0 is out of range").to_string();
    assert!(error.contains("app.toml:2:14: `limits.fields_max`: 0 is out of range"), "{error}");
    let error = read("", &[("PEREGRINE_SOCKETS__BACKLOG", "0")]).expect_err("0 is out of range");
    let expected = "the variable PEREGRINE_SOCKETS__BACKLOG: `sockets.backlog`: 0 is out of range";
    assert!(error.to_string().starts_with(expected), "{error}");
    let mut code = ServerConfig::default();
    code.sockets.backlog = 0;
    let error =
        ServerConfig::from_layers(code, layers()).expect_err("0 is out of range").to_string();
    assert!(error.starts_with("`sockets.backlog`: 0 is out of range"), "{error}");
}

#[test]
fn what_is_secret_is_read_and_nowhere_shown() {
    let text = "[traces]\nenabled = true\n[traces.otlp.headers]\nauthorization = 'word-1'\n\
                [tls.acme.external_account_binding]\nkey_id = 'me'\nmac_key = 'word-2'\n";
    let variables = [("PEREGRINE_TRACES__OTLP__HEADERS__X_TENANT", "word-3")];
    let config = read(text, &variables).expect("valid config");
    let headers = &config.traces.otlp.headers;
    assert_eq!(headers["authorization"].expose_secret(), "word-1");
    assert_eq!(headers["x-tenant"].expose_secret(), "word-3", "underscores become hyphens");
    assert_eq!(config.tls.acme.external_account_binding.mac_key.expose_secret(), "word-2");
    let other = read(&text.replace("word-1", "word-4"), &variables).expect("valid config");
    let changed = diff(&config, &other).expect("both serialize");
    assert_eq!(changed.len(), 1, "a changed secret is detected");
    for shown in [config.to_string(), format!("{config:?}"), summary(&changed, &changed)] {
        assert!(!shown.contains("word-"), "{shown}");
    }
}

#[test]
fn a_listener_that_gets_certificates_by_acme_names_the_others_no_more() {
    let text = "[tls.certificates.a]\ncertificate = 'a.pem'\nkey = 'a.key'\n\
                [tls.acme]\nstate_dir = '/acme'\ncontacts = ['me@a.test']\n\
                [listeners.l]\naddress = '127.0.0.1:0'\nhttps = true\n";
    let of_listener = |own: &str| {
        let config = read(&format!("{text}{own}"), &[]).expect("valid config");
        config.listeners["l"].tls.clone().expect("a `tls` section")
    };
    let tls = of_listener("tls.acme.domains = ['b.test']\n");
    assert!(tls.certificates.is_empty());
    assert_eq!(
        (tls.acme.state_dir.as_deref(), &*tls.acme.domains),
        (Some("/acme"), &["b.test".to_owned()][..])
    );
    let tls =
        of_listener("[listeners.l.tls.certificates.b]\ncertificate = 'b.pem'\nkey = 'b.key'\n");
    assert_eq!(tls.certificates.len(), 1);
    assert_eq!(tls.acme, super::AcmeConfig::default());
}

#[test]
fn a_line_of_the_log_has_an_end() {
    let config = ServerConfig::default();
    let mut other = config.clone();
    for number in 0..50 {
        let address = Some("x".repeat(1000));
        let listener = ListenerConfig { address, ..ListenerConfig::default() };
        other.listeners.insert(number.to_string(), listener);
    }
    let line = summary(&[], &diff(&config, &other).expect("both serialize"));
    assert!(line.contains("more") && line.len() < 20_000, "{}", line.len());
}

#[cfg(feature = "schema")]
mod in_step {
    use super::super::{ServerConfig, schema, to_toml_string_with_comments};
    use super::whole;
    use serde_json::Value;
    use std::fs;
    use std::path::Path;

    fn schema_of_tree() -> Value {
        serde_json::from_str(&schema()).expect("valid JSON")
    }

    /// Resolves a `$ref`.
    fn followed<'s>(root: &'s Value, node: &'s Value) -> &'s Value {
        let parts = || node["anyOf"].as_array().into_iter().flatten();
        let reference =
            node["$ref"].as_str().or_else(|| parts().find_map(|part| part["$ref"].as_str()));
        let Some(name) = reference.and_then(|path| path.strip_prefix("#/$defs/")) else {
            return node;
        };
        &root["$defs"][name]
    }

    /// The description of a setting in the schema.
    fn comment(root: &Value, setting: &str) -> Option<String> {
        let (mut node, mut text) = (root, None);
        for name in setting.split('.') {
            let of = followed(root, node);
            let next = &of["properties"][name];
            if next.is_null() {
                // A key chosen by the user.
                node = &of["additionalProperties"];
                text = None;
            } else {
                node = next;
                text = next["description"].as_str();
            }
            assert!(node.is_object(), "the schema has no `{setting}`");
        }
        // Link targets of the documentation mean nothing in a configuration file.
        let lines = text?.lines().filter(|line| !line.starts_with('[')).collect::<Vec<_>>();
        Some(lines.join("\n").trim_end().to_owned())
    }

    /// Compares the text with the file, or writes the file if `PEREGRINE_WRITE` is set.
    fn is_in_step(name: &str, text: &str) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = folder.join(name);
        if std::env::var_os("PEREGRINE_WRITE").is_some() {
            fs::write(&path, text).expect("the folder exists");
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == text,
            "{name} is out of step with the code: run this test with PEREGRINE_WRITE=1"
        );
    }

    #[test]
    fn the_schema_is_in_step() {
        is_in_step("configuration.schema.json", &schema());
    }

    #[test]
    fn every_setting_has_a_comment_and_the_commented_file_is_in_step() {
        let root = schema_of_tree();
        let config = whole();
        for (setting, _) in peregrine_config::to_value(&config).expect("it can be printed").leaves()
        {
            let comment = comment(&root, &setting);
            assert!(comment.is_some_and(|text| !text.is_empty()), "`{setting}` has no comment");
        }
        let mut shown = config;
        let main = shown.listeners.get_mut("main").expect("it exists");
        (main.limits, main.tls, main.trusted_proxies) = (None, None, None);
        let text = to_toml_string_with_comments(&shown, &|setting| comment(&root, setting))
            .expect("it can be printed");
        let head = "# All settings with their defaults, and a listener and a certificate as examples.\n\
                    # Generated from the code by a test.\n\n";
        is_in_step("configuration.toml", &format!("{head}{text}"));
        let again: Result<ServerConfig, _> = super::read(&text, &[]);
        assert_eq!(again.expect("valid config").to_string(), shown.to_string());
    }

    #[test]
    fn the_schema_knows_no_other_settings() {
        let root = schema_of_tree();
        let all = root["$defs"].as_object().expect("definitions").values().chain([&root]);
        for part in all.filter(|part| part.get("properties").is_some()) {
            assert_eq!(part["additionalProperties"], Value::Bool(false), "{part}");
        }
    }
}
