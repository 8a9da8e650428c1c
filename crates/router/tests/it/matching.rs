//! The router's rules, as tables, and random comparison with the reference.

use peregrine_router::{
    Match, MethodSet, PARAMETERS_MAX, Parameters, RouteError, Router, RouterBuilder, TrailingSlash,
    decode, fuzz,
};
use proptest::prelude::*;

const GET: u8 = 0;
const POST: u8 = 1;
const PUT: u8 = 2;

/// A router of GET routes, numbered from 0.
fn router_of_gets(policy: TrailingSlash, patterns: &[&str]) -> Router {
    let routes: Vec<_> = patterns.iter().map(|pattern| (*pattern, GET)).collect();
    router_with_methods(policy, &routes)
}

fn router_with_methods(policy: TrailingSlash, routes: &[(&str, u8)]) -> Router {
    let mut builder = RouterBuilder::new();
    builder.trailing_slash(policy);
    for (id, (pattern, method)) in routes.iter().enumerate() {
        builder.insert(pattern, MethodSet::single(*method), id as u32);
    }
    builder.build().unwrap_or_else(|error| panic!("{error}"))
}

/// The pattern that a GET of `path` finds, and its values.
fn find<'r>(router: &'r Router, path: &str) -> Option<(&'r str, Vec<String>)> {
    let mut parameters = Parameters::default();
    let Match::Found { route } = router.find(path.as_bytes(), GET, &mut parameters) else {
        return None;
    };
    let values = router.values(&parameters, path.as_bytes());
    let text = |(_, value): (&str, &[u8])| String::from_utf8_lossy(value).into_owned();
    let pattern = router.pattern(route).expect("the route was inserted");
    Some((pattern, values.iter().map(text).collect()))
}

/// A pattern and the values of its parameters, or nothing.
type Expected<'a> = Option<(&'a str, &'a [&'a str])>;

/// Checks that each path finds its pattern and values, for the patterns in order and reversed.
#[track_caller]
fn check(patterns: &[&str], table: &[(&str, Expected)]) {
    let reversed: Vec<&str> = patterns.iter().rev().copied().collect();
    for patterns in [patterns, &reversed] {
        let router = router_of_gets(TrailingSlash::Strict, patterns);
        for (path, expected) in table {
            let expected = expected
                .map(|(pattern, values)| (pattern, values.iter().map(|v| (*v).into()).collect()));
            assert_eq!(find(&router, path), expected, "{path}");
        }
    }
}

#[test]
fn static_paths_match_only_themselves() {
    check(
        &["/", "/users", "/users/", "/a//b", "/%7Bx%7D", "/api/v1/health-of-all-the-systems"],
        &[
            ("/", Some(("/", &[]))),
            ("/users", Some(("/users", &[]))),
            ("/users/", Some(("/users/", &[]))),
            ("/a//b", Some(("/a//b", &[]))),
            ("/a/b", None),
            ("/{x}", Some(("/%7Bx%7D", &[]))),
            ("/api/v1/health-of-all-the-systems", Some(("/api/v1/health-of-all-the-systems", &[]))),
            ("//", None),
            ("/user", None),
            ("/userss", None),
            ("", None),
            ("*", None),
            ("users", None),
        ],
    );
}

#[test]
fn a_parameter_matches_one_nonempty_segment() {
    check(
        &["/users/{id}", "/users/{id}/posts/{post}"],
        &[
            ("/users/42", Some(("/users/{id}", &["42"]))),
            ("/users/42/posts/x.y", Some(("/users/{id}/posts/{post}", &["42", "x.y"]))),
            ("/users/", None),
            ("/users", None),
            ("/users//posts/1", None),
            ("/users/42/", None),
            ("/users/42/posts", None),
        ],
    );
}

#[test]
fn affixed_parameters_with_the_longest_fixed_text_match_first() {
    check(
        &["/{a}.json", "/{a}.tar.json", "/v{n}", "/v{n}.json", "/ab{n}", "/a{n}b", "/{all}"],
        &[
            ("/x.json", Some(("/{a}.json", &["x"]))),
            ("/x.tar.json", Some(("/{a}.tar.json", &["x"]))),
            ("/v1", Some(("/v{n}", &["1"]))),
            ("/v1.json", Some(("/v{n}.json", &["1"]))),
            ("/v.json", Some(("/{a}.json", &["v"]))),
            ("/.json", Some(("/{all}", &[".json"]))),
            ("/v", Some(("/{all}", &["v"]))),
            // Both have two bytes of fixed text; the longer text before the parameter wins.
            ("/abxb", Some(("/ab{n}", &["xb"]))),
            ("/axb", Some(("/a{n}b", &["x"]))),
            ("/ab", Some(("/{all}", &["ab"]))),
        ],
    );
}

#[test]
fn a_catch_all_matches_the_rest_unless_it_is_empty() {
    check(
        &["/files/{*path}", "/files/a/{x}"],
        &[
            ("/files/a", Some(("/files/{*path}", &["a"]))),
            ("/files/a/b", Some(("/files/a/{x}", &["b"]))),
            ("/files/a/b/", Some(("/files/{*path}", &["a/b/"]))),
            ("/files//", Some(("/files/{*path}", &["/"]))),
            ("/files//x", Some(("/files/{*path}", &["/x"]))),
            ("/files/", None),
            ("/files", None),
        ],
    );
    check(&["/{*all}"], &[("/", None), ("/x", Some(("/{*all}", &["x"])))]);
}

#[test]
fn the_first_differing_segment_decides_precedence() {
    check(
        &["/{a}/b/{c}", "/x/{b}/{c}", "/x/{*rest}", "/x/b/d", "/x{a}/b/c", "/{*rest}"],
        &[
            ("/x/b/d", Some(("/x/b/d", &[]))),
            ("/x/b/c", Some(("/x/{b}/{c}", &["b", "c"]))),
            ("/y/b/c", Some(("/{a}/b/{c}", &["y", "c"]))),
            ("/xy/b/c", Some(("/x{a}/b/c", &["y"]))),
            ("/x/b/c/d", Some(("/x/{*rest}", &["b/c/d"]))),
            ("/xy/b/d", Some(("/{a}/b/{c}", &["xy", "d"]))),
            ("/xy/c", Some(("/{*rest}", &["xy/c"]))),
        ],
    );
}

#[test]
fn matching_backtracks_from_dead_ends() {
    check(
        &["/users/new", "/users/{id}", "/users/new/{x}/end", "/users/{id}/{y}/{*rest}"],
        &[
            ("/users/news", Some(("/users/{id}", &["news"]))),
            ("/users/ne", Some(("/users/{id}", &["ne"]))),
            ("/users/new/1/end", Some(("/users/new/{x}/end", &["1"]))),
            ("/users/new/1/ends", Some(("/users/{id}/{y}/{*rest}", &["new", "1", "ends"]))),
            ("/users/new/1/end/x", Some(("/users/{id}/{y}/{*rest}", &["new", "1", "end/x"]))),
            ("/users/new/1", None),
        ],
    );
}

#[test]
fn parameters_at_one_position_may_have_different_names() {
    let router = router_with_methods(
        TrailingSlash::Strict,
        &[("/users/{id}", GET), ("/users/{name}", POST), ("/users/{key}/x", GET)],
    );
    let path = b"/users/7";
    for (method, name) in [(GET, "id"), (POST, "name")] {
        let mut parameters = Parameters::default();
        let Match::Found { route } = router.find(path, method, &mut parameters) else {
            panic!("method {method} is found");
        };
        assert_eq!(&*router.names(route)[0], name);
        let values = router.values(&parameters, path);
        assert_eq!(values.by_name(name), Some(&b"7"[..]));
        assert_eq!(values.by_name("key"), None);
        assert_eq!(router.parameter_index(route, name), Some(0));
    }
    assert_eq!(find(&router, "/users/7/x"), Some(("/users/{key}/x", vec!["7".into()])));
}

#[test]
fn patterns_without_the_method_are_skipped_and_added_to_allow() {
    let router = router_with_methods(
        TrailingSlash::Strict,
        &[("/users/new", POST), ("/users/{id}", GET), ("/{*rest}", PUT), ("/only", POST)],
    );
    let mut parameters = Parameters::default();
    let two_methods = |left, right| MethodSet::single(left).union(MethodSet::single(right));
    let all_methods = two_methods(GET, POST).union(MethodSet::single(PUT));
    for (path, method, expected) in [
        ("/users/new", GET, Match::Found { route: 1 }),
        ("/users/new", POST, Match::Found { route: 0 }),
        ("/users/new", PUT, Match::Found { route: 2 }),
        ("/users/new", 5, Match::MethodNotAllowed { allow: all_methods }),
        ("/users/7", POST, Match::MethodNotAllowed { allow: two_methods(GET, PUT) }),
        ("/only", GET, Match::MethodNotAllowed { allow: two_methods(POST, PUT) }),
        ("/only", 200, Match::MethodNotAllowed { allow: two_methods(POST, PUT) }),
        ("/", GET, Match::NotFound),
    ] {
        assert_eq!(router.find(path.as_bytes(), method, &mut parameters), expected, "{path}");
    }
    assert_eq!(router.allowed_methods(b"/users/new"), all_methods);
    assert_eq!(router.allowed_methods(b"/"), MethodSet::NONE);
}

#[test]
fn an_escaped_slash_never_splits_a_segment() {
    check(
        &["/a/{x}", "/a/{x}/{y}", "/b/c", "/p%2Fq", "/v{x}.json"],
        &[
            ("/a/1%2F2", Some(("/a/{x}", &["1%2F2"]))),
            ("/a/1%2f2/3", Some(("/a/{x}/{y}", &["1%2f2", "3"]))),
            ("/b%2Fc", None),
            ("/p%2fq", Some(("/p%2Fq", &[]))),
            ("/p/q", None),
            ("/v%2F.json", Some(("/v{x}.json", &["%2F"]))),
        ],
    );
    assert_eq!(decode(b"1%2F2").unwrap(), "1/2");
}

#[test]
fn fixed_text_matches_percent_encoded_paths() {
    check(
        &["/caf\u{e9}", "/new", "/{id}", "/x/@{user}.json", "/100%25", "/a b/{c}"],
        &[
            ("/caf%C3%A9", Some(("/caf\u{e9}", &[]))),
            ("/caf%c3%a9", Some(("/caf\u{e9}", &[]))),
            ("/caf\u{e9}", Some(("/caf\u{e9}", &[]))),
            ("/n%65w", Some(("/new", &[]))),
            ("/%6Eews", Some(("/{id}", &["%6Eews"]))),
            ("/x/%40me%20too%2Ejson", Some(("/x/@{user}.json", &["me%20too"]))),
            ("/100%25", Some(("/100%25", &[]))),
            ("/100%", Some(("/100%25", &[]))),
            ("/a%20b/%20", Some(("/a b/{c}", &["%20"]))),
            // The path is decoded only once, to `n%65w`.
            ("/n%2565w", Some(("/{id}", &["n%2565w"]))),
        ],
    );
}

#[test]
fn dots_are_ordinary_text_and_matching_is_case_sensitive() {
    check(
        &["/a/b", "/a/..", "/{x}/{y}/b"],
        &[
            ("/a/./b", Some(("/{x}/{y}/b", &["a", "."]))),
            ("/a/..", Some(("/a/..", &[]))),
            ("/c/../a/b", None),
            ("/A/b", None),
            ("/a/B", None),
        ],
    );
}

#[test]
fn literal_braces_are_doubled() {
    check(
        &["/{{x}}", "/{{{x}}}/a"],
        &[("/{x}", Some(("/{{x}}", &[]))), ("/{7}/a", Some(("/{{{x}}}/a", &["7"])))],
    );
}

#[test]
fn paths_of_every_length_match_equally() {
    let router = router_of_gets(TrailingSlash::Strict, &["/{a}/mid/v{b}.x/{*rest}", "/s/{a}"]);
    for length in 1..300 {
        let (a, rest) = ("y".repeat(length), "z/".repeat(length));
        for path in [format!("/{a}/mid/v1.x/{rest}"), format!("/{a}/mid/v1.x/r")] {
            let rest = path.rsplit_once(".x/").unwrap().1.to_owned();
            let expected = ("/{a}/mid/v{b}.x/{*rest}", vec![a.clone(), "1".into(), rest]);
            assert_eq!(find(&router, &path), Some(expected));
        }
        assert_eq!(find(&router, &format!("/s/{a}")), Some(("/s/{a}", vec![a.clone()])));
        assert_eq!(find(&router, &format!("/{a}/mid/w1.x/r")), None);
    }
    let long = format!("/{}/end", "s".repeat(255));
    assert_eq!(
        find(&router_of_gets(TrailingSlash::Strict, &[&long]), &long),
        Some((&*long, vec![]))
    );
}

#[test]
fn a_route_may_have_32_parameters() {
    let pattern = |count| (0..count).map(|n| format!("/{{p{n}}}")).collect::<String>();
    let router = router_of_gets(TrailingSlash::Strict, &[&pattern(PARAMETERS_MAX)]);
    let path: String = (0..PARAMETERS_MAX).map(|n| format!("/{n}")).collect();
    let expected: Vec<String> = (0..PARAMETERS_MAX).map(|n| n.to_string()).collect();
    assert_eq!(find(&router, &path).unwrap().1, expected);
    let mut builder = RouterBuilder::new();
    builder.insert(&pattern(PARAMETERS_MAX + 1), MethodSet::single(GET), 0);
    assert!(builder.build().unwrap_err().to_string().contains("at most 32 parameters"));
}

#[test]
fn trailing_slashes_follow_the_policy() {
    let patterns = ["/", "/a", "/b/", "/c/{x}", "/d/{x}/", "/f/{*rest}"];
    let redirect = |add_slash| Match::Redirect { add_slash };
    let found = |route| Match::Found { route };
    let none = Match::NotFound;
    for (path, expected) in [
        ("/", [found(0), found(0), found(0)]),
        ("/a", [found(1), found(1), found(1)]),
        ("/a/", [none, redirect(false), found(1)]),
        ("/a//", [none, none, none]),
        ("/b", [none, redirect(true), found(2)]),
        ("/b/", [found(2), found(2), found(2)]),
        ("/c/1/", [none, redirect(false), found(3)]),
        ("/c/%41/", [none, redirect(false), found(3)]),
        ("/c/", [none, none, none]),
        ("/d/1", [none, redirect(true), found(4)]),
        ("/d/1/", [found(4), found(4), found(4)]),
        ("/f/1/", [found(5), found(5), found(5)]),
        ("/f/", [none, none, none]),
        ("//", [none, none, found(0)]),
    ] {
        let policies = [TrailingSlash::Strict, TrailingSlash::Redirect, TrailingSlash::Ignore];
        for (policy, expected) in policies.into_iter().zip(expected) {
            let router = router_of_gets(policy, &patterns);
            let mut parameters = Parameters::default();
            let result = router.find(path.as_bytes(), GET, &mut parameters);
            assert_eq!(result, expected, "{path} {policy:?}");
        }
    }
    let ignoring_router = router_of_gets(TrailingSlash::Ignore, &patterns);
    assert_eq!(find(&ignoring_router, "/c/1/"), Some(("/c/{x}", vec!["1".into()])));
    assert_eq!(find(&ignoring_router, "/f/1/"), Some(("/f/{*rest}", vec!["1/".into()])));
}

#[test]
fn redirects_require_the_method_and_never_name_another_host() {
    let router = router_with_methods(
        TrailingSlash::Redirect,
        &[("/a", POST), ("/b/", GET), ("/b", POST), ("/{x}/{y}", GET), ("//h", GET)],
    );
    let mut parameters = Parameters::default();
    for (path, method, expected) in [
        ("/a/", POST, Match::Redirect { add_slash: false }),
        ("/a/", GET, Match::NotFound),
        ("/b", GET, Match::Redirect { add_slash: true }),
        ("/b", PUT, Match::MethodNotAllowed { allow: MethodSet::single(POST) }),
        ("//h/", GET, Match::NotFound),
        ("/\\h/z/", GET, Match::NotFound),
    ] {
        assert_eq!(router.find(path.as_bytes(), method, &mut parameters), expected, "{path}");
        assert!(router.values(&parameters, path.as_bytes()).is_empty());
    }
}

#[test]
fn all_errors_of_a_table_are_reported_at_once() {
    let mut builder = RouterBuilder::new();
    let get_and_post = MethodSet::single(GET).union(MethodSet::single(POST));
    builder
        .insert_labelled("/a/{x}", get_and_post, 0, "main.rs:1")
        .insert_labelled("/a/{y}", MethodSet::single(POST), 1, "main.rs:2")
        .insert("/caf\u{e9}", MethodSet::single(GET), 2)
        .insert("/caf%C3%A9", MethodSet::single(GET), 3)
        .insert("/bad/{", MethodSet::single(GET), 4)
        .insert("/none", MethodSet::NONE, 5)
        .insert("/again", MethodSet::single(GET), 5)
        .insert("/v{a}-x", MethodSet::single(GET), 7)
        .insert("/v{b}-x", MethodSet::single(GET), 8)
        .insert("/large", MethodSet::single(GET), u32::MAX);
    let error = builder.build().unwrap_err();
    let descriptions: Vec<String> = error
        .errors
        .iter()
        .map(|error_entry| match error_entry {
            RouteError::InvalidPattern { route, error } => {
                format!("pattern {} {}", route.id, error.position)
            }
            RouteError::Duplicate { first, second, methods } => {
                format!("duplicate {} {} {methods:?}", first.id, second.id)
            }
            RouteError::DuplicateId { first, second } => {
                format!("twice {} {}", first.pattern, second.pattern)
            }
            RouteError::IdTooLarge { route } => format!("large {}", route.pattern),
            RouteError::NoMethods { route } => format!("no methods {}", route.pattern),
        })
        .collect();
    assert_eq!(
        descriptions,
        [
            "duplicate 0 1 {1}",
            "duplicate 2 3 {0}",
            "pattern 4 5",
            "no methods /none",
            "twice /none /again",
            "duplicate 7 8 {0}",
            "large /large",
        ]
    );
    let text = error.to_string();
    assert!(text.contains("route 0 `/a/{x}` (main.rs:1) and route 1 `/a/{y}` (main.rs:2)"));
}

#[test]
fn patterns_that_differ_in_a_trailing_slash_conflict_only_if_ignored() {
    for (policy, is_valid) in [
        (TrailingSlash::Strict, true),
        (TrailingSlash::Redirect, true),
        (TrailingSlash::Ignore, false),
    ] {
        let mut builder = RouterBuilder::new();
        builder.trailing_slash(policy);
        builder.insert("/a", MethodSet::single(GET), 0).insert("/a/", MethodSet::single(GET), 1);
        assert_eq!(builder.build().is_ok(), is_valid, "{policy:?}");
    }
}

#[test]
fn the_router_lists_its_routes() {
    let mut builder = RouterBuilder::new();
    builder.insert_labelled("/a/{x}/{*y}", MethodSet::single(GET), 9, "here").insert(
        "/b",
        MethodSet::single(POST),
        4,
    );
    let router = builder.build().unwrap();
    let table: Vec<_> = router
        .routes()
        .map(|route| (route.id(), route.pattern(), route.methods().bits(), route.label()))
        .collect();
    assert_eq!(table, [(9, "/a/{x}/{*y}", 1, "here"), (4, "/b", 2, "")]);
    assert_eq!(router.names(9), ["x".into(), "y".into()]);
    assert_eq!(router.pattern(5), None);
    assert!(router.names(5).is_empty());
}

#[test]
fn an_empty_router_finds_nothing() {
    let router = RouterBuilder::new().build().unwrap();
    for path in ["/", "/a", "", "/%41", &"/a".repeat(100)] {
        assert_eq!(find(&router, path), None);
        assert_eq!(router.allowed_methods(path.as_bytes()), MethodSet::NONE);
    }
}

#[test]
fn a_node_may_have_hundreds_of_children() {
    let patterns: Vec<String> = (0..700).map(|n| format!("/r{n}/{{x}}")).collect();
    let texts: Vec<&str> = patterns.iter().map(String::as_str).collect();
    let router = router_of_gets(TrailingSlash::Strict, &texts);
    for (n, text) in texts.iter().enumerate() {
        let expected = (*text, vec![n.to_string()]);
        assert_eq!(find(&router, &format!("/r{n}/{n}")), Some(expected.clone()));
        assert_eq!(find(&router, &format!("/%72{n}/{n}")), Some(expected));
    }
    assert_eq!(find(&router, "/r700/1"), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..<_>::default() })]

    #[test]
    fn router_and_reference_agree(data in proptest::collection::vec(any::<u8>(), 0..220)) {
        fuzz::fuzz_one(&data);
    }

    #[test]
    fn arbitrary_patterns_parse_or_fail_with_a_position(text in "/?[{}*/a:%\u{e9}2Fx.]{0,12}") {
        fuzz::fuzz_pattern(&text);
    }
}
