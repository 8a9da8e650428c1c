//! Building an application reports all errors at once, with the names of the routes and the fixes.

use peregrine_web::extract::{Path, State};
use peregrine_web::middleware::Next;
use peregrine_web::{App, HandlerExt, Request, Response};

struct Database;

#[derive(serde::Deserialize)]
#[expect(dead_code, reason = "only the names of the fields matter")]
struct Post {
    user: String,
    post: u32,
}

/// The error's text, with locations in this file as line numbers relative to `base`.
fn relative_text(error: &impl ToString, base: u32) -> String {
    let mut out = String::new();
    for line in error.to_string().lines() {
        let mut parts = line.split(concat!("(", file!(), ":"));
        out.push_str(parts.next().expect("a line has a start"));
        for part in parts {
            let (number, rest) = part.split_once(':').expect("a line and a column");
            let (_, rest) = rest.split_once(')').expect("the end of the location");
            let number: u32 = number.parse().expect("a line");
            out.push_str(&format!("(+{}){rest}", number.wrapping_sub(base)));
        }
        out.push('\n');
    }
    out
}

#[test]
fn reports_all_errors_at_once() {
    async fn needs(_: State<&'static Database>) {}
    async fn guard(_: State<u64>, request: Request, next: Next<'_>) -> Response {
        next.run(request).await
    }
    let base = line!();
    let app = App::new()
        .get("/users/{id}", || "a")
        .get("/users/{name}", || "b")
        .any("/any", || "a")
        .any("/any", || "b")
        .post("/files/{*path}/x", || "a")
        .post("/projects/{project}/events", needs)
        .scope("/s", |scope| scope.wrap(guard).get("x", || "a"))
        .get("/pair/{a}", async |_: Path<(String, u32)>| ())
        .get("/one/{a}/{b}", async |_: Path<String>| ())
        .get("/post/{user}/{id}", async |_: Path<Post>| ())
        .get("/fine/{user}/{post}", async |_: Path<Post>| ())
        .fallback(async |_: State<i8>| ());
    let error = app.build().expect_err("an application with errors");
    let expected = "\
the application has 10 errors:
  `x` in the scope `/s` (+8): a pattern begins with `/`: put one in front
  GET /users/{id} (+2) and GET /users/{name} (+3) match the same paths and both handle GET, HEAD; \
  remove one, or give them different methods
  any method /any (+4) and any method /any (+5) match the same paths and both handle any method; \
  remove one, or give them different methods
  POST /files/{*path}/x (+6): at byte 15: a catch-all takes the rest of the path: move it to the \
  end, or write `{name}` for one segment
  GET /pair/{a} (+9) takes 2 parameters from the path, but its pattern has 1: a; make the Path \
  argument and the pattern agree
  GET /one/{a}/{b} (+10) takes 1 parameter from the path, but its pattern has 2: a, b; make the \
  Path argument and the pattern agree
  GET /post/{user}/{id} (+11) takes `post` from the path, but its pattern has 2: user, id; make \
  the Path argument and the pattern agree
  POST /projects/{project}/events (+7) needs State<&it::build::Database>; add .state(...) to the App
  the middleware (+8) needs State<u64>; add .state(...) to the App
  the fallback of `/` (+13) needs State<i8>; add .state(...) to the App
";
    assert_eq!(relative_text(&error, base), expected);
}

#[test]
fn checks_the_path_parameters_of_middleware_around_merged_routes() {
    async fn guard(_: Path<String>, request: Request, next: Next<'_>) -> Response {
        next.run(request).await
    }
    let base = line!();
    let other = App::new().get("/a", || "a").get("/{b}", || "b");
    let error = App::new().wrap(guard).merge(other).build().expect_err("no parameter");
    let expected = "\
the application has 1 error:
  GET /a (+1) takes 1 parameter from the path, but its pattern has none; make the Path argument and \
  the pattern agree
";
    assert_eq!(relative_text(&error, base), expected);
}

#[test]
fn reports_states_that_merged_applications_lack_or_do_not_share() {
    async fn needs(_: State<u64>) {}
    let base = line!();
    let error = App::new()
        .get("/ours", needs)
        .scope("/a", |scope| scope.merge(App::new().state(1_u64).get("/x", needs)))
        .scope("/b", |scope| scope.merge(App::new().get("/x", needs)))
        .build()
        .expect_err("two routes lack the state");
    let expected = "\
the application has 2 errors:
  GET /ours (+2) needs State<u64>; add .state(...) to the App
  GET /b/x (+4) needs State<u64>; add .state(...) to the App
";
    assert_eq!(relative_text(&error, base), expected);
}

#[test]
fn reports_options_that_would_have_no_effect() {
    use std::time::Duration;
    let second = Duration::from_secs(1);
    let inner = || {
        let app = App::new()
            .get("/slow", (|| "x").timeout(second))
            .post("/pay", (|| "x").run_to_completion())
            .get("/plain", (|| "x").body_limit(7));
        app.build().expect("a valid application")
    };
    let base = line!();
    let error = App::new()
        .subtree("/lost", inner())
        .subtree("/slower", inner().timeout(2 * second).run_to_completion())
        .any("/kept/{*rest}", inner().timeout(second / 2).run_to_completion())
        .fallback(inner().timeout(second))
        .build()
        .expect_err("options would be lost");
    let found = relative_text(&error, base);
    let lines: Vec<_> = found.lines().collect();
    assert_eq!(lines[0], "the application has 4 errors:", "{found}");
    for (line, (route, option, outer)) in lines[1..].iter().zip([
        ("GET /slow ", "timeout", "any method /lost (+2)"),
        ("POST /pay ", "run_to_completion", "any method /lost (+2)"),
        ("GET /slow ", "timeout", "any method /slower (+3)"),
        ("POST /pay ", "run_to_completion", "the fallback of `/` (+5)"),
    ]) {
        assert!(line.trim_start().starts_with(route), "{found}");
        let expected =
            format!("sets `{option}`, but it is inside {outer}, and the server applies only");
        assert!(line.contains(&expected), "{found}");
        assert!(line.contains(".merge(app)"), "{found}");
    }
}

#[test]
fn reports_two_fallbacks_for_the_same_paths() {
    let base = line!();
    let error = App::new()
        .scope("/a/{b}", |scope| scope.fallback(|| "first"))
        .scope("/a/{c}", |scope| scope.fallback(|| "second"))
        .scope("/{", |scope| scope.fallback(|| "unreadable"))
        .build()
        .expect_err("two fallbacks conflict");
    let found = relative_text(&error, base);
    assert!(found.starts_with("the application has 2 errors:\n"), "{found}");
    let expected = "the fallback of `/a/{b}/` (+2) and the fallback of `/a/{c}/` (+3) handle the \
                    same paths; remove one";
    assert!(found.contains(expected), "{found}");
    assert!(found.contains("the fallback of `/{/` (+4): at byte 1"), "{found}");
}

#[test]
fn a_valid_application_lists_its_routes() {
    let base = line!();
    let app = App::new()
        .get("/", || "a")
        .scope("/s", |scope| scope.any("/{x}", || "b"))
        .build()
        .expect("a valid application");
    let routes: Vec<_> = app
        .routes()
        .map(|route| (route.methods, route.pattern, route.location.line() - base))
        .collect();
    assert_eq!(routes, [("GET", "/", 2), ("any method", "/s/{x}", 3)]);
}

#[test]
fn a_state_may_be_added_after_its_routes_and_the_last_value_applies() {
    async fn show(State(n): State<u8>) -> String {
        n.to_string()
    }
    let client = App::new().get("/", show).state(1u8).scope("/s", |scope| scope.state(2u8)).test();
    assert_eq!(client.get("/").send_blocking().text(), "2");
}

#[test]
fn reports_too_many_extension_methods() {
    let mut app = App::new();
    for number in 0..22 {
        let method = http::Method::from_bytes(format!("X{number}").as_bytes()).expect("a token");
        app = app.on(method, "/", || "x");
    }
    let error = app.build().expect_err("22 methods are too many").to_string();
    assert!(error.contains("X21 / ("), "{error}");
    assert!(error.contains("an application can name 21 extension methods"), "{error}");
}
