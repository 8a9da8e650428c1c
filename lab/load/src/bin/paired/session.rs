//! One run of `paired`, from options to report.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use peregrine_lab_load::certificate::{self, CertificateFiles};
use peregrine_lab_load::client::{Client, EngineKind};
use peregrine_lab_load::contender::Recipe;
use peregrine_lab_load::host::{Host, Started};
use peregrine_lab_load::machine::{Machine, cpu_use};
use peregrine_lab_load::memory;
use peregrine_lab_load::process::{pin_this_thread, raise_descriptor_limit};
use peregrine_lab_load::report::{Entry, Run, SCHEMA};
use peregrine_lab_load::slices::{Plan, Runner, measure};
use peregrine_lab_load::workload::Workload;

use crate::options::{Options, Server, USAGE};

/// The connections of a memory run, unless set otherwise.
const MEMORY_CONNECTIONS: usize = 2000;

/// The connections of a paired run, unless set otherwise.
const PAIRED_CONNECTIONS: usize = 64;

pub(crate) fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        None | Some("--help" | "-h" | "help") => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Some("make-cert") => make_certificate(&arguments[1..]),
        Some(_) => match Options::parse(arguments.into_iter()) {
            Ok(options) => run(&options),
            Err(error) => {
                eprintln!("paired: {error}");
                return ExitCode::from(2);
            }
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("paired: {error}");
            ExitCode::FAILURE
        }
    }
}

fn make_certificate(arguments: &[String]) -> io::Result<()> {
    let [option, folder] = arguments else { return Err(invalid("make-cert needs --out FOLDER")) };
    if option != "--out" {
        return Err(invalid("make-cert needs --out FOLDER"));
    }
    let files = certificate::write(Path::new(folder))?;
    println!("{}\n{}", files.certificate.display(), files.key.display());
    Ok(())
}

fn run(options: &Options) -> io::Result<()> {
    let workload = Workload::named(&options.workload)
        .ok_or_else(|| invalid(&format!("workloads: {}", Workload::NAMES.join(", "))))?;
    let workload = Arc::new(workload);
    let recipes = recipes(options)?;
    // Kept until the servers have ended; the folder vanishes with it.
    let made = if workload.is_tls && options.tls_cert.is_none() {
        Some(tempfile::tempdir()?)
    } else {
        None
    };
    let host = host(options, made.as_ref().map(tempfile::TempDir::path))?;
    if options.is_build {
        build(&recipes, &host.target)?;
    }
    raise_descriptor_limit()?;
    // Read before pinning, which hides the other CPUs.
    let machine = Machine::read();
    pin_this_thread(&options.client_cpus)?;
    let engine = match options.engine.as_deref() {
        None => None,
        Some("ring") => Some(EngineKind::Ring),
        Some("epoll") => Some(EngineKind::Epoll),
        Some(_) => return Err(invalid("engines: ring, epoll")),
    };
    let mut client = Client::new(engine)?;
    if options.is_memory {
        return run_memory(options, client.kind(), &host, &recipes, &workload, machine);
    }
    let run = run_paired(options, &mut client, &host, recipes, &workload, machine)?;
    print!("{}", run.markdown());
    if let Some(out) = &options.out {
        std::fs::write(out, serde_json::to_vec(&run)?)?;
    }
    Ok(())
}

fn recipes(options: &Options) -> io::Result<Vec<Recipe>> {
    options
        .servers
        .iter()
        .map(|server| match server {
            Server::Recipe(name) => Recipe::load(&options.contenders, name),
            Server::Command(text) => {
                Recipe::parse(text).ok_or_else(|| invalid("--server needs NAME=COMMAND"))
            }
        })
        .collect()
}

fn host(options: &Options, made: Option<&Path>) -> io::Result<Host> {
    let certificate = match (&options.tls_cert, &options.tls_key, made) {
        (Some(certificate), Some(key), _) => Some(CertificateFiles {
            certificate: std::path::absolute(certificate)?,
            key: std::path::absolute(key)?,
        }),
        (_, _, Some(folder)) => Some(certificate::write(folder)?),
        _ => None,
    };
    let target = match (&options.target, std::env::var_os("CARGO_TARGET_DIR")) {
        (Some(target), _) => target.clone(),
        (None, Some(target)) => target.into(),
        (None, None) => options.contenders.join("target"),
    };
    Ok(Host {
        server_cpus: options.server_cpus.clone(),
        certificate,
        target: std::path::absolute(target)?.display().to_string(),
    })
}

fn build(recipes: &[Recipe], target: &str) -> io::Result<()> {
    for recipe in recipes {
        let Some((program, arguments)) = recipe.build.split_first() else { continue };
        let status = std::process::Command::new(program)
            .args(arguments)
            .env("CARGO_TARGET_DIR", target)
            .current_dir(&recipe.folder)
            .status()?;
        if !status.success() {
            return Err(io::Error::other(format!("{} did not build", recipe.name)));
        }
    }
    Ok(())
}

fn run_paired(
    options: &Options,
    client: &mut Client,
    host: &Host,
    mut recipes: Vec<Recipe>,
    workload: &Arc<Workload>,
    machine: Machine,
) -> io::Result<Run> {
    let reference = match &options.reference {
        None => 0,
        Some(name) => recipes
            .iter()
            .position(|recipe| recipe.name == *name)
            .ok_or_else(|| invalid("the reference is none of the contenders"))?,
    };
    let again = options.has_again.then_some(recipes.len());
    if options.has_again {
        let mut twin = recipes[0].clone();
        twin.name += " (again)";
        recipes.push(twin);
    }
    let connections = options.connections.unwrap_or(PAIRED_CONNECTIONS);
    let (mut contenders, mut runners) = (Vec::new(), Vec::<Runner>::new());
    for recipe in &recipes {
        let Started { runner, command } = host.start(client, recipe, workload, connections)?;
        contenders.push(Entry { name: recipe.name.clone(), command });
        runners.push(runner);
    }
    let plan = Plan {
        slices: options.slices,
        slice_ms: options.slice_ms,
        warmup_slices: options.warmup,
        seed: options.seed,
    };
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let before = cpu_use(&host.server_cpus);
    let measured = measure(client, &mut runners, &plan)?;
    let after = cpu_use(&host.server_cpus);
    Ok(Run {
        schema: SCHEMA,
        started_unix_s: started.as_secs(),
        command: std::env::args().collect(),
        machine,
        workload: workload.name.clone(),
        connections,
        engine: client.kind(),
        server_cpus: host.server_cpus.clone(),
        client_cpus: options.client_cpus.clone(),
        plan,
        contenders,
        reference,
        again,
        busy_ticks: after.busy - before.busy,
        stolen_ticks: after.stolen - before.stolen,
        measured,
    })
}

fn run_memory(
    options: &Options,
    kind: EngineKind,
    host: &Host,
    recipes: &[Recipe],
    workload: &Arc<Workload>,
    machine: Machine,
) -> io::Result<()> {
    let connections = options.connections.unwrap_or(MEMORY_CONNECTIONS);
    println!("## Memory of idle connections, each after one request: {}\n", workload.name);
    println!("| contender | open connections | bytes per idle connection | faults |");
    println!("|---|---|---|---|");
    let mut rows = Vec::new();
    for recipe in recipes {
        // One at a time: the server and its client end before the next ones start.
        let mut client = Client::new(Some(kind))?;
        let Started { runner, command } = host.start(&mut client, recipe, workload, 1)?;
        let memory = memory::measure(&mut client, &runner, connections)?;
        let each = memory.bytes_per_connection();
        let told = if each.is_nan() { "void".to_owned() } else { format!("{each:.0}") };
        println!("| {} | {} | {told} | {} |", recipe.name, memory.connections, memory.faults);
        rows.push(serde_json::json!({
            "name": recipe.name,
            "command": command,
            "bytes_per_connection": each,
            "memory": memory,
        }));
    }
    if let Some(out) = &options.out {
        let file = serde_json::json!({
            "schema": SCHEMA,
            "command": std::env::args().collect::<Vec<_>>(),
            "machine": machine,
            "workload": workload.name,
            "rows": rows,
        });
        std::fs::write(out, serde_json::to_vec(&file)?)?;
    }
    Ok(())
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
