//! The command line of `paired`, as typed.

use std::path::PathBuf;

pub(crate) const USAGE: &str = "\
paired: paired time slices between HTTP servers

usage:
  paired [options] (--contender NAME | --server 'NAME=COMMAND ...')...
  paired make-cert --out FOLDER

options:
  --workload NAME       get-json (default), pipelined, post-project-work, https-json
  --connections N       keep-alive connections per server (64)
  --slices N            slices per contender (80)
  --slice-ms N          length of a slice in milliseconds (40)
  --warmup N            unmeasured slices per contender before (10)
  --seed N              decides the order and the resampling (1)
  --contender NAME      a recipe: CONTENDERS/NAME/contender.toml
  --server NAME=COMMAND a server that listens on the variable PORT, or on {port} in its arguments
  --reference NAME      whom the others are compared with (the first one)
  --no-again            leave out the A/A arm: the first contender started once more
  --memory              measure bytes per idle connection instead (--connections: 2000)
  --build               run the recipes' build commands first
  --contenders FOLDER   where recipes are (lab/contenders)
  --target FOLDER       where built programs are (CARGO_TARGET_DIR, or CONTENDERS/target)
  --server-cpus LIST    CPUs of the servers, such as 0 or 0,2 (0); none: anywhere
  --client-cpus LIST    CPUs of the client (1); none: anywhere
  --engine NAME         ring or epoll (the ring, if the kernel allows it)
  --tls-cert FILE --tls-key FILE   PEM files for TLS workloads (made for the run)
  --out FILE            write the run file, JSON
";

/// The options as typed, with their defaults.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) workload: String,
    pub(crate) connections: Option<usize>,
    pub(crate) slices: usize,
    pub(crate) slice_ms: u64,
    pub(crate) warmup: usize,
    pub(crate) seed: u64,
    pub(crate) servers: Vec<Server>,
    pub(crate) reference: Option<String>,
    pub(crate) has_again: bool,
    pub(crate) is_memory: bool,
    pub(crate) is_build: bool,
    pub(crate) contenders: PathBuf,
    pub(crate) target: Option<PathBuf>,
    pub(crate) server_cpus: Vec<usize>,
    pub(crate) client_cpus: Vec<usize>,
    pub(crate) engine: Option<String>,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) out: Option<PathBuf>,
}

/// A server as it was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Server {
    /// By its recipe.
    Recipe(String),
    /// By its command.
    Command(String),
}

impl Default for Options {
    fn default() -> Options {
        Options {
            workload: "get-json".to_owned(),
            connections: None,
            slices: 80,
            slice_ms: 40,
            warmup: 10,
            seed: 1,
            servers: Vec::new(),
            reference: None,
            has_again: true,
            is_memory: false,
            is_build: false,
            contenders: PathBuf::from("lab/contenders"),
            target: None,
            server_cpus: vec![0],
            client_cpus: vec![1],
            engine: None,
            tls_cert: None,
            tls_key: None,
            out: None,
        }
    }
}

impl Options {
    /// Reads the arguments; the error says what is wrong with them.
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options::default();
        let mut rest = arguments;
        while let Some(name) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("{name} needs a value"));
            match name.as_str() {
                "--workload" => options.workload = value()?,
                "--connections" => options.connections = Some(number(&name, &value()?)?),
                "--slices" => options.slices = number(&name, &value()?)?,
                "--slice-ms" => options.slice_ms = number(&name, &value()?)?,
                "--warmup" => options.warmup = number(&name, &value()?)?,
                "--seed" => options.seed = number(&name, &value()?)?,
                "--contender" => options.servers.push(Server::Recipe(value()?)),
                "--server" => options.servers.push(Server::Command(value()?)),
                "--reference" => options.reference = Some(value()?),
                "--no-again" => options.has_again = false,
                "--memory" => options.is_memory = true,
                "--build" => options.is_build = true,
                "--contenders" => options.contenders = value()?.into(),
                "--target" => options.target = Some(value()?.into()),
                "--server-cpus" => options.server_cpus = cpus(&name, &value()?)?,
                "--client-cpus" => options.client_cpus = cpus(&name, &value()?)?,
                "--engine" => options.engine = Some(value()?),
                "--tls-cert" => options.tls_cert = Some(value()?.into()),
                "--tls-key" => options.tls_key = Some(value()?.into()),
                "--out" => options.out = Some(value()?.into()),
                _ => return Err(format!("no such option: {name}")),
            }
        }
        options.check()?;
        Ok(options)
    }

    fn check(&self) -> Result<(), String> {
        if self.servers.is_empty() {
            return Err("name at least one --contender or --server".to_owned());
        }
        if self.slices == 0 || self.slice_ms == 0 || self.connections == Some(0) {
            return Err("slices, their length and connections are at least 1".to_owned());
        }
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            return Err("--tls-cert and --tls-key go together".to_owned());
        }
        Ok(())
    }
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{name} needs a number, not {text:?}"))
}

fn cpus(name: &str, text: &str) -> Result<Vec<usize>, String> {
    if text == "none" {
        return Ok(Vec::new());
    }
    text.split(',').map(|cpu| number(name, cpu)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn options_are_read_in_any_order() {
        let options =
            parse("--server-cpus 0,2 --contender axum --slices 50 --server x=y --no-again")
                .unwrap();
        assert_eq!(options.server_cpus, [0, 2]);
        assert_eq!(options.slices, 50);
        assert!(!options.has_again);
        assert_eq!(options.servers.len(), 2);
        assert!(parse("--client-cpus none --contender axum").unwrap().client_cpus.is_empty());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, words) in [
            ("", "at least one"),
            ("--contender axum --slices x", "--slices needs a number"),
            ("--contender axum --slices 0", "at least 1"),
            ("--contender", "needs a value"),
            ("--contender axum --speed", "no such option: --speed"),
            ("--contender axum --tls-key k", "go together"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(words), "{line:?} gives {error:?}");
        }
    }
}
