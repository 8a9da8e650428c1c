//! `lab report`: HTML, Markdown, JSON and one picture from run files. `lab pack`: what is kept of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use peregrine_lab_model::{RunFile, pack};
use peregrine_lab_report::Report;

use crate::exit::{Exit, Failure};
use crate::options;

/// The names of what is written, which are no run files.
const OUTPUTS: [&str; 4] = ["report.html", "report.md", "report.json", "forest.svg"];

pub(super) fn report(wanted: &options::Report) -> Result<Exit, Failure> {
    let mut files = Vec::new();
    for path in &wanted.runs {
        files.extend(read(path)?);
    }
    let folder = match (&wanted.out, wanted.runs.first()) {
        (Some(out), _) => out.clone(),
        (None, Some(first)) if first.is_dir() => first.clone(),
        (None, Some(first)) => first.parent().map_or_else(PathBuf::new, Path::to_owned),
        (None, None) => PathBuf::new(),
    };
    let is_any = wanted.html || wanted.md || wanted.json || wanted.svg;
    let wanted = [wanted.html || !is_any, wanted.md, wanted.json, wanted.svg];
    for path in write(&files, &folder, wanted)? {
        println!("{}", path.display());
    }
    Ok(Exit::Right)
}

/// Packs the runs of a folder into one file, and writes the report that can be made from it.
pub(super) fn pack(wanted: &options::Pack) -> Result<Exit, Failure> {
    let files = read(&wanted.runs)?;
    let failed = |error: std::io::Error| Failure::file(wanted.out.display(), &error);
    let bytes = pack::write(&files).map_err(failed)?;
    let packed = pack::read(&bytes)
        .map_err(|error| Failure::usage(format!("{}: {error}", wanted.runs.display())))?;
    let [before, after] = [&files, &packed].map(|files| Report::new(files).markdown());
    let mut lines = before.lines().zip(after.lines());
    if before != after {
        let (before, after) = lines.find(|(before, after)| before != after).unwrap_or_default();
        return Err(Failure::usage(format!(
            "{}: the report on the packed runs would be another one; nothing was written. This is a \
             fault of the lab, please report it: \"{before}\" would be \"{after}\"",
            wanted.runs.display()
        )));
    }
    fs::create_dir_all(&wanted.out).map_err(failed)?;
    let path = wanted.out.join(pack::NAME);
    fs::write(&path, bytes).map_err(|error| Failure::file(path.display(), &error))?;
    println!("{}", path.display());
    for path in write(&packed, &wanted.out, [false, true, false, wanted.svg])? {
        println!("{}", path.display());
    }
    Ok(Exit::Right)
}

/// The run files at a path: itself, or all in a folder in the order of their names.
fn read(path: &Path) -> Result<Vec<RunFile>, Failure> {
    let paths = if path.is_dir() { in_folder(path)? } else { vec![path.to_owned()] };
    if paths.is_empty() {
        return Err(Failure::usage(format!(
            "{}: there are no run files; `lab run` writes them",
            path.display()
        )));
    }
    let mut files = Vec::new();
    let mut names = BTreeSet::new();
    for path in &paths {
        for file in read_one(path)? {
            if !names.insert(file.run.clone()) {
                return Err(Failure::usage(format!(
                    "{}: the run {} is in another file of the folder too; remove one of them",
                    path.display(),
                    file.run
                )));
            }
            files.push(file);
        }
    }
    // Levels of one scenario in the order of their connections, and rates in theirs.
    let key = |file: &RunFile| {
        let rate = file.plan.schedule.rate_per_s().unwrap_or(0.0);
        (file.plan.scenario.clone(), file.plan.connections, rate as u64)
    };
    files.sort_by_key(key);
    Ok(files)
}

/// The runs of one file: one, or all that are packed in it.
fn read_one(path: &Path) -> Result<Vec<RunFile>, Failure> {
    let bytes = fs::read(path).map_err(|error| Failure::file(path.display(), &error))?;
    let files = match path.to_string_lossy().ends_with(pack::ENDING) {
        true => pack::read(&bytes),
        false => RunFile::read(&String::from_utf8_lossy(&bytes)).map(|file| vec![file]),
    };
    files.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error: std::io::Error| Failure::file(folder.display(), &error);
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_run = [".json", pack::ENDING].iter().any(|ending| name.ends_with(ending))
            && !name.starts_with('.');
        if is_run && !OUTPUTS.contains(&name.as_str()) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// The forms that a measuring command writes.
pub(super) const USUAL: [bool; 4] = [true, true, true, false];

/// Writes the wanted forms (HTML, Markdown, JSON, SVG) into the folder and returns their paths.
pub(super) fn write(
    files: &[RunFile],
    folder: &Path,
    wanted: [bool; 4],
) -> Result<Vec<PathBuf>, Failure> {
    let report = Report::new(files);
    let forms: [&dyn Fn() -> String; 4] =
        [&|| report.html(), &|| report.markdown(), &|| report.json(), &|| report.forest_svg()];
    let mut paths = Vec::new();
    for ((name, form), _) in
        OUTPUTS.iter().zip(forms).zip(wanted).filter(|(_, is_wanted)| *is_wanted)
    {
        let path = folder.join(name);
        fs::write(&path, form()).map_err(|error| Failure::file(path.display(), &error))?;
        paths.push(path);
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_read_without_the_reports_in_it() {
        let folder = tempfile::tempdir().unwrap();
        for (name, connections) in [("b", 64), ("a", 1500)] {
            let mut file = RunFile::new(name);
            file.plan.scenario = "json".to_owned();
            file.plan.connections = connections;
            let path = folder.path().join(format!("{name}.json"));
            fs::write(path, serde_json::to_vec(&file).unwrap()).unwrap();
        }
        fs::write(folder.path().join("report.json"), "{}").unwrap();
        let files = read(folder.path()).unwrap();
        let names: Vec<&str> = files.iter().map(|file| file.run.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
        let written = write(&files, folder.path(), [true; 4]).unwrap();
        assert_eq!(written.len(), 4);
        assert!(fs::read_to_string(&written[0]).unwrap().starts_with("<!doctype html>"));
    }

    #[test]
    fn a_run_that_stands_in_two_files_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = RunFile::new("a");
        fs::write(folder.path().join("a.json"), file.write()).unwrap();
        fs::write(folder.path().join(pack::NAME), pack::write(&[file]).unwrap()).unwrap();
        let failure = read(folder.path()).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.text.contains("the run a is in another file"), "{}", failure.text);
    }

    #[test]
    fn a_folder_without_run_files_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let failure = read(folder.path()).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.text.contains("lab run"), "{}", failure.text);
    }
}
