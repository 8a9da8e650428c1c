//! Creates route tables and paths from arbitrary bytes and compares the router with the reference.

use crate::builder::RouterBuilder;
use crate::encoding::plain;
use crate::error::RouteError;
use crate::method_set::MethodSet;
use crate::parameters::{Parameters, Span, Values};
use crate::reference::ReferenceRouter;
use crate::router::{Router, TrailingSlash};

/// Derives routes and paths from the bytes, and compares the results of router and reference.
///
/// # Panics
///
/// If they differ, or if the router violates another rule.
pub fn fuzz_one(data: &[u8]) {
    let mut source = Source { data };
    let policies = [TrailingSlash::Strict, TrailingSlash::Redirect, TrailingSlash::Ignore];
    let policy = policies[source.below(3)];
    let mut routes = Vec::new();
    for id in 0..source.below(14) as u32 {
        let pattern = source.pattern();
        let bits = source.below(15) as u32 + 1;
        routes.push((pattern, MethodSet::from_bits(bits), id));
    }
    // Half of the tables have guarded routes: each of the first eight whose bit is set.
    let guarded = if source.below(2) == 0 { 0 } else { source.below(256) as u32 };
    let (router, routes) = build(routes, policy, guarded);
    let reference = ReferenceRouter::new(&routes, policy).guard(|id| has_bit(guarded, id));
    let accepted = source.below(256) as u32;
    for _ in 0..8 {
        let path = source.path();
        let method = source.below(5) as u8;
        compare(&router, &reference, &path, method);
        compare_where(&router, &reference, &path, method, accepted);
    }
    // Each pattern, used as a path, is similar to the paths that it matches.
    for (pattern, _, _) in &routes {
        compare(&router, &reference, pattern.as_bytes(), 0);
        let path = pattern.replace(['{', '}', '*'], "");
        compare(&router, &reference, path.as_bytes(), 1);
        compare_where(&router, &reference, path.as_bytes(), 1, accepted);
    }
}

fn has_bit(bits: u32, id: u32) -> bool {
    bits.checked_shr(id).is_some_and(|bits| bits & 1 == 1)
}

/// Builds a router of a single pattern, given as any text. Either the pattern is rejected with a
/// position inside the text, or, if it has no parameters, it matches itself and its plain form.
///
/// # Panics
///
/// If a rule is violated.
pub fn fuzz_pattern(text: &str) {
    let mut builder = RouterBuilder::new();
    builder.insert(text, MethodSet::single(0), 0);
    match builder.build() {
        Ok(router) => {
            let has_parameters = !router.names(0).is_empty();
            if !has_parameters {
                let path = text.replace("{{", "{").replace("}}", "}");
                for path in [path.as_bytes(), &plain(path.as_bytes())] {
                    assert!(
                        router.allowed_methods(path).contains(0),
                        "{text:?} does not match itself"
                    );
                }
            }
        }
        Err(error) => {
            let [RouteError::InvalidPattern { error, .. }] = &*error.errors else {
                panic!("expected a single pattern error: {error}");
            };
            assert!(text.is_char_boundary(error.position), "{error}");
        }
    }
}

/// Builds the router from the routes that are not duplicates, and returns both.
fn build(
    mut routes: Vec<(String, MethodSet, u32)>,
    policy: TrailingSlash,
    guarded: u32,
) -> (Router, Vec<(String, MethodSet, u32)>) {
    loop {
        let mut builder = RouterBuilder::new();
        builder.trailing_slash(policy);
        for (pattern, methods, id) in &routes {
            if has_bit(guarded, *id) {
                builder.insert_guarded(pattern, *methods, *id, "");
            } else {
                builder.insert(pattern, *methods, *id);
            }
        }
        let errors = match builder.build() {
            Ok(router) => return (router, routes),
            Err(error) => error.errors,
        };
        for error in errors {
            let RouteError::Duplicate { first, second, methods } = error else {
                panic!("unexpected error: {error}");
            };
            assert!(!methods.is_empty() && first.id < second.id);
            routes.retain(|(_, _, id)| *id != second.id);
        }
    }
}

/// Compares router and reference for one path and method.
///
/// # Panics
///
/// If they differ.
pub fn compare(router: &Router, reference: &ReferenceRouter, path: &[u8], method: u8) {
    let mut parameters = Parameters::default();
    let result = router.find(path, method, &mut parameters);
    let spans = spans(router.values(&parameters, path), path);
    let context = context(router, path, method);
    assert_eq!((result, spans), reference.find(path, method), "{context}");
    assert_eq!(router.allowed_methods(path), reference.methods(path), "{context}");
}

/// Compares router and reference, accepting the guarded routes whose bit is set in `accepted`.
fn compare_where(
    router: &Router,
    reference: &ReferenceRouter,
    path: &[u8],
    method: u8,
    accepted: u32,
) {
    let mut parameters = Parameters::default();
    let result = router.find_where(path, method, &mut parameters, |route, values| {
        assert!(route.is_guarded() && values.names() == route.names());
        assert_eq!(spans(values, path).len(), values.len());
        has_bit(accepted, route.id())
    });
    let spans = spans(router.values(&parameters, path), path);
    let expected = reference.find_where(path, method, |id| has_bit(accepted, id));
    let context = context(router, path, method);
    assert_eq!((result, spans), expected, "where {accepted:b}: {context}");
}

/// The bounds of all values.
fn spans(values: Values<'_, '_>, path: &[u8]) -> Vec<(usize, usize)> {
    let bounds = |index| {
        let Span { start, end } = values.span(index).expect("the index is below the length");
        assert_eq!(values.get(index), path.get(start as usize..end as usize));
        assert_eq!(values.by_name(&values.names()[index]), values.get(index));
        (start as usize, end as usize)
    };
    (0..values.len()).map(bounds).collect()
}

fn context(router: &Router, path: &[u8], method: u8) -> String {
    let routes: Vec<_> =
        router.routes().map(|route| (route.pattern(), route.id(), route.is_guarded())).collect();
    format!("{:?}, method {method}, of {routes:?}", String::from_utf8_lossy(path))
}

/// A source of choices, derived from bytes; all zero once the bytes are used up.
struct Source<'d> {
    data: &'d [u8],
}

/// Fixed text: few strings, so that routes collide, and one of every special length.
const TEXTS: &[&str] = &[
    "",
    "a",
    "b",
    "ab",
    "a",
    "b",
    "aa",
    "F",
    "2F",
    "%2F",
    "%25",
    "caf\u{e9}",
    "%61",
    ".",
    "..",
    "abcdefgh",
    "abcdefghi",
    "abcdefghijklmnop",
    "abcdefghijklmnopq",
    "abcdefghXjklmnopq",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "new",
    "~",
    "A",
];

/// Text that only occurs in paths.
const RAW_TEXTS: &[&str] = &[
    "%",
    "%2",
    "%6",
    "%2f",
    "%61b",
    "%41",
    "%C3%A9",
    "caf%C3%A9",
    "%FF",
    "%%61",
    "%2561",
    "\\",
    "\0",
    "a\0",
    "%62",
    "x",
    "yz",
    "%66",
    "{a}",
    "?",
];

impl Source<'_> {
    /// A number below `limit`, which is at most 256.
    fn below(&mut self, limit: usize) -> usize {
        let (first, rest) = self.data.split_first().unwrap_or((&0, &[]));
        self.data = rest;
        usize::from(*first) % limit
    }

    fn text(&mut self) -> &'static str {
        TEXTS[self.below(TEXTS.len())]
    }

    fn pattern(&mut self) -> String {
        let mut pattern = String::new();
        let count = self.below(5) + 1;
        for number in 0..count {
            pattern.push('/');
            let segment = match self.below(10) {
                0..4 => self.text().to_owned(),
                4..7 => format!("{{p{number}}}"),
                7 => format!("{}{{p{number}}}", self.text()),
                8 => format!("{}{{p{number}}}{}", self.text(), self.text()),
                _ if number + 1 == count => format!("{{*p{number}}}"),
                _ => format!("{{p{number}}}{}", self.text()),
            };
            pattern.push_str(&segment);
        }
        pattern
    }

    fn path(&mut self) -> Vec<u8> {
        let mut path = Vec::new();
        for _ in 0..self.below(7) {
            path.extend_from_slice(b"/");
            for _ in 0..self.below(3) + 1 {
                let text = match self.below(8) {
                    0 => RAW_TEXTS[self.below(RAW_TEXTS.len())],
                    _ => self.text(),
                };
                path.extend_from_slice(text.as_bytes());
            }
        }
        path
    }
}
