//! Settings from a file and the environment: printed, checked, and reloaded while the server runs.
#![forbid(unsafe_code)]

use peregrine::config::{ListenerConfig, ServerConfig};
use peregrine::prelude::*;
use std::path::PathBuf;
use std::process::exit;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ABOUT: &str = "\
Settings from a file and the environment. SIGHUP reloads them.

  --config FILE    reads settings from a TOML file
  --print-config   prints the effective settings and exits
  --check-config   checks whether the settings are valid and exits
  --routes         lists the routes and exits

Try: curl http://127.0.0.1:8080/";

/// The options on the command line.
#[derive(Default)]
struct Asked {
    file: Option<PathBuf>,
    prints: bool,
    checks: bool,
    lists: bool,
}

fn asked() -> Asked {
    let (mut asked, mut arguments) = (Asked::default(), std::env::args().skip(1));
    while let Some(argument) = arguments.next() {
        match &*argument {
            "--config" => {
                let Some(file) = arguments.next() else {
                    eprintln!("--config needs the path of a TOML file");
                    exit(2);
                };
                asked.file = Some(file.into());
            }
            "--print-config" => asked.prints = true,
            "--check-config" => asked.checks = true,
            "--routes" => asked.lists = true,
            // `--help`, or an unknown argument: this call prints a message and exits.
            _ => drop(peregrine_examples::address(ABOUT)),
        }
    }
    asked
}

fn app() -> App {
    App::new().get("/", || "configured\n")
}

fn main() -> peregrine::Result<()> {
    let asked = asked();
    if asked.lists {
        print!("{}", app().routes()?);
        exit(0);
    }
    // The file overrides the program's defaults, and the environment overrides the file.
    let mut code = ServerConfig::default();
    let main =
        ListenerConfig { address: Some(peregrine_examples::place()), ..ListenerConfig::default() };
    code.listeners.insert("main".to_owned(), main);
    let config = match asked.file {
        Some(path) => ServerConfig::load_over(code, path)?,
        None => ServerConfig::from_env(code)?,
    };
    if asked.prints {
        print!("{config}");
        exit(0);
    }
    let level = EnvFilter::try_new(&config.logging.level).unwrap_or_else(|error| {
        eprintln!("`logging.level`: {error}");
        exit(1);
    });
    let server = Server::from_config(config)?;
    if asked.checks {
        println!("the settings are valid");
        exit(0);
    }
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false);
    let log = log.with_env_filter(level).with_filter_reloading();
    let levels = log.reload_handle();
    log.init();
    let server = server.on_reload(move |config| match EnvFilter::try_new(&config.logging.level) {
        Ok(level) => drop(levels.reload(level)),
        Err(error) => eprintln!("`logging.level` is not changed: {error}"),
    });
    server.serve(app)
}
