//! Recipes are read whole, and a bad one says where it is bad and how to mend it.

use std::fs;
use std::path::Path;

use peregrine_lab_contender::{Places, Recipe, all, select};
use tempfile::TempDir;

fn contenders(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("contender.toml"), text).unwrap();
    }
    folder
}

fn names(recipes: &[&Recipe]) -> Vec<String> {
    recipes.iter().map(|recipe| recipe.name.clone()).collect()
}

#[test]
fn who_serves_some_scenarios_alone_lacks_all_others() {
    let text = "name = 'one'\nrun = ['a']\nprotocols = ['h2c']\nserves = ['b', 'c']\nlacks = { c = 'why' }";
    let folder = contenders(&[("one", text)]);
    let recipe = Recipe::load(&folder.path().join("one")).unwrap();
    let lacks = |scenario| recipe.lacks(scenario, false, true);
    assert_eq!(lacks("a").as_deref(), Some("it serves b, c alone"));
    assert_eq!((lacks("b"), lacks("c").as_deref()), (None, Some("why")));
    let other = recipe.lacks("b", false, false);
    assert_eq!(other.as_deref(), Some("it does not speak HTTP/1.1"));
}

#[test]
fn every_key_is_understood() {
    let text = "
        name = 'second'
        class = 'tuned'
        build = ['go', 'build', '-o', '{target}/second']
        run = ['../bin/second', '--port={port}', '{folder}/{unknown}', '{{workers}}', '{echo_port}', '{target}']
        folder = '../first'
        package = 'github.com/a/b/v3'
        rust = '1.88'
        needs = [{ command = ['go', 'version'], reason = 'Go is missing' }]
        unobtainable = 'it is not published'
        allocator = 'jemalloc'
        tls = false
        lacks = { upload = 'it reads no bodies' }
        environment = { PORT = '1', LISTEN = '127.0.0.1:{tls_port}', CERT = '{tls_cert}' }";
    let folder = contenders(&[("first", "name = 'first'\nrun = ['a']"), ("second", text)]);
    for name in ["go.mod", "go.sum", "Cargo.lock"] {
        fs::write(folder.path().join("first").join(name), "").unwrap();
    }
    let root = fs::canonicalize(folder.path()).unwrap();
    let recipe = Recipe::load(&folder.path().join("second")).unwrap();
    assert_eq!(recipe.class.word(), "tuned");
    assert_eq!(
        (recipe.folder.clone(), recipe.home.clone()),
        (root.join("first"), root.join("second"))
    );
    assert_eq!(recipe.lock, Some(root.join("first/go.sum")));
    assert_eq!(recipe.needs[0].reason, "Go is missing");
    assert_eq!(recipe.allocator, "jemalloc");
    assert_eq!(recipe.lacks("upload", false, false).as_deref(), Some("it reads no bodies"));
    assert_eq!(recipe.lacks("json", false, false), None);
    assert!(recipe.serves.is_empty());
    assert_eq!(recipe.lacks("json", true, false).as_deref(), Some("it cannot serve HTTPS"));
    let places = Places {
        port: 80,
        tls_port: 443,
        tls_cert: "cert.pem".to_owned(),
        workers: 2,
        echo_port: 7007,
        target: "built".into(),
        ..Places::default()
    };
    let command = recipe.command(&places);
    let here = std::env::current_dir().unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let words = [
        path(&root.join("first/../bin/second")),
        "--port=80".to_owned(),
        path(&root.join("second/{unknown}")),
        "{2}".to_owned(),
        "7007".to_owned(),
        path(&here.join("built")),
    ];
    assert_eq!(command.words, words);
    assert_eq!(command.folder, root.join("first"));
    assert_eq!(command.environment["PORT"], "80");
    assert_eq!(command.environment["LISTEN"], "127.0.0.1:443");
    assert_eq!(command.environment["CERT"], path(&here.join("cert.pem")));
    assert_eq!(command.environment["TLS_CERT"], command.environment["CERT"]);
    assert_eq!(command.environment["TLS_KEY"], "");
    assert_eq!(command.environment["ECHO_PORT"], "7007");
}

#[test]
fn a_recipe_of_two_keys_has_the_defaults() {
    let folder = contenders(&[("first", "name = 'first'\nrun = ['nginx']")]);
    let recipe = Recipe::load(&folder.path().join("first")).unwrap();
    assert_eq!((recipe.class.word(), recipe.allocator.as_str()), ("stock", "system"));
    assert!(recipe.is_tls_able && recipe.build.is_empty() && recipe.lock.is_none());
    assert_eq!(recipe.command(&Places::default()).words, ["nginx"]);
}

#[test]
fn a_bad_recipe_names_file_key_cause_and_fix() {
    let whole = "name = 'mine'\nrun = ['a']\n";
    let cases: &[(&str, &[&str])] = &[
        ("name = 'mine'\nrum = ['a']", &["key `rum`", "no such key", "write `run`"]),
        ("name = 'mine'\ncolour = 1", &["key `colour`", "use one of name, class"]),
        ("run = ['a']", &["key `name`", "missing"]),
        ("name = 'mine'", &["key `run`", "missing"]),
        ("name = 'other'\nrun = ['a']", &["key `name`", "write name = \"mine\""]),
        ("name = 'mine'\nrun = []", &["key `run`", "empty"]),
        ("name = 'mine'\nrun = ''", &["line 2", "key `run`", "string"]),
        ("name = 'mine'\nrun = ['a'", &["line 2", "README.md"]),
        (&[whole, "class = 'fast'"].concat(), &["line 3", "key `class`", "`stock`"]),
        (&[whole, "folder = 'gone'"].concat(), &["key `folder`", "mine/gone is no folder"]),
        (&[whole, "rust = 'new'"].concat(), &["key `rust`", "\"1.88\""]),
        (&[whole, "needs = [{ command = ['a'] }]"].concat(), &["line 3", "`needs`", "reason"]),
        (&[whole, "needs = [{ command = [], reason = 'b' }]"].concat(), &["needs.command"]),
        (&[whole, "unobtainable = 'x'"].concat(), &["key `unobtainable`", "add a command"]),
        (&[whole, "package = 'x'\nversion = ['y']"].concat(), &["key `version`", "leave one out"]),
    ];
    for (text, expected) in cases {
        let folder = contenders(&[("good", "name = 'good'\nrun = ['a']"), ("mine", text)]);
        let error = all(folder.path()).unwrap_err().to_string();
        assert!(error.contains("mine/contender.toml"), "{error}");
        assert!(expected.iter().all(|part| error.contains(part)), "{text}: {error}");
    }
    let gone = all(Path::new("no-such-folder")).unwrap_err().to_string();
    assert!(gone.contains("no-such-folder") && gone.contains("cannot be read"), "{gone}");
}

#[test]
fn two_recipes_may_share_a_program_but_not_build_it_in_two_ways() {
    let text = |name: &str, more: &str| {
        format!(
            "name = '{name}'\nrun = ['{{target}}/a']\nfolder = '../one'\nbuild = ['make'{more}]"
        )
    };
    let shared = contenders(&[("one", &text("one", "")), ("two", &text("two", ""))]);
    assert_eq!(all(shared.path()).unwrap().len(), 2);
    let apart = contenders(&[("one", &text("one", "")), ("two", &text("two", ", 'fast'"))]);
    let error = all(apart.path()).unwrap_err().to_string();
    assert!(error.contains("two/contender.toml, key `run`: one builds"), "{error}");
}

#[test]
fn a_recipe_can_come_from_the_command_line() {
    let recipe = Recipe::parse("mine=./server --port {port}").unwrap();
    let here = std::env::current_dir().unwrap();
    let command = recipe.command(&Places { port: 8080, ..Places::default() });
    assert_eq!(command.words[1..], ["--port", "8080"]);
    assert_eq!(Path::new(&command.words[0]), here.join("./server"));
    assert_eq!(command.folder, here);
    for text in ["", "name", "name=", "=command", "name=  ", "../a=b", "a/b=c"] {
        assert!(Recipe::parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn contenders_are_found_by_name_and_unknown_ones_have_near_ones() {
    let text = |name: &str| format!("name = '{name}'\nrun = ['a']");
    let files = ["tako", "axum", "peregrine-tokio", "peregrine"].map(|name| (name, text(name)));
    let files: Vec<(&str, &str)> =
        files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let folder = contenders(&files);
    fs::create_dir(folder.path().join("no-contender")).unwrap();
    let recipes = all(folder.path()).unwrap();
    let wanted = |wanted: &[&str]| {
        let wanted: Vec<String> = wanted.iter().map(|&name| name.to_owned()).collect();
        select(&recipes, &wanted)
    };
    let every = ["axum", "peregrine", "peregrine-tokio", "tako"];
    assert_eq!(names(&wanted(&[]).unwrap()), every);
    assert_eq!(names(&wanted(&["all"]).unwrap()), every);
    assert_eq!(names(&wanted(&["tako", "axum", "tako"]).unwrap()), ["tako", "axum"]);
    let error = wanted(&["axum", "axun"]).unwrap_err();
    assert_eq!(error.near, ["axum"]);
    let error = wanted(&["perigrine"]).unwrap_err();
    assert!(error.to_string().contains("did you mean peregrine"), "{error}");
    let error = wanted(&["nginx"]).unwrap_err().to_string();
    assert!(error.ends_with("there are axum, peregrine, peregrine-tokio, tako"), "{error}");
}

#[test]
fn variants_are_asked_only_where_they_are_named() {
    let text = "name = 'one'\nrun = ['a']\n[environment]\nA = '1'\nB = '2'\n\
                [variants.with-b]\nB = '3'\n[variants.plain]\n";
    let folder = contenders(&[("one", text), ("two", "name = 'two'\nrun = ['a']")]);
    let recipes = all(folder.path()).unwrap();
    let named = |names: &[&str]| {
        let wanted: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        select(&recipes, &wanted).unwrap()
    };
    assert_eq!(names(&named(&[])), ["one", "two"]);
    assert_eq!(names(&named(&["all", "one-plain"])), ["one", "two", "one-plain"]);
    let variant = named(&["one-with-b"])[0];
    let environment = variant.command(&Places::default()).environment;
    assert_eq!((environment["A"].as_str(), environment["B"].as_str()), ("1", "3"));
    assert_eq!(named(&["one"])[0].command(&Places::default()).environment["B"], "2");

    let taken = "name = 'one-plain'\nrun = ['a']";
    let folder = contenders(&[("one", text), ("one-plain", taken)]);
    let error = all(folder.path()).unwrap_err().to_string();
    assert!(error.contains("another contender is called \"one-plain\""), "{error}");
    let strange = "name = 'one'\nrun = ['a']\n[variants.'a b']\n";
    let error = all(contenders(&[("one", strange)]).path()).unwrap_err().to_string();
    assert!(error.contains("\"one-a b\" cannot name files"), "{error}");
}

#[test]
fn the_contenders_of_this_repository_have_good_recipes() {
    let recipes = all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../contenders")).unwrap();
    assert!(recipes.iter().any(|recipe| recipe.name == "hyper"));
}
