//! Peregrine with a folder of files, as its guide shows it: `Files` with its defaults.

use std::env;
use std::fmt::Write;
use std::fs;
use std::num::NonZeroUsize;

use peregrine::files::Files;
use peregrine::prelude::*;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The files, and how many lines of ten bytes each has.
const FILES: [(&str, usize); 3] = [("1k.bin", 100), ("300k.bin", 30_000), ("10m.bin", 1_000_000)];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    for (name, lines) in FILES {
        fs::write(folder.path().join(name), numbered_lines(lines))?;
    }
    let port = text("PORT").unwrap_or_else(|| "8080".to_owned());
    let mut server = Server::bind(format!("127.0.0.1:{port}"));
    if let (Some(certificate), Some(key)) = (text("TLS_CERT"), text("TLS_KEY")) {
        let port = text("TLS_PORT").unwrap_or_else(|| "8443".to_owned());
        let tls = TlsConfig::from_pem_files(certificate, key)?;
        server = server.listen_tls(format!("127.0.0.1:{port}"), tls);
    }
    if let Some(workers) = text("WORKERS").and_then(|count| count.parse::<NonZeroUsize>().ok()) {
        server = server.workers(workers);
    }
    let root = folder.path().to_owned();
    server.serve(move || App::new().subtree("/files", Files::dir(&root)))?;
    Ok(())
}

fn numbered_lines(lines: usize) -> String {
    let mut text = String::with_capacity(lines * 10);
    for number in 0..lines {
        // Writing to a string never fails.
        let _ = writeln!(text, "{number:09}");
    }
    text
}

fn text(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
