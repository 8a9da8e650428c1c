//! The command line of `load`, as typed and as understood.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;

use super::quantity;
use crate::client::EngineKind;
use crate::cross_check::Tool;
use crate::generator::{Plan, Secured};
use crate::question::{BodyWording, Question, Wording};
use crate::schedule::Schedule;

/// What `load --help` prints.
pub const LOAD_USAGE: &str = "\
load: ask one HTTP/1.1 server, judge every answer, measure honestly

usage:
  load URL [options]

schedule (without any: a closed loop over 64 connections)
  --closed N              a closed loop over N connections
  --rate R                an open loop: R requests per second, such as 20k
  --poisson               ... with random distances, as independent users make them
  --ramp-to R             ... rising evenly to R over the run
  --steps N               ... rising to --ramp-to in N level steps
  --connections N         connections of an open loop (64)
  --waiting-max N         requests that may wait for a connection before others drop (10000)
  --duration T            how long requests are started, such as 10s (10s)
  --warmup T              uncounted time before that (none)
  --timeout T             how long a reply may take; longer ones stay as censored samples (5s)
  --requests N            end after N requests

connections
  --pipeline D            D requests under way on each connection (1)
  --requests-per-connection N   close after N requests, Connection: close on the last
  --resume                https: resume TLS sessions (every handshake is a full one)
  --server-name NAME      https: the name asked for (the URL's host)

request (texts may hold {counter}, {random:1..1000}, {choice:a|b}, {x=random:1..9} and {x})
  --method NAME  --header 'Name: value'  --body TEXT  --body-file FILE

the right answer (without any: a status from 200 to 299)
  --expect-status N  --expect-header 'Name[: value]'
  --expect-body TEXT | --expect-json TEXT | --expect-length N | --expect-sha256 HEX

client
  --threads N (1)  --cpus LIST  --engine ring|epoll  --seed N (1)
  --no-calibration        do not measure what the client itself can do
  --null-cpus LIST        the CPUs of the calibration's server
  --also LIST             ask again with wrk, h2load, oha (where installed) and compare
  --json FILE             write the run file; - is standard output
  --i-own-this-target     allow a target that is not this machine

exit status: 0 all right; 2 nothing came in time; 4 wrong answers; 5 client-bound; 64 wrong usage; 74 the client failed
";

/// The options, understood.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// What is to be done.
    pub plan: Plan,
    /// The URL as typed.
    pub url: String,
    /// The question as worded.
    pub wording: Wording,
    /// Whether the client is measured against the null server first.
    pub is_calibrated: bool,
    /// The CPUs of that server.
    pub null_cpus: Vec<usize>,
    /// Where the run file goes; `-` is standard output.
    pub json: Option<PathBuf>,
    /// Other tools to compare with.
    pub tools: Vec<Tool>,
}

/// The options that several others together decide.
#[derive(Debug, Default)]
struct Typed {
    url: Option<String>,
    closed: Option<u64>,
    rate: Option<f64>,
    is_poisson: bool,
    ramp_to: Option<f64>,
    steps: Option<u64>,
    connections: Option<u64>,
    is_resuming: bool,
    server_name: Option<String>,
}

impl LoadOptions {
    /// Reads the arguments, without the program's name.
    ///
    /// # Errors
    ///
    /// A sentence that names what is wrong.
    pub fn parse(arguments: &[String]) -> Result<LoadOptions, String> {
        let placeholder = SocketAddr::from(([127, 0, 0, 1], 0));
        let question = Question::new(&Wording::default()).map_err(|error| error.to_string())?;
        let mut options = LoadOptions {
            plan: Plan::new(placeholder, Arc::new(question)),
            url: String::new(),
            wording: Wording::default(),
            is_calibrated: true,
            null_cpus: Vec::new(),
            json: None,
            tools: Vec::new(),
        };
        let mut typed = Typed::default();
        let mut rest = arguments.iter().map(String::as_str);
        while let Some(name) = rest.next() {
            if !name.starts_with("--") {
                if typed.url.replace(name.to_owned()).is_some() {
                    return Err(format!("{name}: there is a URL already"));
                }
                continue;
            }
            if options.take_flag(name, &mut typed) {
                continue;
            }
            let value = rest.next().ok_or_else(|| format!("{name} needs a value"))?;
            let taken = take_schedule(name, value, &mut typed)
                .or_else(|| options.take_request(name, value))
                .or_else(|| options.take_run(name, value, &mut typed));
            match taken {
                Some(Ok(())) => {}
                Some(Err(())) => return Err(format!("{name} cannot be {value:?}")),
                None => return Err(format!("{name} is no option")),
            }
        }
        options.understand(typed)?;
        Ok(options)
    }

    fn take_flag(&mut self, name: &str, typed: &mut Typed) -> bool {
        match name {
            "--poisson" => typed.is_poisson = true,
            "--resume" => typed.is_resuming = true,
            "--no-calibration" => self.is_calibrated = false,
            "--i-own-this-target" => self.plan.is_own_target = true,
            _ => return false,
        }
        true
    }

    fn take_request(&mut self, name: &str, value: &str) -> Option<Result<(), ()>> {
        let wording = &mut self.wording;
        let field = |text: &str| {
            let (name, value) = text.split_once(':')?;
            Some((name.to_owned(), value.trim().to_owned()))
        };
        Some(match name {
            "--method" => set(&mut wording.method, Some(value.to_owned())),
            "--header" => field(value).map(|field| wording.fields.push(field)).ok_or(()),
            "--body" => set(&mut wording.body, Some(Some(value.into()))),
            "--body-file" => set(&mut wording.body, std::fs::read(value).ok().map(Some)),
            "--expect-status" => set(&mut wording.expected_status, value.parse().ok().map(Some)),
            "--expect-body" => {
                set(&mut wording.expected_body, Some(BodyWording::Exact(value.to_owned())))
            }
            "--expect-json" => {
                set(&mut wording.expected_body, Some(BodyWording::Json(value.to_owned())))
            }
            "--expect-length" => {
                set(&mut wording.expected_body, value.parse().ok().map(BodyWording::Length))
            }
            "--expect-sha256" => {
                set(&mut wording.expected_body, quantity::sha256(value).map(BodyWording::Sha256))
            }
            "--expect-header" => {
                let expected = match field(value) {
                    Some((name, value)) => (name, Some(value)),
                    None => (value.to_owned(), None),
                };
                wording.expected_fields.push(expected);
                Ok(())
            }
            _ => return None,
        })
    }

    fn take_run(&mut self, name: &str, value: &str, typed: &mut Typed) -> Option<Result<(), ()>> {
        let plan = &mut self.plan;
        let count = || quantity::whole(value).and_then(|count| usize::try_from(count).ok());
        Some(match name {
            "--duration" => set(&mut plan.duration, quantity::time(value)),
            "--warmup" => set(&mut plan.warmup, quantity::time(value)),
            "--timeout" => set(&mut plan.timeout, quantity::time(value)),
            "--requests" => set(&mut plan.requests_max, quantity::whole(value)),
            "--waiting-max" => set(&mut plan.waiting_max, count()),
            "--pipeline" => set(&mut plan.depth, count()),
            "--requests-per-connection" => {
                set(&mut plan.requests_per_connection, quantity::whole(value).map(Some))
            }
            "--server-name" => set(&mut typed.server_name, Some(Some(value.to_owned()))),
            "--threads" => set(&mut plan.threads, count()),
            "--cpus" => set(&mut plan.cpus, quantity::cpus(value)),
            "--null-cpus" => set(&mut self.null_cpus, quantity::cpus(value)),
            "--seed" => match value.parse() {
                Ok(seed) => {
                    (plan.seed, self.wording.seed) = (seed, seed);
                    Ok(())
                }
                Err(_) => Err(()),
            },
            "--engine" => match value {
                "ring" => set(&mut plan.engine, Some(Some(EngineKind::Ring))),
                "epoll" => set(&mut plan.engine, Some(Some(EngineKind::Epoll))),
                _ => Err(()),
            },
            // Not in the usage: it makes the client slow on purpose, to test the verdict on it.
            "--burn" => set(&mut plan.burn, quantity::time(value)),
            "--also" => set(&mut self.tools, value.split(',').map(Tool::named).collect()),
            "--json" => set(&mut self.json, Some(Some(PathBuf::from(value)))),
            _ => return None,
        })
    }

    fn understand(&mut self, typed: Typed) -> Result<(), String> {
        self.plan.schedule = schedule(&typed)?;
        if let Some(connections) = typed.closed.or(typed.connections) {
            self.plan.connections =
                usize::try_from(connections).map_err(|_| "too many connections".to_owned())?;
        }
        let url = typed.url.ok_or("a URL is needed, such as http://127.0.0.1:8080/")?;
        let place = Place::parse(&url)?;
        let mut addresses = (place.host.as_str(), place.port)
            .to_socket_addrs()
            .map_err(|error| format!("{}: {error}", place.host))?;
        self.plan.address =
            addresses.next().ok_or_else(|| format!("{} has no address", place.host))?;
        self.wording.target = place.target;
        self.wording.host = place.authority;
        if place.is_tls {
            let name = typed.server_name.unwrap_or(place.host);
            let server_name = ServerName::try_from(name).map_err(|error| error.to_string())?;
            self.plan.tls = Some(Secured { server_name, is_resuming: typed.is_resuming });
        }
        let question = Question::new(&self.wording).map_err(|error| error.to_string())?;
        self.plan.question = Arc::new(question);
        self.url = url;
        if self.plan.duration < Duration::from_millis(1) {
            return Err("a run takes at least a millisecond".to_owned());
        }
        self.plan.check()
    }
}

fn take_schedule(name: &str, value: &str, typed: &mut Typed) -> Option<Result<(), ()>> {
    Some(match name {
        "--closed" => set(&mut typed.closed, quantity::whole(value).map(Some)),
        "--rate" => set(&mut typed.rate, quantity::number(value).map(Some)),
        "--ramp-to" => set(&mut typed.ramp_to, quantity::number(value).map(Some)),
        "--steps" => set(&mut typed.steps, quantity::whole(value).map(Some)),
        "--connections" => set(&mut typed.connections, quantity::whole(value).map(Some)),
        _ => return None,
    })
}

fn set<T>(place: &mut T, value: Option<T>) -> Result<(), ()> {
    value.map(|value| *place = value).ok_or(())
}

fn schedule(typed: &Typed) -> Result<Schedule, String> {
    let Some(rate) = typed.rate else {
        let is_open = typed.is_poisson || typed.ramp_to.is_some() || typed.steps.is_some();
        return if is_open {
            Err("an open loop needs --rate".into())
        } else {
            Ok(Schedule::Closed)
        };
    };
    if typed.closed.is_some() {
        return Err("a loop is open (--rate) or closed (--closed), not both".to_owned());
    }
    match (typed.is_poisson, typed.ramp_to, typed.steps) {
        (false, None, None) => Ok(Schedule::Constant { rate }),
        (true, None, None) => Ok(Schedule::Poisson { rate }),
        (false, Some(to), None) => Ok(Schedule::Ramp { from: rate, to }),
        (false, Some(to), Some(steps)) => {
            let steps = u32::try_from(steps).map_err(|_| "too many steps".to_owned())?;
            Ok(Schedule::Step { from: rate, to, steps })
        }
        (false, None, Some(_)) => Err("--steps needs --ramp-to".to_owned()),
        (true, ..) => Err("--poisson has one rate".to_owned()),
    }
}

/// The parts of a URL that matter here.
struct Place {
    is_tls: bool,
    authority: String,
    host: String,
    port: u16,
    target: String,
}

impl Place {
    fn parse(url: &str) -> Result<Place, String> {
        let refuse = || format!("{url} is no URL such as http://127.0.0.1:8080/");
        let (is_tls, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(refuse()),
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| refuse())?)
            }
            _ => (authority, if is_tls { 443 } else { 80 }),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || host.contains('@') || target.contains('#') {
            return Err(refuse());
        }
        let target = if target.starts_with('/') { target.into() } else { format!("/{target}") };
        Ok(Place { is_tls, authority: authority.into(), host: host.into(), port, target })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<LoadOptions, String> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        LoadOptions::parse(&words)
    }

    #[test]
    fn the_url_decides_address_host_and_target() {
        let options = parse("http://127.0.0.1:8080/a?b=c").unwrap();
        assert_eq!(options.plan.address, "127.0.0.1:8080".parse().unwrap());
        assert_eq!(options.wording.target, "/a?b=c");
        assert_eq!(options.wording.host, "127.0.0.1:8080");
        assert!(options.plan.tls.is_none() && options.plan.schedule.is_closed());
        let options = parse("https://[::1]:9").unwrap();
        assert!(options.plan.tls.is_some() && options.plan.address.is_ipv6());
        assert_eq!(options.wording.target, "/");
    }

    #[test]
    fn schedules_are_understood() {
        let schedule = |text: &str| parse(&format!("http://127.0.0.1:1/ {text}")).unwrap().plan;
        assert_eq!(schedule("--rate 20k").schedule, Schedule::Constant { rate: 20_000.0 });
        assert_eq!(schedule("--rate 5 --poisson").schedule, Schedule::Poisson { rate: 5.0 });
        let ramp = Schedule::Ramp { from: 1.0, to: 9.0 };
        assert_eq!(schedule("--rate 1 --ramp-to 9").schedule, ramp);
        let step = Schedule::Step { from: 1.0, to: 9.0, steps: 3 };
        assert_eq!(schedule("--rate 1 --ramp-to 9 --steps 3").schedule, step);
        assert_eq!(schedule("--closed 7").connections, 7);
    }

    #[test]
    fn another_machine_is_refused_unless_it_is_owned() {
        let error = parse("http://192.0.2.1/").unwrap_err();
        assert!(error.contains("--i-own-this-target"), "{error}");
        assert!(parse("http://192.0.2.1/ --i-own-this-target").is_ok());
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (text, part) in [
            ("", "URL"),
            ("ftp://x/", "no URL"),
            ("http://127.0.0.1:1/ --rate x", "--rate"),
            ("http://127.0.0.1:1/ --rate 5 --closed 5", "not both"),
            ("http://127.0.0.1:1/ --rate 0", "rate"),
            ("http://127.0.0.1:1/ --duration 2h", "3600"),
            ("http://127.0.0.1:1/ --connections 1M", "connections"),
            ("http://127.0.0.1:1/ --unknown 1", "--unknown"),
            ("http://127.0.0.1:1/ --body {x}", "{x}"),
            ("http://127.0.0.1:1/ --poisson", "--rate"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
