//! Every example starts, responds, and on SIGTERM exits without cutting off any request.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

const ALL: [&str; 12] = [
    env!("CARGO_BIN_EXE_chat"),
    env!("CARGO_BIN_EXE_configured"),
    env!("CARGO_BIN_EXE_events"),
    env!("CARGO_BIN_EXE_hello"),
    env!("CARGO_BIN_EXE_login"),
    env!("CARGO_BIN_EXE_middleware"),
    env!("CARGO_BIN_EXE_passwords"),
    env!("CARGO_BIN_EXE_openapi"),
    env!("CARGO_BIN_EXE_production"),
    env!("CARGO_BIN_EXE_streams"),
    env!("CARGO_BIN_EXE_todos"),
    env!("CARGO_BIN_EXE_tokio_inside"),
];

struct Example {
    process: Child,
    errors: BufReader<ChildStderr>,
    address: String,
}

impl Example {
    fn start(program: &str) -> Self {
        let mut process = Command::new(program)
            .env("ADDRESS", "127.0.0.1:0")
            .env("TLS_ADDRESS", "127.0.0.1:0")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the example was built");
        let mut errors = BufReader::new(process.stderr.take().expect("stderr is piped"));
        let mut line = String::new();
        errors.read_line(&mut line).expect("the example reports its address");
        let (_, rest) = line.split_once("http://").unwrap_or_else(|| panic!("no address: {line}"));
        let address = rest.split([',', ';']).next().expect("split gives one piece").to_owned();
        Self { process, errors, address }
    }

    /// Sends a request.
    fn begin(&self, method: &str, target: &str, fields: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("the example listens");
        let length = body.len();
        write!(
            stream,
            "{method} {target} HTTP/1.1\r\nHost: example\r\nConnection: close\r\n\
             Content-Length: {length}\r\n{fields}\r\n{body}"
        )
        .expect("the example reads");
        stream
    }

    fn ask(&self, method: &str, target: &str, fields: &str, body: &str) -> String {
        rest_of(self.begin(method, target, fields, body))
    }

    fn get(&self, target: &str) -> String {
        self.ask("GET", target, "", "")
    }

    /// Stops the example with a signal; returns what it wrote to stderr.
    fn end(mut self) -> String {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::TERM).expect("the example runs");
        let mut report = String::new();
        self.errors.read_to_string(&mut report).expect("the example reports");
        let status = self.process.wait().expect("the example ends");
        assert!(status.success(), "{status}: {report}");
        assert!(report.contains("none was cut"), "{report}");
        report
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // Only a failed test leaves the process running.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn rest_of(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the example answers and closes");
    answer
}

fn holds(answer: &str, status: &str, text: &str) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "not {status}: {answer}");
    assert!(answer.contains(text), "no {text:?} in: {answer}");
}

#[test]
fn hello() {
    let example = Example::start(env!("CARGO_BIN_EXE_hello"));
    holds(&example.get("/"), "200", "Hello, World!");
    holds(&example.get("/hello/you"), "200", "Hello, you!");
    holds(&example.get("/json"), "200", r#"{"message":"Hello, World!"}"#);
    holds(&example.get("/nowhere"), "404", "application/problem+json");
    assert!(example.end().contains("4 requests"));
}

#[test]
fn todos() {
    let example = Example::start(env!("CARGO_BIN_EXE_todos"));
    let json = "Content-Type: application/json\r\n";
    holds(&example.ask("POST", "/todos", json, r#"{"text":"fly"}"#), "201", r#""id":1"#);
    holds(&example.get("/todos"), "200", "fly");
    holds(&example.ask("POST", "/todos", json, r#"{"text":"#), "400", r#""column":"#);
    holds(&example.ask("POST", "/todos", "", "{}"), "415", "application/json");
    example.end();
}

#[test]
fn modules() {
    let example = Example::start(env!("CARGO_BIN_EXE_modules"));
    let json = "Content-Type: application/json\r\n";
    let sighting = r#"{"place":"cliff"}"#;
    holds(&example.ask("POST", "/birds/kestrel/sightings", json, sighting), "201", "x-request-id");
    holds(&example.get("/birds/kestrel"), "200", r#"{"sightings":1}"#);
    holds(&example.ask("DELETE", "/admin/birds", "", ""), "401", "keepers");
    example.end();
}

#[test]
fn middleware() {
    let example = Example::start(env!("CARGO_BIN_EXE_middleware"));
    holds(&example.get("/"), "200", "x-request-id: ");
    holds(&example.get("/admin"), "401", "Authorization");
    let token = "Authorization: Bearer secret\r\n";
    holds(&example.ask("GET", "/admin", token, ""), "200", "welcome");
    holds(&example.get("/panic"), "500", "x-request-id: ");
    example.end();
}

#[test]
fn streams() {
    let example = Example::start(env!("CARGO_BIN_EXE_streams"));
    holds(&example.ask("POST", "/count", "", &"x".repeat(300_000)), "200", "300000 bytes in");
    holds(&example.get("/lines/1000"), "200", "line 1000");
    holds(&example.get("/ticks/3"), "200", "data: 0 left");
    // A stream that would run for years sends its last event when the server shuts down.
    let mut endless = example.begin("GET", "/ticks/4000000000", "", "");
    endless.read_exact(&mut [0; 15]).expect("the response has started");
    let heard = std::thread::spawn(move || rest_of(endless));
    example.end();
    let heard = heard.join().expect("the thread did not panic");
    assert!(heard.contains("data: come back later"), "{heard}");
}

#[test]
fn events() {
    let example = Example::start(env!("CARGO_BIN_EXE_events"));
    holds(&example.get("/"), "200", "EventSource");
    holds(&example.get("/countdown/3"), "200", "data: 0");
    let mut listening = example.begin("GET", "/news", "", "");
    listening.read_exact(&mut [0; 15]).expect("the response has started");
    for text in ["hello", "again"] {
        holds(&example.ask("POST", "/news", "", text), "200", "number ");
    }
    let mut late = example.begin("GET", "/news", "Last-Event-ID: 1\r\n", "");
    late.read_exact(&mut [0; 15]).expect("the response has started");
    let heard = std::thread::spawn(move || (rest_of(listening), rest_of(late)));
    example.end();
    let (heard, late) = heard.join().expect("the thread did not panic");
    for text in ["id: 1\ndata: hello\n\n", "id: 2\ndata: again\n\n", "event: end\n"] {
        assert!(heard.contains(text), "no {text:?} in {heard}");
    }
    assert!(
        late.contains("again") && late.contains("event: end") && !late.contains("hello"),
        "{late}"
    );
}

#[test]
fn tokio_inside() {
    let example = Example::start(env!("CARGO_BIN_EXE_tokio_inside"));
    holds(&example.get("/sleep/20"), "200", "slept 20 ms");
    holds(&example.get("/tasks"), "200", "42");
    holds(&example.ask("POST", "/echo", "", "there and back"), "200", "there and back");
    holds(&example.get("/blocking"), "200", "500000500000");
    example.end();
}

#[test]
fn production() {
    let example = Example::start(env!("CARGO_BIN_EXE_production"));
    holds(&example.ask("POST", "/accounts/7/payments", "", ""), "200", "paid from 7");
    holds(&example.get("/report"), "503", r#"{"error":"handler-timeout""#);
    holds(&example.get("/nowhere"), "404", r#"{"error":"unknown-route""#);
    example.end();
}

#[test]
fn passwords() {
    let example = Example::start(env!("CARGO_BIN_EXE_passwords"));
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    let right = "name=ali&password=open+sesame";
    holds(&example.ask("POST", "/register", form, right), "201", "");
    holds(&example.ask("POST", "/login", form, "name=ali&password=open+barley"), "403", "wrong");
    holds(&example.ask("POST", "/login", form, right), "204", "set-cookie: session=");
    example.end();
}

#[test]
fn configured() {
    let example = Example::start(env!("CARGO_BIN_EXE_configured"));
    holds(&example.get("/"), "200", "configured");
    example.end();
    let run = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_configured"));
        let command = command.args(arguments).env("ADDRESS", "127.0.0.1:8089");
        command.envs(variables.iter().copied()).output().expect("the example was built")
    };
    let printed = run(&["--print-config"], &[("PEREGRINE_LIMITS__IDLE_TIMEOUT", "2m")]);
    let text = String::from_utf8(printed.stdout).expect("UTF-8");
    assert!(printed.status.success(), "{text}");
    for part in ["idle_timeout = \"2m\"", "[listeners.main]", "address = \"127.0.0.1:8089\""] {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
    // The printed settings can be read back.
    let path = std::env::temp_dir().join(format!("peregrine-{}.toml", std::process::id()));
    std::fs::write(&path, &text).expect("the folder is writable");
    let file = path.to_str().expect("the path is UTF-8");
    let again = run(&["--config", file, "--print-config"], &[]);
    let is_same = String::from_utf8(again.stdout).expect("UTF-8") == text;
    std::fs::write(&path, "[limits]\nidle_timout = '2m'\n").expect("the folder is writable");
    let wrong = run(&["--config", file, "--check-config"], &[]);
    std::fs::remove_file(&path).expect("the file exists");
    assert!(is_same, "the printed settings differ after reading them back: {text}");
    let text = String::from_utf8(wrong.stderr).expect("UTF-8");
    assert!(!wrong.status.success() && text.contains("did you mean `idle_timeout`?"), "{text}");
    let routes = String::from_utf8(run(&["--routes"], &[]).stdout).expect("UTF-8");
    assert!(routes.starts_with("GET  /  -  ") && routes.lines().count() == 1, "{routes}");
}

/// The output of a program that exits by itself.
fn output(program: &str, argument: Option<&str>, variables: &[(&str, &str)]) -> (Output, String) {
    let mut command = Command::new(program);
    command.args(argument).env_remove("ADDRESS").env_remove("PORT");
    let output = command.envs(variables.iter().copied()).output().expect("the example was built");
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output, String::from_utf8(text).expect("UTF-8"))
}

#[test]
fn every_example_tells_what_it_is_and_where_it_listens() {
    for program in ALL {
        for argument in ["--help", "-h"] {
            let (output, text) = output(program, Some(argument), &[]);
            assert!(output.status.success() && output.stderr.is_empty(), "{program}: {text}");
            for part in ["Try: curl ", "Usage: ", "ADDRESS=", "PORT=", "PEREGRINE_DRIVER="] {
                assert!(text.contains(part), "{program} does not print {part}: {text}");
            }
        }
        let (output, text) = output(program, Some("--hepl"), &[]);
        assert!(output.status.code() == Some(2) && text.contains("--help`"), "{program}: {text}");
    }
}

#[test]
fn a_port_in_use_is_reported_with_the_remedy_and_the_port_can_be_chosen() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    for program in ALL {
        let (output, text) =
            output(program, None, &[("PORT", &port), ("TLS_ADDRESS", "127.0.0.1:0")]);
        assert_eq!(output.status.code(), Some(1), "{program}: {text}");
        for part in
            [&*format!("127.0.0.1:{port}"), "another process listens there", "choose another"]
        {
            assert!(text.contains(part), "{program} does not print {part}: {text}");
        }
        assert_eq!(text.lines().count(), 1, "{program}: {text}");
    }
    let (output, text) = output(ALL[0], None, &[("PORT", "eighty")]);
    assert!(output.status.code() == Some(2) && text.contains("PORT=eighty"), "{text}");
}
