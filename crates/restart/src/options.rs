//! The program that takes over in an upgrade, and its timeout.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The program that an upgrade in place starts, and how long its startup may take. By default it is
/// this program, read from disk at the time of the upgrade, with the arguments, environment,
/// working directory and standard streams of this process.
///
/// ```no_run
/// use peregrine::prelude::*;
/// use peregrine::restart::Successor;
/// use std::time::Duration;
///
/// fn main() -> peregrine::Result<()> {
///     let successor = Successor::new().timeout(Duration::from_secs(120));
///     let server = Server::bind("127.0.0.1:8080").successor(successor);
///     server.serve(|| App::new().get("/", || "hello"))
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Successor {
    program: Option<PathBuf>,
    arguments: Option<Vec<OsString>>,
    environment: Vec<(OsString, Option<OsString>)>,
    pub(crate) timeout: Duration,
    is_by_signal: bool,
}

/// Environment variables that apply to one process only.
const OWN_VARIABLES: [&str; 4] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID"];

impl Default for Successor {
    fn default() -> Self {
        Self::new()
    }
}

impl Successor {
    /// The defaults: this program, also upgraded on SIGUSR2, with a timeout of 60 s.
    #[must_use]
    pub fn new() -> Self {
        Self {
            program: None,
            arguments: None,
            environment: Vec::new(),
            timeout: Duration::from_secs(60),
            is_by_signal: true,
        }
    }

    /// Sets the program to start. By default it is this one, at the path that it was started with,
    /// or where it was found if it was started without a path. Symbolic links in the path are
    /// resolved when the successor is started, so `/srv/app/current/app` is the program of the new
    /// release.
    #[must_use]
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Sets the arguments. By default they are those of this process.
    #[must_use]
    pub fn arguments<A: Into<OsString>>(mut self, all: impl IntoIterator<Item = A>) -> Self {
        self.arguments = Some(all.into_iter().map(Into::into).collect());
        self
    }

    /// Sets an environment variable. The rest of the environment is inherited.
    #[must_use]
    pub fn variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), Some(value.into())));
        self
    }

    /// Removes an environment variable.
    #[must_use]
    pub fn without_variable(mut self, name: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), None));
        self
    }

    /// Sets how long the successor may take to start serving. The default is 60 s. After that the
    /// successor is killed, and this process keeps serving.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Does not handle SIGUSR2: only `Handle::upgrade` upgrades.
    #[must_use]
    pub fn without_signal(mut self) -> Self {
        self.is_by_signal = false;
        self
    }

    /// Whether SIGUSR2 starts it.
    #[doc(hidden)]
    #[must_use]
    pub fn is_by_signal(&self) -> bool {
        self.is_by_signal
    }

    /// The command that starts the successor. `own` is the path of this program.
    pub(crate) fn command(&self, own: &Path) -> Command {
        let mut command = Command::new(self.program.as_deref().unwrap_or(own));
        let mut arguments = env::args_os();
        let name = arguments.next();
        if let (None, Some(name)) = (&self.program, name) {
            command.arg0(name);
        }
        match &self.arguments {
            Some(all) => command.args(all),
            None => command.args(arguments),
        };
        for name in OWN_VARIABLES {
            command.env_remove(name);
        }
        for (name, value) in &self.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }
}

/// The path of this program, which stays valid when the file is replaced.
pub(crate) fn own_program() -> io::Result<PathBuf> {
    let running = Path::new("/proc/self/exe");
    if let Some(typed) = env::args_os().next().filter(|name| name.as_bytes().contains(&b'/')) {
        let typed = std::path::absolute(typed)?;
        if is_same_file(&typed, running) {
            return Ok(typed);
        }
    }
    Ok(without_mark(env::current_exe()?))
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path| std::fs::metadata(path).map(|data| (data.dev(), data.ino())).ok();
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// Removes the suffix that the kernel adds to the path of a program whose file was replaced.
fn without_mark(path: PathBuf) -> PathBuf {
    let plain = path.as_os_str().as_bytes().strip_suffix(b" (deleted)");
    match plain.map(|plain| PathBuf::from(OsStr::from_bytes(plain))) {
        Some(plain) if !path.exists() => plain,
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> &'static Path {
        Path::new("/own")
    }

    #[test]
    fn the_default_is_this_program_with_its_arguments() {
        let command = Successor::new().command(own());
        assert_eq!(command.get_program(), own());
        let arguments: Vec<_> = env::args_os().skip(1).collect();
        assert_eq!(command.get_args().collect::<Vec<_>>(), arguments);
        let variables: Vec<_> = command.get_envs().collect();
        assert_eq!(variables.len(), OWN_VARIABLES.len());
        assert!(variables.iter().all(|(_, value)| value.is_none()), "{variables:?}");
    }

    #[test]
    fn all_of_it_can_be_something_else() {
        let successor = Successor::new().program("/other").arguments(["a", "b"]);
        let command = successor.variable("NEW", "1").without_variable("OLD").command(own());
        assert_eq!(command.get_program(), "/other");
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["a", "b"]);
        let variables: Vec<_> = command.get_envs().collect();
        assert!(variables.contains(&("NEW".as_ref(), Some("1".as_ref()))), "{variables:?}");
        assert!(variables.contains(&("OLD".as_ref(), None)), "{variables:?}");
    }

    #[test]
    fn this_program_is_found() {
        let found = own_program().expect("Linux provides the path");
        assert!(is_same_file(&found, Path::new("/proc/self/exe")), "{}", found.display());
    }

    #[test]
    fn a_program_that_was_replaced_is_known_by_its_path() {
        let marked = PathBuf::from("/no/such/app (deleted)");
        assert_eq!(without_mark(marked), Path::new("/no/such/app"));
        let folder = tempfile::tempdir().expect("a folder");
        let called_so = folder.path().join("app (deleted)");
        std::fs::write(&called_so, "").expect("a new file");
        assert_eq!(without_mark(called_so.clone()), called_so);
    }
}
