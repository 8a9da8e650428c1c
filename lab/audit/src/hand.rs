//! Numbers given on the command line, as a page of one row.

use toml::Spanned;

use crate::claim::{
    Design, Discipline, Document, Environment, ErrorsShown, Row, Scenario, Source, Tool,
};
use crate::quantity::{Dimension, Printed};
use crate::read::{InputError, SCHEMA};

/// The timeout of wrk if none is given, after which it drops a reply.
const WRK_TIMEOUT: &str = "2s";

/// Makes a page of one row from options such as `--connections 500 --rate 144342 --mean 4.99ms`.
///
/// The numbers are taken as printed ones: `4.99ms` stands for all that rounds to it.
///
/// # Errors
///
/// If an option is unknown, is given twice, lacks its value, or has one that cannot be read.
pub fn document(arguments: &[String]) -> Result<Document, InputError> {
    let mut options = Options::read(arguments)?;
    let is_open = options.flag("--open");
    let tool = options.text("--tool").unwrap_or_else(|| "wrk".to_owned());
    let default_timeout = (tool == "wrk").then(|| WRK_TIMEOUT.to_owned());
    let timeout = options.text("--timeout").or(default_timeout);
    let rate = options.text("--rate");
    let row = row(&mut options, rate)?;
    let scenario = Scenario {
        id: "given".to_owned(),
        name: "given".to_owned(),
        request: "as the command line says".to_owned(),
        connections: options.whole("--connections")?,
        threads: options.whole("--threads")?,
        duration: options.printed("--duration")?,
        command: None,
        unrepeatable: None,
    };
    options.refuse_rest()?;
    Ok(Document {
        schema: SCHEMA,
        id: "given".to_owned(),
        source: Source {
            title: "numbers from the command line".to_owned(),
            text_file: None,
            sha256: None,
            home: None,
            withdrawn: None,
        },
        tool: Tool {
            name: tool,
            discipline: if is_open { Discipline::Open } else { Discipline::Closed },
            version: None,
            timeout: timeout.map(|text| read_value("--timeout", &text)).transpose()?,
            errors: ErrorsShown::Never,
        },
        environment: Environment::default(),
        design: Design::default(),
        contenders: Vec::new(),
        scenarios: vec![scenario],
        rows: vec![row],
        microbenchmarks: Vec::new(),
        restated: Vec::new(),
        claims: Vec::new(),
    })
}

fn row(options: &mut Options, rate: Option<String>) -> Result<Row, InputError> {
    Ok(Row {
        scenario: Spanned::new(0..0, "given".to_owned()),
        contender: Spanned::new(0..0, "row".to_owned()),
        rate: rate.map(|text| read_value("--rate", &text)).transpose()?,
        mean: options.printed("--mean")?,
        deviation: None,
        min: options.printed("--min")?,
        p50: options.printed("--p50")?,
        p75: options.printed("--p75")?,
        p90: options.printed("--p90")?,
        p95: options.printed("--p95")?,
        p99: options.printed("--p99")?,
        max: options.printed("--max")?,
        within_deviation: None,
        thread_rate: None,
        thread_rate_deviation: None,
        thread_rate_max: None,
        thread_rate_within: None,
        requests: options.printed("--requests")?,
        duration: None,
        bytes_read: None,
        transfer: options.printed("--bytes-per-second")?,
        errors: options.printed("--errors")?,
        non_2xx: options.printed("--non-2xx")?,
        connect_errors: None,
        read_errors: options.printed("--read-errors")?,
        write_errors: None,
        timeouts: options.printed("--timeouts")?,
    })
}

/// Options and their values, each taken once.
struct Options {
    given: Vec<(String, Option<String>)>,
}

impl Options {
    fn read(arguments: &[String]) -> Result<Self, InputError> {
        let mut given: Vec<(String, Option<String>)> = Vec::new();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            if !argument.starts_with("--") {
                let fix = "give either claim files or options, each option with two dashes";
                return Err(error(argument, "is not an option", fix));
            }
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None if argument == "--open" => (argument.clone(), None),
                None => (argument.clone(), rest.next().cloned()),
            };
            // Most tools and pages say requests per second by this name.
            let name = if name == "--rps" { "--rate".to_owned() } else { name };
            if given.iter().any(|(before, _)| *before == name) {
                return Err(error(&name, "is given twice", "keep one of the two"));
            }
            if value.is_none() && name != "--open" {
                return Err(error(&name, "has no value", "write the number after it"));
            }
            given.push((name, value));
        }
        Ok(Self { given })
    }

    fn text(&mut self, name: &str) -> Option<String> {
        let index = self.given.iter().position(|(given, _)| given == name)?;
        self.given.remove(index).1
    }

    fn flag(&mut self, name: &str) -> bool {
        let before = self.given.len();
        self.given.retain(|(given, _)| given != name);
        self.given.len() < before
    }

    fn printed<D: Dimension>(&mut self, name: &str) -> Result<Option<Printed<D>>, InputError> {
        self.text(name).map(|text| read_value(name, &text)).transpose()
    }

    fn whole(&mut self, name: &str) -> Result<Option<u32>, InputError> {
        let read = |text: String| {
            text.replace(',', "").parse().map_err(|_| {
                let problem = format!("`{text}` is not a whole number");
                error(name, &problem, "write digits only")
            })
        };
        self.text(name).map(read).transpose()
    }

    fn refuse_rest(self) -> Result<(), InputError> {
        match self.given.first() {
            None => Ok(()),
            Some((name, _)) => {
                Err(error(name, "is not known", "see `audit --help` for the options"))
            }
        }
    }
}

fn read_value<D: Dimension>(name: &str, text: &str) -> Result<Printed<D>, InputError> {
    Printed::read(text, None).map_err(|problem| {
        error(name, &problem, "write the number as the page prints it, such as 4.99ms")
    })
}

fn error(key: &str, problem: &str, fix: &str) -> InputError {
    InputError {
        file: "command line".to_owned(),
        line: None,
        key: key.to_owned(),
        problem: problem.to_owned(),
        fix: fix.to_owned(),
    }
}
