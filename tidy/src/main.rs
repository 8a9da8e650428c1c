//! `cargo tidy`: the project's checks, the same here and in CI.
//!
//! Each check is a function from the tree to a list of complaints; a complaint names the file, what
//! is wrong and how to mend it. `cargo tidy` runs them all, `cargo tidy layers` only that one, `cargo tidy -clippy -docs` all
//! but these.
#![forbid(unsafe_code)]

mod batteries;
mod book;
mod circles;
mod conformance;
mod figures;
mod guide;
mod layers;
mod messages;
mod results;
mod source;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

type Check = (&'static str, fn(&Path) -> Vec<String>);

const CHECKS: &[Check] = &[
    ("layers", layers::check),
    ("reasons", layers::check_reasons),
    ("circles", circles::check),
    ("unsafe", source::check_unsafe),
    ("sizes", source::check_sizes),
    ("names", source::check_names),
    ("examples", source::check_examples),
    ("conformance", conformance::check),
    ("results", results::check),
    ("figures", figures::check),
    ("guide", guide::check),
    ("links", guide::check_links),
    ("messages", messages::check),
    ("locks", check_locks),
    ("fmt", |root| cargo(root, &["fmt", "--all", "--check"])),
    ("clippy", |root| {
        // All targets: examples, benches, tests and fuzz targets are built by this too.
        cargo(root, &["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"])
    }),
    ("docs", |root| {
        let mut command = Command::new(env!("CARGO"));
        command.args(["doc", "--quiet", "--workspace", "--no-deps"]).current_dir(root);
        run(command.env("RUSTDOCFLAGS", "-D warnings"))
    }),
];

fn main() -> ExitCode {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let root = root.parent().expect("tidy/ lies in the workspace").to_path_buf();
    let wanted: Vec<String> = env::args().skip(1).collect();
    if wanted.first().is_some_and(|word| word == "write-conformance") {
        conformance::write(&root);
        return ExitCode::SUCCESS;
    }
    if wanted.first().is_some_and(|word| word == "batteries") {
        if let Err(error) = batteries::write(&root) {
            eprintln!("tidy: {error}");
            return ExitCode::FAILURE;
        }
        return ExitCode::SUCCESS;
    }
    if wanted.first().is_some_and(|word| word == "book") {
        if let Err(error) = book::run(&wanted[1..]) {
            eprintln!("tidy: the book cannot be changed: {error}");
            return ExitCode::FAILURE;
        }
        return ExitCode::SUCCESS;
    }
    let is_known =
        |word: &str| CHECKS.iter().any(|(check, _)| *check == word.trim_start_matches('-'));
    if let Some(unknown) = wanted.iter().find(|word| !is_known(word)) {
        let names: Vec<_> = CHECKS.iter().map(|(name, _)| *name).collect();
        eprintln!("tidy: there is no check `{unknown}`; there are: {}", names.join(", "));
        return ExitCode::from(2);
    }
    let (unwanted, wanted): (Vec<_>, Vec<_>) =
        wanted.iter().partition(|word| word.starts_with('-'));
    let is_meant = |name: &str| {
        (wanted.is_empty() || wanted.iter().any(|word| *word == name))
            && !unwanted.iter().any(|word| word[1..] == *name)
    };
    let mut failed = 0;
    for (name, check) in CHECKS.iter().filter(|(name, _)| is_meant(name)) {
        let complaints = check(&root);
        println!("{name:<12} {}", if complaints.is_empty() { "ok" } else { "FAILED" });
        complaints.iter().for_each(|complaint| println!("    {complaint}"));
        failed += usize::from(!complaints.is_empty());
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn cargo(root: &Path, arguments: &[&str]) -> Vec<String> {
    run(Command::new(env!("CARGO")).args(arguments).current_dir(root))
}

/// What is outside the workspace has lock files of its own, which a new dependency of the framework makes stale: the
/// lab's contenders, and tests of what takes long to compile.
fn check_locks(root: &Path) -> Vec<String> {
    let folder = root.join("lab/contenders");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        return vec![format!("{} cannot be read", folder.display())];
    };
    let mut programs: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("Cargo.lock").exists())
        .collect();
    programs.push(root.join("tests/ecosystem-heavy"));
    programs.sort();
    let stale = |path: &PathBuf| {
        let locked = ["update", "--quiet", "--workspace", "--locked"];
        !cargo(path, &locked).is_empty()
    };
    let complaint = |path: PathBuf| {
        format!("{}: the lock file is stale; run `cargo update --workspace` there", path.display())
    };
    programs.into_iter().filter(stale).map(complaint).collect()
}

/// Runs a command whose output goes to the terminal; complains if it fails.
fn run(command: &mut Command) -> Vec<String> {
    match command.status() {
        Ok(status) if status.success() => Vec::new(),
        Ok(status) => vec![format!("{command:?}: {status}")],
        Err(error) => vec![format!("{command:?} did not start: {error}")],
    }
}
