//! The rules of matching in a simple, slow form, for comparison with the router.
//!
//! The reference tries every route on every path, ranks the matches, and takes the best one that
//! has the method. It shares only the pattern parser with the router.

use crate::method_set::MethodSet;
use crate::pattern::{Pattern, SegmentPattern};
use crate::router::{Match, TrailingSlash};

/// A table of routes, matched by trying them all.
pub struct ReferenceRouter {
    routes: Vec<ReferenceRoute>,
    trailing_slash: TrailingSlash,
}

struct ReferenceRoute {
    pattern: Pattern,
    methods: MethodSet,
    id: u32,
    is_guarded: bool,
}

/// The result, and the bounds of the parameters' values in the path.
pub type ReferenceMatch = (Match, Vec<(usize, usize)>);

/// The ranks of a route's segments, from the left, and the bounds of its values.
type Matched = (Vec<Rank>, Vec<(usize, usize)>);

/// How one segment matched; smaller is better. The kind of part, then the inverse length of the
/// fixed text around its parameter, in total and before it.
type Rank = (u8, usize, usize);

impl ReferenceRouter {
    /// Creates a table of these routes, whose patterns must be valid.
    pub fn new(routes: &[(String, MethodSet, u32)], slash_policy: TrailingSlash) -> Self {
        let parse_route = |(text, methods, id): &(String, MethodSet, u32)| {
            let mut pattern = Pattern::parse(text).expect("the caller passes valid patterns");
            let has_trailing_slash =
                pattern.parts.last() == Some(&SegmentPattern::Static(Vec::new()));
            if slash_policy == TrailingSlash::Ignore
                && has_trailing_slash
                && pattern.parts.len() > 1
            {
                pattern.parts.pop();
            }
            ReferenceRoute { pattern, methods: *methods, id: *id, is_guarded: false }
        };
        Self { routes: routes.iter().map(parse_route).collect(), trailing_slash: slash_policy }
    }

    /// Marks the routes for whose ids `is_guarded` returns true as guarded.
    #[must_use]
    pub fn guard(mut self, is_guarded: impl Fn(u32) -> bool) -> Self {
        for route in &mut self.routes {
            route.is_guarded = is_guarded(route.id);
        }
        self
    }

    /// The expected result of [`Router::find`](crate::Router::find).
    pub fn find(&self, path: &[u8], method: u8) -> ReferenceMatch {
        self.find_where(path, method, |_| true)
    }

    /// The expected result of [`Router::find_where`](crate::Router::find_where) if `accept` accepts
    /// or rejects guarded routes by their ids.
    pub fn find_where(
        &self,
        path: &[u8],
        method: u8,
        accept: impl Fn(u32) -> bool,
    ) -> ReferenceMatch {
        let (result, values) = self.find_exact(path, method, &accept);
        if matches!(result, Match::Found { .. }) || self.trailing_slash != TrailingSlash::Redirect {
            return (result, values);
        }
        if path.starts_with(b"//") || path.starts_with(b"/\\") || !path.starts_with(b"/") {
            return (result, values);
        }
        let add_slash = !path.ends_with(b"/");
        let mut alternative = path.to_vec();
        if add_slash {
            alternative.push(b'/');
        } else {
            alternative.pop();
        }
        match self.find_exact(&alternative, method, &accept) {
            (Match::Found { .. }, _) => (Match::Redirect { add_slash }, Vec::new()),
            _ => (result, values),
        }
    }

    /// The expected result of [`Router::allowed_methods`](crate::Router::allowed_methods).
    pub fn methods(&self, path: &[u8]) -> MethodSet {
        let matching = self.routes.iter().filter(|route| self.match_route(route, path).is_some());
        matching.fold(MethodSet::NONE, |allow, route| allow.union(route.methods))
    }

    fn find_exact(&self, path: &[u8], method: u8, accept: &dyn Fn(u32) -> bool) -> ReferenceMatch {
        let mut matches: Vec<_> = self
            .routes
            .iter()
            .filter(|route| !route.is_guarded || accept(route.id))
            .filter_map(|route| Some((self.match_route(route, path)?, route)))
            .collect();
        matches.sort_by_key(|((ranks, _), route)| (ranks.clone(), !route.is_guarded));
        for ((_, values), route) in &matches {
            if route.methods.contains(method) {
                return (Match::Found { route: route.id }, values.clone());
            }
        }
        let allow =
            matches.iter().fold(MethodSet::NONE, |allow, (_, route)| allow.union(route.methods));
        let is_none = allow.is_empty();
        let result = if is_none { Match::NotFound } else { Match::MethodNotAllowed { allow } };
        (result, Vec::new())
    }

    /// How the route matches the path, if it does.
    fn match_route(&self, route: &ReferenceRoute, path: &[u8]) -> Option<Matched> {
        let mut segments = segments(path)?;
        let has_trailing_slash = segments.last().is_some_and(|(start, end)| start == end);
        if self.trailing_slash == TrailingSlash::Ignore && has_trailing_slash && segments.len() > 1
        {
            segments.pop();
        }
        let (mut ranks, mut values) = (Vec::new(), Vec::new());
        let mut segments = segments.into_iter();
        for part in &route.pattern.parts {
            let (start, end) = segments.next()?;
            let (rank, value) = match part {
                SegmentPattern::CatchAll if start < path.len() => {
                    ranks.push((3, 0, 0));
                    values.push((start, path.len()));
                    return Some((ranks, values));
                }
                SegmentPattern::CatchAll => return None,
                SegmentPattern::Static(text) => {
                    if join(&characters(path, start, end)) != *text {
                        return None;
                    }
                    ((0, 0, 0), None)
                }
                SegmentPattern::Affixed { prefix, suffix } => {
                    let value = bounds_between(&characters(path, start, end), prefix, suffix)?;
                    let fixed = prefix.len() + suffix.len();
                    ((1, usize::MAX - fixed, usize::MAX - prefix.len()), Some(value))
                }
                SegmentPattern::Parameter if start < end => ((2, 0, 0), Some((start, end))),
                SegmentPattern::Parameter => return None,
            };
            ranks.push(rank);
            values.extend(value);
        }
        if segments.next().is_some() { None } else { Some((ranks, values)) }
    }
}

/// The bounds of the segments of a path that begins with a slash.
fn segments(path: &[u8]) -> Option<Vec<(usize, usize)>> {
    let mut start = 1;
    let mut bounds = Vec::new();
    for segment in path.strip_prefix(b"/")?.split(|byte| *byte == b'/') {
        bounds.push((start, start + segment.len()));
        start += segment.len() + 1;
    }
    Some(bounds)
}

/// A character of a segment: its plain form, and its bounds in the path.
type Character = (Vec<u8>, (usize, usize));

/// The characters of a segment. An escape is one character.
fn characters(path: &[u8], start: usize, end: usize) -> Vec<Character> {
    let mut result = Vec::new();
    let mut at = start;
    while at < end {
        let digits = path[at + 1..end]
            .get(..2)
            .and_then(|digits_text| std::str::from_utf8(digits_text).ok());
        let value = digits
            .filter(|digits_text| digits_text.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits_text| u8::from_str_radix(digits_text, 16).ok());
        let (plain, length) = match (path[at], value) {
            (b'%', Some(b'/')) => (b"%2F".to_vec(), 3),
            (b'%', Some(b'%')) => (b"%25".to_vec(), 3),
            (b'%', Some(byte)) => (vec![byte], 3),
            (b'%', None) => (b"%25".to_vec(), 1),
            (byte, _) => (vec![byte], 1),
        };
        result.push((plain, (at, at + length)));
        at += length;
    }
    result
}

fn join(characters: &[Character]) -> Vec<u8> {
    characters.iter().flat_map(|(plain, _)| plain.clone()).collect()
}

/// The bounds of at least one character between a prefix and a suffix.
fn bounds_between(
    characters: &[Character],
    prefix: &[u8],
    suffix: &[u8],
) -> Option<(usize, usize)> {
    let count = characters.len();
    let start = (0..=count).find(|start| join(&characters[..*start]) == prefix)?;
    let end = (start + 1..=count).find(|end| join(&characters[*end..]) == suffix)?;
    Some((characters[start].1.0, characters[end - 1].1.1))
}
