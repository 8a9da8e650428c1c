//! The command `null-server`.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use crate::certificate::CertificateFiles;
use crate::null::{self, RequestEnd, Script};
use crate::system::raise_descriptor_limit;
use crate::workload::Workload;

/// What the command prints for `--help`.
pub const NULL_USAGE: &str = "\
null-server: answers fixed bytes, for calibration

usage: null-server [WORKLOAD]

Without a workload, every request ends with its head and gets 200 and a short JSON body.
The variable PORT names the port for HTTP, TLS_PORT the one for HTTPS, with TLS_CERT and TLS_KEY
(PEM files). At least one port is needed. It listens on 127.0.0.1 only.
";

/// The reply to anybody, where no workload is named.
const ANY_REPLY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
    content-length: 27\r\n\r\n{\"message\":\"Hello, World!\"}";

/// Runs `null-server` with these arguments (without the program's name) until it is killed.
#[must_use]
pub fn null_server(arguments: &[String]) -> ExitCode {
    if matches!(arguments.first().map(String::as_str), Some("--help" | "-h")) {
        print!("{NULL_USAGE}");
        return ExitCode::SUCCESS;
    }
    match serve(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("null-server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(arguments: &[String]) -> io::Result<()> {
    raise_descriptor_limit()?;
    let (end, reply) = match arguments {
        [] => (RequestEnd::EmptyLine, ANY_REPLY.to_vec()),
        [name] => {
            let workload = Workload::named(name).ok_or_else(|| invalid("no such workload"))?;
            (RequestEnd::Bytes(workload.request.len()), workload.answer.example())
        }
        _ => return Err(invalid("one workload at most")),
    };
    let script = Script { end, reply, last: None, tls: None };
    let plain = listener("PORT")?;
    let secure = match listener("TLS_PORT")? {
        // A contender's recipe names a port for HTTPS whether or not there is a certificate.
        Some(listener) if is_set("TLS_CERT") => {
            let path = |name| std::env::var_os(name).unwrap_or_default().into();
            let files = CertificateFiles { certificate: path("TLS_CERT"), key: path("TLS_KEY") };
            Some((listener, Script { tls: Some(null::tls(&files)?), ..script.clone() }))
        }
        _ => None,
    };
    let never = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let secure = secure.map(|(listener, script)| {
            let never = &never;
            scope.spawn(move || null::serve(&listener, &script, never))
        });
        match (plain, secure) {
            (Some(plain), _) => null::serve(&plain, &script, &never),
            (None, Some(secure)) => secure.join().expect("the server does not panic"),
            (None, None) => Err(invalid("PORT is not a port")),
        }
    })
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

fn listener(variable: &str) -> io::Result<Option<TcpListener>> {
    if !is_set(variable) {
        return Ok(None);
    }
    let port: Option<u16> = std::env::var(variable).ok().and_then(|port| port.parse().ok());
    let port = port.ok_or_else(|| invalid(&format!("{variable} is not a port")))?;
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(Some)
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
