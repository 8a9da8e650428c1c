//! Other load tools, run with the same parameters and read into the same figures.
//!
//! They judge less than the lab's own client does: wrk and oha look at the status only, and none
//! of them reads a body. So their figures are for comparison, and never stand alone.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::{Command, Stdio};

use crate::generator::Plan;
use crate::latency::Percentile;
use crate::question::Wording;
use crate::schedule::Schedule;
use crate::summary::Summary;

/// A load tool that is not ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// wrk: a closed loop.
    Wrk,
    /// h2load: a closed loop, or a rate per connection.
    H2load,
    /// oha: a closed loop or, with latency from the intended start, a rate.
    Oha,
}

impl Tool {
    /// The tool of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Tool> {
        [Tool::Wrk, Tool::H2load, Tool::Oha].into_iter().find(|tool| tool.program() == name)
    }

    /// The name of its program.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Tool::Wrk => "wrk",
            Tool::H2load => "h2load",
            Tool::Oha => "oha",
        }
    }

    /// The arguments for the same load as the plan's. `script` is the path of the Lua script that
    /// wrk needs, `body` the one of the file that h2load needs, if [`needs_file`] says so.
    ///
    /// # Errors
    ///
    /// A sentence that says what the tool cannot do.
    pub fn arguments(
        self,
        plan: &Plan,
        wording: &Wording,
        url: &str,
        file: &str,
    ) -> Result<Vec<String>, String> {
        if !plan.question.is_constant() {
            return Err("it cannot vary its requests in the same way".to_owned());
        }
        if plan.requests_per_connection.is_some() {
            return Err("it cannot close connections in the same way".to_owned());
        }
        let (connections, threads) = (plan.connections.to_string(), plan.threads.to_string());
        let seconds = plan.duration.as_secs().max(1);
        let headers = wording.fields.iter().map(|(name, value)| format!("{name}: {value}"));
        let mut words: Vec<String> = Vec::new();
        let mut add = |more: &[&str]| words.extend(more.iter().map(|&word| word.to_owned()));
        match (self, &plan.schedule) {
            (Tool::Wrk, Schedule::Closed) => {
                let timeout = format!("{}s", plan.timeout.as_secs().max(1));
                add(&["--latency", "-t", &threads, "-c", &connections]);
                add(&["-d", &format!("{seconds}s"), "--timeout", &timeout]);
                if needs_file(self, plan, wording) {
                    add(&["-s", file]);
                }
            }
            (Tool::Wrk, _) => return Err("it has no open loop".to_owned()),
            (Tool::H2load, schedule) => {
                let depth = plan.depth.to_string();
                add(&["--h1", "-t", &threads, "-c", &connections, "-m", &depth]);
                add(&["-D", &seconds.to_string()]);
                match schedule {
                    Schedule::Closed => {}
                    Schedule::Constant { rate } => {
                        add(&["--rps", &format!("{:.3}", rate / plan.connections as f64)]);
                    }
                    _ => return Err("it has no such schedule".to_owned()),
                }
                if wording.body.is_some() {
                    add(&["-d", file]);
                } else if wording.method != "GET" {
                    add(&["-H", &format!(":method: {}", wording.method)]);
                }
            }
            (Tool::Oha, schedule) => {
                add(&["--no-tui", "--output-format", "json", "-c", &connections]);
                add(&["-z", &format!("{seconds}s"), "-m", &wording.method]);
                match schedule {
                    Schedule::Closed => {}
                    Schedule::Constant { rate } => {
                        add(&["-q", &format!("{rate:.0}"), "--latency-correction"]);
                    }
                    _ => return Err("it has no such schedule".to_owned()),
                }
                if plan.depth > 1 {
                    return Err("it does not pipeline".to_owned());
                }
                if wording.body.is_some() {
                    add(&["-D", file]);
                }
            }
        }
        for header in headers {
            words.extend(["-H".to_owned(), header]);
        }
        words.push(url.to_owned());
        Ok(words)
    }

    /// Reads what the tool printed.
    ///
    /// # Errors
    ///
    /// `InvalidData` if that is not the form that is known.
    pub fn read(self, output: &str) -> io::Result<Summary> {
        let summary = match self {
            Tool::Wrk => read_wrk(output),
            Tool::H2load => read_h2load(output),
            Tool::Oha => read_oha(output),
        };
        let unknown = || io::Error::new(io::ErrorKind::InvalidData, "its output is not understood");
        let summary = summary.ok_or_else(unknown)?;
        Ok(Summary { tool: self.program().to_owned(), ..summary })
    }
}

/// Whether the tool takes the body, or the method, from a file.
#[must_use]
pub fn needs_file(tool: Tool, plan: &Plan, wording: &Wording) -> bool {
    let has_body = wording.body.is_some();
    match tool {
        Tool::Wrk => has_body || wording.method != "GET" || plan.depth > 1,
        Tool::H2load | Tool::Oha => has_body,
    }
}

/// Runs the tool and reads what it says.
///
/// # Errors
///
/// That of starting it (`NotFound` where it is not installed), `Unsupported` with what it cannot
/// do, or `InvalidData` if it failed or printed something else than expected.
pub fn ask(tool: Tool, plan: &Plan, wording: &Wording, url: &str) -> io::Result<Summary> {
    plan.check().map_err(|text| io::Error::new(io::ErrorKind::InvalidInput, text))?;
    let mut file = tempfile::NamedTempFile::new()?;
    if needs_file(tool, plan, wording) {
        let content = match tool {
            Tool::Wrk => wrk_script(plan.depth, wording).into_bytes(),
            Tool::H2load | Tool::Oha => wording.body.clone().unwrap_or_default(),
        };
        file.write_all(&content)?;
        file.flush()?;
    }
    let path = file.path().display().to_string();
    let arguments = tool
        .arguments(plan, wording, url, &path)
        .map_err(|text| io::Error::new(io::ErrorKind::Unsupported, text))?;
    let output = Command::new(tool.program()).args(arguments).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let first = text.lines().next().unwrap_or("it failed").to_owned();
        return Err(io::Error::new(io::ErrorKind::InvalidData, first));
    }
    let summary = tool.read(&String::from_utf8_lossy(&output.stdout))?;
    Ok(Summary {
        schedule: plan.schedule.words(),
        connections: Some(plan.connections as u64),
        ..summary
    })
}

/// A script that makes wrk send another method, a body, or several requests at a time.
fn wrk_script(depth: usize, wording: &Wording) -> String {
    let quoted = |bytes: &[u8]| {
        let escaped: String = bytes.iter().map(|byte| format!("\\{byte:03}")).collect();
        format!("\"{escaped}\"")
    };
    let mut script = format!("wrk.method = {}\n", quoted(wording.method.as_bytes()));
    if let Some(body) = &wording.body {
        script += &format!("wrk.body = {}\n", quoted(body));
    }
    if depth > 1 {
        script += &format!(
            "init = function(args)\n  local one = wrk.format()\n  all = one:rep({depth})\nend\n\
             request = function() return all end\n"
        );
    }
    script
}

/// The text after `label` in the first line that begins with it.
fn after<'a>(output: &'a str, label: &str) -> Option<&'a str> {
    output.lines().find_map(|line| line.trim_start().strip_prefix(label)).map(str::trim)
}

/// A time such as `1.36ms`, in nanoseconds.
fn time_ns(text: &str) -> Option<f64> {
    let units = [("us", 1e3), ("ms", 1e6), ("ns", 1.0), ("s", 1e9), ("m", 60e9), ("h", 3600e9)];
    let (digits, scale) =
        units.into_iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)))?;
    Some(digits.parse::<f64>().ok()? * scale)
}

/// A percentile for which the tool says nothing about the samples beyond; they are computed from
/// their total.
fn percentile(percent: f64, nanoseconds: f64, count: u64) -> Percentile {
    let beyond = (count as f64 * (100.0 - percent) / 100.0) as u64;
    Percentile { percent, nanoseconds: Some(nanoseconds as u64), beyond }
}

fn keep_positive(errors: &mut BTreeMap<String, u64>) {
    errors.retain(|_, count| *count > 0);
}

fn read_wrk(output: &str) -> Option<Summary> {
    let total_line = output.lines().find(|line| line.contains(" requests in "))?;
    let words: Vec<&str> = total_line.split_whitespace().collect();
    let (total, seconds) = match words[..] {
        [total, "requests", "in", time, ..] => {
            (total.parse::<u64>().ok()?, time_ns(time.trim_end_matches(','))? / 1e9)
        }
        _ => return None,
    };
    let latency: Vec<&str> = output
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|words| words.first() == Some(&"Latency") && words.len() == 5)?;
    let mut errors = BTreeMap::new();
    if let Some(bad) = after(output, "Non-2xx or 3xx responses:") {
        errors.insert("status".to_owned(), bad.parse().ok()?);
    }
    if let Some(socket) = after(output, "Socket errors:") {
        for part in socket.split(',') {
            let (kind, count) = part.trim().split_once(' ')?;
            errors.insert(kind.to_owned(), count.parse().ok()?);
        }
    }
    let wrong = errors.get("status").copied().unwrap_or(0);
    keep_positive(&mut errors);
    let replies = total.saturating_sub(wrong);
    let percentiles = ["50%", "75%", "90%", "99%"]
        .into_iter()
        .filter_map(|label| {
            let percent = label.trim_end_matches('%').parse().ok()?;
            Some(percentile(percent, time_ns(after(output, label)?)?, total))
        })
        .collect();
    Some(Summary {
        replies,
        rate: replies as f64 / seconds,
        seconds,
        mean_ns: Some(time_ns(latency[1])?),
        max_ns: Some(time_ns(latency[3])? as u64),
        percentiles,
        errors,
        ..Summary::default()
    })
}

fn read_h2load(output: &str) -> Option<Summary> {
    let finished = after(output, "finished in ")?;
    let seconds = time_ns(finished.split(',').next()?)? / 1e9;
    let mut counts = BTreeMap::new();
    for part in after(output, "requests:")?.split(',') {
        let (count, kind) = part.trim().split_once(' ')?;
        counts.insert(kind.to_owned(), count.parse::<u64>().ok()?);
    }
    let replies = *counts.get("succeeded")?;
    let mut errors: BTreeMap<String, u64> = counts
        .into_iter()
        .filter(|(kind, _)| matches!(kind.as_str(), "failed" | "errored" | "timeout"))
        .collect();
    keep_positive(&mut errors);
    let times: Vec<&str> = after(output, "time for request:")?.split_whitespace().collect();
    let [_, max, mean, ..] = times[..] else { return None };
    Some(Summary {
        replies,
        rate: replies as f64 / seconds,
        seconds,
        mean_ns: Some(time_ns(mean)?),
        max_ns: Some(time_ns(max)? as u64),
        errors,
        ..Summary::default()
    })
}

fn read_oha(output: &str) -> Option<Summary> {
    let read: serde_json::Value = serde_json::from_str(output).ok()?;
    let figure = |name: &str| read["summary"][name].as_f64();
    let seconds = figure("total")?;
    let counts = |name: &str| -> Vec<(String, u64)> {
        let object = read[name].as_object().into_iter().flatten();
        object.filter_map(|(kind, count)| Some((kind.clone(), count.as_u64()?))).collect()
    };
    let (good, bad): (Vec<_>, Vec<_>) =
        counts("statusCodeDistribution").into_iter().partition(|(code, _)| code.starts_with('2'));
    let replies: u64 = good.iter().map(|(_, count)| count).sum();
    let total = replies + bad.iter().map(|(_, count)| count).sum::<u64>();
    let mut errors: BTreeMap<String, u64> =
        bad.into_iter().map(|(code, count)| (format!("status {code}"), count)).collect();
    // What is under way when the time is over is cut off by design.
    let cut = "aborted due to deadline";
    errors.extend(counts("errorDistribution").into_iter().filter(|(kind, _)| kind != cut));
    let percentiles = [50.0, 90.0, 99.0, 99.9]
        .into_iter()
        .filter_map(|percent| {
            let value = read["latencyPercentiles"][format!("p{percent}")].as_f64()?;
            Some(percentile(percent, value * 1e9, total))
        })
        .collect();
    Some(Summary {
        replies,
        rate: replies as f64 / seconds,
        seconds,
        mean_ns: figure("average").map(|mean| mean * 1e9),
        max_ns: figure("slowest").map(|most| (most * 1e9) as u64),
        percentiles,
        errors,
        ..Summary::default()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::question::Question;

    fn plan(wording: &Wording) -> Plan {
        let question = Arc::new(Question::new(wording).unwrap());
        Plan::new("127.0.0.1:1".parse().unwrap(), question)
    }

    #[test]
    fn the_output_of_wrk_is_read() {
        let summary = Tool::Wrk.read(include_str!("../tests/outputs/wrk.txt")).unwrap();
        assert_eq!(summary.replies, 58_260 - 598);
        assert_eq!(summary.errors["status"], 598);
        assert_eq!(summary.mean_ns, Some(1_360_000.0));
        assert_eq!(summary.max_ns, Some(17_990_000));
        assert_eq!(summary.percentile_ns(50.0), Some(70_000));
        assert_eq!(summary.percentile_ns(99.0), Some(10_400_000));
        assert!((summary.rate - 28_687.0).abs() < 100.0, "{}", summary.rate);
        let broken = include_str!("../tests/outputs/wrk.txt")
            .replace("Requests/sec", "  Socket errors: connect 0, read 3, write 0, timeout 7\nR");
        let summary = Tool::Wrk.read(&broken).unwrap();
        assert_eq!((summary.errors["read"], summary.errors["timeout"]), (3, 7));
        assert!(!summary.errors.contains_key("connect"));
    }

    #[test]
    fn the_output_of_h2load_is_read() {
        let summary = Tool::H2load.read(include_str!("../tests/outputs/h2load.txt")).unwrap();
        assert_eq!(summary.replies, 68_678);
        assert_eq!(summary.errors["failed"], 712);
        assert_eq!(summary.errors.len(), 1);
        assert_eq!(summary.mean_ns, Some(230_000.0));
        assert_eq!(summary.max_ns, Some(21_230_000));
    }

    #[test]
    fn the_output_of_oha_is_read() {
        let summary = Tool::Oha.read(include_str!("../tests/outputs/oha.json")).unwrap();
        assert_eq!(summary.replies, 79_000);
        assert_eq!(summary.errors["status 500"], 1053);
        assert_eq!(summary.errors["connection error"], 2);
        assert_eq!(summary.errors.len(), 2);
        assert_eq!(summary.percentile_ns(99.9), Some(5_000_000));
        assert_eq!(summary.max_ns, Some(12_300_000));
    }

    #[test]
    fn other_output_is_not_understood() {
        for tool in [Tool::Wrk, Tool::H2load, Tool::Oha] {
            for text in ["", "{}", "unable to connect", "1 requests in"] {
                assert!(tool.read(text).is_err(), "{tool:?} {text:?}");
            }
        }
    }

    #[test]
    fn the_parameters_are_the_same_for_every_tool() {
        let wording = Wording { fields: vec![("A".into(), "b".into())], ..Wording::default() };
        let mut plan = plan(&wording);
        (plan.connections, plan.duration) = (30, Duration::from_secs(9));
        for tool in [Tool::Wrk, Tool::H2load, Tool::Oha] {
            let words = tool.arguments(&plan, &wording, "http://127.0.0.1:1/", "f").unwrap();
            let text = words.join(" ");
            assert!(text.contains("-c 30") && text.contains("-H A: b"), "{text}");
            assert!(text.contains('9') && text.ends_with("http://127.0.0.1:1/"), "{text}");
        }
    }

    #[test]
    fn what_a_tool_cannot_do_is_said() {
        let wording = Wording { target: "/{counter}".into(), ..Wording::default() };
        let varied = plan(&wording);
        assert!(Tool::Wrk.arguments(&varied, &wording, "u", "f").is_err());
        let wording = Wording::default();
        let open = Plan { schedule: Schedule::Constant { rate: 5.0 }, ..plan(&wording) };
        assert!(Tool::Wrk.arguments(&open, &wording, "u", "f").is_err());
        assert!(Tool::Oha.arguments(&open, &wording, "u", "f").unwrap().contains(&"-q".into()));
        let piped = Plan { depth: 16, ..plan(&wording) };
        assert!(Tool::Oha.arguments(&piped, &wording, "u", "f").is_err());
        assert!(needs_file(Tool::Wrk, &piped, &wording));
    }
}
