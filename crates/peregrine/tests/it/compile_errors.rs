//! The compiler's errors for invalid handlers and middleware must name the cause and the fix.
//!
//! Each `compile_errors/*.rs` is compiled against this crate, like a user's program. The `.stderr`
//! file of the same name contains phrases, one per line, all of which must occur in the compiler's
//! output. The rest of the output may change with the compiler. A case without a `.stderr` file
//! must compile, which shows that the other cases fail for the intended reason.

use serde_json::Value;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

#[test]
fn compile_errors_name_the_cause_and_the_fix() {
    let libraries = Libraries::check_all();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_errors");
    let mut cases = Vec::new();
    for entry in fs::read_dir(directory).expect("the directory of the cases") {
        let case = entry.expect("readable").path();
        if case.extension().is_some_and(|extension| extension == "rs") {
            cases.push(case);
        }
    }
    assert!(cases.len() >= 20, "only {} cases were found", cases.len());
    let (next, problems) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let problem = libraries.check(case);
                    problems.lock().expect("no thread panicked").extend(problem);
                }
            });
        }
    });
    let problems = problems.into_inner().expect("no thread panicked");
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}

/// The libraries that the cases are compiled against.
struct Libraries {
    /// The file of each crate that a case may use.
    named: BTreeMap<String, PathBuf>,
    /// The directory with their dependencies.
    folder: PathBuf,
}

impl Libraries {
    /// Type-checks the libraries with Cargo and collects the paths of their files. This is quick,
    /// because it generates no code and enables only the features that the cases use: `config` is
    /// enabled for the derive macros of serde.
    fn check_all() -> Self {
        // The test is `<target>/<profile>/deps/<name>`.
        let test = env::current_exe().expect("a test is a file");
        let target = test.ancestors().nth(3).expect("three levels up");
        let output = Command::new(env!("CARGO"))
            .args(["check", "--offline", "--package", "peregrine", "--lib"])
            .args(["--no-default-features", "--features", "config,openapi"])
            .arg("--message-format=json")
            .arg("--target-dir")
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo exists, because it started this test");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let named: BTreeMap<String, PathBuf> = String::from_utf8(output.stdout)
            .expect("cargo writes UTF-8")
            .lines()
            .filter_map(|line| library(&serde_json::from_str(line).ok()?))
            .collect();
        Self { named, folder: target.join("debug/deps") }
    }

    /// Compiles one case. Returns a description of the problem, if there is one.
    fn check(&self, case: &Path) -> Option<String> {
        let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        rustc.args(["--edition=2024", "--crate-type=lib", "--emit=metadata", "--color=never"]);
        let name = case.file_name().expect("a case is a file").to_string_lossy().into_owned();
        rustc
            .arg("-o")
            .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name).with_extension("rmeta"));
        rustc.arg("-L").arg(format!("dependency={}", self.folder.display()));
        for name in ["peregrine", "serde"] {
            rustc.arg("--extern").arg(format!("{name}={}", self.named[name].display()));
        }
        let output = rustc.arg(case).output().expect("the compiler runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        let Ok(phrases) = fs::read_to_string(case.with_extension("stderr")) else {
            return (!output.status.success()).then(|| format!("{name} should compile:\n{stderr}"));
        };
        if output.status.success() {
            return Some(format!("{name} compiles, but must not"));
        }
        let missing: Vec<_> = phrases.lines().filter(|phrase| !stderr.contains(phrase)).collect();
        let missing = missing.join("\n");
        (!missing.is_empty()).then(|| format!("{name} lacks the phrases\n{missing}\nin\n{stderr}"))
    }
}

/// The name and the file of a library, from a message of cargo.
fn library(message: &Value) -> Option<(String, PathBuf)> {
    let name = message.pointer("/target/name")?.as_str()?;
    let mut files = message.get("filenames")?.as_array()?.iter().filter_map(Value::as_str);
    let file = files.find(|file| file.ends_with(".rmeta"))?;
    Some((name.to_owned(), file.into()))
}
