//! Five route tables and that of a larger service, with requests for them.

use crate::service::ROUTES;

/// GET, POST, PUT and DELETE.
pub(crate) const METHODS: u8 = 4;
/// The number of requests in a random order.
pub(crate) const RANDOM_REQUESTS: usize = 16_384;

/// A route: a pattern, the index of its method, and the names of its parameters.
pub(crate) struct Route {
    pub(crate) pattern: String,
    pub(crate) method: u8,
    pub(crate) names: Vec<String>,
}

/// A lookup to make.
pub(crate) struct Request {
    pub(crate) method: u8,
    pub(crate) path: String,
}

/// A table, and named lists of requests on it.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) routes: Vec<Route>,
    pub(crate) cases: Vec<Case>,
}

/// Requests that are repeated in order.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) requests: Vec<Request>,
    /// Whether every request matches a route; otherwise none does.
    pub(crate) hits: bool,
}

/// All tables.
pub(crate) fn all() -> Vec<Table> {
    vec![fixed(), parameters(), mixed(), catch_all(), large(), service()]
}

fn route(method: u8, pattern: &str) -> Route {
    let names = pattern.split(['{', '}']).skip(1).step_by(2);
    let names = names.map(|name| name.trim_start_matches('*').to_owned()).collect();
    Route { pattern: pattern.to_owned(), method, names }
}

fn gets(patterns: &[&str]) -> Vec<Route> {
    patterns.iter().map(|pattern| route(0, pattern)).collect()
}

fn get(path: &str) -> Request {
    Request { method: 0, path: path.to_owned() }
}

/// One constant path, or a few in turn.
fn hot(name: &str, paths: &[&str]) -> Case {
    let requests = paths.iter().map(|path| get(path)).collect();
    Case { name: format!("{name} hot"), requests, hits: true }
}

/// Random requests in random order, identical in each run.
fn random(name: &str, mut request: impl FnMut(&mut Random) -> Request) -> Case {
    let mut source = Random { state: 0x5EED };
    let requests = (0..RANDOM_REQUESTS).map(|_| request(&mut source)).collect();
    Case { name: format!("{name} random"), requests, hits: true }
}

fn fixed() -> Table {
    let paths = ["/", "/users", "/api/v1/repos", "/api/v1/health", "/api/v2/status"];
    let mut cases: Vec<Case> = paths.iter().map(|path| hot(path, &[path])).collect();
    cases.push(random("static", |source| get(source.one_of(&paths))));
    Table { name: "static", routes: gets(&paths), cases }
}

fn parameters() -> Table {
    let patterns = [
        "/users/{id}",
        "/users/{id}/posts/{post}",
        "/a/{x}/b/{y}/c/{z}",
        "/w/{one}/x/{two}/y/{three}/z/{four}",
    ];
    let hot_paths =
        ["/users/42", "/users/42/posts/7", "/a/1/b/2/c/3", "/w/alpha/x/beta/y/gamma/z/delta"];
    let mut cases = Vec::new();
    for (count, (pattern, path)) in patterns.iter().zip(hot_paths).enumerate() {
        let name = format!("{} parameters", count + 1);
        cases.push(hot(&name, &[path]));
        cases.push(random(&name, |source| get(&source.fill(pattern))));
    }
    Table { name: "parameters", routes: gets(&patterns), cases }
}

fn mixed() -> Table {
    let patterns = [
        "/",
        "/users",
        "/api/v1/health",
        "/users/{id}",
        "/users/{id}/posts/{post}",
        "/files/{*path}",
    ];
    let paths = [
        "/",
        "/users/42",
        "/api/v1/health",
        "/files/static/images/logo.png",
        "/users",
        "/users/42/posts/7",
    ];
    let cases = vec![
        hot("mixed in turn", &paths),
        random("mixed", |source| {
            let pattern = source.one_of(&patterns);
            get(&source.fill(pattern))
        }),
    ];
    Table { name: "mixed", routes: gets(&patterns), cases }
}

fn catch_all() -> Table {
    let pattern = "/files/{*filepath}";
    let cases = vec![
        hot("catch-all", &["/files/static/images/logo.png"]),
        random("catch-all", |source| get(&source.fill(pattern))),
    ];
    Table { name: "catch-all", routes: gets(&[pattern]), cases }
}

/// 5 versions of 10 resources, each a collection and an item, with 4 methods: 400 routes.
fn large() -> Table {
    let resources = [
        "users",
        "projects",
        "orders",
        "invoices",
        "products",
        "customers",
        "events",
        "sessions",
        "reports",
        "teams",
    ];
    let mut routes = Vec::new();
    for version in 1..=5 {
        for resource in resources {
            for method in 0..METHODS {
                routes.push(route(method, &format!("/api/v{version}/{resource}")));
                routes.push(route(method, &format!("/api/v{version}/{resource}/{{id}}")));
            }
        }
    }
    let pick = |source: &mut Random, end: &str| {
        let version = source.below(5) + 1;
        let resource = source.one_of(&resources);
        let path = source.fill(&format!("/api/v{version}/{resource}{end}"));
        Request { method: source.below(METHODS.into()) as u8, path }
    };
    let mut cases = vec![
        hot("400 static", &["/api/v3/products"]),
        random("400 static", |source| pick(source, "")),
        hot("400 parameter", &["/api/v3/products/12345"]),
        random("400 parameter", |source| pick(source, "/{id}")),
        random("400 mixed", |source| {
            let end = source.one_of(&["", "/{id}"]);
            pick(source, end)
        }),
        hot("400 miss", &["/api/v9/unknown/path"]),
        random("400 miss", |source| {
            let ends = ["s", "/{id}/more", "/"];
            let end = source.one_of(&ends);
            pick(source, end)
        }),
    ];
    for case in cases.iter_mut().filter(|case| case.name.contains("miss")) {
        case.hits = false;
    }
    Table { name: "400 routes", routes, cases }
}

fn service() -> Table {
    let mut routes = Vec::new();
    for line in ROUTES.lines() {
        let (letters, pattern) = line.split_once(' ').expect("methods, a space, and a path");
        let method = |letter| "GPUD".find(letter).expect("a letter of a method") as u8;
        routes.extend(letters.chars().map(|letter| route(method(letter), pattern)));
    }
    let cases = vec![
        hot("130 static", &["/account/followers"]),
        hot("130 one parameter", &["/users/falconer/projects"]),
        hot("130 three parameters", &["/projects/falconer/peregrine/tickets/1347/comments"]),
        random("130 routes", |source| {
            let route = &routes[source.below(routes.len() as u64) as usize];
            Request { method: route.method, path: source.fill(&route.pattern) }
        }),
    ];
    Table { name: "130 routes", routes, cases }
}

/// A small pseudo-random generator (xorshift), so that every run makes the same requests.
pub(crate) struct Random {
    state: u64,
}

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 16) % limit
    }

    fn one_of<'a>(&mut self, items: &[&'a str]) -> &'a str {
        items[self.below(items.len() as u64) as usize]
    }

    /// The pattern with random values in place of its parameters.
    fn fill(&mut self, pattern: &str) -> String {
        let mut path = String::new();
        for (at, piece) in pattern.split(['{', '}']).enumerate() {
            match (at % 2, piece.starts_with('*')) {
                (0, _) => path.push_str(piece),
                (_, false) => path.push_str(&self.below(1_000_000).to_string()),
                (_, true) => {
                    for _ in 0..self.below(3) {
                        path.push_str(self.one_of(&["static/", "images/", "a/", "deeper/"]));
                    }
                    path.push_str(&format!("file{}.png", self.below(10_000)));
                }
            }
        }
        path
    }
}
