//! What stands in the way of a contender is found and said, whatever it is.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use peregrine_lab_contender::{BuildError, Recipe, State, all, select, table};
use tempfile::TempDir;

/// Writes a program to the folder of built programs.
const MAKES_A_SERVER: &str = "cp server.sh \"$CARGO_TARGET_DIR/mine\"\n";

/// A folder of contenders with one, `mine`, and a folder for built programs.
struct Place {
    root: TempDir,
}

impl Place {
    fn new(keys: &str, build: &str) -> Place {
        let place = Place { root: tempfile::tempdir().unwrap() };
        place.add("mine", keys);
        fs::write(place.home().join("build.sh"), build).unwrap();
        fs::write(place.home().join("server.sh"), "sleep 600\n").unwrap();
        place
    }

    /// One that is built by a script.
    fn built_by(build: &str) -> Place {
        Place::new("build = ['sh', 'build.sh']\nrun = ['{target}/mine']", build)
    }

    fn add(&self, name: &str, keys: &str) {
        let home = self.contenders().join(name);
        fs::create_dir_all(&home).unwrap();
        fs::write(home.join("contender.toml"), format!("name = '{name}'\n{keys}")).unwrap();
    }

    fn contenders(&self) -> PathBuf {
        self.root.path().join("contenders")
    }

    fn home(&self) -> PathBuf {
        self.contenders().join("mine")
    }

    fn target(&self) -> PathBuf {
        self.root.path().join("built")
    }

    fn recipe(&self) -> Recipe {
        Recipe::load(&self.home()).unwrap()
    }

    fn state(&self) -> State {
        self.recipe().state(&self.target())
    }

    fn build(&self) -> Result<(), BuildError> {
        self.recipe().build(&self.target(), &mut |_| ())
    }
}

fn touch(path: &Path) {
    File::options().append(true).open(path).unwrap().set_modified(SystemTime::now()).unwrap();
}

fn is_ready(state: &State) -> bool {
    matches!(state, State::Ready { .. })
}

#[test]
fn what_is_missing_is_said_in_the_state() {
    let build = "build = ['sh', 'build.sh']\nrun = ['{target}/mine']\n";
    let need = "needs = [{ command = ['sh', '-c', 'echo a; echo Error: no b; exit 1'], \
                reason = 'b is missing' }]\n";
    let met = "needs = [{ command = ['true'], reason = 'x' }]\n";
    let reading = "needs = [{ command = ['cat'], reason = 'x' }]\n";
    let silent = "needs = [{ command = ['false'], reason = 'x' }]\n";
    let ghost = "needs = [{ command = ['./ghost'], reason = 'no ghost' }]\n";
    let published = "unobtainable = 'it is not published'\n";
    let old = "rust = '999.1'\n";
    let cases: &[(&[&str], &[&str])] = &[
        (&[build], &["not built"]),
        (&[build, met], &["not built"]),
        (&[build, reading], &["not built"]),
        (&[build, "rust = '1.0'"], &["not built"]),
        (&[build, need], &["skipped: b is missing", "Error: no b"]),
        (&[build, silent], &["skipped: x", "`false`: exit status: 1"]),
        (&[build, ghost], &["skipped: no ghost", "there is no such program"]),
        (&[build, need, published], &["not obtainable here: it is not published", "Error: no b"]),
        (&[build, met, published], &["not built"]),
        (&[build, old], &["skipped: it needs Rust 999.1 or newer; here is rustc 1."]),
        (&["run = ['./nothing']"], &["skipped: ", "mine/nothing does not exist"]),
        (&["run = ['./server.sh']"], &["ready"]),
        (&["run = ['sh', 'server.sh']"], &["ready"]),
        (&["run = ['no-such-server']"], &["skipped: `no-such-server`, needed for running it"]),
        (
            &["build = ['no-such-compiler']\nrun = ['{target}/mine']\n", need, published],
            &["skipped: `no-such-compiler`, needed for building it, is not installed"],
        ),
    ];
    for (keys, expected) in cases {
        let state = Place::new(&keys.concat(), "").state();
        let said = state.to_string();
        assert!(expected.iter().all(|part| said.contains(part)), "{keys:?}: {said}");
        assert_eq!(state.reason().is_none(), is_ready(&state));
    }
}

#[test]
fn a_program_is_stale_as_soon_as_anything_it_is_made_of_is_newer() {
    let place = Place::built_by(MAKES_A_SERVER);
    fs::create_dir(place.home().join("src")).unwrap();
    let outside = place.root.path().join("outside.rs");
    let names = ["Cargo.lock", "src/main.rs", "../../outside.rs"];
    for name in names {
        fs::write(place.home().join(name), "").unwrap();
    }
    assert_eq!(place.state(), State::NotBuilt);
    place.build().unwrap();
    fs::write(place.target().join("mine.d"), format!("mine: {}\n", outside.display())).unwrap();
    assert!(is_ready(&place.state()));
    for name in names {
        touch(&place.home().join(name));
        assert_eq!(place.state(), State::NotBuilt, "{name}");
        place.build().unwrap();
        assert!(is_ready(&place.state()), "{name}");
    }
    for name in ["target", ".cache"] {
        fs::create_dir(place.home().join(name)).unwrap();
        fs::write(place.home().join(name).join("made"), "").unwrap();
        assert!(is_ready(&place.state()), "{name}");
    }
    fs::remove_file(place.target().join("mine")).unwrap();
    assert_eq!(place.state(), State::NotBuilt);
}

#[test]
fn a_changed_package_beside_the_contender_makes_its_program_stale() {
    let build = "build = ['cargo', 'build', '--offline']\nrun = ['{target}/debug/mine']";
    let place = Place::new(build, "");
    let package = |name: &str, more: &str| {
        format!("[package]\nname = '{name}'\nedition = '2024'\n{more}\n[workspace]\n")
    };
    let library = place.root.path().join("library");
    for (folder, manifest, source) in [
        (place.home(), package("mine", "[dependencies]\nlibrary.path = '../../library'"), "main"),
        (library.clone(), package("library", ""), "lib"),
    ] {
        fs::create_dir_all(folder.join("src")).unwrap();
        fs::write(folder.join("Cargo.toml"), manifest).unwrap();
        let text = if source == "main" { "fn main() { library::go() }" } else { "pub fn go() {}" };
        fs::write(folder.join(format!("src/{source}.rs")), text).unwrap();
    }
    place.build().unwrap();
    assert!(is_ready(&place.state()), "{}", place.state());
    for name in ["src/lib.rs", "Cargo.toml"] {
        touch(&library.join(name));
        assert_eq!(place.state(), State::NotBuilt, "{name}");
        place.build().unwrap();
        assert!(is_ready(&place.state()), "{name}");
    }
}

#[test]
fn a_build_that_finds_nothing_to_do_makes_the_program_fresh() {
    let place = Place::built_by(
        "[ -e \"$CARGO_TARGET_DIR/mine\" ] || cp server.sh \"$CARGO_TARGET_DIR/mine\"",
    );
    place.build().unwrap();
    touch(&place.home().join("server.sh"));
    assert_eq!(place.state(), State::NotBuilt);
    place.build().unwrap();
    assert!(is_ready(&place.state()));
}

#[test]
fn a_program_that_was_built_by_other_means_counts_by_its_age() {
    let place = Place::built_by("exit 1");
    fs::create_dir(place.target()).unwrap();
    let program = place.target().join("mine");
    fs::write(&program, "").unwrap();
    touch(&program);
    assert!(is_ready(&place.state()));
    touch(&place.home().join("server.sh"));
    assert_eq!(place.state(), State::NotBuilt);
}

#[test]
fn another_build_command_makes_the_program_stale_and_another_variable_does_not() {
    let place = Place::built_by(MAKES_A_SERVER);
    place.build().unwrap();
    let keys = "build = ['sh', 'build.sh']\nrun = ['{target}/mine']\nenvironment = { A = 'b' }";
    place.add("mine", keys);
    assert!(is_ready(&place.state()));
    place.add("mine", "build = ['sh', './build.sh']\nrun = ['{target}/mine']");
    assert_eq!(place.state(), State::NotBuilt);
}

#[test]
fn a_failed_build_shows_its_errors_and_is_remembered_until_something_changes() {
    let place = Place::built_by(
        "echo '   Compiling a'; echo 'error[E1]: no b'; echo ' --> c.rs'; echo 'warning: d'; exit 101",
    );
    let error = place.build().unwrap_err();
    let BuildError::Failed { lines, log, .. } = &error else { panic!("{error:?}") };
    assert_eq!(lines, "error[E1]: no b\n --> c.rs");
    assert!(fs::read_to_string(log).unwrap().contains("Compiling a"));
    assert!(error.to_string().contains("exit status: 101"), "{error}");
    let state = place.state();
    let State::BuildFailed { reason, log } = &state else { panic!("{state}") };
    assert_eq!(reason, lines);
    assert_eq!(*log, place.target().join("logs/mine.log"));
    assert!(!state.to_string().contains('\n'), "{state}");
    fs::write(place.home().join("build.sh"), MAKES_A_SERVER).unwrap();
    touch(&place.home().join("build.sh"));
    assert_eq!(place.state(), State::NotBuilt);
    place.build().unwrap();
    assert!(is_ready(&place.state()));
}

#[test]
fn a_build_without_its_product_or_its_program_is_a_failure() {
    let place = Place::built_by("true");
    let error = place.build().unwrap_err();
    assert!(matches!(error, BuildError::NoProgram { .. }), "{error}");
    assert!(matches!(place.state(), State::BuildFailed { .. }));
    let place = Place::new("build = ['./ghost']\nrun = ['{target}/mine']", "");
    let error = place.build().unwrap_err();
    assert!(matches!(error, BuildError::NotStarted { .. }), "{error}");
    let place = Place::new("run = ['sh', 'server.sh']", "");
    place.build().unwrap();
    assert!(!place.target().exists(), "nothing was to be built, so nothing is written");
}

#[test]
fn a_build_tells_its_progress_and_leaves_no_process_behind() {
    // It goes on when its progress was seen, however slow the machine is.
    let place = Place::built_by(
        "sleep 600 & echo $! > pid; echo one; while [ ! -e seen ]; do sleep 0.01; done\n\
         cp server.sh \"$CARGO_TARGET_DIR/mine\"",
    );
    let mut seen = Vec::new();
    let mut progress = |line: &str| {
        seen.push(line.to_owned());
        fs::write(place.home().join("seen"), "").unwrap();
    };
    place.recipe().build(&place.target(), &mut progress).unwrap();
    assert_eq!(seen, ["one"]);
    let id = fs::read_to_string(place.home().join("pid")).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", id.trim())).unwrap_or_default();
    assert!(status.is_empty() || status.contains("State:\tZ"), "{status}");
}

#[test]
fn an_identity_has_versions_and_hashes() {
    let keys = "build = ['sh', 'build.sh']\nrun = ['{target}/mine']\nclass = 'tuned'\n\
                package = 'hyper'\nallocator = 'mimalloc'\nenvironment = { A = '{port}' }";
    let place = Place::new(keys, MAKES_A_SERVER);
    let lock = "[[package]]\nname = 'hyper'\nversion = '1.6.0'\n";
    fs::write(place.home().join("Cargo.lock"), lock).unwrap();
    // The example of FIPS 180-2.
    fs::write(place.home().join("server.sh"), "abc").unwrap();
    place.build().unwrap();
    let state = place.state();
    let State::Ready { identity } = &state else { panic!("{state}") };
    assert_eq!(**identity, place.recipe().identity(&place.target()));
    assert_eq!((identity.name.as_str(), identity.class.word()), ("mine", "tuned"));
    assert_eq!((identity.version.as_str(), identity.allocator.as_str()), ("1.6.0", "mimalloc"));
    assert!(identity.toolchain.starts_with("rustc "), "{}", identity.toolchain);
    assert_eq!(identity.run, ["{target}/mine"]);
    assert_eq!(identity.environment["A"], "{port}");
    let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(identity.program_sha256, expected);
    assert_eq!(identity.lock_sha256.len(), 64);
    assert!(identity.skipped.is_none());

    let place = Place::new("run = ['sh']\nversion = ['echo', 'sh version: sh/7.2']", "");
    assert_eq!(place.recipe().identity(&place.target()).version, "7.2");
    assert_eq!(place.recipe().identity(&place.target()).program_sha256.len(), 64);
    let place = Place::new("run = ['sh']\nversion = ['false']", "");
    assert_eq!(place.recipe().identity(&place.target()).version, "unknown");
    let place = Place::new("run = ['sh']\npackage = 'absent'", "");
    assert_eq!(place.recipe().identity(&place.target()).version, "unknown");
}

#[test]
fn the_table_names_each_contender_with_its_state_and_reason() {
    let place = Place::built_by(MAKES_A_SERVER);
    place.add("other", "run = ['no-such-server']\ntls = false\nclass = 'tuned'");
    let recipes = all(&place.contenders()).unwrap();
    let chosen = select(&recipes, &["all".to_owned()]).unwrap();
    let rows: Vec<(&Recipe, State)> =
        chosen.into_iter().map(|recipe| (recipe, recipe.state(&place.target()))).collect();
    let expected = "\
name   class  version  https  state
mine   stock  -        yes    not built
other  tuned  -        no     skipped: `no-such-server`, needed for running it, is not installed
";
    assert_eq!(table(&rows), expected);
}
