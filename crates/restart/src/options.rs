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
/// use peregrine::restart::UpgradeOptions;
/// use std::time::Duration;
///
/// fn main() -> peregrine::Result<()> {
///     let successor = UpgradeOptions::new().timeout(Duration::from_secs(120));
///     let server = Server::bind("127.0.0.1:8080").upgrade_options(successor);
///     server.serve(|| App::new().get("/", || "hello"))
/// }
/// ```
#[doc(alias = "Command")]
#[derive(Clone, Debug)]
pub struct UpgradeOptions {
    program: Option<PathBuf>,
    arguments: Option<Vec<OsString>>,
    environment: Vec<(OsString, Option<OsString>)>,
    pub(crate) timeout: Duration,
    on_sigusr2: bool,
}

/// Environment variables that apply to one process only.
const PROCESS_ENV_VARS: [&str; 4] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID"];

impl Default for UpgradeOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl UpgradeOptions {
    /// The defaults: this program, also upgraded on SIGUSR2, with a timeout of 60 s.
    #[must_use]
    pub fn new() -> Self {
        Self {
            program: None,
            arguments: None,
            environment: Vec::new(),
            timeout: Duration::from_secs(60),
            on_sigusr2: true,
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
    pub fn args<A: Into<OsString>>(mut self, all: impl IntoIterator<Item = A>) -> Self {
        self.arguments = Some(all.into_iter().map(Into::into).collect());
        self
    }

    /// Sets an environment variable. The rest of the environment is inherited.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), Some(value.into())));
        self
    }

    /// Removes an environment variable.
    #[must_use]
    pub fn env_remove(mut self, name: impl Into<OsString>) -> Self {
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

    /// Does not handle SIGUSR2: only `ServerHandle::upgrade` upgrades.
    #[must_use]
    pub fn ignore_sigusr2(mut self) -> Self {
        self.on_sigusr2 = false;
        self
    }

    /// Whether SIGUSR2 starts it.
    #[doc(hidden)]
    #[must_use]
    pub fn is_on_sigusr2(&self) -> bool {
        self.on_sigusr2
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
        for name in PROCESS_ENV_VARS {
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
pub(crate) fn current_exe() -> io::Result<PathBuf> {
    let running = Path::new("/proc/self/exe");
    if let Some(typed) = env::args_os().next().filter(|name| name.as_bytes().contains(&b'/')) {
        let typed = std::path::absolute(typed)?;
        if is_same_file(&typed, running) {
            return Ok(typed);
        }
    }
    Ok(strip_deleted_suffix(env::current_exe()?))
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path| std::fs::metadata(path).map(|data| (data.dev(), data.ino())).ok();
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// Removes the suffix that the kernel adds to the path of a program whose file was replaced.
fn strip_deleted_suffix(path: PathBuf) -> PathBuf {
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
        let command = UpgradeOptions::new().command(own());
        assert_eq!(command.get_program(), own());
        let arguments: Vec<_> = env::args_os().skip(1).collect();
        assert_eq!(command.get_args().collect::<Vec<_>>(), arguments);
        let variables: Vec<_> = command.get_envs().collect();
        assert_eq!(variables.len(), PROCESS_ENV_VARS.len());
        assert!(variables.iter().all(|(_, value)| value.is_none()), "{variables:?}");
    }

    #[test]
    fn all_of_it_can_be_something_else() {
        let successor = UpgradeOptions::new().program("/other").args(["a", "b"]);
        let command = successor.env("NEW", "1").env_remove("OLD").command(own());
        assert_eq!(command.get_program(), "/other");
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["a", "b"]);
        let variables: Vec<_> = command.get_envs().collect();
        assert!(variables.contains(&("NEW".as_ref(), Some("1".as_ref()))), "{variables:?}");
        assert!(variables.contains(&("OLD".as_ref(), None)), "{variables:?}");
    }

    #[test]
    fn this_program_is_found() {
        let found = current_exe().expect("Linux provides the path");
        assert!(is_same_file(&found, Path::new("/proc/self/exe")), "{}", found.display());
    }

    #[test]
    fn a_program_that_was_replaced_is_known_by_its_path() {
        let marked = PathBuf::from("/no/such/app (deleted)");
        assert_eq!(strip_deleted_suffix(marked), Path::new("/no/such/app"));
        let folder = tempfile::tempdir().expect("a folder");
        let called_so = folder.path().join("app (deleted)");
        std::fs::write(&called_so, "").expect("a new file");
        assert_eq!(strip_deleted_suffix(called_so.clone()), called_so);
    }
}
