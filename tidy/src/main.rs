//! `cargo tidy`: checks of the source tree that the compiler and its lints do not make.
//!
//! A check is a function from the [`Tree`] to a list of complaints. A complaint names the file, the
//! problem and the fix.
//!
//! `cargo tidy` runs all checks, `cargo tidy layers` one of them, and `cargo tidy -clippy -docs`
//! all except these two. `cargo tidy --bless` first rewrites the files that are generated from the
//! source: `docs/conformance.md` and `tidy/long-comments.txt`.
#![forbid(unsafe_code)]

mod comments;
mod conformance;
mod cycles;
mod imports;
mod layers;
mod source;
mod tree;

use crate::tree::Tree;
use std::env;
use std::path::Path;
use std::process::{Command, ExitCode};

type Check = (&'static str, fn(&Tree) -> Vec<String>);

const CHECKS: &[Check] = &[
    ("layers", layers::check),
    ("reasons", layers::check_reasons),
    ("folders", layers::check_folders),
    ("cycles", cycles::check),
    ("unsafe", source::check_unsafe),
    ("sizes", source::check_sizes),
    ("names", source::check_names),
    ("examples", source::check_examples),
    ("comments", comments::check),
    ("conformance", conformance::check),
    ("fmt", |tree| cargo(tree, &["fmt", "--all", "--check"], "")),
    ("clippy", |tree| {
        let arguments =
            ["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"];
        cargo(tree, &arguments, "")
    }),
    ("docs", |tree| cargo(tree, &["doc", "--quiet", "--workspace", "--no-deps"], "-D warnings")),
];

fn main() -> ExitCode {
    let (mut wanted, mut unwanted, mut is_blessing) = (Vec::new(), Vec::new(), false);
    for word in env::args().skip(1) {
        let name = word.trim_start_matches('-');
        if word == "--bless" {
            is_blessing = true;
        } else if !CHECKS.iter().any(|(check, _)| *check == name) {
            let names: Vec<_> = CHECKS.iter().map(|(name, _)| *name).collect();
            eprintln!("tidy: unknown check `{name}`; the checks are {}", names.join(", "));
            return ExitCode::from(2);
        } else if word.starts_with('-') {
            unwanted.push(name.to_owned());
        } else {
            wanted.push(name.to_owned());
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tidy/ is in the workspace");
    let tree = Tree::read(root);
    if is_blessing {
        comments::bless(&tree);
        conformance::bless(&tree);
    }
    let mut has_failed = false;
    for (name, check) in CHECKS {
        let is_wanted = wanted.is_empty() || wanted.iter().any(|word| word == name);
        if !is_wanted || unwanted.iter().any(|word| word == name) {
            continue;
        }
        let complaints = check(&tree);
        println!("{name:<12} {}", if complaints.is_empty() { "ok" } else { "FAILED" });
        complaints.iter().for_each(|complaint| println!("    {complaint}"));
        has_failed |= !complaints.is_empty();
    }
    ExitCode::from(u8::from(has_failed))
}

/// Runs cargo with its output on the terminal; complains if it fails.
fn cargo(tree: &Tree, arguments: &[&str], rustdoc_flags: &str) -> Vec<String> {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments).current_dir(&tree.root).env("RUSTDOCFLAGS", rustdoc_flags);
    match command.status() {
        Ok(status) if status.success() => Vec::new(),
        Ok(status) => vec![format!("{command:?}: {status}")],
        Err(error) => vec![format!("{command:?} did not start: {error}")],
    }
}
