//! The program: reads the settings, opens the database, runs the server, and closes the database.
#![forbid(unsafe_code)]

use peregrine::config::{ListenerConfig, ServerConfig};
use peregrine::openapi::OpenApiExt;
use peregrine::prelude::*;
use peregrine_conduit::{Conduit, Settings};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::task::block_in_place;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ABOUT: &str = "\
Conduit: an API with a database, users, uploads, live updates and pages.

Usage: conduit [--development] [--config FILE] [--document]

  --development   generates a secret for this process if none is set
  --config FILE   reads the server's settings from a TOML file
  --document      prints the OpenAPI document and exits

Variables:
  CONDUIT_SECRET                the key that signs tokens: at least 32 random bytes
  CONDUIT_DATABASE              the database file (conduit.db)
  CONDUIT_DATABASE_CONNECTIONS  the number of database connections (8)
  CONDUIT_WAIT_MAX              how long a request waits for a connection, a writer, or a password hash (3s)
  CONDUIT_UPLOADS               the folder of pictures (uploads)
  CONDUIT_UPLOAD_BYTES_MAX      the maximum size of a picture (2 MiB)
  CONDUIT_TOKEN_LIFETIME        the lifetime of a token (1d)
  CONDUIT_LOGINS_PER_MINUTE     the maximum login attempts per account and minute (20)
  PEREGRINE_..                  settings of the server: PEREGRINE_LISTENERS__MAIN__ADDRESS=127.0.0.1:8080";

/// The options on the command line.
#[derive(Default)]
struct Asked {
    is_development: bool,
    file: Option<PathBuf>,
    prints_document: bool,
}

/// Parses the command line. The error is the exit code, after `--help` or a message was printed.
fn asked() -> Result<Asked, ExitCode> {
    let (mut asked, mut arguments) = (Asked::default(), std::env::args().skip(1));
    while let Some(argument) = arguments.next() {
        match &*argument {
            "--development" => asked.is_development = true,
            "--document" => asked.prints_document = true,
            "--config" => match arguments.next() {
                Some(file) => asked.file = Some(file.into()),
                None => {
                    eprintln!("--config needs the path of a TOML file");
                    return Err(ExitCode::from(2));
                }
            },
            "--help" | "-h" => {
                println!("{ABOUT}");
                return Err(ExitCode::SUCCESS);
            }
            unknown => {
                eprintln!("conduit: unknown argument `{unknown}`; see `conduit --help`");
                return Err(ExitCode::from(2));
            }
        }
    }
    Ok(asked)
}

/// The settings of the server: the file and the environment override the defaults set here.
fn server_config(file: Option<PathBuf>) -> peregrine::Result<ServerConfig> {
    let mut code = ServerConfig::default();
    let address = Some("127.0.0.1:8080".to_owned());
    code.listeners
        .insert("main".to_owned(), ListenerConfig { address, ..ListenerConfig::default() });
    let config = match file {
        Some(file) => ServerConfig::load_over(code, file)?,
        None => ServerConfig::from_env(code)?,
    };
    Ok(config)
}

async fn run(asked: Asked) -> Result<(), Box<dyn Error>> {
    let config = server_config(asked.file)?;
    let level = EnvFilter::try_new(&config.logging.level)
        .map_err(|error| format!("`logging.level`: {error}"))?;
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(level).init();
    let settings = Settings::from_environment()?.checked(asked.is_development)?;
    let conduit = Conduit::open(&settings).await?;
    if asked.prints_document {
        println!("{}", conduit.app().openapi()?);
        conduit.close().await;
        return Ok(());
    }
    let server = Server::from_config(config)?;
    // This runtime drives the pool; the server's workers have their own. SIGTERM and Ctrl-C shut
    // the server down gracefully, and then the database is closed.
    let shared = conduit.clone();
    let served = block_in_place(|| server.serve(move || shared.app()));
    conduit.close().await;
    Ok(served?)
}

#[tokio::main]
async fn main() -> ExitCode {
    let asked = match asked() {
        Ok(asked) => asked,
        Err(code) => return code,
    };
    match run(asked).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("conduit: {error}");
            ExitCode::FAILURE
        }
    }
}
