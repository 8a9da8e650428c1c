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

/// Environment variables that apply to this process only, so its successor must not inherit them.
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

    /// Sets the program to start. By default it is this one, at the path with which it was started,
    /// or where it was found if it was started without a path. Symbolic links in the path are
    /// resolved when the successor is started, so if `/srv/app/current` links to the new release by
    /// then, `/srv/app/current/app` starts the new release.
    #[must_use]
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Sets the arguments. By default they are those of this process.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments = Some(arguments.into_iter().map(Into::into).collect());
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

    /// Sets how long the successor may take to start serving. The default is 60 s. If it takes
    /// longer, it is killed, and this process keeps serving.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Leaves SIGUSR2 unhandled, so that only `ServerHandle::upgrade` starts an upgrade. Unless the
    /// program handles or ignores the signal itself, it then ends the process.
    #[must_use]
    pub fn without_sigusr2(mut self) -> Self {
        self.on_sigusr2 = false;
        self
    }

    /// Whether SIGUSR2 starts an upgrade.
    #[doc(hidden)]
    #[must_use]
    pub fn upgrades_on_sigusr2(&self) -> bool {
        self.on_sigusr2
    }

    /// Builds the command that starts the successor. `current_exe` is the path of this program.
    pub(crate) fn command(&self, current_exe: &Path) -> Command {
        let mut command = Command::new(self.program.as_deref().unwrap_or(current_exe));
        let mut own_args = env::args_os();
        let arg0 = own_args.next();
        if let (None, Some(arg0)) = (&self.program, arg0) {
            command.arg0(arg0);
        }
        match &self.arguments {
            Some(args) => command.args(args),
            None => command.args(own_args),
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

/// Returns the path of this program, which stays valid when the file is replaced.
pub(crate) fn current_exe() -> io::Result<PathBuf> {
    let running_exe = Path::new("/proc/self/exe");
    if let Some(argv0) = env::args_os().next().filter(|name| name.as_bytes().contains(&b'/')) {
        let argv0 = std::path::absolute(argv0)?;
        if is_same_file(&argv0, running_exe) {
            return Ok(argv0);
        }
    }
    Ok(strip_deleted_suffix(env::current_exe()?))
}

fn is_same_file(left: &Path, right: &Path) -> bool {
    let file_id = |path| std::fs::metadata(path).map(|data| (data.dev(), data.ino())).ok();
    file_id(left).is_some_and(|left| file_id(right) == Some(left))
}

/// Removes the suffix that the kernel adds to the path of a program whose file was replaced.
fn strip_deleted_suffix(path: PathBuf) -> PathBuf {
    let stripped = path.as_os_str().as_bytes().strip_suffix(b" (deleted)");
    match stripped.map(|stripped| PathBuf::from(OsStr::from_bytes(stripped))) {
        Some(stripped) if !path.exists() => stripped,
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_path() -> &'static Path {
        Path::new("/own")
    }

    #[test]
    fn the_default_is_this_program_with_its_arguments() {
        let command = UpgradeOptions::new().command(own_path());
        assert_eq!(command.get_program(), own_path());
        let arguments: Vec<_> = env::args_os().skip(1).collect();
        assert_eq!(command.get_args().collect::<Vec<_>>(), arguments);
        let variables: Vec<_> = command.get_envs().collect();
        assert_eq!(variables.len(), PROCESS_ENV_VARS.len());
        assert!(variables.iter().all(|(_, value)| value.is_none()), "{variables:?}");
    }

    #[test]
    fn the_program_arguments_and_environment_can_be_changed() {
        let options = UpgradeOptions::new().program("/other").args(["a", "b"]);
        let command = options.env("NEW", "1").env_remove("OLD").command(own_path());
        assert_eq!(command.get_program(), "/other");
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["a", "b"]);
        let variables: Vec<_> = command.get_envs().collect();
        assert!(variables.contains(&("NEW".as_ref(), Some("1".as_ref()))), "{variables:?}");
        assert!(variables.contains(&("OLD".as_ref(), None)), "{variables:?}");
    }

    #[test]
    fn current_exe_is_the_running_program() {
        let path = current_exe().expect("Linux provides the path");
        assert!(is_same_file(&path, Path::new("/proc/self/exe")), "{}", path.display());
    }

    #[test]
    fn the_deleted_suffix_is_removed_unless_such_a_file_exists() {
        let deleted = PathBuf::from("/no/such/app (deleted)");
        assert_eq!(strip_deleted_suffix(deleted), Path::new("/no/such/app"));
        let dir = tempfile::tempdir().expect("the temporary directory is writable");
        let existing = dir.path().join("app (deleted)");
        std::fs::write(&existing, "").expect("the file is new");
        assert_eq!(strip_deleted_suffix(existing.clone()), existing);
    }
}
