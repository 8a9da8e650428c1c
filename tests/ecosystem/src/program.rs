//! Programs of others, such as databases, for the length of a test.

use std::env;
use std::fs;
use std::io::{self, PipeWriter};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Ends its program when nobody holds the other end of its input any more, so that the program does
/// not outlive a test that is killed; and ends when the program does. What reads the input beside the
/// program gets it by another number, since a shell gives no input to what runs in the background.
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
    /// Starts the program with its arguments, as that user and group if some are given. What it
    /// prints goes to `log`.
    ///
    /// # Errors
    /// There is no shell, or the log cannot be written.
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
        // A group of its own, so that Ctrl-C at the terminal takes the same way out.
        let child = command.process_group(0).spawn()?;
        Ok(Self { input: Some(input), child })
    }

    /// Has it ended by itself?
    ///
    /// # Errors
    /// The system does not say.
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

/// The program of that name on the path, or in one of these folders.
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

/// User and group of that name, if the system has them.
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

    /// Only a hang takes so long.
    const PATIENCE: Duration = Duration::from_secs(40);

    #[test]
    fn a_program_that_ends_by_itself_is_seen_to_have_ended() {
        let folder = tempfile::tempdir().expect("there is a place for files");
        let (shell, log) = (Path::new("/bin/sh"), folder.path().join("log"));
        let script = ["-c", "echo it says why; exit 3"];
        let mut program = Program::start(shell, &script, None, &log).expect("it starts");
        let begun = Instant::now();
        while !program.has_ended().expect("the system says it") {
            assert!(begun.elapsed() < PATIENCE, "it ends at once");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(fs::read_to_string(&log).expect("the log is there"), "it says why\n");
    }
}
