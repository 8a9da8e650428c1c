//! The measured routers behind a common interface.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use peregrine_router::{Match, MethodSet, Parameters, RouterBuilder};

use crate::tables::{METHODS, Request, Route};

/// A router that finds the number of a route, and the values of its parameters by name.
pub(crate) trait Contender {
    /// The number of the route.
    fn find(&self, method: u8, path: &str) -> Option<u32>;
    /// The number of the route, and the total length of its values; each value is read by its name.
    fn read(&self, method: u8, path: &str) -> Option<(u32, usize)>;

    /// The time to find all requests `rounds` times. The loop is compiled into each router, which
    /// avoids indirect calls.
    fn time_find(&self, requests: &[Request], rounds: u64) -> Duration {
        time(requests, rounds, |method, path| {
            black_box(self.find(method, path));
        })
    }

    /// The time to find all requests and read their values `rounds` times.
    fn time_read(&self, requests: &[Request], rounds: u64) -> Duration {
        time(requests, rounds, |method, path| {
            black_box(self.read(method, path));
        })
    }
}

#[inline(always)]
fn time(requests: &[Request], rounds: u64, mut lookup: impl FnMut(u8, &str)) -> Duration {
    let start = Instant::now();
    for _ in 0..rounds {
        for request in requests {
            lookup(black_box(request.method), black_box(&request.path));
        }
    }
    start.elapsed()
}

/// The route number for each method, for routers without methods.
type ByMethod = [Option<u32>; METHODS as usize];

/// The distinct patterns, and their routes by method.
fn group_by_pattern(routes: &[Route]) -> Vec<(&Route, ByMethod)> {
    let mut groups: Vec<(&Route, ByMethod)> = Vec::new();
    for (id, route) in routes.iter().enumerate() {
        let at = groups.iter().position(|(other, _)| other.pattern == route.pattern);
        let at = at.unwrap_or_else(|| {
            groups.push((route, [None; METHODS as usize]));
            groups.len() - 1
        });
        groups[at].1[route.method as usize] = Some(id as u32);
    }
    groups
}

fn names(routes: &[Route]) -> Vec<Vec<String>> {
    routes.iter().map(|route| route.names.clone()).collect()
}

pub(crate) struct Peregrine {
    router: peregrine_router::Router,
    names: Vec<Vec<String>>,
}

impl Peregrine {
    pub(crate) fn new(routes: &[Route]) -> Self {
        let mut builder = RouterBuilder::new();
        for (id, route) in routes.iter().enumerate() {
            builder.insert(&route.pattern, MethodSet::single(route.method), id as u32);
        }
        Self { router: builder.build().expect("the table is valid"), names: names(routes) }
    }
}

impl Contender for Peregrine {
    fn find(&self, method: u8, path: &str) -> Option<u32> {
        match self.router.find(path.as_bytes(), method, &mut Parameters::default()) {
            Match::Found { route } => Some(route),
            _ => None,
        }
    }

    fn read(&self, method: u8, path: &str) -> Option<(u32, usize)> {
        let mut parameters = Parameters::default();
        let path = path.as_bytes();
        let Match::Found { route } = self.router.find(path, method, &mut parameters) else {
            return None;
        };
        let values = self.router.values(&parameters, path);
        let names = self.names[route as usize].iter();
        Some((route, names.map(|name| values.by_name(name).map_or(0, <[u8]>::len)).sum()))
    }
}

pub(crate) struct Matchit {
    router: matchit::Router<ByMethod>,
    names: Vec<Vec<String>>,
}

impl Matchit {
    pub(crate) fn new(routes: &[Route]) -> Self {
        let mut router = matchit::Router::new();
        for (route, ids) in group_by_pattern(routes) {
            router.insert(&*route.pattern, ids).expect("the table is valid");
        }
        Self { router, names: names(routes) }
    }
}

impl Contender for Matchit {
    fn find(&self, method: u8, path: &str) -> Option<u32> {
        self.router.at(path).ok()?.value[method as usize]
    }

    fn read(&self, method: u8, path: &str) -> Option<(u32, usize)> {
        let matched = self.router.at(path).ok()?;
        let route = matched.value[method as usize]?;
        let names = self.names[route as usize].iter();
        Some((route, names.map(|name| matched.params.get(name).map_or(0, str::len)).sum()))
    }
}

pub(crate) struct Wayfind {
    router: wayfind::Router<ByMethod>,
    names: Vec<Vec<String>>,
}

impl Wayfind {
    pub(crate) fn new(routes: &[Route]) -> Self {
        let mut builder = wayfind::RouterBuilder::new();
        for (route, ids) in group_by_pattern(routes) {
            let template = route.pattern.replace('{', "<").replace('}', ">");
            builder.insert(&template, ids).expect("the table is valid");
        }
        Self { router: builder.build(), names: names(routes) }
    }
}

impl Contender for Wayfind {
    fn find(&self, method: u8, path: &str) -> Option<u32> {
        self.router.search(path)?.data()[method as usize]
    }

    fn read(&self, method: u8, path: &str) -> Option<(u32, usize)> {
        let matched = self.router.search(path)?;
        let route = matched.data()[method as usize]?;
        let value = |name: &String| matched.parameters().iter().find(|(other, _)| other == name);
        let names = self.names[route as usize].iter();
        Some((route, names.map(|name| value(name).map_or(0, |(_, value)| value.len())).sum()))
    }
}

/// A trie of segments, with a hash map at each node.
pub(crate) struct Trie {
    root: TrieNode,
    names: Vec<Vec<String>>,
}

#[derive(Default)]
struct TrieNode {
    fixed: HashMap<String, TrieNode>,
    parameter: Option<Box<TrieNode>>,
    rest: Option<ByMethod>,
    routes: ByMethod,
}

impl Trie {
    pub(crate) fn new(routes: &[Route]) -> Self {
        let mut root = TrieNode::default();
        for (id, route) in routes.iter().enumerate() {
            let mut node = &mut root;
            let mut slot = None;
            for segment in route.pattern[1..].split('/') {
                if segment.starts_with("{*") {
                    slot = Some(node.rest.get_or_insert_default());
                    break;
                }
                node = if segment.starts_with('{') {
                    node.parameter.get_or_insert_default()
                } else {
                    node.fixed.entry(segment.to_owned()).or_default()
                };
            }
            slot.unwrap_or(&mut node.routes)[route.method as usize] = Some(id as u32);
        }
        Self { root, names: names(routes) }
    }

    fn walk<'p>(&self, method: u8, path: &'p str, values: &mut Vec<&'p str>) -> Option<u32> {
        fn step<'p>(
            node: &TrieNode,
            remaining: Option<&'p str>,
            method: usize,
            values: &mut Vec<&'p str>,
        ) -> Option<u32> {
            let Some(remaining) = remaining else { return node.routes[method] };
            let (segment, next) = match remaining.split_once('/') {
                Some((segment, next)) => (segment, Some(next)),
                None => (remaining, None),
            };
            let found = node.fixed.get(segment).and_then(|node| step(node, next, method, values));
            if found.is_some() {
                return found;
            }
            if let Some(child) = node.parameter.as_ref().filter(|_| !segment.is_empty()) {
                values.push(segment);
                let found = step(child, next, method, values);
                if found.is_some() {
                    return found;
                }
                values.pop();
            }
            let rest = node.rest.as_ref().filter(|_| !remaining.is_empty())?[method];
            values.extend(rest.map(|_| remaining));
            rest
        }
        step(&self.root, path.strip_prefix('/'), method.into(), values)
    }
}

impl Contender for Trie {
    fn find(&self, method: u8, path: &str) -> Option<u32> {
        self.walk(method, path, &mut Vec::new())
    }

    fn read(&self, method: u8, path: &str) -> Option<(u32, usize)> {
        let mut values = Vec::new();
        let route = self.walk(method, path, &mut values)?;
        Some((route, read_by_names(&self.names[route as usize], &values)))
    }
}

/// Looks up each name in the list of names, as users of routers that return a list of values do.
fn read_by_names(names: &[String], values: &[&str]) -> usize {
    let value = |name: &String| names.iter().position(|other| other == name);
    names.iter().map(|name| value(name).map_or(0, |index| values[index].len())).sum()
}

/// Tries one pattern after the other.
pub(crate) struct Linear {
    routes: Vec<(u8, Vec<String>, u32)>,
    names: Vec<Vec<String>>,
}

impl Linear {
    pub(crate) fn new(routes: &[Route]) -> Self {
        let split_route = |(id, route): (usize, &Route)| {
            let segments = route.pattern[1..].split('/').map(str::to_owned).collect();
            (route.method, segments, id as u32)
        };
        Self { routes: routes.iter().enumerate().map(split_route).collect(), names: names(routes) }
    }

    fn scan<'p>(&self, method: u8, path: &'p str, values: &mut Vec<&'p str>) -> Option<u32> {
        for (route_method, pattern, id) in &self.routes {
            values.clear();
            if *route_method == method && match_pattern(pattern, &path[1..], values) {
                return Some(*id);
            }
        }
        None
    }
}

fn match_pattern<'p>(pattern: &[String], path: &'p str, values: &mut Vec<&'p str>) -> bool {
    let mut remaining = Some(path);
    for part in pattern {
        let Some(text) = remaining else { return false };
        if part.starts_with("{*") {
            values.push(text);
            return !text.is_empty();
        }
        let (segment, next) = match text.split_once('/') {
            Some((segment, next)) => (segment, Some(next)),
            None => (text, None),
        };
        if part.starts_with('{') && !segment.is_empty() {
            values.push(segment);
        } else if part != segment {
            return false;
        }
        remaining = next;
    }
    remaining.is_none()
}

impl Contender for Linear {
    fn find(&self, method: u8, path: &str) -> Option<u32> {
        self.scan(method, path, &mut Vec::new())
    }

    fn read(&self, method: u8, path: &str) -> Option<(u32, usize)> {
        let mut values = Vec::new();
        let route = self.scan(method, path, &mut values)?;
        Some((route, read_by_names(&self.names[route as usize], &values)))
    }
}

/// A map of the static paths, then a scan of the rest.
pub(crate) struct Map {
    fixed: HashMap<String, ByMethod>,
    scanned: Linear,
}

impl Map {
    pub(crate) fn new(routes: &[Route]) -> Self {
        let fixed =
            group_by_pattern(routes).into_iter().filter(|(route, _)| route.names.is_empty());
        let fixed = fixed.map(|(route, ids)| (route.pattern.clone(), ids)).collect();
        let mut scanned = Linear::new(routes);
        scanned.routes.retain(|(_, _, id)| !routes[*id as usize].names.is_empty());
        Self { fixed, scanned }
    }
}

impl Contender for Map {
    fn find(&self, method: u8, path: &str) -> Option<u32> {
        let fixed = self.fixed.get(path).and_then(|ids| ids[method as usize]);
        fixed.or_else(|| self.scanned.find(method, path))
    }

    fn read(&self, method: u8, path: &str) -> Option<(u32, usize)> {
        let fixed = self.fixed.get(path).and_then(|ids| ids[method as usize]);
        fixed.map(|id| (id, 0)).or_else(|| self.scanned.read(method, path))
    }
}

/// One regular expression per route, tried in turn.
pub(crate) struct Regexes {
    routes: Vec<(u8, regex::Regex, u32)>,
    names: Vec<Vec<String>>,
}

impl Regexes {
    pub(crate) fn new(routes: &[Route]) -> Self {
        let compile = |(id, route): (usize, &Route)| {
            let mut text = String::from("^");
            for (at, piece) in route.pattern.split(['{', '}']).enumerate() {
                match (at % 2, piece.strip_prefix('*')) {
                    (0, _) => text.push_str(&regex::escape(piece)),
                    (_, Some(name)) => text.push_str(&format!("(?P<{name}>.+)")),
                    (_, None) => text.push_str(&format!("(?P<{piece}>[^/]+)")),
                }
            }
            let pattern = regex::Regex::new(&(text + "$")).expect("the pieces are escaped");
            (route.method, pattern, id as u32)
        };
        Self { routes: routes.iter().enumerate().map(compile).collect(), names: names(routes) }
    }
}

impl Contender for Regexes {
    fn find(&self, method: u8, path: &str) -> Option<u32> {
        let mut routes = self.routes.iter();
        let route = routes
            .find(|(route_method, pattern, _)| *route_method == method && pattern.is_match(path));
        route.map(|(_, _, id)| *id)
    }

    fn read(&self, method: u8, path: &str) -> Option<(u32, usize)> {
        let mut routes = self.routes.iter().filter(|(route_method, _, _)| *route_method == method);
        let (captures, id) =
            routes.find_map(|(_, pattern, id)| Some((pattern.captures(path)?, *id)))?;
        let names = self.names[id as usize].iter();
        Some((id, names.map(|name| captures.name(name).map_or(0, |value| value.len())).sum()))
    }
}
