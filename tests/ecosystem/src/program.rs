//! Third-party programs, such as databases, for the duration of a test.

use std::env;
use std::fs;
use std::io::{self, PipeWriter};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Kills the program when the other end of its standard input is closed, so that the program does
/// not outlive a killed test; exits when the program does. The background reader gets the input as
/// descriptor 3, because a shell gives background commands no standard input.
const SUPERVISOR: &str = r#"exec 3<&0
"$@" </dev/null 3<&- & program=$!
{ read _ <&3; kill -INT $program; } 2>/dev/null & reader=$!
wait $program
ended=$?
kill $reader 2>/dev/null
exit $ended"#;

/// A program that runs until this is dropped.
#[derive(Debug)]
pub struct Program {
    input: Option<PipeWriter>,
    child: Child,
}

impl Program {
    /// Starts the program with its arguments, as this user and group if given. Its output goes to
    /// `log`.
    ///
    /// # Errors
    /// If there is no shell, or the log cannot be written.
    pub fn start(
        program: &Path,
        arguments: &[&str],
        user: Option<(u32, u32)>,
        log: &Path,
    ) -> io::Result<Self> {
        let (reader, input) = io::pipe()?;
        let log = fs::File::create(log)?;
        let mut command = Command::new("sh");
        command.args(["-c", SUPERVISOR, "sh"]).arg(program).args(arguments);
        command.stdin(reader).stdout(log.try_clone()?).stderr(Stdio::from(log));
        if let Some((user, group)) = user {
            command.uid(user).gid(group);
        }
        // Its own process group, so that Ctrl-C at the terminal ends it the same way.
        let child = command.process_group(0).spawn()?;
        Ok(Self { input: Some(input), child })
    }

    /// Whether it has exited by itself.
    ///
    /// # Errors
    /// If the system does not report it.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// The path of the program of this name on `PATH`, or in one of these folders.
#[must_use]
pub fn find_program(name: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places = env::split_paths(&path).chain(folders.iter().cloned());
    places.find_map(|folder| {
        let path = folder.join(name);
        let metadata = fs::metadata(&path).ok()?;
        (metadata.is_file() && metadata.permissions().mode() & 0o111 != 0).then_some(path)
    })
}

/// The user and group of this name, if the system has them.
#[must_use]
pub fn user_id(name: &str) -> Option<(u32, u32)> {
    let accounts = fs::read_to_string("/etc/passwd").ok()?;
    let mut lines = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let account = lines.find(|fields| fields.first() == Some(&name))?;
    Some((account.get(2)?.parse().ok()?, account.get(3)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Only a hang takes this long.
    const PATIENCE: Duration = Duration::from_secs(40);

    #[test]
    fn a_program_that_ends_by_itself_is_seen_to_have_ended() {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let (shell, log) = (Path::new("/bin/sh"), folder.path().join("log"));
        let script = ["-c", "echo it says why; exit 3"];
        let mut program = Program::start(shell, &script, None, &log).expect("the server starts");
        let begun = Instant::now();
        while !program.has_ended().expect("the system reports it") {
            assert!(begun.elapsed() < PATIENCE, "the program exits at once");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(fs::read_to_string(&log).expect("the file exists"), "it says why\n");
    }
}
