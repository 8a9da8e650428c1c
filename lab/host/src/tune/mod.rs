//! `--tune`: the one place where the lab changes its host, and changes it back.
//!
//! Only what is safe to set and to restore is touched: the frequency governor of the CPUs in use,
//! the queues of listeners, and the range of ports for connections. The old values stand in a record
//! before the first of them is changed. They come back when a [`Tuning`] is restored or dropped, at
//! the second Ctrl-C, and, should this program be killed, when the next one is tuned. A value that
//! somebody else changed meanwhile is theirs and stays.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::cpu_list::{self, Cpus};
use crate::cpu_sets::CpuSets;
use crate::root::Root;

mod record;
mod setting;

use record::{Change, Record};
use setting::Setting;

/// What is changed at this moment, for the second Ctrl-C.
static LIVE: Mutex<Vec<Weak<Mutex<State>>>> = Mutex::new(Vec::new());

/// How a value is written: path and value. Tests have files that refuse.
type Write = fn(&Path, &str) -> io::Result<()>;

/// A host whose settings are changed for as long as this lives.
#[derive(Debug)]
pub struct Tuning {
    state: Arc<Mutex<State>>,
    changes: Vec<String>,
    remarks: Vec<String>,
}

/// A file that could not be written, and the system's word.
pub type Refused = (PathBuf, io::Error);

/// Why a host was not tuned, or not restored.
#[derive(Debug)]
pub enum TuneError {
    /// A setting was refused. Those before it were put back, but for the ones in the list.
    Set(Refused, Vec<Refused>),
    /// Old values could not be put back; they stand in the record, whose path comes last.
    Restore(Vec<Refused>, PathBuf),
    /// The record could not be written, read or removed.
    Record(PathBuf, io::Error),
    /// The record is not what was written.
    Damaged(PathBuf, String),
    /// Another run has tuned this host and still goes on.
    Busy(PathBuf),
}

impl fmt::Display for TuneError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TuneError::Set((path, error), unrestored) => {
                write!(formatter, "--tune cannot set {}: {error}; ", path.display())?;
                formatter.write_str(fix(error))?;
                match unrestored.as_slice() {
                    [] => formatter.write_str("; every setting is as it was"),
                    _ => write!(formatter, "; and not put back: {}", Paths(unrestored)),
                }
            }
            TuneError::Restore(refused, record) => write!(
                formatter,
                "settings that --tune changed could not be put back: {}; run as root with --tune to \
                 try again, or write the old values by hand from {}",
                Paths(refused),
                record.display()
            ),
            TuneError::Record(path, error) => write!(
                formatter,
                "--tune keeps the old values in {}: {error}; {}",
                path.display(),
                fix(error)
            ),
            TuneError::Damaged(path, why) => write!(
                formatter,
                "{}: left by a run that was killed, but damaged: {why}; compare what it says with \
                 the settings, and delete it",
                path.display()
            ),
            TuneError::Busy(path) => write!(
                formatter,
                "{}: another run has tuned this machine; wait for its end, or run without --tune",
                path.display()
            ),
        }
    }
}

impl std::error::Error for TuneError {}

/// What the user can do about a refusal.
fn fix(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "run as root, or without --tune",
        io::ErrorKind::ReadOnlyFilesystem => {
            "run as root outside of the container, or without --tune"
        }
        _ => "run as root; if it is refused even then, run without --tune",
    }
}

/// Files with the system's word on each, for a sentence.
struct Paths<'a>(&'a [Refused]);

impl fmt::Display for Paths<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (path, error)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(formatter, "{comma}{} ({error})", path.display())?;
        }
        Ok(())
    }
}

impl Tuning {
    /// Changes what is not good for measurements, for as long as the result lives: the governor of
    /// the CPUs in `sets` becomes `performance`, `net.core.somaxconn` and
    /// `net.ipv4.tcp_max_syn_backlog` at least 65535, and the range of ports for connections at
    /// least 1024 to 65535. What is good already, or what this kernel does not have, is left alone.
    ///
    /// The old values are kept in the file `tuning.json` in `folder`, which is made if need be. It
    /// should be the same folder for all runs on a machine: a record that a killed run left there
    /// is put right first, and two runs cannot tune at once.
    ///
    /// # Errors
    ///
    /// A [`TuneError`]; everything is then as it was, but for what the error lists.
    pub fn apply(root: &Root, sets: &CpuSets, folder: &Path) -> Result<Tuning, TuneError> {
        Tuning::apply_with(root, sets, folder, setting::write)
    }

    fn apply_with(
        root: &Root,
        sets: &CpuSets,
        folder: &Path,
        write: Write,
    ) -> Result<Tuning, TuneError> {
        let mut record = Record::open(folder)?;
        let mut remarks = put_right(root, &mut record, write)?;
        let (planned, unable) = plan(root, sets);
        remarks.extend(unable);
        let state = State { root: root.clone(), changes: planned, record: None, write };
        let state = Arc::new(Mutex::new(state));
        let mut held = lock(&state);
        let changes = tell(&held.changes);
        if held.changes.is_empty() {
            record.remove()?;
        } else {
            live().push(Arc::downgrade(&state));
            held.set(record)?;
        }
        drop(held);
        Ok(Tuning { state, changes, remarks })
    }

    /// Puts back what a killed run left changed, as its record in `folder` says. Returns a sentence
    /// for each setting; none if there is no record.
    ///
    /// # Errors
    ///
    /// A [`TuneError`]; the record then stays.
    pub fn mend(root: &Root, folder: &Path) -> Result<Vec<String>, TuneError> {
        if !Record::path_in(folder).exists() {
            return Ok(Vec::new());
        }
        let mut record = Record::open(folder)?;
        let sentences = put_right(root, &mut record, setting::write)?;
        record.remove()?;
        Ok(sentences)
    }

    /// What was changed, a sentence each.
    #[must_use]
    pub fn changes(&self) -> &[String] {
        &self.changes
    }

    /// What else the user should know: what a killed run had left and was put right, and what could
    /// not be tuned because this kernel does not offer it.
    #[must_use]
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Puts everything back. Dropping does the same, but can only print what went wrong.
    ///
    /// # Errors
    ///
    /// [`TuneError::Restore`] with every file that was refused; the record then stays, and the next
    /// tuning tries again.
    pub fn restore(self) -> Result<(), TuneError> {
        lock(&self.state).restore()
    }
}

impl Drop for Tuning {
    fn drop(&mut self) {
        if let Err(error) = lock(&self.state).restore() {
            eprintln!("{error}");
        }
        live().retain(|state| {
            state.strong_count() > 0 && !state.ptr_eq(&Arc::downgrade(&self.state))
        });
    }
}

/// Puts back what every living [`Tuning`] changed, because the program ends without dropping them.
#[cfg(unix)]
pub(crate) fn restore_all() {
    // A tuning that is being applied holds its state and wants the list: never hold both here.
    let states: Vec<_> = live().iter().filter_map(Weak::upgrade).collect();
    for state in states {
        if let Err(error) = lock(&state).restore() {
            eprintln!("{error}");
        }
    }
}

fn live() -> MutexGuard<'static, Vec<Weak<Mutex<State>>>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is changed, and how it comes back.
#[derive(Debug)]
struct State {
    root: Root,
    changes: Vec<Change>,
    /// There is one while something is changed.
    record: Option<Record>,
    write: Write,
}

impl State {
    /// Makes the changes, or none of them.
    fn set(&mut self, mut record: Record) -> Result<(), TuneError> {
        if let Err(error) = record.write(&self.changes) {
            let path = record.path().to_owned();
            // The first error is the one to tell; an empty record does no harm.
            let _ = record.remove();
            return Err(TuneError::Record(path, error));
        }
        for index in 0..self.changes.len() {
            let Err(refused) = self.set_one(&self.changes[index]) else { continue };
            let unrestored = put_back(&self.root, &self.changes[..=index], Whose::Ours, self.write);
            if unrestored.is_empty() {
                // A record of what is as it was does no harm; the refusal is what to tell.
                let _ = record.remove();
            }
            return Err(TuneError::Set(refused, unrestored));
        }
        self.record = Some(record);
        Ok(())
    }

    fn set_one(&self, change: &Change) -> Result<(), Refused> {
        let path = self.root.path(&change.setting.path());
        if let Err(error) = (self.write)(&path, &change.set) {
            return Err((path, error));
        }
        // Some kernels, those of sandboxes above all, take a value and keep another.
        let now = change.setting.read(&self.root).unwrap_or_default();
        if now == change.set {
            return Ok(());
        }
        let why = format!("{} was written, but it reads {now}", change.set);
        Err((path, io::Error::new(io::ErrorKind::InvalidData, why)))
    }

    fn restore(&mut self) -> Result<(), TuneError> {
        let Some(record) = self.record.take() else { return Ok(()) };
        let refused = put_back(&self.root, &self.changes, Whose::Unsure, self.write);
        if refused.is_empty() {
            return record.remove();
        }
        Err(TuneError::Restore(refused, record.path().to_owned()))
    }
}

/// What should be changed, and sentences on what cannot be.
fn plan(root: &Root, sets: &CpuSets) -> (Vec<Change>, Vec<String>) {
    let governors = sets.server.union(&sets.client).map(|&cpu| Setting::Governor(cpu));
    let settings = governors.chain([Setting::Queue, Setting::Handshakes, Setting::Ports]);
    let (mut changes, mut unable) = (Vec::new(), Vec::new());
    for setting in settings {
        let Some(before) = setting.read(root) else { continue };
        let Some(set) = setting.wanted(&before) else { continue };
        let mut preference = None;
        if let Setting::Governor(cpu) = setting {
            let offered = setting::governors(root, cpu);
            if let Some(offered) = offered.filter(|all| all.split(' ').all(|one| one != set)) {
                let name = setting.name();
                unable.push(format!("{name} stays {before}: the kernel offers only {offered}"));
                continue;
            }
            preference = setting::words(root, &setting::preference_path(cpu));
        }
        changes.push(Change { setting, before, set, preference });
    }
    (changes, unable)
}

/// A sentence for each change; CPUs whose governor was the same share one.
fn tell(changes: &[Change]) -> Vec<String> {
    let mut governors: BTreeMap<&str, Cpus> = BTreeMap::new();
    let mut others = Vec::new();
    for change in changes {
        let (before, set) = (&change.before, &change.set);
        let name = change.setting.name();
        match change.setting {
            Setting::Governor(cpu) => {
                governors.entry(before).or_default().insert(cpu);
            }
            Setting::Queue | Setting::Handshakes => {
                others.push(format!("{name} was raised from {before} to {set}"));
            }
            Setting::Ports => {
                let [before, set] = [before, set].map(|range| range.replace(' ', "-"));
                others.push(format!("{name} was widened from {before} to {set}"));
            }
        }
    }
    let governors = governors.into_iter().map(|(before, cpus)| {
        let plural = if cpus.len() == 1 { "" } else { "s" };
        let cpus = cpu_list::format(&cpus);
        let set = setting::GOVERNOR;
        format!("the frequency governor of CPU{plural} {cpus} was set from {before} to {set}")
    });
    governors.chain(others).collect()
}

/// Puts back what the record says. The record itself is the caller's to rewrite or to remove.
fn put_right(root: &Root, record: &mut Record, write: Write) -> Result<Vec<String>, TuneError> {
    let left = record.read()?;
    let is_left = |change: &&Change| change.setting.read(root).as_ref() == Some(&change.set);
    let sentences = left.iter().filter(is_left).map(|change| {
        let Change { setting, before, set, .. } = change;
        format!(
            "{} was put back from {set} to {before}, after a run that was killed",
            setting.name()
        )
    });
    let sentences = sentences.collect();
    let refused = put_back(root, &left, Whose::Unsure, write);
    if refused.is_empty() {
        return Ok(sentences);
    }
    Err(TuneError::Restore(refused, record.path().to_owned()))
}

/// Who may have written a value that is neither the old one nor the one that was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// The kernel, a moment ago, when it took what it was given for something else.
    Ours,
    /// Perhaps somebody else, whose value then stays.
    Unsure,
}

/// Writes the old values, the last change first, and goes on where a file refuses.
fn put_back(root: &Root, changes: &[Change], whose: Whose, write: Write) -> Vec<Refused> {
    let mut refused = Vec::new();
    for change in changes.iter().rev() {
        // CPUs that share a governor share the file: the first one puts it back for all. What is
        // no longer there (a CPU that was taken away) has nothing to come back to.
        let Some(now) = change.setting.read(root).filter(|now| *now != change.before) else {
            continue;
        };
        if now != change.set && whose == Whose::Unsure {
            continue;
        }
        let path = root.path(&change.setting.path());
        if let Err(error) = write(&path, &change.before) {
            refused.push((path, error));
            continue;
        }
        let (Setting::Governor(cpu), Some(preference)) = (change.setting, &change.preference)
        else {
            continue;
        };
        let path = setting::preference_path(cpu);
        if setting::words(root, &path).as_ref() != Some(preference)
            && let Err(error) = write(&root.path(&path), preference)
        {
            refused.push((root.path(&path), error));
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const QUEUE: &str = "/proc/sys/net/core/somaxconn";
    const PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

    /// One test at a time: one of them puts back what all have changed.
    static TURN: Mutex<()> = Mutex::new(());

    /// A host with two settings to change.
    struct Host {
        _turn: MutexGuard<'static, ()>,
        folder: tempfile::TempDir,
        root: Root,
    }

    impl Host {
        fn new() -> Host {
            let folder = tempfile::tempdir().unwrap();
            let root = Root::at(&folder.path().join("root"));
            let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
            let host = Host { _turn: turn, folder, root };
            for (path, text) in [(QUEUE, "4096\n"), (PORTS, "32768\t60999\n")] {
                let path = host.root.path(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            host
        }

        fn apply(&self, write: Write) -> Result<Tuning, TuneError> {
            let sets = CpuSets { server: [0].into(), client: [1].into(), remarks: Vec::new() };
            Tuning::apply_with(&self.root, &sets, self.folder.path(), write)
        }

        fn values(&self) -> [String; 2] {
            [Setting::Queue, Setting::Ports].map(|setting| setting.read(&self.root).unwrap())
        }

        fn has_record(&self) -> bool {
            Record::path_in(self.folder.path()).exists()
        }
    }

    fn before() -> [String; 2] {
        ["4096".to_owned(), "32768 60999".to_owned()]
    }

    fn refusal() -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    /// The ports are refused.
    fn write_no_ports(path: &Path, value: &str) -> io::Result<()> {
        if path.ends_with("ip_local_port_range") { refusal() } else { setting::write(path, value) }
    }

    /// The ports are refused, and the queue's old length too.
    fn write_no_way_back(path: &Path, value: &str) -> io::Result<()> {
        if value == "4096" { refusal() } else { write_no_ports(path, value) }
    }

    /// Everything is set, and only the ports come back.
    fn write_no_queue_back(path: &Path, value: &str) -> io::Result<()> {
        if value == "4096" { refusal() } else { setting::write(path, value) }
    }

    /// The ports are taken, but as something else.
    fn write_other_ports(path: &Path, value: &str) -> io::Result<()> {
        setting::write(path, if value == "1024 65535" { "9000 10000" } else { value })
    }

    #[test]
    fn where_one_file_refuses_the_others_are_put_back_and_the_error_names_it_and_the_fix() {
        let host = Host::new();
        let error = host.apply(write_no_ports).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, TuneError::Set(_, unrestored) if unrestored.is_empty()), "{text}");
        assert!(
            text.contains("net/ipv4/ip_local_port_range: permission denied; run as root"),
            "{text}"
        );
        assert!(text.ends_with("every setting is as it was"), "{text}");
        assert_eq!(host.values(), before());
        assert!(!host.has_record());
    }

    #[test]
    fn what_cannot_be_put_back_is_listed_and_stays_in_the_record_for_the_next_run() {
        let host = Host::new();
        let text = host.apply(write_no_way_back).unwrap_err().to_string();
        assert!(
            text.contains("not put back: ") && text.contains("somaxconn (permission"),
            "{text}"
        );
        assert_eq!(host.values()[0], "65535");
        assert!(host.has_record());
        let tuning = host.apply(setting::write).unwrap();
        let expected =
            "net.core.somaxconn was put back from 65535 to 4096, after a run that was killed";
        assert_eq!(tuning.remarks(), [expected]);
        tuning.restore().unwrap();
        assert_eq!(host.values(), before());
        assert!(!host.has_record());
    }

    #[test]
    fn restoring_goes_on_where_a_file_refuses_and_says_where_the_old_values_are() {
        let host = Host::new();
        let text = host.apply(write_no_queue_back).unwrap().restore().unwrap_err().to_string();
        assert!(text.contains("somaxconn (permission denied); run as root"), "{text}");
        assert!(text.ends_with("tuning.json"), "{text}");
        assert_eq!(host.values(), ["65535", "32768 60999"]);
        assert_eq!(Tuning::mend(&host.root, host.folder.path()).unwrap().len(), 1);
        assert_eq!(host.values(), before());
    }

    #[test]
    fn a_value_that_the_kernel_takes_for_another_is_an_error_and_put_back() {
        let host = Host::new();
        let text = host.apply(write_other_ports).unwrap_err().to_string();
        assert!(text.contains("1024 65535 was written, but it reads 9000 10000"), "{text}");
        assert_eq!(host.values(), before());
    }

    #[cfg(unix)]
    #[test]
    fn a_program_that_ends_without_dropping_puts_everything_back() {
        let host = Host::new();
        let tuning = host.apply(setting::write).unwrap();
        assert_eq!(host.values(), ["65535", "1024 65535"]);
        restore_all();
        assert_eq!(host.values(), before());
        assert!(!host.has_record());
        drop(tuning);
        assert!(live().is_empty());
    }
}
