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
    /// Whether every request matches a route. If not, none does.
    pub(crate) hits: bool,
}

/// All tables.
pub(crate) fn all() -> Vec<Table> {
    vec![
        static_table(),
        parameters_table(),
        mixed_table(),
        catch_all_table(),
        large_table(),
        service_table(),
    ]
}

fn route(method: u8, pattern: &str) -> Route {
    let names = pattern.split(['{', '}']).skip(1).step_by(2);
    let names = names.map(|name| name.trim_start_matches('*').to_owned()).collect();
    Route { pattern: pattern.to_owned(), method, names }
}

fn get_routes(patterns: &[&str]) -> Vec<Route> {
    patterns.iter().map(|pattern| route(0, pattern)).collect()
}

fn get_request(path: &str) -> Request {
    Request { method: 0, path: path.to_owned() }
}

/// One constant path, or a few in turn.
fn hot_case(name: &str, paths: &[&str]) -> Case {
    let requests = paths.iter().map(|path| get_request(path)).collect();
    Case { name: format!("{name} hot"), requests, hits: true }
}

/// Random requests in random order, identical in each run.
fn random_case(name: &str, mut request: impl FnMut(&mut Random) -> Request) -> Case {
    let mut source = Random { state: 0x5EED };
    let requests = (0..RANDOM_REQUESTS).map(|_| request(&mut source)).collect();
    Case { name: format!("{name} random"), requests, hits: true }
}

fn static_table() -> Table {
    let paths = ["/", "/users", "/api/v1/repos", "/api/v1/health", "/api/v2/status"];
    let mut cases: Vec<Case> = paths.iter().map(|path| hot_case(path, &[path])).collect();
    cases.push(random_case("static", |source| get_request(source.choose(&paths))));
    Table { name: "static", routes: get_routes(&paths), cases }
}

fn parameters_table() -> Table {
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
        cases.push(hot_case(&name, &[path]));
        cases.push(random_case(&name, |source| get_request(&source.fill(pattern))));
    }
    Table { name: "parameters", routes: get_routes(&patterns), cases }
}

fn mixed_table() -> Table {
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
        hot_case("mixed in turn", &paths),
        random_case("mixed", |source| {
            let pattern = source.choose(&patterns);
            get_request(&source.fill(pattern))
        }),
    ];
    Table { name: "mixed", routes: get_routes(&patterns), cases }
}

fn catch_all_table() -> Table {
    let pattern = "/files/{*filepath}";
    let cases = vec![
        hot_case("catch-all", &["/files/static/images/logo.png"]),
        random_case("catch-all", |source| get_request(&source.fill(pattern))),
    ];
    Table { name: "catch-all", routes: get_routes(&[pattern]), cases }
}

/// 5 versions of 10 resources, each a collection and an item, with 4 methods: 400 routes.
fn large_table() -> Table {
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
    let random_request = |source: &mut Random, suffix: &str| {
        let version = source.below(5) + 1;
        let resource = source.choose(&resources);
        let path = source.fill(&format!("/api/v{version}/{resource}{suffix}"));
        Request { method: source.below(METHODS.into()) as u8, path }
    };
    let mut cases = vec![
        hot_case("400 static", &["/api/v3/products"]),
        random_case("400 static", |source| random_request(source, "")),
        hot_case("400 parameter", &["/api/v3/products/12345"]),
        random_case("400 parameter", |source| random_request(source, "/{id}")),
        random_case("400 mixed", |source| {
            let suffix = source.choose(&["", "/{id}"]);
            random_request(source, suffix)
        }),
        hot_case("400 miss", &["/api/v9/unknown/path"]),
        random_case("400 miss", |source| {
            let suffixes = ["s", "/{id}/more", "/"];
            let suffix = source.choose(&suffixes);
            random_request(source, suffix)
        }),
    ];
    for case in cases.iter_mut().filter(|case| case.name.contains("miss")) {
        case.hits = false;
    }
    Table { name: "400 routes", routes, cases }
}

fn service_table() -> Table {
    let mut routes = Vec::new();
    for line in ROUTES.lines() {
        let (letters, pattern) = line.split_once(' ').expect("methods, a space, and a path");
        let method = |letter| "GPUD".find(letter).expect("a letter of a method") as u8;
        routes.extend(letters.chars().map(|letter| route(method(letter), pattern)));
    }
    let cases = vec![
        hot_case("130 static", &["/account/followers"]),
        hot_case("130 one parameter", &["/users/falconer/projects"]),
        hot_case("130 three parameters", &["/projects/falconer/peregrine/tickets/1347/comments"]),
        random_case("130 routes", |source| {
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

    fn choose<'a>(&mut self, items: &[&'a str]) -> &'a str {
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
                        path.push_str(self.choose(&["static/", "images/", "a/", "deeper/"]));
                    }
                    path.push_str(&format!("file{}.png", self.below(10_000)));
                }
            }
        }
        path
    }
}
