//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use peregrine_lab_load::command;

use crate::exit;

/// Published HTTP benchmark claims, reproduced honestly on this machine.
#[derive(Debug, Parser)]
#[command(name = "lab", version, after_help = exit::HELP, max_term_width = 100)]
pub(crate) struct Options {
    /// The folder with contenders, scenarios and claims (usually found by itself).
    #[arg(long, global = true, value_name = "FOLDER")]
    pub(crate) lab: Option<PathBuf>,
    /// Where contenders are built (target/contenders).
    #[arg(long, global = true, value_name = "FOLDER")]
    pub(crate) target: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Is this machine fit, and what may be said from runs on it? Sends nothing.
    Doctor {
        /// For programs.
        #[arg(long)]
        json: bool,
    },
    /// Checks published numbers on paper: a claim file, or numbers by hand. Sends nothing.
    #[command(disable_help_flag = true)]
    Audit(Rest),
    /// A published page, tried again: as published and corrected, with a finding for each claim.
    Reproduce(Reproduce),
    /// Measures contenders under a scenario and writes run files and a report.
    Run(Run),
    /// Is A faster or slower than B, or can it not be told?
    Compare(Compare),
    /// The load generator alone; `lab load --help` has its options.
    #[command(disable_help_flag = true)]
    Load(Rest),
    /// The highest rate that keeps a promise about latency.
    Ladder(Ladder),
    /// Does a contender (or a URL) answer rightly? Who does not is never timed.
    Verify(Verify),
    /// Reports on run files: HTML, Markdown, JSON.
    Report(Report),
    /// Packs the runs of a folder into one compressed file, to be kept; `lab report` reads it as it
    /// reads run files.
    Pack(Pack),
    /// A server that answers fixed bytes, for calibration; `lab null --help` has its options.
    #[command(disable_help_flag = true)]
    Null(Rest),
    /// Lists the contenders with their state, or builds them.
    Contenders(Contenders),
    /// Lists the scenarios.
    Scenarios,
}

/// Arguments that another command reads.
#[derive(Debug, Args)]
pub(crate) struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<String>,
}

/// What all commands that start servers have in common.
#[derive(Debug, Clone, Args)]
pub(crate) struct Bench {
    /// The servers' CPUs, such as 0,2-3 (half of the cores).
    #[arg(long, value_name = "LIST")]
    pub(crate) server_cpus: Option<String>,
    /// The client's CPUs (the other half).
    #[arg(long, value_name = "LIST")]
    pub(crate) client_cpus: Option<String>,
    /// How many workers each server is told to have (one for each of its CPUs).
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<usize>,
    /// Do not build what is not built; leave it out.
    #[arg(long)]
    pub(crate) no_build: bool,
    /// Count blocks that guards would void (other programs on the CPUs, stolen time); the report
    /// says that the result may not be published.
    #[arg(long)]
    pub(crate) tolerate_noise: bool,
    /// Set this machine up for the run and put it back afterwards: governor, queues, ports. Without
    /// it nothing on the host is changed.
    #[arg(long)]
    pub(crate) tune: bool,
    /// Decides orders, random values and resampling.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// How long a look at each contender takes before its slices. In less than the default, nobody
    /// can see whether Date moves: it is there for tests, which have no time.
    #[arg(long, hide = true, value_parser = time, default_value = "1600ms")]
    pub(crate) look: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Scenarios by name or file; `lab scenarios` lists them.
    #[arg(required = true, value_name = "SCENARIO")]
    pub(crate) scenarios: Vec<String>,
    /// Contenders by name, or name=command; `all` is every one.
    #[arg(long, value_delimiter = ',', default_value = "all", value_name = "LIST")]
    pub(crate) contenders: Vec<String>,
    /// Ask over TLS 1.3 what the scenarios ask plainly; `-tls` is added to their names.
    #[arg(long)]
    pub(crate) tls: bool,
    /// Ask over HTTP/2: by ALPN with --tls, by prior knowledge without; `-h2` is added to the names.
    #[arg(long)]
    pub(crate) http2: bool,
    /// Streams under way on each connection, with --http2 (as many as the scenario has requests).
    #[arg(long, value_name = "N", requires = "http2")]
    pub(crate) streams: Option<usize>,
    /// Open loops at 50 and 80 % of the capacity that all have, for latency, where the scenarios are
    /// closed loops; `-open` is added to their names.
    #[arg(long, conflicts_with = "repeats")]
    pub(crate) open: bool,
    /// Open loops at these rates instead, such as 2k,20k requests a second: what a request costs, and how
    /// long it takes, where a server sleeps between requests.
    #[arg(long, value_parser = rate, value_delimiter = ',', value_name = "LIST", conflicts_with = "repeats")]
    pub(crate) rates: Vec<f64>,
    /// Connections per server, level by level (those of the scenario).
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) concurrency: Vec<usize>,
    /// Ask each contender this scenario too, in the same blocks and with as many connections, as an arm
    /// `NAME (SCENARIO)`: how two things compare that one server does.
    #[arg(long, value_name = "SCENARIO", conflicts_with_all = ["repeats", "open", "rates"])]
    pub(crate) beside: Option<String>,
    /// All servers up at once, short slices in rotation: the default, unless --repeats is given.
    #[arg(long, conflicts_with = "repeats")]
    pub(crate) paired: bool,
    /// Paired: how many blocks; a block has each contender once.
    #[arg(long, value_name = "N", conflicts_with = "repeats")]
    pub(crate) blocks: Option<usize>,
    /// Fresh processes, one at a time: how often each contender runs.
    #[arg(long, value_name = "N")]
    pub(crate) repeats: Option<usize>,
    /// How long each is warmed up before it counts, with --repeats.
    #[arg(long, value_parser = time, value_name = "TIME")]
    pub(crate) warmup: Option<Duration>,
    /// How long a block of one contender asks: 10s with --repeats, 40ms paired, more with many
    /// connections, 1.5s in open loops.
    #[arg(long, value_parser = time, value_name = "TIME")]
    pub(crate) duration: Option<Duration>,
    /// How long all of it may take; the design is planned to fit, and says what it can see.
    #[arg(long, value_parser = time, value_name = "TIME")]
    pub(crate) budget: Option<Duration>,
    /// The contender that others are compared with (the first one).
    #[arg(long, value_name = "NAME")]
    pub(crate) reference: Option<String>,
    /// The smallest difference that counts, such as 2%.
    #[arg(long, value_parser = share, value_name = "SHARE")]
    pub(crate) min_effect: Option<f64>,
    /// Where run files and the report go; the same command goes on after a crash.
    #[arg(long, default_value = "runs/latest", value_name = "FOLDER")]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) bench: Bench,
}

#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// A contender by name, or name=command.
    pub(crate) one: String,
    /// The contender that it is compared with.
    pub(crate) other: String,
    /// What is asked.
    #[arg(long, default_value = "json")]
    pub(crate) scenario: String,
    /// Ask over TLS 1.3.
    #[arg(long)]
    pub(crate) tls: bool,
    /// Ask over HTTP/2: by ALPN with --tls, by prior knowledge without.
    #[arg(long)]
    pub(crate) http2: bool,
    /// Streams under way on each connection, with --http2 (as many as the scenario has requests).
    #[arg(long, value_name = "N", requires = "http2")]
    pub(crate) streams: Option<usize>,
    /// Connections (64).
    #[arg(long, default_value_t = 64)]
    pub(crate) concurrency: usize,
    /// The smallest difference that counts, such as 2%.
    #[arg(long, value_parser = share, default_value = "2%")]
    pub(crate) min_effect: f64,
    /// End with exit code 1 if this is the verdict on the first one.
    #[arg(long, value_enum)]
    pub(crate) fail_if: Option<FailIf>,
    /// How many paired blocks.
    #[arg(long, default_value_t = 60)]
    pub(crate) blocks: usize,
    /// How long each contender is measured in a block.
    #[arg(long, value_parser = time, value_name = "TIME")]
    pub(crate) duration: Option<Duration>,
    /// Where the run file and the report go (nowhere).
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) bench: Bench,
}

/// A verdict that ends a comparison with a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FailIf {
    /// The first one costs more than the second.
    Slower,
    /// The first one costs less.
    Faster,
    /// Either.
    Different,
}

#[derive(Debug, Args)]
pub(crate) struct Ladder {
    /// A contender by name, or name=command.
    pub(crate) contender: String,
    /// The promise, such as p99<5ms.
    #[arg(long, default_value = "p99<5ms")]
    pub(crate) slo: String,
    /// What is asked.
    #[arg(long, default_value = "json")]
    pub(crate) scenario: String,
    /// Connections.
    #[arg(long, default_value_t = 64)]
    pub(crate) concurrency: usize,
    /// How long each rate is tried.
    #[arg(long, value_parser = time, default_value = "3s")]
    pub(crate) duration: Duration,
    #[command(flatten)]
    pub(crate) bench: Bench,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// A contender by name, name=command, or an http:// URL on this machine.
    pub(crate) subject: String,
    /// Which scenarios (all).
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) scenario: Vec<String>,
    /// Ask over TLS 1.3 what the scenarios ask plainly; not for a URL.
    #[arg(long)]
    pub(crate) tls: bool,
    /// Ask over HTTP/2: by ALPN with --tls, by prior knowledge without; not for a URL.
    #[arg(long)]
    pub(crate) http2: bool,
    #[command(flatten)]
    pub(crate) bench: Bench,
}

#[derive(Debug, Args)]
pub(crate) struct Report {
    /// A folder with run files, or run files.
    #[arg(required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// Write report.html.
    #[arg(long)]
    pub(crate) html: bool,
    /// Write report.md.
    #[arg(long)]
    pub(crate) md: bool,
    /// Write report.json.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write forest.svg: the ratios of server CPU time as one picture.
    #[arg(long)]
    pub(crate) svg: bool,
    /// Where they go (the folder of the run files).
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Pack {
    /// A folder with run files, or one run file.
    pub(crate) runs: PathBuf,
    /// Where runs.json.xz and report.md go. The folder that is packed stays as it is.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: PathBuf,
    /// Write forest.svg as well.
    #[arg(long)]
    pub(crate) svg: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Reproduce {
    /// A claim file, by path or name, such as alos-https.
    pub(crate) claim: PathBuf,
    /// How long all of it may take.
    #[arg(long, value_parser = time, default_value = "15m")]
    pub(crate) budget: Duration,
    /// Where run files and the report go (runs/CLAIM).
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) bench: Bench,
}

#[derive(Debug, Args)]
pub(crate) struct Contenders {
    /// Only these.
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Build them.
    #[arg(long)]
    pub(crate) build: bool,
}

/// A time such as 250ms, 10s, 15m or 2h.
fn time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err("a time has a unit, as in 250ms, 10s or 15m".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| format!("{number:?} is no number"))?;
    Duration::try_from_secs_f64(number * factor)
        .ok()
        .filter(|time| !time.is_zero() && *time <= Duration::from_secs(24 * 3600))
        .ok_or_else(|| "a time is above 0 and at most a day".to_owned())
}

/// A share such as 2% or 0.02.
fn share(text: &str) -> Result<f64, String> {
    let (number, factor) = match text.strip_suffix('%') {
        Some(number) => (number, 0.01),
        None => (text, 1.0),
    };
    let share =
        number.trim().parse::<f64>().map_err(|_| format!("{number:?} is no number"))? * factor;
    if (0.0..1.0).contains(&share) {
        Ok(share)
    } else {
        Err("a difference is at least 0 and below 100%".to_owned())
    }
}

/// Requests a second, such as 2000 or 20k.
fn rate(text: &str) -> Result<f64, String> {
    command::number(text)
        .filter(|rate| (1.0..=1e7).contains(rate))
        .ok_or_else(|| "a rate is a number from 1 to 10M requests a second".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn times_shares_and_rates_are_read_with_their_units() {
        assert_eq!(time("40ms"), Ok(Duration::from_millis(40)));
        assert_eq!(time("15m"), Ok(Duration::from_secs(900)));
        assert_eq!(time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(share("2%"), Ok(0.02));
        assert_eq!(share("0.05"), Ok(0.05));
        for text in ["", "10", "0s", "2d", "-1s", "s", "1e9h"] {
            assert!(time(text).is_err(), "{text}");
        }
        for text in ["", "x%", "150%", "-1%"] {
            assert!(share(text).is_err(), "{text}");
        }
        assert_eq!((rate("2000"), rate("20k"), rate("1.5k")), (Ok(2e3), Ok(2e4), Ok(1.5e3)));
        for text in ["", "k", "0", "-1", "NaN", "inf", "20g", "11M"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_look_is_as_long_as_it_has_to_be_unless_a_test_says_otherwise() {
        let line = ["lab", "compare", "peregrine", "axum"];
        let options = Options::try_parse_from(line).unwrap();
        let Command::Compare(options) = options.command else { panic!("{options:?}") };
        assert_eq!(options.bench.look, peregrine_lab_run::wanted::LOOK_TIME);
    }

    #[test]
    fn options_of_the_generator_are_left_to_it() {
        let words = ["lab", "load", "http://127.0.0.1:1/", "--rate", "20k", "--duration", "10s"];
        let options = Options::try_parse_from(words).unwrap();
        let Command::Load(rest) = options.command else { panic!("{options:?}") };
        assert_eq!(rest.words, words[2..]);
    }

    #[test]
    fn the_runs_of_the_readme_are_understood() {
        for line in [
            "lab doctor",
            "lab audit claims/alos-https.toml",
            "lab audit --connections 500 --rps 144342 --mean 4.99ms",
            "lab reproduce claims/alos-https.toml --budget 15m",
            "lab run scenarios/project-work.toml --contenders peregrine,axum --concurrency 16,64,256 \
             --repeats 3 --warmup 2s --duration 10s --out runs/today",
            "lab compare peregrine axum --scenario json --min-effect 2% --fail-if slower",
            "lab compare peregrine axum --tune",
            "lab run json relay --tls --open --concurrency 1,64,1500",
            "lab run json --rates 2k,20k --concurrency 64",
            "lab compare peregrine axum --scenario spawn --tls",
            "lab verify axum --scenario relay --tls",
            "lab run json --http2 --streams 100 --concurrency 1,32,256 --tls",
            "lab compare peregrine axum --http2 --streams 10",
            "lab verify axum --http2",
            "lab ladder peregrine --slo p99<5ms",
            "lab verify http://127.0.0.1:8080/",
            "lab report runs/today --html --md --json",
            "lab pack runs/today --out docs/results/today --svg",
            "lab null",
            "lab contenders",
        ] {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert!(Options::try_parse_from(words).is_ok(), "{line}");
        }
    }
}
